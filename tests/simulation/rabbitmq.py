"""
The front end for RabbitMQ's own clients of a simulated gateway, which isn't before RabbitMQ, and a
publisher that speaks to it.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio
from pamqp import base, commands

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound, OutcomeUnknown, Unreachable
from gateway.domain.message import Message
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.options import AmqpOptions
from gateway.frontends.rabbitmq.frontend import RabbitmqFrontend
from gateway.frontends.rabbitmq.known_topology import KnownTopology
from gateway.frontends.rabbitmq_broker.connection import LARGEST, BrokerTarget, ServedConnection
from gateway.frontends.rabbitmq_broker.routed_sends import RoutedSends
from gateway.frontends.rabbitmq_broker.vhost import ServedVhost
from gateway.ports import Broker, WallClock
from gateway.wire.rabbitmq.content import write_content_header
from gateway.wire.rabbitmq.errors import error_after_hand_over
from gateway.wire.rabbitmq.frames import METHOD, content_frames, method_frame
from gateway.wire.rabbitmq.properties import prepare, read
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER, FrameReader, RelayedContent, delivery_tag
from tests.harness.rabbitmq_contents import AwaitedPublish
from tests.simulation.access import POLICY
from tests.simulation.network import Network, Serve

CHANNEL: Final = 1
MAX_FRAME: Final = 131_072  # bytes: RabbitMQ's default
LOGIN: Final = 10.0  # seconds
WITH_CONTENT: Final = (commands.Basic.Return.index, commands.Basic.Deliver.index)
CLOSED: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


def serving(
    broker: Broker, leases: Leases, *, clock: WallClock, rng: random.Random, send_timeout: float
) -> Serve:
    """Return the function that serves a connection."""
    vhost = ServedVhost(broker=broker, known=KnownTopology(), flush=trio.lowlevel.checkpoint)
    options = AmqpOptions()
    target = BrokerTarget(
        vhost=vhost,
        sends=RoutedSends(vhost=vhost, timeout=send_timeout),
        authorizer=Authorizer([POLICY], wall_clock=clock),
        login_timeout=LOGIN,
        most_waiting=options.max_pending,
        most_bytes=options.max_pending_bytes,
    )
    return partial(_serve, RabbitmqFrontend(target, ServedConnection))


async def _serve(frontend: RabbitmqFrontend[BrokerTarget], stream: trio.abc.Stream) -> None:
    """As a listener does."""
    try:
        await frontend.serve_connection(stream)
    finally:
        await trio.aclose_forcefully(stream)


@attrs.define(eq=False)
class Publisher:
    """
    Publishes with `mandatory` and confirms, one message at a time, and connects again when its
    connection has ended. It outlives the gateways.
    """

    _network: Network
    _home: trio.Nursery | None = attrs.field(default=None, init=False)
    _connection: "Connection | None" = attrs.field(default=None, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """As `Client.run`."""
        async with trio.open_nursery() as self._home:
            task_status.started()
            await trio.sleep_forever()

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        As `Client.send`. A nack says that nobody vouches for the message: it may be there all the
        same.
        """
        [message] = messages
        connection = await self._opened()
        publish = await connection.publish(entity, message)
        await publish.done.wait()
        if publish.error is not None:
            raise publish.error

    async def _opened(self) -> "Connection":
        if self._connection is None or self._connection.is_over:
            assert self._home is not None, "it runs"
            try:
                stream = await self._network.connect()
            except OSError as error:
                raise Unreachable(str(error)) from error
            made = Connection(stream)
            try:
                await made.open()
            except CLOSED as error:
                raise Unreachable("the connection has ended before the login") from error
            self._home.start_soon(made.run)
            self._connection = made
        return self._connection


