"""
The two namespaces of a run as processes, and the gateways before them.

    load ──▶ gateway ──▶ (proxy) ──▶ primary ◀── consumers, which are before the gateway of a wire
                 └─────▶ (proxy) ──▶ secondary
    baseline ──────────▶ (proxy) ──▶ primary

Where a scenario asks for it, another gateway with a primary of its own has the same secondary.
"""

import json
import math
import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks.chaos.pika_producer import PikaProducer, open_pika
from benchmarks.chaos.scenario import Scenario, Topology
from benchmarks.chaos.servers import (
    CONNECTIONS,
    AmqpServer,
    AzuriteServer,
    ClusterServer,
    EmbeddedServer,
    RabbitServer,
    Server,
)
from benchmarks.fleet import Fleet, client_of
from benchmarks.traffic import Accepting, OpenLoop
from gateway.capabilities.sending import accepting_send
from gateway.checker.history import Bounds, FaultTarget
from gateway.checker.operations import Delivered, Record
from gateway.demo.machines import DemoMachine, broker_config
from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import SessionRequired
from gateway.domain.message import Delivery, Settlement
from gateway.pairing.syphon import redelivery_guard
from gateway.ports import Broker, Receiver
from tests.harness.azurite import azurite
from tests.harness.chaos_proxy import ChaosProxy
from tests.harness.rabbitmq import USER, rabbitmq
from tests.harness.rabbitmq_cluster import rabbitmq_cluster
from tests.harness.secret_files import write_secret
from tests.harness.wall_clock import WallClock

BY_PIKA: Final = frozenset({Topology.PIKA, Topology.WIRE})  # whose producers are pika
LABEL: Final = "chaos"
MANY_RECEIVERS: Final = "\n[limits.leases]\nmax_receivers = 5000\n"  # the audit reads all queues
CONSUMED: Final = ("orders", "invoices")
CLOCKED: Final = (
    FaultTarget.GATEWAY,
    FaultTarget.SYPHON,
    FaultTarget.PRIMARY,
    FaultTarget.SECONDARY,
)
BASELINE: Final = "baseline"  # a queue of the primary that no gateway sends to
BACKLOG_QUEUES: Final = 4
SYPHON_BATCH: Final = 10
MOST_IN_FLIGHT: Final = (
    BACKLOG_QUEUES * SYPHON_BATCH
)  # messages, at most, that one syphon moves at once
NEIGHBOURS_LOOKS: Final = 12  # locks; so often in a row the wrong one is first once in 4,096 times
LOCK: Final = 5.0  # seconds; the pair takes backlog queues as it finds them
ATTEMPT: Final = 3.0  # seconds for one transfer of the syphon
PING: Final = 1.0
HOLD: Final = 2.0
GRACE: Final = 2.0  # seconds for which a syphon with a wrong key waits


def entities_of(scenario: Scenario) -> list[str]:
    """The queues that are sent to; those of `CONSUMED` come first."""
    more = range(len(CONSUMED), scenario.entities)
    return [*CONSUMED, *(f"queue-{number:04}" for number in more)]


def bounds_of(scenario: Scenario, interval: str) -> Bounds:
    """
    Return the bounds that the configuration of `gateway_config` promises.

    Messages that were delivered before wait in the first seconds of a syphon whose predecessor was
    killed. A syphon of another pair locks messages that it leaves untouched, each time that it is
    the first to look.
    """
    rest = max(HOLD, redelivery_guard.WAIT.cap) if scenario.kills_a_syphon else HOLD
    if scenario.neighbour:
        rest = NEIGHBOURS_LOOKS * LOCK
    return Bounds(
        raises_unknown=scenario.on_unknown == "raise",
        failover_interval=float(interval.removesuffix("s")),
        send_timeout=scenario.send_timeout,
        attempt_timeout=scenario.attempt_timeout,
        ping_interval=PING,
        lock=LOCK,
        longest_backoff=1.2 * rest,
        drain_rate=50.0,  # far below the rates that `benchmarks/syphon.py` measures
        quiet=4.0,
        slack=2.0,  # for a machine that does other things as well
    )


