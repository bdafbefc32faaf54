"""
The order of a session, whatever its clients do, behind each kind of way to a namespace.

    client ─▶ endpoint ─▶ store                           "store": its steps take time
    client ─▶ endpoint ─▶ AMQP ─▶ endpoint ─▶ store       "gateway": behind another one

Clients accept the session one after the other. They give credit, drain, complete, abandon and
release in any order, with new credit in the same write, and leave: they detach, close or cut their
connection, or let the lock run out. The laws:

    order       the next delivery is the first message that is available
    count       abandoning and the end of a lock count a delivery, nothing else does
    drain       is answered at once
    lock        a client is told at once that its lock has ended
    fate        each message is completed in the end
"""

import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import attrs
import trio

from gateway.brokers.amqp.cbs import Signer
from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.amqp.peer import NamespaceAccess
from gateway.brokers.amqp.servicebus import ServiceBusBroker
from gateway.brokers.meter import Meter
from gateway.brokers.servicebus.peer import RestPeer
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.net.http.client import HttpClient
from gateway.net.server_address import ServerAddress
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.step import Step
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.amqp.servicebus.deliveries import decode_delivery
from gateway.wire.amqp.servicebus.links import FILTER
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.rest_client import KEY, POLICIES, ROOT, wall_clock
from tests.harness.determinism import run_seeded
from tests.simulation.network import Network

T = TypeVar("T")

WAYS: Final = ("store", "gateway")
QUEUE: Final = EntityPath("chats")
MESSAGES: Final = 40
LOCK: Final = 5.0  # seconds
TICK: Final = 1 / 128  # seconds; all delays are whole ticks: what can coincide does so often
STEPS: Final = (0.0, 0.0, TICK, 2 * TICK)  # that a step of the store takes
LATENCIES: Final = (0.0, 0.0, 0.0, 0.0, TICK, 2 * TICK)  # for which bytes are on their way
AT_ONCE: Final = 0.4  # seconds: some steps, over two connections
LONGEST: Final = 1800.0  # seconds after which each message must be completed
ABANDONED: Final = amqp.Modified(delivery_failed=True)
WAYS_TO_LEAVE: Final = ("detach", "detach", "close", "cut", "lock")