@attrs.define(eq=False)
class Connection:
    """A client's connection with one channel."""

    _stream: trio.abc.Stream
    _on_delivery: Callable[[bytes], None] = lambda _: None  # is told its body
    _reader: FrameReader = attrs.field(factory=FrameReader)
    _waiting: dict[int, tuple[str, AwaitedPublish]] = attrs.field(factory=dict)  # by delivery tag
    _returned: set[str] = attrs.field(factory=set)  # message ids
    _content: RelayedContent | None = None  # of a return or a delivery
    _tag: int = 0
    _delivered: int = 0  # delivery tag of the last delivery without an acknowledgement; 0: none
    is_over: bool = False

    async def open(self) -> None:
        """Log in, and open the channel with confirms. Raises one of `CLOSED`."""
        await self._stream.send_all(PROTOCOL_HEADER)
        await self._next()
        secret = f"\0{POLICY.name}\0{POLICY.keys[0]}"
        await self._write(0, commands.Connection.StartOk({}, "PLAIN", secret, "en_US"))
        await self._next()
        tune = commands.Connection.TuneOk(1, MAX_FRAME, 0)
        await self._write(0, tune, commands.Connection.Open())
        await self._next()
        for request in (commands.Channel.Open(), commands.Confirm.Select()):
            await self._write(CHANNEL, request)
            await self._next()

    async def _write(self, channel: int, *methods: base.Frame) -> None:
        await self._stream.send_all(b"".join(method_frame(channel, each) for each in methods))

    async def _next(self) -> None:
        """Return when the answer to the last request has arrived."""
        while not list(self._reader.feed(await self._receive())):
            continue

    async def _receive(self) -> bytes:
        data = await self._stream.receive_some()
        if not data:
            raise trio.BrokenResourceError("the gateway has ended the connection")
        return bytes(data)

    async def publish(self, entity: EntityPath, message: Message) -> AwaitedPublish:
        """Return when the publish is written."""
        outgoing, publish = prepare(message), AwaitedPublish()
        header = write_content_header(len(outgoing.body), outgoing.properties, outgoing.table)
        method = commands.Basic.Publish(routing_key=entity.name, mandatory=True)
        frames = content_frames(CHANNEL, header, outgoing.body, MAX_FRAME - 8)
        self._tag += 1
        self._waiting[self._tag] = str(message.message_id), publish
        try:
            await self._stream.send_all(method_frame(CHANNEL, method) + b"".join(frames))
        except CLOSED:
            self._end(OutcomeUnknown("the connection has ended"))
        return publish

    async def consume(self, queue: EntityPath) -> None:
        """Begin a consumer, which acknowledges each message."""
        await self._write(CHANNEL, commands.Basic.Consume(queue=queue.name))
        await self._next()

    async def run(self) -> None:
        """Read until the connection ends; what has no confirm then is unknown."""
        try:
            while not self.is_over:
                for frame in self._reader.feed(await self._receive()):
                    self._on_frame(frame)
                acknowledged, self._delivered = self._delivered, 0
                if acknowledged:
                    await self._write(CHANNEL, commands.Basic.Ack(acknowledged, multiple=True))
        except CLOSED:
            self._end(OutcomeUnknown("the connection has ended"))
        await trio.aclose_forcefully(self._stream)

    def _on_frame(self, frame: Any) -> None:
        if self._content is not None:
            self._content.add(frame, LARGEST)
            if self._content.is_whole:
                self._on_content(self._content)
                self._content = None
        elif frame.kind == METHOD and frame.method_index in WITH_CONTENT:
            self._content = RelayedContent(frame)
        elif frame.kind == METHOD:
            self._on_method(frame.method())

    def _on_content(self, content: RelayedContent) -> None:
        if content.method.method_index == commands.Basic.Deliver.index:
            self._on_delivery(content.body())
            self._delivered = delivery_tag(content.method)
        else:
            message = read(content.header, content.body()).message
            self._returned.add(str(message.message_id))

    def _on_method(self, method: Any) -> None:
        match method:
            case commands.Basic.Ack() | commands.Basic.Nack():
                accepted, last = isinstance(method, commands.Basic.Ack), method.delivery_tag
                tags = (
                    [each for each in self._waiting if each <= last] if method.multiple else [last]
                )
                for tag in tags:
                    self._confirm(*self._waiting.pop(tag), accepted=accepted)
            case commands.Channel.Close() | commands.Connection.Close():
                code, text = method.reply_code, method.reply_text
                self._end(error_after_hand_over(code, text, len(self._waiting)))

    def _confirm(self, name: str, publish: AwaitedPublish, *, accepted: bool) -> None:
        error: BrokerError | None = None
        if not accepted:
            error = OutcomeUnknown("a nack")
        elif name in self._returned:
            error = EntityNotFound("returned: no queue has the message")
        self._returned.discard(name)
        publish.settle(error)

    def _end(self, error: BrokerError) -> None:
        self.is_over = True
        waiting, self._waiting = self._waiting, {}
        for _, publish in waiting.values():
            publish.settle(error)
