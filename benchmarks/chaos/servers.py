"""The namespaces that a run can have: processes of ours, RabbitMQ, Azurite."""

import json
import random
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Protocol

import attrs
import trio

from benchmarks.fleet import client_of, now
from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.amqp.servicebus import open_namespace as open_service_bus
from gateway.brokers.rabbitmq.broker import open_namespace
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.brokers.storage_queue.broker import open_namespace as open_storage_queue
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.demo.machines import KEY, KEY_NAME, KEY_VARIABLE, DemoMachine
from gateway.domain.backoff import Backoff
from gateway.ports import Broker
from tests.harness.azurite import ACCOUNT
from tests.harness.azurite import KEY as AZURITE_KEY
from tests.harness.rabbitmq import USER, control, keep_queues
from tests.harness.rabbitmq_cluster import Cluster
from tests.harness.secret_files import write_secret
from tests.harness.servers import ServerProcess

CONNECTIONS: Final = 1000  # of each loop, so that none of its sends waits for another
CONNECT: Final = 2.0  # seconds, of TCP and what a protocol needs first; less than an attempt
POLL: Final = Backoff(first=0.05, cap=0.5)  # of Storage Queue


class Server(Protocol):
    """A namespace that runs, and can be harmed."""

    @property
    def pid(self) -> int: ...

    @property
    def running(self) -> bool: ...

    @property
    def keeps_completions(self) -> bool:
        """True if a completion that was answered outlives a crash of the server."""
        ...

    def url(self, port: int) -> str: ...

    def client(self, port: int) -> AbstractAsyncContextManager[Broker]:
        """Open a client for consumers and the audit."""
        ...

    def producer(self, port: int) -> AbstractAsyncContextManager[Broker]:
        """Open a client for the baseline, with the protocol that the gateway speaks there."""
        ...

    async def kill(self) -> None: ...

    def lose_volume(self) -> None:
        """Delete all data of a server that was killed."""
        ...

    async def start(self) -> None: ...


@attrs.define(eq=False)
class EmbeddedServer:
    """A broker of ours, by its Service Bus REST."""

    machine: DemoMachine
    nursery: trio.Nursery
    keeps_completions: bool = True

    @property
    def pid(self) -> int:
        return self.machine.pid

    @property
    def running(self) -> bool:
        return self.machine.running

    def url(self, port: int) -> str:
        key = f'key = {{ env = "{KEY_VARIABLE}" }}'
        return f'url = "servicebus+http://{KEY_NAME}@127.0.0.1:{port}"\n{key}'

    def client(self, port: int) -> AbstractAsyncContextManager[Broker]:
        return client_of(port, connections=CONNECTIONS)

    def producer(self, port: int) -> AbstractAsyncContextManager[Broker]:
        return self.client(port)

    async def kill(self) -> None:
        await self.machine.kill()

    def lose_volume(self) -> None:
        for path in self.machine.folder.glob("broker.db*"):
            path.unlink()

    async def start(self) -> None:
        await self.machine.start(self.nursery)


class AmqpServer(EmbeddedServer):
    """The same server, for senders over AMQP 1.0."""

    def url(self, port: int) -> str:
        return f'url = "servicebus:{_service_bus(port)}"\nkey = {{ env = "{KEY_VARIABLE}" }}'

    def producer(self, port: int) -> AbstractAsyncContextManager[Broker]:
        options = ServiceBusOptions(key=KEY, connect_timeout=CONNECT)
        return open_service_bus(_service_bus(port), options, now, random.Random())


def _service_bus(port: int) -> str:
    server = f"Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName={KEY_NAME}"
    return f"{server};UseDevelopmentEmulator=true"


