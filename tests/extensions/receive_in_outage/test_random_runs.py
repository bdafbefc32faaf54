"""
Nothing is lost, and nothing is completed twice but for unknown outcomes, while gateways and syphons
are killed and the primary comes and goes; and the runs find planted bugs.
"""

from pathlib import Path

import pytest

from tests.extensions.receive_in_outage.random_run import first_broken, judge
from tests.harness.planted import PlantedBug, bugs_below

pytestmark = pytest.mark.slow

SEEDS = (0, 1, 3)
SHORT = 60.0  # seconds with faults
PLANTED = Path(__file__).with_name("planted")


@pytest.mark.parametrize("sessions", [False, True], ids=["messages", "sessions"])
def test_no_message_is_lost_or_completed_twice_while_receivers_and_syphons_are_killed(
    sessions: bool,
) -> None:
    verdicts = {seed: judge(seed, sessions=sessions) for seed in SEEDS}

    assert {seed: each.broken for seed, each in verdicts.items() if each.broken} == {}
    assert all(each.acknowledged > 1000 for each in verdicts.values())
    assert all(min(each.at_backlog, each.moved) > 100 for each in verdicts.values())
    assert all(5 < each.unknown < each.acknowledged / 10 for each in verdicts.values())


def test_a_seed_has_the_same_verdict_each_time() -> None:
    first, second = judge(2, lasts=SHORT), judge(2, lasts=SHORT)

    assert first == second
    assert min(first.acknowledged, first.at_backlog, first.moved, first.unknown) > 0


@pytest.mark.parametrize("bug", bugs_below(PLANTED), ids=str)
def test_the_runs_find(bug: PlantedBug) -> None:
    broken = bug.call(first_broken, bug.in_order)

    assert any(law in sentence for sentence in broken for law in bug.laws), broken
