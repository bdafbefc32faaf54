"""The backlog queues on the secondary: their names, properties, and the order to try them in."""

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import attrs

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message, derive_message

# Short, since messages that a killed syphon had locked wait that long. A syphon renews its locks.
LOCK: Final = timedelta(seconds=15)
# For the legacy client, whose syphon doesn't renew locks.
LEGACY_LOCK: Final = timedelta(minutes=1)

# All else is as the legacy client creates backlog queues. None stands for .NET's TimeSpan.MaxValue.
QUEUE_PROPERTIES: Final = QueueProperties(
    max_size_in_megabytes=5120,
    max_delivery_count=2147483647,
    default_time_to_live=None,
    auto_delete_on_idle=None,
    lock_duration=LOCK,
    dead_lettering_on_expiration=True,
    enable_batched_operations=True,
)
LEGACY_PROPERTIES: Final = attrs.evolve(QUEUE_PROPERTIES, lock_duration=LEGACY_LOCK)
_MARK: Final = "/x-servicebus-transfer/"
# Of the queues that one entity alone has. No other prefix would do: syphons that know nothing of
# such queues list those with `_MARK`, and a request that lists both kinds costs no more than one.
_OWN: Final = "/x-servicebus-transfer-of/"
# The same of entities that require sessions: each message there is in the session that it was sent
# in. Another name, as nobody can tell from a queue that may not be read whether it has sessions.
_OWN_SESSIONS: Final = "/x-servicebus-transfer-of-sessions/"
_COMMON: Final = "/x-servicebus-transfer"
_BESIDE: Final = "/x-pairgate-"
_HEARTBEATS: Final = f"{_BESIDE}syphons"
_OWNER: Final = f"{_BESIDE}primary/"
_ENVELOPE_BYTES: Final = 4096


@attrs.frozen(kw_only=True)
class BacklogQueue:
    """A queue that a pair makes on its secondary."""

    path: EntityPath
    properties: QueueProperties = QUEUE_PROPERTIES
    is_backlog: bool = True  # False: its messages are not of clients, and none of them must last


def properties(*, legacy: bool) -> QueueProperties:
    """Properties of a new backlog queue. `legacy`: a legacy syphon may receive from it, too."""
    return LEGACY_PROPERTIES if legacy else QUEUE_PROPERTIES


def is_backlog(queue: EntityPath) -> bool:
    """True if a queue has the name of a backlog queue, so that its messages have an envelope."""
    return _MARK in queue.key or _OWN in queue.key or keeps_sessions(queue)


def largest(queue: EntityPath, limit: int) -> int:
    """
    Return the size of the largest message of a queue, in bytes, where that of an entity is `limit`.

    A backlog queue has room for the envelope on top, so that a message which the entity takes can
    be diverted too.
    """
    return limit + (_ENVELOPE_BYTES if is_backlog(queue) else 0)


def queue_name(label: str, index: int) -> EntityPath:
    return EntityPath(f"{queue_prefix(label)}{index}")


def queue_prefix(label: str) -> str:
    return f"{label}/x-servicebus-transfer/"


def own_queue(label: str, entity: EntityPath, *, sessions: bool = False) -> EntityPath:
    """
    The backlog queue that one entity alone has, where it has one. `sessions`: that of an entity
    that requires sessions, and which requires them, too.
    """
    return EntityPath(f"{label}{_OWN_SESSIONS if sessions else _OWN}{entity.name}")


def owner_of(queue: EntityPath) -> EntityPath | None:
    """The entity that alone has this backlog queue. None: it is no such queue."""
    for each in (_OWN, _OWN_SESSIONS):
        label, mark, _ = queue.key.partition(each)
        if mark:
            return EntityPath(queue.name[len(label) + len(each) :])
    return None


def keeps_sessions(queue: EntityPath) -> bool:
    """True if it is the own queue of an entity that requires sessions."""
    return _OWN_SESSIONS in queue.key


def placed(wrapped: Message, message: Message, queue: EntityPath) -> Message:
    """The wrapped message, in the session of the message where the queue requires sessions."""
    if not keeps_sessions(queue):
        return wrapped
    return derive_message(wrapped, session_id=message.session_id)


def listing_prefix(label: str) -> str:
    """The prefix that all backlog queues of the label have; another queue may have it, too."""
    return f"{label}{_COMMON}"


def is_backlog_of(label: str, queue: EntityPath) -> bool:
    """True if it is a backlog queue of that label."""
    return is_backlog(queue) and queue.key.startswith(listing_prefix(label).lower())


def marker_prefix(label: str) -> str:
    """The prefix of the queue whose name ends with the fingerprint of the backlog's owner."""
    return f"{label}{_OWNER}"


def heartbeat_queue(label: str) -> EntityPath:
    """The queue beside the backlog in which syphons leave their heartbeats."""
    return EntityPath(f"{label}{_HEARTBEATS}")


def is_of_pair(queue: EntityPath) -> bool:
    """True if pairs make the queue for themselves: a backlog queue, or one beside it."""
    return is_backlog(queue) or is_beside(queue)


def is_beside(queue: EntityPath) -> bool:
    """True if pairs make the queue for themselves, and its messages are not of clients."""
    return _BESIDE in queue.key and not queue.shard_number


def queues_to_try(queues: Sequence[EntityPath], rng: random.Random) -> list[EntityPath]:
    """All queues, each once, in random order."""
    shuffled = list(queues)
    rng.shuffle(shuffled)
    return shuffled
