"""Writes each event as one line: for people on a terminal, as JSON for machines."""

import enum
import re
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final, TextIO

import attrs
import structlog

from gateway.domain import events
from gateway.domain.events import Event
from gateway.ports import WallClock

LEVELS: Final = ("debug", "info", "warning", "error")
# What isn't here is worth "info". Events of single sends are "debug": there is one per message.
LEVEL_OF: Final[Mapping[type[Event], str]] = {
    events.BacklogOrphaned: "error",
    events.BacklogQueueFailed: "warning",
    events.ConnectionCrashed: "error",
    events.ConnectionLost: "debug",
    events.Diverted: "debug",
    events.Doubtful: "warning",
    events.LeftUntouched: "error",
    events.LoopPaused: "warning",
    events.Parked: "warning",
    events.StandingChanged: "warning",
    events.StateNotSaved: "error",
    events.Syphoned: "debug",
    events.SyphonFailed: "warning",
    events.SyphonHeld: "warning",
    events.SyphonStalled: "error",
}
_START_OF_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")


class LogObserver:
    """
    An `Observer` that writes to a text stream.

    Events hold neither secrets nor bodies, so lines don't. Control characters come from outside
    (in names and error texts) and are escaped: nobody can forge a line or steer a terminal.
    """

    def __init__(self, stream: TextIO, *, json: bool, level: str, clock: WallClock) -> None:
        self.level = level
        self._clock = clock
        renderer = (
            structlog.processors.JSONRenderer()
            if json
            else structlog.dev.ConsoleRenderer(colors=stream.isatty(), sort_keys=False)
        )
        self._write: Callable[[str, Mapping[str, Any]], None] = _writer(stream, renderer)

    def report(self, event: Event) -> None:
        level = level_of(event)
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        line = {"timestamp": self._clock().isoformat(timespec="milliseconds"), "level": level}
        # A log that nobody can write (disk full, reader gone) must not stop the messages.
        with suppress(OSError, ValueError):
            self._write(name_of(event), {**line, **_fields(event)})


def name_of(event: Event) -> str:
    """`StandingChanged` is `standing_changed`."""
    return _START_OF_WORD.sub("_", type(event).__name__).lower()


def level_of(event: Event) -> str:
    if isinstance(event, events.BacklogReady):
        return "info" if event.usable >= event.wanted else "warning"
    return LEVEL_OF.get(type(event), "info")


def escaped(text: str) -> str:
    """The text with everything escaped that isn't printable."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _writer(stream: TextIO, renderer: Any) -> Callable[[str, Mapping[str, Any]], None]:
    logger = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[_escape, renderer],
        cache_logger_on_first_use=True,
    )

    def write(name: str, fields: Mapping[str, Any]) -> None:
        logger.msg(name, **fields)

    return write


def _escape(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: escaped(value) if isinstance(value, str) else value for key, value in line.items()}


def _fields(event: Event) -> dict[str, Any]:
    return {field.name: _plain(getattr(event, field.name)) for field in attrs.fields(type(event))}


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    return value if isinstance(value, bool | int | float | None) else str(value)
