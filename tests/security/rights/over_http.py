"""Operations of the rights table over HTTP: Service Bus REST, Atom, and the admin endpoint."""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import attrs
import trio

from gateway.app.operations.control_calls import of_control
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.operators.control import Action, ControlAnswer, ControlState, Operator, Order
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder
from gateway.domain.status.process import Status
from gateway.domain.topics.filters import DEFAULT_RULE, Rule
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.extensions.purge.order import PURGE
from gateway.extensions.redrive.feature import executor as redrive
from gateway.extensions.redrive.order import REDRIVE, Redriven, RedriveOrder, Selection, Survey
from gateway.frontends.admin.control import ControlFrontend, Executor
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.pairgate.control_calls import CONTROL_CALLS
from gateway.wire.servicebus import atom
from gateway.wire.servicebus import atom_operations as management
from tests.frontends.rest_client import wall_clock
from tests.security.rights.credentials import Credential
from tests.security.rights.model import Entity, Kind, Permit, Right
from tests.security.rights.world import World

JSON: Final = {"Content-Type": "application/json"}
_WITH_MESSAGES: Final = frozenset({Kind.QUEUE, Kind.SUBSCRIPTION})
_RECEIVED: Final = _WITH_MESSAGES | {Kind.DEAD_LETTERS}
_SENT_TO: Final = frozenset({Kind.QUEUE, Kind.TOPIC})
_NAMESPACE: Final = frozenset({Kind.NAMESPACE})


@attrs.frozen
class Asked:
    """A request, without credentials, and the condition that must hold if it was refused."""

    request: Request
    lock: str | None = None


@attrs.frozen
class Operation:
    """An operation of a protocol, the right that it needs, and the kinds of entity it is for."""

    name: str
    right: Right | None
    on: frozenset[Kind]
    ask: Callable[[World, Entity], Awaitable[Asked]]
    # The path below the entity, or, of the namespace, the path: a signature may be for it alone.
    below: str = ""
    # Another entity that needs the same right, since messages are forwarded to it.
    also: Entity | None = None

    def allows(self, permit: Permit, entity: Entity) -> bool:
        """The verdict for a client with that permit."""
        also = self.also is None or permit.allows(self.right, self.also)
        return also and permit.allows(self.right, entity, self.below)


Handle = Callable[[Request], Awaitable[Response]]


async def verdict(
    handle: Handle, world: World, credential: Credential, operation: Operation, entity: Entity
) -> str:
    """`done`, `refused`, or the status that neither of both explains."""
    asked = await operation.ask(world, entity)
    world.broker.calls.clear()
    fields = [("Host", "localhost"), *asked.request.headers.items]
    if credential.header is not None:
        fields.append(("Authorization", credential.header))
    if credential.key is not None:
        text = b64encode(":".join(credential.key).encode()).decode()
        fields.append(("Authorization", f"Basic {text}"))
    with credential.shown():
        response = await handle(attrs.evolve(asked.request, headers=Headers.of(fields)))
    if response.parts is not None:
        await response.parts.aclose()
    if 200 <= response.status < 300:
        return "done"
    if response.status != 401:
        return f"{response.status} {response.body!r:.200}"
    if world.broker.calls:
        return f"refused after {world.broker.calls}"
    if asked.lock is not None and not await world.is_locked(entity, asked.lock):
        return "refused, and the lock is lost"
    return "refused"


def _plain(
    method: str, tail: str, body: bytes = b"", **fields: str
) -> Callable[[World, Entity], Awaitable[Asked]]:
    async def ask(world: World, entity: Entity) -> Asked:
        await trio.lowlevel.checkpoint()
        target = tail.replace("{entity}", entity.written)
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        return Asked(Request(method=method, target=target, headers=Headers.of(named), body=body))

    return ask


