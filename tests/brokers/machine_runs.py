"""Runs of the machine: many examples, or as many as it takes until one differs."""

import itertools
import os
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.brokers.machine import EmbeddedMachine, Machine

LONG: Final = int(os.environ.get("MACHINE_EXAMPLES", "0"))
UNTIL_FOUND: Final = 500


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


def embedded(place: Path) -> type[EmbeddedMachine]:
    """The machine with folders in that one."""
    numbers = itertools.count()

    class Here(EmbeddedMachine):
        @staticmethod
        def folder() -> Path:
            return place / str(next(numbers))

    return Here


def finds(folder: Path | None) -> bool:
    """True if the machine finds a difference, in memory or in stores of that folder."""
    machine = Machine if folder is None else embedded(folder)
    try:
        run(machine, UNTIL_FOUND, phases=(Phase.generate,))
    except (AssertionError, LookupError):
        return True
    return False
