"""A queue gets a number of tasks, and several queues take turns."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest
from gateway.listening.scaling.concurrency import (
    ByAge,
    ByDepth,
    Most,
    Sample,
    Shares,
    parse_weights,
)
from gateway.listening.scaling.lock_tuning import ENOUGH, LONGEST, LockTuning


def sample(depth=None, age=None, tasks=1, full=False):
    return Sample(depth=depth, oldest_age=age, tasks=tasks, is_batch_full=full)


@pytest.mark.parametrize(
    ("depth", "tasks"),
    [(10, 10), (99, 10), (100, 50), (999, 50), (1000, 100), (10**9, 100), (3, 3), (0, 0)],
)
def test_depth_says_how_many_tasks_and_never_more_than_messages(depth, tasks):
    assert ByDepth()(sample(depth)) == tasks


def test_an_unknown_depth_asks_for_more_tasks_when_batches_are_full():
    assert ByDepth()(sample(full=True)) == 10
    assert ByDepth()(sample(tasks=3)) == 3


@given(st.lists(st.integers(0, 10**6), min_size=2))
def test_a_deeper_queue_never_gets_fewer_tasks(depths):
    tasks = [ByDepth()(sample(depth)) for depth in sorted(depths)]

    assert tasks == sorted(tasks)


def test_an_unknown_depth_asks_for_as_many_tasks_as_the_first_step_has():
    assert ByDepth(steps=((1, 1), (100, 9)))(sample(full=True)) == 1


@pytest.mark.parametrize(
    "steps", [((100, 10), (50, 20)), ((100, 0),), ((5, 0), (9, 1)), ((5, 1), (5, 2))]
)
def test_steps_that_make_no_sense_are_refused(steps):
    with pytest.raises(ValueError, match="steps: rising depths"):
        ByDepth(steps=steps)


def test_an_old_message_doubles_the_tasks():
    rule = ByAge(target=10.0)

    assert rule(sample(age=11.0, tasks=4)) == 8
    assert rule(sample(age=10.0, tasks=4)) == 4
    assert rule(sample(age=11.0, tasks=0)) == 2
    assert rule(sample(tasks=4)) == 4


@pytest.mark.parametrize("wrong", [lambda: ByAge(target=0.0), lambda: ByDepth(beyond=0)])
def test_a_rule_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        wrong()


@pytest.mark.parametrize(
    "rule", [ByAge(target=0.1), ByDepth(beyond=1, steps=())], ids=["age", "depth"]
)
def test_a_rule_may_aim_at_the_least_that_makes_sense(rule):
    assert rule(sample(depth=9, age=0.1, tasks=1)) == 1


def test_of_several_rules_the_one_that_wants_most_counts():
    rule = Most((ByDepth(), ByAge(target=10.0)))

    assert rule(sample(depth=5, age=100.0, tasks=4)) == 8


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 20), min_size=1, max_size=5))
def test_of_as_many_turns_as_all_weights_each_queue_has_its_weight(weights):
    shares = Shares(weights)
    turns = Counter(shares.choose(weights) for _ in range(sum(weights.values())))

    assert turns == weights


def test_a_light_queue_has_its_turn_in_between():
    shares = Shares({"urgent": 8, "bulk": 2})
    turns = [shares.choose(["urgent", "bulk"]) for _ in range(10)]

    assert "bulk" in turns[:5]
    assert "bulk" in turns[5:]


@given(st.lists(st.sets(st.sampled_from("abc"), min_size=1), max_size=200))
def test_the_next_turn_is_always_one_of_those_who_wait(history):
    shares = Shares({"a": 5, "b": 3, "c": 1})

    assert all(shares.choose(sorted(waiting)) in waiting for waiting in history)


def test_weights_are_read():
    assert parse_weights("urgent:8 bulk") == {"urgent": 8, "bulk": 1}
    assert parse_weights("a:1 b:1000") == {"a": 1, "b": 1000}


@pytest.mark.parametrize("text", ["", "a:", "a:x", "a:0", "a:1001", "a:-1", "a:²", "a:1 a:2"])
def test_weights_that_make_no_sense_are_refused(text):
    with pytest.raises(InvalidRequest, match="queues: "):
        parse_weights(text)


def test_settlements_in_time_recommend_nothing():
    tuning = LockTuning(lock=30.0)

    assert {tuning.record(late=False, work=1.0) for _ in range(1000)} == {None}


def test_one_late_settlement_of_many_recommends_nothing():
    tuning = LockTuning(lock=30.0)

    assert {tuning.record(late=n % 25 == 24, work=1.0) for n in range(1000)} == {None}


@pytest.mark.parametrize(("late", "recommends"), [(1, False), (2, True)])
def test_one_of_twenty_may_come_too_late(late, recommends):
    tuning = LockTuning(lock=30.0)
    advice = [tuning.record(late=n < late, work=1.0) for n in range(ENOUGH)]

    assert any(advice) is recommends


def test_only_the_last_hundred_settlements_count():
    tuning = LockTuning(lock=30.0)
    shares = []
    for n in range(131):
        tuning.record(late=n == 30, work=1.0)
        shares.append(tuning.late_share)

    assert shares[30] == 1 / 31
    assert shares[-2:] == [1 / 100, 0.0]


def test_a_recommendation_begins_the_count_anew():
    tuning = LockTuning(lock=30.0)
    for _ in range(ENOUGH):
        tuning.record(late=True, work=100.0)
    again = [tuning.record(late=True, work=1.0) for _ in range(ENOUGH)]

    assert tuning.late_share == 0.0
    assert again[:-1] == [None] * (ENOUGH - 1)
    assert again[-1].lock == 400.0
    assert again[-1].late_share == 1.0


def test_the_longest_lock_is_a_week():
    tuning = LockTuning(lock=400_000.0)
    advice = [tuning.record(late=True, work=1.0) for _ in range(ENOUGH)]

    assert advice[-1].lock == 604_800.0


def test_without_a_lock_nothing_is_tuned():
    with pytest.raises(ValueError, match="lock"):
        LockTuning(lock=0.0)


def test_a_lock_of_less_than_a_second_is_lengthened_too():
    tuning = LockTuning(lock=0.5)
    advice = [tuning.record(late=True, work=0.1) for _ in range(ENOUGH)]

    assert advice[-1].lock == 1.0


def test_a_share_of_late_settlements_recommends_a_longer_lock():
    tuning = LockTuning(lock=30.0)
    advice = [tuning.record(late=n % 10 == 0, work=40.0) for n in range(ENOUGH)]

    assert advice[:-1] == [None] * (ENOUGH - 1)
    assert advice[-1].lock == 80.0
    assert advice[-1].late_share == 0.1
    assert tuning.lock == 80.0


def test_the_recommended_lock_is_longer_than_the_longest_lock_that_was_seen():
    tuning = LockTuning(lock=30.0)
    tuning.observe(300.0)
    tuning.observe(10.0)
    advice = [tuning.record(late=True, work=1.0) for _ in range(ENOUGH)]

    assert advice[-1].lock == 600.0


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 1e7)), max_size=500))
def test_a_lock_is_only_lengthened_and_never_past_a_week(history):
    tuning = LockTuning(lock=30.0)
    locks = [30.0]
    for late, work in history:
        tuning.record(late=late, work=work)
        locks.append(tuning.lock)

    assert locks == sorted(locks)
    assert locks[-1] <= LONGEST
