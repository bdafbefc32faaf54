"""
The Queue service: clients' requests become calls of a namespace, and its results become responses.

    bytes -> HttpServer -> Request -> account -> authenticate -> codec: operation -> authorize
                                     -> namespace -> answer or error -> codec -> Response

Clients of this service wait 12 to 20 seconds after a 5xx before they retry. So operations that may
be retried are retried here, for as long as a client waits for its response.
"""

import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final
from uuid import UUID, uuid4

import attrs
import trio

from gateway.capabilities.remembering import answer_source
from gateway.deadlines import answered_within
from gateway.domain.access import TokenClaim
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, Outcome, drop_tracebacks
from gateway.frontends.options import StorageQueueOptions
from gateway.frontends.outages import Outages
from gateway.frontends.storage_queue.auth import Accounts, Circumstances, Credential
from gateway.frontends.storage_queue.cors import check_preflight, origin_fields
from gateway.frontends.storage_queue.delegation import DelegatedSas
from gateway.frontends.storage_queue.notes import LastNotes
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.net.turns import RequestTurn
from gateway.net.visits import (
    acquire_turn,
    acquire_turn_to_show,
    answering,
    begin_request,
    peek_until_written,
)
from gateway.ports import WallClock
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.address import Address
from gateway.wire.storage_queue.answers import Style, build_response, pieces_of
from gateway.wire.storage_queue.errors import StorageRefusal, Trace, build_error, build_refusal
from gateway.wire.storage_queue.fields import VERSION, Query, version_of
from gateway.wire.storage_queue.rest import parse_request
from gateway.wire.storage_queue.sas import Sas
from gateway.wire.storage_queue.xml import precise

_CHALLENGE: Final = "WWW-Authenticate"
_CLIENT_ID: Final = "x-ms-client-request-id"
_LONGEST_ID: Final = 1024  # characters of a client's request id; a longer id isn't echoed
_TIMEOUT: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_FIRST_PAUSE: Final = 0.25  # seconds, doubled with each retry
_LONGEST_PAUSE: Final = 4.0  # less than `_LEAST_TRY`: a client that waits 30 s gets several tries
# seconds, of which the primary has two: with less, a slow primary would count as failed
_LEAST_TRY: Final = 5.0
_SLICE: Final = 256 * 1024  # bytes of an answer, which take half a millisecond
_OUTCOME: Final = "X-Pairgate-Outcome"
_REFUSALS: Final = {
    403: "AuthorizationFailure",
    408: "OperationTimedOut",
    413: "RequestBodyTooLarge",
    501: "UnsupportedHttpVerb",
    503: "ServerBusy",
}


