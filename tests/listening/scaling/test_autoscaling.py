"""Autoscaling gives a listener a number of processes."""

from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.listening.scaling.autoscaling import (
    Autoscaler,
    AutoscalingOptions,
    ByAge,
    ByDepth,
    ByResponseTime,
    Most,
    Workload,
)

QUIET = 60.0  # the cooldown


def workload(depth=None, age=None, processes=1, **fields):
    return Workload(depth=depth, oldest_age=age, processes=processes, **{"parallel": 1, **fields})


def make_autoscaler(minimum=0, maximum=10, rule=None, max_load=1.0, **fields):
    options = AutoscalingOptions(
        min_processes=minimum, max_processes=maximum, cooldown=QUIET, **fields
    )
    return Autoscaler(options=options, rule=rule or options.make_rule(), max_load=max_load)


def course(autoscaler, sample, *, steps=40, every=10.0):
    """The numbers that follow when nothing but them changes."""
    numbers = []
    for step in range(steps):
        number = autoscaler.decide(sample, step * every)
        sample = attrs.evolve(sample, processes=number)
        numbers.append(number)
    return numbers


@pytest.mark.parametrize(
    ("depth", "processes"), [(0, 0), (1, 1), (100, 1), (101, 2), (1000, 10), (None, 0)]
)
def test_depth_asks_for_a_process_for_every_so_many_messages(depth, processes):
    assert ByDepth(100)(workload(depth)) == processes


@pytest.mark.parametrize(
    ("age", "depth", "processes", "wanted"),
    [
        (31.0, 1000, 4, 8),  # too old
        (31.0, None, 4, 8),
        (31.0, 1000, 0, 2),
        (31.0, 5, 4, 5),  # never more than messages
        (30.0, 1000, 4, 4),  # not far from it
        (20.0, 1000, 4, 4),
        (15.0, 1000, 4, 0),  # no concern of this rule
        (None, 1000, 4, 0),
    ],
)
def test_age_doubles_the_processes_until_it_is_as_wanted(age, depth, processes, wanted):
    assert ByAge(30.0)(workload(depth, age, processes)) == wanted


@pytest.mark.parametrize(
    ("arrivals", "depth", "handling", "parallel", "wanted"),
    [
        (10.0, 0, 1.0, 1, 10),  # ten a second, each takes one
        (10.0, 0, 1.0, 4, 3),
        (0.0, 600, 1.0, 1, 10),  # ten a second empty it in a minute
        (10.0, 600, 0.5, 2, 5),
        (10.0, None, 1.0, 1, 10),
        (10.0, 600, None, 1, 0),  # the duration of a handler isn't known yet
    ],
)
def test_response_time_asks_for_what_keeps_up_and_empties_the_queue_in_time(
    arrivals, depth, handling, parallel, wanted
):
    sample = workload(depth, arrivals=arrivals, handling=handling, parallel=parallel)

    assert ByResponseTime(60.0)(sample) == wanted


