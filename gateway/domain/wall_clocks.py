"""
Which dates are right where wall clocks were wrong: by the clocks of all who had a message in hand.

A clock excuses the dates that it explains and no others. All times are true ones, in seconds; a
date is the time at which a clock that is right shows it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

import attrs

from gateway.domain.conduct import Attempted, ClockSet, Parked, Target, Way
from gateway.domain.history import Invoked

STEP: Final = 2.0  # seconds; by less no namespace notices that its clock was set
ROUNDING: Final = 0.002  # seconds: dates have milliseconds on their way, and a life has two of them
_PRIMARY: Final = Target.PRIMARY.value


@attrs.frozen(kw_only=True)
class Period:
    """A time in which nobody sets a clock."""

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
    """What the clocks of a run showed."""

    _settings: Mapping[str, Sequence[ClockSet]]
    _unwatched: Sequence[tuple[float, float]] = ()  # begin and end, in order and apart

    @classmethod
    def of(
        cls, settings: Iterable[ClockSet], unwatched: Iterable[tuple[float, float]] = ()
    ) -> "WallClocks":
        """While the machine stands still, or a namespace is down, nobody looks at its clock."""
        by_process: dict[str, list[ClockSet]] = defaultdict(list)
        for one in sorted(settings, key=lambda one: one.at):
            by_process[one.process].append(one)
        return cls(by_process, _joined(unwatched))

    @property
    def are_right(self) -> bool:
        return not self._settings

    def periods(self, process: str, since: float, until: float) -> Iterator[Period]:
        """The parts of that time, in their order; the last one has its end."""
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

    def shows(self, process: str, moment: float) -> Iterator[float]:
        """What that clock shows then; set at that very moment, it may show either."""
        for period in self.periods(process, moment, moment):
            yield period.shows(moment)

    def trusted(self, process: str, since: float, until: float, grace: float) -> float:
        """
        The latest date that a namespace has believed of its clock in that time.

        After a step it believes none for `grace` seconds: what only the new date brings about has
        to wait, what would have come without the step needn't. It looks at its clock only when it
        has something to do, so it may have missed any period that is shorter than `grace`: a step
        is one from each that it may have seen last. The time in which nobody looks shows it
        nothing.
        """
        latest = -inf
        # What it may have seen last, and from when on it believes that.
        seen: list[tuple[Period, float]] = []
        for period in self.periods(process, -inf, until):
            over = period.since + grace
            held_until = min(
                (
                    over if _is_step(last, period, grace + self._unseen(last)) else believed
                    for last, believed in seen
                ),
                default=-inf,
            )
            held = min(period.until, held_until)
            if held >= max(since, period.since):
                before = max(last.shows(held) for last, believed in seen if believed <= last.until)
                latest = max(latest, min(period.shows(held), before))
            if period.until >= max(since, held_until):
                latest = max(latest, period.shows(period.until))
            if period.until - self._unseen(period) >= over:
                seen.clear()
            seen.append((period, held_until))
        return latest

    def _unseen(self, period: Period) -> float:
        """For how many seconds of it nobody looked, at most."""
        parts = (
            min(end, period.until) - max(begin, period.since) for begin, end in self._unwatched
        )
        return sum(part for part in parts if part > 0.0)


@attrs.frozen(kw_only=True)
class Dates:
    """What a message's copies may expire at, and when they may come, by what became of it."""

    clocks: WallClocks
    invoked: Sequence[Invoked]
    attempts: Sequence[Attempted]
    parked: Sequence[Parked]
    late: float  # seconds that a request may be on its way
    grace: float

    def lives_right(self, expires: float) -> bool:
        """Whether a copy on the primary may have that expiry."""
        return any(
            low - ROUNDING <= expires <= high + ROUNDING
            for sent in self.invoked
            for low, high in self._expiries(sent)
        )

    def expired_by(self, moment: float) -> bool:
        """Whether what the last send that came to something brought to the primary is over."""
        ends = [
            min(low for low, _ in expiries)
            for sent in self.invoked
            if (expiries := list(self._expiries(sent)))
        ]
        return bool(ends) and max(ends) <= self._believed(moment) + ROUNDING

    def expired_on_backlog(self) -> bool:
        """Whether a syphon was right to find it expired, by its own clock."""
        return any(
            end <= max(now, sent.not_before) + ROUNDING
            for one in self.parked
            for now in self.clocks.shows(one.process, one.began)
            for sent in self.invoked
            for end in self._on_backlog(sent)
        )

    def latest(self, moment: float) -> float:
        """The latest date that the primary may have gone by, for one of its copies, until then."""
        arrivals = [
            period.shows(period.until)
            for attempt in self.attempts
            if attempt.way is not Way.BACKLOG
            for period in self._arrivals(attempt.began, moment)
        ]
        return max([self._believed(moment), *arrivals])

    def _expiries(self, sent: Invoked) -> Iterator[tuple[float, float]]:
        """The earliest and the latest, for each way that a copy of that send may have gone."""
        life = _life(sent)
        on_backlog = list(self._on_backlog(sent))
        for attempt in self.attempts:
            if attempt.way is Way.BACKLOG or not _is_of(attempt, sent):
                continue
            lives = [life]
            if attempt.way is Way.SYPHON:
                lives = [
                    min(end - max(now, sent.not_before), life)
                    for now in self.clocks.shows(attempt.process, attempt.began)
                    for end in on_backlog
                ]
            for period in self._arrivals(attempt.began, inf):
                low, high = period.shows(period.since), period.shows(period.until)
                for left in lives:
                    yield max(low, sent.not_before) + left, max(high, sent.not_before) + left

    def _on_backlog(self, sent: Invoked) -> Iterator[float]:
        """The expiries that its envelopes have."""
        for attempt in self.attempts:
            if attempt.way is Way.BACKLOG and _is_of(attempt, sent):
                for now in self.clocks.shows(attempt.process, attempt.began):
                    yield max(now, sent.not_before) + _life(sent)

    def _arrivals(self, began: float, until: float) -> Iterator[Period]:
        return self.clocks.periods(_PRIMARY, began, min(began + self.late, until))

    def _believed(self, moment: float) -> float:
        return self.clocks.trusted(_PRIMARY, self.invoked[0].at, moment, self.grace)


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time, none of it twice."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _is_step(before: Period, after: Period, grace: float) -> bool:
    """Whether it is for whoever looks once in each, at most `grace` seconds before and after."""
    was = [before.is_ahead(at) for at in (max(before.since, before.until - grace), before.until)]
    now = [after.is_ahead(at) for at in (after.since, min(after.until, after.since + grace))]
    return min(now) - max(was) > STEP or min(was) - max(now) > STEP


def _is_of(attempt: Attempted, sent: Invoked) -> bool:
    """Whether it may be an attempt of that send, and not of an earlier one."""
    return attempt.began >= sent.at - ROUNDING


def _life(sent: Invoked) -> float:
    return sent.expires - max(sent.at, sent.not_before)
