"""The backlog of the last hour, as JSON."""

import json
from datetime import UTC, datetime, timedelta

from gateway.domain.health.depth_history import DepthSample, QueueDepth
from gateway.wire.pairgate.status import build_history

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_each_list_has_a_value_for_each_sample_and_unknown_is_null() -> None:
    samples = [
        DepthSample(
            at=NOW,
            pending=3,
            oldest_age=1.26,
            queues={"east/0": QueueDepth(pending=3, oldest_age=1.26)},
        ),
        DepthSample(at=NOW + timedelta(seconds=10)),
        DepthSample(
            at=NOW + timedelta(seconds=20),
            pending=0,
            queues={
                "east/0": QueueDepth(pending=0, oldest_age=None),
                "east/1": QueueDepth(pending=0, oldest_age=None),
            },
        ),
    ]

    assert json.loads(build_history(samples)) == {
        "at": [
            "2026-01-01T12:00:00+00:00",
            "2026-01-01T12:00:10+00:00",
            "2026-01-01T12:00:20+00:00",
        ],
        "pending": [3, None, 0],
        "oldest_age": [1.3, None, None],
        "queues": {
            "east/0": {"pending": [3, None, 0], "oldest_age": [1.3, None, None]},
            "east/1": {"pending": [None, None, 0], "oldest_age": [None, None, None]},
        },
    }


def test_without_samples_the_lists_are_empty() -> None:
    assert json.loads(build_history([])) == {
        "at": [],
        "pending": [],
        "oldest_age": [],
        "queues": {},
    }
