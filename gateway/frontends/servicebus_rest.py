"""
Service Bus REST for clients: requests become calls of a `Broker`, and what it says becomes answers.

    bytes -> HttpServer -> Request -> who is it? -> codec: operation -> may they? -> Broker
                                                        answer or error -> codec -> Response

A token is checked before a body is read, and what it allows once the operation is known.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID, uuid4

import attrs
import trio
from attrs import validators

from gateway.capabilities import Peeks
from gateway.domain.access import Access, Claim, Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    SessionRequired,
)
from gateway.domain.message import Complete, Delivery, Message, ReceiveMode
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus_management import manage
from gateway.ports import Broker, WallClock
from gateway.wire import atom, atom_answers, servicebus_answers, servicebus_rest
from gateway.wire import servicebus_operations as rest
from gateway.wire.atom_operations import NamespaceInfo, entity_of
from gateway.wire.http import Request, Response
from gateway.wire.servicebus_errors import build_error, build_refusal

_TIMEOUT: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)
_RIGHTS: Final = {
    rest.SendMessages: Right.SEND,
    rest.ProbeEntity: Right.SEND,
    rest.ReceiveMessages: Right.LISTEN,
    rest.SettleMessage: Right.LISTEN,
    rest.RenewLock: Right.LISTEN,
    rest.PeekMessages: Right.LISTEN,
}


@attrs.frozen(kw_only=True)
class RestOptions:
    """Times are seconds."""

    namespace: str = "pairgate"  # the name that management tells
    secure: bool = False  # whether clients come with TLS, so that Location says https
    send_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    answer_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    longest_wait: float = attrs.field(default=240.0, validator=validators.gt(0.0))
    # A client that doesn't want to wait gives the namespace that long to look.
    shortest_wait: float = attrs.field(default=0.5, validator=validators.gt(0.0))


def is_long_poll(request: Request) -> bool:
    """
    Whether the request is one that ends when its client goes away.

    A send, a settlement and all of management run to their end instead.
    """
    return request.path.lower().endswith("/messages/head")


@attrs.define(eq=False, kw_only=True)
class ServiceBusRestFrontend:
    """
    Answers requests of Service Bus REST, of its Atom management, and of other Pairgates.

    Whoever builds it also runs `leases`, with the same broker. `handle` and `refuse` are what
    `gateway.net.http_server.HttpServer` asks for, with `is_long_poll`.
    """

    broker: Broker
    leases: Leases
    authorizer: Authorizer
    wall_clock: WallClock
    new_id: Callable[[], UUID] = uuid4  # unique for ever: duplicate detection believes in it
    options: RestOptions = attrs.field(factory=RestOptions)

    async def handle(self, request: Request) -> Response:
        """
        Answer one request; every `BrokerError` has become a response.

        If cancelled, what was asked for may have happened or not. A receive loses nothing.
        """
        try:
            claim = self.authorizer.claim(request.headers.get("Authorization"))
            if servicebus_rest.is_message_request(request):
                return await self._message(request, claim)
            return await self._management(request, claim)
        except BrokerError as error:
            await trio.lowlevel.checkpoint()  # a refusal may have had none
            # The table's 400 is for a send; who receives has taken the wrong way altogether.
            wrong_way = isinstance(error, SessionRequired) and is_long_poll(request)
            return build_error(error, status=405 if wrong_way else None, tracking=self._tracking())

    def refuse(self, status: int, text: str) -> Response:
        """The answer to what never became a request: cut short, too large, malformed."""
        return build_refusal(status, text, tracking=self._tracking())

    async def _message(self, request: Request, claim: Claim) -> Response:
        operation = servicebus_rest.parse_request(request)
        self._check(claim, request, _RIGHTS[type(operation)], operation.entity)
        origin = servicebus_rest.origin_of(request, secure=self.options.secure)
        answer: rest.Answer | None = None
        if isinstance(operation, rest.ReceiveMessages):
            answer = await self._receive(operation)  # what of it has a limit has its own
        else:
            with trio.move_on_after(self._seconds(request, operation)):
                answer = await self._answer(operation)
        if answer is None:
            raise OutcomeUnknown(f"no answer from {operation.entity} in time")
        return servicebus_answers.build_response(operation, answer, origin)

    async def _management(self, request: Request, claim: Claim) -> Response:
        operation = atom.parse_request(request)
        self._check(claim, request, Right.MANAGE, entity_of(operation))
        origin = servicebus_rest.origin_of(request, secure=self.options.secure)
        with trio.move_on_after(self.options.answer_timeout):
            answer = await manage(self.broker, operation, self._namespace())
            return atom_answers.build_response(operation, answer, origin)
        raise OutcomeUnknown("no answer from the namespace in time")

    def _check(
        self, claim: Claim, request: Request, right: Right, entity: EntityPath | None
    ) -> None:
        self.authorizer.check(claim, Access(right=right, entity=entity, path=request.path))

    async def _answer(  # noqa: ASYNC910 all wait
        self, operation: rest.BriefOperation
    ) -> rest.Answer:
        entity = operation.entity
        match operation:
            case rest.SendMessages(messages=messages):
                leg = await self.broker.send(entity, [self._with_id(m) for m in messages])
                return rest.Accepted(leg=leg)
            case rest.SettleMessage(lock_token=token, settlement=settlement):
                await self.leases.settle(entity, token, settlement)
                return rest.Done()
            case rest.RenewLock(lock_token=token):
                renewed = await self.leases.renew(entity, token)
                return rest.Renewed(locked_until=renewed.locked_until)
            case rest.PeekMessages(from_sequence=first, limit=limit):
                return await self._peek(entity, first, limit)
            case rest.ProbeEntity():
                await self.broker.probe(entity)
                return rest.Done()

    def _with_id(self, message: Message) -> Message:
        if message.message_id is not None:
            return message
        return attrs.evolve(message, message_id=str(self.new_id()))

    async def _peek(self, entity: EntityPath, first: int, limit: int) -> rest.Delivered:
        if not isinstance(self.broker, Peeks):
            raise NotSupported("this namespace can't show messages without taking them")
        found = await self.broker.peek(entity, from_sequence=first, limit=limit)
        return rest.Delivered(deliveries=tuple(found))

    async def _receive(self, operation: rest.ReceiveMessages) -> rest.Delivered:
        deliveries: Sequence[Delivery] = ()
        wait = max(operation.timeout, self.options.shortest_wait)
        with trio.move_on_after(min(wait, self.options.longest_wait)):
            deliveries = await self.leases.receive(operation.entity, operation.most)
        if operation.mode is ReceiveMode.RECEIVE_AND_DELETE:
            deliveries = await self._take_away(operation.entity, deliveries)
        return rest.Delivered(deliveries=tuple(deliveries))

    async def _take_away(
        self, entity: EntityPath, deliveries: Sequence[Delivery]
    ) -> Sequence[Delivery]:
        """
        Complete what was locked; return what is the client's now.

        A receiver that deletes by itself could lose a message whose client has just given up.
        """
        kept: set[int] = set()

        async def take(index: int, delivery: Delivery) -> None:
            if not await self._completed(entity, delivery):
                kept.add(index)

        async with trio.open_nursery() as nursery:
            for index, delivery in enumerate(deliveries):
                nursery.start_soon(take, index, delivery)
        return [
            attrs.evolve(delivery, lock_token=None, locked_until=None)
            for index, delivery in enumerate(deliveries)
            if index not in kept
        ]

    async def _completed(self, entity: EntityPath, delivery: Delivery) -> bool:
        """False: it certainly wasn't, so it comes again. Unknown counts as done: rather twice."""
        await trio.lowlevel.checkpoint()
        assert delivery.lock_token is not None, "a lease has one"
        try:
            with trio.move_on_after(self.options.answer_timeout):
                await self.leases.settle(entity, delivery.lock_token, Complete())
        except BrokerError as error:
            return error.outcome is Outcome.UNKNOWN
        return True

    def _seconds(self, request: Request, operation: rest.BriefOperation) -> float:
        """How long the client waits, if it says so; else how long we do."""
        if not isinstance(operation, rest.SendMessages):
            return self.options.answer_timeout
        text = request.query.get("timeout")
        if text is None:
            return self.options.send_timeout
        if not _TIMEOUT.fullmatch(text) or float(text) == 0:
            raise InvalidRequest(f"timeout: above 0 seconds expected, got {text!r:.60}")
        return min(float(text), self.options.longest_wait)

    def _namespace(self) -> NamespaceInfo:
        return NamespaceInfo(name=self.options.namespace)

    def _tracking(self) -> str:
        now = self.wall_clock().strftime("%Y-%m-%dT%H:%M:%S")
        return (
            f"TrackingId:{self.new_id()}, SystemTracker:{self.options.namespace}, Timestamp:{now}"
        )
