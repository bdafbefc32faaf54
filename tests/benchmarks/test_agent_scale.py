"""The benchmark of an agent with many queues, with a few."""

from math import isfinite

import pytest

from benchmarks.agent_scale import BURST_QUEUES, STRATEGIES, Found, Report, measure

BURST = 40
MINUTES = 9.0
NO_AGENT, BY_DEPTH, BY_AGE, ALL, AT_LEAST_ONE = (each.name for each in STRATEGIES)


@pytest.fixture(scope="module")
def report() -> Report:
    return measure(BURST_QUEUES, MINUTES, BURST)


def found(report: Report, strategy: str, *, announced: bool) -> Found:
    [one] = [
        each
        for each in report.strategies
        if (each.strategy, each.announced) == (strategy, announced)
    ]
    return one


@pytest.mark.slow
def test_each_strategy_handles_the_whole_burst(report: Report) -> None:
    assert len(report.strategies) == 2 * len(STRATEGIES)
    assert all(
        each.messages >= BURST and isfinite(each.burst_longest) for each in report.strategies
    )


def test_an_agent_starts_processes_for_the_burst_and_ends_them(report: Report) -> None:
    for name in (BY_DEPTH, BY_AGE, ALL):
        each = found(report, name, announced=True)
        assert each.processes >= 1
        assert each.process_minutes < 0.6 * MINUTES


def test_without_an_agent_and_with_a_minimum_a_process_stays(report: Report) -> None:
    for name in (NO_AGENT, AT_LEAST_ONE):
        each = found(report, name, announced=True)
        assert not each.ended_at_zero
        assert each.process_minutes >= MINUTES - 1.0


def test_announced_messages_are_handled_soon(report: Report) -> None:
    for name in (BY_DEPTH, ALL, AT_LEAST_ONE):
        assert found(report, name, announced=True).burst_longest < 5.0


def test_no_strategy_asks_as_often_as_a_thread_for_each_queue(report: Report) -> None:
    assert all(0.0 < each.of_naive < 0.5 for each in report.strategies)


@pytest.mark.slow
def test_a_measurement_has_the_same_figures_each_time(report: Report) -> None:
    assert measure(BURST_QUEUES, MINUTES, BURST) == report
