"""What a pair does on its primary alone: everything but sending."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from gateway.capabilities import Peeks, Schedules, SessionReceiver, Sessions
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import NotSupported
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.ports import Broker, Receiver


class PrimaryOnly:
    """
    Everything here is there whatever the primary is; what that one can't do is `NotSupported`.
    """

    primary: Broker

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self.primary.open_receiver(entity, mode)

    async def probe(self, entity: EntityPath) -> None:
        await self.primary.probe(entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.primary.inspect(entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self.primary.list_queues(prefix, skip=skip, top=top)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        return await self.primary.create_queue(entity, properties)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.primary.delete_queue(entity)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        if not isinstance(self.primary, Peeks):
            raise NotSupported("the primary namespace can't show messages without taking them")
        return await self.primary.peek(entity, from_sequence=from_sequence, limit=limit)

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        return self._sessions().open_session(entity, session_id, mode)

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        return await self._sessions().list_sessions(
            entity, updated_since=updated_since, skip=skip, top=top
        )

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        return await self._schedules().schedule(entity, messages)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        await self._schedules().cancel_scheduled(entity, sequence_numbers)

    def _sessions(self) -> Sessions:
        if not isinstance(self.primary, Sessions):
            raise NotSupported("the primary namespace has no sessions")
        return self.primary

    def _schedules(self) -> Schedules:
        if not isinstance(self.primary, Schedules):
            raise NotSupported("the primary namespace tells no numbers of scheduled messages")
        return self.primary
