"""Several gateways send to one ordered entity: its order holds whatever happens to them."""

import pytest

from tests.harness.planted import bugs_below
from tests.simulation.bugs import PLANTED
from tests.simulation.orderers import first_overtaken, run_orderers

pytestmark = pytest.mark.slow

SEEDS = range(8)
BUGS = bugs_below(PLANTED / "orderers")
FORWARDING = bugs_below(PLANTED / "forwarding")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_holds_and_nothing_is_lost_through_outages_delays_and_kills(seed):
    told = run_orderers(seed)

    assert told.problems == ()
    assert told.gateways == 2
    assert told.acked > 50


@pytest.mark.parametrize("seed", SEEDS)
def test_so_it_does_with_three_gateways_that_forward_their_sends(seed):
    told = run_orderers(seed, forwards=True)

    assert told.problems == ()
    assert told.acked > 50
    assert told.forwarded > 10


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_lets_a_message_overtake(bug):
    assert bug.call(first_overtaken, (*bug.found, *SEEDS)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("bug", FORWARDING, ids=str)
def test_so_does_a_planted_bug_in_forwarding(bug):
    assert bug.call(first_overtaken, (*bug.found, *SEEDS), forwards=True) is not None
