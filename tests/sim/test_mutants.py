"""Each planted bug is caught, so what passes the same seeds without one means something."""

import pytest

from gateway.domain.rulings import Invariant, Ruling
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


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("a failed commit is answered as done", Invariant.S7),
        ("a completed message comes again", Invariant.S8),
        ("nobody probes", Invariant.L1),
        ("nobody probes", Invariant.L2),
        ("the syphon rests for long", Invariant.L3),
        ("an attempt takes ten times as long", Invariant.L5),
        ("the syphon looks all the time", Invariant.L6),
    ],
)
def test_it_is_the_judge_who_catches_it(name, invariant):
    mutant = next(one for one in MUTANTS if one.name == name)

    with mutant.planted():
        broken = (run_world(seed).judgement.ruled(Ruling.BROKEN) for seed in range(SEEDS))

        assert any(invariant in each for each in broken)
