"""
The two namespaces of a run as processes, and the gateways before them.

    load ──▶ gateway ──▶ (proxy) ──▶ primary ◀── consumers
                 └─────▶ (proxy) ──▶ secondary
    baseline ──────────▶ (proxy) ──▶ primary
"""

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import trio

from benchmarks.chaos.scenario import Scenario, Topology
from benchmarks.fleet import Fleet, client_of, now
from gateway.brokers.rabbitmq import RabbitmqOptions, open_namespace
from gateway.demo.machines import KEY_NAME, KEY_VARIABLE, Machine, broker_config
from gateway.domain import backlog
from gateway.domain.conduct import Bounds, Target
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.ports import Broker, Receiver
from gateway.testing.chaos_proxy import ChaosProxy
from gateway.testing.rabbitmq import USER, rabbitmq
from gateway.testing.servers import ServerProcess

LABEL: Final = "chaos"
ENTITIES: Final = ("orders", "invoices")
BASELINE: Final = "baseline"  # a queue of the primary that no gateway sends to
BACKLOG_QUEUES: Final = 4
SYPHON_BATCH: Final = 10
IN_HAND: Final = BACKLOG_QUEUES * SYPHON_BATCH  # messages, at most, that one syphon moves at once
CONNECTIONS: Final = 1000  # of each loop, so that none of its sends waits for another
LOCK: Final = 5.0  # seconds; the pair takes backlog queues as it finds them
SEND_TIMEOUT: Final = 10.0
ATTEMPT: Final = 3.0
PING: Final = 1.0
HOLD: Final = 2.0


def bounds_of(interval: str) -> Bounds:
    """What the configuration of `gateway_config` promises."""
    return Bounds(
        failover_interval=float(interval.removesuffix("s")),
        send_timeout=SEND_TIMEOUT,
        attempt_timeout=ATTEMPT,
        ping_interval=PING,
        lock=LOCK,
        longest_hold=1.2 * HOLD,
        drain_rate=50.0,  # far below what `benchmarks/syphon.py` measures
        quiet=4.0,
        slack=2.0,  # for a machine that does other things as well
    )


class Server(Protocol):
    """A namespace that runs, and can be harmed."""

    @property
    def pid(self) -> int: ...

    @property
    def running(self) -> bool: ...

    def url(self, port: int) -> str: ...

    def client(self, port: int) -> AbstractAsyncContextManager[Broker]: ...

    async def kill(self) -> None: ...

    async def start(self) -> None: ...


@attrs.define(eq=False)
class EmbeddedServer:
    """A broker of ours, by its Service Bus REST."""

    machine: Machine
    nursery: trio.Nursery

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

    async def kill(self) -> None:
        await self.machine.kill()

    async def start(self) -> None:
        await self.machine.start(self.nursery)


@attrs.define(eq=False)
class RabbitServer:
    """A node with quorum queues, by AMQP 0-9-1."""

    process: ServerProcess
    running: bool = True

    def __attrs_post_init__(self) -> None:
        self._password.touch(mode=0o600)
        self._password.write_text(USER)

    @property
    def _password(self) -> Path:
        """A file for gateways."""
        return self.process.folder / "password"

    @property
    def pid(self) -> int:
        return self.process.pid

    def url(self, port: int) -> str:
        file = json.dumps(str(self._password))
        return f'url = "rabbitmq://{USER}@127.0.0.1:{port}/"\npassword = {{ file = {file} }}'

    def client(self, port: int) -> AbstractAsyncContextManager[Broker]:
        rest = f"//{USER}:{USER}@127.0.0.1:{port}/"
        return open_namespace("rabbitmq", rest, RabbitmqOptions(), now, random.Random())

    async def kill(self) -> None:
        await self.process.kill()
        self.running = False

    async def start(self) -> None:
        await self.process.start()
        self.running = True


@attrs.define(eq=False)
class Namespace:
    """One side: its process, its port, and the proxy before it where there is one."""

    name: str
    server: Server
    port: int
    queues: Sequence[EntityPath]
    proxy: ChaosProxy | None

    @property
    def reached_at(self) -> int:
        """The port that gateways and the baseline use."""
        return self.port if self.proxy is None else self.proxy.port

    @property
    def url(self) -> str:
        return self.server.url(self.reached_at)

    def client(self) -> AbstractAsyncContextManager[Broker]:
        """Past the proxy."""
        return self.server.client(self.port)


