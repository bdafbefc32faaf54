"""Counts repeated events about the same subject, instead of reporting each."""

from collections import OrderedDict
from collections.abc import Iterator
from math import inf
from typing import Final

import attrs

from gateway.domain.events import cluster, tokens, traces
from gateway.domain.events import gateway as events
from gateway.domain.events.gateway import Event

MOST: Final = 10_000  # remembered subjects; of further ones, each event is reported
# Events with the same values in these fields are the same; for other fields the line has the last
# event's values.
SAME: Final[dict[type[Event], tuple[str, ...]]] = {
    events.BacklogQueueFailed: ("queue", "reason"),
    events.BusyPause: ("entity",),
    events.ClaimBackingOff: ("queue",),
    events.ConnectionCrashed: ("traceback",),
    events.ItemFailed: ("queue", "reason"),
    events.ListenerFailed: ("queue", "reason"),
    events.ListenerPaused: ("reason",),
    events.SendFailed: ("entity", "outcome", "reason"),
    events.SettledTooLate: ("queue",),
    events.StateNotSaved: ("reason",),
    events.SyphonFailed: ("queue", "reason"),
    events.SyphonBackedOff: ("entity", "reason"),
    cluster.PeerRefused: ("reason",),
    tokens.TokenRequestFailed: ("namespace", "reason"),
    traces.TracesNotExported: ("endpoint",),
}


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
        names = SAME.get(type(event))
        if names is None:
            return True
        key = (type(event), *(str(getattr(event, name)) for name in names))
        known = self._quiet.get(key)
        if known is not None:
            known.last = event
            known.times += 1
            return False
        if len(self._quiet) < MOST:
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
