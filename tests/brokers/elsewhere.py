"""Namespaces in other processes, shared by all tests: each test sees a room of its own there."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import attrs

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.message import Delivery, Leg, Message, ReceiveMode
from gateway.ports import Broker, Peeks, Receiver
from tests.brokers.servicebus_rest.served import client
from tests.e2e.processes import START_SECONDS, broker_config, environment
from tests.e2e.rest import KEY, KEY_NAME

_rooms = itertools.count(1)


@attrs.define(eq=False)
class Elsewhere:
    """Processes of `pairgate serve`, each with an embedded store; started when first needed."""

    folder: Path
    _ports: dict[str, int] = attrs.field(factory=dict, init=False)
    _processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list, init=False)

    @asynccontextmanager
    async def room(self, name: str) -> AsyncIterator[Broker]:
        """An empty namespace in the process of that name."""
        if name not in self._ports:
            self._ports[name] = self._start(self.folder / name)
        async with client(self._ports[name], key_name=KEY_NAME, key=KEY) as broker:
            yield Room(broker, f"room-{next(_rooms)}")

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
class Room:
    """The queues of a namespace whose names begin so: `ports.Broker` and `ports.Peeks`."""

    _broker: Broker
    _name: str

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        return await self._broker.send(self._inside(entity), messages)

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self._broker.open_receiver(self._inside(entity), mode)

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
        return self._seen(await self._broker.create_queue(self._inside(entity), properties))

    async def delete_queue(self, entity: EntityPath) -> None:
        await self._broker.delete_queue(self._inside(entity))

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        assert isinstance(self._broker, Peeks)
        inside = self._inside(entity)
        return await self._broker.peek(inside, from_sequence=from_sequence, limit=limit)

    def _inside(self, entity: EntityPath) -> EntityPath:
        return EntityPath(f"{self._name}/{entity.name}")

    def _seen(self, info: EntityInfo) -> EntityInfo:
        return attrs.evolve(info, path=EntityPath(info.path.name.removeprefix(f"{self._name}/")))
