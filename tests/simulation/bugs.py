"""The planted bugs that the simulation must find (`planted/`), and how it looks for them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.harness.planted import PlantedBug, bugs_below
from tests.simulation.seeds import BY_RABBITMQ, COMEBACK, IN_PIECES, ORDERED
from tests.simulation.world import run_world

PLANTED: Final = Path(__file__).with_name("planted")
ALL: Final = bugs_below(PLANTED)
BUGS: Final = tuple(bug for bug in ALL if bug.seeds)  # one without seeds is for another world
LEAST_RUNS: Final = 64  # of a part of `test_histories`
IN_ORDER: Final = tuple(ORDERED + seed for seed in (1, 3, 5, 8, 14, 53, 208))
COME_BACK: Final = tuple(COMEBACK + seed for seed in (0, 2, 3, 10, 11, 13))
TAKEN_IN_PIECES: Final = tuple(IN_PIECES + seed for seed in (0, 1, 5, 9, 13, 14))
PUBLISHED: Final = tuple(BY_RABBITMQ + seed for seed in range(10))
# The seeds that `test_histories` runs without a bug.
JUDGED: Final = frozenset({*range(LEAST_RUNS), *IN_ORDER, *COME_BACK, *TAKEN_IN_PIECES, *PUBLISHED})


def bug_named(name: str) -> PlantedBug:
    return next(bug for bug in ALL if bug.name == name)


def first_problem(seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of these seeds whose history is bad, and what is wrong with it first."""
    for seed in seeds:
        for problem in run_world(seed).problems:
            return seed, problem
    return None


def first_seeds(laws: Sequence[str], seeds: Iterable[int]) -> dict[str, int]:
    """The first of these seeds that breaks each law; a law that none breaks is missing."""
    found: dict[str, int] = {}
    for seed in seeds:
        problems = run_world(seed).problems
        for law in laws:
            if any(law in problem for problem in problems):
                found.setdefault(law, seed)
        if len(found) == len(laws):
            break
    return found
