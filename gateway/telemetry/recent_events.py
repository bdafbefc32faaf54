"""The last events of the process, for readers that follow them."""

import json
from collections import deque
from datetime import datetime
from itertools import islice
from typing import Final

import attrs

from gateway.changes import Changes
from gateway.domain.events.gateway import Event
from gateway.ports import WallClock
from gateway.telemetry.crowds import Repeats
from gateway.telemetry.log import fields_of, name_of

MOST: Final = 1000  # events that are kept
REPEAT_INTERVAL: Final = 10.0  # seconds in which the same event is counted instead of kept


@attrs.define(eq=False)
class _KeptEvent:
    at: datetime
    event: Event
    repeated: int
    _text: str = attrs.field(default="", init=False)

    @property
    def text(self) -> str:
        """The event's fields as JSON: written for the first reader, and kept for all others."""
        if not self._text:
            self._text = json.dumps(fields_of(self.event, self.at, repeated=self.repeated))
        return self._text


@attrs.define(eq=False)
class RecentEvents:
    """
    Keeps the last `most` events of the level info and above. Each has a number, one more than the
    previous event. Readers pull, so that a slow reader costs nothing: it misses events instead.
    """

    clock: WallClock
    most: int = MOST
    changes: Changes = attrs.field(factory=Changes, init=False)
    _kept: deque[_KeptEvent] = attrs.field(init=False)
    _run: str = attrs.field(default="", init=False)
    _last: int = attrs.field(default=0, init=False)  # the number of the newest event
    _repeats: Repeats = attrs.field(factory=lambda: Repeats(REPEAT_INTERVAL), init=False)

    def __attrs_post_init__(self) -> None:
        self._kept = deque(maxlen=self.most)

    def record(self, event: Event) -> None:
        """Keep the event, or count it if it repeats."""
        at = self.clock()
        now = at.timestamp()
        for counted, times in self._repeats.counted(now):
            self._keep(_KeptEvent(at, counted, times))
        if self._repeats.pass_on(event, now):
            self._keep(_KeptEvent(at, event, 0))

    def _keep(self, kept: _KeptEvent) -> None:
        self._kept.append(kept)
        self._last += 1
        self.changes.notify()

    @property
    def run(self) -> str:
        """
        A name of this process, so that event numbers of an earlier process aren't taken for its
        own.
        """
        self._run = self._run or format(int(self.clock().timestamp() * 1000), "x")
        return self._run

    @property
    def last(self) -> int:
        """The number of the newest event; 0: there was none."""
        return self._last

    @property
    def before_first(self) -> int:
        """The number before the number of the oldest kept event."""
        return self._last - len(self._kept)

    def after(self, number: int, most: int) -> list[tuple[int, str, str]]:
        """
        The oldest kept events that are newer than that number, at most `most`: each with its
        number, its name, and its fields as JSON.
        """
        start = max(0, number - self.before_first)
        found = islice(self._kept, start, start + most)
        return [
            (self.before_first + start + index + 1, name_of(type(each.event)), each.text)
            for index, each in enumerate(found)
        ]
