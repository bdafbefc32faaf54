"""Each planted bug is caught, so what passes the same seeds without one means something."""

import pytest

from gateway.checker.judgements import Invariant, Validity
from tests.simulation.planted.catalogue import MUTANTS
from tests.simulation.world import run_world

SEEDS = 100
FIRST = {Invariant.S7: 500}  # few runs have a disk, and fewer a power cut that takes something


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
        ("probes don't bring a suspect entity back", Invariant.L2),
        ("a silent suspect stays suspect", Invariant.S10),
        ("nobody probes", Invariant.L1),
        ("nobody probes", Invariant.L2),
        ("the syphon backs off for long", Invariant.L3),
        ("an attempt takes ten times as long", Invariant.L5),
        ("backlog queues lock for a minute", Invariant.L4),
        ("the syphon looks all the time", Invariant.L6),
    ],
)
def test_it_is_the_judge_who_catches_it(name, invariant):
    mutant = next(one for one in MUTANTS if one.name == name)

    with mutant.planted():
        first = FIRST.get(invariant, 0)
        seeds = range(first, first + SEEDS)
        broken = (run_world(seed).judgement.with_validity(Validity.BROKEN) for seed in seeds)

        assert any(invariant in each for each in broken)
