"""The benchmark of settlements at another gateway: both kinds, compared within a round."""

from pathlib import Path

import pytest

from benchmarks.cluster import HELD, KINDS, cost_of, measure


def test_only_figures_of_one_round_are_compared() -> None:
    # The machine was ten times as slow in the second round.
    here = [(1.0, 2.0), (10.0, 20.0), (1.0, 2.0)]
    there = [(2.0, 6.0), (20.0, 60.0), (4.0, 2.0)]

    cost = cost_of(HELD, here, there)

    assert (cost.seconds_here, cost.seconds_there, cost.seconds_ratio) == (1.0, 4.0, 2.0)
    assert (cost.processor_here, cost.processor_there, cost.processor_ratio) == (2.0, 6.0, 3.0)


@pytest.mark.slow
async def test_both_kinds_are_measured_with_real_gateways(tmp_path: Path) -> None:
    report = await measure(tmp_path, rounds=1, settlements=60)

    assert tuple(cost.kind for cost in report.costs) == KINDS
    assert all(0.0 < cost.seconds_here < 5.0 for cost in report.costs)
    assert all(0.0 < cost.seconds_there < 5.0 for cost in report.costs)
