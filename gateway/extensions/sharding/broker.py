"""
Presents several queues, the shards, as one queue.

    send       by session id or partition key, else by turns
    receive    from all shards; settlements lead back by the sequence number (`brokers/joined`)
    inspect    the counts of all shards together

The sharded broker is around a pair, not inside: so each shard is an entity of the pair, which fails
over by itself, and whose diverted messages return to it. `places.py` is inside the pair, and leads
to the namespace that has the shard.

    clients ──▶ ShardedBroker ──▶ pair ──▶ ShardPlaces ─┬──▶ primary
               orders             orders               └──▶ another namespace
                                  orders/x-pairgate-shard/1
"""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from typing import ClassVar, TypeVar

import attrs

from gateway.brokers.joined.receiver import open_joined_receiver
from gateway.brokers.joined.sequence import inward_number, outward
from gateway.capabilities import (
    Batches,
    BoundsSends,
    Clears,
    DeletesByVersion,
    DeletesMessages,
    EnlistsSchedules,
    Peeks,
    PeeksState,
    Schedules,
    SendEach,
    SessionReceiver,
    Sessions,
    TransactedCancellation,
    TransactedSend,
    TransactedWork,
    Transacts,
    Updates,
    Verifies,
    described,
)
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, EntityNotFound, NotSupported, OutcomeUnknown
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.extensions.sharding.deleting import ShardedDeletion, delete_in_session
from gateway.extensions.sharding.queues import (
    create_shards,
    delete_shards,
    describe_shards,
    inspect_shards,
    list_whole_queues,
    update_shards,
    verify_shards,
)
from gateway.extensions.sharding.receiver import ShardsOfQueue
from gateway.extensions.sharding.scheduling import cancel_in_shards, schedule_in_shards
from gateway.extensions.sharding.sending import ShardedSending
from gateway.extensions.sharding.sessions import (
    list_sharded_sessions,
    open_sharded_session,
    shard_with,
)
from gateway.extensions.sharding.table import ShardTable
from gateway.forwarding_broker import ForwardingBroker, SendWrapper
from gateway.offering import offered, required
from gateway.ports import Broker, Receiver, WallClock

T = TypeVar("T")


def always(_shard: EntityPath) -> bool:
    return True


def never(_queue: EntityPath) -> bool:
    return False