@attrs.define(eq=False)
class _ForeignServer:
    """Another vendor's server, with its secret in a file for gateways."""

    process: ServerProcess
    secret: str
    keeps_completions: bool = True
    running: bool = True

    def __attrs_post_init__(self) -> None:
        write_secret(self._file, self.secret)

    @property
    def _file(self) -> Path:
        return self.process.folder / "secret"

    @property
    def reference(self) -> str:
        """The secret, as a configuration names it."""
        return f"{{ file = {json.dumps(str(self._file))} }}"

    @property
    def pid(self) -> int:
        return self.process.pid

    async def kill(self) -> None:
        await self.process.kill()
        self.running = False

    def lose_volume(self) -> None:
        for path in self._data.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path != self._file:
                path.unlink()

    @property
    def _data(self) -> Path:
        """The folder of all that it keeps."""
        return self.process.folder

    async def start(self) -> None:
        await self.process.start()
        self.running = True


class AzuriteServer(_ForeignServer):
    """An emulator of Storage Queue."""

    def __init__(self, process: ServerProcess) -> None:
        super().__init__(process, AZURITE_KEY)

    def url(self, port: int) -> str:
        poll = f'{{ first = "50ms", cap = "{POLL.cap}s" }}'
        return f'url = "storage-queue:{_account(port)}"\nkey = {self.reference}\npoll = {poll}'

    def client(self, port: int) -> AbstractAsyncContextManager[Broker]:
        options = StorageQueueNamespaceOptions(
            key=AZURITE_KEY, poll=POLL, max_connections=CONNECTIONS
        )
        return open_storage_queue(_account(port), options, now, random.Random())

    def producer(self, port: int) -> AbstractAsyncContextManager[Broker]:
        return self.client(port)


def _account(port: int) -> str:
    return f"AccountName={ACCOUNT};QueueEndpoint=http://127.0.0.1:{port}/{ACCOUNT}"


class RabbitServer(_ForeignServer):
    """A node with quorum queues, by AMQP 0-9-1, which confirms no acknowledgement."""

    def __init__(self, process: ServerProcess) -> None:
        super().__init__(process, USER, keeps_completions=False)

    @property
    def _data(self) -> Path:
        return self.process.folder / "mnesia"

    async def keep_queues(self) -> None:
        """As `rabbitmq.keep_queues`."""
        await keep_queues(self.process)

    async def refuse_connections(self) -> None:
        """Return when all connections are closed, and no further one is allowed."""
        await control(self.process, "set_vhost_limits", "-p", "/", '{"max-connections": 0}')
        await control(self.process, "close_all_connections", "--vhost", "/", "the limit is 0")

    async def allow_connections(self) -> None:
        await control(self.process, "clear_vhost_limits", "-p", "/")

    def url(self, port: int) -> str:
        return f'url = "rabbitmq://{USER}@127.0.0.1:{port}/"\npassword = {self.reference}'

    def client(self, port: int) -> AbstractAsyncContextManager[Broker]:
        rest = f"//{USER}:{USER}@127.0.0.1:{port}/"
        return open_namespace("rabbitmq", rest, RabbitmqOptions(), now, random.Random())

    def producer(self, port: int) -> AbstractAsyncContextManager[Broker]:
        return self.client(port)


class ClusterServer(RabbitServer):
    """A cluster of nodes. Its clients know all of them, and it is harmed node by node."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(next(iter(cluster.nodes.values())))
        self.cluster = cluster

    def url(self, port: int) -> str:
        hosts = f'url = "rabbitmq://{USER}@{self.cluster.hosts}/"\npassword = {self.reference}'
        return f'{hosts}\nheartbeat = "2s"\nconnect_timeout = "{CONNECT}s"'

    def client(self, port: int) -> AbstractAsyncContextManager[Broker]:
        rest = f"//{USER}:{USER}@{self.cluster.hosts}/"
        options = RabbitmqOptions(heartbeat=2.0, connect_timeout=CONNECT)
        return open_namespace("rabbitmq", rest, options, now, random.Random())

    async def keep_queues(self) -> None:
        await self.cluster.keep_queues()
