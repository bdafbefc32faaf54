"""
The benchmark of sizes compares a message among many with a message among few, on a tiny scale.
"""

import shutil
from pathlib import Path

import pytest

from benchmarks.in_process import QUEUE, open_broker
from benchmarks.page import ROOT
from benchmarks.sizes import Sides, fill, grow
from benchmarks.versions import measure


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
    growth = await grow(tmp_path, Sides(kind=kind, few=2, many=5), rounds=2, messages=20)

    costs = [
        cost.wall for both in growth.rounds for one in both for cost in (one.send, one.receive)
    ]
    assert len(costs) == 8
    assert min(costs) > 0


@pytest.mark.slow
async def test_an_earlier_version_runs_its_own_sources(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    shutil.copytree(ROOT / "benchmarks", earlier / "benchmarks")
    shutil.copytree(ROOT / "gateway", earlier / "gateway")
    receive = earlier / "benchmarks" / "sizes.py"
    receive.write_text(receive.read_text().replace("TASKS: Final = 64", "TASKS: Final = 1"))

    found = await measure(earlier, 1, 500, tmp_path)
    [send, _] = found.ratios

    assert send.few_cost > send.many_cost  # one task waits for each commit
    assert not [target for target in found.targets if "times" not in target.found]
