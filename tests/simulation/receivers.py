"""
Clients that receive through a gateway from a namespace that goes away and comes back.

    an AMQP link, a consumer of RabbitMQ, REST, Storage Queue
        ─▶ front ends ─▶ a store that crashes, and is silent

Messages arrive at the store all the time, in its outages, too. The laws:

    stays    a link to receive on, and a consumer, outlive each outage, and hear nothing of it
    late     a message that waits at the return is delivered to both within a second
    empty    no answer over HTTP says "empty" while the namespace can't say so
    spins    a client that asks again at once gets an error a second
    lost     each message is received in the end
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

import attrs
import trio
import trio.testing

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, Unavailable
from gateway.domain.message import Message
from gateway.domain.storage_queue import Terms
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.servicebus.deliveries import decode_delivery
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.rest_client import ORDERS, POLICIES, Client, frontend_of, wall_clock
from tests.harness.determinism import run_seeded
from tests.harness.faults import Fault, FaultyBroker, Hang, Operation
from tests.simulation import rabbitmq
from tests.simulation.network import Network

# Queues of their own: no other client takes what waits there.
LINK: Final = EntityPath("link")
TASKS: Final = EntityPath("tasks")
OUTAGES: Final = 3
SHORTEST: Final = 3.0  # seconds; a shorter outage than a receive is one that nobody need notice
LONGEST: Final = 45.0  # seconds
BETWEEN: Final = 20.0  # seconds, at most, from a return to the next outage
PROMPT: Final = 1.0  # seconds
LATENCY: Final = 0.02  # seconds that the store takes for a request at most, each way
HIDDEN: Final = timedelta(seconds=30)


@attrs.define(eq=False)
class Judge:
    """Knows the outages; `broken` says in sentences what must not be."""

    broken: list[str] = attrs.field(factory=list)
    errors: int = 0
    received: set[str] = attrs.field(factory=set)
    consumed: set[str] = attrs.field(factory=set)  # by the consumer of RabbitMQ
    away_since: float | None = None
    _last_error: dict[str, float] = attrs.field(factory=dict)

    def was_away(self, began: float) -> bool:
        """True if the namespace was away all the time since then."""
        return self.away_since is not None and self.away_since <= began

    def note_empty(self, client: str, began: float) -> None:
        if self.was_away(began):
            self.broken.append(f"{client}: a queue out of reach was said to be empty")

    def note_error(self, client: str) -> None:
        """A request that was made as soon as the last one had failed has failed, too."""
        self.errors += 1
        now = trio.current_time()
        if now - self._last_error.get(client, now - PROMPT) < PROMPT - 1e-6:
            self.broken.append(f"{client}: a client that asks again at once spins")
        self._last_error[client] = now


@attrs.define(eq=False)
class World:
    """A store, its gateway, and four clients."""

    seed: int
    judge: Judge = attrs.field(factory=Judge)
    rng: random.Random = attrs.field(init=False)
    _silent: bool = attrs.field(default=False, init=False)
    _sent: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.rng = random.Random(f"receivers {self.seed}")

    async def run(self) -> None:
        store = MemoryBroker(wall_clock, self.rng)
        for queue in (LINK, TASKS, ORDERS):
            await store.create_queue(queue, QueueProperties(max_delivery_count=1_000_000))
        async with trio.open_nursery() as nursery:
            faulty = FaultyBroker(inner=store, fault=self._fault, latency=self._latency)
            await nursery.start(faulty.run)
            leases = Leases(faulty, wall_clock)
            await nursery.start(leases.run)
            visibility = LeasedVisibility(faulty, leases, wall_clock)
            await nursery.start(visibility.run)
            sdk = await self._link(faulty, leases, nursery)
            await self._begin_consumer(faulty, nursery)
            nursery.start_soon(
                self._ask, "REST", self._rest(Client(frontend_of(faulty, leases), store))
            )
            nursery.start_soon(self._ask, "Storage Queue", self._storage(visibility))
            await self._live(store, faulty, sdk)
            nursery.cancel_scope.cancel()

    async def _link(self, broker: FaultyBroker, leases: Leases, nursery: trio.Nursery) -> Sdk:
        frontend = AmqpFrontend(
            broker=broker,
            leases=leases,
            authorizer=Authorizer(POLICIES, wall_clock=wall_clock),
            wall_clock=wall_clock,
        )
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(frontend.serve_connection, theirs)
        sdk = Sdk.on(ours)
        nursery.start_soon(sdk.run)
        await sdk.open()
        await sdk.put_token()
        nursery.start_soon(self._consume, sdk, await sdk.receiver(LINK.name, credit=1000))
        return sdk

    async def _consume(self, sdk: Sdk, link: amqp.LinkId) -> None:
        while True:
            transfer = await sdk.delivery(link)
            self.judge.received.add(str(decode_delivery(transfer.payload).message.message_id))
            sdk.engine.update(transfer.delivery, amqp.ACCEPTED)
            sdk.engine.grant(link, 1)

    async def _begin_consumer(self, broker: FaultyBroker, nursery: trio.Nursery) -> None:
        network = Network(rng=self.rng, breaking=0.0, until=0.0, on_break=lambda: None)
        await nursery.start(network.run)
        network.serve = rabbitmq.serving(
            broker, Leases(broker, wall_clock), clock=wall_clock, rng=self.rng, send_timeout=LONGEST
        )
        connection = rabbitmq.Connection(await network.connect(), self._take)
        await connection.open()
        await connection.consume(TASKS)
        nursery.start_soon(self._run_consumer, connection)

    def _take(self, body: bytes) -> None:
        self.judge.consumed.add(body.decode())

    async def _run_consumer(self, connection: rabbitmq.Connection) -> None:
        await connection.run()
        self.judge.broken.append("a consumer of RabbitMQ ended in an outage")

    def _rest(self, client: Client) -> Callable[[], Awaitable[bool]]:
        async def receive() -> bool:
            seconds = self.rng.choice([1, 2, 10])
            answer = await client.ask("DELETE", f"/orders/messages/head?timeout={seconds}")
            if answer.status >= 500:
                raise Unavailable(answer.body.decode())
            return answer.status != 204

        return receive

    def _storage(self, visibility: LeasedVisibility) -> Callable[[], Awaitable[bool]]:
        async def receive() -> bool:
            try:
                return bool(await visibility.dequeue(ORDERS, 1, lambda _: Terms(hidden=HIDDEN)))
            except BrokerError as error:
                failure = error
            await trio.sleep(PROMPT)  # its front end retries for longer
            raise failure

        return receive

    async def _ask(self, client: str, receive: Callable[[], Awaitable[bool]]) -> None:
        while True:
            began = trio.current_time()
            try:
                if not await receive():
                    self.judge.note_empty(client, began)
            except BrokerError:
                self.judge.note_error(client)
                await trio.sleep(LATENCY)

    async def _live(self, store: MemoryBroker, faulty: FaultyBroker, sdk: Sdk) -> None:
        for _ in range(OUTAGES):
            await self._send(store)
            await trio.sleep(self.rng.uniform(1.0, BETWEEN))
            crashes = self.rng.random() < 0.7
            self._silent, self.judge.away_since = not crashes, trio.current_time()
            if crashes:
                faulty.crash()
            await trio.sleep(self.rng.uniform(SHORTEST, LONGEST))
            waits = await self._send(store)
            self._silent, self.judge.away_since = False, None
            faulty.restart()
            await trio.sleep(PROMPT + 4 * LATENCY)
            if crashes and waits not in self.judge.received:
                self.judge.broken.append("the link was late: a message waits after the return")
            if crashes and waits not in self.judge.consumed:
                self.judge.broken.append("the consumer was late: a message waits after the return")
        await trio.sleep(LONGEST)
        if any(isinstance(each, amqp.LinkDetached) for each in sdk.told):
            self.judge.broken.append("a link to receive on ended in an outage")
        for name in sorted(self._sent - (self.judge.received & self.judge.consumed)):
            self.judge.broken.append(f"message {name} is lost")

    async def _send(self, store: MemoryBroker) -> str:
        name = str(len(self._sent))
        self._sent.add(name)
        await store.send(LINK, [Message(message_id=name)])
        await store.send(TASKS, [Message(message_id=name, body=name.encode())])
        await store.send(ORDERS, [Message(message_id=name)])
        return name

    def _latency(self) -> float:
        return self.rng.uniform(0.0, LATENCY)

    def _fault(self, operation: Operation, entity: EntityPath) -> Fault | None:
        receives = operation is Operation.RECEIVE
        return Hang(LONGEST) if self._silent and receives and entity == ORDERS else None


def run_receivers(seed: int) -> Judge:
    """Run that seed; return what its judge has seen."""
    world = World(seed)
    run_seeded(world.run, seed=seed)
    return world.judge


def first_broken(seeds: Sequence[int]) -> Sequence[str]:
    """The broken laws of the first of these seeds that breaks any."""
    for seed in seeds:
        if broken := run_receivers(seed).broken:
            return broken
    return ()
