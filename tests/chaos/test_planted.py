"""The judge of the runs with real processes finds the planted bugs of each scenario."""

from pathlib import Path

import pytest

from benchmarks.chaos.checker import check
from benchmarks.chaos.run import BROKEN
from gateway.checker.judgements import Validity
from tests.harness.planted import PlantedBug, bugs_below

pytestmark = pytest.mark.slow


ATTEMPTS = 3  # the judge finds little in a run whose harness itself had no time


@pytest.mark.parametrize("bug", bugs_below(Path(__file__).with_name("planted")), ids=str)
def test_a_run_with_real_processes_finds(bug: PlantedBug, tmp_path: Path) -> None:
    found: set[str] = set()
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        scenario = bug.path.parent.name
        code = bug.run("-m", "benchmarks.chaos.run", scenario, "--quick", "--out", str(folder))
        assert code == BROKEN
        [run] = [path for path in folder.iterdir() if path.is_dir()]
        judged = check(run)
        found |= {f"{each.name} broken" for each in judged.with_validity(Validity.BROKEN)}
        if set(bug.laws) <= found or not (judged.late or judged.undecided):
            break
    assert set(bug.laws) <= found
