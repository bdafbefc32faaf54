"""
The readings of the wall clocks in a run.

All times are true times, in seconds; a date is given as the time at which a correct clock shows it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

import attrs

from gateway.checker.history import ClockSet

STEP: Final = 2.0  # seconds; no namespace notices a smaller step of its clock


@attrs.frozen(kw_only=True)
class Period:
    """A time in which a clock isn't set."""

    since: float
    until: float
    set_at: float = 0.0
    ahead: float = 0.0
    drift: float = 0.0

    def is_ahead(self, moment: float) -> float:
        return self.ahead + self.drift * (moment - self.set_at)

    def shows(self, moment: float) -> float:
        return moment + self.is_ahead(moment)


@attrs.frozen
class WallClocks:
    """The readings of all clocks in a run."""

    _settings: Mapping[str, Sequence[ClockSet]]
    _unwatched: Sequence[tuple[float, float]] = ()  # begin and end, in order and apart

    @classmethod
    def of(
        cls, settings: Iterable[ClockSet], unwatched: Iterable[tuple[float, float]] = ()
    ) -> "WallClocks":
        """
        No process reads a namespace's clock in the `unwatched` times: its host is paused, or it is
        down.
        """
        by_process: dict[str, list[ClockSet]] = defaultdict(list)
        for one in sorted(settings, key=lambda one: one.at):
            by_process[one.process].append(one)
        return cls(by_process, joined(unwatched))

    @property
    def are_right(self) -> bool:
        return not self._settings

    def periods(self, process: str, since: float, until: float) -> Iterator[Period]:
        """The clock's periods in that time, in their order."""
        settings = self._settings.get(process, ())
        ends = [one.at for one in settings[1:]] + [inf]
        periods = [Period(since=-inf, until=settings[0].at if settings else inf)]
        periods += [
            Period(since=one.at, until=end, set_at=one.at, ahead=one.ahead, drift=one.drift)
            for one, end in zip(settings, ends, strict=False)
        ]
        for one in periods:
            begin, end = max(one.since, since), min(one.until, until)
            if begin <= end:
                yield attrs.evolve(one, since=begin, until=end)

    def doubted(self, process: str, moment: float) -> Iterator[tuple[float, float]]:
        """
        The least and the greatest lead of the clock at that moment, as a process may read it.

        A process may ignore each step since an earlier period, or since none: there is a pair of
        leads for each period until then. Such a process read the clock at any time in the period,
        and counted true seconds or the clock's since.
        """
        periods = list(self.periods(process, -inf, moment))
        for index, period in enumerate(periods):
            later = periods[index + 1 :]
            reads = [period.until]  # of the last period: `moment`
            if later and period.since > -inf:
                reads.append(period.since)
            leads = [period.is_ahead(read) for read in reads]
            gained = [one.drift * (one.until - one.since) for one in later]
            low = min(leads) + sum(gain for gain in gained if gain < 0.0)
            yield low, max(leads) + sum(gain for gain in gained if gain > 0.0)

    def shows(self, process: str, moment: float) -> Iterator[float]:
        """
        The readings of the clock at that moment; two if the clock was set at that very moment.
        """
        for period in self.periods(process, moment, moment):
            yield period.shows(moment)

    def trusted(self, process: str, since: float, until: float, grace: float) -> float:
        """
        The latest date that a namespace has trusted of its clock in that time.

        After a step, a namespace trusts no date for `grace` seconds: only the dates that it would
        have reached without the step, too, take effect. It reads its clock only when it has
        something to do, so it may have missed any period shorter than `grace`, and a step is judged
        against each period that it may have read last. In unwatched times it reads nothing.
        """
        latest = -inf
        # The periods that it may have read last, and from when on it trusts each.
        seen: list[tuple[Period, float]] = []
        for period in self.periods(process, -inf, until):
            over = period.since + grace
            trusted_from = min(
                (
                    over if _is_step(last, period, grace + self._unseen(last)) else believed
                    for last, believed in seen
                ),
                default=-inf,
            )
            end = min(period.until, trusted_from)
            if end >= max(since, period.since):
                before = max(last.shows(end) for last, believed in seen if believed <= last.until)
                latest = max(latest, min(period.shows(end), before))
            if period.until >= max(since, trusted_from):
                latest = max(latest, period.shows(period.until))
            if period.until - self._unseen(period) >= over:
                seen.clear()
            seen.append((period, trusted_from))
        return latest

    def _unseen(self, period: Period) -> float:
        """For how many seconds of the period, at most, no process read the clock."""
        parts = (
            min(end, period.until) - max(begin, period.since) for begin, end in self._unwatched
        )
        return sum(part for part in parts if part > 0.0)


def joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times, without overlaps."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _is_step(before: Period, after: Period, grace: float) -> bool:
    """
    True if a process that reads the clock once in each period, at most `grace` seconds before and
    after the change, sees a step.
    """
    was = [before.is_ahead(at) for at in (max(before.since, before.until - grace), before.until)]
    now = [after.is_ahead(at) for at in (after.since, min(after.until, after.since + grace))]
    return min(now) - max(was) > STEP or min(was) - max(now) > STEP
