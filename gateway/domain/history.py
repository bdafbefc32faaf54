"""
What happened to every message of a run. `domain/verdict.py` judges it.

Whoever watches a run (a test, the demo, a benchmark) writes these records, in any order.

Times are seconds on one clock that all recorders share. A message id names one logical message:
sent again, it keeps its id, and several `Invoked` with the same id say so. An answer that is
missing counts as unknown. Entities are keys (`EntityPath.key`).
"""

import enum
import hashlib
from math import inf
from typing import Final

import attrs

from gateway.domain.message import Leg, Message
from gateway.domain.values import value


@value(kw_only=True)
class Record:
    """Something that a recorder saw, at that time."""

    at: float


@value(kw_only=True)
class Invoked(Record):
    """A producer hands a message over. To be written before the send begins."""

    message_id: str
    entity: str
    fingerprint: str
    expires: float = inf
    not_before: float = -inf  # its scheduled date


@value(kw_only=True)
class Acked(Record):
    """The send was answered with success; by which leg, where the answer says so."""

    message_id: str
    leg: Leg | None = None


@value(kw_only=True)
class Failed(Record):
    """The send was answered with a definite failure: it must never arrive."""

    message_id: str


@value(kw_only=True)
class Unknown(Record):
    """The send was answered with "unknown", or its answer got lost."""

    message_id: str


@value(kw_only=True)
class Uncertain(Record):
    """
    One attempt below the send ended with nobody knowing, so that one more copy is legal.

    Such are a physical send whose answer got lost, on any leg, and a transfer of the syphon
    whose completion nobody confirmed.
    """

    message_id: str


@value(kw_only=True)
class Delivered(Record):
    """A consumer on the primary got one stored copy. The same copy again is a redelivery."""

    message_id: str
    entity: str
    fingerprint: str
    copy: str  # unique within the entity: the sequence number
    expires: float | None = None  # None: the namespace doesn't tell


@value(kw_only=True)
class Completed(Record):
    """The primary confirmed that this copy is done: it must never come again."""

    entity: str
    copy: str


class Place(enum.Enum):
    PRIMARY = "primary"
    PRIMARY_DEAD_LETTER = "primary's dead-letter queue"
    BACKLOG = "backlog"  # the local spool too
    BACKLOG_DEAD_LETTER = "backlog's dead-letter queue"


@value(kw_only=True)
class AuditBegan(Record):
    """All faults are over, all producers are done; these queues are read until they are empty."""

    queues: frozenset[str]


@value(kw_only=True)
class Found(Record):
    """The audit found a copy in a queue."""

    place: Place
    queue: str
    message_id: str
    fingerprint: str | None = None  # of what it was before it was wrapped; None: can't tell
    copy: str = ""  # on the primary: see `Delivered`
    reason: str = ""  # in a dead-letter queue


@value(kw_only=True)
class QueueRead(Record):
    """The audit has read the whole queue."""

    queue: str


@value(kw_only=True)
class AuditFailed(Record):
    """The audit couldn't read that queue: nothing can be judged."""

    queue: str
    reason: str


def fingerprint(message: Message) -> str:
    """
    A digest of all that must arrive as it was sent.

    Not of the time to live and the schedule, which are judged by the clock, nor of what a
    broker may set: the partition key, which a session implies, and the absolute expiry.
    """
    fields = [
        sorted(dict(content).items(), key=repr) if name in _MAPPINGS else content
        for name, content in ((name, getattr(message, name)) for name in _STABLE)
    ]
    return hashlib.sha256(repr(fields).encode()).hexdigest()


_MAPPINGS: Final = {"properties", "annotations", "footer"}
_BY_OTHERS: Final = {"time_to_live", "absolute_expiry", "scheduled", "partition_key"}
_STABLE: Final = [
    field.name
    for field in attrs.fields(Message)
    if field.name not in _BY_OTHERS | {"encoded", "written"}
]
