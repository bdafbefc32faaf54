"""
A namespace of our own does what the naive one does, whatever is done to it, and so that it counts:
the machine finds planted bugs.

`MACHINE_EXAMPLES=5000` (`make test-long`) looks longer, and each time elsewhere.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.brokers import queue_mutants
from tests.brokers.machine import EmbeddedMachine, Machine
from tests.simulation.planted.catalogue import Mutant

LONG = int(os.environ.get("MACHINE_EXAMPLES", "0"))
UNTIL_FOUND = 500


def run(machine: type[Machine], examples: int, *, phases: Any = tuple(Phase)) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=LONG or examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=not LONG,
            database=None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a disk: a crash here copies files, no sync decides anything."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.fixture
def embedded(folder: Path) -> type[EmbeddedMachine]:
    """The machine with folders of this test."""
    numbers, place = itertools.count(), folder

    class Here(EmbeddedMachine):
        @staticmethod
        def folder() -> Path:
            return place / str(next(numbers))

    return Here


@pytest.mark.slow
@pytest.mark.timeout(0 if LONG else 300)
def test_memory_does_what_is_documented():
    run(Machine, 150)


@pytest.mark.slow
@pytest.mark.timeout(0 if LONG else 300)
def test_a_store_does_what_is_documented_through_restarts_and_crashes(embedded):
    run(embedded, 50)


def find(machine: type[Machine], mutant: Mutant) -> None:
    with mutant.planted(), pytest.raises((AssertionError, LookupError)):
        run(machine, UNTIL_FOUND, phases=(Phase.generate,))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", queue_mutants.MEMORY, ids=str)
def test_the_machine_finds(mutant):
    find(Machine, mutant)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", queue_mutants.EMBEDDED, ids=str)
def test_the_machine_finds_in_a_store(mutant, embedded):
    find(embedded, mutant)
