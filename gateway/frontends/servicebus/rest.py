"""
Service Bus REST: clients' requests become calls of a `Broker`, and its results become responses.

    bytes -> HttpServer -> Request -> authenticate -> codec: operation -> authorize -> Broker
                                                        answer or error -> codec -> Response

A token is checked before a body is read (`check_head`), unless the body came together with the
head; its rights are checked once the operation is known.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final
from uuid import UUID, uuid4

import attrs
import trio

from gateway.capabilities import Identifies, Peeks, Send, accepting_send, longest_send_of
from gateway.capabilities.remembering import answer_source
from gateway.deadlines import answered_within, client_gives
from gateway.domain.access import Access, Right, TokenClaim
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityExists,
    InvalidRequest,
    MessageError,
    Outcome,
    PreconditionFailed,
    SessionRequired,
    Unavailable,
    drop_tracebacks,
)
from gateway.domain.message import (
    AcceptedBy,
    Complete,
    Delivery,
    Message,
    ReceiveMode,
    derive_message,
)
from gateway.domain.topics.property_values import check_sent
from gateway.frontends.auth import Authorizer
from gateway.frontends.empty_answers import receive_in_time
from gateway.frontends.leasing import Leasing
from gateway.frontends.options import RestOptions
from gateway.frontends.servicebus.management import manage
from gateway.net.http.server import RETRY_AFTER
from gateway.net.turns import RequestTurn
from gateway.net.visits import (
    acquire_turn,
    acquire_turn_to_await,
    acquire_turn_to_show,
    answering,
    begin_request,
    peek_until_written,
)
from gateway.offering import required
from gateway.ports import Broker, WallClock
from gateway.wire.amqp.message import encoded_size
from gateway.wire.http.messages import Request, Response
from gateway.wire.servicebus import answers as servicebus_answers
from gateway.wire.servicebus import atom, atom_answers
from gateway.wire.servicebus import operations as rest
from gateway.wire.servicebus import rest as servicebus_rest
from gateway.wire.servicebus.atom_conditions import is_unchanged
from gateway.wire.servicebus.atom_operations import (
    NamespaceInfo,
    Operation,
    entity_of,
    forwards_of,
)
from gateway.wire.servicebus.errors import build_error, build_refusal, challenged

_TIMEOUT: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)
_SLICE: Final = 200  # messages of a batch, which take some 2.5 ms
_SMALL_SLICE: Final = 50  # beside a light client
_PAGE: Final = 32  # messages that are peeked in one step
_MOST_PEEKED: Final = 2 * 1024 * 1024  # bytes, beyond which an answer gets no further page
_RIGHTS: Final = {
    rest.SendMessages: Right.SEND,
    rest.ProbeEntity: Right.SEND,
    rest.ReceiveMessages: Right.LISTEN,
    rest.SettleMessage: Right.LISTEN,
    rest.RenewLock: Right.LISTEN,
    rest.PeekMessages: Right.LISTEN,
}


def is_long_poll(request: Request) -> bool:
    """
    True if the request ends when its client disconnects.

    A send, a settlement and all of management run to their end instead.
    """
    return servicebus_rest.is_receive_request(request)


@attrs.define(eq=False, kw_only=True)
class ServiceBusRestFrontend:
    """
    Answers requests of Service Bus REST, of its Atom management, and of other Pairgates.

    The caller also has to run `leases`, over the same broker. `handle`, `check_head` and `refuse`
    are the interface that `gateway.net.http.server.HttpServer` calls, with `is_long_poll`.
    """

    broker: Broker
    leases: Leasing
    authorizer: Authorizer
    wall_clock: WallClock
    # In a worker: answers all requests except sends, as locks are in one process.
    on_parent: Callable[[Request], Awaitable[Response]] | None = None
    new_id: Callable[[], UUID] = uuid4  # globally unique, because duplicate detection relies on it
    options: RestOptions = attrs.field(factory=RestOptions)
    # The broker's ways to send, which are looked up only once.
    _send: Send[AcceptedBy] = attrs.field(init=False)
    _longest_send: Callable[[], float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._send = accepting_send(self.broker)
        self._longest_send = longest_send_of(self.broker)

    async def handle(self, request: Request) -> Response:
        """
        Answer one request; every `BrokerError` has become a response.

        If cancelled, the outcome is unknown. A cancelled receive loses nothing.
        """
        usage = turn = response = None
        try:
            claim = self.authorizer.claim(request.headers.get("Authorization"))
            usage = begin_request()
            if servicebus_rest.is_peek_request(request):
                await peek_until_written()  # before the turn, which waits for no client's reading
                turn = await acquire_turn_to_show(len(request.body))
            elif servicebus_rest.waits_for_messages(request):
                turn = await acquire_turn_to_await()
            else:
                turn = await acquire_turn(len(request.body))
            response = await self._response(request, claim, turn)
        except BrokerError as error:
            # The table's 400 is for a send; a receive without a session uses the wrong path
            # altogether.
            wrong_way = isinstance(error, SessionRequired) and is_long_poll(request)
            return self._error(error, status=405 if wrong_way else None)
        else:
            return response
        finally:
            if turn is not None:
                turn.release(0 if response is None else len(response.body))
            if usage is not None:
                usage.answered()

    async def _response(
        self, request: Request, claim: TokenClaim, turn: RequestTurn | None
    ) -> Response:
        if self.on_parent is not None and not servicebus_rest.is_send_request(request):
            return await self.on_parent(request)
        if servicebus_rest.is_message_request(request):
            return await self._message(request, claim, turn)
        if servicebus_rest.is_identity_request(request):
            return await self._identity(claim)
        return await self._management(request, claim)

    def check_head(self, request: Request) -> Response | None:
        """
        The refusal of a client without a valid token, before its body is read; None if the body may
        be read.
        """
        try:
            self.authorizer.claim(request.headers.get("Authorization"))
        except BrokerError as error:
            return self._error(error)
        return None

    def refuse(self, status: int, text: str) -> Response:
        """
        The response to a request that was never read as a whole: cut short, too large or malformed.
        """
        if status == 503:  # no message was sent, and there will be room again soon
            busy = Busy(text, retry_after=float(RETRY_AFTER))
            return build_error(busy, tracking=self._tracking())
        return build_refusal(status, text, tracking=self._tracking())

    async def _message(
        self, request: Request, claim: TokenClaim, turn: RequestTurn | None
    ) -> Response:
        batch = servicebus_rest.batch_of(request)
        ready = None if batch is None else await self._in_slices(batch, turn)
        operation = servicebus_rest.parse_request(request, ready)
        self._check(claim, request, _RIGHTS[type(operation)], operation.entity)
        origin = servicebus_rest.origin_of(request, secure=self.options.secure)
        answer: rest.Answer
        if isinstance(operation, rest.ReceiveMessages):
            answer = await self._receive(operation)  # parts that need a timeout have their own
        else:
            seconds = self._client_timeout(request, operation)
            if seconds is None:
                answer = await self._answer_in_time(operation, self._usual_seconds(operation))
            else:
                with client_gives(seconds):
                    answer = await self._answer_in_time(operation, seconds)
        if not isinstance(operation, rest.PeekMessages):
            return servicebus_answers.build_response(operation, answer, origin)
        async with answering(is_large=True):
            return servicebus_answers.build_response(operation, answer, origin)

    async def _answer_in_time(self, operation: rest.BriefOperation, seconds: float) -> rest.Answer:
        if isinstance(operation, rest.SendMessages) and self._longest_send() <= seconds:
            return await self._answer(operation)  # spares a cancel scope for each message
        with answered_within(seconds, f"from {operation.entity}"):
            return await self._answer(operation)

    async def _identity(self, claim: TokenClaim) -> Response:
        """The namespace's identity. Any right suffices, because no entity is concerned."""
        self.authorizer.require_any(claim)
        identifies = required(self.broker, Identifies)
        with answered_within(self.options.answer_timeout, error=Unavailable):
            return servicebus_answers.build_identity(await identifies.identity())

    async def _management(self, request: Request, claim: TokenClaim) -> Response:
        operation = atom.parse_request(request)
        self._check(claim, request, Right.MANAGE, entity_of(operation))
        await self._check_forwarding(claim, request, operation)
        origin = servicebus_rest.origin_of(request, secure=self.options.secure)
        with answer_source() as source:
            try:
                with answered_within(self.options.answer_timeout):
                    answer = await manage(self.broker, operation, self._namespace())
            except (EntityExists, PreconditionFailed) as error:
                return self._error(error).remembered(source.from_memory)
        asked = request.target.partition("?")[0]
        response = atom_answers.build_response(operation, answer, origin, asked)
        response = response.remembered(source.from_memory)
        tag = response.headers.get("ETag")
        if request.method == "GET" and is_unchanged(request.headers, tag):
            return atom_answers.build_unchanged(tag)
        return response

    def _check(
        self, claim: TokenClaim, request: Request, right: Right, entity: EntityPath | None
    ) -> None:
        self.authorizer.require(claim, Access(right=right, entity=entity, path=request.path))

    async def _check_forwarding(
        self, claim: TokenClaim, request: Request, operation: Operation
    ) -> None:
        """
        Check the right to manage each entity that messages will be forwarded to: the SDKs send a
        token of its own for it, and otherwise the request's token has to suffice.
        """
        for header, target in forwards_of(operation):
            token = request.headers.get(header)
            await self.authorizer.prepare(token)
            holder = claim if token is None else self.authorizer.claim(token)
            access = Access(right=Right.MANAGE, entity=target, path=target.name)
            self.authorizer.require(holder, access)

    async def _answer(self, operation: rest.BriefOperation) -> rest.Answer:
        entity = operation.entity
        match operation:
            case rest.SendMessages(messages=messages, form=form):
                if form is rest.Form.SINGLE:  # the messages of a batch have theirs
                    messages = tuple(map(self._with_id, messages))
                return rest.SendAccepted(accepted_by=await self._send(entity, messages))
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

    async def _in_slices(self, batch: Iterator[Message], turn: RequestTurn | None) -> list[Message]:
        """
        Parse the messages of a batch, and prepare them to be sent. The batch gives way to light
        clients after each whole slice.
        """
        ready: list[Message] = []
        while True:
            small = turn is not None and turn.is_beside_light
            size = _SMALL_SLICE if small else _SLICE
            part = [self._with_id(message) for message in islice(batch, size)]
            if small:  # else the namespace encodes all at once, which makes more batches a second
                with suppress(MessageError):  # raised again where it is sent
                    for message in part:
                        encoded_size(message)  # the message keeps its encoding
            ready += part
            if len(part) < size:
                return ready
            await trio.lowlevel.checkpoint()  # between two slices others may run
            if turn is not None:
                await turn.give_way()

    def _with_id(self, message: Message) -> Message:
        check_sent(message)
        if message.message_id is not None:
            return message
        return derive_message(message, message_id=str(self.new_id()))

    async def _peek(self, entity: EntityPath, first: int, limit: int) -> rest.Delivered:
        """Peek at most `limit` messages, and fewer if they have more than `_MOST_PEEKED` bytes."""
        peeks = required(self.broker, Peeks)
        found, size = list[Delivery](), 0
        while len(found) < limit and size < _MOST_PEEKED:
            wanted = min(_PAGE, limit - len(found))
            page = await peeks.peek(entity, from_sequence=first, limit=wanted)
            found += page
            if len(page) < wanted:
                break
            size += sum(map(_size_of, page))
            first = page[-1].sequence_number + 1
        return rest.Delivered(deliveries=tuple(found))

    async def _receive(self, operation: rest.ReceiveMessages) -> rest.Delivered:
        deletes = operation.mode is ReceiveMode.RECEIVE_AND_DELETE
        wait = max(operation.timeout, self.options.shortest_wait)
        deliveries = await receive_in_time(
            self.leases,
            operation.entity,
            operation.most,
            min(wait, self.options.longest_wait),
            waits=bool(operation.timeout),
            any_token=not deletes,
        )
        if deletes:
            deliveries = await self._complete_all(operation.entity, deliveries)
        return rest.Delivered(deliveries=tuple(deliveries))

    async def _complete_all(
        self, entity: EntityPath, deliveries: Sequence[Delivery]
    ) -> Sequence[Delivery]:
        """
        Complete the locked deliveries; return the completed ones, which are the client's now. A
        receiver in receive-and-delete mode could lose a message whose client has just given up.
        """
        kept: dict[int, BrokerError] = {}

        async def complete(index: int, delivery: Delivery) -> None:
            error = await self._not_completed(entity, delivery)
            if error is not None:
                kept[index] = error

        async with trio.open_nursery() as nursery:
            for index, delivery in enumerate(deliveries):
                nursery.start_soon(complete, index, delivery)
        away = next((each for each in kept.values() if each.counts_as_outage), None)
        if away is not None and len(kept) == len(deliveries):
            raise away  # an empty answer would say that there are no messages
        return [
            attrs.evolve(delivery, lock_token=None, locked_until=None)
            for index, delivery in enumerate(deliveries)
            if index not in kept
        ]

    async def _not_completed(self, entity: EntityPath, delivery: Delivery) -> BrokerError | None:
        """
        The error of a delivery that wasn't completed, and is delivered again; None: it was. An
        unknown outcome counts as completed, because the client may rather get a message twice than
        never.
        """
        assert delivery.lock_token is not None, "a lease has one"
        try:
            with answered_within(self.options.answer_timeout):
                await self.leases.settle(entity, delivery.lock_token, Complete())
        except BrokerError as error:
            return None if error.outcome is Outcome.UNKNOWN else error
        return None

    def _usual_seconds(self, operation: rest.BriefOperation) -> float:
        sends = isinstance(operation, rest.SendMessages)
        return self.options.send_timeout if sends else self.options.answer_timeout

    def _client_timeout(self, request: Request, operation: rest.BriefOperation) -> float | None:
        """The client's timeout of a send, at most `longest_wait`; None: it gives none."""
        if not isinstance(operation, rest.SendMessages) or "?" not in request.target:
            return None
        text = request.query.get("timeout")
        if text is None:
            return None
        if not _TIMEOUT.fullmatch(text) or float(text) == 0:
            raise InvalidRequest(f"timeout: above 0 seconds expected, got {text!r:.60}")
        return min(float(text), self.options.longest_wait)

    def _error(self, error: BrokerError, status: int | None = None) -> Response:
        drop_tracebacks(error)
        response = build_error(error, status=status, tracking=self._tracking())
        return challenged(response, self.authorizer.challenges)

    def _namespace(self) -> NamespaceInfo:
        return NamespaceInfo(name=self.options.namespace, tier=self.options.tier)

    def _tracking(self) -> str:
        now = self.wall_clock().strftime("%Y-%m-%dT%H:%M:%S")
        return (
            f"TrackingId:{self.new_id()}, SystemTracker:{self.options.namespace}, Timestamp:{now}"
        )


def _size_of(delivery: Delivery) -> int:
    """The bytes of a message; 0 if it can't be encoded."""
    with suppress(MessageError):
        return encoded_size(delivery.message)
    return 0