@attrs.define(eq=False)
class Namespace:
    """
    A namespace of the pair: its process, its port, and the proxy before it where there is one.
    """

    name: str
    server: Server
    port: int
    queues: Sequence[EntityPath]
    proxy: ChaosProxy | None
    with_sessions: Collection[EntityPath] = ()

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

    async def make_queues(self) -> None:
        """Raises as `Broker.create_queue`."""
        lock = timedelta(seconds=LOCK)
        async with self.client() as broker:
            for queue in self.queues:
                properties = QueueProperties()
                if backlog.is_backlog(queue):
                    properties = backlog.QUEUE_PROPERTIES
                if not isinstance(self.server, RabbitServer):
                    properties = attrs.evolve(properties, lock_duration=lock)
                if queue in self.with_sessions:
                    properties = attrs.evolve(properties, requires_session=True)
                await broker.create_queue(queue, properties)
        if isinstance(self.server, RabbitServer):
            await self.server.keep_queues()


class SessionsUnread:
    """A `Receiver` that gets nothing: the audit waits until a queue with sessions is empty."""

    async def receive(self, limit: int) -> Sequence[Delivery]:
        await trio.sleep_forever()

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        raise SessionRequired("no message was received")

    async def renew(self, delivery: Delivery) -> datetime:
        raise SessionRequired("no message was received")


