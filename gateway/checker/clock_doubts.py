"""
Computes which dates are acceptable for a message when the wall clocks of the processes that handled
it may have been wrong.

A wrong clock excuses the dates that it explains, and no others. Where the syphon can compare
clocks, one wrong clock alone excuses nothing (see `lifetime`). Times and dates are those of
`wall_clocks`.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Final

import attrs

from gateway.checker.history import Attempted, DeadLettered, FaultTarget, Way
from gateway.checker.operations import Invoked
from gateway.checker.wall_clocks import Period, WallClocks
from gateway.domain.clocks import lifetime

# Seconds; dates are rounded to milliseconds in transit, and a lifetime is computed from two dates.
ROUNDING: Final = 0.002
TOLERANCE: Final = lifetime.TOLERANCE.total_seconds()
LONGEST_SEND: Final = lifetime.LONGEST_SEND.total_seconds()
_PRIMARY: Final = FaultTarget.PRIMARY.value
_SECONDARY: Final = FaultTarget.SECONDARY.value


@attrs.frozen
class Span:
    """A value known to be between `low` and `high`."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> "Span":
        found = list(values)
        return cls(min(found), max(found))

    def since(self, other: "Span") -> "Span":
        """The duration from a value in `other` to a value in this span."""
        return Span(self.low - other.high, self.high - other.low)

    def at_least(self, least: float) -> "Span":
        return Span(max(self.low, least), max(self.high, least))

    @property
    def is_told(self) -> bool:
        """True if every value of the span is possible as the time that a message has lived."""
        return self.low >= -TOLERANCE

    @property
    def may_be_told(self) -> bool:
        return self.high >= -TOLERANCE


@attrs.frozen(kw_only=True)
class BacklogStay:
    """A message's time on the backlog, by the dates that the secondary's clock may have shown."""

    enqueued: Span
    now: Span

    def lived(self, sent: Invoked, dated: Span) -> Span:
        """The time that the message has lived, as `lifetime` computes it from this stay."""
        stayed = self.now.since(self.enqueued)
        if stayed.high < 0.0:
            return stayed
        begun = self.enqueued.at_least(sent.not_before)
        alone = Span(self.now.low - begun.high, max(self.now.high - begun.low, 0.0))
        if stayed.low >= 0.0:
            alone = alone.at_least(0.0)
        before = begun.since(dated)
        if before.high < -TOLERANCE or before.low > LONGEST_SEND:
            return alone
        whole = Span(max(self.now.low, begun.low), max(self.now.high, begun.high)).since(dated)
        if stayed.low < 0.0 or before.low < -TOLERANCE or before.high > LONGEST_SEND:
            return Span(min(whole.low, alone.low), max(whole.high, alone.high))
        return whole


