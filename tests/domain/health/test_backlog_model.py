"""
The model of the backlog against a naive pair, which knows every message.

Whatever is diverted, moved and read in which order, by this process and several others: what the
model says differs from the truth at most by what others have changed since the date that it states,
and have not told.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.domain.entity import EntityPath
from gateway.domain.health.backlog_model import (
    AGREED,
    HOLDS,
    NEWS,
    NO_ANSWER,
    NOT_ASKED,
    ZERO_HOLDS,
    BacklogModel,
    Depth,
    DepthReading,
)
from gateway.domain.health.told_changes import LATE, ToldChanges

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORDERS, BILLS, AUDIT = EntityPath("orders"), EntityPath("Bills"), EntityPath("audit")
ENTITIES = st.sampled_from([ORDERS, BILLS, AUDIT])
OTHERS = st.integers(0, 1)
ALL = 1_000_000
SECOND = timedelta(seconds=1)
# Longer than messages are in motion, so that each reading is sharp.
LATER = timedelta(seconds=2)


@attrs.define
class OtherProcess:
    """Another process of the pair. `churn` counts what it diverts and moves, whatever the sign."""

    name: str
    record: ToldChanges = attrs.field(factory=lambda: ToldChanges(at=NOW))  # the last one
    diverted: int = 0
    moved: int = 0
    churn: int = 0
    churn_in_record: int = 0
    churn_read: int = 0  # at the last reading
    heard: int | None = None  # the churn in the newest record that is of after it; None: none is
    first: int = 0  # the same, in the first

    @property
    def untold(self) -> int:
        """Messages since the last reading that no two records tell of."""
        if self.heard is None:
            return self.churn - self.churn_read
        return self.churn - self.heard + self.first - self.churn_read


class NaivePair(RuleBasedStateMachine):
    """Every message on the backlog by entity, and what others did since the last reading."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.truth: Counter[EntityPath] = Counter()
        self.model = BacklogModel()
        self.processes = [OtherProcess("first"), OtherProcess("second")]
        self.gone = 0  # messages since the last reading, of processes that ended, and didn't tell
        self.foreign = 0  # since the model could last see an empty backlog
        self.moving = 0  # own messages that may have been in motion at the last reading
        self.own = 0  # since the last reading
        self.read_at: datetime | None = None
        self.read = 0
        self.is_silent = False
        self.told: dict[str, int] = {}  # diverted, by process
        self.told_at: datetime | None = None  # of the last record that tells of more

    @property
    def total(self) -> int:
        return self.truth.total()

    @property
    def others(self) -> int:
        """Messages that others have changed since the last reading, and haven't told."""
        return self.gone + sum(each.untold for each in self.processes)

    @rule(entity=ENTITIES, messages=st.integers(1, 5))
    def divert(self, entity: EntityPath, messages: int) -> None:
        self.truth[entity] += messages
        self.own += messages
        self.model.diverted(entity, messages, self.now)

    @rule(entity=ENTITIES, messages=st.integers(1, 5))
    def move(self, entity: EntityPath, messages: int) -> None:
        moved = min(messages, self.truth[entity])
        if moved:
            self.truth[entity] -= moved
            self.own += moved
            self.model.moved(entity, moved, self.now)

    @rule(entity=ENTITIES, messages=st.integers(-5, 5), index=OTHERS)
    def another_changes(self, entity: EntityPath, messages: int, index: int) -> None:
        changed = max(messages, -self.truth[entity])
        self.truth[entity] += changed
        process = self.processes[index]
        process.churn += abs(changed)
        self.foreign += abs(changed)
        process.diverted += max(0, changed)
        process.moved += max(0, -changed)

    @rule(index=OTHERS, held=st.integers(0, 3))
    def another_leaves_a_record(self, index: int, held: int) -> None:
        process = self.processes[index]
        process.churn_in_record = process.churn
        process.record = ToldChanges(
            at=self.now,
            diverted=process.diverted,
            moved=process.moved,
            held=min(held, self.total),
        )

    @rule()
    def records_are_read(self) -> None:
        for each in self.processes:
            if each.record.diverted > self.told.get(each.name, 0):
                self.told_at = self.now
            self.told[each.name] = each.record.diverted
            if self.read_at is not None and each.record.at - LATE >= self.read_at:
                each.first = each.churn_in_record if each.heard is None else each.first
                each.heard = each.churn_in_record
        self.model.heard({each.name: each.record for each in self.processes}, self.now)

    @rule(index=OTHERS)
    def another_restarts(self, index: int) -> None:
        ended = self.processes[index]
        self.gone += ended.untold
        self.processes[index] = OtherProcess(f"{ended.name}+", ToldChanges(at=self.now))

    @rule(seconds=st.sampled_from([0.05, 1.0, 4.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(rests=st.booleans())
    def reads(self, rests: bool) -> None:
        if rests:
            self.now += LATER
        self.moving = 0 if rests else self.own + self.moving
        reading = DepthReading(began=self.now, ended=self.now, pending=self.total)
        self.model.read(reading)
        self.own = self.gone = 0
        if not self.total and not self.moving:
            self.foreign = 0
        for each in self.processes:
            each.churn_read, each.heard = each.churn, None
        self.read_at, self.read, self.is_silent = self.now, self.total, False

    @rule()
    def reads_nothing(self) -> None:
        self.model.unanswered()
        self.is_silent = True

    @rule()
    def restart(self) -> None:
        self.model = BacklogModel()
        self.moving = self.own = 0
        self.foreign = self.total
        self.read_at, self.is_silent, self.told_at = None, False, None
        self.told.clear()

    @invariant()
    def it_never_contradicts_the_truth_by_more_than_the_stated_age(self) -> None:
        depth = self.model.depth(self.now)
        if depth.pending is None:
            return
        assert depth.as_of == self.read_at
        as_it_was = depth.pending == self.read
        off = abs(depth.pending - self.total)
        # Own messages aren't counted while others' aren't known: it was so deep since the reading.
        was_so = as_it_was or min(self.read, self.total) <= depth.pending <= self.total
        assert was_so or off <= self.others + self.moving
        if not depth.counted:
            assert as_it_was

    @invariant()
    def it_never_contradicts_itself(self) -> None:
        for troubled in (False, True):
            depth = self.model.depth(self.now, troubled=troubled)
            by_entity = self.model.by_entity(ALL, depth)
            assert (depth.pending is None) is bool(depth.unknown)
            if by_entity is not None:
                assert sum(by_entity.values()) == depth.pending
                waiting = {each.name: self.model.of(each, depth) for each in (ORDERS, BILLS, AUDIT)}
                assert {name: count for name, count in waiting.items() if count} == by_entity

    @invariant()
    def the_messages_of_each_entity_are_known_or_not_told(self) -> None:
        by_entity = self.model.by_entity(ALL, self.model.depth(self.now))
        if by_entity is None:
            return
        if not self.others and not self.moving:
            # Others may have changed one entity for another since the backlog was empty.
            assert sum(by_entity.values()) == self.total
        if not self.foreign:
            assert by_entity == {each.name: count for each, count in self.truth.items() if count}

    @invariant()
    def no_entity_is_told_once_others_tell_that_they_have_changed_some(self) -> None:
        if any(each.heard is not None and each.heard != each.first for each in self.processes):
            assert self.model.by_entity(ALL, self.model.depth(self.now)) is None

    @invariant()
    def it_is_never_below_what_is_held(self) -> None:
        for held in (0, 1, self.total):
            depth = self.model.depth(self.now, held=held)
            assert depth.pending is None or depth.pending >= held

    @invariant()
    def it_is_empty_only_if_the_secondary_has_said_so_and_nothing_was_diverted_since(self) -> None:
        depth = self.model.depth(self.now)
        if depth.is_empty:
            assert self.read == 0
            assert self.own == 0

    @invariant()
    def it_is_not_empty_while_others_tell_of_more_than_the_reading_may_have(self) -> None:
        if self.told_at is not None and self.read_at is not None and self.read_at <= self.told_at:
            assert self.model.depth(self.now).pending != 0

    @invariant()
    def nothing_is_empty_while_the_secondary_or_the_primary_cannot_be_asked(self) -> None:
        assert not (self.is_silent and self.model.depth(self.now).pending == 0)
        if self.read_at is None or self.now - self.read_at > ZERO_HOLDS:
            assert self.model.depth(self.now, troubled=True).pending != 0

    @precondition(lambda self: self.read_at is not None)
    @invariant()
    def an_old_reading_is_no_depth(self) -> None:
        assert self.read_at is not None
        if self.now - self.read_at > HOLDS:
            assert self.model.depth(self.now).pending is None


TestNaivePair = NaivePair.TestCase


class Bench:
    """A model and its clock."""

    def __init__(self, most: int = 100) -> None:
        self.now = NOW
        self.model = BacklogModel(most=most)

    def diverted(self, entity: EntityPath, messages: int) -> None:
        self.model.diverted(entity, messages, self.now)

    def moved(self, entity: EntityPath, messages: int) -> None:
        self.model.moved(entity, messages, self.now)

    def read(self, pending: int | None, later: timedelta = LATER) -> Depth:
        self.now += later
        reading = DepthReading(began=self.now, ended=self.now, pending=pending)
        self.model.read(reading)
        return self.depth()

    def depth(self, **options: int) -> Depth:
        return self.model.depth(self.now, **options)

    def by_entity(self, most: int = ALL) -> dict[str, int] | None:
        found = self.model.by_entity(most, self.depth())
        return None if found is None else dict(found)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_before_the_first_reading_nothing_is_known(bench: Bench) -> None:
    bench.diverted(ORDERS, 3)

    assert bench.depth() == Depth(unknown=NOT_ASKED)
    assert bench.by_entity() is None


def test_the_depth_is_the_last_reading_with_what_was_diverted_and_moved_since(bench: Bench) -> None:
    bench.diverted(ORDERS, 3)
    bench.diverted(BILLS, 5)
    read = bench.read(8)
    bench.diverted(ORDERS, 4)
    bench.moved(BILLS, 1)

    assert (read.pending, read.counted) == (8, False)
    assert bench.depth() == Depth(pending=11, as_of=bench.now, counted=True, unknown="")
    assert bench.by_entity() == {"orders": 7, "Bills": 4}
    assert bench.by_entity(1) == {"orders": 7}


def test_messages_from_before_the_start_count_without_their_entities(bench: Bench) -> None:
    bench.read(1000)
    bench.diverted(ORDERS, 7)

    assert bench.depth().pending == 1007
    assert bench.by_entity() is None


def test_while_others_change_the_backlog_the_reading_is_told_as_it_was(bench: Bench) -> None:
    """A gateway diverts, and a syphon elsewhere moves each message at once."""
    bench.read(0)
    bench.diverted(ORDERS, 40)
    assert bench.read(1).pending == 1
    bench.diverted(ORDERS, 40)

    assert (bench.depth().pending, bench.depth().counted) == (1, True)
    assert bench.by_entity() is None


def test_a_depth_that_others_leave_alone_again_is_counted_on(bench: Bench) -> None:
    bench.read(0)
    bench.read(500)  # of another gateway
    bench.moved(ORDERS, 100)
    told = [bench.depth().pending]
    for _ in range(AGREED):
        bench.read(400)
    bench.moved(ORDERS, 100)

    assert [*told, bench.depth().pending] == [500, 300]


def test_more_moved_than_the_last_reading_had_is_unknown_and_never_0(bench: Bench) -> None:
    bench.read(10)
    bench.moved(ORDERS, 12)

    assert bench.depth().pending is None
    assert not bench.depth().is_empty
    assert bench.read(0).is_empty


def test_all_that_was_read_has_moved_but_only_the_secondary_says_empty(bench: Bench) -> None:
    bench.read(10)
    bench.moved(ORDERS, 10)

    assert (bench.depth().pending, bench.depth().is_empty) == (0, False)


def test_a_depth_that_is_told_late_does_not_matter_while_messages_move(bench: Bench) -> None:
    bench.diverted(ORDERS, 100)
    bench.read(100)
    bench.moved(ORDERS, 40)
    late = DepthReading(began=bench.now, ended=bench.now, pending=100, lag=timedelta(seconds=10))
    bench.model.read(late)

    assert bench.depth().pending == 60
    assert bench.depth().counted


def test_a_send_that_is_under_way_at_a_reading_is_no_sign_of_others(bench: Bench) -> None:
    bench.read(0)
    bench.diverted(ORDERS, 1)
    bench.read(0, later=timedelta(milliseconds=10))

    assert bench.by_entity() == {"orders": 1}
    assert bench.read(1) == Depth(pending=1, as_of=bench.now, unknown="")


def test_a_few_messages_that_others_move_while_this_process_diverts_are_no_motion(
    bench: Bench,
) -> None:
    """The secondary knows of a send before we do: it can't tell less than was counted before."""
    tenth = timedelta(milliseconds=100)
    told = []
    bench.read(0)
    for second in range(4):
        for _ in range(10):
            bench.diverted(ORDERS, 2)
            bench.now += tenth
        told.append(bench.read(20 * (second + 1) - 4, later=timedelta()).pending)

    assert told == [16, 36, 56, 76]


def test_entities_are_known_again_when_the_backlog_has_been_empty(bench: Bench) -> None:
    bench.moved(BILLS, 10)
    bench.diverted(ORDERS, 15)
    bench.read(5)
    assert bench.by_entity() is None  # the sums agree, by chance
    bench.moved(ORDERS, 5)
    bench.read(0)
    bench.diverted(ORDERS, 4)

    assert bench.by_entity() == {"orders": 4}


def test_of_what_others_exchange_the_sum_is_known_and_no_entity(bench: Bench) -> None:
    """Another process has diverted one message and moved another: the depth is the same."""
    bench.diverted(ORDERS, 2)
    bench.read(2)
    before = bench.by_entity()
    for messages in (0, 1):
        bench.now += LATER
        told = ToldChanges(at=bench.now, diverted=messages, moved=messages)
        bench.model.heard({"other": told}, bench.now)

    assert before == {"orders": 2}
    assert (bench.depth().pending, bench.by_entity()) == (2, None)


def test_an_entity_of_which_more_is_moved_than_was_counted_is_not_told(bench: Bench) -> None:
    """An earlier process has diverted the messages, for whichever entities."""
    bench.read(3)
    bench.diverted(BILLS, 3)
    bench.moved(ORDERS, 3)

    assert (bench.depth().pending, bench.by_entity()) == (3, None)
    bench.moved(BILLS, 3)
    bench.read(0)
    bench.diverted(ORDERS, 1)
    assert bench.by_entity() == {"orders": 1}


def test_while_others_change_the_backlog_no_entity_is_told(bench: Bench) -> None:
    bench.diverted(ORDERS, 2)
    bench.read(2)
    bench.read(3)  # another gateway has diverted one
    others = bench.by_entity()
    bench.read(2)  # and its syphon has moved one, perhaps of ours

    assert (others, bench.by_entity()) == (None, None)


def test_with_too_many_entities_only_their_sum_is_known() -> None:
    bench = Bench(most=2)
    bench.read(0)
    for number in range(3):
        bench.diverted(EntityPath(f"tenant-{number}"), 1)

    assert bench.depth().pending == 3
    assert bench.by_entity() is None


def test_a_secondary_that_does_not_answer_leaves_the_last_depth_for_a_while(bench: Bench) -> None:
    bench.read(7)
    bench.model.unanswered()
    bench.now += HOLDS

    assert bench.depth().pending == 7
    bench.now += SECOND
    assert bench.depth() == Depth(as_of=NOW + LATER, unknown=NO_ANSWER)


def test_the_depth_falls_by_the_readings_whoever_moves_the_messages(bench: Bench) -> None:
    bench.read(100)
    assert bench.model.falls(bench.now) is None
    bench.read(60)
    assert (bench.model.falls(bench.now), bench.model.last_decrease) == (20.0, bench.now)
    bench.read(60)
    assert bench.model.falls(bench.now) is None


def told(diverted: int, moved: int = 0, *, at: float, held: int = 0) -> ToldChanges:
    date = NOW + timedelta(seconds=at)
    return ToldChanges(at=date, diverted=diverted, moved=moved, held=held)


def test_a_reading_of_0_is_no_empty_backlog_once_others_tell_of_more(bench: Bench) -> None:
    bench.read(0)
    bench.model.heard({"a": told(0, at=0), "b": told(0, at=0)}, bench.now)
    before = bench.depth()
    bench.model.heard({"a": told(0, at=0), "b": told(7, at=1)}, bench.now)
    news = bench.depth()
    after = bench.read(0)
    bench.model.heard({"a": told(0, at=0), "b": told(7, at=1)}, bench.now)

    assert (before.pending, before.is_empty) == (0, True)
    assert (news.pending, news.unknown) == (None, NEWS)
    assert after.is_empty
    assert bench.depth().is_empty


def test_changes_that_all_others_tell_since_the_reading_are_added_to_it(bench: Bench) -> None:
    """A gateway and a syphon elsewhere; this process diverts, too."""
    bench.read(0)
    assert bench.read(100).pending == 100  # at 4 s, by others
    bench.diverted(ORDERS, 5)
    bench.now += timedelta(seconds=60)
    bench.model.heard({"gateway": told(90, at=10), "syphon": told(0, 20, at=10)}, bench.now)
    first = bench.depth()
    bench.model.heard({"gateway": told(130, at=30), "syphon": told(0, 20, at=10)}, bench.now)
    one = bench.depth()
    bench.model.heard({"gateway": told(130, at=30), "syphon": told(0, 45, at=40)}, bench.now)

    assert (first.pending, one.pending) == (100, 100)
    assert (bench.depth().pending, bench.depth().counted) == (100 + 5 + 40 - 25, True)
    assert bench.by_entity() is None
    assert bench.read(200).pending == 200


def test_changes_in_a_record_from_before_the_reading_are_not_added_again(bench: Bench) -> None:
    bench.read(10)
    bench.model.heard({"gateway": told(10, at=1)}, bench.now)
    bench.model.heard({"gateway": told(10, at=1.5)}, bench.now)

    assert bench.depth().pending == 10


def test_the_depth_is_not_below_what_a_syphon_elsewhere_holds(bench: Bench) -> None:
    bench.read(0)
    bench.now += SECOND * 5
    bench.model.heard({"syphon": told(0, at=4, held=8)}, bench.now)
    held = bench.depth()
    after = bench.read(3)

    assert (held.pending, held.counted) == (8, True)
    assert (after.pending, after.counted) == (3, False)


def test_a_process_that_has_ended_still_counts_until_the_next_reading(bench: Bench) -> None:
    bench.read(10)
    bench.now += SECOND * 5
    bench.model.heard({"syphon": told(0, 2, at=4)}, bench.now)
    bench.model.heard({"syphon": told(0, 6, at=5)}, bench.now)
    bench.model.heard({}, bench.now)

    assert bench.depth().pending == 6
    assert bench.read(6) == Depth(pending=6, as_of=bench.now, unknown="")


def test_the_last_word_of_a_process_is_no_news_after_a_reading(bench: Bench) -> None:
    """The record stays on the secondary, and is read again each time."""
    ended = attrs.evolve(told(7, at=1), runs=False)
    bench.read(0)
    for _ in range(3):
        bench.model.heard({"gateway": ended}, bench.now)
        bench.read(0)
    bench.model.heard({"gateway": ended}, bench.now)

    assert bench.depth().is_empty
