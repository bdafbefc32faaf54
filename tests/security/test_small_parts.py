"""A body that comes in parts of two bytes takes as much memory as any other."""

import tracemalloc
from datetime import UTC, datetime

import pytest
from pamqp import commands

from gateway.net.http.client_codec import ClientCodec
from gateway.net.http.codec import HttpCodec
from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import TransferReceived
from gateway.wire.amqp.performatives import uint
from gateway.wire.http.messages import Headers, Request
from gateway.wire.rabbitmq.content import write_content_header
from gateway.wire.rabbitmq.frames import (
    ContentArrived,
    Conversation,
    Login,
    content_frames,
    method_frame,
)
from gateway.wire.rabbitmq.relayed import FrameReader, RelayedContent
from tests.wire.amqp.frames import TRANSFER, anonymous_server, frame, sending_to, transfer

PARTS = 5_000
PART = b"ab"
BODY = PART * PARTS
AT_ONCE = 100
CHUNK = b"2\r\n" + PART + b"\r\n"


class OverAmqp:
    def __init__(self) -> None:
        self.engine: Engine = sending_to(anonymous_server())

    def feed(self, data: bytes) -> None:
        self.engine.feed(data)

    first = transfer(0, more=True, payload=PART)
    part = frame(TRANSFER, [uint(0), None, None, None, False, True], PART)
    last = frame(TRANSFER, [uint(0), None, None, None, False, False], PART)

    def body(self) -> bytes:
        (received,) = [each for each in self.engine.events() if isinstance(each, TransferReceived)]
        return received.payload


class OverHttp:
    def __init__(self) -> None:
        self.codec = HttpCodec(
            max_body=2 * len(BODY), server_name=b"x", wall_clock=lambda: datetime.now(UTC)
        )
        self.request: Request | None = None

    def feed(self, data: bytes) -> None:
        self.codec.feed(data)
        self.request = self.codec.next_request()

    first = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK
    part = CHUNK
    last = CHUNK + b"0\r\n\r\n"

    def body(self) -> bytes:
        assert self.request is not None
        return self.request.body


class FromHttp:
    def __init__(self) -> None:
        request = Request(method="GET", target="/", headers=Headers.of({}))
        self.codec = ClientCodec("a", request, 2 * len(BODY))
        self.codec.build()
        self.answer = b""

    def feed(self, data: bytes) -> None:
        response = self.codec.receive(data)
        self.answer = b"" if response is None else response.body

    first = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK
    part = CHUNK
    last = CHUNK + b"0\r\n\r\n"

    def body(self) -> bytes:
        return self.answer


class FromRabbitmq:
    def __init__(self) -> None:
        login = Login(user="guest", password="hush", vhost="/", heartbeat=5)
        self.conversation = Conversation(login, max_body=2 * len(BODY))
        self.arrived: bytes | None = None

    def feed(self, data: bytes) -> None:
        for event in self.conversation.feed(data):
            assert isinstance(event, ContentArrived)
            self.arrived = event.body

    deliver = commands.Basic.Deliver(
        consumer_tag="1", delivery_tag=1, redelivered=False, exchange="", routing_key="a"
    )
    header = write_content_header(len(BODY), {}, b"")
    first = method_frame(1, deliver) + b"".join(content_frames(1, header, PART, 4096))
    part = last = b"".join(content_frames(1, header, PART, 4096)[3:])

    def body(self) -> bytes:
        assert self.arrived is not None
        return self.arrived


class RelayedToRabbitmq:
    """A publish on its way to the primary."""

    def __init__(self) -> None:
        self.reader = FrameReader()
        self.content: RelayedContent | None = None

    def feed(self, data: bytes) -> None:
        for each in self.reader.feed(data):
            if self.content is None:
                self.content = RelayedContent(each)
            else:
                self.content.add(each, 2 * len(BODY))

    first = method_frame(1, commands.Basic.Publish(routing_key="a")) + b"".join(
        content_frames(1, FromRabbitmq.header, PART, 4096)
    )
    part = last = FromRabbitmq.part

    def body(self) -> bytes:
        assert self.content is not None
        assert self.content.is_whole
        return self.content.body()


@pytest.mark.parametrize("way", [OverAmqp, OverHttp, FromHttp, FromRabbitmq, RelayedToRabbitmq])
def test_small_parts_take_no_more_memory_than_large_ones(
    way: type[OverAmqp | OverHttp | FromHttp | FromRabbitmq | RelayedToRabbitmq],
) -> None:
    reader = way()
    reader.feed(reader.first)
    group = reader.part * AT_ONCE
    tracemalloc.start()
    try:
        for _ in range(PARTS // AT_ONCE - 1):
            reader.feed(group)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.feed(reader.part * (AT_ONCE - 2) + reader.last)

    assert reader.body() == BODY
    assert taken < 8 * len(BODY)
