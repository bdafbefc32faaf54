"""A seed means one history: in each process, whatever its hash seed."""

import json
import os
import subprocess
import sys

import pytest

from tests.simulation.runs import figures_of
from tests.simulation.seeds import FRONTS, draw_parts
from tests.simulation.world import run_world

FIRST = 218  # from here on, six seeds have all parts
SEEDS = 6
HOURS = 0.4  # of six runs or more
COMMAND = [
    *(sys.executable, "-m", "tests.simulation"),
    *("--seed", str(FIRST), "--hours", str(HOURS), "--json"),
]


def start(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.Popen(COMMAND, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_and_their_hash_seeds_have_one_history():
    processes = [start(hash_seed) for hash_seed in (0, 4711)]

    figures = [json.loads(process.communicate(timeout=300)[0]) for process in processes]
    assert len({each["digest"] for each in figures}) == 1
    assert {each["violations"] for each in figures} == {0}
    assert min(each["runs"] for each in figures) >= SEEDS


def test_a_history_does_not_tell_where_its_disks_are():
    full_disk = [run_world(28000084, load=2) for _ in range(2)]

    assert any("are free on the disk of /primary/store" in line for line in full_disk[0].trace)
    assert full_disk[0].digest == full_disk[1].digest


def test_audited_runs_have_all_parts():
    parts = [draw_parts(seed) for seed in range(FIRST, FIRST + SEEDS)]

    assert any(each.on_disk for each in parts)
    assert {each.front for each in parts} == {None, *FRONTS}
    assert any(each.breaking for each in parts)
    assert any(each.listener for each in parts)
    assert len({each.mode for each in parts}) == 2


@pytest.mark.slow
def test_the_digest_tells_histories_apart():
    assert len({figures_of(seed).digest for seed in range(5)}) == 5
