"""
The backlog as one process knows it: the messages that wait there, for which entities, and the date
of that knowledge.

    depth now = last reading + diverted since - moved since

The process knows what it has diverted and moved itself. What others do shows in the readings: each
is compared with the depth that the process expected. While they agree, nobody else changes the
backlog, and the counts go on between two readings. Otherwise the counts go on once each other
process has told in two records what it changed between them, both since the reading; until then
the last reading is told as it was, with its date. So a figure differs from the truth at most by
what others have changed since its date. A record tells how much, but not when: what changed before
the first one may be in the reading, and a reading of 0 from before is no empty backlog.

No clock: dates are arguments, in UTC.
"""

import heapq
from collections import Counter, deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.health.told_changes import OthersChanges, ToldChanges

MOST: Final = 10_000  # entities that are counted
# A depth of 0 is news of the past as soon as messages may be diverted: in an outage an empty
# backlog fills in a moment. The secondary is asked again sooner than this.
ZERO_HOLDS: Final = timedelta(seconds=5)
HOLDS: Final = timedelta(seconds=90)  # of any depth, as of the abilities of a namespace
# Around a reading, messages in motion count at one side only: of a send, and of a move, the
# secondary knows before we do. Twice the time of the reading, and this, which a send to a busy
# namespace may take.
MOTION: Final = timedelta(milliseconds=200)
_BUCKET: Final = timedelta(milliseconds=100)  # for which a secondary's counts may lack a message
_LONGEST: Final = timedelta(seconds=60)  # for which changes are remembered
# Readings in a row that must be as expected, before nobody else is taken to change the backlog: of
# two gateways and two syphons the changes may cancel out once or twice.
AGREED: Final = 3
TREND: Final = timedelta(seconds=20)  # of the readings that a rate is measured by
NOT_ASKED: Final = "nobody has asked the secondary yet"
NO_ANSWER: Final = "the secondary doesn't answer"
NEWS: Final = "another gateway has diverted messages, perhaps since the last reading"


@attrs.frozen(kw_only=True)
class DepthReading:
    """The messages on all backlog queues, as the secondary told them between two dates."""

    began: datetime
    ended: datetime
    pending: int | None  # None: not told
    lag: timedelta = timedelta()  # the counts were so old when they were told
    reason: str = ""  # if it is None

    @property
    def as_of(self) -> datetime:
        return self.began - self.lag


@attrs.frozen(kw_only=True)
class Depth:
    """The depth, as far as it is known. `unknown` is the reason why `pending` is None, or empty."""

    pending: int | None = None
    as_of: datetime | None = None  # of the reading behind it
    counted: bool = False  # messages were counted since
    unknown: str = NOT_ASKED

    @property
    def is_empty(self) -> bool:
        """True if the secondary itself has said so, and nothing has been diverted since."""
        return self.pending == 0 and not self.counted


@attrs.frozen
class _CountedChanges:
    """The messages that were counted from `at` on, for less than `_BUCKET`."""

    at: datetime
    diverted: int
    moved: int


