"""Receivers outlive outages, hear nothing untrue, and the runs find planted bugs."""

import pytest

from tests.harness.planted import bugs_below
from tests.simulation.bugs import PLANTED
from tests.simulation.receivers import first_broken, run_receivers

SEEDS = range(4)
BUGS = bugs_below(PLANTED / "receivers")


@pytest.mark.parametrize("seed", SEEDS)
def test_receivers_outlive_outages_and_hear_nothing_untrue(seed):
    seen = run_receivers(seed)

    assert seen.broken == []
    assert seen.errors > 3  # over HTTP


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_breaks_its_law(bug):
    broken = bug.call(first_broken, (*bug.found, *SEEDS))

    assert any(law in sentence for sentence in broken for law in bug.laws), broken
