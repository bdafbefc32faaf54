"""Operations of the rights table over AMQP 1.0."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import attrs
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import Message
from gateway.domain.topics.filters import Rule
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.exchange import NodeRequest, Reply, build_request, parse_reply
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.identity import request as identity_request
from gateway.wire.amqp.management.requests import request_of
from gateway.wire.amqp.sasl import Credentials
from tests.frontends.amqp.sdk import ANONYMOUS, Sdk
from tests.frontends.rest_client import wall_clock
from tests.security.rights.credentials import NOTHING, Credential
from tests.security.rights.model import Entity, Kind, Permit, Right
from tests.security.rights.world import World

REFUSED: Final = "amqp:unauthorized-access"
_SESSION: Final = "com.microsoft:session-filter"
_UNAUTHORIZED: Final = 401


class Refused(Exception):
    """The client may not do this."""


@attrs.frozen(kw_only=True)
class Way:
    """The way in which a client shows its credential: with SASL, or on `$cbs` for an audience."""

    name: str
    sasl: Credentials | None = ANONYMOUS  # None: without SASL
    token: str | None = None
    audience: str = ""
    permit: Permit
    certificate: Credential


def ways_of(credential: Credential) -> list[Way]:
    """Each way in which a client may show that credential."""
    common: dict[str, Any] = {"permit": credential.permit, "certificate": credential}
    name = credential.name
    if credential.certificate:
        external = Credentials(mechanism="EXTERNAL")
        return [
            Way(name=f"{name} with EXTERNAL", sasl=external, **common),
            Way(name=f"{name} not shown", **{**common, "permit": Permit()}),
        ]
    if credential.key is not None:
        user, key = credential.key
        plain = Credentials(mechanism="PLAIN", user=user, password=key)
        return [Way(name=f"{name} with PLAIN", sasl=plain, **common)]
    if credential.header is None:
        return [Way(name=name, **common)]
    if not credential.header.startswith("Bearer "):
        return [Way(name=f"{name} on $cbs", token=credential.header, **common)]
    token = credential.header.removeprefix("Bearer ")
    narrow = {**common, "permit": attrs.evolve(credential.permit, scope="orders")}
    xoauth2 = Credentials(mechanism="XOAUTH2", password=token)
    ways = [
        Way(name=f"{name} on $cbs", token=token, **common),
        Way(name=f"{name} with XOAUTH2", sasl=xoauth2, **common),
    ]
    if any(grant.entities is None for grant in credential.permit.grants):
        ways.append(Way(name=f"{name} for orders", token=token, audience="orders", **narrow))
    return ways


def ways_of_nobody(permit: Permit) -> list[Way]:
    """The ways of clients without credentials, and of one whose credentials are refused."""
    common: dict[str, Any] = {"permit": permit, "certificate": NOTHING}
    guess = Credentials(mechanism="PLAIN", user="anybody", password="anybody")
    return [
        Way(name="nothing with ANONYMOUS", **common),
        Way(name="nothing without SASL", sasl=None, **common),
        Way(name="nothing with EXTERNAL", sasl=Credentials(mechanism="EXTERNAL"), **common),
        Way(name="the policy's name with PLAIN", sasl=guess, **refused(common)),
    ]


def refused(common: dict[str, Any]) -> dict[str, Any]:
    return {**common, "permit": Permit()}


@attrs.define(eq=False)
class LinkedSdk(Sdk):
    """An SDK that sends all requests to one node over one pair of links."""

    links: dict[str, tuple[amqp.LinkId, amqp.LinkId]] = attrs.field(factory=dict)


Run = Callable[[World, LinkedSdk, Entity], Awaitable[None]]


@attrs.frozen
class Operation:
    """An operation, the right that it needs, and the kinds of entity it is for."""

    name: str
    right: Right | None
    on: frozenset[Kind]
    run: Run
    below: str = ""
    locks: bool = False  # the operation concerns the lock of another client

    def allows(self, permit: Permit, entity: Entity) -> bool:
        """The verdict for a client with that permit."""
        return permit.allows(self.right, entity, self.below)


@attrs.define(eq=False)
class Client:
    """The connection of a client with a credential."""

    world: World
    sdk: LinkedSdk | None

    @classmethod
    async def open(cls, world: World, way: Way, nursery: trio.Nursery) -> "Client":
        """Connect; without a connection, if the client is refused."""
        broker: Any = world.broker
        frontend = AmqpFrontend(
            broker=broker, leases=world.leases, authorizer=world.authorizer, wall_clock=wall_clock
        )
        ours, theirs = trio.testing.memory_stream_pair()
        with way.certificate.shown():
            nursery.start_soon(frontend.serve_connection, theirs)
        sdk = LinkedSdk.on(ours, way.sasl)
        nursery.start_soon(sdk.run)
        sdk.engine.open(hostname="localhost")
        sdk.session = sdk.engine.begin()
        opened = await sdk.until(amqp.ConnectionOpened | amqp.ConnectionClosed)
        if isinstance(opened, amqp.ConnectionClosed):
            assert opened.error is not None
            assert opened.error.condition == REFUSED
            return cls(world, None)
        if way.token is not None:
            await sdk.put_text(way.token, f"sb://localhost/{way.audience}")
        return cls(world, sdk)

    async def verdict(self, operation: Operation, entity: Entity, *, may: bool) -> str:
        """
        `done` or `refused`, or a sentence that neither of both explains. A message is there only
        for a client that `may`.
        """
        token = ""
        if operation.locks:
            token = self.world.lock_token = await self.world.lock(entity)
        elif may and entity.kind is not Kind.NAMESPACE:
            fields = {"session_id": "s"} if entity.kind is Kind.SESSIONS else {}
            await self.world.put(entity, **fields)
        self.world.broker.calls.clear()
        if self.sdk is None:
            return "refused"
        try:
            await operation.run(self.world, self.sdk, entity)
        except Refused:
            if self.world.broker.calls:
                return f"refused after {self.world.broker.calls}"
            if token and not await self.world.is_locked(entity, token):
                return "refused, and the lock is lost"
            return "refused"
        except BrokerError as error:
            return repr(error)
        return "done"


async def _attach(sdk: LinkedSdk, *, we_send: bool, address: str, **fields: Any) -> amqp.LinkId:
    link = sdk.attach(we_send=we_send, address=address, **fields)
    answer = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)
    if answer.source is None or answer.target is None:
        detached = await sdk.until(amqp.LinkDetached, lambda event: event.link == link)
        assert detached.error is not None
        if detached.error.condition != REFUSED:
            raise AssertionError(detached.error)
        raise Refused
    return link


async def _ask(sdk: LinkedSdk, address: str, request: NodeRequest) -> Reply:
    if address not in sdk.links:
        replies = await _attach(
            sdk, we_send=False, address=address, target=amqp.Terminus(address=address)
        )
        sdk.links[address] = replies, await _attach(sdk, we_send=True, address=address)
    replies, requests = sdk.links[address]
    sdk.engine.grant(replies, 1)
    await sdk.outcome(sdk.engine.send(requests, b"1", build_request(request)))  # type: ignore[arg-type]
    reply = parse_reply((await sdk.delivery(replies)).payload)
    if reply.status == _UNAUTHORIZED:
        raise Refused
    return reply


async def _send(world: World, sdk: LinkedSdk, entity: Entity) -> None:
    link = await _attach(sdk, we_send=True, address=entity.written)
    await sdk.until(amqp.LinkFlow, lambda event: event.link == link)
    fields = {"session_id": "s"} if entity.kind is Kind.SESSIONS else {}
    outcome = await sdk.send(link, Message(body=b"x", **fields))  # type: ignore[arg-type]
    assert isinstance(outcome, amqp.Accepted)
    sdk.engine.detach(link)


async def _receive(world: World, sdk: LinkedSdk, entity: Entity) -> None:
    link = await _attach(sdk, we_send=False, address=f"amqps://localhost/{entity.written}")
    if entity.kind is not Kind.DEAD_LETTERS:  # the dead letters are empty
        sdk.engine.grant(link, 1)
        transfer = await sdk.delivery(link)
        await sdk.settle(transfer, amqp.ACCEPTED)
    sdk.engine.detach(link)


async def _hold(sdk: LinkedSdk, entity: Entity) -> amqp.LinkId:
    source = amqp.Terminus(address=entity.written, filters={_SESSION: "s"})
    return await _attach(sdk, we_send=False, address=entity.written, source=source)


async def _session(world: World, sdk: LinkedSdk, entity: Entity) -> None:
    sdk.engine.detach(await _hold(sdk, entity))
    await wait_all_tasks_blocked()  # the session is released


def _managed(of: Callable[[World], ops.Operation], *statuses: int) -> Run:
    async def run(world: World, sdk: LinkedSdk, entity: Entity) -> None:
        address = f"{entity.written}/$management"
        asked = request_of(of(world), request_id="7", reply_to=address, timeout=None)
        reply = await _ask(sdk, address, asked)
        assert reply.status in (statuses or (200, 202, 204)), reply

    return run


def _of_session(operation: ops.Operation) -> Run:
    """With the link that holds the session, if the client may have it."""
    ask = _managed(lambda world: operation, 200, 410)

    async def run(world: World, sdk: LinkedSdk, entity: Entity) -> None:
        link = None
        try:
            link = await _hold(sdk, entity)
        except Refused:
            await trio.lowlevel.checkpoint()
        await ask(world, sdk, entity)
        if link is not None:
            sdk.engine.detach(link)
            await wait_all_tasks_blocked()  # the session is released

    return run


def _schedule(world: World) -> ops.Operation:
    later = wall_clock() + timedelta(days=1)
    return ops.Schedule(messages=(Message(body=b"x", message_id="x", scheduled=later),))


async def _cancel(world: World, sdk: LinkedSdk, entity: Entity) -> None:
    """Cancel a message that another client has scheduled."""
    later = wall_clock() + timedelta(days=1)
    (number,) = await world.memory.schedule(EntityPath(entity.path), [Message(scheduled=later)])
    asked = ops.CancelScheduled(sequence_numbers=(number,))
    await _managed(lambda _: asked)(world, sdk, entity)


async def _add_rule(world: World, sdk: LinkedSdk, entity: Entity) -> None:
    path = EntityPath(entity.path)
    names = [each.name for each in await world.memory.list_rules(path.topic, path.subscription)]
    if "more" in names:
        await world.memory.delete_rule(path.topic, path.subscription, "more")
    await _managed(lambda _: ops.AddRule(rule=Rule(name="more")))(world, sdk, entity)


async def _remove_rule(world: World, sdk: LinkedSdk, entity: Entity) -> None:
    path = EntityPath(entity.path)
    names = [each.name for each in await world.memory.list_rules(path.topic, path.subscription)]
    if "more" not in names:
        await world.memory.create_rule(path.topic, path.subscription, Rule(name="more"))
    await _managed(lambda _: ops.RemoveRule(name="more"))(world, sdk, entity)


async def _identity(world: World, sdk: LinkedSdk, entity: Entity) -> None:
    asked = attrs.evolve(identity_request(), id="7", reply_to="$management")
    assert (await _ask(sdk, "$management", asked)).status == 200


_NODE: Final = "$management"
_SENT_TO: Final = frozenset({Kind.QUEUE, Kind.TOPIC})
_WITH_MESSAGES: Final = frozenset({Kind.QUEUE, Kind.SUBSCRIPTION})
_RECEIVED: Final = _WITH_MESSAGES | {Kind.DEAD_LETTERS}
_SESSIONS: Final = frozenset({Kind.SESSIONS})
_RULES: Final = frozenset({Kind.SUBSCRIPTION})
_L: Final = Right.LISTEN

OPERATIONS: Final = (
    Operation("send", Right.SEND, _SENT_TO, _send),
    Operation("receive", _L, _RECEIVED, _receive),
    Operation("hold a session", _L, _SESSIONS, _session),
    Operation("schedule", Right.SEND, _SENT_TO, _managed(_schedule), _NODE),
    Operation("cancel", Right.SEND, frozenset({Kind.QUEUE}), _cancel, _NODE),
    Operation("peek", _L, _RECEIVED, _managed(lambda _: ops.Peek(from_sequence=0, limit=1)), _NODE),
    Operation(
        "renew a lock",
        _L,
        _WITH_MESSAGES,
        _managed(lambda world: ops.RenewLocks(tokens=(world.lock_token,))),
        _NODE,
        locks=True,
    ),
    *(
        Operation(
            f"settle: {status.value}",
            _L,
            _WITH_MESSAGES,
            _managed(
                lambda world, status=status: ops.UpdateDisposition(  # type: ignore[misc]
                    status=status, tokens=(world.lock_token,)
                )
            ),
            _NODE,
            locks=True,
        )
        for status in (ops.Disposition.COMPLETED, ops.Disposition.ABANDONED)
    ),
    Operation(
        "receive deferred",
        _L,
        _WITH_MESSAGES,
        _managed(lambda _: ops.ReceiveDeferred(sequence_numbers=(10**6,)), 404),
        _NODE,
    ),
    Operation("list sessions", _L, _SESSIONS, _managed(lambda _: ops.ListSessions()), _NODE),
    Operation(
        "delete messages", _L, _RECEIVED, _managed(lambda _: ops.DeleteMessages(limit=1)), _NODE
    ),
    *(
        Operation(name, _L, _SESSIONS, _of_session(operation), _NODE)
        for name, operation in (
            ("get session state", ops.GetSessionState(session_id="s")),
            ("set session state", ops.SetSessionState(session_id="s", state=b"x")),
            ("renew a session", ops.RenewSession(session_id="s")),
            ("delete messages of a session", ops.DeleteMessages(limit=1, session_id="s")),
        )
    ),
    Operation("list rules", _L, _RULES, _managed(lambda _: ops.ListRules()), _NODE),
    Operation("add a rule", _L, _RULES, _add_rule, _NODE),
    Operation("remove a rule", _L, _RULES, _remove_rule, _NODE),
    Operation("identity", None, frozenset({Kind.NAMESPACE}), _identity),
)
