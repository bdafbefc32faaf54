"""The smallest schedule of faults that still breaks something: what a person wants to read."""

import attrs
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from gateway.testing.sim.scenario import Scenario
from gateway.testing.sim.world import run_scenario

TRIES = 60


def with_faults(scenario: Scenario, kept: frozenset[int]) -> Scenario:
    """That scenario with only these of its faults: windows first, then crashes, then disks."""
    windows = len(scenario.windows)
    both = windows + len(scenario.crashes)
    return attrs.evolve(
        scenario,
        windows=tuple(each for n, each in enumerate(scenario.windows) if n in kept),
        crashes=tuple(each for n, each in enumerate(scenario.crashes) if n + windows in kept),
        disk_faults=tuple(each for n, each in enumerate(scenario.disk_faults) if n + both in kept),
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