def _with_message(method: str, tail: str) -> Callable[[World, Entity], Awaitable[Asked]]:
    async def ask(world: World, entity: Entity) -> Asked:
        await world.put(entity)
        return Asked(Request(method=method, target=tail.replace("{entity}", entity.written)))

    return ask


def _with_lock(
    method: str, tail: str = "", body: bytes = b""
) -> Callable[[World, Entity], Awaitable[Asked]]:
    async def ask(world: World, entity: Entity) -> Asked:
        token = await world.lock(entity)
        target = f"/{entity.written}/messages/1/{token}{tail}"
        return Asked(Request(method=method, target=target, body=body), lock=token)

    return ask


_MESSAGES: Final = "messages"
REST: Final = (
    Operation("send", Right.SEND, _SENT_TO, _plain("POST", "/{entity}/messages", b"x"), _MESSAGES),
    Operation(
        "schedule",
        Right.SEND,
        _SENT_TO,
        _plain(
            "POST",
            "/{entity}/messages",
            b"x",
            BrokerProperties='{"ScheduledEnqueueTimeUtc":"Fri, 02 Jan 2026 00:00:00 GMT"}',
        ),
        _MESSAGES,
    ),
    Operation("probe", Right.SEND, _SENT_TO, _plain("HEAD", "/{entity}/messages"), _MESSAGES),
    Operation(
        "receive",
        Right.LISTEN,
        _RECEIVED,
        _with_message("POST", "/{entity}/messages/head?timeout=0"),
        _MESSAGES,
    ),
    Operation(
        "receive and delete",
        Right.LISTEN,
        _RECEIVED,
        _with_message("DELETE", "/{entity}/Messages/Head?timeout=0"),
        _MESSAGES,
    ),
    Operation(
        "peek", Right.LISTEN, _RECEIVED, _with_message("GET", "/{entity}/messages"), _MESSAGES
    ),
    Operation("complete", Right.LISTEN, _WITH_MESSAGES, _with_lock("DELETE"), _MESSAGES),
    Operation("abandon", Right.LISTEN, _WITH_MESSAGES, _with_lock("PUT"), _MESSAGES),
    Operation("renew", Right.LISTEN, _WITH_MESSAGES, _with_lock("POST"), _MESSAGES),
    Operation(
        "dead-letter",
        Right.LISTEN,
        _WITH_MESSAGES,
        _with_lock("PUT", "/$dead-letter", b"{}"),
        _MESSAGES,
    ),
    Operation("identity", None, _NAMESPACE, _plain("GET", "/$pairgate/identity")),
)


def _atom(
    of: Callable[[EntityPath], management.Operation], tail: str = "", *, creates: bool = False
) -> Callable[[World, Entity], Awaitable[Asked]]:
    """The body is that of the operation; the path is written as the client does."""

    async def ask(world: World, entity: Entity) -> Asked:
        await trio.lowlevel.checkpoint()
        built = atom.build_request(of(EntityPath(entity.path or "none")))
        target = f"/{entity.written}{tail}" if entity.written else built.target
        if creates:
            await world.fill()
        return Asked(attrs.evolve(built, target=target))

    return ask


_ENTITIES = frozenset({Kind.QUEUE, Kind.TOPIC})
_NEW = frozenset({Kind.NEW})
_TOPIC = frozenset({Kind.TOPIC})
_QUEUE = frozenset({Kind.QUEUE})
_M = Right.MANAGE


def _below(
    name: str,
    tail: str,
    of: Callable[[EntityPath], management.Operation],
    *,
    creates: bool = False,
    also: Entity | None = None,
) -> Operation:
    """An operation on a part of a topic."""
    return Operation(name, _M, _TOPIC, _atom(of, f"/{tail}", creates=creates), tail, also)


_TARGETS: Final = (Entity("sessions", Kind.SESSIONS), Entity("orders/EU", Kind.QUEUE))
_FORWARDS: Final = ("forward_to", "forward_dead_lettered_messages_to")