class LateStore(MemoryBroker):
    """A store whose steps run one after the other, a moment later, as those of a file do."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(wall_clock, rng)
        self._chance = rng
        self._steps: deque[tuple[Step[Any], bool]] = deque()
        self._more = trio.lowlevel.ParkingLot()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while True:
            while not self._steps:
                await self._more.park()
            await trio.sleep(self._chance.choice(STEPS))
            step, is_awaited = self._steps.popleft()
            super()._post(step)
            if step.task is not None:
                trio.lowlevel.reschedule(step.task)
            elif is_awaited and step.undo is not None and step.error is None:
                step.undo(step.result())

    async def _run(self, step: Step[T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        step.task = trio.lowlevel.current_task()
        self._steps.append((step, True))
        self._more.unpark()
        await trio.lowlevel.wait_task_rescheduled(step.leave)
        return step.result()

    def _post(self, step: Step[Any]) -> None:
        self._steps.append((step, False))
        self._more.unpark()


@attrs.define(eq=False)
class LateStream(trio.abc.Stream):
    """A stream whose bytes are on their way for a moment. A receive that is cut loses none."""

    _inner: trio.abc.Stream
    _rng: random.Random
    _under_way: bytes | bytearray | None = attrs.field(default=None, init=False)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._under_way is None:
            self._under_way = await self._inner.receive_some(max_bytes)
        await trio.sleep(self._delay())
        data, self._under_way = self._under_way, None
        return data

    def _delay(self) -> float:
        return self._rng.choice(LATENCIES)

    async def aclose(self) -> None:
        await self._inner.aclose()


@attrs.define(eq=False)
class Fate:
    """A message, as its clients know it."""

    number: int
    least: int = 1  # the count of its next delivery is not below
    most: int = 1
    completed: bool = False
    may_be_completed: bool = False
    # Available before any credit that is still open: later messages must come after it.
    is_next: bool = True

    @property
    def is_gone(self) -> bool:
        return self.completed or self.may_be_completed


@attrs.define(eq=False)
class Judge:
    """Knows all messages of the session; `broken` says in sentences what must not be."""

    fates: list[Fate] = attrs.field(factory=list)
    broken: list[str] = attrs.field(factory=list)
    deliveries: int = 0
    returned: int = 0

    def note_delivery(self, number: int, count: int, held: set[int], way: str) -> None:
        self.deliveries += 1
        fate = self.fates[number]
        before = [
            each.number
            for each in self.fates[:number]
            if each.is_next and each.number not in held and not each.is_gone
        ]
        if before:
            self.broken.append(f"{way}: message {number} has overtaken {before}")
        if fate.completed:
            self.broken.append(f"{way}: message {number} was completed, and came again")
        if not fate.least <= count <= fate.most:
            self.broken.append(
                f"{way}: message {number} has the count {count}, not {fate.least} to {fate.most}"
            )
        fate.may_be_completed = False

    def note_end(self) -> None:
        """Nothing is left in the queue."""
        if lost := [each.number for each in self.fates if not each.is_gone]:
            self.broken.append(f"messages are lost: {lost}")

    def note_lost(self, held: set[int]) -> None:
        """A lock has ended: it counts for all that were delivered, also those still on the way."""
        for each in self.fates:
            each.most += 1
            each.least += each.number in held


@attrs.define(eq=False)
class Visit:
    """A client that has the session for a while."""

    sdk: Sdk
    judge: Judge
    rng: random.Random
    way: str
    held: dict[int, amqp.TransferReceived] = attrs.field(factory=dict)
    settled: list[tuple[float, Fate, str]] = attrs.field(factory=list)
    link: Any = None
    began: float = 0.0

    async def accept(self) -> bool:
        source = amqp.Terminus(address=QUEUE.name, filters={FILTER: "a"})
        self.link = self.sdk.attach(we_send=False, address=QUEUE.name, source=source)
        answer = await self.sdk.until(amqp.LinkAttached, lambda event: event.link == self.link)
        self.began = trio.current_time()
        return answer.source is not None

    async def use(self) -> None:
        """Some rounds; then the client leaves, and with it its link."""
        self._settle_order()
        for _ in range(self.rng.randint(1, 6)):
            if not await self._round():
                return

    async def _round(self) -> bool:
        engine, rng = self.sdk.engine, self.rng
        engine.grant(self.link, rng.randint(1, 8))
        await trio.sleep(rng.choice([0, 1, 2, 4, 8, 16, 64]) * TICK)
        self._look()
        if rng.random() < 0.4:
            await self._drain()
        if trio.current_time() > self.began + LOCK - 1.0:
            return False
        # Settlements and new credit may share a write; those without credit to come are strict.
        numbers = list(self.held)
        rng.shuffle(numbers)
        for number in numbers:
            self._settle(number)
        if engine.credit(self.link) <= 0:
            self._settle_order()
        return True

    def _look(self) -> None:
        for event in list(self.sdk.told):
            if isinstance(event, amqp.TransferReceived) and event.link == self.link:
                self.sdk.told.remove(event)
                delivery = decode_delivery(event.payload)
                number = int(delivery.message.message_id or 0)
                held = set(self.held)
                self.judge.note_delivery(number, delivery.delivery_count, held, self.way)
                self.held[number] = event
        if self.sdk.engine.credit(self.link) <= 0:
            self._settle_order()

    def _settle_order(self) -> None:
        """No credit is open: what is available now comes before all that is delivered later."""
        for each in self.judge.fates:
            each.is_next = each.number not in self.held and not each.completed

    async def _drain(self) -> None:
        if self.sdk.engine.credit(self.link) <= 0:
            return
        self.sdk.engine.drain(self.link)
        began = trio.current_time()
        with trio.move_on_after(2.0):
            await self.sdk.until(amqp.LinkDrained, lambda event: event.link == self.link)
        took = trio.current_time() - began
        if took > AT_ONCE:
            self.judge.broken.append(f"{self.way}: a drain was answered after {took:.2f} s")
        self._look()

    def _settle(self, number: int) -> None:
        engine, fate = self.sdk.engine, self.judge.fates[number]
        how = self.rng.choice(["complete", "complete", "abandon", "release", "keep"])
        if how == "keep":
            return
        delivery = self.held.pop(number).delivery
        self.settled.append((trio.current_time(), fate, how))
        tell = self.rng.choice([engine.settle, engine.update])
        if how == "complete":
            tell(delivery, amqp.ACCEPTED)
            fate.completed = True
            return
        tell(delivery, amqp.RELEASED if how == "release" else ABANDONED)
        self.judge.returned += 1
        fate.is_next = False  # later ones may be on their way
        if how == "abandon":
            fate.least, fate.most = fate.least + 1, fate.most + 1

    async def leave(self, how: str) -> None:
        """Leave, so that the session is free afterwards."""
        engine = self.sdk.engine
        if how == "detach":
            engine.detach(self.link, awaited=True)
            await self.sdk.until(amqp.LinkDetached)
        elif how == "close":
            await self.sdk.connection.close()
        elif how == "lock":
            with trio.move_on_after(2 * LOCK):
                await self.sdk.until(amqp.LinkDetached, lambda event: event.link == self.link)
            late = trio.current_time() - self.began - LOCK
            if late > AT_ONCE:
                self.judge.broken.append(
                    f"{self.way}: the end of a lock was told {late:.2f} s late"
                )
        self._look()
        if how == "lock":
            self.judge.note_lost(set(self.held))
        if how == "cut":
            self._forget_recent()

    def _forget_recent(self) -> None:
        """Note that the endpoint may not have read the last settlements."""
        for at, fate, what in self.settled:
            if at < trio.current_time() - AT_ONCE:
                continue
            if what == "complete":
                fate.completed, fate.may_be_completed = False, True
            fate.least -= what == "abandon"


@attrs.define(eq=False)
class World:
    """A session with its messages, and a way to it."""

    seed: int
    way: str
    judge: Judge = attrs.field(factory=Judge)
    rng: random.Random = attrs.field(init=False)
    store: LateStore = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed} {self.way}")

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            store = LateStore(self.rng)
            await nursery.start(store.run)
            lock = timedelta(seconds=LOCK)
            await store.create_queue(
                QUEUE,
                QueueProperties(
                    requires_session=True, lock_duration=lock, max_delivery_count=1_000_000
                ),
            )
            network = await self._served(store, nursery)
            nursery.start_soon(self._send, store)
            self.store = store
            if self.way == "gateway":
                async with adapter_on(network, self.rng) as adapter:
                    await self._use(await self._served(adapter, nursery))
            else:
                await self._use(network)
            nursery.cancel_scope.cancel()

    async def _use(self, network: Network) -> None:
        with trio.move_on_after(LONGEST) as scope:
            while len(self.judge.fates) < MESSAGES or await self.store.peek(QUEUE):
                await self._visit(network)
        if scope.cancelled_caught:
            self.judge.broken.append(f"{self.way}: messages are stuck")
        else:
            self.judge.note_end()

    async def _served(self, broker: Broker, nursery: trio.Nursery) -> Network:
        leases = Leases(broker, wall_clock)
        await nursery.start(leases.run)
        frontend = AmqpFrontend(
            broker=broker,
            leases=leases,
            authorizer=Authorizer(POLICIES, wall_clock=wall_clock),
            wall_clock=wall_clock,
        )
        network = Network(
            rng=self.rng,
            breaking=0.0,
            until=0.0,
            on_break=lambda: None,
            serve=frontend.serve_connection,
        )
        await nursery.start(network.run)
        return network

    async def _send(self, store: MemoryBroker) -> None:
        """The messages arrive some at a time; none is on its way while it isn't known."""
        while len(self.judge.fates) < MESSAGES:
            first = len(self.judge.fates)
            numbers = range(first, min(MESSAGES, first + self.rng.randint(1, 8)))
            self.judge.fates += [Fate(number, is_next=False) for number in numbers]
            messages = [Message(message_id=f"{each}", session_id="a") for each in numbers]
            await store.send(QUEUE, messages)
            await trio.sleep(self.rng.randrange(256) * TICK)

    async def _visit(self, network: Network) -> None:
        stream = LateStream(await network.connect(), self.rng)
        async with trio.open_nursery() as nursery:
            sdk = Sdk.on(stream)
            nursery.start_soon(sdk.run)
            await sdk.open()
            await sdk.put_token()
            visit = Visit(sdk, self.judge, self.rng, self.way)
            if await visit.accept():
                await visit.use()
                await visit.leave(self.rng.choice(WAYS_TO_LEAVE))
            nursery.cancel_scope.cancel()
        await trio.sleep(self.rng.choice([0.0, 0.1]))


