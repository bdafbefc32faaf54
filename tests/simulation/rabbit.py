"""
A simulated RabbitMQ: AMQP 0-9-1 over streams in memory, before a store that is also the pair's
primary. It has as much of the protocol as the clients of `wires` use.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs
import trio
from pamqp import base, commands, header
from trio.testing import memory_stream_pair

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unreachable
from gateway.domain.message import Complete, Delivery
from gateway.ports import Receiver
from gateway.store.local.memory import MemoryBroker
from gateway.wire.rabbitmq.frames import METHOD, content_frames, method_frame
from gateway.wire.rabbitmq.properties import message_as_given
from gateway.wire.rabbitmq.relayed import (
    PROTOCOL_HEADER,
    FrameReader,
    RelayedContent,
    RelayedFrame,
    read_publish,
)
from tests.frontends.rabbitmq.peers import Stream
from tests.harness.faults import Fault, Hang, Operation, Refuse

LATENCY: Final = 0.02  # seconds that it takes for a frame at most
REFUSED: Final = 0.03  # the share of publishes that get a nack
TOGETHER: Final = 0.05  # seconds after which it confirms at the latest what it has stored
LARGEST: Final = 10_000  # bytes of a body
MAX_FRAME: Final = 4096  # bytes
_CLOSED: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


def content_of(channel: int, method: base.Frame, body: bytes) -> bytes:
    """The frames of a method with its content."""
    properties = commands.Basic.Properties(delivery_mode=2)
    head = header.ContentHeader(body_size=len(body), properties=properties).marshal()
    frames = content_frames(channel, head, body, MAX_FRAME)
    return method_frame(channel, method) + b"".join(frames)


@attrs.define(eq=False)
class Rabbit:
    store: MemoryBroker
    rng: random.Random
    home: trio.Nursery
    on_settled: Callable[[bytes], None]  # hears of each message that a consumer has taken away
    on_misuse: Callable[[str], None]  # hears what no client of the wire has asked for
    is_down: bool = False
    silent: str = ""  # a queue that confirms nothing
    thawed: trio.Event = attrs.field(factory=trio.Event)
    spoken: trio.Event = attrs.field(factory=trio.Event)  # no queue is silent any more
    delivered: set[bytes] = attrs.field(factory=set)
    _connections: set[trio.CancelScope] = attrs.field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.thawed.set()

    def fault(self, operation: Operation, entity: EntityPath) -> Fault | None:
        """The fault that the pair's own operation meets now."""
        if self.is_down:
            return Refuse()
        shows = operation in {Operation.SEND, Operation.PROBE}
        return (
            Hang() if not self.thawed.is_set() or (shows and entity.name == self.silent) else None
        )

    async def dial(self) -> Stream:
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise Unreachable("refused")
        ours, theirs = memory_stream_pair()
        self.home.start_soon(self._serve, theirs)
        return ours

    def kill(self) -> None:
        self.is_down = True
        for scope in self._connections:
            scope.cancel()

    def freeze(self) -> None:
        self.thawed = trio.Event()

    def silence(self, queue: str) -> None:
        self.silent, self.spoken = queue, trio.Event()

    def heal(self) -> None:
        """All is well again; what was killed has started."""
        self.is_down, self.silent = False, ""
        self.thawed.set()
        self.spoken.set()

    async def _serve(self, stream: Stream) -> None:
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                async with trio.open_nursery() as nursery:
                    await Connection(self, stream, nursery).run()
                    nursery.cancel_scope.cancel()
            finally:
                self._connections.discard(scope)
                await trio.aclose_forcefully(stream)


@attrs.define(eq=False)
class Channel:
    number: int
    published: int = 0
    stored: list[int] = attrs.field(factory=list)  # the tags that it may confirm
    withheld: set[int] = attrs.field(factory=set)  # of the silent queue
    delivered: int = 0
    unsettled: dict[int, tuple[Receiver, Delivery]] = attrs.field(factory=dict)
    room: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(1))


