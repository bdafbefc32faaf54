"""
A simulated pair with gateways that send to the same ordered entity, one at a time: the others wait
for the lease, or forward their sends.

Each producer sends one message after the other, each until it is acknowledged, through one gateway
or any: so every two acknowledged messages of a key have an order, unless they were sent at once.
Faults strike the connections of one gateway, or a namespace as a whole, or the connections between
the gateways; a held connection delays requests and answers for longer than a lease is valid.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Final, TypeVar

import attrs
import trio

from gateway.checker.history import Run
from gateway.checker.operations import Acked, CopyPlace, Failed, Found, Invoked, Record, Unknown
from gateway.checker.order import order_kept
from gateway.deadlines import answered_within
from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, NoAnswer, Outcome, Unreachable
from gateway.domain.events.gateway import Event
from gateway.domain.message import AcceptedBy, Message
from gateway.extensions.order.keys import key_of
from gateway.extensions.order.options import OnLeaseLost, OrderLeaseMode
from gateway.extensions.order.queues import (
    LEASE_PROPERTIES,
    ORDERED_PROPERTIES,
    lease_queue,
    ordered_queues,
)
from gateway.pairing.additions import PairDependencies, PairPeers
from gateway.pairing.options import PairOptions, SyphonOptions
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.message import encoded_size
from tests.harness.clocks import VirtualClock
from tests.harness.determinism import run_seeded
from tests.harness.faults import Fault, FaultyBroker, Operation, Refuse
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.harness.options import made
from tests.simulation.names import Names
from tests.simulation.network import Network
from tests.simulation.processes import GatewayProcess, Installation
from tests.simulation.scenario import Parts, Scenario

ORDERS: Final = EntityPath("orders")
LABEL: Final = "east"
NAMES: Final = ("primary", "secondary")
PEERS: Final = "peers"  # stands for a namespace where a gateway reaches the others
GATEWAYS: Final = ("gateway-0", "gateway-1")
FORWARDING: Final = (*GATEWAYS, "gateway-2")  # one may forward to another that a third one replaced
ALL: Final = "all"  # gateways
KEYS: Final = ("a", "b")
PRODUCERS: Final = 3
CHAOS: Final = 100.0  # seconds until all faults are over
LONGEST: Final = 50.0  # seconds of one fault
MOST_TRIES: Final = 12  # for one message
DRAIN: Final = 300  # seconds
SPAN: Final = 0.02  # seconds, at most, of one way to a namespace

T = TypeVar("T")


@attrs.frozen
class Trouble:
    """
    A fault that a gateway, or all, meet at a namespace from `start` to `end`.

    Other kinds: the gateway is killed; or the namespace restarts, which ends the locks of all.
    """

    kind: str  # refuse, hold, kill, restart
    gateway: str
    namespace: str
    start: float
    end: float

    def strikes(self, kind: str, gateway: str, namespace: str) -> bool:
        who = self.gateway in {gateway, ALL} and self.namespace == namespace
        return self.kind == kind and who and self.start <= trio.current_time() < self.end


@attrs.define(eq=False)
class Told:
    """The result of a history: its problems and its figures."""

    problems: tuple[str, ...]
    acked: int  # messages
    by_backlog: int  # of them
    gateways: int  # that were orderers
    forwarded: int  # sends that the orderer accepted for the other gateway


@attrs.define(eq=False, kw_only=True)
class _Network(Installation):
    """An installation whose connections meet the troubles of their process."""

    troubles: Sequence[Trouble]
    rng: random.Random
    world: "Orderers"

    def peers(self, origin: str) -> PairPeers:
        return PairPeers(orderers=_Channel(self, origin) if self.world.forwards else None)

    async def connect(self, process: str, namespace: str) -> FaultyBroker:
        gateway = process.removeprefix("syphon in ")

        def fault(operation: Operation, entity: EntityPath) -> Fault | None:
            return Refuse() if self.refuses(gateway, namespace) else None

        def latency() -> float:
            return self.latency(gateway, namespace)

        inner: Broker = self.primary if namespace == "primary" else self.secondary
        link = FaultySessionsBroker(inner=inner, fault=fault, latency=latency)
        await self.home.start(link.run)
        return link

    def refuses(self, gateway: str, namespace: str) -> bool:
        return any(one.strikes("refuse", gateway, namespace) for one in self.troubles)

    def latency(self, gateway: str, namespace: str) -> float:
        """Seconds for one way, from now on."""
        ends = [o.end for o in self.troubles if o.strikes("hold", gateway, namespace)]
        held = max(0.0, max(ends, default=0.0) - trio.current_time())
        return held + self.rng.uniform(0, SPAN)


@attrs.frozen(eq=False)
class _Channel:
    """
    The other gateways as the gateway `own` reaches them. A request that has left goes on, although
    the asking gateway gives it up or dies. Implements `OrderPeers`.
    """

    network: _Network
    own: str

    async def forward(
        self,
        address: str,
        entity: EntityPath,
        queue: EntityPath,
        hand_over: Callable[[], Sequence[Message]],
        seconds: float,
        *,
        not_sent: Callable[[], object],
    ) -> AcceptedBy:
        peer = self._peer(address)
        accepted_by = await self._ask(
            partial(peer.send_forwarded, entity, queue, hand_over(), seconds), seconds
        )
        self.network.world.forwarded += 1
        return accepted_by

    async def notify_orderer(self, address: str, queue: EntityPath) -> None:
        peer = self._peer(address)

        async def note() -> None:
            if peer.pair is not None:
                peer.pair.in_order.record_orderer(queue, self.own)

        await self._ask(note, inf)

    def _peer(self, address: str) -> GatewayProcess:
        [peer] = [each for each in self.network.world.gateways if each.name == address]
        if peer.pair is None or self.network.refuses(self.own, PEERS):
            raise Unreachable("no connection")
        return peer

    async def _ask(self, work: Callable[[], Awaitable[T]], seconds: float) -> T:
        answer, answers = trio.open_memory_channel[T | BrokerError](1)

        async def ask() -> None:
            await trio.sleep(self.network.latency(self.own, PEERS))
            try:
                result: T | BrokerError = await work()
            except BrokerError as error:
                result = error
            await trio.sleep(self.network.latency(self.own, PEERS))
            answer.send_nowait(result)

        self.network.home.start_soon(ask)
        with answered_within(seconds, error=NoAnswer):
            found = await answers.receive()
        if isinstance(found, BrokerError):
            raise found
        return found


@attrs.define(eq=False, kw_only=True)
class Orderers:
    """A history of gateways that compete to be orderer; `run` is all of it."""

    seed: int
    forwards: bool = False
    rng: random.Random = attrs.field(init=False)
    clock: VirtualClock = attrs.field(factory=VirtualClock)
    records: list[Record] = attrs.field(factory=list)
    events: list[Event] = attrs.field(factory=list)
    gateways: list[GatewayProcess] = attrs.field(factory=list)
    stores: dict[str, MemoryBroker] = attrs.field(init=False)
    orderers: set[str] = attrs.field(factory=set)
    by_backlog: int = 0
    forwarded: int = 0
    held_from: float = 0.0  # from then on the first gateway is held, and others are sent to

    def __attrs_post_init__(self) -> None:
        self.rng = random.Random(f"{'forwarders' if self.forwards else 'orderers'} {self.seed}")
        self.stores = {name: MemoryBroker(self.clock, self.rng) for name in NAMES}

    async def run(self) -> Told:
        with trio.fail_after(2 * (CHAOS + DRAIN) + MOST_TRIES * 200.0):
            async with trio.open_nursery() as nursery:
                await self._start(nursery)
                async with trio.open_nursery() as producers:
                    for number in range(PRODUCERS):
                        producers.start_soon(self._produce, number)
                problems = await self._drain()
                nursery.cancel_scope.cancel()
        decision = order_kept(Run.of(self.records))
        acked = {one.message_id for one in self.records if isinstance(one, Acked)}
        found = {one.message_id for one in self.records if isinstance(one, Found)}
        problems += [f"{each} is lost" for each in sorted(acked - found)]
        problems += decision.problems
        return Told(
            tuple(problems), len(acked), self.by_backlog, len(self.orderers), self.forwarded
        )

    # --- the installation

    async def _start(self, nursery: trio.Nursery) -> None:
        await self.stores["primary"].create_queue(ORDERS, QueueProperties())
        secondary = self.stores["secondary"]
        await secondary.create_queue(backlog.queue_name(LABEL, 0), backlog.QUEUE_PROPERTIES)
        for queue in ordered_queues(LABEL):
            await secondary.create_queue(queue, ORDERED_PROPERTIES)
        await secondary.create_queue(lease_queue(LABEL), LEASE_PROPERTIES)
        namespaces = [FaultySessionsBroker(inner=self.stores[name]) for name in NAMES]
        for namespace in namespaces:
            await nursery.start(namespace.run)
        troubles = self._troubles()
        for number, name in enumerate(self.names):
            installation = _Network(
                scenario=self._scenario(),
                primary=namespaces[0],
                secondary=namespaces[1],
                dependencies=self._dependencies,
                watch=lambda process, namespace, call: None,
                replaced=lambda process, well: None,
                home=nursery,
                network=Network(rng=self.rng, breaking=0.0, until=0.0, on_break=lambda: None),
                names=Names(),
                troubles=troubles,
                rng=self.rng,
                world=self,
            )
            gateway = GatewayProcess(name=name, installation=installation, syphons=number == 0)
            self.gateways.append(gateway)
            await nursery.start(gateway.run)
        for trouble in troubles:
            if trouble.kind == "kill":
                nursery.start_soon(self._kill, trouble)
            elif trouble.kind == "restart":
                nursery.start_soon(self._restart, trouble, namespaces[1])

    def _scenario(self) -> Scenario:
        rng = self.rng
        return Scenario(
            seed=self.seed,
            parts=Parts(ordered=True),
            pair=made(
                PairOptions,
                label=LABEL,
                failover_interval=rng.choice([0.0, 5.0]),
                send_timeout=120.0 if self._is_patient else rng.choice([20.0, 120.0]),
                attempt_timeout=60.0 if self._is_patient else rng.choice([5.0, 60.0]),
                slow_call_duration=rng.choice([2.0, None]),
                ping_interval=5.0,
                successes_to_return=1,
                backlog_queues=1,
                ordered=("orders",),
                order_lease=OrderLeaseMode.FORWARD if self.forwards else OrderLeaseMode.WAIT,
                on_lease_lost=OnLeaseLost.RAISE,
            ),
            syphon=SyphonOptions(
                retry=Backoff(first=1.0, cap=5.0), unknown_retry=Backoff(first=1.0, cap=5.0)
            ),
            syphons=0,
            producers=PRODUCERS,
            sends=0,
            latency=0.0,
            clients_deadline=None,
            windows=(),
            crashes=(),
        )

    def _dependencies(self, process: str) -> PairDependencies:
        return PairDependencies(
            clock=self.clock,
            rng=self.rng,
            new_id=lambda: f"{self.rng.getrandbits(64):016x}",
            observer=_Observer(self, process),
            measure=encoded_size,
        )

    @property
    def names(self) -> Sequence[str]:
        return FORWARDING if self.forwards else GATEWAYS

    @property
    def _is_patient(self) -> bool:
        """True if sends wait for answers that are late."""
        return self.seed % 4 == 2

    def _troubles(self) -> Sequence[Trouble]:
        """
        Draw the troubles; in two histories of four the first gateway is the orderer, and is held.
        """
        rng = self.rng
        start = rng.uniform(10.0, 20.0)
        match self.seed % 4:
            case 2:  # what it diverts arrives when the other one has been the orderer for long
                self.held_from = start
                return [
                    Trouble("refuse", GATEWAYS[0], "primary", start, start + 75.0),
                    Trouble("hold", GATEWAYS[0], "secondary", start, start + 50.0),
                ]
            case 3:  # its lock ends early, and what the other one diverts stays on the backlog
                self.held_from = start
                return [
                    Trouble("hold", GATEWAYS[0], "secondary", start, start + 50.0),
                    Trouble("restart", ALL, "secondary", start + 0.5, start + 0.6),
                    Trouble("refuse", GATEWAYS[1], "primary", start, start + 50.0),
                ]
        return [self._outage(), *(self._trouble() for _ in range(rng.randint(2, 8)))]

    async def _restart(self, trouble: Trouble, namespace: FaultyBroker) -> None:
        await trio.sleep_until(trouble.start)
        namespace.crash()
        await trio.sleep_until(trouble.end)
        namespace.restart()

    def _outage(self) -> Trouble:
        """Draw an outage of the primary, for one gateway or for all."""
        start = self.rng.uniform(5.0, CHAOS - LONGEST)
        gateway = self.rng.choice([*self.names, ALL])
        return Trouble("refuse", gateway, "primary", start, start + self.rng.uniform(5.0, LONGEST))

    def _trouble(self) -> Trouble:
        rng = self.rng
        start = rng.uniform(5.0, CHAOS - 10.0)
        return Trouble(
            kind=rng.choice(["refuse", "refuse", "hold", "hold", "kill"]),
            gateway=rng.choice([*self.names, *self.names, ALL]),
            namespace=rng.choice([*NAMES, PEERS] if self.forwards else NAMES),
            start=start,
            end=min(CHAOS, start + rng.choice([2.0, 15.0, LONGEST]) * rng.uniform(0.5, 1.0)),
        )

    async def _kill(self, trouble: Trouble) -> None:
        await trio.sleep_until(trouble.start)
        for gateway in self.gateways:
            if trouble.gateway in {gateway.name, ALL} and gateway.pair is not None:
                gateway.kill()
        await trio.sleep_until(trouble.end)
        for gateway in self.gateways:
            gateway.revive()

    # --- the clients

    async def _produce(self, number: int) -> None:
        known, longest_pause = self.gateways, 1.5
        if self.held_from:
            known, longest_pause = self.gateways[1:] if number else self.gateways[:1], 0.5
            await trio.sleep_until(self.held_from + 0.5 if number else 0.0)
            if number == 0 and self._is_patient:
                longest_pause = 3.0
        sent = 0
        while trio.current_time() < CHAOS + 20.0:
            await trio.sleep(self.rng.uniform(0.0, longest_pause))
            key = KEYS[0] if self.held_from else self.rng.choice(KEYS)
            message = Message(message_id=f"{number}-{sent}", body=b"body", session_id=key)
            sent += 1
            for _ in range(MOST_TRIES):
                if await self._send(self.rng.choice(known), message):
                    break
                await trio.sleep(self.rng.uniform(0.1, 2.0))

    async def _send(self, gateway: GatewayProcess, message: Message) -> bool:
        id_ = str(message.message_id)
        self.records.append(
            Invoked(
                at=trio.current_time(),
                message_id=id_,
                entity=ORDERS.key,
                fingerprint="",
                order=key_of(ORDERS, message).digest,
            )
        )
        kind: type[Acked] | type[Failed] | type[Unknown] = Acked
        try:
            accepted_by = await gateway.send(None, ORDERS, [message])
        except BrokerError as error:
            kind = Failed if error.outcome is Outcome.NOT_SENT else Unknown
        else:
            self.by_backlog += accepted_by is not None and accepted_by.value == "backlog"
        self.records.append(kind(at=trio.current_time(), message_id=id_))
        return kind is Acked

    # --- the end

    async def _drain(self) -> list[str]:
        """Wait until the backlog is empty; read what is on the primary."""
        for _ in range(DRAIN):
            if not await self._left():
                break
            await trio.sleep(1.0)
        left = await self._left()
        for delivery in await self.stores["primary"].peek(ORDERS, limit=100_000):
            self.records.append(
                Found(
                    at=trio.current_time(),
                    place=CopyPlace.PRIMARY,
                    queue=ORDERS.key,
                    message_id=str(delivery.message.message_id),
                    copy=str(delivery.sequence_number),
                )
            )
        return [f"{left} messages are left on the backlog after {DRAIN} s"] if left else []

    async def _left(self) -> int:
        queues = ordered_queues(LABEL)
        return sum([len(await self.stores["secondary"].peek(each)) for each in queues])


@attrs.frozen(eq=False)
class _Observer:
    """Notes which gateways were orderers."""

    world: Orderers
    process: str

    def report(self, event: Event) -> None:
        self.world.events.append(event)
        if type(event).__name__ == "OrderLeaseTaken":
            self.world.orderers.add(self.process)


def run_orderers(seed: int, *, forwards: bool = False) -> Told:
    """The history of that seed."""
    return run_seeded(Orderers(seed=seed, forwards=forwards).run, seed=seed)


def first_overtaken(seeds: Iterable[int], *, forwards: bool = False) -> int | None:
    """The first seed in whose history a message overtook one that was acknowledged before."""
    for seed in seeds:
        problems = run_orderers(seed, forwards=forwards).problems
        if any("arrived before" in problem for problem in problems):
            return seed
    return None
