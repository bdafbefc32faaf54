"""
Leads each shard to the namespace that has it.

A shard that gets no more messages, because it drains or isn't configured any more, gets none from a
syphon either: those go to the shard that their keys lead to now.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime

import attrs

from gateway.capabilities import (
    Batches,
    Clears,
    DeletesByVersion,
    DeletesMessages,
    Diverts,
    EnlistsSchedules,
    FailsFast,
    Peeks,
    PeeksState,
    Schedules,
    SessionReceiver,
    Sessions,
    TransactedCancellation,
    TransactedSend,
    TransactedWork,
    Transacts,
    Updates,
    Verifies,
    described,
    outcome_of,
    send_each,
    sends_in,
)
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.message import AcceptedBy, Delivery, Message, ReceiveMode
from gateway.extensions.sharding.halfway import halfway
from gateway.extensions.sharding.table import ShardTable
from gateway.forwarding_broker import ForwardingBroker
from gateway.offering import required
from gateway.ports import Broker, Receiver


def elsewhere(shard: EntityPath) -> NotSupported:
    return NotSupported(
        f"{shard} is in another namespace than the first shard: a transaction is one namespace's"
    )


@attrs.frozen(eq=False, kw_only=True)
class ShardPlaces(ForwardingBroker):
    """
    The namespace `home`, with those shards of its queues that are in `others`, by their names. It
    offers the capabilities of `home`. An operation that the namespace of a shard lacks is refused
    there.
    """

    home: Broker
    others: Mapping[str, Broker]
    table: ShardTable

    @property
    def inner(self) -> Broker:
        return self.home

    def of(self, entity: EntityPath) -> Broker:
        """The namespace that has the entity."""
        if not self.others:
            return self.home
        whole = entity.whole
        queue = self.table.find(whole)
        name = None if queue is None else queue.rule.namespace_of(entity.shard_number)
        return self.home if name is None else self.others.get(name, self.home)

    def _is_closed(self, entity: EntityPath) -> bool:
        """True if it is a shard that gets no more messages."""
        queue = self.table.find(entity.whole)
        if queue is None or entity.is_dead_letter:
            return False
        number = entity.shard_number
        return number not in queue.numbers or number in queue.rule.drain

    # --- sending

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        if self._is_closed(entity):
            await self._send_elsewhere(entity, messages)
            return
        await self.of(entity).send(entity, messages)

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `FailsFast.try_send`."""
        if self._is_closed(entity):
            await self._send_elsewhere(entity, messages)
            return
        await required(self.of(entity), FailsFast).try_send(entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """As `Diverts.send_diverting`."""
        if self._is_closed(entity):
            await self._send_elsewhere(entity, messages)
            return AcceptedBy.PRIMARY
        return await required(self.of(entity), Diverts).send_diverting(entity, messages)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`."""
        if not self._is_closed(entity):
            return await send_each(self.of(entity), entity, batches, fails_fast=fails_fast)
        return [await outcome_of(self._send_elsewhere, entity, batch) for batch in batches]

    async def _send_elsewhere(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        Send each message to the shard that its key leads to now; without a key, to the first active
        shard.
        """
        queue = self.table.find(entity.whole)
        assert queue is not None, "it was found to be closed"
        by_shard: dict[int, list[Message]] = {}
        for message in messages:
            by_shard.setdefault(queue.shard_for(message, queue.active[0]), []).append(message)
        sent = 0
        for shard, part in by_shard.items():
            path = queue.path.shard(shard)
            with halfway(sent, f"{sent} of {len(messages)} messages were accepted, then"):
                await self.of(path).send(path, part)
            sent += len(part)

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """As `Schedules.schedule`."""
        return await required(self.of(entity), Schedules).schedule(entity, messages)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`."""
        schedules = required(self.of(entity), Schedules)
        await schedules.cancel_scheduled(entity, sequence_numbers)

    async def enlist_schedule(
        self, entity: EntityPath, messages: Sequence[Message]
    ) -> TransactedSend:
        """As `EnlistsSchedules.enlist_schedule`: the broker of shards lets no shard's through."""
        return await required(self.of(entity), EnlistsSchedules).enlist_schedule(entity, messages)

    def enlist_cancellation(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> TransactedCancellation:
        """As `EnlistsSchedules.enlist_cancellation`, and as `enlist_schedule`."""
        enlists = required(self.of(entity), EnlistsSchedules)
        return enlists.enlist_cancellation(entity, sequence_numbers)

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`, of the primary."""
        await required(self.home, Transacts).check_transactions()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """
        As `Transacts.commit`, on the primary.

        Raises:
            NotSupported: a message is for a shard in another namespace; nothing was done.
        """
        for each in sends_in(work):
            if self.of(each.entity) is not self.home:
                raise elsewhere(each.entity)
        await required(self.home, Transacts).commit(work)

    # --- all else

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self.of(entity).open_receiver(entity, mode)

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        """As `Sessions.open_session`."""
        return required(self.of(entity), Sessions).open_session(entity, session_id, mode)

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """As `Sessions.list_sessions`."""
        sessions = required(self.of(entity), Sessions)
        return await sessions.list_sessions(entity, updated_since=updated_since, skip=skip, top=top)

    async def peek_state(self, entity: EntityPath, session_id: str) -> bytes | None:
        """As `PeeksState.peek_state`."""
        return await required(self.of(entity), PeeksState).peek_state(entity, session_id)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`."""
        peeks = required(self.of(entity), Peeks)
        return await peeks.peek(entity, from_sequence=from_sequence, limit=limit)

    async def delete_messages(
        self,
        entity: EntityPath,
        limit: int,
        *,
        before: datetime | None = None,
        session_id: str | None = None,
    ) -> int:
        """As `DeletesMessages.delete_messages`."""
        deletes = required(self.of(entity), DeletesMessages)
        return await deletes.delete_messages(entity, limit, before=before, session_id=session_id)

    async def clear_queue(self, entity: EntityPath) -> None:
        """As `Clears.clear_queue`."""
        await required(self.of(entity), Clears).clear_queue(entity)

    async def probe(self, entity: EntityPath) -> None:
        await self.of(entity).probe(entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.of(entity).inspect(entity)

    async def describe(self, entity: EntityPath) -> EntityInfo:
        """As `Describes.describe`."""
        return await described(self.of(entity), entity)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        return await self.of(entity).create_queue(entity, properties)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """As `Updates.update_queue`."""
        updates = required(self.of(entity), Updates)
        return await updates.update_queue(entity, properties, if_version=if_version)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.of(entity).delete_queue(entity)

    async def delete_version(self, path: EntityPath, version: int) -> None:
        """As `DeletesByVersion.delete_version`."""
        await required(self.of(path), DeletesByVersion).delete_version(path, version)

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`."""
        verifies = required(self.of(entity), Verifies)
        return await verifies.verify(entity, is_backlog=is_backlog)
