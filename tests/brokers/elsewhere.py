"""Namespaces in other processes, shared by all tests: each test sees entities of its own there."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs

from gateway.brokers.servicebus.broker import ServiceBusRestBroker
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.identity import Identity
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.ports import Broker, Receiver
from tests.brokers.servicebus.served import client
from tests.e2e.processes import START_SECONDS, broker_config, environment
from tests.e2e.rest import KEY, KEY_NAME
from tests.harness.patience import PATIENCE

Led = TypeVar("Led", QueueProperties, SubscriptionProperties)
Info = TypeVar("Info", EntityInfo, TopicInfo)

_numbers = itertools.count(1)


@attrs.define(eq=False)
class Elsewhere:
    """Processes of `pairgate serve`, each with an embedded store; started when first needed."""

    folder: Path
    _ports: dict[str, int] = attrs.field(factory=dict, init=False)
    _processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list, init=False)

    @asynccontextmanager
    async def namespace(self, name: str) -> AsyncIterator[Broker]:
        """An empty namespace in the process of that name."""
        if name not in self._ports:
            self._ports[name] = self._start(self.folder / name)
        own = {"key_name": KEY_NAME, "key": KEY}
        async with client(self._ports[name], **own, connect_timeout=PATIENCE) as broker:
            yield Namespace(broker, f"test-{next(_numbers)}")

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, folder: Path) -> int:
        folder.mkdir()
        config, log = folder / "pairgate.toml", folder / "log"
        config.write_text(broker_config())
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--json", "--config", config],
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self._processes.append(process)
        return _port(process, log)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until it listens; block, since this is done once for all tests."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        *lines, _rest = log.read_text().split("\n")
        for line in map(json.loads, lines):
            if line["event"] == "listening":
                return int(line["address"].rpartition(":")[2])
        time.sleep(0.02)
    raise AssertionError(f"it doesn't listen: {log.read_text()}")


@attrs.frozen
class Namespace:
    """The entities of a namespace whose names begin so: `ports.Broker`, `Peeks` and `Topology`."""

    _broker: ServiceBusRestBroker
    _name: str

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._broker.send(self._inside(entity), messages)

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self._broker.open_receiver(self._inside(entity), mode)

    async def identity(self) -> Identity:
        return await self._broker.identity()

    async def probe(self, entity: EntityPath) -> None:
        await self._broker.probe(self._inside(entity))

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return self._seen(await self._broker.inspect(self._inside(entity)))

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        found = await self._broker.list_queues(f"{self._name}/{prefix}", skip=skip, top=top)
        return [self._seen(info) for info in found]

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        wish = self._led_inside(properties)
        return self._seen(await self._broker.create_queue(self._inside(entity), wish))

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        wish = self._led_inside(properties)
        return self._seen(
            await self._broker.update_queue(self._inside(entity), wish, if_version=if_version)
        )

    async def delete_queue(self, entity: EntityPath) -> None:
        await self._broker.delete_queue(self._inside(entity))

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        inside = self._inside(entity)
        return await self._broker.peek(inside, from_sequence=from_sequence, limit=limit)

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        return self._seen(await self._broker.create_topic(self._inside(topic), properties))

    async def update_topic(
        self, topic: EntityPath, properties: TopicProperties, *, if_version: int | None = None
    ) -> TopicInfo:
        return self._seen(
            await self._broker.update_topic(self._inside(topic), properties, if_version=if_version)
        )

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        return self._seen(await self._broker.inspect_topic(self._inside(topic)))

    async def list_topics(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[TopicInfo]:
        found = await self._broker.list_topics(f"{self._name}/{prefix}", skip=skip, top=top)
        return [self._seen(info) for info in found]

    async def delete_topic(self, topic: EntityPath) -> None:
        await self._broker.delete_topic(self._inside(topic))

    async def delete_version(self, path: EntityPath, version: int) -> None:
        await self._broker.delete_version(self._inside(path), version)

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        inside, wish = self._inside(topic), self._led_inside(properties)
        return self._subscribed(await self._broker.create_subscription(inside, name, wish, rule))

    async def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        *,
        if_version: int | None = None,
    ) -> SubscriptionInfo:
        inside, wish = self._inside(topic), self._led_inside(properties)
        return self._subscribed(
            await self._broker.update_subscription(inside, name, wish, if_version=if_version)
        )

    async def inspect_subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo:
        return self._subscribed(await self._broker.inspect_subscription(self._inside(topic), name))

    async def list_subscriptions(
        self, topic: EntityPath, *, skip: int = 0, top: int = 100
    ) -> Sequence[SubscriptionInfo]:
        found = await self._broker.list_subscriptions(self._inside(topic), skip=skip, top=top)
        return [self._subscribed(info) for info in found]

    async def delete_subscription(self, topic: EntityPath, name: str) -> None:
        await self._broker.delete_subscription(self._inside(topic), name)

    async def create_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        return await self._broker.create_rule(self._inside(topic), subscription, rule)

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        return await self._broker.update_rule(self._inside(topic), subscription, rule)

    async def inspect_rule(self, topic: EntityPath, subscription: str, name: str) -> Rule:
        return await self._broker.inspect_rule(self._inside(topic), subscription, name)

    async def list_rules(
        self, topic: EntityPath, subscription: str, *, skip: int = 0, top: int = 100
    ) -> Sequence[Rule]:
        inside = self._inside(topic)
        return await self._broker.list_rules(inside, subscription, skip=skip, top=top)

    async def delete_rule(self, topic: EntityPath, subscription: str, name: str) -> None:
        await self._broker.delete_rule(self._inside(topic), subscription, name)

    def _inside(self, entity: EntityPath) -> EntityPath:
        return EntityPath(f"{self._name}/{entity.name}")

    def _outside(self, entity: EntityPath) -> EntityPath:
        return EntityPath(entity.name.removeprefix(f"{self._name}/"))

    def _led_inside(self, properties: Led) -> Led:
        return self._led(properties, lambda name: self._inside(EntityPath(name)).name)

    def _led(self, properties: Led, rename: Callable[[str], str]) -> Led:
        names = ("forward_to", "forward_dead_lettered_messages_to")
        targets = {name: getattr(properties, name) for name in names}
        led = {name: rename(target) for name, target in targets.items() if target is not None}
        return attrs.evolve(properties, **led)

    def _seen(self, info: Info) -> Info:
        properties: Any = info.properties
        if isinstance(properties, QueueProperties):
            properties = self._led(properties, lambda name: self._outside(EntityPath(name)).name)
        return attrs.evolve(info, path=self._outside(info.path), properties=properties)

    def _subscribed(self, info: SubscriptionInfo) -> SubscriptionInfo:
        properties = self._led(info.properties, lambda name: self._outside(EntityPath(name)).name)
        return attrs.evolve(info, topic=self._outside(info.topic), properties=properties)
