"""Short runs of real processes: their page is right."""

import re

import pytest

from benchmarks.chaos.report import HEAD, markdown
from benchmarks.chaos.results import load
from benchmarks.chaos.run import main

pytestmark = pytest.mark.slow

SHORT = """
title = "a short one"

[[faults]]
kind = "emptied"
target = "primary"
at = 1.5
lasts = 3.0

[[faults]]
kind = "swallowed"
target = "primary"
at = 6.5
lasts = 3.0
"""


def test_a_primary_in_trouble_loses_nothing(tmp_path):
    scenario = tmp_path / "short.toml"
    scenario.write_text(SHORT)

    main([str(scenario), "--out", str(tmp_path)])

    [result] = load(tmp_path)
    # Durations depend on the load of the machine, so that only safety is judged here.
    unsafe = [text for text in result.problems if re.match("S(?!10:)", text)]
    undecided = [text for text in result.undecided if "the harness had no time" not in text]
    page = (tmp_path / "index.html").read_text()
    assert undecided == []
    assert unsafe == []
    assert result.messages["lost"] == 0
    assert result.messages["acked"] > 200
    assert result.recovery.diverted > 50
    assert result.baseline.acknowledged < result.baseline.sent
    assert result.baseline_lost == 0
    assert [one.target for one in result.timeline.faults] == ["primary"] * 2
    assert {move.state for move in result.timeline.moves} >= {"secondary", "primary"}
    assert "<svg" in page
    assert not re.search(r'(src|href)="(?!#|[a-z0-9-]+/[^":]+")', page)
    assert markdown([result]).count("|") == 3 * (len(HEAD) + 1)
    assert (tmp_path / result.name / "nemesis.jsonl").exists()
