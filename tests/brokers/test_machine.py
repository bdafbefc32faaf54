"""
A namespace of our own agrees with the naive one after any operations; and the machine finds planted
bugs, which shows its worth. `MACHINE_EXAMPLES=5000` (`make test-long`) runs longer, each time with
other examples.
"""

from pathlib import Path

import pytest

from tests.brokers.machine import Machine
from tests.brokers.machine_runs import LONG, embedded, finds, run
from tests.harness.planted import bugs_below

PLANTED = Path(__file__).with_name("planted")


@pytest.mark.slow
@pytest.mark.timeout(0 if LONG else 300)
def test_memory_does_what_is_documented():
    run(Machine, 150)


@pytest.mark.slow
@pytest.mark.timeout(0 if LONG else 300)
def test_a_store_does_what_is_documented_through_restarts_and_crashes(folder):
    run(embedded(folder), 50)


@pytest.mark.slow
@pytest.mark.parametrize("bug", bugs_below(PLANTED / "memory"), ids=str)
def test_the_machine_finds(bug):
    assert bug.call(finds, None)


@pytest.mark.slow
@pytest.mark.parametrize("bug", bugs_below(PLANTED / "store"), ids=str)
def test_the_machine_finds_in_a_store(bug, folder):
    assert bug.call(finds, folder)