def _forwarded_queue(target: Entity, field: str) -> Operation:
    """Let a queue forward its messages, or its dead letters."""
    properties = QueueProperties(**{field: unquote(target.written)})  # type: ignore[arg-type]
    return Operation(
        f"{field} {target.written}",
        _M,
        frozenset({Kind.NEW}),
        _atom(lambda e: management.PutQueue(entity=e, properties=properties), creates=True),
        also=target,
    )


def _forwarded_subscription(target: Entity, field: str) -> Operation:
    """Let a subscription forward its messages, or its dead letters."""
    properties = SubscriptionProperties(**{field: unquote(target.written)})  # type: ignore[arg-type]
    return _below(
        f"{field} {target.written}",
        "subscriptions/x",
        lambda e: management.PutSubscription(topic=e, name="x", properties=properties, update=True),
        also=target,
    )


ATOM: Final = (
    Operation("get", _M, _ENTITIES, _atom(lambda e: management.GetEntity(entity=e))),
    Operation(
        "create queue",
        _M,
        _NEW,
        _atom(lambda e: management.PutQueue(entity=e, properties=QueueProperties()), creates=True),
    ),
    Operation(
        "update queue",
        _M,
        _QUEUE,
        _atom(
            lambda e: management.PutQueue(entity=e, properties=QueueProperties(), update=True),
        ),
    ),
    Operation(
        "create topic",
        _M,
        _NEW,
        _atom(lambda e: management.PutTopic(entity=e, properties=TopicProperties()), creates=True),
    ),
    Operation(
        "update topic",
        _M,
        _TOPIC,
        _atom(lambda e: management.PutTopic(entity=e, properties=TopicProperties(), update=True)),
    ),
    Operation(
        "delete",
        _M,
        _ENTITIES,
        _atom(lambda e: management.DeleteEntity(entity=e), creates=True),
    ),
    Operation(
        "list queues", _M, _NAMESPACE, _atom(lambda e: management.ListQueues()), "$resources/queues"
    ),
    Operation(
        "list topics", _M, _NAMESPACE, _atom(lambda e: management.ListTopics()), "$resources/topics"
    ),
    Operation(
        "namespace", _M, _NAMESPACE, _atom(lambda e: management.GetNamespace()), "$namespaceinfo"
    ),
    _below(
        "list subscriptions",
        "subscriptions",
        lambda e: management.ListSubscriptions(topic=e),
        creates=True,
    ),
    _below(
        "get subscription",
        "Subscriptions/x",
        lambda e: management.GetSubscription(topic=e, name="x"),
    ),
    _below(
        "update subscription",
        "subscriptions/x",
        lambda e: management.PutSubscription(
            topic=e, name="x", properties=SubscriptionProperties(), update=True
        ),
    ),
    _below(
        "delete subscription",
        "subscriptions/y",
        lambda e: management.DeleteSubscription(topic=e, name="y"),
        creates=True,
    ),
    _below(
        "list rules",
        "subscriptions/x/rules",
        lambda e: management.ListRules(topic=e, subscription="x"),
    ),
    _below(
        "get rule",
        f"subscriptions/x/rules/{DEFAULT_RULE}",
        lambda e: management.GetRule(topic=e, subscription="x", name=DEFAULT_RULE),
    ),
    _below(
        "update rule",
        f"subscriptions/x/rules/{DEFAULT_RULE}",
        lambda e: management.PutRule(
            topic=e, subscription="x", rule=Rule(name=DEFAULT_RULE), update=True
        ),
    ),
    _below(
        "delete rule",
        f"subscriptions/y/rules/{DEFAULT_RULE}",
        lambda e: management.DeleteRule(topic=e, subscription="y", name=DEFAULT_RULE),
        creates=True,
    ),
    *(_forwarded_queue(target, field) for target in _TARGETS for field in _FORWARDS),
    *(_forwarded_subscription(target, field) for target in _TARGETS for field in _FORWARDS),
)


