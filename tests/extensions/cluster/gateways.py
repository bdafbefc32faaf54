"""Gateways of one cluster without sockets, before one namespace in memory."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import attrs
import trio
from trio.testing import memory_stream_pair

from gateway.app.assembly.others import PARENT, HeldParts
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import Event
from gateway.domain.message import Delivery, Message, Settlement
from gateway.domain.storage_queue import TakenMessage, Terms
from gateway.extensions.cluster.cluster import Cluster
from gateway.extensions.cluster.leases import ClusterLeases
from gateway.extensions.cluster.members import Members
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.cluster.peers import Peers
from gateway.extensions.cluster.processes import Processes
from gateway.extensions.cluster.server import Advise, ClusterServer, ignore
from gateway.extensions.cluster.tokens import HolderTokens, tag_of
from gateway.frontends.client_tokens import OpenTokens
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.pairing.additions import SendsInOrder
from gateway.ports import Broker, Receiver
from gateway.store.local.memory import MemoryBroker
from tests.frontends.rest_client import wall_clock

ORDERS, OTHERS = EntityPath("orders"), EntityPath("others")
SECRET = "a secret of a cluster, for tests only"
ADDRESSES = ("one.test:5680", "two.test:5680", "three.test:5680")


@attrs.define(eq=False)
class Node:
    """A gateway; `is_up` says whether clients can connect to it."""

    network: "Network"
    cluster: Cluster
    own: Leases
    leases: ClusterLeases
    held: LeasedVisibility
    hindered: "Hindered"
    events: list[Event]
    is_up: bool = True
    advise: Advise = ignore
    orders: SendsInOrder | None = None
    hangs: bool = False  # a connection to it is neither refused nor accepted
    connections: list[trio.abc.Stream] = attrs.field(factory=list)
    serving: list[trio.CancelScope] = attrs.field(factory=list)  # one for each of the gateways

    @property
    def visibility(self):
        return self.cluster.shown(self.held)

    def server(self, is_inside: bool) -> ClusterServer:
        held = HeldParts(own=self.own, leases=self.leases, visibility=self.held)
        if is_inside:
            return self.cluster.server_of_process(held)
        return self.cluster.server(held, self.advise, self.orders)

    async def received(self, entity: EntityPath = ORDERS) -> Delivery:
        """The next message, locked here."""
        (delivery,) = await self.leases.receive(entity, 1)
        return delivery

    async def taken(self, entity: EntityPath = ORDERS) -> TakenMessage:
        """The next message, hidden here for 30 seconds."""
        terms = Terms(hidden=timedelta(seconds=30))
        (taken,) = await self.visibility.dequeue(entity, 1, lambda _: terms)
        return taken

    def stop(self) -> None:
        """
        Stop the gateway as by SIGTERM: no client can connect, and its connections are cancelled.
        """
        self.is_up = False
        for scope in self.serving:
            scope.cancel()

    async def kill(self) -> None:
        """End the gateway as by SIGKILL: its connections end, and no client can connect."""
        self.is_up = False
        for stream in self.connections:
            await trio.aclose_forcefully(stream)
        self.connections.clear()


@attrs.define(eq=False)
class Hindered:
    """The namespace as one gateway has it: its settlements hang or fail as the test says."""

    inner: MemoryBroker
    hangs: bool = False
    error: BrokerError | None = None
    asked: trio.Event = attrs.field(factory=trio.Event)
    resumed: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    @asynccontextmanager
    async def open_receiver(self, entity: EntityPath) -> "AsyncIterator[HinderedReceiver]":
        async with self.inner.open_receiver(entity) as receiver:
            yield HinderedReceiver(self, receiver)

    async def hinder(self) -> None:
        self.asked.set()
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await self.resumed.wait()
        if self.error is not None:
            raise self.error


@attrs.define(eq=False)
class HinderedReceiver:
    hindered: "Hindered"
    inner: Receiver

    async def receive(self, limit: int) -> Sequence[Delivery]:
        return await self.inner.receive(limit)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await self.hindered.hinder()
        await self.inner.settle(delivery, settlement)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        for each in settlements:
            await self.settle(*each)
        return [None] * len(settlements)

    async def renew(self, delivery: Delivery) -> datetime:
        await self.hindered.hinder()
        return await self.inner.renew(delivery)


@attrs.define(eq=False)
class Network:
    """Connects the gateways."""

    nursery: trio.Nursery
    broker: MemoryBroker
    nodes: dict[str, Node] = attrs.field(factory=dict)
    found: Sequence[str] = ()  # by DNS, for the gateways that have a service
    # Of the gateways that have an adapter of their own, by address.
    adapters: dict[str, Broker] = attrs.field(factory=dict)

    async def start(
        self, address: str, *secrets: str, processes: Processes | None = None, **options: object
    ) -> Node:
        """Start the gateway with that address, again perhaps, or one of its processes."""
        events: list[Event] = []
        observer = Collected(events)
        configured = ClusterOptions(
            **{"address": address, "peers": ADDRESSES, "secrets": secrets or (SECRET,), **options}
        )
        rng = random.Random(f"{address} {len(self.nodes)} {trio.current_time()}")
        members = Members(configured, self.resolve)
        number = PARENT if processes is None else processes.own
        process = None if processes is None else number
        tokens = HolderTokens(tag_of(members.own), configured.secrets, rng, process)
        peers = Peers(tokens, members, configured, rng, observer, self.dial, processes)
        cluster = Cluster(configured, peers, members, rng, observer, processes)
        hindered = Hindered(self.broker)
        adapter = self.adapters.get(address, hindered)
        sealed = OpenTokens() if cluster.is_alone else tokens.sealed
        own = Leases(adapter, wall_clock, new_token=tokens.new_token, tokens=sealed)
        leases = ClusterLeases(own, peers)
        held = LeasedVisibility(adapter, leases, wall_clock)
        for service in (own, held, cluster):
            await self.nursery.start(service.run)
        node = Node(self, cluster, own, leases, held, hindered, events)
        self.nodes[address if number == PARENT else f"{address} worker {number}"] = node
        return node

    async def start_workers(self, address: str, number: int = 2, **options: object) -> list[Node]:
        """Start a gateway with a number of workers: its parent comes first."""
        return [
            await self.start_process(address, own, number, **options) for own in range(number + 1)
        ]

    async def start_process(
        self, address: str, own: int, workers: int = 2, **options: object
    ) -> Node:
        """Start one process of a gateway with workers, again perhaps."""

        async def dial(number: int) -> trio.abc.Stream:
            of_worker = f"{address} worker {number}"
            return await self.dial(address if number == PARENT else of_worker, True)

        processes = Processes(
            own=own,
            workers=workers,
            options=ClusterOptions(address=address, secrets=(SECRET,)),
            rng=random.Random(own),
            observer=Collected([]),
            dial=dial,
        )
        if own != PARENT:
            options |= {"peers": ()}
        return await self.start(address, processes=processes, **options)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        await trio.lowlevel.checkpoint()
        return self.found

    async def dial(self, address: str, is_inside: bool = False) -> trio.abc.Stream:
        """Connect to a gateway, or inside of one to one of its processes."""
        await trio.lowlevel.checkpoint()
        node = self.nodes.get(address)
        if node is not None and node.hangs:
            await trio.sleep_forever()
        if node is None or not node.is_up:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = memory_stream_pair()
        node.connections.append(theirs)
        node.serving.append(scope := trio.CancelScope())
        self.nursery.start_soon(self._serve, node.server(is_inside), theirs, scope)
        return ours

    async def _serve(
        self, server: ClusterServer, stream: trio.abc.Stream, scope: trio.CancelScope
    ) -> None:
        try:
            async with stream:
                with scope:
                    await server.serve_connection(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


@attrs.frozen
class Collected:
    events: list[Event]

    def report(self, event: Event) -> None:
        self.events.append(event)


@asynccontextmanager
async def open_network(messages: int = 3) -> AsyncIterator[Network]:
    """A namespace with messages in `orders`, before which no gateway runs yet."""
    broker = MemoryBroker(wall_clock, random.Random(1))
    for entity in (ORDERS, OTHERS):
        await broker.create_queue(entity, QueueProperties())
    await broker.send(ORDERS, [Message(body=b"%d" % each) for each in range(messages)])
    async with trio.open_nursery() as nursery:
        yield Network(nursery, broker)
        nursery.cancel_scope.cancel()
