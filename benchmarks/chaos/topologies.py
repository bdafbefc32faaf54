"""
The two namespaces of a run as processes, and the gateways before them.

    load ──▶ gateway ──▶ (proxy) ──▶ primary ◀── consumers
                 └─────▶ (proxy) ──▶ secondary
    baseline ──────────▶ (proxy) ──▶ primary
"""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.chaos.scenario import Scenario, Topology
from benchmarks.chaos.servers import (
    AmqpServer,
    AzuriteServer,
    EmbeddedServer,
    RabbitServer,
    Server,
)
from benchmarks.fleet import Fleet
from gateway.demo.machines import Machine, broker_config
from gateway.domain import backlog
from gateway.domain.conduct import Bounds, Target
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.pairing import caution
from gateway.ports import Broker, Receiver
from gateway.testing.azurite import azurite
from gateway.testing.chaos_proxy import ChaosProxy
from gateway.testing.rabbitmq import control, rabbitmq
from gateway.testing.wall_clock import WallClock

LABEL: Final = "chaos"
ENTITIES: Final = ("orders", "invoices")
BASELINE: Final = "baseline"  # a queue of the primary that no gateway sends to
BACKLOG_QUEUES: Final = 4
SYPHON_BATCH: Final = 10
IN_HAND: Final = BACKLOG_QUEUES * SYPHON_BATCH  # messages, at most, that one syphon moves at once
LOCK: Final = 5.0  # seconds; the pair takes backlog queues as it finds them
SEND_TIMEOUT: Final = 10.0
ATTEMPT: Final = 3.0
PING: Final = 1.0
HOLD: Final = 2.0


def bounds_of(scenario: Scenario, interval: str) -> Bounds:
    """
    What the configuration of `gateway_config` promises.

    In the first seconds of a syphon that was killed, what was delivered before waits.
    """
    rest = max(HOLD, caution.WAIT.cap) if scenario.kills_a_syphon else HOLD
    return Bounds(
        raises_unknown=scenario.on_unknown == "raise",
        failover_interval=float(interval.removesuffix("s")),
        send_timeout=SEND_TIMEOUT,
        attempt_timeout=ATTEMPT,
        ping_interval=PING,
        lock=LOCK,
        longest_hold=1.2 * rest,
        drain_rate=50.0,  # far below what `benchmarks/syphon.py` measures
        quiet=4.0,
        slack=2.0,  # for a machine that does other things as well
    )


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
    clock: WallClock | None  # that the processes share, where a fault sets it
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
            on_unknown=self.scenario.on_unknown,
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
    queues = {
        "primary": [EntityPath(queue) for queue in (*ENTITIES, BASELINE)],
        "secondary": [backlog.queue_name(LABEL, index) for index in range(BACKLOG_QUEUES)],
    }
    clock = WallClock(fleet.folder / "clock") if scenario.clocked else None
    if clock is not None:
        fleet.folder.mkdir(parents=True, exist_ok=True)
        fleet.environment = clock.environment
    namespaces: dict[str, Namespace] = {}
    async with AsyncExitStack() as stack:
        for name, opener in zip(queues, SIDES[topology], strict=True):
            server, port = await opener(fleet, stack, name)
            await _make(server, port, queues[name])
            proxy = None
            if scenario.proxied:
                proxy = ChaosProxy("127.0.0.1", port, rng=random.Random(scenario.seed))
                await fleet.nursery.start(proxy.serve)
            namespaces[name] = Namespace(name, server, port, queues[name], proxy)
        primary, secondary = namespaces.values()
        site = Site(fleet, scenario, interval, primary, secondary, clock)
        await site.start()
        yield site


async def _embedded(fleet: Fleet, _: AsyncExitStack, name: str) -> tuple[Server, int]:
    machine = await fleet.start(name, broker_config())
    return EmbeddedServer(machine, fleet.nursery), machine.port


async def _amqp(fleet: Fleet, _: AsyncExitStack, name: str) -> tuple[Server, int]:
    config = broker_config().replace('"service-bus-http"', '"service-bus"')
    machine = await fleet.start(name, config)
    return AmqpServer(machine, fleet.nursery), machine.port


async def _rabbitmq(fleet: Fleet, stack: AsyncExitStack, name: str) -> tuple[Server, int]:
    home = fleet.folder / name
    home.mkdir(parents=True)
    process, port = await stack.enter_async_context(rabbitmq(home, name))
    return RabbitServer(process), port


async def _azurite(fleet: Fleet, stack: AsyncExitStack, name: str) -> tuple[Server, int]:
    process, port = await stack.enter_async_context(azurite(fleet.folder / name))
    return AzuriteServer(process), port


Opener = Callable[[Fleet, AsyncExitStack, str], Awaitable[tuple[Server, int]]]
SIDES: Final[Mapping[Topology, tuple[Opener, Opener]]] = {
    Topology.EMBEDDED: (_embedded, _embedded),
    Topology.AMQP: (_amqp, _amqp),
    Topology.RABBITMQ: (_rabbitmq, _rabbitmq),
    Topology.MIXED: (_rabbitmq, _embedded),
    Topology.AZURITE: (_azurite, _azurite),
}


async def _make(server: Server, port: int, queues: Sequence[EntityPath]) -> None:
    lock = timedelta(seconds=LOCK)
    async with server.client(port) as broker:
        for queue in queues:
            properties = QueueProperties()
            if backlog.is_backlog(queue):
                properties = backlog.QUEUE_PROPERTIES
            if not isinstance(server, RabbitServer):
                properties = attrs.evolve(properties, lock_duration=lock)
            await broker.create_queue(queue, properties)
    if isinstance(server, RabbitServer):
        # RabbitMQ 3.10 forgets its newest quorum queue when it is killed within seconds.
        await control(server.process, "eval", "[dets:sync(Table) || Table <- dets:all()].")


def gateway_config(
    primary: str, secondary: str, interval: str, *, key: Path, inside: bool, on_unknown: str
) -> str:
    """A gateway before the two namespaces, with times that suit a run of half a minute."""
    options: dict[str, Any] = {
        "label": LABEL,
        "on_unknown": on_unknown,
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
