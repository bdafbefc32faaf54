"""A secondary that two pairs share: what is another pair's stays."""

from pathlib import Path

import pytest

from gateway.checker.judgements import Invariant, Validity
from gateway.pairing.syphon.destination import Destination
from tests.harness.determinism import run_seeded
from tests.simulation.neighbours import FOREIGN, Neighbours, draw_neighbours
from tests.simulation.planted.patch import Mutant

SEEDS = range(12)


def move_whatever_there_is(right):
    def accepts(self, meant_for):
        return True

    return accepts


MUTANT = Mutant(
    "the syphon doesn't ask for whom a message was meant",
    Destination,
    "accepts",
    move_whatever_there_is,
)


def run(seed, folder):
    world = Neighbours(scenario=draw_neighbours(seed), folder=Path(folder))
    return world, run_seeded(world.run, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_another_pairs_stays_whatever_happens(seed, tmp_path):
    world, outcomes = run(seed, tmp_path)

    assert outcomes.problems == ()
    assert world.stayed == FOREIGN


def test_it_is_the_judge_who_catches_a_syphon_that_does_not_ask(tmp_path):
    with MUTANT.planted():
        found = [run(seed, tmp_path)[1] for seed in SEEDS]

    broken = [each.judgement.with_validity(Validity.BROKEN) for each in found]
    assert any(Invariant.S2 in each for each in broken)
