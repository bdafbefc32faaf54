"""The judge of the runs with real processes finds the planted bugs of each scenario."""

from pathlib import Path

import pytest

from benchmarks.chaos.checker import check
from benchmarks.chaos.run import BROKEN
from gateway.checker.judgements import Validity
from tests.harness.planted import PlantedBug, bugs_below

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bug", bugs_below(Path(__file__).with_name("planted")), ids=str)
def test_a_run_with_real_processes_finds(bug: PlantedBug, tmp_path: Path) -> None:
    scenario = bug.path.parent.name
    code = bug.run("-m", "benchmarks.chaos.run", scenario, "--quick", "--out", str(tmp_path))

    assert code == BROKEN
    [run] = [path for path in tmp_path.iterdir() if path.is_dir()]
    broken = check(run).with_validity(Validity.BROKEN)
    assert set(bug.laws) <= {f"{each.name} broken" for each in broken}
