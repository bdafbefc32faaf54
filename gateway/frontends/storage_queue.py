"""
The Queue service for clients: requests become calls of a namespace, and what it says answers.

    bytes -> HttpServer -> Request -> which account? -> who is it? -> codec: operation -> may they?
                                     -> namespace -> answer or error -> codec -> Response

Its clients wait 12 to 20 seconds after a 5xx before they try again. So what can be tried again is
tried again here, for as long as a client waits for its answer.
"""

import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

import attrs
import trio
from attrs import validators

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, Outcome, OutcomeUnknown
from gateway.frontends.storage_auth import Accounts, Circumstances
from gateway.frontends.storage_cors import check_preflight, origin_fields
from gateway.frontends.storage_notes import LastNotes
from gateway.frontends.storage_operations import StorageOperations
from gateway.ports import WallClock
from gateway.wire import storage_queue_operations as storage
from gateway.wire.http import Headers, Request, Response
from gateway.wire.storage_queue import parse_request
from gateway.wire.storage_queue_address import Address, locate
from gateway.wire.storage_queue_answers import Style, build_response
from gateway.wire.storage_queue_errors import StorageRefusal, Trace, build_error, build_refusal
from gateway.wire.storage_queue_fields import VERSION, Query, version_of
from gateway.wire.storage_sas import Sas

_CLIENT_ID: Final = "x-ms-client-request-id"
_LONGEST_ID: Final = 1024  # characters of a client's request id; a longer one isn't repeated
_TIMEOUT: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_FIRST_PAUSE: Final = 0.25  # seconds, doubled from try to try
_LONGEST_PAUSE: Final = 4.0
_LEAST_TRY: Final = 5.0  # seconds, of which the primary has two: less would blame a slow one
_OUTCOME: Final = "X-Pairgate-Outcome"
_REFUSALS: Final = {
    408: "OperationTimedOut",
    413: "RequestBodyTooLarge",
    501: "UnsupportedHttpVerb",
    503: "ServerBusy",
}


@attrs.frozen(kw_only=True)
class StorageQueueOptions:
    """Times are seconds. The SDKs wait 60 for an answer."""

    secure: bool = False  # whether clients come with TLS
    hold: float = attrs.field(default=50.0, validator=validators.gt(0.0))


