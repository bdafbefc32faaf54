"""Reads server-sent events from a server, and notices when the server has gone."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import h11
import trio

from gateway.domain.errors import MessageError, Unavailable
from gateway.net.dialing import dial
from gateway.net.http.heads import read_fields, written_fields
from gateway.net.server_address import ServerAddress
from gateway.wire.http.event_stream import EventParser, ServerEvent
from gateway.wire.http.messages import Request, Response
from gateway.wire.pairgate.admin_json import parse_refusal

_RECEIVE_SIZE = 16 * 1024
_MAX_REFUSAL = 64 * 1024  # bytes of an error response


@attrs.define(eq=False)
class EventStream:
    """The events of one connection, in order."""

    _stream: trio.abc.Stream
    _parser: h11.Connection
    _silence: float  # seconds
    _events: EventParser = attrs.field(factory=EventParser, init=False)
    _read: deque[ServerEvent] = attrs.field(factory=deque, init=False)

    async def next(self) -> ServerEvent:
        """
        Wait for the next event.

        Raises:
            Unavailable: the server ended or broke the stream, or was silent for too long.
        """
        while not self._read:
            with trio.move_on_after(self._silence) as scope:
                data = await next_event(self._stream, self._parser)
            if scope.cancelled_caught:
                raise Unavailable(f"no data for {self._silence:g} s")
            if not isinstance(data, h11.Data):
                raise Unavailable("the server has ended its events")
            try:
                self._read.extend(self._events.feed(data.data))
            except MessageError as error:
                raise Unavailable(f"the server's events can't be read: {error}") from error
        return self._read.popleft()


@asynccontextmanager
async def open_events(
    place: ServerAddress, request: Request, *, connect_timeout: float, silence: float
) -> AsyncIterator[EventStream]:
    """
    Request events from a server, and close the connection at the end. Times are seconds.

    Raises:
        Unavailable: no connection could be opened, or there was no answer in time.
        BrokerError: the server refused; the class follows from its status.
    """
    parser = h11.Connection(h11.CLIENT)
    stream: trio.abc.Stream | None = None
    try:
        with trio.move_on_after(connect_timeout) as scope:
            stream = await dial(place)
            await _ask(stream, parser, place, request)
        if scope.cancelled_caught or stream is None:
            raise Unavailable(f"{place}: no answer within {connect_timeout:g} s")
        yield EventStream(stream, parser, silence)
    finally:
        if stream is not None:
            await trio.aclose_forcefully(stream)


async def next_event(stream: trio.abc.Stream, parser: h11.Connection) -> h11.Event:
    """
    Read the next HTTP event.

    Raises:
        Unavailable: the connection broke, or the data isn't HTTP.
    """
    try:
        while (event := parser.next_event()) is h11.NEED_DATA:
            parser.receive_data(bytes(await stream.receive_some(_RECEIVE_SIZE)))
    except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
        raise Unavailable(f"the connection broke: {error}") from error
    assert isinstance(event, h11.Event), "there is one request, and no pause after it"
    return event


async def _ask(
    stream: trio.abc.Stream, parser: h11.Connection, place: ServerAddress, request: Request
) -> None:
    fields = [(b"Host", place.authority.encode("ascii")), *written_fields(request.headers)]
    head = h11.Request(method=request.method, target=request.target, headers=fields)
    try:
        await stream.send_all(parser.send(head) + parser.send(h11.EndOfMessage()))
    except trio.BrokenResourceError as error:
        raise Unavailable(f"{place}: the connection broke: {error}") from error
    answer = await next_event(stream, parser)
    if not isinstance(answer, h11.Response):
        raise Unavailable(f"{place}: the server closed the connection")
    if answer.status_code != 200:
        body = b""
        while isinstance(data := await next_event(stream, parser), h11.Data):
            body += data.data
            if len(body) > _MAX_REFUSAL:
                break
        headers = read_fields(answer.headers.raw_items())
        raise parse_refusal(
            Response(status=answer.status_code, headers=headers, body=body[:_MAX_REFUSAL])
        )
