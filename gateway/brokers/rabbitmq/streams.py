"""
Streams: queues that are read without taking from them (RabbitMQ 3.9, `x-queue-type: stream`).

RabbitMQ counts no messages of a stream for a client, and says nothing when a consumer has come to
the end. But once it delivers, it delivers all that there is: the answer to a later request comes
behind it. So a read begins with the last message of the read before, which is always there.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, Final

import attrs
import trio
from pamqp import commands

from gateway.brokers.rabbitmq.channels import Channels
from gateway.domain.errors import BrokerError, InvalidRequest, NotSupported
from gateway.domain.message import Delivery
from gateway.net.rabbitmq.channel import Channel, Unasked
from gateway.wire.rabbitmq.content import read_content_header
from gateway.wire.rabbitmq.frames import ContentArrived
from gateway.wire.rabbitmq.properties import read
from gateway.wire.rabbitmq.queues import ConsumeQueue

# Seconds until a stream that delivers nothing counts as empty; a broker with work delivers sooner.
QUIET: Final = 0.5
# RabbitMQ drops whole segments, and looks for them when it begins another. Its own 500 MB would
# keep the small messages of years.
_SEGMENT: Final = 256 * 1024  # bytes
_OFFSET: Final = "x-stream-offset"
_TAGS: Final = count(1)


def arguments_for_stream(keeps: timedelta, most: int) -> Mapping[str, Any]:
    """The arguments of a stream that keeps its messages so long, at most so many bytes."""
    return {
        "x-queue-type": "stream",
        "x-max-age": f"{keeps // timedelta(seconds=1)}s",
        "x-max-length-bytes": most,
        "x-stream-max-segment-size-bytes": _SEGMENT,
    }


@attrs.define(eq=False)
class StreamReader:
    """Reads streams, one after the other, on a channel of its own that stays open."""

    _channels: Channels
    _reading: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _channel: Channel | None = attrs.field(default=None, init=False)

    async def read(self, name: str, from_sequence: int, limit: int) -> Sequence[Delivery]:
        """As `Streams.read_stream`: a sequence number is the message's offset, and one."""
        async with self._reading:
            channel = self._channel
            if channel is None or channel.is_over:
                channel = self._channel = await self._channels.open()
            try:
                arrived = await _read(channel, name, max(0, from_sequence - 2), limit + 1)
            except InvalidRequest as error:
                raise NotSupported(f"{name} can't be read as a stream: {error}") from error
            except BaseException:
                channel.close()  # another read must not get what this one has asked for
                raise
        found = [_delivery_of(each) for each in arrived]
        return [each for each in found if each.sequence_number >= from_sequence][:limit]


@attrs.define(eq=False)
class _Consumed:
    contents: list[ContentArrived] = attrs.field(factory=list)
    some: trio.Event = attrs.field(factory=trio.Event)

    def add(self, event: Unasked) -> None:
        if isinstance(event, ContentArrived):
            self.contents.append(event)
        self.some.set()  # also when RabbitMQ has cancelled the consumer

    def close(self, error: BrokerError) -> None:
        self.some.set()


async def _read(channel: Channel, name: str, offset: int, limit: int) -> Sequence[ContentArrived]:
    """At most so many messages of the stream from that offset on. Raises BrokerError."""
    consumed, tag = _Consumed(), f"stream-{next(_TAGS)}"
    channel.on_unasked, channel.on_end = consumed.add, consumed.close
    consume = ConsumeQueue(queue=name, consumer_tag=tag, arguments={_OFFSET: offset})
    await channel.call(commands.Basic.Qos(prefetch_count=limit), consume)
    with trio.move_on_after(QUIET):
        await consumed.some.wait()
    await channel.call(commands.Basic.Cancel(consumer_tag=tag))
    channel.send(commands.Basic.Ack(delivery_tag=0, multiple=True))
    return consumed.contents


def _delivery_of(content: ContentArrived) -> Delivery:
    headers = read_content_header(content.header).get("headers", {})
    return Delivery(
        message=read(content.header, content.body).message,
        sequence_number=int(headers.get(_OFFSET, 0)) + 1,
    )
