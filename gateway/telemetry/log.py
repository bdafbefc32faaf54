"""Writes each event as one line: for people on a terminal, as JSON for machines."""

import enum
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from gateway.domain import agent_events, events
from gateway.domain.events import Event
from gateway.ports import WallClock

LEVELS: Final = ("debug", "info", "warning", "error")
# What isn't here is worth "info". Events of single sends are "debug": there is one per message.
LEVEL_OF: Final[Mapping[type[Event], str]] = {
    agent_events.FiguresLost: "warning",
    agent_events.ProcessesCrash: "error",
    agent_events.ProcessKilled: "warning",
    agent_events.ProcessLost: "warning",
    events.BacklogOrphaned: "error",
    events.BacklogQueueFailed: "warning",
    events.ClaimCollectionFailed: "warning",
    events.ClaimHeld: "warning",
    events.ClaimLeftBehind: "warning",
    events.ClaimLost: "error",
    events.ConnectionCrashed: "error",
    events.ConnectionLost: "debug",
    events.Diverted: "debug",
    events.Doubtful: "warning",
    events.ItemFailed: "warning",
    events.LeftUntouched: "error",
    events.ListenerFailed: "warning",
    events.ListenerPaused: "warning",
    events.LockTooShort: "warning",
    events.LogLinesDropped: "warning",
    events.LoopPaused: "warning",
    events.MovedToPoison: "warning",
    events.Parked: "warning",
    events.Poisoned: "warning",
    events.Quarantined: "error",
    events.SessionStateDamaged: "error",
    events.SettledTooLate: "warning",
    events.StandingChanged: "warning",
    events.StateNotSaved: "error",
    events.Syphoned: "debug",
    events.SyphonFailed: "warning",
    events.SyphonHeld: "warning",
    events.SyphonStalled: "error",
    events.TasksEnded: "debug",
    events.TriggersHeldUp: "warning",
    events.TriggersLost: "warning",
    events.WorkDetected: "debug",
}

Render = Callable[[dict[str, object]], str]

_START_OF_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")


class LogObserver:
    """
    An `Observer` that makes a line of each event.

    Events hold neither secrets nor bodies, so lines don't. Control characters come from outside
    (in names and error texts) and are escaped: nobody can forge a line or steer a terminal.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        as_json: bool,
        level: str,
        clock: WallClock,
        colors: bool = False,
    ) -> None:
        """`write` gets each line with its end, and neither waits nor raises."""
        self.level = level
        self._write = write
        self._clock = clock
        self._render: Render = json.dumps if as_json else _for_people(colors=colors)

    def report(self, event: Event) -> None:
        if LEVELS.index(level_of(event)) >= LEVELS.index(self.level):
            self._write(self.line_of(event))

    def line_of(self, event: Event) -> str:
        """The event as a line, whatever its level."""
        fields = {
            "timestamp": self._clock().isoformat(timespec="milliseconds"),
            "level": level_of(event),
            "event": name_of(type(event)),
            **_fields(event),
        }
        escaped_fields = {
            key: escaped(value) if isinstance(value, str) else value
            for key, value in fields.items()
        }
        return f"{self._render(escaped_fields)}\n"


def _for_people(*, colors: bool) -> Render:
    # Imported here, since that takes longer than all the rest of a log: machines do without.
    import structlog

    render = structlog.dev.ConsoleRenderer(colors=colors, sort_keys=False)
    return lambda fields: str(render(None, "", fields))


def name_of(kind: type[Event]) -> str:
    """`StandingChanged` is `standing_changed`."""
    return _START_OF_WORD.sub("_", kind.__name__).lower()


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


def _fields(event: Event) -> dict[str, Any]:
    return {field.name: _plain(getattr(event, field.name)) for field in attrs.fields(type(event))}


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    return value if isinstance(value, bool | int | float | None) else str(value)
