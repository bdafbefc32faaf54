"""Parts of the tests of rest atom that other tests need, too."""

import attrs

from gateway.domain.entity import EntityInfo, EntityPath
from gateway.store.local.memory import MemoryBroker


@attrs.frozen
class QueuesOnly:
    """A namespace that is no `Topology`."""

    inner: MemoryBroker

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.inner.inspect(entity)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.inner.delete_queue(entity)
