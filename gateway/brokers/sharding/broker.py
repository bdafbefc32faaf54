"""
Presents several queues, the shards, as one queue.

    send       by session id or partition key, else by turns
    receive    from all shards; settlements lead back by the sequence number (`sequence.py`)
    inspect    the counts of all shards together

It is around a pair, not inside: so each shard is an entity of the pair, which fails over by itself,
and whose diverted messages return to it. `places.py` is inside the pair, and leads to the namespace
that has the shard.

    clients ──▶ ShardedBroker ──▶ pair ──▶ ShardPlaces ─┬──▶ primary
               orders             orders               └──▶ another namespace
                                  orders/x-pairgate-shard/1
"""

import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, ClassVar, Final, TypeVar

import attrs
import trio

from gateway.brokers.sharding.deleting import ShardedDeletion, delete_in_session
from gateway.brokers.sharding.receiver import open_sharded_receiver
from gateway.brokers.sharding.sequence import by_shard, inward_number, outward, outward_number
from gateway.brokers.sharding.sessions import list_sharded_sessions, open_sharded_session
from gateway.brokers.sharding.table import ShardedQueue, ShardTable, key_of
from gateway.capabilities import (
    Batches,
    BoundsSends,
    DeletesByVersion,
    DeletesMessages,
    Peeks,
    Schedules,
    SendEach,
    SessionReceiver,
    Sessions,
    TransactedSend,
    TransactedWork,
    Transacts,
    Updates,
    Verifies,
)
from gateway.changes import Turns
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    MessageNotFound,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    QuotaExceeded,
)
from gateway.domain.message import AcceptedBy, Delivery, Message, ReceiveMode
from gateway.forwarding_broker import ForwardingBroker, SendWrapper
from gateway.offering import offered, required
from gateway.ports import Broker, Receiver, WallClock

T = TypeVar("T")

REST: Final = Backoff(first=1.0, cap=30.0)  # of a shard that failed, from sends without a key
# Of one shard alone: another may accept the message, and answers as soon.
_OWN_FAULTS: Final = (EntityNotFound, EntityDisabled, QuotaExceeded)
_COUNTS: Final = (
    "active",
    "dead_lettered",
    "scheduled",
    "deferred",
    "transfer_dead_lettered",
    "size",
)
_MOST_LISTED: Final = 1000  # queues of one page


@attrs.define(eq=False)
class _Part:
    """The messages of one batch that go to one shard."""

    batch: int
    shard: int
    messages: list[Message]
    may_move: bool  # no message has a key, and their order isn't kept
    tried: set[int] = attrs.field(factory=set)  # shards that have refused them


def always(_shard: EntityPath) -> bool:
    return True


def never(_queue: EntityPath) -> bool:
    return False


