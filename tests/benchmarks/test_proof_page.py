"""docs/explanation/proof.md counts scenarios, planted bugs and designs as they are."""

import re
from pathlib import Path

from benchmarks.chaos.run import plans
from benchmarks.chaos.scenario import Topology, find
from tests.model.test_search import WRONG
from tests.simulation.bugs import BUGS

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "proof.md").read_text()
WORDS = {"seven": 7}


def counted(pattern: str) -> tuple[int, ...]:
    [found] = re.finditer(pattern, PAGE)
    return tuple(WORDS.get(word) or int(word) for word in found.groups())


def test_the_page_counts_the_scenarios_and_their_runs() -> None:
    scenarios = find([])
    faults = {fault.kind for scenario in scenarios for fault in scenario.faults}

    assert counted(r"(\d+) kinds of faults of namespaces.* on (\w+) topologies") == (
        len(faults),
        len(Topology),
    )
    assert counted(r"There are (\d+) runs;") == (len(plans(scenarios, None, None)),)
    assert counted(r"QUICK=1` has (\d+),") == (
        len(plans([scenario.quick() for scenario in scenarios], None, None)),
    )


def test_the_page_counts_the_planted_bugs() -> None:
    assert counted(r"(\d+) in the code \(.*\), (\d+) in the design") == (len(BUGS), len(WRONG))
