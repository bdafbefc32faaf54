"""A real outage is recorded so that it can be judged."""

import pytest

from benchmarks.chaos.checker import check
from benchmarks.chaos.outage import main
from gateway.checker.judgements import Validity

pytestmark = pytest.mark.slow


def test_a_killed_primary_breaks_nothing(tmp_path):
    assert main([str(tmp_path), "--seconds", "4", "--rate", "20"]) == 0

    judgement = check(tmp_path)

    # Durations depend on the load of the machine, so that only safety is judged here.
    broken = [one for one in judgement.with_validity(Validity.BROKEN) if one.name.startswith("S")]
    shown = {one.invariant.name for one in judgement.decisions if one.judged}
    assert judgement.undecided == ()
    assert broken == [], judgement.decisions
    assert {"S1", "S2", "S4", "S5", "S6", "S9", "S10", "S11", "L3"} <= shown