@attrs.define(eq=False)
class KnownQueues:
    """
    A namespace that lists the queues that were made there: RabbitMQ itself can't.

    Those `with_sessions` are left to their consumers: the audit fails while they have messages.
    """

    broker: Broker
    queues: Sequence[EntityPath]
    with_sessions: Collection[EntityPath] = ()

    def open_receiver(self, entity: EntityPath) -> AbstractAsyncContextManager[Receiver]:
        if entity in self.with_sessions:
            return nullcontext(SessionsUnread())
        return self.broker.open_receiver(entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.broker.inspect(entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return [await self.inspect(queue) for queue in self.queues[skip : skip + top]]


@attrs.define(eq=False)
class Installation:
    """Everything that runs. `syphons` are processes of their own."""

    fleet: Fleet
    topology: Topology
    scenario: Scenario
    interval: str
    primary: Namespace
    secondary: Namespace
    clocks: Mapping[FaultTarget, WallClock]  # of our processes, where a fault sets one
    neighbour: Namespace | None = None  # the primary of another pair
    gateway: DemoMachine = attrs.field(init=False)
    syphons: list[DemoMachine] = attrs.field(factory=list, init=False)
    # Producers whose stamps tell the copies of a message apart: no store of ours counts by them.
    pikas: list[PikaProducer] = attrs.field(factory=list, init=False)

    @property
    def key(self) -> Path:
        return self.fleet.folder / "envelope.key"

    def clocks_of(self, target: FaultTarget) -> Sequence[WallClock]:
        """Return the clock of that target's process; for the host, the clocks of all processes."""
        return list(self.clocks.values()) if target is FaultTarget.HOST else [self.clocks[target]]

    async def start(self) -> None:
        key = _made_key(self.key, self.scenario.seed)
        config = self._config(self.primary, key)
        self.gateway = await self.fleet.start("gateway", config)
        if self.neighbour is not None:
            await self.fleet.start("neighbour-gateway", self._config(self.neighbour, key))
        alone, _, _ = config.partition("[[endpoints]]")
        for number in range(self.scenario.syphons):
            syphon = await self.fleet.start(f"syphon-{number}", alone, command="syphon")
            self.syphons.append(syphon)

    async def mistake_key(self) -> None:
        """The syphons have another secret under the key's id from now on, and little patience."""
        wrong = _made_key(self.key.with_name("another.key"), self.scenario.seed + 1)
        right, mistaken = envelope_keys(self.key), envelope_keys(wrong)
        for syphon in self.syphons:
            config = syphon.config.replace(right, mistaken)
            config = config.replace(
                "[pairing.syphon]", f'[pairing.syphon]\ngone_grace = "{GRACE}s"'
            )
            await self._restart(syphon, config)

    async def mend_key(self) -> None:
        """Restart the syphons with both secrets."""
        wrong = self.key.with_name("another.key")
        mistaken, both = envelope_keys(wrong), envelope_keys(wrong, self.key)
        for syphon in self.syphons:
            await self._restart(syphon, syphon.config.replace(mistaken, both))

    async def _restart(self, machine: DemoMachine, config: str) -> None:
        await machine.stop()
        machine.config = config
        await machine.start(self.fleet.nursery)

    def _config(self, primary: Namespace, key: Path) -> str:
        config = gateway_config(
            primary.url,
            self.secondary.url,
            self.interval,
            key=key,
            scenario=self.scenario,
            protocol="rabbitmq" if self.topology in BY_PIKA else "service-bus-http",
        )
        if self.scenario.sessions:  # which REST doesn't have
            return config.replace('"service-bus-http"', '"service-bus"')
        if self.topology is not Topology.WIRE:
            return config
        # A gateway that starts in an outage has no other word for who its clients are.
        assert isinstance(primary.server, RabbitServer), "the topology says so"
        return f"""{config}
[[access]]
name = "{USER}"
key = {primary.server.reference}
rights = ["Send"]
"""

    @asynccontextmanager
    async def open_producer(self) -> AsyncIterator[Accepting]:
        """A producer before the gateway."""
        if self.topology not in BY_PIKA:
            async with client_of(self.gateway.port, connections=CONNECTIONS) as broker:
                yield accepting_send(broker)
            return
        async with open_pika(self.gateway.port) as pika:
            if self.topology is Topology.WIRE:
                self.pikas.append(pika)
            yield pika.send

    def note_acceptors(
        self, loops: Sequence[OpenLoop], records: Iterable[Record], enqueued: Mapping[str, float]
    ) -> None:
        """
        Note who has accepted each message, where no answer says so: by the stamps of copies; or by
        when the primary got the first copy of each, which is after its confirm where it came from
        the backlog. That date has whole seconds over REST.
        """
        if self.topology is Topology.PIKA:
            for loop in loops:
                loop.note_acceptors(
                    {
                        each.message_id
                        for each in loop.sends
                        if enqueued.get(each.message_id, math.inf) > each.answered
                    }
                )
        if not self.pikas:
            return
        stamps = {message: each for pika in self.pikas for message, each in pika.stamps.items()}
        diverted = {
            each.message_id
            for each in records
            if isinstance(each, Delivered)
            and each.copy != str(stamps[each.message_id].sequence_number)
        }
        for loop in loops:
            loop.note_acceptors(diverted)

    def consumers_client(self) -> AbstractAsyncContextManager[Broker]:
        """
        A client for consumers: at the primary itself, except where the gateway is a wire, or gives
        them messages of the backlog.
        """
        if self.scenario.sessions:
            assert isinstance(self.primary.server, AmqpServer), "the scenario says so"
            return self.primary.server.producer(self.gateway.port)
        if self.scenario.receives_in_outage:
            return client_of(self.gateway.port, connections=CONNECTIONS)
        if self.topology is Topology.WIRE:
            return self.primary.server.client(self.gateway.port)
        return self.primary.client()

    def namespace(self, target: FaultTarget) -> Namespace:
        return self.primary if target is FaultTarget.PRIMARY else self.secondary


@asynccontextmanager
async def open_installation(
    fleet: Fleet, topology: Topology, scenario: Scenario, interval: str
) -> AsyncIterator[Installation]:
    """Namespaces with their queues, and a gateway; RabbitMQs are gone afterwards."""
    sessions = scenario.sessions > 0
    entities = [EntityPath(queue) for queue in entities_of(scenario)]
    own = [
        backlog.own_queue(LABEL, EntityPath(queue), sessions=sessions)
        for queue in scenario.pairing.get("receive_in_outage", ())
    ]
    common = [backlog.queue_name(LABEL, index) for index in range(BACKLOG_QUEUES)]
    queues = {"primary": [*entities, EntityPath(BASELINE)], "secondary": [*common, *own]}
    with_sessions = {*entities, *own} if sessions else set()
    clocks: dict[FaultTarget, WallClock] = {}
    if scenario.clocked:
        fleet.folder.mkdir(parents=True, exist_ok=True)
        clocks = {each: WallClock(fleet.folder / f"clock of {each.value}") for each in CLOCKED}
        fleet.environment_of = lambda name: clocks[FaultTarget(name.partition("-")[0])].environment
    namespaces: dict[str, Namespace] = {}
    async with AsyncExitStack() as stack:
        for name, opener in zip(queues, SIDES[topology], strict=True):
            server, port = await opener(fleet, stack, name)
            proxy = None
            if scenario.proxied:
                proxy = ChaosProxy("127.0.0.1", port, rng=random.Random(scenario.seed))
                await fleet.nursery.start(proxy.serve)
            namespaces[name] = Namespace(name, server, port, queues[name], proxy, with_sessions)
            await namespaces[name].make_queues()
        primary, secondary = namespaces.values()
        neighbour: Namespace | None = None
        if scenario.neighbour:
            server, port = await SIDES[topology][0](fleet, stack, "neighbour")
            neighbour = Namespace("neighbour", server, port, primary.queues, None)
            await neighbour.make_queues()
        installation = Installation(
            fleet, topology, scenario, interval, primary, secondary, clocks, neighbour
        )
        await installation.start()
        yield installation


async def _embedded(fleet: Fleet, _: AsyncExitStack, name: str) -> tuple[Server, int]:
    machine = await fleet.start(name, broker_config() + MANY_RECEIVERS)
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


async def _cluster(fleet: Fleet, stack: AsyncExitStack, name: str) -> tuple[Server, int]:
    home = fleet.folder / name
    home.mkdir(parents=True)
    cluster = await stack.enter_async_context(rabbitmq_cluster(home))
    return ClusterServer(cluster), next(iter(cluster.ports.values()))


async def _azurite(fleet: Fleet, stack: AsyncExitStack, name: str) -> tuple[Server, int]:
    process, port = await stack.enter_async_context(azurite(fleet.folder / name))
    return AzuriteServer(process), port


Opener = Callable[[Fleet, AsyncExitStack, str], Awaitable[tuple[Server, int]]]
SIDES: Final[Mapping[Topology, tuple[Opener, Opener]]] = {
    Topology.EMBEDDED: (_embedded, _embedded),
    Topology.AMQP: (_amqp, _amqp),
    Topology.PIKA: (_embedded, _embedded),
    Topology.RABBITMQ: (_rabbitmq, _rabbitmq),
    Topology.MIXED: (_rabbitmq, _embedded),
    Topology.WIRE: (_rabbitmq, _embedded),
    Topology.CLUSTER: (_cluster, _embedded),
    Topology.CLUSTER_SECOND: (_embedded, _cluster),
    Topology.AZURITE: (_azurite, _azurite),
}


def envelope_keys(*keys: Path) -> str:
    """The option: all of one id."""
    each = (f'{{ id = "1", key = {{ file = {json.dumps(str(key))} }} }}' for key in keys)
    return f"envelope_keys = [{', '.join(each)}]"


def _made_key(path: Path, seed: int) -> Path:
    write_secret(path, random.Random(seed).randbytes(16).hex())
    return path


def gateway_config(
    primary: str, secondary: str, interval: str, *, key: Path, scenario: Scenario, protocol: str
) -> str:
    """A gateway before the two namespaces, with times that suit a run of half a minute."""
    options: dict[str, Any] = {
        "label": LABEL,
        "on_unknown": scenario.on_unknown,
        "failover_interval": interval,
        "send_timeout": f"{scenario.send_timeout}s",
        "attempt_timeout": f"{scenario.attempt_timeout}s",
        "ping_interval": f"{PING}s",
        "busy_pause": "1s",
        "backlog_cooldown": "1s",
        "backlog_queues": BACKLOG_QUEUES,
        "enable_syphon": not scenario.syphons,
        **scenario.pairing,
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
{envelope_keys(key)}
{lines}

[logging]
level = "debug"

[pairing.syphon]
batch = {SYPHON_BATCH}
attempt_timeout = "{ATTEMPT}s"
unknown_retry = {pause}
retry = {pause}
queue_retry = {pause}
busy_pause = "1s"
rescan = "2s"

[[endpoints]]
protocol = "{protocol}"
bind = "127.0.0.1:0"
"""
