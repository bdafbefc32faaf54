"""
Questions that tests ask where a bug is planted.

They stand beside the tests, because a function that is called there must be one of a module.
"""

import io
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout

from tests.model.traces import deviations
from tests.simulation.__main__ import main
from tests.simulation.scenario import Scenario
from tests.simulation.seeds import draw
from tests.simulation.shrink import shrink
from tests.simulation.world import run_scenario, run_world


def first_caught(begin: int = 0, load: int = 1) -> int:
    return next(seed for seed in range(begin, 50) if not run_world(seed, load).passed)


def caught_from(begin: int) -> tuple[int, str]:
    """The first seed that is caught, and the first thing that is wrong with it."""
    seed = first_caught(begin)
    return seed, run_world(seed).problems[0]


def shrunk_from(begin: int) -> tuple[int, int, tuple[str, ...]]:
    """The faults of the first seed that is caught, the fewest of them, and what these break."""
    scenario = draw(first_caught(begin))
    smallest = shrink(scenario)
    return _faults(scenario), _faults(smallest), run_scenario(smallest).problems


def told_of(begin: int, load: int, *arguments: str) -> tuple[int, int, str]:
    """The first seed that is caught, and the command's exit code and errors with it."""
    seed, errors = first_caught(begin, load), io.StringIO()
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        code = main(["--seed", str(seed), "--load", str(load), *arguments])
    return seed, code, errors.getvalue()


def any_deviates(seeds: Iterable[int]) -> bool:
    """True if one of these histories is no way through the model."""
    return any(any(deviations(run_world(seed).records)) for seed in seeds)


def _faults(scenario: Scenario) -> int:
    return len(scenario.windows) + len(scenario.crashes)
