"""
AMQP 0-9-1 as a server: bytes of a client, and bytes of the primary, in connections that the gateway
relays.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio
from pamqp import base, commands, header
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, memory_stream_pair

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.failover import State
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.message import Message
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq.frontend import RabbitmqFrontend
from gateway.frontends.rabbitmq.login_policies import LoginPolicies
from gateway.frontends.rabbitmq.relayed_connection import RelayedConnection
from gateway.frontends.rabbitmq.session import RelayTarget
from gateway.wire.rabbitmq.frames import METHOD, ProtocolError, content_frames, method_frame
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER, FrameReader
from tests.fuzz.by_input import ByInput, Rng
from tests.fuzz.connections import END, frames_of, whole_frames
from tests.harness.certificates import now

Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]

ANSWERS: Final[Mapping[type[base.Frame], base.Frame]] = {
    commands.Connection.StartOk: commands.Connection.Tune(2047, 131_072, 0),
    commands.Connection.Open: commands.Connection.OpenOk(),
    commands.Connection.Close: commands.Connection.CloseOk(),
    commands.Channel.Open: commands.Channel.OpenOk(),
    commands.Channel.Close: commands.Channel.CloseOk(),
    commands.Confirm.Select: commands.Confirm.SelectOk(),
    commands.Tx.Select: commands.Tx.SelectOk(),
    commands.Queue.Declare: commands.Queue.DeclareOk("orders", 0, 0),
    commands.Queue.Delete: commands.Queue.DeleteOk(0),
    commands.Basic.Qos: commands.Basic.QosOk(),
    commands.Basic.Consume: commands.Basic.ConsumeOk("tag"),
    commands.Basic.Cancel: commands.Basic.CancelOk("tag"),
    commands.Basic.Get: commands.Basic.GetEmpty(),
}
START: Final = method_frame(
    0, commands.Connection.Start(server_properties={}, mechanisms="PLAIN EXTERNAL")
)
LOGIN: Final = (
    PROTOCOL_HEADER
    + method_frame(0, commands.Connection.StartOk({}, "PLAIN", "\0anna\0secret", "en_US"))
    + method_frame(0, commands.Connection.TuneOk(2047, 131_072, 0))
    + method_frame(0, commands.Connection.Open())
)


@attrs.define(eq=False)
class Primary:
    """A peer that answers methods, and takes contents without a look."""

    confirmed: dict[int, int] = attrs.field(factory=dict)  # publishes by channel

    async def serve(self, stream: Stream) -> None:
        reader = FrameReader()
        try:
            assert bytes(await stream.receive_some(len(PROTOCOL_HEADER))) == PROTOCOL_HEADER
            await stream.send_all(START)
            while data := await stream.receive_some():
                for frame in reader.feed(bytes(data)):
                    if frame.kind == METHOD:
                        await stream.send_all(self._answer(frame.channel, frame.method()))
        except (ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            await trio.aclose_forcefully(stream)

    def _answer(self, channel: int, method: base.Frame) -> bytes:
        if isinstance(method, commands.Basic.Publish):
            tag = self.confirmed[channel] = self.confirmed.get(channel, 0) + 1
            return method_frame(channel, commands.Basic.Ack(delivery_tag=tag))
        found = ANSWERS.get(type(method))
        return b"" if found is None else method_frame(channel, found)


class Pair:
    """A broker that takes each message."""

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await trio.lowlevel.checkpoint()


class States:
    """The states of entities that are well."""

    def state_of(self, entity: EntityPath) -> State:
        return State.PRIMARY

    def begin(self, entity: EntityPath) -> int:
        return 1

    def sent(self, attempt: int, *, late: bool = False) -> None:
        assert attempt == 1

    def slow(self, attempt: int, *, is_silence: bool = True) -> None:
        assert attempt == 1

    def failed(self, attempt: int, error: BrokerError) -> None:
        assert attempt == 1

    def release(self, attempt: int) -> None:
        assert attempt == 1

    def probe_unanswered(self, probe: int) -> None:
        assert probe == 1


def relay_client(data: bytes) -> None:
    """A client sends these bytes to a primary that is well, in one piece and in many."""
    for step in (len(data) or 1, 7) if len(data) < 2000 else (len(data),):
        _run(data, step, Primary().serve)


def relay_primary(data: bytes) -> None:
    """The primary sends these bytes after the login, to a client that publishes and consumes."""

    async def serve(stream: Stream) -> None:
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Primary().serve, stream)
                await trio.sleep(5)
                await stream.send_all(data)
                await trio.sleep_forever()

    _run(CONVERSATION, len(CONVERSATION), serve)


def _run(data: bytes, step: int, serve: Callable[[Stream], Any]) -> None:
    trio.run(_converse, data, step, serve, clock=MockClock(autojump_threshold=0))


async def _converse(data: bytes, step: int, serve: Callable[[Stream], Any]) -> None:
    async with trio.open_nursery() as peers:

        async def dial() -> Stream:
            await trio.lowlevel.checkpoint()
            ours, theirs = memory_stream_pair()
            peers.start_soon(_served, serve, theirs)
            return ours

        frontend = RabbitmqFrontend(
            RelayTarget(
                dial=dial,
                broker=Pair(),
                states=States(),
                sends=SendCounters(),
                login_timeout=10.0,
                slow=2.0,
                vhost="/",
                policies=LoginPolicies(Authorizer((), wall_clock=now)),
            ),
            RelayedConnection,
        )
        client, end = memory_stream_pair()
        with trio.fail_after(END):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_all, client)
                nursery.start_soon(write_all, client, data, step)
                await frontend.serve_connection(end)
                nursery.cancel_scope.cancel()
        peers.cancel_scope.cancel()


async def _served(serve: Callable[[Stream], Any], stream: Stream) -> None:
    try:
        await serve(stream)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


async def read_all(client: Stream) -> None:
    while await client.receive_some():
        await trio.lowlevel.checkpoint()


async def write_all(client: Stream, data: bytes, step: int) -> None:
    if data.startswith(LOGIN):  # answered before the rest comes
        data = data.removeprefix(LOGIN)
        await client.send_all(LOGIN)
        await trio.sleep(1)
    for at in range(0, len(data), step):
        await client.send_all(data[at : at + step])
    await trio.sleep(60)
    await client.send_eof()


def _publish(channel: int, body: bytes, **names: Any) -> bytes:
    head = header.ContentHeader(
        body_size=len(body), properties=commands.Basic.Properties(headers={"a": [1, None]})
    )
    publish = commands.Basic.Publish(**{"routing_key": "orders", **names})
    parts = content_frames(channel, head.marshal(), body, 4096)
    return method_frame(channel, publish) + b"".join(parts)


CONVERSATION: Final = (
    LOGIN
    + method_frame(1, commands.Channel.Open())
    + method_frame(1, commands.Confirm.Select())
    + _publish(1, b"one")
    + _publish(1, b"two" * 3000)
    + method_frame(1, commands.Basic.Consume(queue="orders"))
)


def frames_after(data: bytes) -> list[bytes]:
    """The frames; the protocol header is a piece of its own."""
    if not data.startswith(PROTOCOL_HEADER):
        return frames_of(data)
    return [PROTOCOL_HEADER, *frames_of(data[len(PROTOCOL_HEADER) :])]


def after_login(data: bytes, rng: Rng) -> bytes:
    """Mostly: behind a good login, as frames whose sizes are right."""
    whole = whole_frames(data.removeprefix(LOGIN), rng)
    return whole if rng.random() < 0.2 else LOGIN + whole


RELAYS: Final = (
    ByInput(name="amqp-0-9-1-clients", check=relay_client, split=frames_after, mend=after_login),
    ByInput(name="amqp-0-9-1-primaries", check=relay_primary, split=frames_of, mend=whole_frames),
)
