"""Counts what happens, for whoever asks how the process is."""

from collections import Counter, deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.events import Event, Syphoned
from gateway.domain.status import Alarm
from gateway.ports import Observer, WallClock
from gateway.telemetry.log import level_of, name_of

RED: Final = timedelta(minutes=10)  # what is wrong for longer is reported again meanwhile
LONGEST_TEXT: Final = 200
_MINUTE: Final = 60.0  # seconds
_UNTOLD: Final = frozenset({"traceback"})  # fields that the log alone has


@attrs.define(eq=False)
class Watch:
    """
    An `Observer` before another one. All that it keeps is bounded by how many kinds of events
    there are.
    """

    _inner: Observer
    _clock: WallClock
    moved: int = attrs.field(default=0, init=False)  # messages, by syphons
    last_moved: datetime | None = attrs.field(default=None, init=False)
    _counts: Counter[type[Event]] = attrs.field(factory=Counter, init=False)
    _alarms: dict[str, Alarm] = attrs.field(factory=dict, init=False)
    # Messages moved in one second each, the oldest first.
    _moves: deque[tuple[int, int]] = attrs.field(factory=deque, init=False)

    def report(self, event: Event) -> None:
        self._counts[type(event)] += 1
        if isinstance(event, Syphoned):
            self._note_move(event.messages)
        if level_of(event) == "error":
            self._note_alarm(event)
        self._inner.report(event)

    def count(self, kind: type[Event]) -> int:
        """How often that has happened since the start."""
        return self._counts[kind]

    def counts(self) -> dict[str, int]:
        """What has happened since the start, by the names that the log has."""
        return {name_of(kind): times for kind, times in self._counts.items()}

    def alarms(self) -> Sequence[Alarm]:
        """Red states, the last one first."""
        since = self._clock() - RED
        red = [alarm for alarm in self._alarms.values() if alarm.last > since]
        return sorted(red, key=lambda alarm: alarm.last, reverse=True)

    def rate(self) -> float:
        """Messages a second that syphons moved in the last minute."""
        self._forget_moves()
        return sum(messages for _, messages in self._moves) / _MINUTE

    def _note_move(self, messages: int) -> None:
        self.moved += messages
        self.last_moved = now = self._clock()
        second = int(now.timestamp())
        if self._moves and self._moves[-1][0] == second:
            messages += self._moves.pop()[1]
        self._moves.append((second, messages))
        self._forget_moves()

    def _forget_moves(self) -> None:
        horizon = self._clock().timestamp() - _MINUTE
        while self._moves and self._moves[0][0] < horizon:
            self._moves.popleft()

    def _note_alarm(self, event: Event) -> None:
        name = name_of(type(event))
        self._alarms[name] = Alarm(
            event=name, times=self._counts[type(event)], last=self._clock(), text=_text_of(event)
        )


def _text_of(event: Event) -> str:
    fields = (field.name for field in attrs.fields(type(event)) if field.name not in _UNTOLD)
    return ", ".join(f"{name} {getattr(event, name)}" for name in fields)[:LONGEST_TEXT]
