"""
RabbitMQ's own clients through a gateway, before a RabbitMQ that is killed, frozen, or in part
silent.

    publishers, a consumer ─▶ the endpoint `rabbitmq` ─▶ a simulated RabbitMQ
                                   └─▶ the pair ─▶ a secondary ─▶ the syphon ─▶ RabbitMQ

Publishers ask for confirms and send on without waiting; the consumer acknowledges one by one, or
several at once. The laws:

    ended       no connection and no channel of a client ends
    confirms    each publish gets one confirm, in time
    lost        what is confirmed is there in the end
    refused     what got a nack isn't
    twice       only what was under way in a fault may be there twice
    settled     only what the consumer has acknowledged is taken away
    deliveries  their tags go on one by one
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import attrs
import trio
from pamqp import base, commands
from trio.testing import memory_stream_pair

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq.frontend import RabbitmqFrontend
from gateway.frontends.rabbitmq.login_policies import LoginPolicies
from gateway.frontends.rabbitmq.relayed_connection import RelayedConnection
from gateway.frontends.rabbitmq.session import RelayTarget
from gateway.store.local.memory import MemoryBroker
from gateway.wire.rabbitmq.frames import METHOD
from gateway.wire.rabbitmq.relayed import RelayedContent
from tests.brokers.pairs import pair_of, syphon_of
from tests.frontends.rabbitmq.peers import SLOW, Peer, log_in
from tests.frontends.rest_client import wall_clock
from tests.harness.determinism import run_seeded
from tests.harness.faults import FaultyBroker
from tests.simulation.rabbit import LARGEST, Rabbit, content_of

ORDERS, INVOICES, TASKS = "orders", "invoices", "tasks"  # the last has a consumer
PUBLISHERS: Final = 2
MOST_AT_ONCE: Final = 5  # publishes
PAUSE: Final = 1.0  # seconds between two bursts, at most
CALM: Final = 5.0  # seconds, in which each login is let publish
FAULTS: Final = 5
KINDS: Final = ("kill", "kill", "freeze", "silence")
SHORTEST, LONGEST = 1.0, 25.0  # seconds of a fault
BETWEEN: Final = 12.0  # seconds from one fault to the next, at most
ATTEMPT: Final = 3.0  # seconds that the pair waits for its primary
IN_TIME: Final = SLOW + ATTEMPT + 3.0  # seconds: late on the wire, then late in the pair, and slack
DRAIN: Final = 300.0  # seconds: a syphon pauses for 30 s between two tries
PREFETCH: Final = 5
WORK: Final = 0.2  # seconds from one acknowledgement to the next, at most
LONG_WORK: Final = 40.0  # seconds, so that some have work that outlives a connection
SELDOM: Final = 0.03  # the share of those
LOCK: Final = timedelta(minutes=5)  # of a delivery: RabbitMQ has no locks


@attrs.define(eq=False)
class Publish:
    body: bytes
    queue: str
    at: float
    confirmed: float | None = None
    accepted: bool = False


@attrs.define(eq=False)
class Judge:
    """Knows all publishes; `broken` says in sentences what must not be."""

    broken: list[str] = attrs.field(factory=list)
    publishes: list[Publish] = attrs.field(factory=list)
    faults: list[tuple[float, float]] = attrs.field(factory=list)
    acknowledged: set[bytes] = attrs.field(factory=set)
    consumed: Counter[bytes] = attrs.field(factory=Counter)  # taken away
    seen: Counter[str] = attrs.field(factory=Counter)

    def misused(self, told: str) -> None:
        self.broken.append(told)

    def settled(self, body: bytes) -> None:
        self.consumed[body] += 1
        if body not in self.acknowledged:
            self.broken.append(f"settled: {body!r}, which the consumer hasn't acknowledged")

    def confirmed(self, publish: Publish | None, *, accepted: bool) -> None:
        if publish is None or publish.confirmed is not None:
            self.broken.append("confirms: one for nothing that waits for it")
            return
        publish.confirmed, publish.accepted = trio.current_time(), accepted
        self.seen["accepted" if accepted else "refused"] += 1
        if publish.confirmed - publish.at > IN_TIME:
            lasted = publish.confirmed - publish.at
            self.broken.append(f"confirms: {publish.body!r} had to wait {lasted:.1f} s for its own")

    def _was_in_fault(self, publish: Publish) -> bool:
        ended = publish.at if publish.confirmed is None else publish.confirmed
        return any(begin <= ended and publish.at <= end for begin, end in self.faults)

    def audit(self, left: Sequence[bytes]) -> None:
        """Judge what is at the primary in the end."""
        there = Counter(left) + self.consumed
        for publish in self.publishes:
            body, copies = publish.body, there[publish.body]
            if publish.confirmed is None:
                self.broken.append(f"confirms: {body!r} has none")
            elif publish.accepted and not copies:
                self.broken.append(f"lost: {body!r} was confirmed")
            elif not publish.accepted and copies:
                self.broken.append(f"refused: {body!r} is there")
            if copies > 1:
                self.seen["twice"] += 1
                if not self._was_in_fault(publish):
                    self.broken.append(f"twice: {body!r}, which no fault has met")


@attrs.define(eq=False)
class Client:
    """A client's connection with one channel."""

    peer: Peer
    judge: Judge
    rng: random.Random
    name: str

    async def open(self) -> None:
        await log_in(self.peer)
        await self._ask(commands.Channel.Open())

    async def _ask(self, request: base.Frame) -> None:
        await self.peer.send(1, request)
        await self.peer.next()

    async def publish(self, end: trio.Event) -> None:
        """Publish until the event."""
        await self._ask(commands.Confirm.Select())
        waiting: dict[int, Publish] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, partial(self._on_confirm, waiting))
            number = 0
            while not end.is_set():
                for _ in range(self.rng.randint(1, MOST_AT_ONCE)):
                    number += 1
                    body = f"{self.name}-{number}".encode()
                    queue = self.rng.choice((ORDERS, INVOICES, TASKS))
                    waiting[number] = Publish(body, queue, trio.current_time())
                    self.judge.publishes.append(waiting[number])
                    method = commands.Basic.Publish(routing_key=queue)
                    await self.peer.stream.send_all(content_of(1, method, body))
                await trio.sleep(self.rng.uniform(0.0, PAUSE))

    def _on_confirm(self, waiting: dict[int, Publish], method: base.Frame, _: bytes) -> None:
        assert isinstance(method, commands.Basic.Ack | commands.Basic.Nack), method
        tag, accepted = method.delivery_tag, isinstance(method, commands.Basic.Ack)
        tags = [each for each in waiting if each <= tag] if method.multiple else [tag]
        for each in tags:
            self.judge.confirmed(waiting.pop(each, None), accepted=accepted)

    async def consume(self) -> None:
        """Take the tasks, for ever."""
        await self._ask(commands.Basic.Qos(prefetch_count=PREFETCH))
        await self._ask(commands.Basic.Consume(queue=TASKS, consumer_tag="workers"))
        deliveries: dict[int, bytes] = {}
        last = 0
        arrived = trio.lowlevel.ParkingLot()

        def on_delivery(method: base.Frame, body: bytes) -> None:
            nonlocal last
            assert isinstance(method, commands.Basic.Deliver), method
            if method.delivery_tag != last + 1:
                self.judge.broken.append(f"deliveries: {method.delivery_tag} after {last}")
            last = method.delivery_tag
            self.judge.seen["redelivered"] += bool(method.redelivered)
            deliveries[last] = body
            arrived.unpark()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, on_delivery)
            while True:
                most = LONG_WORK if self.rng.random() < SELDOM else WORK
                await trio.sleep(self.rng.uniform(0.0, most))
                if not deliveries:
                    await arrived.park()
                tag = self.rng.choice(list(deliveries))
                multiple = self.rng.random() < 0.5
                tags = [each for each in deliveries if each <= tag] if multiple else [tag]
                self.judge.acknowledged.update(deliveries.pop(each) for each in tags)
                await self.peer.send(1, commands.Basic.Ack(tag, multiple=multiple))

    async def _read(self, handle: Callable[[base.Frame, bytes], None]) -> None:
        """Handle each method with its body."""
        content: RelayedContent | None = None
        while data := await self.peer.stream.receive_some():
            for frame in self.peer.reader.feed(bytes(data)):
                if content is not None:
                    content.add(frame, LARGEST)
                    if content.is_whole:
                        handle(content.method.method(), content.body())
                        content = None
                elif frame.method_index == commands.Basic.Deliver.index:
                    content = RelayedContent(frame)
                elif frame.channel and not isinstance(frame.method(), commands.Channel.Close):
                    handle(frame.method(), b"")
                elif frame.kind == METHOD:
                    self.judge.broken.append(f"ended: {self.name}: {frame.method()!r}")
                    return
        self.judge.broken.append(f"ended: {self.name}: the connection")


