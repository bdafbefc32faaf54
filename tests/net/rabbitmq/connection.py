"""Parts of the tests of connection that other tests need, too."""

import random
from collections.abc import Callable

import trio
from pamqp import base, commands
from trio.testing import memory_stream_pair

from gateway.brokers.rabbitmq.limited import LimitedConnection, UserLimit
from gateway.brokers.rabbitmq.sender import RabbitmqSender
from gateway.domain.backoff import Backoff
from gateway.net.rabbitmq.channel import Channel
from gateway.net.rabbitmq.connection import BrokerLogin, RabbitmqConnection
from gateway.net.reconnecting import Failures, Reconnecting
from gateway.net.server_address import ServerAddress
from gateway.wire.rabbitmq.frames import Login, method_frame
from tests.harness.clocks import VirtualClock

LOGIN = Login(user="guest", password="guest", vhost="/", heartbeat=5)
TARGET = BrokerLogin(
    place=ServerAddress(host="rabbit", port=5672), login=LOGIN, connect_timeout=5.0
)


def greeting(channels: int = 100, max_frame: int = 131_072) -> bytes:
    return b"".join(
        method_frame(0, method)
        for method in (
            commands.Connection.Start(mechanisms="PLAIN"),
            commands.Connection.Tune(channels, max_frame, 60),
            commands.Connection.OpenOk(),
        )
    )


class Peer:
    """A broker that writes and reads on the test's command."""

    def __init__(
        self, pair: Callable[[], tuple[trio.abc.Stream, trio.abc.Stream]] = memory_stream_pair
    ) -> None:
        client, self.stream = pair()
        self.connection = RabbitmqConnection(client, TARGET)

    async def open(
        self, nursery: trio.Nursery, channels: int = 100, max_frame: int = 131_072
    ) -> RabbitmqConnection:
        async with trio.open_nursery() as greeters:
            greeters.start_soon(self.stream.send_all, greeting(channels, max_frame))
            greeters.start_soon(self.read_until, commands.Connection.Open)
            await nursery.start(self.connection.run)
        return self.connection

    async def read_until(self, kind: type[base.Frame]) -> None:
        """Read up to that method."""
        seen = b""
        while kind.index.to_bytes(4) not in seen:
            seen += bytes(await self.stream.receive_some(65536))

    async def open_channel(self, number: int) -> Channel:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer_open, number)
            return await self.connection.open_channel()

    async def _answer_open(self, number: int) -> None:
        await self.read_until(commands.Channel.Open)
        await self.say(number, commands.Channel.OpenOk())

    async def open_lane(self) -> None:
        """
        Answer a client that opens channel 1 to send on it, and tests its right by a first message.
        """
        await self.read_until(commands.Channel.Open)
        await self.say(1, commands.Channel.OpenOk())
        await self.read_until(commands.Confirm.Select)
        await self.say(1, commands.Confirm.SelectOk())
        await self.read_until(commands.Basic.Publish)
        await self.say(1, commands.Basic.Ack(1))

    async def say(self, channel: int, *methods: base.Frame) -> None:
        await self.stream.send_all(b"".join(method_frame(channel, each) for each in methods))


def reconnecting(connection: RabbitmqConnection) -> Reconnecting[RabbitmqConnection]:
    async def dial() -> RabbitmqConnection:
        await trio.lowlevel.checkpoint()
        return connection

    failures = Failures(backoff=Backoff(), rng=random.Random(0))
    return Reconnecting(dial=dial, failures=failures, spawn=trio.lowlevel.spawn_system_task)


def sender_on(
    connection: RabbitmqConnection, trial: RabbitmqConnection | None = None
) -> RabbitmqSender:
    """A sender that asks for channels on `trial` while `connection` isn't quiet."""
    limit = user_limit()
    return RabbitmqSender(
        connections=reconnecting(connection),
        clock=VirtualClock(),
        rng=random.Random(0),
        limit=limit,
        trial=LimitedConnection(connections=reconnecting(trial or connection), limit=limit),
    )


def user_limit() -> UserLimit:
    return UserLimit(Failures(backoff=Backoff(), rng=random.Random(0)))
