"""RabbitMQ's own clients notice no outage, whatever befalls their broker, and runs find bugs."""

import pytest

from tests.harness.planted import bugs_below
from tests.simulation.bugs import PLANTED
from tests.simulation.wires import first_broken, run_wires

pytestmark = pytest.mark.slow

SEEDS = (0, 1, 3, 7)  # all kinds of faults, and refused publishes in each
# Later seeds find a bug that needs a rare fault. No seed runs after one that broke a law.
FINDING = (*SEEDS, 2, 8, 9, 11, 13)
BUGS = bugs_below(PLANTED / "wires")


@pytest.mark.parametrize("seed", SEEDS)
def test_publishers_and_consumers_stay_through_the_faults_of_their_broker(seed):
    seen = run_wires(seed)

    assert seen.broken == []
    assert seen.seen["accepted"] > 500
    assert seen.seen["refused"] > 3
    assert seen.seen["redelivered"] > 5
    assert seen.consumed.total() > 100


def test_a_seed_has_the_same_run_each_time():
    first, second = run_wires(2), run_wires(2)

    assert (first.seen, first.consumed) == (second.seen, second.consumed)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_breaks_its_law(bug):
    broken = bug.call(first_broken, (*bug.found, *FINDING))

    assert any(law in sentence for sentence in broken for law in bug.laws), broken[:5]