@attrs.define(eq=False)
class KnownQueues:
    """A namespace that lists the queues that were made there: RabbitMQ itself can't."""

    broker: Broker
    queues: Sequence[EntityPath]

    def open_receiver(self, entity: EntityPath) -> AbstractAsyncContextManager[Receiver]:
        return self.broker.open_receiver(entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.broker.inspect(entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return [await self.inspect(queue) for queue in self.queues[skip : skip + top]]


@attrs.define(eq=False)
class Site:
    """Everything that runs. `syphons` are processes of their own."""

    fleet: Fleet
    scenario: Scenario
    interval: str
    primary: Namespace
    secondary: Namespace
    gateway: Machine = attrs.field(init=False)
    syphons: list[Machine] = attrs.field(factory=list, init=False)

    async def start(self) -> None:
        key = self.fleet.folder / "envelope.key"
        key.touch(mode=0o600)
        key.write_text(random.Random(self.scenario.seed).randbytes(16).hex())
        config = gateway_config(
            self.primary.url,
            self.secondary.url,
            self.interval,
            key=key,
            inside=not self.scenario.syphons,
        )
        self.gateway = await self.fleet.start("gateway", config)
        alone, _, _ = config.partition("[[endpoints]]")
        for number in range(self.scenario.syphons):
            syphon = await self.fleet.start(f"syphon-{number}", alone, command="syphon")
            self.syphons.append(syphon)

    def namespace(self, target: Target) -> Namespace:
        return self.primary if target is Target.PRIMARY else self.secondary


@asynccontextmanager
async def open_site(
    fleet: Fleet, topology: Topology, scenario: Scenario, interval: str
) -> AsyncIterator[Site]:
    """Namespaces with their queues, and a gateway; RabbitMQs are gone afterwards."""
    backlog_queues = [backlog.queue_name(LABEL, index) for index in range(BACKLOG_QUEUES)]
    sides = {
        "primary": (topology is Topology.EMBEDDED, [EntityPath(q) for q in (*ENTITIES, BASELINE)]),
        "secondary": (topology is not Topology.RABBITMQ, backlog_queues),
    }
    namespaces: dict[str, Namespace] = {}
    async with AsyncExitStack() as stack:

        async def open_side(name: str, embedded: bool, queues: Sequence[EntityPath]) -> None:
            started = _embedded(fleet, name) if embedded else _rabbitmq(stack, fleet.folder, name)
            server, port = await started
            await _make(server, port, queues)
            proxy = None
            if scenario.proxied:
                proxy = ChaosProxy("127.0.0.1", port, rng=random.Random(scenario.seed))
                await fleet.nursery.start(proxy.serve)
            namespaces[name] = Namespace(name, server, port, queues, proxy)

        for name, (embedded, queues) in sides.items():
            await open_side(name, embedded, queues)
        site = Site(fleet, scenario, interval, namespaces["primary"], namespaces["secondary"])
        await site.start()
        yield site


async def _embedded(fleet: Fleet, name: str) -> tuple[Server, int]:
    machine = await fleet.start(name, broker_config())
    return EmbeddedServer(machine, fleet.nursery), machine.port


async def _rabbitmq(stack: AsyncExitStack, folder: Path, name: str) -> tuple[Server, int]:
    home = folder / name
    home.mkdir(parents=True)
    process, port = await stack.enter_async_context(rabbitmq(home, name))
    return RabbitServer(process), port


async def _make(server: Server, port: int, queues: Sequence[EntityPath]) -> None:
    lock = timedelta(seconds=LOCK)
    async with server.client(port) as broker:
        for queue in queues:
            properties = QueueProperties()
            if backlog.is_backlog(queue):
                properties = backlog.QUEUE_PROPERTIES
            if isinstance(server, EmbeddedServer):
                properties = attrs.evolve(properties, lock_duration=lock)
            await broker.create_queue(queue, properties)


def gateway_config(primary: str, secondary: str, interval: str, *, key: Path, inside: bool) -> str:
    """A gateway before the two namespaces, with times that suit a run of half a minute."""
    options: dict[str, Any] = {
        "label": LABEL,
        "failover_interval": interval,
        "send_timeout": f"{SEND_TIMEOUT}s",
        "attempt_timeout": f"{ATTEMPT}s",
        "ping_interval": f"{PING}s",
        "busy_pause": "1s",
        "backlog_cooldown": "1s",
        "backlog_queues": BACKLOG_QUEUES,
        "enable_syphon": inside,
    }
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    pause = f'{{ first = "500ms", cap = "{HOLD}s" }}'
    return f"""
[namespaces.primary]
{primary}

[namespaces.secondary]
{secondary}

[pairing]
primary = "primary"
secondary = "secondary"
envelope_keys = [{{ id = "1", key = {{ file = {json.dumps(str(key))} }} }}]
{lines}

[pairing.syphon]
batch = {SYPHON_BATCH}
attempt_timeout = "{ATTEMPT}s"
hold = {pause}
retry = {pause}
queue_retry = {pause}
busy_pause = "1s"
rescan = "2s"

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""
