"""A session keeps its order whatever its clients do, and the runs find planted bugs."""

import pytest

from tests.harness.planted import bugs_below
from tests.simulation.bugs import PLANTED
from tests.simulation.sessions import WAYS, first_broken, run_session

pytestmark = pytest.mark.slow

SEEDS = range(12)
BUGS = bugs_below(PLANTED / "sessions")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_keeps_its_order_whatever_its_clients_do(seed, way):
    seen = run_session(seed, way)

    assert seen.broken == []
    assert seen.deliveries > 40
    assert seen.returned > 10


def test_a_seed_has_the_same_run_each_time():
    first, second = (run_session(3, "gateway") for _ in range(2))

    assert (first.deliveries, first.returned) == (second.deliveries, second.returned)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_breaks_its_law(bug):
    broken = bug.call(first_broken, (*bug.found, *SEEDS))

    assert any(law in sentence for sentence in broken for law in bug.laws), broken
