"""
The entities that keep the order of their sends, and the key that each message is ordered by.

An ordered entity (`ordered` in `[pairing]`) keeps the order of each of its keys: a session id, else
a partition key, else the entity as a whole. Messages of different keys have no order.
"""

import fnmatch
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import attrs

from gateway.domain.bounded import remembered
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.extensions.order.queues import ORDERED_QUEUES

DIGEST_BYTES: Final = 16  # 128 bits, so that no two keys have the same


@attrs.frozen
class OrderKey:
    """
    A key of an ordered entity. `digest` stands for entity and key: it is the session id of the
    key's messages on the backlog, so that these never show a client's own id.
    """

    entity: EntityPath
    digest: str

    @property
    def number(self) -> int:
        """The number of the ordered backlog queue that has all messages of this key."""
        return int(self.digest[:8], 16) % ORDERED_QUEUES


def is_ordered(entity: EntityPath, patterns: Sequence[str]) -> bool:
    """
    True if one of the patterns (`orders`, `payments/*`) matches; case is ignored. A shard is
    ordered if its queue is.
    """
    key = entity.whole.key
    return any(fnmatch.fnmatchcase(key, pattern.lower()) for pattern in patterns)


def key_of(entity: EntityPath, message: Message) -> OrderKey:
    """The key that orders the message among those of its entity."""
    if message.session_id is not None:
        return _key(message.session_id, entity, "session")
    if message.partition_key is not None:
        return _key(message.partition_key, entity, "partition")
    return _key("", entity, "entity")


@remembered(4096)
def _key(value: str, entity: EntityPath, kind: str) -> OrderKey:
    text = f"{entity.key}\n{kind}\n{value}".encode("utf-8", "surrogatepass")
    return OrderKey(entity, blake2b(text, digest_size=DIGEST_BYTES).hexdigest())
