"""
The log: each event as one line, for people on a terminal, as JSON for machines. A thread of its own
writes the lines, so that a blocked log delays no message.
"""

import enum
import json
import math
import os
import re
import select
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from threading import Condition, Lock, Thread
from types import MappingProxyType
from typing import Any, Final, get_args

import attrs

from gateway.domain.events.gateway import BacklogReady, EntityStateChanged, Event, Level
from gateway.ports import WallClock
from gateway.telemetry.crowds import Crowds, Repeats

LEVELS: Final[Sequence[Level]] = get_args(Level)

NO_FIELDS: Final[Mapping[str, object]] = MappingProxyType({})
Render = Callable[[dict[str, object]], str]

_WHOLE: Final = 100.0  # from here on a number has three digits before the point
_START_OF_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")


class LogObserver:
    """
    An `Observer` that writes a line for each event, but for repeated ones (`Repeats`) and those of
    many entities (`Crowds`). Any thread may call `flush_counted`.

    Events contain neither secrets nor bodies, so lines don't either. Names and error texts come
    from outside; their control characters are escaped, so that they can neither forge a line nor
    control a terminal.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        as_json: bool,
        level: str,
        clock: WallClock,
        repeat_interval: float = 10.0,
        colors: bool = False,
    ) -> None:
        """
        `write` gets each line with its line end; it must neither block nor raise. The same event is
        counted for `repeat_interval` seconds instead of written; so is that of many entities.
        """
        self.level = level
        self._write = write
        self._clock = clock
        self._repeats = Repeats(repeat_interval)
        self._crowds = Crowds(repeat_interval)
        self._turn = Lock()
        self.labels: Mapping[str, object] = {}  # further fields of each line
        self._render: Render = json.dumps if as_json else _for_people(colors=colors)

    def report(self, event: Event) -> None:
        now = self._clock().timestamp()
        with self._turn:
            self._write_repeats(now)
            if self._is_wanted(event) and (self.level == "debug" or self._is_single(event, now)):
                self._write(self.line_of(event))

    def flush_counted(self) -> float | None:
        """
        Write the events that were counted, as far as it is time; return the seconds until it is
        time again, or None if nothing is counted.
        """
        with self._turn:
            now = self._clock().timestamp()
            self._write_repeats(now)
            end = min(self._repeats.next_end, self._crowds.next_end)
            return None if math.isinf(end) else end - now

    def close(self) -> None:
        """Write the events that were counted and not yet reported."""
        with self._turn:
            self._write_repeats(math.inf)

    def _is_single(self, event: Event, now: float) -> bool:
        return self._repeats.pass_on(event, now) and self._crowds.pass_on(event, now)

    def _write_repeats(self, now: float) -> None:
        for event, times in self._repeats.counted(now):
            if self._is_wanted(event) and self._crowds.pass_on(event, now, times):
                self._write(self.line_of(event, repeated=times))
        for each in self._crowds.over(now):
            more = {"entities": each.entities, "examples": each.examples}
            self._write(self.line_of(each.last, repeated=each.events, more=more))

    def _is_wanted(self, event: Event) -> bool:
        return LEVELS.index(level_of(event)) >= LEVELS.index(self.level)

    def line_of(
        self, event: Event, *, repeated: int = 0, more: Mapping[str, object] = NO_FIELDS
    ) -> str:
        """
        The event as a line, whatever its level. `repeated`: the number of events about the same
        subject that have no lines of their own; this event is the last of them. `more` are further
        fields.
        """
        at = self._clock()
        fields = fields_of(event, at, repeated=repeated, labels=self.labels, more=more)
        return f"{self._render(fields)}\n"


def fields_of(
    event: Event,
    at: datetime,
    *,
    repeated: int = 0,
    labels: Mapping[str, Any] = NO_FIELDS,
    more: Mapping[str, object] = NO_FIELDS,
) -> dict[str, object]:
    """The event, which occurred at that date, as the keys and values of a line of the log."""
    fields = {
        "timestamp": at.isoformat(timespec="milliseconds"),
        "level": level_of(event),
        "event": name_of(type(event)),
        **labels,
        **_fields(event),
        **({"repeated": repeated} if repeated else {}),
        **more,
    }
    return {
        key: escaped(value) if isinstance(value, str) else value for key, value in fields.items()
    }


def _for_people(*, colors: bool) -> Render:
    # Imported here, because it takes longer than the rest of the log, and JSON doesn't need it.
    import structlog

    render = structlog.dev.ConsoleRenderer(colors=colors, sort_keys=False)
    return lambda fields: str(render(None, "", fields))


def name_of(kind: type[Event]) -> str:
    """`EntityStateChanged` becomes `entity_state_changed`."""
    return _START_OF_WORD.sub("_", kind.__name__).lower()


def level_of(event: Event) -> Level:
    if isinstance(event, BacklogReady):
        return "info" if event.usable >= event.wanted else "warning"
    if isinstance(event, EntityStateChanged) and event.after in {"half-open", "primary"}:
        return "info"  # a recovery, or its beginning
    return event.level


def escaped(text: str) -> str:
    """The text with every character escaped that isn't printable."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _fields(event: Event) -> dict[str, Any]:
    return {field.name: plain(getattr(event, field.name)) for field in attrs.fields(type(event))}


