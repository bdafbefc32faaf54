"""
Nothing is lost, nothing comes twice but for outcomes that are told, and order is kept where that is
promised, while an entity moves to and fro under random faults; and the runs find planted bugs.
"""

from pathlib import Path

import pytest

from tests.extensions.move.random_run import first_broken, judge
from tests.harness.planted import PlantedBug, bugs_below

pytestmark = pytest.mark.slow

SEEDS = range(4)
SHORT = 60.0  # seconds with faults
PLANTED = Path(__file__).with_name("planted")


def test_no_message_is_lost_or_comes_twice_while_gateways_are_killed_and_sides_go_away() -> None:
    verdicts = {seed: judge(seed) for seed in SEEDS}

    assert {seed: each.broken for seed, each in verdicts.items() if each.broken} == {}
    assert all(each.acknowledged > 1000 for each in verdicts.values())
    assert sum(each.moved for each in verdicts.values()) > 1000
    assert all(each.buried > 30 and each.scheduled > 30 for each in verdicts.values())
    assert all(each.stages > 3 for each in verdicts.values())
    assert all(each.unknown < each.acknowledged / 5 for each in verdicts.values())


def test_order_is_kept_while_an_entity_moves_to_and_fro() -> None:
    verdicts = {seed: judge(seed, keeps_order=True) for seed in SEEDS}

    assert {seed: each.broken for seed, each in verdicts.items() if each.broken} == {}
    assert all(each.acknowledged > 500 for each in verdicts.values())
    assert all(each.moved == 0 for each in verdicts.values())


def test_a_seed_has_the_same_verdict_each_time() -> None:
    first, second = judge(1, lasts=SHORT), judge(1, lasts=SHORT)

    assert first == second
    assert min(first.acknowledged, first.moved, first.stages, first.unknown) > 0


@pytest.mark.parametrize("bug", bugs_below(PLANTED), ids=str)
def test_the_runs_find(bug: PlantedBug) -> None:
    broken = bug.call(first_broken, bug.in_order)

    assert any(law in sentence for sentence in broken for law in bug.laws), broken
