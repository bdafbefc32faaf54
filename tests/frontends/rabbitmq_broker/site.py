"""A client of the test before a namespace in memory, in virtual time."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import attrs
import trio
from pamqp import base, commands, header
from trio.testing import memory_stream_pair

from gateway.domain.access import AccessPolicy
from gateway.domain.entity import EntityPath
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq.frontend import RabbitmqFrontend
from gateway.frontends.rabbitmq.known_topology import KnownTopology
from gateway.frontends.rabbitmq_broker.connection import BrokerTarget, ServedConnection
from gateway.frontends.rabbitmq_broker.routed_sends import RoutedSends
from gateway.frontends.rabbitmq_broker.upkeep import QueueUpkeep
from gateway.frontends.rabbitmq_broker.vhost import ServedVhost
from gateway.net.clients import Clients
from gateway.net.visits import Visits
from gateway.store.local.memory import MemoryBroker
from gateway.wire.rabbitmq.frames import content_frames, method_frame
from gateway.wire.rabbitmq.relayed import FrameReader, RelayedContent
from tests.frontends.rabbitmq.peers import Peer, Stream, log_in
from tests.harness.clocks import VirtualClock
from tests.harness.patience import PATIENCE

GUEST = {"user": "guest", "password": "guest"}
CONTENTS = (commands.Basic.Deliver, commands.Basic.GetOk, commands.Basic.Return)


@attrs.define
class Got:
    """A method, with the message that follows it."""

    method: Any
    body: bytes = b""
    properties: Any = None


@attrs.define(eq=False)
class Client:
    stream: Stream
    reader: FrameReader = attrs.field(factory=FrameReader)
    arrived: list[Got] = attrs.field(factory=list)
    _open: RelayedContent | None = None

    async def send(self, *methods: base.Frame, channel: int = 1) -> None:
        await self.stream.send_all(b"".join(method_frame(channel, each) for each in methods))

    async def publish(
        self, body: bytes, key: str, exchange: str = "", *, mandatory: bool = False, **how: Any
    ) -> None:
        publish = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
        properties = commands.Basic.Properties(**how)
        head = header.ContentHeader(body_size=len(body), properties=properties)
        frames = content_frames(1, head.marshal(), body, 4096)
        await self.stream.send_all(method_frame(1, publish) + b"".join(frames))

    def _read(self, data: bytes) -> None:
        for frame in self.reader.feed(data):
            if self._open is not None:
                self._open.add(frame, 2**40)
            elif frame.kind == 1:
                method = frame.method()
                if isinstance(method, CONTENTS):
                    self._open = RelayedContent(frame)
                else:
                    self.arrived.append(Got(method))
            if self._open is not None and self._open.is_whole:
                found = header.ContentHeader()
                found.unmarshal(self._open.header)
                whole = Got(self._open.method.method(), self._open.body(), found.properties)
                self.arrived.append(whole)
                self._open = None

    async def next(self) -> Got:
        with trio.fail_after(PATIENCE):
            while not self.arrived:
                data = await self.stream.receive_some()
                assert data, "the connection has ended"
                self._read(bytes(data))
        return self.arrived.pop(0)

    async def hears(self, kind: type[base.Frame]) -> Got:
        got = await self.next()
        assert isinstance(got.method, kind), (got.method.name, list(got.method))
        return got

    async def asks(self, request: base.Frame, kind: type[base.Frame]) -> Any:
        """The answer to a request."""
        await self.send(request)
        return (await self.hears(kind)).method

    async def declares(self, queue: str, **arguments: Any) -> Any:
        names = {name.replace("_", "-"): each for name, each in arguments.items()}
        request = commands.Queue.Declare(queue=queue, arguments=names)
        return await self.asks(request, commands.Queue.DeclareOk)

    async def count(self, queue: str) -> int:
        request = commands.Queue.Declare(queue=queue, passive=True)
        found: int = (await self.asks(request, commands.Queue.DeclareOk)).message_count
        return found

    async def gets(self, queue: str, *, no_ack: bool = True) -> Got | None:
        await self.send(commands.Basic.Get(queue=queue, no_ack=no_ack))
        got = await self.next()
        if isinstance(got.method, commands.Basic.GetEmpty):
            return None
        assert isinstance(got.method, commands.Basic.GetOk), list(got.method)
        return got

    async def until_it_gets(self, queue: str) -> Got:
        """The next message of a queue that gets it soon."""
        with trio.fail_after(PATIENCE):
            while (got := await self.gets(queue)) is None:  # noqa: ASYNC110
                await trio.sleep(0.1)
        return got

    async def confirms(self) -> None:
        await self.asks(commands.Confirm.Select(), commands.Confirm.SelectOk)

    async def is_refused(self, request: base.Frame, code: int, text: str) -> None:
        """The request closes the channel."""
        close = await self.asks(request, commands.Channel.Close)
        assert (close.reply_code, text in close.reply_text) == (code, True), close.reply_text
        await self.send(commands.Channel.CloseOk(), commands.Channel.Open())
        await self.hears(commands.Channel.OpenOk)


@attrs.define(eq=False, kw_only=True)
class Site:
    broker: Any
    vhost: ServedVhost
    frontend: RabbitmqFrontend[BrokerTarget]
    nursery: trio.Nursery
    visits: Visits | None  # None: clients have no limits, and no order

    async def connect(
        self,
        streams: Callable[[], tuple[Stream, Stream]] = memory_stream_pair,
        **login: Any,
    ) -> Client:
        """Another client, with channel 1."""
        client = self.opened(streams)
        await log_in(Peer(client.stream), **{**GUEST, **login})
        await client.asks(commands.Channel.Open(), commands.Channel.OpenOk)
        return client

    def opened(self, streams: Callable[[], tuple[Stream, Stream]] = memory_stream_pair) -> Client:
        """A client before its login."""
        ours, theirs = streams()
        self.nursery.start_soon(self._serve, ours)
        return Client(theirs)

    async def _serve(self, stream: Stream) -> None:
        visits = self.visits
        with nullcontext() if visits is None else visits.begin("192.0.2.1", "192.0.2.1:5"):
            try:
                await self.frontend.serve_connection(stream)
            finally:
                await trio.aclose_forcefully(stream)

    async def bodies(self, queue: str) -> list[bytes]:
        """The messages that a client of another protocol would find."""
        async with self.broker.open_receiver(EntityPath(queue)) as receiver:
            found = await receiver.receive_available(100)
        return [each.message.body for each in found]


async def _written() -> None:
    """As long as a file takes."""
    await trio.sleep(0.01)


@asynccontextmanager
async def site(
    *,
    broker: Any = None,
    known: KnownTopology | None = None,
    policies: tuple[AccessPolicy, ...] = (),
    clients: Clients | None = None,
) -> AsyncIterator[Site]:
    clock = VirtualClock()
    broker = broker or MemoryBroker(clock, random.Random(0))
    known = KnownTopology() if known is None else known
    vhost = ServedVhost(broker=broker, known=known, flush=_written)
    sends = RoutedSends(vhost=vhost, timeout=30.0)
    target = BrokerTarget(
        vhost=vhost,
        sends=sends,
        authorizer=Authorizer(policies, wall_clock=clock, accepts_well_known_key=True),
        login_timeout=10.0,
        most_waiting=4000,
        most_bytes=16 * 1024 * 1024,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(QueueUpkeep(vhost=vhost, sends=sends, wall_clock=clock).run)
        yield Site(
            broker=broker,
            vhost=vhost,
            frontend=RabbitmqFrontend(target, ServedConnection),
            nursery=nursery,
            visits=None if clients is None else Visits(3600.0, clients),
        )
        nursery.cancel_scope.cancel()