@attrs.define(eq=False, kw_only=True)
class StorageQueueFrontend:
    """
    Answers requests of the Queue service.

    `handle`, `check_head` and `refuse` are the methods that `gateway.net.http.server.HttpServer`
    calls.
    """

    operations: StorageOperations
    accounts: Accounts
    wall_clock: WallClock
    new_id: Callable[[], UUID] = uuid4
    options: StorageQueueOptions = attrs.field(factory=StorageQueueOptions)
    ending: trio.Event = attrs.field(factory=trio.Event)  # once set, nothing is retried
    notes: LastNotes = attrs.field(init=False)
    _outages: Outages = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.notes = LastNotes(self.operations.broker)
        self._outages = Outages(self.operations.broker)

    async def handle(self, request: Request, peer: str | None = None) -> Response:
        """
        Answer one request; every `BrokerError` has become a response. `peer` is the client's IP
        address.

        If cancelled, the outcome is unknown.
        """
        request_id = str(self.new_id())
        version = None
        with answer_source() as source:
            try:
                version = version_of(request, Query.of(request))
                response = await self._answered(request, version, peer)
            except BrokerError as error:
                response = self._error(error, request_id)
                if response.status >= 500:
                    response = _with(response, (_OUTCOME, error.outcome.value))
        response = response.remembered(source.from_memory)
        if request.method == "GET" and response.status == 200:
            response = _with(response, ("Cache-Control", "no-cache"))
        return _with(response, *_common(request, version, request_id))

    def check_head(self, request: Request) -> Response | None:
        """
        The refusal of a client without a valid signature, before its body is read; None if the body
        may be read.
        """
        if request.method == "OPTIONS":
            return self.refuse(400, "A preflight has no body.")
        version = None
        try:
            version = version_of(request, Query.of(request))
            self._authenticated(request, version)
        except BrokerError as error:
            request_id = str(self.new_id())
            response = self._error(error, request_id)
            return _with(response, *_common(request, version, request_id))
        return None

    def refuse(self, status: int, text: str) -> Response:
        """
        The response to a request that was never read as a whole: cut short, too large or malformed.
        """
        trace = self._trace(str(self.new_id()))
        code = _REFUSALS.get(status, "InvalidInput")
        response = attrs.evolve(build_refusal(code, trace, detail=text), status=status)
        fields = [("x-ms-request-id", trace.request_id)]
        if status == 503:  # no message was sent
            fields.append((_OUTCOME, Outcome.NOT_SENT.value))
        return _with(response, *fields)

    async def _answered(self, request: Request, version: str | None, peer: str | None) -> Response:
        address, credential = self._authenticated(request, version)
        operation = parse_request(request, address)
        seconds = self._seconds(request)
        style = Style(endpoint=address.endpoint, is_first=version is None)
        peeks = isinstance(operation, storage.PeekMessages)
        # The same id with each retry.
        message_id = str(self.new_id()) if isinstance(operation, storage.PutMessage) else ""

        async def work(turn: RequestTurn | None) -> Response:
            if isinstance(operation, storage.Preflight):
                rule = await check_preflight(self.notes, operation)
                return build_response(
                    operation, storage.Allowed(origin=operation.origin, rule=rule), style
                )
            if isinstance(operation, storage.GetUserDelegationKey):
                key = self.accounts.delegate(credential, operation, address, version)
                return build_response(operation, key, style)
            if isinstance(credential, TokenClaim):
                self.accounts.authorize_token(credential, operation, address)
            elif credential is not None:
                await self._authorize(credential, operation, address, peer)
            _check_secondary(operation, address)
            fields: list[tuple[str, str]] = []
            if (origin := request.headers.get("Origin")) is not None:
                fields += await origin_fields(self.notes, origin, request.method)
            answer, accepted_by = await self.operations.run(operation, message_id)
            if accepted_by is not None:
                fields.append(("X-Pairgate-Accepted-By", accepted_by.value))
            async with answering(is_large=peeks):
                body = await _in_slices(pieces_of(answer, style), turn)
            response = build_response(operation, answer, style, body)
            return _with(response, *fields) if fields else response

        turn = partial(_in_turn, work, len(request.body), peeks=peeks)
        return await _counted(partial(self._held, turn, operation, seconds))

    def _error(self, error: BrokerError, request_id: str) -> Response:
        drop_tracebacks(error)
        response = build_error(error, self._trace(request_id))
        challenge = self.accounts.challenge if response.status == 401 else None
        return response if challenge is None else _with(response, (_CHALLENGE, challenge))

    def _authenticated(self, request: Request, version: str | None) -> tuple[Address, Credential]:
        """
        The request's address and credential.

        Raises:
            StorageRefusal: the client isn't authenticated. A browser's preflight needs no
                authentication.
        """
        address = self.accounts.locate(request, secure=self.options.secure)
        if request.method == "OPTIONS":
            return address, None
        return address, self.accounts.authenticate(request, address, version)

    async def _authorize(
        self,
        sas: Sas | DelegatedSas,
        operation: storage.Operation,
        address: Address,
        peer: str | None,
    ) -> None:
        dependencies = Circumstances(secure=self.options.secure, peer=peer, account=address.account)
        if isinstance(sas, DelegatedSas):
            self.accounts.authorize_delegated(sas, operation, address, dependencies)
            return
        policy = None
        if sas.get("si") and address.queue is not None:
            notes = await self.notes.read(EntityPath.parse(address.queue))
            policy = next((each for each in notes.policies if each.id == sas.get("si")), None)
        self.accounts.authorize(sas, operation, policy, dependencies)

    async def _held(
        self, work: Callable[[], Awaitable[Response]], operation: storage.Operation, seconds: float
    ) -> Response:
        """
        The result of `work`, retried as long as a retry may help; else its last error.

        Once an outcome was unknown, the result stays unknown: a later try doesn't show the effect
        of the first one.
        """
        since = trio.current_time()
        pause = _FIRST_PAUSE
        unknown: BrokerError | None = None
        while True:
            result = await _tried(work, seconds, since)
            if isinstance(result, Response):
                return result
            if result.outcome is Outcome.UNKNOWN:
                unknown = result
            if not _can_help(result, operation):
                in_doubt = isinstance(operation, storage.PutMessage | storage.DeleteMessage)
                raise (unknown if in_doubt else None) or result
            wait = max(result.retry_after, pause) if isinstance(result, Busy) else pause
            # Only of what was surely not done: a repetition must not overtake a late first try.
            is_away = result.counts_as_outage and result.outcome is Outcome.NOT_SENT
            away = getattr(operation, "queue", None) if is_away else None
            if not await self._paused(wait, since + seconds, away):
                raise unknown or result
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _paused(self, seconds: float, deadline: float, away: str | None) -> bool:
        """
        Pause, until its return at the longest if the namespace of the queue `away` can't be
        reached; return whether there is time for another try of the usual length.
        """
        if self.ending.is_set() or trio.current_time() + seconds + _LEAST_TRY > deadline:
            return False
        with trio.move_on_after(seconds) as pause:
            async with trio.open_nursery() as nursery:
                if away is not None:
                    nursery.start_soon(self._cancel_at_return, EntityPath.parse(away), pause)
                await self.ending.wait()
                pause.cancel()
        return not self.ending.is_set()

    async def _cancel_at_return(self, queue: EntityPath, pause: trio.CancelScope) -> None:
        await self._outages.wait_answer(queue)
        pause.cancel()

    def _seconds(self, request: Request) -> float:
        """The client's timeout if it gives one, else the default."""
        text = Query.of(request).get("timeout")
        if text is None or not _TIMEOUT.fullmatch(text) or int(text) == 0:
            return self.options.retry_for
        return min(float(text), self.options.retry_for)

    def _trace(self, request_id: str) -> Trace:
        return Trace(request_id=request_id, time=precise(self.wall_clock()))