def plain(value: object) -> object:
    """The value of an event's field as JSON has it, numbers with three significant digits."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return _short(value)
    return value if isinstance(value, bool | int | None) else str(value)


def _short(value: float) -> float:
    """The number with three significant digits; whole numbers stay whole."""
    if not math.isfinite(value):
        return value
    return float(round(value)) if abs(value) >= _WHOLE else float(f"{value:.3g}")


MOST_LINES: Final = 10_000  # waiting lines: at a few hundred bytes each, a few megabytes


class LineWriter:
    """
    Passes lines to a thread that writes them to a file descriptor, in their order.

    Lines that find no room, or can't be written (the disk is full, the reader has gone), are
    dropped and counted; the next line that can be written has their number before it. The thread is
    a daemon, and nothing is buffered between the thread and the descriptor: the process can end
    even while the thread is blocked in a write.
    """

    def __init__(
        self,
        fd: int,
        gap: Callable[[int], str],
        *,
        tell: Callable[[], float | None] = lambda: None,
        most: int = MOST_LINES,
    ) -> None:
        """
        `gap` makes the line that reports a number of dropped lines; at most `most` lines wait.
        `tell`, called in the thread, writes lines that are due and returns the seconds until the
        next one is, as far as is known now; None: none before another line.
        """
        self._fd = fd
        self._gap = gap
        self._tell = tell
        self._most = most
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._closed = False
        self._changed = Condition()
        self._cut = False  # True: a line was written in part
        self._thread = Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line, which ends with a line end; never blocks, never raises."""
        with self._changed:
            if self._closed or len(self._lines) >= self._most:
                self._dropped += 1
                return
            self._lines.append(line)
            self._changed.notify()

    def close(self, seconds: float) -> bool:
        """
        Accept no more lines; wait until the queued ones are written, but for no more than
        `seconds`. True: the thread has ended.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due: float | None = None
        while True:
            with self._changed:
                is_due = not self._changed.wait_for(lambda: self._lines or self._closed, due)
                line = self._lines.popleft() if self._lines else ""
                dropped, self._dropped = self._dropped, 0
            if not (line or dropped or is_due):
                return
            try:
                if dropped:
                    self._write(self._gap(dropped))
                    dropped = 0  # told, whatever becomes of the line
                if line:
                    self._write(line)
            except OSError:
                with self._changed:
                    self._dropped += dropped + bool(line)
            if not line and not is_due:
                return
            due = self._tell()

    def _write(self, text: str) -> None:
        data = (("\n" if self._cut else "") + text).encode("utf-8", "backslashreplace")
        while data:
            try:
                written = os.write(self._fd, data)
            # another process that shares the descriptor made it non-blocking
            except BlockingIOError:
                select.select([], [self._fd], [])
                continue
            data = data[written:]
            self._cut = bool(data)