@attrs.define(eq=False)
class World:
    """A simulated RabbitMQ, its gateway, and their clients."""

    seed: int
    judge: Judge = attrs.field(factory=Judge)
    rng: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rng = random.Random(f"wires {self.seed}")

    async def run(self) -> None:
        store, secondary = (MemoryBroker(wall_clock, self.rng) for _ in range(2))
        lasting = QueueProperties(lock_duration=LOCK, max_delivery_count=1_000_000)
        for queue in (ORDERS, INVOICES, TASKS):
            await store.create_queue(EntityPath(queue), lasting)
        async with trio.open_nursery() as nursery:
            rabbit = Rabbit(store, self.rng, nursery, self.judge.settled, self.judge.misused)
            primary = FaultyBroker(inner=store, fault=rabbit.fault)
            await nursery.start(primary.run)
            options = {
                "failover_interval": self.rng.choice((0.0, 5.0)),
                "attempt_timeout": ATTEMPT,
                "slow_call_duration": SLOW,
            }
            async with pair_of(primary, secondary, wall_clock, **options) as pair:
                nursery.start_soon(syphon_of(primary, secondary, wall_clock).run)
                frontend = RabbitmqFrontend(
                    RelayTarget(
                        dial=rabbit.dial,
                        broker=pair.broker,
                        states=pair.states,
                        sends=pair.broker.sends,
                        slow=SLOW,
                        login_timeout=10.0,
                        vhost="/",
                        policies=LoginPolicies(Authorizer((), wall_clock=wall_clock)),
                    ),
                    RelayedConnection,
                )
                await self._live(rabbit, frontend, nursery)
                nursery.cancel_scope.cancel()
        left = [
            each for queue in (ORDERS, INVOICES, TASKS) for each in await bodies_in(store, queue)
        ]
        self.judge.audit(left)

    async def _live(
        self, rabbit: Rabbit, frontend: RabbitmqFrontend[RelayTarget], home: trio.Nursery
    ) -> None:
        end = trio.Event()
        for number in range(PUBLISHERS):
            client = await self._connected(frontend, home, f"publisher {number}")
            home.start_soon(client.publish, end)
        home.start_soon((await self._connected(frontend, home, "consumer")).consume)
        await trio.sleep(CALM)
        for _ in range(FAULTS):
            await self._harm(rabbit)
            await trio.sleep(self.rng.uniform(0.0, BETWEEN))
        end.set()
        await trio.sleep(DRAIN)

    async def _connected(
        self, frontend: RabbitmqFrontend[RelayTarget], home: trio.Nursery, name: str
    ) -> Client:
        ours, theirs = memory_stream_pair()
        home.start_soon(self._serve, frontend, theirs)
        client = Client(Peer(ours), self.judge, self.rng, name)
        await client.open()
        return client

    async def _serve(
        self, frontend: RabbitmqFrontend[RelayTarget], stream: trio.abc.Stream
    ) -> None:
        """As a listener does."""
        try:
            await frontend.serve_connection(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def _harm(self, rabbit: Rabbit) -> None:
        began, kind = trio.current_time(), self.rng.choice(KINDS)
        self.judge.seen[kind] += 1
        match kind:
            case "kill":
                rabbit.kill()
            case "freeze":
                rabbit.freeze()
            case "silence":
                rabbit.silence(self.rng.choice((ORDERS, TASKS)))
        await trio.sleep(self.rng.uniform(SHORTEST, LONGEST))
        rabbit.heal()
        self.judge.faults.append((began, trio.current_time()))


async def bodies_in(store: MemoryBroker, queue: str) -> list[bytes]:
    """The messages of a queue without its consumer."""
    entity, found = EntityPath(queue), []
    async with store.open_receiver(entity) as receiver:
        while await store.peek(entity):
            for delivery in await receiver.receive(100):
                await receiver.settle(delivery, Complete())
                found.append(bytes(delivery.message.body))
    return found


def run_wires(seed: int) -> Judge:
    """Run that seed; return what its judge has seen."""
    world = World(seed)
    run_seeded(world.run, seed=seed)
    return world.judge


def first_broken(seeds: Sequence[int]) -> Sequence[str]:
    """The broken laws of the first of these seeds that breaks any."""
    for seed in seeds:
        if broken := run_wires(seed).broken:
            return broken
    return ()
