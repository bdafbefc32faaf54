"""The judge of `benchmarks.moves`, and a short run between two stores."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.moves import SENDERS, MoveFailed, Traffic, judge, measure
from gateway.extensions.move.order import MoveState
from gateway.extensions.move.report import MoveReport
from gateway.extensions.move.stages import MoveStage


def run_of(received: list[int], *doubtful: str) -> tuple[Traffic, MoveState]:
    """Two senders have sent two messages each."""
    traffic = Traffic(port=0, consumers=1, rate=1.0, authorization={}, received=received)
    traffic.times = dict.fromkeys((0, 1, SENDERS, SENDERS + 1), 0.01)
    last = MoveState(
        entity="orders",
        stage=MoveStage.OLD,
        since=datetime.now(UTC),
        report=MoveReport(doubtful=doubtful),
    )
    return traffic, last


def test_the_judge_accepts_messages_of_several_senders_in_any_order() -> None:
    judge(*run_of([1, 0, SENDERS, SENDERS + 1]), ordered=True)
    judge(*run_of([0, 0, 1, SENDERS, SENDERS + 1], "a told one"), ordered=False)


@pytest.mark.parametrize(
    ("received", "ordered", "complaint"),
    [
        ([0, 1, SENDERS], False, "1 messages were lost, as number 9"),
        ([0, 0, 1, SENDERS, SENDERS + 1], False, "1 came twice"),
        ([SENDERS, 0, 1, SENDERS + 1], True, "sender 0 came out of order"),
    ],
)
def test_the_judge_finds(received: list[int], ordered: bool, complaint: str) -> None:
    with pytest.raises(MoveFailed, match=complaint):
        judge(*run_of(received), ordered=ordered)


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_short_run_moves_a_queue_there_and_back(tmp_path: Path, ordered: bool) -> None:
    found = await measure("embedded", "embedded", tmp_path, ordered=ordered, rate=20.0, before=1.0)

    assert found.sent > 100
    assert found.before <= found.longest
