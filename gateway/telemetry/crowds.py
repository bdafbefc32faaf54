"""
Folds the events of many entities that report the same, which an outage is for each of its queues.

    the first `FEW` entities         a line each
    further ones, for `interval`     are counted: one line, with their number and some names
    further ones after that          the same again, as long as they come

Repeated events about the same subject are counted, too, instead of reporting each (`Repeats`).
"""

from collections import OrderedDict
from collections.abc import Iterator
from math import inf
from typing import Final

import attrs

from gateway.domain.events.gateway import Event

MOST_SUBJECTS: Final = 10_000  # remembered subjects; of further ones, each event is reported


@attrs.define(eq=False)
class _Quiet:
    ends: float
    last: Event
    times: int = 0  # not yet reported


@attrs.define(eq=False)
class Repeats:
    """
    Recently reported events. Nothing blocks: counted events are reported with the next event.

    For `interval` seconds after an event, the same event is counted.
    """

    interval: float
    _quiet: OrderedDict[tuple[object, ...], _Quiet] = attrs.field(factory=OrderedDict, init=False)

    def pass_on(self, event: Event, now: float) -> bool:
        """True if the event, which occurred at `now` (in seconds of any clock), is reported now."""
        if not event.same:
            return True
        key = (type(event), *(str(getattr(event, name)) for name in event.same))
        known = self._quiet.get(key)
        if known is not None:
            known.last = event
            known.times += 1
            return False
        if len(self._quiet) < MOST_SUBJECTS:
            self._quiet[key] = _Quiet(now + self.interval, event)
        return True

    def counted(self, now: float) -> Iterator[tuple[Event, int]]:
        """The last of the events that were counted until then, and their number."""
        while self._quiet:
            key, first = next(iter(self._quiet.items()))
            if first.ends > now:
                return
            del self._quiet[key]
            if first.times:
                self._quiet[key] = _Quiet(now + self.interval, first.last)
                yield first.last, first.times

    @property
    def next_end(self) -> float:
        """The time at which `counted` has something to do; infinity: never, without an event."""
        return next(iter(self._quiet.values())).ends if self._quiet else inf


FEW: Final = 5
EXAMPLES: Final = 3
MOST: Final = 1000  # crowds that are followed; of further ones, each event has a line
_MOST_NAMES: Final = 10_000  # of a crowd; further entities aren't counted


@attrs.frozen(kw_only=True)
class Folded:
    """Events without lines of their own: the last of them, and what the line says of all."""

    last: Event
    events: int
    entities: int
    examples: str


@attrs.define(eq=False)
class _Crowd:
    ends: float
    lines: int = 0
    last: Event | None = None
    events: int = 0
    names: dict[str, None] = attrs.field(factory=dict)  # in the order of their arrival


@attrs.define(eq=False)
class Crowds:
    """The crowds of the last `interval` seconds."""

    interval: float
    _crowds: OrderedDict[tuple[object, ...], _Crowd] = attrs.field(factory=OrderedDict, init=False)

    def pass_on(self, event: Event, now: float, times: int = 1) -> bool:
        """
        True if the event has a line of its own. `times`: the number of events that it stands for.
        """
        if not event.crowd:
            return True
        subject, *alike = event.crowd
        name = str(getattr(event, subject))
        # The name of the entity in a text doesn't count.
        agreed = (str(getattr(event, field)).replace(name, "") for field in alike)
        key = (type(event), *agreed)
        crowd = self._crowds.get(key)
        if crowd is None:
            if len(self._crowds) >= MOST:
                return True
            crowd = self._crowds[key] = _Crowd(now + self.interval)
        if crowd.lines < FEW:
            crowd.lines += 1
            return True
        crowd.last = event
        crowd.events += times
        if len(crowd.names) < _MOST_NAMES:
            crowd.names[name] = None
        return False

    def over(self, now: float) -> Iterator[Folded]:
        """The events that were folded until then, once for each crowd."""
        while self._crowds:
            key, first = next(iter(self._crowds.items()))
            if first.ends > now:
                return
            del self._crowds[key]
            if first.last is not None:
                self._crowds[key] = _Crowd(now + self.interval, lines=FEW)
                yield Folded(
                    last=first.last,
                    events=first.events,
                    entities=len(first.names),
                    examples=", ".join(list(first.names)[:EXAMPLES]),
                )

    @property
    def next_end(self) -> float:
        """The end of the oldest crowd; infinity: there is none."""
        return next(iter(self._crowds.values())).ends if self._crowds else inf
