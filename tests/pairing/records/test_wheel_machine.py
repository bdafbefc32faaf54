"""Through cuts and restarts each process of a pair follows the orders that it must know."""

from pathlib import Path

import pytest

from tests.harness.planted import PlantedBug, bugs_below
from tests.pairing.records.wheel_runs import check, finds

PLANTED = Path(__file__).with_name("planted")


@pytest.mark.slow
def test_orders_hold_through_cuts_and_restarts_as_in_the_naive_model() -> None:
    check(25)


@pytest.mark.slow
@pytest.mark.parametrize("bug", bugs_below(PLANTED), ids=str)
def test_the_runs_find(bug: PlantedBug) -> None:
    assert bug.call(finds, 100)
