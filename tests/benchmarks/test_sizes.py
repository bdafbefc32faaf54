"""
The benchmark of sizes compares a message among many with a message among few, on a tiny scale.
"""

from pathlib import Path

import pytest

from benchmarks.in_process import QUEUE, open_broker
from benchmarks.sizes import fill, grow


async def test_a_filled_queue_is_a_queue_like_any_other(tmp_path: Path) -> None:
    fill(tmp_path / "store.db", 3)

    async with (
        open_broker(tmp_path / "store.db") as broker,
        broker.open_receiver(QUEUE) as receiver,
    ):
        deliveries = await receiver.receive(10)

    assert [delivery.sequence_number for delivery in deliveries] == [1, 2, 3]
    assert {len(delivery.message.body) for delivery in deliveries} == {1024}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["messages", "entities", "idle entities"])
async def test_both_sides_are_measured_in_each_round(tmp_path: Path, kind: str) -> None:
    growth = await grow(tmp_path, kind, few=2, many=5, rounds=2, messages=20)

    costs = [
        cost.wall for both in growth.rounds for one in both for cost in (one.send, one.receive)
    ]
    assert len(costs) == 8
    assert min(costs) > 0
