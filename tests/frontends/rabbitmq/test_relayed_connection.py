"""A client's connection between a client and a primary of the test, in virtual time."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from pamqp import base, commands, header
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Unavailable, Unreachable
from gateway.domain.failover import State
from gateway.domain.message import Message
from gateway.frontends.rabbitmq.frontend import RabbitmqFrontend
from gateway.frontends.rabbitmq.session import RelayTarget
from gateway.wire.rabbitmq.frames import content_frames, method_frame
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER, FrameReader

SLOW = 2.0
Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


@attrs.define(eq=False)
class Peer:
    """A side of a connection, which speaks methods."""

    stream: Stream
    reader: FrameReader = attrs.field(factory=FrameReader)
    arrived: list[base.Frame] = attrs.field(factory=list)

    async def send(self, channel: int, *methods: base.Frame) -> None:
        await self.stream.send_all(b"".join(method_frame(channel, each) for each in methods))

    async def publish(self, body: bytes, queue: str = "orders", exchange: str = "") -> None:
        publish = commands.Basic.Publish(exchange=exchange, routing_key=queue)
        head = header.ContentHeader(body_size=len(body), properties=commands.Basic.Properties())
        frames = content_frames(1, head.marshal(), body, 4096)
        await self.stream.send_all(method_frame(1, publish) + b"".join(frames))

    async def next(self) -> base.Frame:
        """The next method; contents are skipped."""
        with trio.fail_after(60):
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
    error: BrokerError | None = None

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        self.sent += messages

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


@attrs.define(eq=False)
class Harness:
    client: Peer
    primary: Peer
    pair: Pair
    states: States
    dialled: trio.MemoryReceiveChannel[Peer]

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

    async def next_primary(self) -> Peer:
        """The primary of another connection, logged in as the client did."""
        with trio.fail_after(60):
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


async def log_in(client: Peer) -> None:
    await client.stream.send_all(PROTOCOL_HEADER)
    await client.hears(commands.Connection.Start)
    start = commands.Connection.StartOk({}, "PLAIN", "\0anna\0secret", "en_US")
    await client.send(0, start)
    await client.hears(commands.Connection.Tune)
    await client.send(0, commands.Connection.TuneOk(2047, 131_072, 0), commands.Connection.Open())
    await client.hears(commands.Connection.OpenOk)


@asynccontextmanager
async def harness(vhost: str = "/") -> AsyncIterator[Harness]:
    dials, dialled = trio.open_memory_channel[Peer](10)
    pair, states = Pair(), States()

    async def dial() -> Stream:
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        try:
            dials.send_nowait(Peer(theirs))
        except trio.BrokenResourceError:
            raise Unreachable("refused") from None
        return ours

    target = RelayTarget(
        dial=dial, broker=pair, states=states, login_timeout=10.0, slow=SLOW, vhost=vhost
    )
    ours, theirs = memory_stream_pair()
    frontend = RabbitmqFrontend(target)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(frontend.serve_connection, ours)
        client = Peer(theirs)
        async with trio.open_nursery() as logins:
            logins.start_soon(log_in, client)
            primary = await dialled.receive()
            await log_in_at(primary)
        yield Harness(client, primary, pair, states, dialled)
        nursery.cancel_scope.cancel()


async def test_a_publish_without_a_confirm_goes_through_the_pair_when_the_primary_is_lost(
    autojump_clock,
):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.stream.aclose()

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert here.pair.bodies() == [b"second"]
        assert here.states.evidence == ["orders sent", "orders failed"]


async def test_tags_go_on_when_the_primary_is_back(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        await here.client.publish(b"second")

        assert (await again.hears(commands.Confirm.Select)).nowait
        await again.hears(commands.Basic.Publish)
        await again.send(1, commands.Basic.Ack(1))
        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert here.pair.sent == []


async def test_a_primary_that_speaks_nonsense_is_dialled_again(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        with trio.fail_after(60):
            odd = await here.dialled.receive()
        await odd.stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        await here.client.publish(b"second")

        await again.hears(commands.Confirm.Select)
        await again.hears(commands.Basic.Publish)


async def test_a_primary_without_a_word_is_given_up(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        began = trio.current_time()
        await here.client.publish(b"second")

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert trio.current_time() - began < SLOW + 1
        assert here.states.evidence == ["orders sent", "orders slow"]


async def test_an_entity_without_confirms_alone_leaves_the_wire_to_the_others(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await trio.sleep(SLOW / 2)
        await here.primary.send(0, commands.Connection.Unblocked())  # it's alive

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        await here.primary.send(1, commands.Basic.Ack(2))  # late: the client knows already
        await here.client.publish(b"third", queue="others")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.send(1, commands.Basic.Ack(3))
        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 3
        assert here.pair.bodies() == [b"second"]


async def test_a_blocked_primary_gets_no_publish(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.send(0, commands.Connection.Blocked("memory"))
        await trio.testing.wait_all_tasks_blocked()
        await here.client.publish(b"second")

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert here.pair.bodies() == [b"second"]


async def test_a_diverted_entity_goes_through_the_pair_though_the_wire_is_well(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        here.states.state = State.PINNED
        await here.client.publish(b"second")

        await here.client.hears(commands.Basic.Ack)
        assert here.pair.bodies() == [b"second"]


async def test_a_publish_that_the_pair_refuses_is_told_by_a_nack(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        here.pair.error = Unavailable("both are down")
        await here.primary.stream.aclose()
        await here.client.publish(b"second")

        assert (await here.client.hears(commands.Basic.Nack)).delivery_tag == 2


async def test_a_nack_is_an_answer_and_no_outage(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.send(1, commands.Basic.Nack(2))

        assert (await here.client.hears(commands.Basic.Nack)).delivery_tag == 2
        assert here.pair.sent == []


@pytest.mark.parametrize(
    ("vhost", "exchange", "queue"),
    [("other", "", "orders"), ("/", "events", ""), ("/", "", "amq.gen-x")],
    ids=["another vhost", "an exchange", "a server-named queue"],
)
async def test_a_publish_that_the_pair_cannot_keep_ends_the_connection(
    autojump_clock, vhost, exchange, queue
):
    async with harness(vhost) as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"second", queue, exchange)

        await here.client.hears(commands.Basic.Nack)
        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320
        assert here.pair.sent == []


async def test_a_login_that_the_primary_never_let_publish_has_no_rights_at_the_pair(
    autojump_clock,
):
    async with harness() as here:
        await here.client.send(1, commands.Channel.Open())
        await here.primary.hears(commands.Channel.Open)
        await here.primary.send(1, commands.Channel.OpenOk())
        await here.client.hears(commands.Channel.OpenOk)
        await here.primary.stream.aclose()
        await here.client.publish(b"first")

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320
        assert here.pair.sent == []


async def test_a_close_in_an_outage_is_answered_after_the_publishes(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"second")
        await here.client.send(0, commands.Connection.Close(200, "", 0, 0))

        await here.client.hears(commands.Basic.Ack)
        await here.client.hears(commands.Connection.CloseOk)


async def test_an_operator_who_closes_the_connection_closes_the_clients(autojump_clock):
    text = "CONNECTION_FORCED - Closed via management plugin"
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.send(0, commands.Connection.Close(320, text, 0, 0))

        await here.primary.hears(commands.Connection.CloseOk)
        assert (await here.client.hears(commands.Connection.Close)).reply_text == text
        assert here.pair.sent == []


async def test_a_node_that_shuts_down_is_an_outage(autojump_clock):
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.send(0, commands.Connection.Close(320, text, 0, 0))

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert here.pair.bodies() == [b"second"]


async def test_a_malformed_frame_ends_the_connection_with_the_protocols_own_error(autojump_clock):
    async with harness() as here:
        await here.client.stream.send_all(b"\x01\x00\x01\x00\x00\x00\x01xx")

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 501