def rest_of(world: World) -> Handle:
    """Service Bus REST and Atom: one front end."""
    broker: Any = world.broker
    frontend = ServiceBusRestFrontend(
        broker=broker, leases=world.leases, authorizer=world.authorizer, wall_clock=wall_clock
    )
    return frontend.handle


# The admin endpoint


class _Figures:
    """Answers for the parts of a process that the admin endpoint reads and steers."""

    is_pair_wide = False

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    async def read(self) -> Status:
        await trio.lowlevel.checkpoint()
        self.calls.append("status")
        return Status.__new__(Status)

    def exposition(self, status: Status) -> bytes:
        return b""

    async def order(self, order: Order, operator: Operator) -> ControlAnswer:
        await trio.lowlevel.checkpoint()
        self.calls.append("order")
        state = ControlState(entities={}, has_pair=True)
        return ControlAnswer(
            action=order.action.value, targets=(), changed=True, before=state, after=state
        )

    def state(self, targets: Sequence[str] = ("*",)) -> ControlState:
        self.calls.append("state")
        return ControlState(entities={}, has_pair=True)

    async def probe(self, order: ProbeOrder, operator: Operator) -> ProbeAnswer:
        await trio.lowlevel.checkpoint()
        self.calls.append("probe")
        return ProbeAnswer(action="probe", targets=(), changed=True, before={}, after={}, probes={})

    async def survey(self, selection: Selection, peek: int = 0, preview: int = 0) -> Survey:
        await trio.lowlevel.checkpoint()
        self.calls.append("survey")
        return Survey()

    async def run(self, selection: Selection, **how: object) -> Redriven:
        await trio.lowlevel.checkpoint()
        self.calls.append("redrive")
        return Redriven()


_COUNT = REDRIVE.build(RedriveOrder(selection=Selection()))
_MOVE = REDRIVE.build(RedriveOrder(selection=Selection(), executes=True))
_ALL = b'{"targets": ["*"]}'
_TRIGGERED = frozenset({Kind.QUEUE, Kind.NEW})

ADMIN: Final = (
    Operation("depth", Right.LISTEN, _QUEUE, _plain("GET", "/scale/{entity}")),
    Operation("announce", Right.SEND, _TRIGGERED, _plain("POST", "/triggers/{entity}")),
    Operation("triggers", Right.LISTEN, _TRIGGERED, _plain("GET", "/triggers?queues={entity}")),
    *(
        Operation(path, Right.LISTEN, _NAMESPACE, _plain("GET", f"/{path}"))
        for path in ("metrics", "v1/control", "v1/history", "v1/permissions")
    ),
    Operation(
        "dead letters", Right.LISTEN, _NAMESPACE, _plain("POST", "/v1/redrive", _COUNT, **JSON)
    ),
    Operation("redrive", _M, _NAMESPACE, _plain("POST", "/v1/redrive", _MOVE, **JSON)),
    Operation("redrive (old)", _M, _NAMESPACE, _plain("POST", "/redrive", _MOVE)),
    *(
        Operation(action.value, _M, _NAMESPACE, _plain("POST", f"/v1/{action.value}", _ALL, **JSON))
        for action in Action
        if action is not Action.RATE
    ),
)


def admin_of(world: World) -> Handle:
    """The admin endpoint of a gateway with a pair."""
    broker: Any = world.broker
    parts: Any = _Figures(world.broker.calls)
    frontend = AdminFrontend(
        broker=broker,
        authorizer=world.authorizer,
        wall_clock=wall_clock,
        figures=FiguresFrontend(
            authorizer=world.authorizer,
            read=parts.read,
            exposition=parts.exposition,
            control=ControlFrontend(
                world.authorizer,
                CONTROL_CALLS,
                [*of_control(parts), Executor(PURGE, parts.order), redrive(parts, parts)],
            ),
        ),
    )
    return frontend.handle
