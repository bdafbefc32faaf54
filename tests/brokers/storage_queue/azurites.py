"""Azurites that all tests share, and an empty namespace on one for each test."""

import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from gateway.brokers.storage_queue.broker import StorageQueueBroker, open_namespace
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.ports import Receiver
from tests.harness.azurite import ACCOUNT, KEY, azurite
from tests.harness.lasting import Lasting
from tests.harness.servers import ServerProcess

POLL = Backoff(first=0.02, cap=0.3)

_numbers = itertools.count(1)


@attrs.define(eq=False)
class Azurites:
    """Started when first needed, all at once: a test that needs one mostly needs the other too."""

    folder: Path
    _servers: dict[str, Lasting[tuple[ServerProcess, int]]] = attrs.field(factory=dict, init=False)

    def port(self, name: str) -> int:
        if not self._servers:
            for each in ("primary", "secondary"):
                make = partial(azurite, self.folder / each)
                self._servers[each] = Lasting(f"Azurite {each}", make)
                self._servers[each].begin()
        return self._servers[name].value[1]

    @asynccontextmanager
    async def namespace(self, name: str, **options: Any) -> AsyncIterator["Namespace"]:
        """An empty namespace on the server of that name."""
        async with client(self.port(name), **options) as broker:
            namespace = Namespace(broker, f"test{next(_numbers)}")
            try:
                yield namespace
            finally:
                with trio.move_on_after(5, shield=True):
                    await namespace.clear()

    def end(self) -> None:
        for server in self._servers.values():
            server.end()


def client(port: int, **options: Any) -> StorageQueueBroker:
    """The namespace in the emulator at that port."""
    settings = {"key": KEY, "poll": POLL, **options}
    return open_namespace(
        url_of(port),
        StorageQueueNamespaceOptions(**settings),
        lambda: datetime.now(UTC),
        random.Random(),
    )


def url_of(port: int) -> str:
    return f"AccountName={ACCOUNT};QueueEndpoint=http://127.0.0.1:{port}/{ACCOUNT}"


@attrs.define(eq=False)
class Namespace:
    """The queues whose names begin so: `ports.Broker` and `Peeks`."""

    broker: StorageQueueBroker
    name: str
    _made: list[EntityPath] = attrs.field(factory=list)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self.broker.send(self.inside(entity), messages)

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self.broker.open_receiver(self.inside(entity), mode)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        inside = self.inside(entity)
        return await self.broker.peek(inside, from_sequence=from_sequence, limit=limit)

    async def dead_letter(self, entity: EntityPath, message: Message) -> None:
        await self.broker.dead_letter(self.inside(entity), message)

    async def probe(self, entity: EntityPath) -> None:
        await self.broker.probe(self.inside(entity))

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return attrs.evolve(await self.broker.inspect(self.inside(entity)), path=entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        found = await self.broker.list_queues(f"{self.name}/{prefix}", skip=skip, top=top)
        return [attrs.evolve(info, path=self.outside(info.path)) for info in found]

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        inside = self.inside(entity)
        self._made.append(inside)
        return attrs.evolve(await self.broker.create_queue(inside, properties), path=entity)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        inside = self.inside(entity)
        info = await self.broker.update_queue(inside, properties, if_version=if_version)
        return attrs.evolve(info, path=entity)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.broker.delete_queue(self.inside(entity))

    async def clear(self) -> None:
        """Delete the queues of a test: their messages would slow down the server."""
        for queue in self._made:
            with suppress(BrokerError):
                await self.broker.delete_queue(queue)

    def inside(self, entity: EntityPath) -> EntityPath:
        return EntityPath(f"{self.name}/{entity.name}")

    def outside(self, entity: EntityPath) -> EntityPath:
        return EntityPath(entity.name.removeprefix(f"{self.name}/"))