@attrs.frozen(kw_only=True)
class Dates:
    """
    The expiry dates that a message's copies may have, and the dates at which they may be delivered,
    computed from the recorded attempts.
    """

    clocks: WallClocks
    invoked: Sequence[Invoked]
    attempts: Sequence[Attempted]
    dead_lettered: Sequence[DeadLettered]
    late: float  # seconds that a request may take, to the gateway or from it
    grace: float

    def lives_right(self, expires: float) -> bool:
        """True if a copy on the primary may have this expiry date."""
        return any(
            ends.low - ROUNDING <= expires <= ends.high + ROUNDING
            for sent in self.invoked
            for ends in self._expiries(sent)
        )

    def expired_by(self, moment: float) -> bool:
        """
        True if all copies on the primary have expired: the copies of the last send with attempts
        there.
        """
        ends = [
            min(one.low for one in expiries)
            for sent in self.invoked
            if (expiries := list(self._expiries(sent)))
        ]
        return bool(ends) and max(ends) <= self._believed(moment) + ROUNDING

    def expired_on_backlog(self) -> bool:
        """
        True if a syphon was right to find the message expired, by all clocks that it can compare.
        """
        return any(
            lived.high >= _life(sent) - ROUNDING
            for one in self.dead_lettered
            for sent in self.invoked
            for lived in self._lived(sent, one.process, one.began)
        )

    def latest(self, moment: float) -> float:
        """
        The latest date that the primary's clock may have shown for one of the copies, up to then.
        """
        arrivals = [
            period.shows(period.until)
            for attempt in self.attempts
            if attempt.way is not Way.BACKLOG
            for period in self._arrivals(attempt.began, moment)
        ]
        return max([self._believed(moment), *arrivals])

    def _expiries(self, sent: Invoked) -> Iterator[Span]:
        """The expiry dates of the copies that came to the primary, for each way."""
        life = _life(sent)
        for attempt in self.attempts:
            if attempt.way is Way.BACKLOG or not _is_of(attempt, sent):
                continue
            spent = [self._waited(sent, attempt.began)]
            if attempt.way is Way.SYPHON:
                spent = list(self._lived(sent, attempt.process, attempt.began))
            for period in self._arrivals(attempt.began, inf):
                begins = self._begins(sent, period)
                for lived in spent:
                    yield Span(begins.low + life - lived.high, begins.high + life - lived.low)

    def _waited(self, sent: Invoked, until: float) -> Span:
        """The part of the message's life that it had spent in the gateway by then."""
        taken = Span(sent.at, min(sent.at + self.late, until))
        waited = Span(until, until).since(taken)
        if sent.not_before == -inf:
            return waited
        # The time until its scheduled date, by the gateway's clock, doesn't count.
        return Span(0.0, waited.high)

    def _lived(self, sent: Invoked, process: str, moment: float) -> Iterator[Span]:
        """
        The time that a syphon may find the message to have lived, for each copy on the backlog and
        each combination of clock readings.
        """
        for stored in self.attempts:
            if stored.way is not Way.BACKLOG or not _is_of(stored, sent) or stored.began > moment:
                continue
            stays = list(self._stays(stored, moment))
            for dated in self._dated(sent, stored):
                shown = (Span(one, one) for one in self.clocks.shows(process, moment))
                ours = [one.at_least(sent.not_before).since(dated) for one in shown]
                at_once = Period(since=moment, until=moment)
                doubtful = [
                    one.at_least(sent.not_before).since(dated)
                    for one in self._doubted(process, at_once)
                ]
                for stay in stays:
                    theirs = stay.lived(sent, dated)
                    yield from (_told(one, theirs, doubtful) for one in ours)

    def _dated(self, sent: Invoked, stored: Attempted) -> Iterator[Span]:
        """
        The begin of the message's life by its envelope: the date at which the gateway took it.
        """
        until = min(stored.began, sent.at + self.late)
        for taken in self.clocks.periods(stored.process, sent.at, until):
            # While the gateway's clock is in doubt, the date without the step counts.
            for shown in self._doubted(stored.process, taken):
                yield shown.at_least(sent.not_before)

    def _doubted(self, process: str, time: Period) -> Iterator[Span]:
        """The dates that a process may take from its clock in that time, which has no step."""
        first = self.clocks.doubted(process, time.since)
        last = self.clocks.doubted(process, time.until)
        for (low, _), (_, high) in zip(first, last, strict=False):  # a step may end the time
            yield Span(time.since + low, time.until + high)

    def _stays(self, stored: Attempted, moment: float) -> Iterator["BacklogStay"]:
        last = min(stored.began + self.late, moment)
        for came in self.clocks.periods(_SECONDARY, stored.began, last):
            shown = Span(came.shows(came.since), came.shows(came.until))
            for received in self.clocks.periods(_SECONDARY, came.since, moment):
                now = Span.over(
                    received.is_ahead(then) + moment for then in (received.since, received.until)
                )
                # the syphon receives the message some time after the secondary delivered it
                yield BacklogStay(enqueued=shown, now=Span(now.low - self.late, now.high))

    def _begins(self, sent: Invoked, period: Period) -> Span:
        """
        The begin of the life of a copy that arrives in that period. The primary's clock may be in
        doubt.
        """
        doubted = list(self._doubted(_PRIMARY, period))
        low, high = period.shows(period.since), max(one.high for one in doubted)
        if sent.not_before > -inf:  # by the earliest possible date the message isn't due yet
            low = min(one.low for one in doubted)
        return Span(low, high).at_least(sent.not_before)

    def _arrivals(self, began: float, until: float) -> Iterator[Period]:
        return self.clocks.periods(_PRIMARY, began, min(began + self.late, until))

    def _believed(self, moment: float) -> float:
        return self.clocks.trusted(_PRIMARY, self.invoked[0].at, moment, self.grace)


def _told(ours: Span, theirs: Span, doubtful: Sequence[Span]) -> Span:
    """
    The time lived, as `lifetime` computes it from these times, with or without the doubtful ones.
    """
    believed = [one for one in (ours, theirs, *doubtful) if one.may_be_told]
    surely = [one for one in (ours, theirs) if one.is_told]
    low = min((one.low for one in believed), default=0.0) if surely else 0.0
    high = min(
        (one.high for one in surely), default=max((one.high for one in believed), default=0.0)
    )
    if ours.is_told and ours.low <= high + TOLERANCE + ROUNDING:
        high = min(ours.high, high + TOLERANCE + ROUNDING)
    return Span(min(low, high), high).at_least(0.0)


def _is_of(attempt: Attempted, sent: Invoked) -> bool:
    """True if the attempt may belong to that send, and not to an earlier one."""
    return attempt.began >= sent.at - ROUNDING


def _life(sent: Invoked) -> float:
    return sent.expires - max(sent.at, sent.not_before)
