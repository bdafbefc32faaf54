"""The smallest schedule of faults that still breaks something: what a person wants to read."""

import attrs
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from tests.simulation.scenario import ClockStep, Crash, DiskFault, Scenario, Window
from tests.simulation.world import run_scenario

TRIES = 60


def with_faults(scenario: Scenario, kept: frozenset[int]) -> Scenario:
    """Return the scenario with only these of its `faults`, by their numbers."""
    faults = [each for number, each in enumerate(scenario.faults) if number in kept]
    return attrs.evolve(
        scenario,
        windows=tuple(each for each in faults if isinstance(each, Window)),
        crashes=tuple(each for each in faults if isinstance(each, Crash)),
        disk_faults=tuple(each for each in faults if isinstance(each, DiskFault)),
        clock_steps=tuple(each for each in faults if isinstance(each, ClockStep)),
    )


def shrink(scenario: Scenario) -> Scenario:
    """
    The scenario with as few of its faults as Hypothesis finds to be enough.

    A run with fewer faults is another history, so a few may fail for another reason.
    """
    faults = range(len(scenario.faults))
    if not faults:
        return scenario
    try:
        kept = find(
            st.frozensets(st.sampled_from(faults)),
            lambda kept: not run_scenario(with_faults(scenario, kept)).passed,
            settings=settings(
                max_examples=TRIES,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate, Phase.shrink],
            ),
        )
    except NoSuchExample:
        return scenario  # all of them together, and no random part
    return with_faults(scenario, kept)
