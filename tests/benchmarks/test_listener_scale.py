"""The benchmark of a listener with many queues, with a few."""

import pytest

from benchmarks.listener_idle import NAIVE
from benchmarks.listener_scale import (
    LATENCY,
    WAYS,
    measure_idle,
    measure_looks,
    measure_rate,
    measure_start,
)
from gateway.listening.listener import OPENED_AT_ONCE
from gateway.listening.options import ListenerOptions

SOURCE, POLLS, SWEEP, TRIGGERS, PUSHED = WAYS
MORE = OPENED_AT_ONCE + 1  # queues


def test_an_idle_queue_costs_what_its_way_of_watching_says() -> None:
    found = {way.name: measure_idle(way, 3, 5.0).requests for way in WAYS}

    assert found[SOURCE.name] == pytest.approx(NAIVE, rel=0.01)
    assert found[POLLS.name] <= 0.02 * NAIVE
    assert found[SWEEP.name] <= found[POLLS.name]
    assert (found[TRIGGERS.name], found[PUSHED.name]) == (0.0, 0.0)


def test_many_queues_open_some_at_a_time_whether_or_not_the_namespace_answers() -> None:
    timeout = ListenerOptions().answer_timeout

    assert measure_start(MORE, answers=True).seconds == pytest.approx(2 * LATENCY)
    assert measure_start(MORE, answers=False).seconds == pytest.approx(2 * timeout)


def test_the_messages_of_all_queues_are_handled() -> None:
    rate = measure_rate(5, 52)

    assert (rate.queues, rate.messages) == (5, 52)
    assert rate.microseconds > 0


def test_an_agent_asks_less_about_idle_queues_than_one_by_one() -> None:
    one_by_one = measure_looks(20, 1, 5.0, one_by_one=True)
    together = measure_looks(20, 1, 5.0, one_by_one=False)

    assert one_by_one.a_day == 20 * 86_400 / 5 + 86_400 / 5  # and the age of the one's message
    assert together.a_day < 0.2 * one_by_one.a_day


def test_a_measurement_has_the_same_requests_each_time() -> None:
    first, second = measure_idle(POLLS, 3, 5.0), measure_idle(POLLS, 3, 5.0)

    assert (first.requests, first.tasks) == (second.requests, second.tasks)
