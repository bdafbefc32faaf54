"""Server-sent events (WHATWG HTML, 9.2): text/event-stream, both directions."""

from collections.abc import Sequence
from typing import Final

import attrs

from gateway.domain.errors import MessageError

EVENT_STREAM: Final = "text/event-stream"
COMMENT: Final = b":\n\n"  # without meaning; shows that the connection is alive
MAX_EVENT: Final = 64 * 1024  # limit of an unfinished event, in bytes


@attrs.frozen(kw_only=True)
class ServerEvent:
    """An event; `data` may have several lines, `name` is one word."""

    name: str = "message"
    data: str
    id: str = ""  # to resume after it; empty: as the event before


def build_event(event: ServerEvent) -> bytes:
    """The encoded event."""
    lines = [f"event: {event.name}", *(f"data: {line}" for line in event.data.split("\n"))]
    if event.id:
        lines.insert(0, f"id: {event.id}")
    return "".join(f"{line}\n" for line in [*lines, ""]).encode()


@attrs.define(eq=False)
class EventParser:
    """
    Parses a stream, split anywhere, into events. Only the fields `event`, `data` and `id` count.
    """

    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _name: str = attrs.field(default="", init=False)
    _id: str = attrs.field(default="", init=False)
    _data: list[str] = attrs.field(factory=list, init=False)
    _size: int = attrs.field(default=0, init=False)  # bytes of the unfinished event's lines

    def feed(self, data: bytes | bytearray) -> Sequence[ServerEvent]:
        """
        The events that are complete now; comments yield none.

        Raises:
            MessageError: an event is too large, or isn't UTF-8.
        """
        self._buffer += data
        *lines, rest = bytes(self._buffer).replace(b"\r\n", b"\n").split(b"\n")
        self._buffer = bytearray(rest)
        events = [event for line in lines if (event := self._parse_line(line)) is not None]
        if self._size + len(self._buffer) > MAX_EVENT:
            raise MessageError(f"an event has more than {MAX_EVENT} bytes")
        return events

    def _parse_line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._finish()
        self._size += len(line)
        try:
            field, _, value = line.decode().partition(":")
        except UnicodeDecodeError as error:
            raise MessageError(f"a line of an event is not valid UTF-8: {error}") from error
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        elif field == "id":
            self._id = value
        return None

    def _finish(self) -> ServerEvent | None:
        name, data, number = self._name or "message", self._data, self._id
        self._name, self._data, self._id, self._size = "", [], "", 0
        return ServerEvent(name=name, data="\n".join(data), id=number) if data else None
