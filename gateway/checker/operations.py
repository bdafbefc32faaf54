"""
The history of the single messages of a run. `verdict.py` judges it.

The process that watches a run (a test, the demo, a benchmark) writes these records, in any order.

Times are seconds on one clock that all recorders share. A message id names one logical message,
which keeps its id when it is sent again; each send has an `Invoked`. A missing answer counts as
unknown. Entities are keys (`EntityPath.key`).
"""

import enum
import hashlib
from math import inf
from typing import Final

import attrs

from gateway.domain.message import AcceptedBy, Message
from gateway.domain.values import value


@value(kw_only=True)
class Record:
    """An event that a recorder saw, at the time `at`."""

    at: float


@value(kw_only=True)
class Invoked(Record):
    """A producer sends a message. Must be recorded before the send begins."""

    message_id: str
    entity: str
    fingerprint: str
    expires: float = inf
    not_before: float = -inf  # its scheduled date
    order: str = ""  # the key whose order its entity keeps; empty: none
    due: float | None = None  # when its producer should have sent it; None: no plan says so


@value(kw_only=True)
class Acked(Record):
    """The send was answered with success; `accepted_by` if the answer says so."""

    message_id: str
    accepted_by: AcceptedBy | None = None


@value(kw_only=True)
class Failed(Record):
    """The send was answered with a definite failure: the message must never arrive."""

    message_id: str


@value(kw_only=True)
class Unknown(Record):
    """The send was answered as unknown, or its answer was lost."""

    message_id: str


@value(kw_only=True)
class Uncertain(Record):
    """
    An attempt below the send ended with an unknown outcome, so one more copy is legal.

    Examples: a physical send to the primary, the backlog or the spool whose answer was lost, and a
    transfer of the syphon whose completion wasn't confirmed.
    """

    message_id: str


@value(kw_only=True)
class Delivered(Record):
    """A consumer on the primary received one stored copy. The same copy again is a redelivery."""

    message_id: str
    entity: str
    fingerprint: str
    copy: str  # unique within the entity: the sequence number
    expires: float | None = None  # None: the namespace doesn't report it


@value(kw_only=True)
class Completed(Record):
    """The primary confirmed that this copy was completed: it must never be delivered again."""

    entity: str
    copy: str


@value(kw_only=True)
class SessionAccepted(Record):
    """A receiver has the session from now on. Each accept is a receiver of its own."""

    entity: str
    session: str
    receiver: str


@value(kw_only=True)
class SessionServed(Record):
    """
    A receiver of a session was told that this message is completed, for which it asked at `asked`.
    """

    entity: str
    session: str
    receiver: str
    asked: float
    message_id: str
    side: int  # of the entity: a queue of its own there
    number: int  # the sequence number at that side


class CopyPlace(enum.Enum):
    PRIMARY = "primary"
    PRIMARY_DEAD_LETTER = "primary's dead-letter queue"
    BACKLOG = "backlog"  # or the local spool
    BACKLOG_DEAD_LETTER = "backlog's dead-letter queue"


@value(kw_only=True)
class AuditBegan(Record):
    """
    All faults are over, all producers have finished; these queues are read until they are empty.
    """

    queues: frozenset[str]


@value(kw_only=True)
class Found(Record):
    """The audit found a copy in a queue."""

    place: CopyPlace
    queue: str
    message_id: str
    fingerprint: str | None = None  # of the message inside its envelope; None: unknown
    copy: str = ""  # on the primary: see `Delivered`
    reason: str = ""  # in a dead-letter queue


@value(kw_only=True)
class QueueRead(Record):
    """The audit has read the whole queue."""

    queue: str


@value(kw_only=True)
class AuditFailed(Record):
    """The audit couldn't read the queue: nothing can be judged."""

    queue: str
    reason: str


def fingerprint(message: Message) -> str:
    """
    A digest of everything that must arrive as it was sent.

    Excluded are the time to live and the schedule, which are judged by the clock, and the fields
    that a broker may set: the partition key, which a session implies, and the absolute expiry.
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
