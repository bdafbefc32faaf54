"""
The entities that keep the order of their sends, and the key that each message is ordered by.

An ordered entity (`ordered` in `[pairing]`) keeps the order of each of its keys: a session id, else
a partition key, else the entity as a whole. Messages of different keys have no order.
"""

import fnmatch
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import attrs

from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message

DIGEST_BYTES: Final = 16
# Characters of a session id or partition key: clients may choose longer ones, each time another.
_LONGEST_REMEMBERED: Final = 128


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
        return int(self.digest[:8], 16) % backlog.ORDERED_QUEUES


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
        return _key(entity, "session", message.session_id)
    if message.partition_key is not None:
        return _key(entity, "partition", message.partition_key)
    return _key(entity, "entity", "")


def _key(entity: EntityPath, kind: str, value: str) -> OrderKey:
    made = _made_key if len(value) > _LONGEST_REMEMBERED else _remembered_key
    return made(entity, kind, value)


def _made_key(entity: EntityPath, kind: str, value: str) -> OrderKey:
    text = f"{entity.key}\n{kind}\n{value}".encode("utf-8", "surrogatepass")
    return OrderKey(entity, blake2b(text, digest_size=DIGEST_BYTES).hexdigest())


_remembered_key = lru_cache(maxsize=4096)(_made_key)
