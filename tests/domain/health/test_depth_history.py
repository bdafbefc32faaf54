"""The backlog of the last hour, in bounded memory."""

from datetime import UTC, datetime, timedelta

from gateway.domain.health.depth_history import (
    MOST_QUEUES,
    MOST_SAMPLES,
    DepthHistory,
    DepthSample,
    QueueDepth,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def sample(minutes: float, pending: int | None = 1) -> DepthSample:
    return DepthSample(at=NOW + timedelta(minutes=minutes), pending=pending)


def test_samples_are_kept_for_an_hour() -> None:
    history = DepthHistory()
    for each in (sample(0), sample(1, None), sample(60), sample(60.5)):
        history.record(each)

    assert list(history) == [sample(1, None), sample(60), sample(60.5)]


def test_many_samples_and_queues_take_bounded_memory() -> None:
    queues = {f"q{number:03}": QueueDepth(pending=1, oldest_age=1.0) for number in range(100)}
    history = DepthHistory()
    for number in range(MOST_SAMPLES + 5):
        at = NOW + timedelta(seconds=number)
        history.record(DepthSample(at=at, pending=100, queues=queues))

    kept = list(history)
    assert len(kept) == MOST_SAMPLES
    assert kept[0].at == NOW + timedelta(seconds=5)
    assert sorted(kept[-1].queues) == sorted(queues)[:MOST_QUEUES]
    assert kept[-1].pending == 100
