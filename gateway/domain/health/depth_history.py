"""The depth and age of the backlog in the last hour, in bounded memory."""

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import attrs
from attrs import field

from gateway.domain.status.figures import (
    gauge,
)

LASTS: Final = timedelta(hours=1)
MOST_SAMPLES: Final = 400  # one every ten seconds, and some at once
MOST_QUEUES: Final = 32  # of one sample; others are in its sum only


@attrs.frozen(kw_only=True)
class QueueDepth:
    """The depth of a backlog queue. None: not known."""

    pending: int | None  # messages
    oldest_age: float | None = field(  # seconds; of an empty queue None, too
        metadata=gauge(
            "pairgate_backlog_queue_oldest_age_seconds",
            "Age of the oldest message on a backlog queue.",
        )
    )


def first_queues(queues: Mapping[str, QueueDepth]) -> Mapping[str, QueueDepth]:
    """The first `MOST_QUEUES` queues by name, as the history keeps them."""
    return {name: queues[name] for name in sorted(queues)[:MOST_QUEUES]}


@attrs.frozen(kw_only=True)
class DepthSample:
    """The backlog at a date. None: not known, as while the secondary doesn't answer."""

    at: datetime
    pending: int | None = None  # messages of all queues
    oldest_age: float | None = None  # seconds
    queues: Mapping[str, QueueDepth] = attrs.field(factory=dict)  # by name


@attrs.define(eq=False)
class DepthHistory:
    """Keeps the samples of the last hour, the oldest first; at most `MOST_SAMPLES`."""

    _samples: deque[DepthSample] = attrs.field(
        factory=lambda: deque(maxlen=MOST_SAMPLES), init=False
    )

    def __iter__(self) -> Iterator[DepthSample]:
        return iter(tuple(self._samples))

    def record(self, sample: DepthSample) -> None:
        """Keep the sample; forget those that are an hour older."""
        kept = attrs.evolve(sample, queues=first_queues(sample.queues))
        while self._samples and self._samples[0].at <= kept.at - LASTS:
            self._samples.popleft()
        self._samples.append(kept)
