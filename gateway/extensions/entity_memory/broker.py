"""The pair, with answers from memory about entities that its primary can't be asked for."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs

from gateway.capabilities import (
    Updates,
    described,
)
from gateway.capabilities.remembering import record_from_memory
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.extensions.entity_memory.asking import created, in_time, listed
from gateway.extensions.entity_memory.memory import EntityMemory
from gateway.extensions.entity_memory.topics import TopicsFromMemory
from gateway.forwarding_broker import ReceiveWrapper
from gateway.offering import required
from gateway.ports import Broker


@attrs.define(eq=False, kw_only=True)
class RememberingBroker(TopicsFromMemory, ReceiveWrapper):
    """A `Broker` whose queues and topics can be read, and created if they exist, in an outage."""

    broker: Broker
    memory: EntityMemory

    @property
    def inner(self) -> Broker:
        return self.broker

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`; in an outage from memory, without the counts of messages."""
        return await self._asked(entity, lambda: self.broker.inspect(entity))

    async def describe(self, entity: EntityPath) -> EntityInfo:
        """As `Describes.describe`; in an outage as `inspect`."""
        return await self._asked(entity, lambda: described(self.broker, entity))

    async def _asked(
        self, entity: EntityPath, ask: Callable[[], Awaitable[EntityInfo]]
    ) -> EntityInfo:
        memory = self.memory
        try:
            info = await in_time(ask, knows=memory.knows(entity))
        except EntityNotFound:
            if memory.topic(entity) is None:  # a topic isn't found as a queue
                memory.forget(entity)
            raise
        except BrokerError as error:
            if error.counts_as_outage and memory.topic(entity) is not None:
                record_from_memory()
                raise EntityNotFound(f"{entity} is a topic") from error
            known = memory.queue(entity)
            if known is None or not error.counts_as_outage:
                raise
            record_from_memory()
            return known
        memory.record_queue(info)
        return info

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """As `Broker.list_queues`; in an outage the known queues, as `inspect` describes them."""
        memory = self.memory
        ask = partial(self.broker.list_queues, prefix, skip=skip, top=top)
        return await listed(memory.queues(prefix), ask, memory.record_queue, skip=skip, top=top)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        As `Broker.create_queue`.

        Raises:
            EntityExists: also if the primary, which can't be reached, had that queue or topic.
        """
        info = await created(
            self.memory.knows(entity), entity, lambda: self.broker.create_queue(entity, properties)
        )
        self.memory.record_queue(info)
        return info

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """As `Updates.update_queue`."""
        updates = required(self.broker, Updates)
        info = await updates.update_queue(entity, properties, if_version=if_version)
        self.memory.record_queue(info)
        return info

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`."""
        await self.broker.delete_queue(entity)
        self.memory.forget(entity)
