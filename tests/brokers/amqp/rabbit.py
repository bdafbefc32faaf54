"""RabbitMQ over AMQP 1.0, shared by all tests: each one sees queues of its own there."""

import base64
import itertools
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote

import attrs
import trio

from gateway.brokers.amqp.broker import AmqpBroker, open_namespace
from gateway.brokers.amqp.options import AmqpNamespaceOptions
from gateway.capabilities import Batches
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.identity import Identity
from gateway.domain.message import Message, ReceiveMode
from gateway.net.http.client import HttpClient
from gateway.ports import Receiver
from gateway.wire.http.messages import Headers, Request
from tests.brokers.rabbitmq.nodes import Nodes
from tests.brokers.servicebus.served import real_date
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import USER

PASSWORD = USER
_numbers = itertools.count(1)


def namespace_at(
    nodes: Nodes, name: str = "primary", kind: str = "quorum"
) -> AbstractAsyncContextManager["Namespace"]:
    """An empty namespace on that node."""
    return namespace_on(nodes.port(name), nodes.management_port(name), kind)


@asynccontextmanager
async def namespace_on(
    port: int, management: int, kind: str = "quorum"
) -> AsyncIterator["Namespace"]:
    """An empty namespace on a node with those ports. Its queues are deleted in the end."""
    async with Queues(management) as queues, client(port, connect_timeout=PATIENCE) as broker:
        try:
            yield Namespace(broker, queues, f"amqp-{next(_numbers)}", kind)
        finally:
            with trio.move_on_after(5, shield=True):
                await queues.clear()


@asynccontextmanager
async def client(port: int, **options: Any) -> AsyncIterator[AmqpBroker]:
    known = AmqpNamespaceOptions(password=PASSWORD, **options)
    url = f"//{USER}@127.0.0.1:{port}"
    async with open_namespace("amqp", url, known, real_date, random.Random(0)) as broker:
        yield broker


class Queues(HttpClient):
    """Makes and deletes queues through RabbitMQ's own management API."""

    def __init__(self, port: int) -> None:
        super().__init__("127.0.0.1", port)
        self._made: set[str] = set()

    async def make(self, name: str, kind: str = "quorum", **arguments: object) -> None:
        wish = {"durable": True, "arguments": {"x-queue-type": kind, **arguments}}
        assert await self.ask("PUT", name, wish) == 201
        self._made.add(name)

    async def clear(self) -> None:
        """Delete what is left: hundreds of quorum queues would make the node slow."""
        for name in self._made:
            with suppress(BrokerError):
                await self.ask("DELETE", name)

    async def ask(self, method: str, name: str, body: object = None) -> int:
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        response = await self.request(
            Request(
                method=method,
                target=f"/api/queues/%2F/{quote(name, safe='')}",
                headers=Headers((("Authorization", f"Basic {login}"),)),
                body=b"" if body is None else json.dumps(body).encode(),
            )
        )
        return response.status


@attrs.frozen
class Namespace:
    """The queues whose names begin so. A queue is made by RabbitMQ's management, not by AMQP."""

    _broker: AmqpBroker
    _queues: Queues
    _name: str
    _kind: str

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        if properties != QueueProperties():
            raise NotSupported("its queues are made with their defaults here")
        await self._queues.make(self._inside(entity).name, self._kind)
        return EntityInfo(path=entity)

    async def delete_queue(self, entity: EntityPath) -> None:
        assert await self._queues.ask("DELETE", self._inside(entity).name) == 204

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._broker.send(self._inside(entity), messages)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        return await self._broker.send_many(self._inside(entity), batches, fails_fast=fails_fast)

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self._broker.open_receiver(self._inside(entity), mode)

    async def identity(self) -> Identity:
        return await self._broker.identity()

    async def probe(self, entity: EntityPath) -> None:
        await self._broker.probe(self._inside(entity))

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return attrs.evolve(await self._broker.inspect(self._inside(entity)), path=entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self._broker.list_queues(prefix, skip=skip, top=top)

    def _inside(self, entity: EntityPath) -> EntityPath:
        return EntityPath(f"{self._name}/{entity.name}")
