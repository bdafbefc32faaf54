"""
Settlements and receives without an answer, on each front end, and on each behind another gateway.

    client ─▶ endpoint ─▶ store                           "direct"
    client ─▶ endpoint ─▶ adapter ─▶ endpoint ─▶ store    "behind"

The store takes its time, does what it is asked late or never, or loses the answer. The namespace
behind a gateway may be slow. Clients cut their receives at any moment, settle in every way that
their protocol has, give up, and try again. Then no answer is lost any more, and one client, which
still cuts its receives, takes what is left. The laws:

    done        what a client was told is done stays done
    not done    what it was told is not done comes again
    hidden      what nobody has taken away is received, whatever was cut before and is cut now
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final

import attrs
import trio

from gateway.brokers.servicebus.broker import ServiceBusRestBroker, ServiceBusRestOptions
from gateway.brokers.servicebus.peer import EntityTokens
from gateway.config.kinds import Adapter
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Message,
    MessageState,
    Settlement,
)
from gateway.net.http.client import HttpClient
from gateway.ports import Broker, Receiver
from gateway.store.local.memory import MemoryBroker
from tests.frontends.rest_client import wall_clock
from tests.harness.determinism import run_seeded
from tests.harness.faults import (
    Fault,
    FaultyBroker,
    Hang,
    Late,
    LoseAnswer,
    Operation,
    Reset,
    SwallowAnswer,
)
from tests.simulation import amqp, storage_queue
from tests.simulation.access import HOST, POLICY, TOKENS_LIFE
from tests.simulation.endpoint import Endpoint
from tests.simulation.network import Network
from tests.simulation.scenario import Front
from tests.simulation.seeds import FRONTS
from tests.simulation.sessions import LateStream

WAYS: Final = tuple((front, way) for front in FRONTS for way in ("direct", "behind"))
QUEUE: Final = EntityPath("jobs")
MESSAGES: Final = 40
CLIENTS: Final = 2
LOCK: Final = 20.0  # seconds
CHAOS: Final = 150.0  # seconds, in which answers are lost
CUTS: Final = (0.1, 0.5, 2.0, 10.0)  # seconds after which a client cuts its receive
PATIENCE: Final = (1.0, 5.0, 40.0)  # seconds that it waits for the answer to a settlement
LATENCY: Final = 0.05  # seconds that the store takes for a request at most, each way
# Seconds for which the bytes of a slow namespace are on their way at most. A connection of AMQP
# needs several answers, which must come within its `connect_timeout`.
SLOW: Final = {Front.REST: 1.5, Front.STORAGE_QUEUE: 1.5, Front.AMQP: 0.4}
SHORT: Final = 0.7  # seconds after which the last client cuts; most answers of a slow one are later
HELD: Final = 45.0  # seconds: an endpoint still waits for an answer to a settlement of the chaos
DEFERS: Final = {Front.REST: [Defer()], Front.STORAGE_QUEUE: [], Front.AMQP: [Defer()]}
LONGEST: Final = HELD + LOCK + MESSAGES * 20.0  # seconds, for what is left


@attrs.define(eq=False)
class Fate:
    """
    A message, as its clients know it. Its deliveries are numbered.

    A settlement that takes it away completes it, dead-letters it or defers it.
    """

    taken_by: set[int] = attrs.field(factory=set)  # it may be taken away by these deliveries
    is_away: bool = False  # a client was told so
    denied: int | None = None  # the last delivery that was told that it took nothing away
    last: int = -1  # the last delivery

    @property
    def must_come(self) -> bool:
        return not self.taken_by

    @property
    def was_lied_about(self) -> bool:
        """True if only the settlement that was told as not done can have taken it away."""
        return self.denied == self.last and self.taken_by <= {self.denied}


@attrs.define(eq=False)
class Judge:
    """Knows all messages; `broken` says in sentences what must not be."""

    way: str
    fates: list[Fate] = attrs.field(factory=lambda: [Fate() for _ in range(MESSAGES)])
    broken: list[str] = attrs.field(factory=list)
    told: Counter[str] = attrs.field(factory=Counter)  # done, not-sent, unknown
    cut: int = 0  # receives
    deliveries: int = 0
    came: set[int] = attrs.field(factory=set)  # since all is well

    def note_delivery(self, number: int) -> int:
        self.deliveries += 1
        fate = self.fates[number]
        if fate.is_away:
            self.broken.append(f"{self.way}: message {number} was told to be done, and came again")
        fate.last = self.deliveries
        self.came.add(number)
        return self.deliveries

    def note_begin(self, number: int, delivery: int) -> None:
        """A settlement is asked for that takes the message away."""
        self.fates[number].taken_by.add(delivery)

    def note_verdict(self, number: int, delivery: int, outcome: Outcome | None) -> None:
        """The answer to it: done, not done or unknown."""
        fate = self.fates[number]
        self.told["done" if outcome is None else outcome.value] += 1
        if outcome is None:
            fate.is_away = True
        elif outcome is Outcome.NOT_SENT:
            fate.denied = delivery

    def note_end(self, left: set[int]) -> None:
        """All was received that came; `left`: is in the queue, and not deferred."""
        for number, fate in enumerate(self.fates):
            gone = number not in self.came and number not in left
            if gone and fate.was_lied_about:
                self.broken.append(f"{self.way}: message {number} was told not to be done, and is")
            elif fate.must_come and number not in self.came:
                self.broken.append(f"{self.way}: message {number} is hidden")


@attrs.define(eq=False)
class User:
    """A client that receives and settles, and gives up at any moment."""

    adapter: Adapter
    judge: Judge
    rng: random.Random
    front: Front
    is_last: bool = False

    async def run(self) -> None:
        """Live until cancelled."""
        while True:
            try:
                async with self.adapter.open_receiver(QUEUE) as receiver:
                    with trio.move_on_after(30.0):
                        while True:
                            await self._round(receiver)
            except BrokerError:
                await trio.lowlevel.checkpoint()
            await trio.sleep(self.rng.uniform(0.1, 1.0))

    async def _round(self, receiver: Receiver) -> None:
        deliveries: Sequence[Delivery] = ()
        cut = SHORT if self.is_last else self.rng.choice(CUTS)
        with trio.move_on_after(cut) as scope:
            deliveries = await receiver.receive(self.rng.randint(1, 3))
        self.judge.cut += scope.cancelled_caught
        numbers = [int(bytes(each.message.body)) for each in deliveries]
        # Before the first is settled: the lock of a later one may end meanwhile, and then another
        # client takes it away.
        names = [self.judge.note_delivery(number) for number in numbers]
        for each, number, name in zip(deliveries, numbers, names, strict=True):
            await self._settle(receiver, each, number, name)
        await trio.sleep(self.rng.choice([0.0, 0.2]))

    async def _settle(self, receiver: Receiver, delivery: Delivery, number: int, name: int) -> None:
        settlement = self._choose()
        takes_away = not isinstance(settlement, Abandon)
        for _ in range(self.rng.randint(1, 3)):
            if takes_away:
                self.judge.note_begin(number, name)
            outcome = await self._ask(receiver, delivery, settlement)
            if takes_away:
                self.judge.note_verdict(number, name, outcome)
            if outcome is not Outcome.UNKNOWN:
                return
            await trio.sleep(self.rng.uniform(0.0, 5.0))

    def _choose(self) -> Settlement:
        if self.is_last:
            return Complete()
        away = [Complete(), DeadLetter(reason="a test"), *DEFERS[self.front]]
        return self.rng.choice([Complete(), Abandon(), *away])

    async def _ask(
        self, receiver: Receiver, delivery: Delivery, settlement: Settlement
    ) -> Outcome | None:
        with trio.move_on_after(self.rng.choice(PATIENCE)):
            try:
                await receiver.settle(delivery, settlement)
            except BrokerError as error:
                return error.outcome
            return None
        return Outcome.UNKNOWN


@attrs.define(eq=False)
class World:
    """A queue, the way to it, and its clients."""

    seed: int
    front: Front
    way: str
    rng: random.Random = attrs.field(init=False)
    judge: Judge = attrs.field(init=False)
    _is_slow: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        name = f"{self.front.value}, {self.way}"
        self.rng = random.Random(f"{self.seed} {name}")
        self.judge = Judge(name)
        self._is_slow = self.rng.random() < 0.5

    async def run(self) -> None:
        store = MemoryBroker(wall_clock, self.rng)
        lock = timedelta(seconds=LOCK)
        await store.create_queue(
            QUEUE, QueueProperties(lock_duration=lock, max_delivery_count=1_000_000)
        )
        await store.send(QUEUE, [Message(body=b"%d" % each) for each in range(MESSAGES)])
        async with trio.open_nursery() as nursery:
            faulty = FaultyBroker(inner=store, fault=self._fault, latency=self._latency)
            await nursery.start(faulty.run)
            network = await self._served(faulty, nursery)
            async with self._behind(network) as network:
                await self._use(network)
            nursery.cancel_scope.cancel()
        there = await store.peek(QUEUE, limit=MESSAGES)
        left = [each for each in there if each.state is not MessageState.DEFERRED]
        self.judge.note_end({int(bytes(each.message.body)) for each in left})

    @asynccontextmanager
    async def _behind(self, network: Network) -> AsyncIterator[Network]:
        if self.way == "direct":
            yield network
            return
        way = _SlowNetwork(network, self.rng, SLOW[self.front]) if self._is_slow else network
        async with self._adapter(way) as adapter, trio.open_nursery() as nursery:
            yield await self._served(adapter, nursery)
            nursery.cancel_scope.cancel()

    async def _use(self, network: Network) -> None:
        with trio.move_on_at(CHAOS):
            async with trio.open_nursery() as nursery:
                for _ in range(CLIENTS):
                    nursery.start_soon(self._client, network)
        self.judge.came.clear()
        with trio.move_on_after(LONGEST):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(self._client, network, is_last=True))
                await self._wait_complete()
                nursery.cancel_scope.cancel()

    async def _wait_complete(self) -> None:
        """Return when all has come that must, and no late answer of the chaos can follow."""
        pause = HELD + LOCK
        while pause:
            await trio.sleep(pause)
            pause = 0.0 if self._is_complete else 1.0

    @property
    def _is_complete(self) -> bool:
        fates = enumerate(self.judge.fates)
        return all(number in self.judge.came or not fate.must_come for number, fate in fates)

    async def _client(self, network: Network, *, is_last: bool = False) -> None:
        async with self._adapter(network) as adapter:
            await User(adapter, self.judge, self.rng, self.front, is_last).run()

    def _adapter(self, network: Any) -> Adapter:
        match self.front:
            case Front.REST:
                return rest_adapter(network)
            case Front.STORAGE_QUEUE:
                return storage_queue.adapter(network, wall_clock, self.rng)
            case Front.AMQP:
                return amqp.adapter(network, wall_clock, self.rng)

    async def _served(self, broker: Broker, nursery: trio.Nursery) -> Network:
        endpoint = Endpoint(
            front=self.front,
            broker=broker,
            clock=wall_clock,
            rng=self.rng,
            send_timeout=10.0,
            receives=True,
        )
        await nursery.start(endpoint.run)
        network = Network(
            rng=self.rng, breaking=0.0, until=0.0, on_break=lambda: None, serve=endpoint.serve
        )
        await nursery.start(network.run)
        return network

    def _latency(self) -> float:
        return self.rng.uniform(0.0, LATENCY)

    def _fault(self, operation: Operation, entity: EntityPath) -> Fault | None:
        rng, share = self.rng, {Operation.SETTLE: 0.5, Operation.RECEIVE: 0.1}.get(operation, 0.0)
        if trio.current_time() >= CHAOS or rng.random() >= share:
            return None
        if operation is Operation.RECEIVE:
            return rng.choice([LoseAnswer(), Late(rng.uniform(1.0, 8.0)), Hang(3.0)])
        hang, late = Hang(HELD), Late(rng.uniform(1.0, 8.0))
        return rng.choice([Reset(), LoseAnswer(), SwallowAnswer(), SwallowAnswer(), hang, late])


@attrs.define(eq=False)
class _SlowStream(LateStream):
    _most: float  # seconds

    def _delay(self) -> float:
        return self._rng.uniform(0.5 * self._most, self._most)


@attrs.define(eq=False)
class _SlowNetwork:
    """A network whose bytes are late; for an adapter, which only connects."""

    _network: Network
    _rng: random.Random
    _most: float

    async def connect(self) -> trio.abc.Stream:
        return _SlowStream(await self._network.connect(), self._rng, self._most)


def rest_adapter(network: Any) -> ServiceBusRestBroker:
    """A client's, over Service Bus REST."""
    client, polls = (HttpClient(HOST, 80, connect=network.connect) for _ in range(2))
    tokens = EntityTokens(
        origin=f"http://{HOST}:80",
        key_name=POLICY.name,
        key=POLICY.keys[0],
        lifetime=TOKENS_LIFE,
        clock=wall_clock,
    )
    return ServiceBusRestBroker(
        client=client,
        polls=polls,
        tokens=tokens,
        options=ServiceBusRestOptions(key=POLICY.keys[0]),
        clock=wall_clock,
    )


def run_settlements(seed: int, front: Front, way: str) -> Judge:
    """Run that seed on that way; return what its judge has seen."""
    world = World(seed, front, way)
    run_seeded(world.run, seed=seed)
    return world.judge


def first_broken(seeds: Sequence[int]) -> Sequence[str]:
    """The broken laws of the first of these seeds that breaks any."""
    for seed in seeds:
        for front, way in WAYS:
            if broken := run_settlements(seed, front, way).broken:
                return broken
    return ()