@attrs.define(eq=False)
class Connection:
    rabbit: Rabbit
    stream: Stream
    nursery: trio.Nursery
    channels: dict[int, Channel] = attrs.field(factory=dict)
    contents: dict[int, RelayedContent] = attrs.field(factory=dict)
    _door: trio.Lock = attrs.field(factory=trio.Lock)

    async def run(self) -> None:
        """Serve until the other side hangs up."""
        reader, rabbit = FrameReader(), self.rabbit
        header = bytes(await self.stream.receive_some(len(PROTOCOL_HEADER)))
        if header != PROTOCOL_HEADER:
            return
        await self._say(0, commands.Connection.Start(server_properties={}, mechanisms="PLAIN"))
        while True:
            try:
                data = await self.stream.receive_some()
            except _CLOSED:
                return
            if not data:
                return
            for frame in reader.feed(bytes(data)):
                await rabbit.thawed.wait()
                await trio.sleep(rabbit.rng.uniform(0.0, LATENCY))
                await self._handle(frame)

    async def _say(self, channel: int, *methods: base.Frame) -> None:
        await self._write(b"".join(method_frame(channel, each) for each in methods))

    async def _write(self, data: bytes) -> None:
        async with self._door:
            await self.rabbit.thawed.wait()
            with suppress(*_CLOSED):
                await self.stream.send_all(data)

    async def _handle(self, frame: RelayedFrame) -> None:
        content = self.contents.get(frame.channel)
        if content is not None:
            content.add(frame, LARGEST)
            if content.is_whole:
                del self.contents[frame.channel]
                await self._publish(self.channels[frame.channel], content)
        elif frame.kind != METHOD:
            return  # a heartbeat
        elif frame.method_index == commands.Basic.Publish.index:
            self.contents[frame.channel] = RelayedContent(frame)
        else:
            await self._answer(frame.channel, frame.method())

    async def _answer(self, number: int, method: base.Frame) -> None:
        match method:
            case commands.Connection.StartOk():
                await self._say(0, commands.Connection.Tune(2047, 131_072, 0))
            case commands.Connection.Open():
                await self._say(0, commands.Connection.OpenOk())
            case commands.Channel.Open():
                self.channels[number] = Channel(number)
                await self._say(number, commands.Channel.OpenOk())
            case commands.Confirm.Select():
                if not method.nowait:
                    await self._say(number, commands.Confirm.SelectOk())
            case commands.Basic.Qos():
                self.channels[number].room = trio.Semaphore(method.prefetch_count)
                await self._say(number, commands.Basic.QosOk())
            case commands.Basic.Consume():
                await self._say(number, commands.Basic.ConsumeOk(method.consumer_tag))
                self.nursery.start_soon(self._deliver, self.channels[number], method)
            case commands.Basic.Ack():
                await self._settle(self.channels[number], method)

    # --- publishes

    async def _publish(self, channel: Channel, content: RelayedContent) -> None:
        rabbit, queue = self.rabbit, read_publish(content.method).routing_key
        channel.published += 1
        tag = channel.published
        if rabbit.rng.random() < REFUSED:
            await self._say(channel.number, commands.Basic.Nack(tag))
            return
        message = message_as_given(content.header, content.body())
        await rabbit.store.send(EntityPath(queue), [message])
        if queue == rabbit.silent:
            channel.withheld.add(tag)
            self.nursery.start_soon(self._confirm_later, channel, tag)
            return
        channel.stored.append(tag)
        self.nursery.start_soon(self._confirm_soon, channel)

    async def _confirm_soon(self, channel: Channel) -> None:
        await trio.sleep(self.rabbit.rng.uniform(0.0, TOGETHER))
        tags, channel.stored = channel.stored, []
        if not tags:
            return
        if len(tags) > 1 and not any(each < tags[-1] for each in channel.withheld):
            await self._say(channel.number, commands.Basic.Ack(tags[-1], multiple=True))
        else:
            await self._say(channel.number, *map(commands.Basic.Ack, tags))

    async def _confirm_later(self, channel: Channel, tag: int) -> None:
        await self.rabbit.spoken.wait()
        channel.withheld.discard(tag)
        await self._say(channel.number, commands.Basic.Ack(tag))

    # --- deliveries

    async def _deliver(self, channel: Channel, consume: commands.Basic.Consume) -> None:
        rabbit = self.rabbit
        async with rabbit.store.open_receiver(EntityPath(consume.queue)) as receiver:
            while True:
                await channel.room.acquire()
                [delivery] = await receiver.receive(1)
                body = bytes(delivery.message.body)
                channel.delivered += 1
                tag = channel.delivered
                channel.unsettled[tag] = receiver, delivery
                deliver = commands.Basic.Deliver(
                    consume.consumer_tag, tag, body in rabbit.delivered, "", consume.queue
                )
                rabbit.delivered.add(body)
                await self._write(content_of(channel.number, deliver, body))

    async def _settle(self, channel: Channel, ack: commands.Basic.Ack) -> None:
        tag = ack.delivery_tag
        known = channel.unsettled
        tags = [each for each in known if each <= tag] if ack.multiple else [tag]
        if tag not in known:
            self.rabbit.on_misuse(f"acknowledged: unknown delivery tag {tag}")
            return
        for each in tags:
            receiver, delivery = known.pop(each)
            await receiver.settle(delivery, Complete())
            self.rabbit.on_settled(bytes(delivery.message.body))
            channel.room.release()
