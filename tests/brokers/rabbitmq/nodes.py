"""Nodes of RabbitMQ that all tests share, and an empty namespace on one for each test."""

import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import trio

from gateway.brokers.rabbitmq.broker import RabbitmqBroker, open_namespace
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.brokers.rabbitmq.receiver import WORK
from gateway.brokers.rabbitmq.sender import MAX_LANES
from gateway.capabilities import Batches
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.identity import Identity
from gateway.domain.message import Message, ReceiveMode
from gateway.ports import Receiver
from gateway.wire.rabbitmq.queues import DeclareQueue
from tests.harness.rabbitmq import (
    INSTALLED,
    MANAGEMENT,
    RABBITMQ_4,
    USER,
    LastingNode,
    Release,
    management_at,
)
from tests.harness.servers import ServerProcess

NEWER = "newer"  # a node of RabbitMQ 4
AMQP = "rabbitmq_amqp1_0"  # the plugin, which RabbitMQ 4 is without
_numbers = itertools.count(1)


@attrs.define(eq=False)
class Nodes:
    """
    Started when first needed, the first two at once: a test that needs one mostly needs the other.
    """

    folder: Path
    _nodes: dict[str, LastingNode] = attrs.field(factory=dict, init=False)
    _http: dict[str, int] = attrs.field(factory=dict, init=False)

    def node(self, name: str) -> LastingNode:
        if name not in self._nodes:
            if name == NEWER:
                self._begin(name, RABBITMQ_4, MANAGEMENT)
            else:
                for each in ("primary", "secondary"):
                    self._begin(each, INSTALLED, MANAGEMENT, AMQP)
        return self._nodes[name]

    def _begin(self, name: str, release: Release, *plugins: str) -> None:
        self._http[name] = free_port()
        self._nodes[name] = LastingNode(
            folder=self.folder / name,
            name=name,
            release=release,
            plugins=plugins,
            settings=management_at(self._http[name]),
        )
        self._nodes[name].begin()

    def management(self, name: str) -> str:
        """The URL of the plugin."""
        return f"http://127.0.0.1:{self.management_port(name)}"

    def management_port(self, name: str) -> int:
        self.port(name)
        return self._http[name]

    def port(self, name: str) -> int:
        return self.node(name).port

    def process(self, name: str) -> ServerProcess:
        """The node's process, for `tests.harness.rabbitmq.control`."""
        return self.node(name).process

    @asynccontextmanager
    async def namespace(self, name: str, **options: Any) -> AsyncIterator["Namespace"]:
        """An empty namespace on the node of that name; with `options`, those of its client."""
        async with client(self.port(name), **options) as broker:
            namespace = Namespace(broker, f"test-{next(_numbers)}", self.port(name))
            try:
                yield namespace
            finally:
                with trio.move_on_after(5, shield=True):
                    await namespace.clear()

    def end(self) -> None:
        for node in self._nodes.values():
            node.end()


def client(
    port: int,
    *,
    user: str = USER,
    password: str = USER,
    max_lanes: int = MAX_LANES,
    work: float = WORK,
    **options: Any,
) -> RabbitmqBroker:
    broker: RabbitmqBroker = open_namespace(
        "rabbitmq",
        f"//{user}:{password}@127.0.0.1:{port}/",
        RabbitmqOptions(**options),
        lambda: datetime.now(UTC),
        random.Random(),
    )
    return attrs.evolve(broker, max_lanes=max_lanes, work=work)


@attrs.define(eq=False)
class Namespace:
    """The queues whose names begin so."""

    broker: RabbitmqBroker
    name: str
    port: int
    _made: list[EntityPath] = attrs.field(factory=list)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self.broker.send(self.inside(entity), messages)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        return await self.broker.send_many(self.inside(entity), batches, fails_fast=fails_fast)

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self.broker.open_receiver(self.inside(entity), mode)

    async def identity(self) -> Identity:
        return await self.broker.identity()

    async def dead_letter(self, entity: EntityPath, message: Message) -> None:
        await self.broker.dead_letter(self.inside(entity), message)

    async def probe(self, entity: EntityPath) -> None:
        await self.broker.probe(self.inside(entity))

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return attrs.evolve(await self.broker.inspect(self.inside(entity)), path=entity)

    async def describe(self, entity: EntityPath) -> EntityInfo:
        return attrs.evolve(await self.broker.describe(self.inside(entity)), path=entity)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        info = await self.broker.update_queue(
            self.inside(entity), properties, if_version=if_version
        )
        return attrs.evolve(info, path=entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self.broker.list_queues(prefix, skip=skip, top=top)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        inside = self.inside(entity)
        self._made.append(inside)
        return attrs.evolve(await self.broker.create_queue(inside, properties), path=entity)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.broker.delete_queue(self.inside(entity))

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        return await self.broker.verify(self.inside(entity), is_backlog=is_backlog)

    async def consumers(self, entity: EntityPath) -> int:
        looked = await self.broker._channels.inspect(self.inside(entity).name)
        count: int = looked.consumer_count
        return count

    async def declare(self, entity: EntityPath, arguments: dict[str, Any]) -> None:
        """Declare a queue as another program does."""
        inside = self.inside(entity)
        self._made.append(inside)
        await self.broker._channels.ask(
            DeclareQueue(queue=inside.name, durable=True, arguments=arguments)
        )

    async def clear(self) -> None:
        """Hundreds of quorum queues would make the node slow."""
        for queue in self._made:
            with suppress(BrokerError):
                await self.broker.delete_queue(queue)

    def inside(self, entity: EntityPath) -> EntityPath:
        return EntityPath(f"{self.name}/{entity.name}")