@attrs.define(eq=False, kw_only=True)
class ShardedBroker(SendWrapper):
    """A `Broker` whose clients see each sharded queue as a single queue."""

    broker: Broker
    table: ShardTable
    rng: random.Random
    clock: WallClock
    # True if the shard isn't failed over, so that it is preferred for messages without a key.
    is_healthy: Callable[[EntityPath], bool] = always
    keeps_order: Callable[[EntityPath], bool] = never  # of messages without a key
    _sending: ShardedSending = attrs.field(init=False)

    forwards: ClassVar[frozenset[type]] = ForwardingBroker.forwards | {BoundsSends}

    @_sending.default
    def _shards_sending(self) -> ShardedSending:
        return ShardedSending(
            rng=self.rng,
            is_healthy=self.is_healthy,
            keeps_order=self.keeps_order,
            has_other_ways=offered(self.broker, BoundsSends) is not None,
        )

    @property
    def inner(self) -> Broker:
        return self.broker

    # --- sending

    async def wrap_sends(
        self, send: SendEach[T], entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        """As `SendWrapper.wrap_sends`, and as `ShardedSending.send`."""
        queue = self.table.find(entity)
        if queue is None or entity.is_dead_letter:
            return await send(entity, batches)
        return await self._sending.send(send, queue, entity, batches)

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """As `Schedules.schedule`, and as `schedule_in_shards`."""
        schedules, queue = required(self.broker, Schedules), self.table.find(entity)
        if queue is None or entity.is_dead_letter:
            return await schedules.schedule(entity, messages)
        keyless = self._sending.keyless_shard(queue, entity)
        return await schedule_in_shards(schedules, queue, messages, keyless)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`, and as `cancel_in_shards`."""
        schedules, queue = required(self.broker, Schedules), self.table.find(entity)
        if queue is None:
            await schedules.cancel_scheduled(entity, sequence_numbers)
        else:
            await cancel_in_shards(schedules, queue, entity, sequence_numbers)

    async def enlist_schedule(
        self, entity: EntityPath, messages: Sequence[Message]
    ) -> TransactedSend:
        """As `EnlistsSchedules.enlist_schedule`, for a queue that isn't sharded."""
        self._check_whole(entity)
        return await required(self.broker, EnlistsSchedules).enlist_schedule(entity, messages)

    def enlist_cancellation(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> TransactedCancellation:
        """As `EnlistsSchedules.enlist_cancellation`, for a queue that isn't sharded."""
        self._check_whole(entity)
        enlists = required(self.broker, EnlistsSchedules)
        return enlists.enlist_cancellation(entity, sequence_numbers)

    def _check_whole(self, entity: EntityPath) -> None:
        if self.table.find(entity) is not None:
            raise NotSupported(
                f"{entity} is sharded: no transaction schedules or cancels its messages"
            )

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`."""
        await required(self.broker, Transacts).check_transactions()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """As `Transacts.commit`, with the shards of `ShardedSending.in_primary`."""
        spread: list[TransactedWork] = []
        for each in work:
            queue = None
            if isinstance(each, TransactedSend) and not each.entity.is_dead_letter:
                queue = self.table.find(each.entity)
            if queue is None or not isinstance(each, TransactedSend):
                spread.append(each)
            else:
                spread += self._sending.in_primary(queue, each)
        await required(self.broker, Transacts).commit(spread)

    # --- receiving

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        """As `Broker.open_receiver`: a `JoinedReceiver` of its shards, if the queue is sharded."""
        if self.table.find(entity) is None:
            return self.broker.open_receiver(entity, mode)
        shards = ShardsOfQueue(broker=self.broker, entity=entity, table=self.table, rng=self.rng)
        return open_joined_receiver(shards, entity, mode, clock=self.clock, rng=self.rng)

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

    async def peek_state(self, entity: EntityPath, session_id: str) -> bytes | None:
        """As `PeeksState.peek_state`, of the shard that has the session."""
        peeks, queue = required(self.broker, PeeksState), self.table.find(entity)
        if queue is not None:
            sessions = required(self.broker, Sessions)
            entity = entity.shard(await shard_with(sessions, queue, entity, session_id))
        return await peeks.peek_state(entity, session_id)

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
            while (left := limit - len(found)) > 0:  # large messages are shown in several steps
                peeked = await peeks.peek(entity.shard(shard), from_sequence=start, limit=left)
                if not peeked:
                    break
                found += [outward(each, shard) for each in peeked]
                start = peeked[-1].sequence_number + 1
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

    async def clear_queue(self, entity: EntityPath) -> None:
        """
        As `Clears.clear_queue`, one shard after the other. After an error, the outcome is unknown
        if another shard was cleared.
        """
        clears = required(self.broker, Clears)
        queue = self.table.find(entity)
        if queue is None:
            await clears.clear_queue(entity)
            return
        cleared = 0
        for number in queue.numbers:
            try:
                await clears.clear_queue(entity.shard(number))
            except BrokerError as error:
                if isinstance(error, EntityNotFound) and number in queue.joining:
                    continue  # the shard doesn't exist yet
                if not cleared:
                    raise
                raise OutcomeUnknown(
                    f"{entity}: {cleared} shards were cleared; shard {number}: {error}"
                ) from error
            cleared += 1

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
        """As `Broker.inspect`, and as `inspect_shards`."""
        queue = self.table.find(entity)
        if queue is None:
            return await self.broker.inspect(entity)
        return await inspect_shards(self.broker, queue, entity)

    async def describe(self, entity: EntityPath) -> EntityInfo:
        """As `Describes.describe`, and as `describe_shards`."""
        queue = self.table.find(entity)
        if queue is None:
            return await described(self.broker, entity)
        return await describe_shards(self.broker, queue, entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """As `Broker.list_queues`; shards are counted with their queue."""
        return await list_whole_queues(self.broker, self.table, prefix, skip, top)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """As `Broker.create_queue`, and as `create_shards`."""
        queue = self.table.find(entity)
        if queue is None:
            return await self.broker.create_queue(entity, properties)
        return await create_shards(self.broker, queue, entity, properties)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """As `Updates.update_queue`, and as `update_shards`."""
        queue = self.table.find(entity)
        if queue is None:
            updates = required(self.broker, Updates)
            return await updates.update_queue(entity, properties, if_version=if_version)
        return await update_shards(self.broker, queue, entity, properties, if_version)

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`, and as `delete_shards`."""
        queue = self.table.find(entity)
        if queue is None:
            await self.broker.delete_queue(entity)
            return
        await delete_shards(self.broker, queue, entity, self.broker.delete_queue(entity))

    async def delete_version(self, path: EntityPath, version: int) -> None:
        """As `DeletesByVersion.delete_version`; the version is that of the first shard."""
        deletes = required(self.broker, DeletesByVersion)
        queue = self.table.find(path)
        if queue is None:
            await deletes.delete_version(path, version)
            return
        await delete_shards(self.broker, queue, path, deletes.delete_version(path, version))

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`, of all shards."""
        verifies = required(self.broker, Verifies)
        queue = self.table.find(entity)
        if queue is None:
            return await verifies.verify(entity, is_backlog=is_backlog)
        return await verify_shards(verifies, queue, entity, is_backlog)
