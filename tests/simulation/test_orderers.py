"""Two gateways send to one ordered entity: its order holds whatever happens to them."""

import pytest

from tests.simulation.orderers import run_orderers

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_holds_and_nothing_is_lost_through_outages_delays_and_kills(seed):
    told = run_orderers(seed)

    assert told.problems == ()
    assert told.gateways == 2
    assert told.acked > 50
