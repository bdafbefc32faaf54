"""
The backlog of the last hour as JSON: the response of `GET /v1/history`.

    {"at": [DATE, ...], "pending": [12, null, ...], "oldest_age": [3.5, null, ...],
     "queues": {"east/x-servicebus-transfer/0": {"pending": [...], "oldest_age": [...]}, ...}}

All lists are as long as `at`, the oldest sample first. null: not known.
"""

import json
from collections.abc import Iterable
from typing import Final

from gateway.domain.health.depth_history import DepthSample, QueueDepth

PATH: Final = "/v1/history"
_UNKNOWN: Final = QueueDepth(pending=None, oldest_age=None)


def build_history(samples: Iterable[DepthSample]) -> bytes:
    found = list(samples)
    names = sorted({name for each in found for name in each.queues})
    value = {
        "at": [each.at.isoformat() for each in found],
        **_columns([QueueDepth(pending=s.pending, oldest_age=s.oldest_age) for s in found]),
        "queues": {
            name: _columns([each.queues.get(name, _UNKNOWN) for each in found]) for name in names
        },
    }
    return json.dumps(value).encode() + b"\n"


def _columns(depths: list[QueueDepth]) -> dict[str, list[float | None]]:
    return {
        "pending": [each.pending for each in depths],
        "oldest_age": [
            None if each.oldest_age is None else round(each.oldest_age, 1) for each in depths
        ],
    }
