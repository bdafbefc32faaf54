"""Sends the batches of a sharded queue to its shards."""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import Final, TypeVar

import attrs
import trio

from gateway.capabilities import Batches, SendEach, TransactedSend
from gateway.changes import Turns
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    Outcome,
    OutcomeUnknown,
    QuotaExceeded,
)
from gateway.domain.message import AcceptedBy, Message
from gateway.extensions.sharding.table import ShardedQueue, key_of

T = TypeVar("T")

BACKOFF: Final = Backoff(first=1.0, cap=30.0)  # of a failed shard, for messages without a key
# Errors of one shard alone: another shard may accept the message, and answer as soon.
_OWN_FAULTS: Final = (EntityNotFound, EntityDisabled, QuotaExceeded)


@attrs.define(eq=False)
class _ShardBatch:
    """The messages of one batch that go to one shard."""

    batch: int
    shard: int
    messages: list[Message]
    may_move: bool  # no message has a key, and their order isn't kept
    tried: set[int] = attrs.field(factory=set)  # shards that have refused them


@attrs.define(eq=False, kw_only=True)
class ShardedSending:
    """Chooses a shard for each message, and joins the shards' verdicts on a batch."""

    rng: random.Random
    # True if the shard isn't failed over, so that it is preferred for messages without a key.
    is_healthy: Callable[[EntityPath], bool]
    keeps_order: Callable[[EntityPath], bool]  # of messages without a key
    has_other_ways: bool  # the shards' broker has tried another way before it refuses a message
    _turns: Turns = attrs.field(factory=Turns, init=False)
    _next: dict[str, "count[int]"] = attrs.field(factory=dict, init=False)  # by queue
    # Failed shards: until when they back off, and how often they failed in a row.
    _backoffs: dict[str, tuple[float, int]] = attrs.field(factory=dict, init=False)

    async def send(
        self, send: SendEach[T], queue: ShardedQueue, entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        """
        Send each message to its shard. The messages of a batch that have no key stay together.

        A batch whose messages go to several shards is accepted when all shards have accepted their
        parts; if only some have, its outcome is unknown. The order is kept in each shard.

        Messages without a key go to another shard if the first shard certainly hasn't accepted
        them. With a pair inside, an outage doesn't move them, since the pair has diverted them or
        has found no other way.
        """
        parts = self._parts(queue, entity, batches)
        verdicts = await self._send_parts(send, queue, parts)
        while moving := [
            index
            for index, part in enumerate(parts)
            if part.may_move and self._may_move(verdicts[index]) and self._move(queue, part)
        ]:
            found = await self._send_parts(send, queue, [parts[index] for index in moving])
            for index, verdict in zip(moving, found, strict=True):
                verdicts[index] = verdict
        return _joined(parts, verdicts, len(batches))

    def in_primary(self, queue: ShardedQueue, work: TransactedSend) -> Iterable[TransactedSend]:
        """
        The send of a transaction, by shard. Messages without a key go to an active shard in the
        primary, if there is one and their order isn't kept.
        """
        at_home = [number for number in queue.active if queue.rule.is_in_primary(number)]
        for part in self._parts(queue, work.entity, [work.messages]):
            if part.may_move and part.shard not in at_home and at_home:
                part.shard = at_home[0]
            yield TransactedSend(queue.path.shard(part.shard), part.messages)

    def keyless_shard(self, queue: ShardedQueue, entity: EntityPath) -> int:
        """The shard for the next messages without a key."""
        return queue.active[0] if self.keeps_order(entity) else self._turn_of(queue)

    def _parts(
        self, queue: ShardedQueue, entity: EntityPath, batches: Batches
    ) -> list[_ShardBatch]:
        parts: list[_ShardBatch] = []
        ordered = self.keeps_order(entity)
        for number, batch in enumerate(batches):
            keys = [key_of(message) for message in batch]
            keyless = queue.active[0]
            if not ordered and (None in keys or not batch):
                keyless = self._turn_of(queue)
            of_shard: dict[int, _ShardBatch] = {}
            for message, key in zip(batch, keys, strict=True):
                shard = keyless if key is None else queue.shard_of(key)
                part = of_shard.setdefault(
                    shard, _ShardBatch(number, shard, [], may_move=not ordered)
                )
                part.messages.append(message)
                part.may_move &= key is None
            parts += of_shard.values() or [_ShardBatch(number, keyless, [], may_move=False)]
        return parts

    def _move(self, queue: ShardedQueue, part: _ShardBatch) -> bool:
        """Choose another shard for the part; False: all have refused it."""
        part.tried.add(part.shard)
        shard = self._best(queue, part.tried)
        if shard is None:
            return False
        part.shard = shard
        return True

    def _turn_of(self, queue: ShardedQueue) -> int:
        """The shard whose turn it is to get messages without a key."""
        best = self._best(queue, ())
        assert best is not None, "a sharded queue has an active shard"
        return best

    def _best(self, queue: ShardedQueue, tried: Collection[int]) -> int | None:
        """The next shard that wasn't tried, preferably one that works; None: all were tried."""
        first = next(self._next.setdefault(queue.path.key, count()))
        size = len(queue.active)
        turns = [queue.active[(first + step) % size] for step in range(size)]
        left = [number for number in turns if number not in tried]
        now = trio.current_time()
        for number in left:
            path = queue.path.shard(number)
            until, _ = self._backoffs.get(path.key, (0.0, 0))
            if until <= now and self.is_healthy(path):
                return number
        return next(iter(left), None)

    def _may_move(self, verdict: object) -> bool:
        if not isinstance(verdict, BrokerError) or verdict.outcome is not Outcome.NOT_SENT:
            return False
        if isinstance(verdict, _OWN_FAULTS):
            return True
        return not self.has_other_ways and (verdict.counts_as_outage or isinstance(verdict, Busy))

    async def _send_parts(
        self, send: SendEach[T], queue: ShardedQueue, parts: Sequence[_ShardBatch]
    ) -> list[T | BrokerError]:
        """Send to all shards at once; return the verdict of each part."""
        of_shard: dict[int, list[int]] = {}
        for index, part in enumerate(parts):
            of_shard.setdefault(part.shard, []).append(index)
        verdicts: dict[int, T | BrokerError] = {}
        turns = {shard: self._turns.acquire(queue.path.shard(shard).key) for shard in of_shard}

        async def send_in_turn(shard: int, indexes: Sequence[int]) -> None:
            path = queue.path.shard(shard)
            with turns[shard] as turn:
                await turn.come()
                turn.release()  # the shard keeps the order from here on
                found = await send(path, [parts[index].messages for index in indexes])
            verdicts.update(zip(indexes, found, strict=True))
            self._record(path, found)

        if len(of_shard) == 1:
            [(shard, indexes)] = of_shard.items()
            await send_in_turn(shard, indexes)
        else:
            try:
                async with trio.open_nursery() as nursery:
                    for shard, indexes in of_shard.items():
                        nursery.start_soon(send_in_turn, shard, indexes)
            finally:
                for turn in turns.values():  # of tasks that were cancelled before they began
                    turn.release()
        return [verdicts[index] for index in range(len(parts))]

    def _record(self, shard: EntityPath, verdicts: Sequence[object]) -> None:
        """Let a failed shard back off; end the backoff of a shard that accepted a send."""
        errors = [each for each in verdicts if isinstance(each, BrokerError)]
        if len(errors) < len(verdicts):
            self._backoffs.pop(shard.key, None)
        elif any(_is_trouble(each) for each in errors):
            _, failures = self._backoffs.get(shard.key, (0.0, 0))
            until = trio.current_time() + BACKOFF.delay(failures + 1, self.rng)
            self._backoffs[shard.key] = (until, failures + 1)


def _is_trouble(error: BrokerError) -> bool:
    return error.counts_as_outage or isinstance(error, (Busy, *_OWN_FAULTS))


def _joined(
    parts: Sequence[_ShardBatch], verdicts: Sequence[T | BrokerError], batches: int
) -> Sequence[T | BrokerError]:
    """The verdict of each batch, from those of its parts."""
    by_batch: list[list[T | BrokerError]] = [[] for _ in range(batches)]
    for part, verdict in zip(parts, verdicts, strict=True):
        by_batch[part.batch].append(verdict)
    return [_one_verdict(each) for each in by_batch]


def _one_verdict(verdicts: Sequence[T | BrokerError]) -> T | BrokerError:
    errors = [each for each in verdicts if isinstance(each, BrokerError)]
    accepted = [each for each in verdicts if not isinstance(each, BrokerError)]
    if not errors:
        away = [each for each in accepted if each not in (None, AcceptedBy.PRIMARY)]
        return away[0] if away else accepted[0]
    unknown = [each for each in errors if each.outcome is Outcome.UNKNOWN]
    if accepted:
        return OutcomeUnknown(
            f"{len(accepted)} of {len(verdicts)} shards have accepted their messages, another"
            f" hasn't: {errors[0]}"
        )
    return unknown[0] if unknown else errors[0]