@attrs.define(eq=False, kw_only=True)
class ShardedBroker(SendWrapper):
    """A `Broker` whose clients see each sharded queue as one."""

    broker: Broker
    table: ShardTable
    rng: random.Random
    clock: WallClock
    # Whether the shard is better than others for messages without a key: it isn't failed over.
    is_healthy: Callable[[EntityPath], bool] = always
    keeps_order: Callable[[EntityPath], bool] = never  # of messages without a key
    _turns: Turns = attrs.field(factory=Turns, init=False)
    _next: dict[str, "count[int]"] = attrs.field(factory=dict, init=False)  # by queue
    # Shards that failed: until when they rest, and how often they failed in a row.
    _resting: dict[str, tuple[float, int]] = attrs.field(factory=dict, init=False)

    forwards: ClassVar[frozenset[type]] = ForwardingBroker.forwards | {BoundsSends}

    @property
    def inner(self) -> Broker:
        return self.broker

    # --- sending

    async def wrap_sends(
        self, send: SendEach[T], entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        """
        Send each message to its shard. The messages of a batch that have no key stay together.

        A batch whose messages go to several shards is accepted when all have accepted it; if only
        some have, its outcome is unknown. The order is kept in each shard.

        Messages without a key go to another shard if theirs certainly hasn't accepted them. Inside
        a pair they don't after an outage, since the pair has found another way, or there is none.
        """
        queue = self.table.find(entity)
        if queue is None or entity.is_dead_letter:
            return await send(entity, batches)
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

    def _parts(self, queue: ShardedQueue, entity: EntityPath, batches: Batches) -> list[_Part]:
        parts: list[_Part] = []
        ordered = self.keeps_order(entity)
        for number, batch in enumerate(batches):
            keys = [key_of(message) for message in batch]
            keyless = queue.active[0]
            if not ordered and (None in keys or not batch):
                keyless = self._turn_of(queue)
            of_shard: dict[int, _Part] = {}
            for message, key in zip(batch, keys, strict=True):
                shard = keyless if key is None else queue.shard_of(key)
                part = of_shard.setdefault(shard, _Part(number, shard, [], may_move=not ordered))
                part.messages.append(message)
                part.may_move &= key is None
            parts += of_shard.values() or [_Part(number, keyless, [], may_move=False)]
        return parts

    def _move(self, queue: ShardedQueue, part: _Part) -> bool:
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
            until, _ = self._resting.get(path.key, (0.0, 0))
            if until <= now and self.is_healthy(path):
                return number
        return next(iter(left), None)

    def _may_move(self, verdict: object) -> bool:
        if not isinstance(verdict, BrokerError) or verdict.outcome is not Outcome.NOT_SENT:
            return False
        if isinstance(verdict, _OWN_FAULTS):
            return True
        has_own_way = offered(self.broker, BoundsSends) is not None
        return not has_own_way and (verdict.counts_as_outage or isinstance(verdict, Busy))

    async def _send_parts(
        self, send: SendEach[T], queue: ShardedQueue, parts: Sequence[_Part]
    ) -> list[T | BrokerError]:
        """Send to all shards at once; return the verdict of each part."""
        of_shard: dict[int, list[int]] = {}
        for index, part in enumerate(parts):
            of_shard.setdefault(part.shard, []).append(index)
        verdicts: dict[int, T | BrokerError] = {}
        turns = {shard: self._turns.take(queue.path.shard(shard).key) for shard in of_shard}

        async def send_in_turn(shard: int, indexes: Sequence[int]) -> None:
            path = queue.path.shard(shard)
            with turns[shard] as turn:
                await turn.come()
                turn.end()  # the shard keeps the order from here on
                found = await send(path, [parts[index].messages for index in indexes])
            verdicts.update(zip(indexes, found, strict=True))
            self._note(path, found)

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
                    turn.end()
        return [verdicts[index] for index in range(len(parts))]

    def _note(self, shard: EntityPath, verdicts: Sequence[object]) -> None:
        """Let a shard rest that failed; one that accepted a send is well."""
        errors = [each for each in verdicts if isinstance(each, BrokerError)]
        if len(errors) < len(verdicts):
            self._resting.pop(shard.key, None)
        elif any(_is_trouble(each) for each in errors):
            _, failures = self._resting.get(shard.key, (0.0, 0))
            until = trio.current_time() + REST.delay(failures + 1, self.rng)
            self._resting[shard.key] = (until, failures + 1)

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """
        As `Schedules.schedule`. Messages of several shards aren't scheduled in one step: after an
        error, the outcome is unknown if a shard has accepted some of them.
        """
        queue = self.table.find(entity)
        if queue is None or entity.is_dead_letter:
            return await required(self.broker, Schedules).schedule(entity, messages)
        keyless = queue.active[0] if self.keeps_order(entity) else self._turn_of(queue)
        of_shard: dict[int, list[int]] = {}
        for index, message in enumerate(messages):
            of_shard.setdefault(queue.shard_for(message, keyless), []).append(index)
        numbers: dict[int, int] = {}
        for shard, indexes in of_shard.items():
            try:
                found = await self._schedule_in(queue, shard, [messages[i] for i in indexes])
            except BrokerError as error:
                if numbers and error.outcome is Outcome.NOT_SENT:
                    text = f"{len(numbers)} of {len(messages)} messages were scheduled: {error}"
                    raise OutcomeUnknown(text) from error
                raise
            numbers.update(zip(indexes, found, strict=True))
        return [numbers[index] for index in range(len(messages))]

    async def _schedule_in(
        self, queue: ShardedQueue, shard: int, messages: Sequence[Message]
    ) -> Sequence[int]:
        """As `schedule`, in one shard. Messages without a number for the client are cancelled."""
        schedules, path = required(self.broker, Schedules), queue.path.shard(shard)
        found = await schedules.schedule(path, messages)
        try:
            return [outward_number(number, shard) for number in found]
        except NotSupported as error:
            refusal = error
        try:
            await schedules.cancel_scheduled(path, found)
        except BrokerError as error:
            text = f"{path}: the messages were scheduled, and not cancelled: {error}"
            raise OutcomeUnknown(text) from error
        raise refusal

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """
        As `Schedules.cancel_scheduled`; after an error, the messages of other shards may be
        removed.
        """
        schedules = required(self.broker, Schedules)
        queue = self.table.find(entity)
        if queue is None:
            await schedules.cancel_scheduled(entity, sequence_numbers)
            return
        in_shards = by_shard(sequence_numbers)
        for shard in in_shards:
            if shard not in queue.numbers:
                raise MessageNotFound(f"{entity}: there is no shard {shard}, as a number says")
        for shard, numbers in in_shards.items():
            await schedules.cancel_scheduled(entity.shard(shard), numbers)

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`."""
        await required(self.broker, Transacts).check_transactions()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """As `Transacts.commit`. Messages without a key go to a shard in the primary."""
        spread: list[TransactedWork] = []
        for each in work:
            queue = None
            if isinstance(each, TransactedSend) and not each.entity.is_dead_letter:
                queue = self.table.find(each.entity)
            if queue is None or not isinstance(each, TransactedSend):
                spread.append(each)
                continue
            for part in self._parts(queue, each.entity, [each.messages]):
                at_home = [n for n in queue.active if queue.rule.is_in_primary(n)]
                if part.may_move and part.shard not in at_home and at_home:
                    part.shard = at_home[0]
                spread.append(TransactedSend(queue.path.shard(part.shard), part.messages))
        await required(self.broker, Transacts).commit(spread)

    # --- receiving

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        """As `Broker.open_receiver`: a `ShardedReceiver`, if the queue is sharded."""
        if self.table.find(entity) is None:
            return self.broker.open_receiver(entity, mode)
        return open_sharded_receiver(
            broker=self.broker,
            entity=entity,
            mode=mode,
            table=self.table,
            clock=self.clock,
            rng=self.rng,
        )

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        """
        As `Sessions.open_session`. Without an id, a session of any shard is locked; the order of
        their oldest messages holds in each shard.
        """
        sessions = required(self.broker, Sessions)
        queue = self.table.find(entity)
        if queue is None:
            return sessions.open_session(entity, session_id, mode)
        return open_sharded_session(sessions, queue, entity, session_id, mode)

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """As `Sessions.list_sessions`. With `updated_since`, sorted by date in each shard."""
        sessions = required(self.broker, Sessions)
        queue = self.table.find(entity)
        if queue is None:
            return await sessions.list_sessions(
                entity, updated_since=updated_since, skip=skip, top=top
            )
        return await list_sharded_sessions(sessions, queue, entity, updated_since, skip, top)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`: one shard after the other."""
        peeks = required(self.broker, Peeks)
        queue = self.table.find(entity)
        if queue is None:
            return await peeks.peek(entity, from_sequence=from_sequence, limit=limit)
        first, number = inward_number(max(from_sequence, 0))
        found: list[Delivery] = []
        for shard in queue.numbers[first:]:
            if len(found) >= limit:
                break
            start = number if shard == first else 0
            left = limit - len(found)
            peeked = await peeks.peek(entity.shard(shard), from_sequence=start, limit=left)
            found += [outward(each, shard) for each in peeked]
        return found

    async def delete_messages(
        self,
        entity: EntityPath,
        limit: int,
        *,
        before: datetime | None = None,
        session_id: str | None = None,
    ) -> int:
        """
        As `DeletesMessages.delete_messages`, of all shards: the oldest messages of each. After an
        error, the outcome is unknown if messages of another shard were deleted.
        """
        deletes = required(self.broker, DeletesMessages)
        delete = partial(deletes.delete_messages, before=before)
        queue = self.table.find(entity)
        if queue is None:
            return await delete(entity, limit, session_id=session_id)
        if session_id is not None:
            return await delete_in_session(
                queue, entity, session_id, lambda shard: delete(shard, limit, session_id=session_id)
            )
        return await ShardedDeletion(queue=queue, entity=entity, limit=limit, delete=delete).run()

    # --- queues

    async def probe(self, entity: EntityPath) -> None:
        """As `Broker.probe`, of all shards that get messages."""
        queue = self.table.find(entity)
        if queue is None:
            await self.broker.probe(entity)
            return
        for number in queue.active:
            await self.broker.probe(entity.shard(number))

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """
        As `Broker.inspect`: the properties of the first shard, and the counts of all. A count that
        one of them doesn't report is unknown.
        """
        queue = self.table.find(entity)
        if queue is None:
            return await self.broker.inspect(entity)
        return summed(entity, [await self.broker.inspect(s) for s in _paths(queue, entity)])

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """As `Broker.list_queues`; shards are counted with their queue."""
        found: list[EntityInfo] = []
        seen, size = 0, min(_MOST_LISTED, skip + top)
        while size and len(found) < skip + top:
            page = await self.broker.list_queues(prefix, skip=seen, top=size)
            found += [info for info in page if not self._is_further_shard(info.path)]
            seen += len(page)
            if len(page) < size:
                break
        listed = []
        for info in found[skip : skip + top]:
            whole = info
            if self.table.find(info.path) is not None:
                with suppress(EntityNotFound):  # a shard is missing
                    whole = await self.inspect(info.path)
            listed.append(whole)
        return listed

    def _is_further_shard(self, path: EntityPath) -> bool:
        number = path.shard_number
        queue = self.table.find(path.whole) if number else None
        return queue is not None and number in queue.numbers

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """As `Broker.create_queue`: creates all shards. It exists if none of them is missing."""
        queue = self.table.find(entity)
        if queue is None:
            return await self.broker.create_queue(entity, properties)
        is_new = False
        for path in reversed(_paths(queue, entity)):  # the first stands for the queue
            with suppress(EntityExists):
                await self.broker.create_queue(path, properties)
                is_new = True
        if not is_new:
            raise EntityExists(f"{entity}: a queue of this name exists already")
        return await self.inspect(entity)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """As `Updates.update_queue`; the version is that of the first shard."""
        update = required(self.broker, Updates).update_queue
        queue = self.table.find(entity)
        if queue is None:
            return await update(entity, properties, if_version=if_version)
        first, *others = _paths(queue, entity)
        await update(first, properties, if_version=if_version)
        for path in others:
            await update(path, properties)
        return await self.inspect(entity)

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`: deletes all shards."""
        queue = self.table.find(entity)
        if queue is None:
            await self.broker.delete_queue(entity)
            return
        await self._delete(queue, entity, self.broker.delete_queue(entity))

    async def delete_version(self, path: EntityPath, version: int) -> None:
        """As `DeletesByVersion.delete_version`; the version is that of the first shard."""
        deletes = required(self.broker, DeletesByVersion)
        queue = self.table.find(path)
        if queue is None:
            await deletes.delete_version(path, version)
            return
        await self._delete(queue, path, deletes.delete_version(path, version))

    async def _delete(
        self, queue: ShardedQueue, entity: EntityPath, delete_first: Awaitable[None]
    ) -> None:
        """
        Delete all shards. A queue without its first shard exists as long as another one does: an
        earlier deletion has failed halfway.
        """
        missing: EntityNotFound | None = None
        try:
            await delete_first
        except EntityNotFound as error:
            missing = error
        for path in _paths(queue, entity)[1:]:
            try:
                await self.broker.delete_queue(path)
            except EntityNotFound:
                continue
            except BrokerError as error:
                if missing is None and error.outcome is Outcome.NOT_SENT:
                    raise OutcomeUnknown(f"only some shards were deleted, then: {error}") from error
                raise
            missing = None
        if missing is not None:
            raise missing

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`, of all shards."""
        verifies = required(self.broker, Verifies)
        queue = self.table.find(entity)
        if queue is None:
            return await verifies.verify(entity, is_backlog=is_backlog)
        found: list[str] = []
        for path in _paths(queue, entity):
            found += await verifies.verify(path, is_backlog=is_backlog)
        return found


def summed(entity: EntityPath, infos: Sequence[EntityInfo]) -> EntityInfo:
    """The facts of the queue that is made of these shards."""
    counts: dict[str, Any] = {}
    for name in _COUNTS:
        each = [getattr(info, name) for info in infos]
        counts[name] = None if None in each else sum(each)
    sizes = [info.max_message_size for info in infos if info.max_message_size is not None]
    return attrs.evolve(
        infos[0],
        path=entity,
        max_message_size=min(sizes, default=None),
        locked_here=sum(info.locked_here for info in infos),
        other_consumers=max(info.other_consumers for info in infos),
        lag=max(info.lag for info in infos),
        accessed=max((each.accessed for each in infos if each.accessed), default=None),
        **counts,
    )


def _is_trouble(error: BrokerError) -> bool:
    return error.counts_as_outage or isinstance(error, (Busy, *_OWN_FAULTS))


def _paths(queue: ShardedQueue, entity: EntityPath) -> list[EntityPath]:
    return [entity.shard(number) for number in queue.numbers]


def _joined(
    parts: Sequence[_Part], verdicts: Sequence[T | BrokerError], batches: int
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