async def _counted(work: Callable[[], Awaitable[Response]]) -> Response:
    """The result of `work`, which counts as a request of this client."""
    usage = begin_request()
    try:
        return await work()
    finally:
        if usage is not None:
            usage.answered()


async def _in_turn(
    work: Callable[[RequestTurn | None], Awaitable[Response]], size: int, *, peeks: bool
) -> Response:
    """
    The result of `work`, which runs when it is the turn of this client's request. One that `peeks`
    waits for the client's earlier answers first: a turn waits for no client's reading.
    """
    if peeks:
        await peek_until_written()
    turn = await (acquire_turn_to_show if peeks else acquire_turn)(size)
    response = None
    try:
        response = await work(turn)
        return response
    finally:
        if turn is not None:
            turn.release(0 if response is None else len(response.body))


async def _in_slices(pieces: Iterator[bytes], turn: RequestTurn | None) -> bytes:
    """Join the pieces; the answer gives way to light clients after each slice of them."""
    done, size = list[bytes](), 0
    for piece in pieces:
        done.append(piece)
        size += len(piece)
        if size >= _SLICE:
            size = 0
            await trio.lowlevel.checkpoint()  # between two slices others may run
            if turn is not None:
                await turn.give_way()
    return b"".join(done)


async def _tried(
    work: Callable[[], Awaitable[Response]], seconds: float, since: float
) -> Response | BrokerError:
    """The result of `work`, or its error; `OutcomeUnknown` if it doesn't end in time."""
    try:
        with answered_within(seconds, since=since):
            return await work()
    except BrokerError as error:
        return error


def _check_secondary(operation: storage.Operation, address: Address) -> None:
    if address.is_secondary and not isinstance(operation, storage.READS):
        raise StorageRefusal("InsufficientAccountPermissions")
    if isinstance(operation, storage.GetStats) and not address.is_secondary:
        raise StorageRefusal("InvalidUri", "Statistics are available at the secondary host only.")


def _can_help(error: BrokerError, operation: storage.Operation) -> bool:
    """True if a retry may have a better outcome."""
    if error.is_final:
        return False
    if error.outcome is Outcome.UNKNOWN:
        # A retried update would no longer match its receipt, and a retried creation would find its
        # own queue.
        return not isinstance(operation, storage.UpdateMessage | storage.CreateQueue)
    return error.counts_as_outage or isinstance(error, Busy)


def _common(request: Request, version: str | None, request_id: str) -> list[tuple[str, str]]:
    fields = [("x-ms-request-id", request_id)]
    if version is not None:
        fields.append((VERSION, version))
    client_id = request.headers.get(_CLIENT_ID)
    if client_id is not None and len(client_id) <= _LONGEST_ID:
        fields.append((_CLIENT_ID, client_id))
    return fields


def _with(response: Response, *fields: tuple[str, str]) -> Response:
    # Written out, because `evolve` takes longer than everything else in this function.
    return Response(
        status=response.status,
        headers=Headers((*response.headers.items, *fields)),
        body=response.body,
        close=response.close,
    )
