"""
Acknowledged messages are never lost or stuck while shards are added, drained and removed.

All happens at random, under faults; and the runs find planted bugs.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.extensions.sharding.random_run import first_broken, judge
from tests.harness.planted import PlantedBug, bugs_below

pytestmark = pytest.mark.slow

SEEDS = (0, 1, 2, 3, 4, 24)  # in the last a shard is removed, which is rare
PLANTED = Path(__file__).with_name("planted")


def test_nothing_acknowledged_is_lost_or_stuck_while_shards_come_and_go() -> None:
    verdicts = {seed: judge(seed) for seed in SEEDS}
    broken = {seed: verdict.broken for seed, verdict in verdicts.items() if verdict.broken}
    events = sum((each.events for each in verdicts.values()), Counter[str]())

    assert broken == {}
    assert all(each.acknowledged > 100 and each.unknown > 10 for each in verdicts.values())
    assert min(events[name] for name in ("added", "drained", "put back", "removed")) > 0
    assert min(events[name] for name in ("ShardAdded", "ShardDrained")) > 0


def test_a_seed_has_the_same_verdict_each_time() -> None:
    assert judge(3) == judge(3)


@pytest.mark.parametrize("bug", bugs_below(PLANTED), ids=str)
def test_the_runs_find(bug: PlantedBug) -> None:
    broken = bug.call(first_broken, bug.in_order)

    assert any(law in sentence for sentence in broken for law in bug.laws), broken
