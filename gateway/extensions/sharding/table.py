"""
The sharded queues, and the rule that leads a message to one of the shards.

A sharded queue is made of several queues, its shards. Number 0 is the queue itself; number 2 of
`orders` is `orders/x-pairgate-shard/2`. Rendezvous hashing leads a session id or a partition key to
its shard: another shard, or one less, moves only the keys of that shard.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from typing import Final

import attrs
from attrs import validators

from gateway.changes import Changes
from gateway.domain.bounded import remembered
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message

MOST_SHARDS: Final = 1000  # of one queue: `brokers/joined/sequence.py` has room for 1024


@attrs.frozen(kw_only=True)
class ShardingRule:
    """
    `[[sharding]]`: the shards of one queue.

    The numbers in `drain` are those of shards that get no more messages, and are received from.
    """

    queue: str
    shards: int = attrs.field(validator=[validators.ge(1), validators.le(MOST_SHARDS)])
    namespaces: tuple[str, ...] = ()  # of each shard, in their order; none: the primary
    drain: tuple[int, ...] = ()

    def namespace_of(self, number: int) -> str | None:
        """The name of the namespace that has the shard; None: the primary."""
        return self.namespaces[number] if number < len(self.namespaces) else None

    def is_in_primary(self, number: int) -> bool:
        """True if the shard is in the namespace of the first."""
        return self.namespace_of(number) in {None, *self.namespaces[:1]}


@attrs.frozen(kw_only=True)
class ShardedQueue:
    """
    A sharded queue. The shards in `joining` may not exist yet, so that no message is sent to them.
    """

    path: EntityPath
    rule: ShardingRule
    joining: frozenset[int] = frozenset()
    active: tuple[int, ...] = attrs.field(init=False)  # shards that messages are sent to

    @active.default
    def _active(self) -> tuple[int, ...]:
        kept = [number for number in range(self.rule.shards) if number not in self.rule.drain]
        # If all other shards are drained at once, the joining shards get the messages already.
        return tuple(n for n in kept if n not in self.joining) or tuple(kept)

    @property
    def numbers(self) -> range:
        """The shards that are received from."""
        return range(self.rule.shards)

    @property
    def draining(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.rule.drain) & set(self.numbers)))

    def shard_of(self, key: str) -> int:
        """The shard that gets the messages with that key."""
        return place_of(key, self.active)

    def shard_for(self, message: Message, keyless: int) -> int:
        """The shard that gets the message: that of its key, or without a key `keyless`."""
        key = key_of(message)
        return keyless if key is None else self.shard_of(key)

    def former_shards_of(self, key: str) -> Sequence[int]:
        """
        The draining shards that may still have messages with that key, the oldest first: each was
        the key's shard until it drained, whenever the others began to.
        """
        active, drains = frozenset(self.active), frozenset(self.rule.drain)
        order = sorted(self.numbers, key=partial(_weight, key.encode("utf-8", "surrogatepass")))
        before = takewhile(lambda number: number not in active, reversed(order))
        return [number for number in before if number in drains]


@attrs.define(eq=False)
class ShardTable:
    """The sharded queues of a gateway; a reload replaces them."""

    _queues: dict[str, ShardedQueue] = attrs.field(factory=dict, init=False)
    changes: Changes = attrs.field(factory=Changes, init=False)

    @classmethod
    def of(cls, rules: Iterable[ShardingRule]) -> "ShardTable":
        """The table at the start, when every shard is taken to exist."""
        table = cls()
        for rule in rules:
            path = EntityPath(rule.queue)
            table._queues[path.key] = ShardedQueue(path=path, rule=rule)
        return table

    def find(self, entity: EntityPath) -> ShardedQueue | None:
        """The sharded queue with that path or sub-queue; None if it isn't sharded."""
        return self._queues.get(entity.parent_key)

    @property
    def queues(self) -> Sequence[ShardedQueue]:
        return tuple(self._queues.values())

    def replace(self, rules: Iterable[ShardingRule]) -> None:
        """
        From now on, use these rules for the queues that are sharded already. A shard that is new
        joins when `join` is called.
        """
        for rule in rules:
            path = EntityPath(rule.queue)
            before = self._queues.get(path.key)
            if before is not None and before.rule != rule:
                new = frozenset(range(before.rule.shards, rule.shards))
                joining = (before.joining | new) & frozenset(range(rule.shards))
                self._queues[path.key] = ShardedQueue(path=path, rule=rule, joining=joining)
        self.changes.notify()

    def join(self, path: EntityPath, number: int) -> None:
        """The shard exists: from now on it gets messages."""
        queue = self._queues[path.key]
        self._queues[path.key] = attrs.evolve(queue, joining=queue.joining - {number})
        self.changes.notify()


def key_of(message: Message) -> str | None:
    """The key that keeps a message with others in one shard; None: it may be in any."""
    return message.partition_key if message.session_id is None else message.session_id


@remembered(4096)
def place_of(key: str, numbers: tuple[int, ...]) -> int:
    """
    Choose the shard of a key from the numbers, always the same for the same key (rendezvous
    hashing).
    """
    text = key.encode("utf-8", "surrogatepass")
    return max(numbers, key=partial(_weight, text))


def _weight(text: bytes, number: int) -> bytes:
    return blake2b(text, digest_size=8, salt=number.to_bytes(2)).digest()