@attrs.define(eq=False, kw_only=True)
class StorageQueueFrontend:
    """
    Answers requests of the Queue service.

    `handle` and `refuse` are what `gateway.net.http_server.HttpServer` asks for.
    """

    operations: StorageOperations
    accounts: Accounts
    wall_clock: WallClock
    new_id: Callable[[], UUID] = uuid4
    options: StorageQueueOptions = attrs.field(factory=StorageQueueOptions)
    ending: trio.Event = attrs.field(factory=trio.Event)  # once set, nothing is tried again
    notes: LastNotes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.notes = LastNotes(self.operations.broker)

    async def handle(self, request: Request, peer: str | None = None) -> Response:
        """
        Answer one request; every `BrokerError` has become a response. `peer` is who asks, as an
        IP address.

        If cancelled, what was asked for may have happened or not.
        """
        request_id = str(self.new_id())
        version = None
        try:
            version = version_of(request, Query.of(request))
            response = await self._answered(request, version, peer)
        except BrokerError as error:
            await trio.lowlevel.checkpoint()  # a refusal may have had none
            response = build_error(error, self._trace(request_id))
            if response.status >= 500:
                response = _with(response, (_OUTCOME, error.outcome.value))
        return _with(response, *_common(request, version, request_id))

    def refuse(self, status: int, text: str) -> Response:
        """The answer to what never became a request: cut short, too large, malformed."""
        trace = self._trace(str(self.new_id()))
        code = _REFUSALS.get(status, "InvalidInput")
        response = attrs.evolve(build_refusal(code, trace, detail=text), status=status)
        return _with(response, ("x-ms-request-id", trace.request_id))

    async def _answered(self, request: Request, version: str | None, peer: str | None) -> Response:
        address = locate(request, self.accounts.names, secure=self.options.secure)
        sas = None
        if request.method != "OPTIONS":
            sas = self.accounts.authenticate(request, address, version)
        operation = parse_request(request, address)
        seconds = self._seconds(request)
        style = Style(endpoint=address.endpoint, is_first=version is None)
        # The same at each try.
        message_id = str(self.new_id()) if isinstance(operation, storage.PutMessage) else ""

        async def work() -> Response:
            if isinstance(operation, storage.Preflight):
                rule = await check_preflight(self.notes, operation)
                return build_response(
                    operation, storage.Allowed(origin=operation.origin, rule=rule), style
                )
            if sas is not None:
                await self._authorize(sas, operation, address, peer)
            _check_secondary(operation, address)
            fields: list[tuple[str, str]] = []
            if (origin := request.headers.get("Origin")) is not None:
                fields += await origin_fields(self.notes, origin, request.method)
            answer, leg = await self.operations.run(operation, message_id)
            if leg is not None:
                fields.append(("X-Pairgate-Leg", leg.value))
            response = build_response(operation, answer, style)
            return _with(response, *fields) if fields else response

        return await self._held(work, operation, seconds)

    async def _authorize(
        self, sas: Sas, operation: storage.Operation, address: Address, peer: str | None
    ) -> None:
        await trio.lowlevel.checkpoint()
        policy = None
        if sas.get("si") and address.queue is not None:
            notes = await self.notes.read(EntityPath.parse(address.queue))
            policy = next((each for each in notes.policies if each.id == sas.get("si")), None)
        around = Circumstances(secure=self.options.secure, peer=peer)
        self.accounts.authorize(sas, operation, policy, around)

    async def _held(
        self, work: Callable[[], Awaitable[Response]], operation: storage.Operation, seconds: float
    ) -> Response:
        """
        What `work` returns, tried again while that can help; else its last error.

        Once an outcome was unknown it stays so: a later try can't tell what the first one did.
        """
        deadline = trio.current_time() + seconds
        pause = _FIRST_PAUSE
        unknown: BrokerError | None = None
        while True:
            result = await _tried(work, deadline)
            if isinstance(result, Response):
                return result
            if isinstance(operation, storage.DeleteMessage) and unknown and _is_gone(result):
                return build_response(operation, storage.Done(), Style())
            if result.outcome is Outcome.UNKNOWN:
                unknown = result
            if not _can_help(result, operation):
                raise (unknown if isinstance(operation, storage.PutMessage) else None) or result
            wait = max(result.retry_after, pause) if isinstance(result, Busy) else pause
            if not await self._paused(wait, deadline):
                raise unknown or result
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _paused(self, seconds: float, deadline: float) -> bool:
        """Whether there's time for another try, that may take as long as one does."""
        if self.ending.is_set() or trio.current_time() + seconds + _LEAST_TRY > deadline:
            await trio.lowlevel.checkpoint()
            return False
        with trio.move_on_after(seconds):
            await self.ending.wait()
            return False
        return True

    def _seconds(self, request: Request) -> float:
        """For how long the client waits, if it says so; else for how long we do."""
        text = Query.of(request).get("timeout")
        if text is None or not _TIMEOUT.fullmatch(text) or int(text) == 0:
            return self.options.hold
        return min(float(text), self.options.hold)

    def _trace(self, request_id: str) -> Trace:
        return Trace(request_id=request_id, time=_precise(self.wall_clock()))


async def _tried(
    work: Callable[[], Awaitable[Response]], deadline: float
) -> Response | BrokerError:
    """What `work` returns or raises; that nobody knows, where it doesn't end in time."""
    try:
        with trio.move_on_at(deadline):
            return await work()
    except BrokerError as error:
        await trio.lowlevel.checkpoint()  # a refusal may have had none
        return error
    await trio.lowlevel.checkpoint()
    return OutcomeUnknown("no answer from the namespace in time")


def _check_secondary(operation: storage.Operation, address: Address) -> None:
    if address.is_secondary and not isinstance(operation, storage.READS):
        raise StorageRefusal("InsufficientAccountPermissions")
    if isinstance(operation, storage.GetStats) and not address.is_secondary:
        raise StorageRefusal("InvalidUri", "Statistics are asked of the secondary host.")


def _can_help(error: BrokerError, operation: storage.Operation) -> bool:
    """Whether another try may end better."""
    if error.outcome is Outcome.UNKNOWN:
        # A second try of an update would meet its own receipt, and one of a creation itself.
        return not isinstance(operation, storage.UpdateMessage | storage.CreateQueue)
    return error.counts_as_outage or isinstance(error, Busy)


def _is_gone(error: BrokerError) -> bool:
    response = build_error(error, Trace(request_id="", time=""))
    return response.status == 404


def _common(request: Request, version: str | None, request_id: str) -> list[tuple[str, str]]:
    fields = [("x-ms-request-id", request_id)]
    if version is not None:
        fields.append((VERSION, version))
    client_id = request.headers.get(_CLIENT_ID)
    if client_id is not None and len(client_id) <= _LONGEST_ID:
        fields.append((_CLIENT_ID, client_id))
    return fields


def _with(response: Response, *fields: tuple[str, str]) -> Response:
    # Written out, since `evolve` takes longer than all the rest of it.
    return Response(
        status=response.status,
        headers=Headers((*response.headers.items, *fields)),
        body=response.body,
        close=response.close,
    )


def _precise(date: datetime) -> str:
    """As the service writes it, to a tenth of a microsecond."""
    return f"{date.strftime('%Y-%m-%dT%H:%M:%S.%f')}0Z"
