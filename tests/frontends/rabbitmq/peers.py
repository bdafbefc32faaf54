"""A client and a primary of the test, with the front end between them, in virtual time."""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from typing import Any

import attrs
import trio
from pamqp import base, commands, header
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

from gateway.domain.access import AccessPolicy
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Unreachable
from gateway.domain.failover import State
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.message import Message
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq.frontend import RabbitmqFrontend
from gateway.frontends.rabbitmq.login_policies import LoginPolicies
from gateway.frontends.rabbitmq.relayed_connection import RelayedConnection
from gateway.frontends.rabbitmq.session import RelayTarget
from gateway.net.clients import ClientOptions, Clients
from gateway.net.visits import Visits
from gateway.wire.rabbitmq.frames import content_frames, method_frame
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER, FrameReader
from tests.harness.certificates import now
from tests.harness.patience import PATIENCE

SLOW = 2.0
Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


def with_content(method: base.Frame, body: bytes, **how: Any) -> bytes:
    """The frames of a method with its content, on channel 1."""
    properties = commands.Basic.Properties(**how)
    head = header.ContentHeader(body_size=len(body), properties=properties)
    return method_frame(1, method) + b"".join(content_frames(1, head.marshal(), body, 4096))


# A publish whose content header has another class than 60, which is that of `basic`.
HEADER_OF_OTHERS = with_content(commands.Basic.Publish(), b"").replace(
    b"\x00\x3c\x00\x00", b"\x00\x3d\x00\x00"
)


@attrs.define(eq=False)
class Peer:
    """A side of a connection, which speaks methods."""

    stream: Stream
    reader: FrameReader = attrs.field(factory=FrameReader)
    arrived: list[base.Frame] = attrs.field(factory=list)

    async def send(self, channel: int, *methods: base.Frame) -> None:
        await self.stream.send_all(b"".join(method_frame(channel, each) for each in methods))

    async def publish(
        self,
        body: bytes,
        queue: str = "orders",
        exchange: str = "",
        *,
        immediate: bool = False,
        **how: Any,
    ) -> None:
        publish = commands.Basic.Publish(exchange=exchange, routing_key=queue, immediate=immediate)
        await self.stream.send_all(with_content(publish, body, **how))

    async def deliver(
        self, tag: int, body: bytes, *, redelivered: bool = False, **how: Any
    ) -> None:
        deliver = commands.Basic.Deliver("workers", tag, redelivered, "", "orders")
        await self.stream.send_all(with_content(deliver, body, **how))

    async def next(self) -> base.Frame:
        """The next method; contents are skipped."""
        with trio.fail_after(PATIENCE):
            while not self.arrived:
                data = await self.stream.receive_some()
                assert data, "the connection has ended"
                frames = self.reader.feed(bytes(data))
                self.arrived += [each.method() for each in frames if each.kind == 1]
        return self.arrived.pop(0)

    async def hears(self, kind: type[base.Frame]) -> Any:
        method = await self.next()
        assert isinstance(method, kind), method.name
        return method

    async def skip_header(self) -> None:
        assert bytes(await self.stream.receive_some(8)) == PROTOCOL_HEADER


@attrs.define(eq=False)
class Pair:
    """A broker that stores."""

    sent: list[Message] = attrs.field(factory=list)
    entities: list[str] = attrs.field(factory=list)
    error: BrokerError | None = None

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        self.sent += messages
        self.entities += [entity.name] * len(messages)

    def bodies(self) -> list[bytes]:
        return [bytes(each.body) for each in self.sent]


@attrs.define(eq=False)
class States:
    """The states of the pair's entities."""

    state: State = State.PRIMARY
    evidence: list[str] = attrs.field(factory=list)

    def state_of(self, entity: EntityPath) -> State:
        return self.state

    def begin(self, entity: EntityPath) -> str:
        return entity.name

    def sent(self, attempt: str, *, late: bool = False) -> None:
        self.evidence.append(f"{attempt} sent")

    def slow(self, attempt: str, *, is_silence: bool = True) -> None:
        self.evidence.append(f"{attempt} slow")

    def failed(self, attempt: str, error: BrokerError) -> None:
        self.evidence.append(f"{attempt} failed")

    def release(self, attempt: str) -> None:
        self.evidence.append(f"{attempt} released")

    def probe_unanswered(self, probe: str) -> None:
        self.evidence.append(f"{probe} unanswered")


