"""The judge of the runs with real processes finds a planted bug."""

from pathlib import Path

import pytest

from benchmarks.chaos.checker import check
from benchmarks.chaos.run import BROKEN
from gateway.checker.judgements import Invariant, Validity
from tests.harness.planted import PlantedBug, bugs_below

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCENARIO = "receive-in-outage"
OPTIONS = ("--topology", "embedded", "--interval", "0s", "--quick")


@pytest.mark.parametrize("bug", bugs_below(Path(__file__).with_name("planted")), ids=str)
def test_a_run_with_real_processes_finds(bug: PlantedBug, tmp_path: Path) -> None:
    code = bug.run("-m", "benchmarks.chaos.run", SCENARIO, *OPTIONS, "--out", str(tmp_path))

    assert code == BROKEN
    [run] = [path for path in tmp_path.iterdir() if path.is_dir()]
    broken = check(run).with_validity(Validity.BROKEN)
    assert Invariant.S6 in broken
    assert bug.laws == (f"{Invariant.S6.name} broken",)
