"""Each planted bug is caught, so what passes the same seeds without one means something."""

import pytest

from gateway.testing.sim.mutants import MUTANTS
from gateway.testing.sim.world import run_world

SEEDS = 50


def first_caught():
    """The first seed whose history is bad."""
    return next((seed for seed in range(SEEDS) if not run_world(seed).passed), None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_planted_bug_is_caught(mutant):
    with mutant.planted():
        seed = first_caught()

    assert seed is not None


def test_no_bug_means_no_finding():
    assert first_caught() is None