@asynccontextmanager
async def adapter_on(network: Network, rng: random.Random) -> AsyncIterator[ServiceBusBroker]:
    """The adapter of a gateway for the endpoint on that network."""

    async def dial(place: ServerAddress) -> trio.abc.Stream:
        return LateStream(await network.connect(), rng)

    signer = Signer(
        host="localhost", key_name=ROOT.name, key=KEY, lifetime=3600.0, clock=wall_clock
    )
    options = ServiceBusOptions(key=KEY)
    web = HttpClient("localhost", 1)
    adapter = ServiceBusBroker(
        access=NamespaceAccess(
            places=[ServerAddress(host="localhost", port=5672)],
            credentials=Credentials(mechanism="ANONYMOUS"),
            tokens=signer,
            dial=dial,
        ),
        access_tokens=None,
        signers=[signer],
        options=options,
        clock=wall_clock,
        rng=rng,
        web=web,
        peer=RestPeer(ask=web.request, tokens=signer, meter=Meter()),
        meter=Meter(),
    )
    async with adapter:
        yield adapter


def run_session(seed: int, way: str) -> Judge:
    """Run that seed on that way; return what its judge has seen."""
    world = World(seed, way)
    run_seeded(world.run, seed=seed)
    return world.judge


def first_broken(seeds: Sequence[int]) -> Sequence[str]:
    """The broken laws of the first of these seeds that breaks any."""
    for seed in seeds:
        for way in WAYS:
            if broken := run_session(seed, way).broken:
                return broken
    return ()