@attrs.define(eq=False, kw_only=True)
class Harness:
    client: Peer = attrs.field(init=False)
    primary: Peer = attrs.field(init=False)
    pair: Pair
    states: States
    sends: SendCounters
    dialled: trio.MemoryReceiveChannel[Peer]
    frontend: RabbitmqFrontend[RelayTarget]
    nursery: trio.Nursery
    visits: Visits
    is_down: bool = False  # nobody can dial the primary

    def connect(self, streams: Callable[[], tuple[Stream, Stream]] = memory_stream_pair) -> Peer:
        """Another client, before its login."""
        ours, theirs = streams()
        self.nursery.start_soon(self._serve, ours)
        return Peer(theirs)

    async def _serve(self, stream: Stream) -> None:
        """As a listener does."""
        try:
            with self.visits.begin("127.0.0.1"):
                await self.frontend.serve_connection(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def another(self, user: str) -> "Harness":
        """Another client that has logged in, with a primary's connection of its own."""
        other = copy(self)
        other.client = self.connect()
        async with trio.open_nursery() as logins:
            logins.start_soon(partial(log_in, other.client, user=user))
            other.primary = await self.next_primary()
        return other

    async def begins_login(self) -> tuple[Peer, Peer]:
        """Another client that has heard how to log in, and its primary."""
        client = self.connect()
        await client.stream.send_all(PROTOCOL_HEADER)
        primary = await self.dialled.receive()
        await primary.skip_header()
        await primary.send(0, commands.Connection.Start(server_properties={}, mechanisms="PLAIN"))
        await client.hears(commands.Connection.Start)
        return client, primary

    async def confirmed_once(self) -> None:
        """The primary has let this login publish."""
        await self.client.send(1, commands.Channel.Open())
        await self.primary.hears(commands.Channel.Open)
        await self.primary.send(1, commands.Channel.OpenOk())
        await self.client.hears(commands.Channel.OpenOk)
        await self.client.send(1, commands.Confirm.Select())
        await self.primary.hears(commands.Confirm.Select)
        await self.primary.send(1, commands.Confirm.SelectOk())
        await self.client.hears(commands.Confirm.SelectOk)
        await self.client.publish(b"first")
        await self.primary.hears(commands.Basic.Publish)
        await self.primary.send(1, commands.Basic.Ack(1))
        assert (await self.client.hears(commands.Basic.Ack)).delivery_tag == 1

    async def confirmed_at(self, exchange: str) -> None:
        """The primary has let this login publish to that exchange, after `confirmed_once`."""
        await self.client.publish(b"one", "key", exchange)
        await self.primary.hears(commands.Basic.Publish)
        await self.primary.send(1, commands.Basic.Ack(2))
        await self.client.hears(commands.Basic.Ack)

    async def consumes(self, **how: Any) -> None:
        """A consumer with a prefetch of five, on the channel that is open."""
        await self.asks(commands.Basic.Qos(prefetch_count=5), commands.Basic.QosOk())
        consume = commands.Basic.Consume(**{"queue": "orders", **how})
        await self.asks(consume, commands.Basic.ConsumeOk("workers"))

    async def asks(self, request: base.Frame, answer: base.Frame) -> None:
        """The client asks on its channel; the primary answers."""
        await self.client.send(1, request)
        await self.primary.hears(type(request))
        await self.primary.send(1, answer)
        await self.client.hears(type(answer))

    async def next_primary(self) -> Peer:
        """The primary of another connection, logged in as the client did."""
        with trio.fail_after(PATIENCE):
            peer = await self.dialled.receive()
        await log_in_at(peer)
        return peer


async def log_in_at(peer: Peer) -> None:
    await peer.skip_header()
    await peer.send(0, commands.Connection.Start(server_properties={}, mechanisms="PLAIN"))
    await peer.hears(commands.Connection.StartOk)
    await peer.send(0, commands.Connection.Tune(2047, 131_072, 0))
    await peer.hears(commands.Connection.TuneOk)
    await peer.hears(commands.Connection.Open)
    await peer.send(0, commands.Connection.OpenOk())


async def log_in(
    client: Peer,
    frame_max: int = 131_072,
    channel_max: int = 2047,
    *,
    user: str = "anna",
    password: str = "secret",
    mechanism: str = "PLAIN",
    heartbeat: int = 0,
) -> None:
    await client.stream.send_all(PROTOCOL_HEADER)
    await client.hears(commands.Connection.Start)
    able = {"capabilities": {"consumer_cancel_notify": True, "connection.blocked": True}}
    start = commands.Connection.StartOk(able, mechanism, f"\0{user}\0{password}", "en_US")
    await client.send(0, start)
    await client.hears(commands.Connection.Tune)
    tune = commands.Connection.TuneOk(channel_max, frame_max, heartbeat)
    await client.send(0, tune, commands.Connection.Open())
    await client.hears(commands.Connection.OpenOk)


@asynccontextmanager
async def harness(
    vhost: str = "/",
    *,
    frame_max: int = 131_072,
    channel_max: int = 2047,
    heartbeat: int = 0,
    mechanism: str = "PLAIN",
    streams: Callable[[], tuple[Stream, Stream]] = memory_stream_pair,
    policies: Sequence[AccessPolicy] = (),
    authorizer: Authorizer | None = None,
    starts_in_outage: bool = False,
    share: int = 0,
) -> AsyncIterator[Harness]:
    """
    A client that has logged in; `streams` are its connection's two ends. With `starts_in_outage`
    there is none, and the primary was never reached. `share` is a client's among others'.
    """
    dials, dialled = trio.open_memory_channel[Peer](10)
    pair, states, sends = Pair(), States(), SendCounters()

    async def dial() -> Stream:
        await trio.lowlevel.checkpoint()
        if here.is_down:
            raise Unreachable("refused")
        ours, theirs = memory_stream_pair()
        try:
            dials.send_nowait(Peer(theirs))
        except trio.BrokenResourceError:
            raise Unreachable("refused") from None
        return ours

    if authorizer is None:
        authorizer = Authorizer(policies, wall_clock=now, accepts_well_known_key=True)
    target = RelayTarget(
        dial=dial,
        broker=pair,
        states=states,
        sends=sends,
        login_timeout=10.0,
        slow=SLOW,
        vhost=vhost,
        policies=LoginPolicies(authorizer),
    )
    async with trio.open_nursery() as nursery:
        frontend = RabbitmqFrontend(target, RelayedConnection)
        here = Harness(
            pair=pair,
            states=states,
            sends=sends,
            dialled=dialled,
            frontend=frontend,
            nursery=nursery,
            visits=Visits(math.inf, Clients(ClientOptions(share=share))),
        )
        if starts_in_outage:
            here.is_down = True
            yield here
            nursery.cancel_scope.cancel()
            return
        here.client = here.connect(streams)
        async with trio.open_nursery() as logins:
            how = {"heartbeat": heartbeat, "mechanism": mechanism}
            logins.start_soon(partial(log_in, here.client, frame_max, channel_max, **how))
            here.primary = await dialled.receive()
            await log_in_at(here.primary)
        yield here
        nursery.cancel_scope.cancel()
