"""No settlement is lied about, no receive hides a message, and the runs find planted bugs."""

import pytest

from tests.harness.planted import bugs_below
from tests.simulation.bugs import PLANTED
from tests.simulation.scenario import Front
from tests.simulation.settlements import WAYS, first_broken, run_settlements

pytestmark = pytest.mark.slow

SEEDS = range(6)
BUGS = bugs_below(PLANTED / "settlements")
NAMES = [f"{front.value}, {way}" for front, way in WAYS]


@pytest.mark.parametrize(("front", "way"), WAYS, ids=NAMES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_is_told_the_truth_and_gets_what_is_left(seed, front, way):
    seen = run_settlements(seed, front, way)

    assert seen.broken == []
    assert seen.told["done"] > 10
    assert seen.told["unknown"] > 5
    assert seen.cut > 10


def test_a_deletion_that_is_repeated_before_its_answer_is_not_told_as_not_done():
    seen = run_settlements(19, Front.STORAGE_QUEUE, "behind")

    assert seen.broken == []


def test_a_seed_has_the_same_run_each_time():
    first, second = (run_settlements(3, *WAYS[-1]) for _ in range(2))

    assert (first.deliveries, first.told, first.cut) == (second.deliveries, second.told, second.cut)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_breaks_its_law(bug):
    broken = bug.call(first_broken, (*bug.found, *SEEDS))

    assert any(law in sentence for sentence in broken for law in bug.laws), broken
