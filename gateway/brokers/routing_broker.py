"""The base of the brokers that lead each entity to the namespace that has it."""

import abc
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from gateway.capabilities import (
    Batches,
    Clears,
    DeletesByVersion,
    DeletesMessages,
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
    send_accepted_by,
    send_each,
    sends_in,
)
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.message import AcceptedBy, Delivery, Message, ReceiveMode
from gateway.forwarding_broker import ForwardingBroker
from gateway.offering import offered, required
from gateway.ports import Broker, Receiver


class RoutingBroker(ForwardingBroker):
    """
    A `Broker` with the capabilities of `inner` that leads each operation to the namespace of its
    entity. An operation that this namespace lacks is refused there. A transaction is one of
    `inner`. A subclass that changes more overrides the method.
    """

    @abc.abstractmethod
    def of(self, entity: EntityPath) -> Broker:
        """The namespace that sends to the entity go to."""

    @abc.abstractmethod
    def elsewhere(self, entity: EntityPath) -> NotSupported:
        """The refusal of a transaction with an entity that another namespace has than `inner`."""

    def source_of(self, entity: EntityPath) -> Broker:
        """The namespace that is received from."""
        return self.of(entity)

    def whole(self, entity: EntityPath) -> Broker:
        """
        The namespace that has all of the entity, which is to be changed.

        Raises:
            NotSupported: none has.
        """
        return self.of(entity)

    # --- sending

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self.of(entity).send(entity, messages)

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `FailsFast.try_send`, if that namespace can fail fast."""
        broker = self.of(entity)
        fails_fast = offered(broker, FailsFast)
        await (broker.send if fails_fast is None else fails_fast.try_send)(entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """As `Diverts.send_diverting`."""
        return await send_accepted_by(self.of(entity), entity, messages)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`."""
        return await send_each(self.of(entity), entity, batches, fails_fast=fails_fast)

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
        """As `EnlistsSchedules.enlist_schedule`, of an entity of `inner`."""
        return await self._enlists(entity).enlist_schedule(entity, messages)

    def enlist_cancellation(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> TransactedCancellation:
        """As `EnlistsSchedules.enlist_cancellation`, of an entity of `inner`."""
        return self._enlists(entity).enlist_cancellation(entity, sequence_numbers)

    def _enlists(self, entity: EntityPath) -> EnlistsSchedules:
        self._check_inner(entity)
        return required(self.inner, EnlistsSchedules)

    def _check_inner(self, entity: EntityPath) -> None:
        if self.of(entity) is not self.inner:
            raise self.elsewhere(entity)

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`, of `inner`."""
        await required(self.inner, Transacts).check_transactions()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """
        As `Transacts.commit`, on `inner`.

        Raises:
            NotSupported: a message is for an entity of another namespace; nothing was done.
        """
        for each in sends_in(work):
            self._check_inner(each.entity)
        await required(self.inner, Transacts).commit(work)

    # --- receiving

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self.source_of(entity).open_receiver(entity, mode)

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        """As `Sessions.open_session`."""
        return required(self.source_of(entity), Sessions).open_session(entity, session_id, mode)

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """As `Sessions.list_sessions`."""
        sessions = required(self.source_of(entity), Sessions)
        return await sessions.list_sessions(entity, updated_since=updated_since, skip=skip, top=top)

    async def peek_state(self, entity: EntityPath, session_id: str) -> bytes | None:
        """As `PeeksState.peek_state`."""
        return await required(self.source_of(entity), PeeksState).peek_state(entity, session_id)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`."""
        peeks = required(self.source_of(entity), Peeks)
        return await peeks.peek(entity, from_sequence=from_sequence, limit=limit)

    # --- queues

    async def delete_messages(
        self,
        entity: EntityPath,
        limit: int,
        *,
        before: datetime | None = None,
        session_id: str | None = None,
    ) -> int:
        """As `DeletesMessages.delete_messages`."""
        deletes = required(self.whole(entity), DeletesMessages)
        return await deletes.delete_messages(entity, limit, before=before, session_id=session_id)

    async def clear_queue(self, entity: EntityPath) -> None:
        """As `Clears.clear_queue`."""
        await required(self.whole(entity), Clears).clear_queue(entity)

    async def probe(self, entity: EntityPath) -> None:
        await self.of(entity).probe(entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.of(entity).inspect(entity)

    async def describe(self, entity: EntityPath) -> EntityInfo:
        """As `Describes.describe`."""
        return await described(self.of(entity), entity)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        return await self.whole(entity).create_queue(entity, properties)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """As `Updates.update_queue`."""
        updates = required(self.whole(entity), Updates)
        return await updates.update_queue(entity, properties, if_version=if_version)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.whole(entity).delete_queue(entity)

    async def delete_version(self, path: EntityPath, version: int) -> None:
        """As `DeletesByVersion.delete_version`."""
        await required(self.whole(path), DeletesByVersion).delete_version(path, version)

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`."""
        return await required(self.of(entity), Verifies).verify(entity, is_backlog=is_backlog)