def test_where_nobody_tells_what_comes_only_what_waits_asks_for_processes():
    assert ByResponseTime(60.0)(workload(0, handling=1.0)) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_processes": -1},
        {"max_processes": 0},
        {"messages_per_process": 0},
        {"target_age": 0.0},
        {"drain_within": 0.0},
        {"cooldown": -0.1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_option_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AutoscalingOptions(**wrong)


def test_the_defaults_are_the_documented_ones():
    assert AutoscalingOptions() == AutoscalingOptions(
        min_processes=0,
        max_processes=4,
        messages_per_process=100,
        target_age=30.0,
        drain_within=60.0,
        cooldown=60.0,
    )


@pytest.mark.parametrize(
    "wrong", [lambda: ByDepth(0), lambda: ByAge(0.0), lambda: ByResponseTime(0.0)]
)
def test_a_rule_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        wrong()


def test_an_option_may_be_as_small_as_makes_sense():
    options = AutoscalingOptions(target_age=0.5, drain_within=0.5, cooldown=0.0, max_processes=1)

    assert Autoscaler(options=options, rule=lambda _: 5).decide(workload(1), 0.0) == 1


def test_a_processor_may_be_as_busy_as_can_be_where_nobody_says_otherwise():
    autoscaler = Autoscaler(options=AutoscalingOptions(), rule=lambda _: 4)

    assert autoscaler.decide(workload(1, processes=1, load=1.0), 0.0) == 4


def test_of_several_rules_the_one_that_wants_most_counts():
    rule = AutoscalingOptions().make_rule()

    assert rule(workload(250)) == 3
    assert rule(workload(250, age=31.0, processes=4)) == 8
    assert rule(workload(250, arrivals=20.0, handling=1.0)) == 25


def test_while_there_are_messages_somebody_works_on_them():
    assert Most(())(workload(1, processes=0)) == 1
    assert Most(())(workload(0, processes=3)) == 0


def test_where_nobody_can_tell_the_depth_there_are_no_fewer_and_one_at_least():
    rule = AutoscalingOptions().make_rule()

    assert rule(workload(None, processes=3)) == 3
    assert rule(workload(None, processes=0)) == 1


def test_more_are_there_at_once():
    assert make_autoscaler().decide(workload(1000, processes=1), 0.0) == 10


def test_fewer_are_there_after_a_quiet_time_and_by_halves():
    numbers = course(make_autoscaler(), workload(0, processes=8), steps=31)

    assert numbers == [8] * 6 + [4] * 6 + [2] * 6 + [1] * 6 + [0] * 7


def test_work_within_the_quiet_time_begins_it_anew():
    autoscaler = make_autoscaler()
    autoscaler.decide(workload(0, processes=2), 0.0)
    autoscaler.decide(workload(200, processes=2), 50.0)

    assert autoscaler.decide(workload(0, processes=2), 60.0) == 2
    assert autoscaler.decide(workload(0, processes=2), 60.0 + QUIET) == 1


def test_an_unknown_figure_begins_the_quiet_time_anew():
    autoscaler = make_autoscaler()
    autoscaler.decide(workload(0, processes=1), 0.0)
    autoscaler.forget()

    assert autoscaler.decide(workload(0, processes=1), QUIET) == 1
    assert autoscaler.decide(workload(0, processes=1), 2 * QUIET) == 0


def test_an_announcement_brings_back_the_first_one():
    assert make_autoscaler().decide(workload(0, processes=0, is_announced=True), 0.0) == 1


@pytest.mark.parametrize(
    ("load", "processes", "expected"),
    [(0.9, 2, 10), (0.91, 2, 2), (1.0, 0, 1), (None, 2, 10)],
)
def test_a_busy_processor_gets_no_more_of_them_but_for_the_first(load, processes, expected):
    autoscaler = make_autoscaler(max_load=0.9)

    assert autoscaler.decide(workload(1000, processes=processes, load=load), 0.0) == expected


def test_a_rule_of_ones_own_is_kept_within_bounds():
    assert make_autoscaler(minimum=2, rule=lambda _: -5).decide(workload(0, processes=2), 0.0) == 2
    assert make_autoscaler(maximum=3, rule=lambda _: 500).decide(workload(0, processes=2), 0.0) == 3


def test_a_rule_that_is_off_is_not_asked():
    options = AutoscalingOptions(messages_per_process=None, target_age=None, drain_within=None)

    assert options.make_rule() == Most(())


workloads = st.builds(
    Workload,
    depth=st.none() | st.integers(0, 10**6),
    oldest_age=st.none() | st.floats(0.0, 1e6),
    is_announced=st.booleans(),
    processes=st.integers(0, 1000),
    parallel=st.integers(1, 100),
    arrivals=st.floats(0.0, 1e6),
    handling=st.none() | st.floats(0.0, 1e4),
    load=st.none() | st.floats(0.0, 1.0),
)
bounds = st.tuples(st.integers(0, 20), st.integers(1, 40)).map(lambda pair: (min(pair), max(pair)))


@given(bounds, st.lists(st.tuples(workloads, st.floats(0.0, 100.0)), min_size=1))
def test_the_number_of_workers_stays_within_its_bounds(between, samples):
    minimum, maximum = between
    autoscaler, now = make_autoscaler(minimum, max(1, maximum), max_load=0.9), 0.0
    for sample, seconds in samples:
        now += seconds
        assert minimum <= autoscaler.decide(sample, now) <= max(1, maximum)


@given(workloads, bounds)
def test_while_the_work_stays_as_it_is_the_number_goes_one_way_and_comes_to_rest(sample, between):
    minimum, maximum = between
    start = attrs.evolve(sample, processes=min(sample.processes, max(1, maximum)))
    numbers = course(make_autoscaler(minimum, max(1, maximum), max_load=0.9), start, steps=100)
    rises = [after - before for before, after in pairwise(numbers)]

    assert all(rise >= 0 for rise in rises) or all(rise <= 0 for rise in rises)
    assert len(set(numbers[-20:])) == 1


@given(workloads, st.integers(0, 10**6))
def test_a_deeper_queue_never_gets_fewer_processes(sample, more):
    deeper = attrs.evolve(sample, depth=(sample.depth or 0) + more)
    sample = attrs.evolve(sample, depth=sample.depth or 0)

    assert make_autoscaler().decide(deeper, 0.0) >= make_autoscaler().decide(sample, 0.0)


@given(st.lists(workloads.map(lambda one: attrs.evolve(one, depth=7)), min_size=1))
def test_the_number_of_workers_is_not_zero_while_messages_wait(samples):
    autoscaler = make_autoscaler()

    assert all(autoscaler.decide(sample, n * 50.0) > 0 for n, sample in enumerate(samples))
