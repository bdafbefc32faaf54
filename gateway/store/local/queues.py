"""Manages the queues of a namespace that Pairgate keeps itself."""

from collections.abc import Sequence

from gateway.domain.billing import Operation
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.store.engine.namespace import Namespace
from gateway.store.local.topology import LocalTopology


class LocalQueues(LocalTopology):
    """The queue management of `ports.Broker`: probe, inspect, list, create and delete."""

    async def probe(self, entity: EntityPath) -> None:
        def work(namespace: Namespace, _now: Now) -> None:
            if namespace.known(entity) is not None or not namespace.create_missing:
                namespace.find(entity).enqueue.check_sendable()
            namespace.check_room()

        await self.run_on(entity, work, billed=Operation.INSPECT)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.run_on(
            entity,
            lambda namespace, now: namespace.inspect(entity, now),
            billed=Operation.INSPECT,
        )

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self.run_on(
            EntityPath(""),
            lambda namespace, _now: namespace.page(prefix, skip, top),
            billed=Operation.INSPECT,
        )

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        As `Broker.create_queue`; raises `QuotaExceeded` if the namespace has its maximum of
        entities.
        """
        return await self.run_on(
            entity, lambda namespace, now: namespace.create(entity, properties, now)
        )

    async def delete_queue(self, entity: EntityPath) -> None:
        """
        As `Broker.delete_queue`; receivers that wait for a message there get `EntityNotFound`.
        """
        await self.run_on(entity, lambda namespace, _now: namespace.delete(entity))
