"""The benchmark of consumers in an outage: its ratio, and its goal."""

import pytest

from benchmarks.receive_in_outage import consuming, targets_of


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    found = consuming(0.02, 100, [(100.0, 90.0), (200.0, 198.0), (50.0, 20.0)])

    assert (found.healthy, found.outage, found.ratio) == (100.0, 90.0, 0.9)


@pytest.mark.parametrize(("outage", "reached"), [(95.0, True), (94.0, False)])
def test_the_goal_is_that_of_consumers_with_work(outage: float, reached: bool) -> None:
    ways = [consuming(work, 100, [(100.0, outage)]) for work in (0.02, 0.0)]

    [target] = targets_of(ways)

    assert target.reached is reached
