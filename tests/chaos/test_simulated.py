"""A run that the simulation writes into a folder is judged as it was in memory."""

import pytest

from benchmarks.chaos.checker import PASSED, VIOLATED, check, exit_code
from benchmarks.chaos.simulated import main, write_run
from gateway.checker.judgements import Invariant, Validity
from tests.simulation.world import run_world


@pytest.mark.parametrize("seed", [1, 2, 21])
def test_a_folder_is_judged_as_the_run_was(tmp_path, seed):
    write_run(seed, tmp_path)

    judgement = check(tmp_path)

    assert exit_code(judgement) == PASSED
    assert judgement.decisions == run_world(seed).judgement.decisions


def test_a_planted_bug_is_seen_in_the_folder(tmp_path):
    planted = "the syphon completes before the primary accepted"

    assert main(["3", str(tmp_path), "--planted", planted]) == 0

    judgement = check(tmp_path)
    assert exit_code(judgement) == VIOLATED
    assert Invariant.S8 in judgement.with_validity(Validity.BROKEN)


def test_two_runs_are_not_mixed(tmp_path):
    assert main(["1", str(tmp_path)]) == 0

    with pytest.raises(SystemExit) as caught:
        main(["2", str(tmp_path)])

    assert caught.value.code == 2