@attrs.define(eq=False)
class BacklogModel:
    """
    Fed with readings, with the messages that this process diverts and moves, and with what others
    tell to have diverted and moved.
    """

    most: int = MOST
    last_decrease: datetime | None = attrs.field(default=None, init=False)  # seen in a reading
    _counts: Counter[EntityPath] = attrs.field(factory=Counter, init=False)  # without entries of 0
    _sum: int = attrs.field(default=0, init=False)
    _is_whole: bool = attrs.field(default=True, init=False)  # no message was left out
    _changes: deque[_CountedChanges] = attrs.field(factory=deque, init=False)
    _last: DepthReading | None = attrs.field(default=None, init=False)
    _readings: deque[tuple[datetime, int]] = attrs.field(factory=deque, init=False)
    _has_changed: bool = attrs.field(default=False, init=False)  # since the last reading
    _agreed: int = attrs.field(default=AGREED, init=False)  # readings in a row as expected
    _others: int = attrs.field(default=0, init=False)  # messages that this process didn't count
    _failed: str = attrs.field(default="", init=False)  # why the secondary didn't answer since
    _others_told: OthersChanges = attrs.field(factory=OthersChanges, init=False)

    def diverted(self, entity: EntityPath, messages: int, at: datetime) -> None:
        """Count messages that this process has left on the backlog."""
        self._count(entity, messages, at)

    def moved(self, entity: EntityPath, messages: int, at: datetime) -> None:
        """Count messages that the syphon of this process has taken from the backlog."""
        self._count(entity, -messages, at)

    def heard(self, told: Mapping[str, ToldChanges], at: datetime) -> None:
        """Take what each other process of the pair tells to have changed since its start."""
        self._others_told.hear(told, at)

    @property
    def changes(self) -> bool:
        """True if the depth isn't what was read last, or was another one shortly before."""
        depths = {pending for _, pending in self._readings}
        return self._has_changed or self._has_news or not self._is_alone or len(depths) > 1

    @property
    def _is_alone(self) -> bool:
        """True if nobody else changes the backlog."""
        return self._agreed >= AGREED

    def read(self, reading: DepthReading) -> None:
        """Take a reading."""
        self._failed = ""
        is_first, self._last = self._last is None, reading
        self._others_told.begin(reading.as_of)
        if reading.pending is None:
            self._has_changed = False
            return
        self._record_trend(reading.as_of, reading.pending)
        least, most = self._others_by(reading, reading.pending)
        agrees = is_first or least <= self._others <= most
        self._agreed = self._agreed + 1 if agrees else 0
        if not least <= self._others <= most:
            self._others = 0 if least <= 0 <= most else reading.pending - self._sum
        if reading.pending == 0 and least == most:
            self._counts.clear()
            self._sum, self._others, self._is_whole = 0, 0, True
        self._has_changed = self._is_alone and self._sum + self._others != reading.pending

    def unanswered(self, reason: str = NO_ANSWER) -> None:
        """Note that the secondary was asked, and didn't answer."""
        self._failed = reason

    def depth(self, at: datetime, *, held: int = 0, troubled: bool = False) -> Depth:
        """
        The depth at that date. `held` messages are in the hands of this process's syphon; those of
        others count while they are of after the reading. `troubled`: messages may be diverted now,
        or the primary can't be asked.
        """
        last = self._last
        if last is None or last.pending is None:
            why = self._failed or (NOT_ASKED if last is None else last.reason)
            return Depth(unknown=why, as_of=None if last is None else last.as_of)
        others = self._others_told
        told = others.diverted - others.moved
        pending = self._counted_on(last, last.pending, told)
        held = max(held, others.held(at, lambda date: self._changed_since(date)[1]))
        age = at - last.ended
        unknown = ""
        if pending < 0:
            unknown = "more was moved than the last reading had; the next one tells"
        elif pending == 0 and not held and (self._failed or (troubled and age > ZERO_HOLDS)):
            unknown = self._failed or "the last reading is older than the outage may be"
        elif pending == 0 and not held and self._has_news:
            unknown = NEWS
        elif age > HOLDS:
            unknown = self._failed or "the last reading is too old"
        if unknown:
            return Depth(unknown=unknown, as_of=last.as_of)
        about = self._has_changed or bool(told) or pending < held
        return Depth(pending=max(pending, held), as_of=last.as_of, counted=about, unknown="")

    def _counted_on(self, last: DepthReading, pending: int, told: int) -> int:
        """The messages of the last reading with the changes since that are known."""
        if self._is_alone:
            return self._sum + self._others + told
        if not self._others_told.are_known:
            return pending
        diverted, moved = self._changed_since(last.as_of)
        return pending + diverted - moved + told

    def by_entity(self, number: int, depth: Depth) -> Mapping[str, int] | None:
        """
        The `number` entities for which the most of that depth's messages wait; None: not known. The
        sum over all entities is the depth.
        """
        if not self._knows_entities(depth):
            return None
        found = heapq.nlargest(number, self._counts.items(), key=lambda each: each[1])
        return {entity.name: counted for entity, counted in found}

    def of(self, entity: EntityPath, depth: Depth) -> int | None:
        """The messages of that depth that wait for the entity; None: not known."""
        return self._counts[entity] if self._knows_entities(depth) else None

    def falls(self, at: datetime) -> float | None:
        """
        Messages a second by which the depth has fallen from reading to reading, by whomever; None:
        it doesn't fall, or isn't known to.
        """
        if not self._readings:
            return None
        fell = [self._readings[-1]]
        for each in list(self._readings)[-2::-1]:
            if each[1] <= fell[-1][1] or at - each[0] > TREND:
                break
            fell.append(each)
        (ended, left), (began, first) = fell[0], fell[-1]
        return (first - left) / (ended - began).total_seconds() if first > left else None

    @property
    def _has_news(self) -> bool:
        """True if others told after the last reading that they have diverted messages."""
        last, told = self._last, self._others_told.news_at
        return last is not None and told is not None and last.as_of <= told

    def _knows_entities(self, depth: Depth) -> bool:
        known = self._is_alone and self._is_whole and not self._others
        others = self._others_told
        known = known and not others.diverted and not others.moved
        return known and depth.pending == self._sum

    def _count(self, entity: EntityPath, messages: int, at: datetime) -> None:
        self._has_changed = True
        if entity not in self._counts and len(self._counts) >= self.most:
            self._is_whole = False
        else:
            self._counts[entity] += messages
            # Another process, or an earlier one, has diverted the message.
            if self._counts[entity] < 0:
                self._is_whole = False
            elif not self._counts[entity]:
                del self._counts[entity]
        self._sum += messages
        change = _CountedChanges(at, max(0, messages), max(0, -messages))
        if self._changes and timedelta() <= at - self._changes[-1].at < _BUCKET:
            last = self._changes.pop()
            change = _CountedChanges(
                last.at, last.diverted + change.diverted, last.moved + change.moved
            )
        self._changes.append(change)
        # A clock that was set back makes changes of the future: they are forgotten, too.
        while self._changes and not timedelta() <= at - self._changes[0].at <= _LONGEST:
            self._changes.popleft()

    def _others_by(self, reading: DepthReading, pending: int) -> tuple[int, int]:
        """
        The least and the most messages on the backlog that this process hasn't counted, by that
        reading. As many as were counted lately may be under way, which the secondary knows already.
        """
        since = reading.as_of - _BUCKET
        diverted, moved = self._changed_since(since)
        begin = self._sum - diverted + moved
        under_way = MOTION + 2 * (reading.ended - reading.began)
        diverted, moved = self._changed_since(since - under_way)
        return pending - begin - diverted, pending - begin + moved

    def _changed_since(self, date: datetime) -> tuple[int, int]:
        found = [each for each in self._changes if each.at >= date]
        return sum(each.diverted for each in found), sum(each.moved for each in found)

    def _record_trend(self, as_of: datetime, pending: int) -> None:
        last = self._readings[-1] if self._readings else None
        if last is not None and last[0] >= as_of:  # the same counts again, or a clock set back
            return
        if last is not None and pending < last[1]:
            self.last_decrease = as_of
        self._readings.append((as_of, pending))
        while as_of - self._readings[0][0] > TREND:
            self._readings.popleft()
