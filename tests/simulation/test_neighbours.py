"""A secondary that two pairs share: what is another pair's stays."""

import pytest

from tests.simulation.bugs import bug_named
from tests.simulation.neighbours import FOREIGN, first_given_away, run_neighbours

pytestmark = pytest.mark.slow

SEEDS = range(12)
BUG = bug_named("the syphon doesn't ask for whom a message was meant")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_of_another_pair_stays_whatever_happens(seed, tmp_path):
    world, outcomes = run_neighbours(seed, tmp_path)

    assert outcomes.problems == ()
    assert world.stayed == FOREIGN


def test_the_judge_catches_a_syphon_that_does_not_ask(tmp_path):
    assert BUG.call(first_given_away, SEEDS, tmp_path) is not None
