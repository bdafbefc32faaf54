"""The sections of listeners and agents."""

from collections.abc import Mapping
from typing import Final

import attrs
from attrs import field

from gateway.domain.billing import UsageReport
from gateway.domain.health.distribution import Distribution
from gateway.domain.status.figures import EACH, SUM, counter, gauge, histogram, label, place

MOST_QUEUES: Final = 100  # that are labels of metrics; the sums of the others are one queue


@attrs.frozen(kw_only=True)
class QueueStatus:
    """A queue that a listener receives from. None: the namespace doesn't tell, or didn't answer."""

    queue: str = field(metadata=label("queue"))
    active_tasks: int = field(
        metadata=SUM
        | gauge(
            "pairgate_listener_tasks",
            "Receiving tasks.",
            labels=("state",),
            of=lambda queue: {
                "active": queue.active_tasks,
                "idle": queue.total_tasks - queue.active_tasks,
            },
        )
    )
    total_tasks: int = field(metadata=SUM)
    locked: int = field(  # messages
        metadata=SUM
        | gauge("pairgate_listener_locked_messages", "Messages locked by this process.")
    )
    completed: int = field(
        metadata=counter(
            "pairgate_listener_completed_messages", "Messages that their handler has completed."
        )
    )
    failed: int = field(
        metadata=counter("pairgate_listener_failed_messages", "Failed calls of handlers.")
    )
    poisoned: int = field(
        metadata=counter(
            "pairgate_listener_poisoned_messages", "Messages that were dead-lettered as poison."
        )
    )
    too_late: int = field(
        metadata=counter(
            "pairgate_listener_too_late_messages",
            "Messages whose lock expired before they were settled.",
        )
    )
    usage: UsageReport = field(metadata=EACH | place("listener_"))
    # Seconds that the handler took, by the class of its error; empty: it succeeded
    handled: Mapping[str, Distribution] = field(
        factory=dict,
        metadata=histogram(
            "messaging_process_duration_seconds",
            "Time that the handler took for a message.",
            labels=(
                *("messaging_system", "messaging_operation_name"),
                *("messaging_destination_name", "error_type"),
            ),
            of=lambda queue: {
                ("pairgate", "process", queue.queue, error): seconds
                for error, seconds in queue.handled.items()
            },
            alone=True,
        ),
    )
    depth: int | None = None  # messages that wait


@attrs.frozen(kw_only=True)
class PoolStatus:
    """The processes of one listener that an agent runs. None: not known."""

    listener: str  # its queues
    processes: int  # that run now, those that drain included
    wanted: int
    handling: int  # messages that handlers have now
    handled: int  # since the start of the agent
    depth: int | None = None  # messages that wait, at the last look
    oldest_age: float | None = None  # seconds


@attrs.frozen(kw_only=True)
class Wake:
    """The way that an idle listener learns of messages, where its namespace must be polled."""

    announced: bool  # all senders send triggers, so that an idle listener doesn't poll
    poll_every: float | None  # seconds between receives; None: only after a trigger
