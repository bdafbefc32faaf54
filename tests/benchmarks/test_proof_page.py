"""benchmarks/proof.md counts scenarios, planted bugs and designs as they are."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos.run import plans
from benchmarks.chaos.scenario import Topology, find
from gateway.checker.records import build, parse
from tests.model.wrong_designs import WRONG
from tests.pages import ROOT, blocks
from tests.simulation.bugs import BUGS

PAGE = (Path(__file__).parents[2] / "benchmarks" / "proof.md").read_text()
WORDS = {"nine": 9}


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


def test_the_records_of_the_page_are_read() -> None:
    [records] = blocks("benchmarks/proof.md", "json")
    lines = records.encode().splitlines(keepends=True)

    read = [record for line in lines for record in parse(line)]

    assert [json.loads(line) for line in build(read)] == [json.loads(line) for line in lines]


@pytest.mark.slow
def test_the_commands_of_the_page_end_as_it_says(tmp_path: Path) -> None:
    """The commands that take seconds: others simulate for hours, harm processes, make mutants."""
    simulation, checker, _, _ = blocks("benchmarks/proof.md", "sh")
    histories, _ = checker.split("\n\n")
    replays = [line for line in simulation.splitlines() if "--replay" in line]
    codes = {}
    for line in [*histories.splitlines(), *replays]:
        python, *words = shlex.split(line, comments=True)
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=False,
            timeout=240,
        )
        codes[line] = (python, done.returncode, "exit code 1" in line or "--bug" in line)

    assert len(codes) == 6
    for line, (python, code, finds) in codes.items():
        assert (python, code) == (".venv/bin/python", int(finds)), line
