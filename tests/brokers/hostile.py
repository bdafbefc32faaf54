"""Namespaces that break every rule of a namespace, on streams in memory."""

import gzip
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import pytest
import trio
from pamqp import commands
from trio.testing import lockstep_stream_pair

from gateway.brokers.amqp import broker as amqp
from gateway.brokers.amqp.options import AmqpNamespaceOptions
from gateway.brokers.rabbitmq import broker as rabbitmq
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.brokers.servicebus import broker as servicebus
from gateway.brokers.storage_queue import broker as storage_queue
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.domain.message import Kind, Message, Typed, symbol
from gateway.net import dialing
from gateway.net.http import client as http_client
from gateway.net.server_address import ServerAddress
from gateway.net.sniffing import RewoundStream
from gateway.ports import Broker
from gateway.wire.amqp.encoding import encode
from gateway.wire.amqp.message import encode_message
from gateway.wire.amqp.performatives import described, uint
from gateway.wire.rabbitmq.frames import method_frame
from tests.wire.amqp.frames import SOURCE, TARGET, frame
from tests.wire.amqp.watcher import Stream as Frames

Stream = trio.abc.Stream
Hostile = Callable[[Stream], Awaitable[None]]
"""Serves one connection as it likes, until it returns or the client leaves."""

HERE: Final = "hostile.example.net"
KEY: Final = "a2V5"
PIECE: Final = 0.1  # virtual seconds that a piece takes: time must go by, however much is said


def real_date() -> datetime:
    return datetime(2026, 11, 26, 12, tzinfo=UTC)


@attrs.define(eq=False)
class Network:
    """All hosts are the hostile one; each dial is noted."""

    serve: Hostile
    nursery: trio.Nursery
    dialed: list[str] = attrs.field(factory=list)

    async def open_stream(self, place: ServerAddress, *, https_compatible: bool = False) -> Stream:
        await trio.lowlevel.checkpoint()
        self.dialed.append(place.host)
        ours, theirs = lockstep_stream_pair()
        self.nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: Stream) -> None:
        try:
            await self.serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def network_of(serve: Hostile, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Network]:
    async with trio.open_nursery() as nursery:
        network = Network(serve, nursery)
        monkeypatch.setattr(dialing, "open_stream", network.open_stream)
        monkeypatch.setattr(http_client, "open_stream", network.open_stream)
        yield network
        nursery.cancel_scope.cancel()


def make_amqp() -> Broker:
    options = AmqpNamespaceOptions()
    return amqp.open_namespace("amqp", f"//{HERE}:5672", options, real_date, random.Random(0))


def make_rabbitmq() -> Broker:
    url = f"//guest:guest@{HERE}:5672/"
    return rabbitmq.open_namespace("rabbitmq", url, RabbitmqOptions(), real_date, random.Random(0))


def make_servicebus() -> Broker:
    options = servicebus.ServiceBusRestOptions(key=KEY, max_message_size=2**20)
    return servicebus.open_namespace("servicebus+http", f"//Root@{HERE}:80", options, real_date)


def make_storage_queue() -> Broker:
    url = f"DefaultEndpointsProtocol=http;AccountName=account;QueueEndpoint=http://{HERE}/account"
    options = StorageQueueNamespaceOptions(key=KEY)
    return storage_queue.open_namespace(url, options, real_date, random.Random(0))


# --- for all protocols


async def says_nothing(stream: Stream) -> None:
    await trio.sleep_forever()


async def hangs_up(stream: Stream) -> None:
    await stream.receive_some(1)


async def says_garbage(stream: Stream) -> None:
    await stream.receive_some(1)
    await stream.send_all(random.Random(1).randbytes(5000))
    await trio.sleep_forever()


async def never_stops(stream: Stream) -> None:
    await stream.receive_some(1)
    chunk = random.Random(2).randbytes(65536)
    while True:
        await stream.send_all(chunk)
        await trio.sleep(PIECE)


async def reads_nothing_and_sends_zeros(stream: Stream) -> None:
    while True:
        await stream.send_all(bytes(65536))
        await trio.sleep(PIECE)


ANY: Final = (*(says_nothing, hangs_up, says_garbage, never_stops, reads_nothing_and_sends_zeros),)


def saying(name: str, *parts: bytes, then: bytes = b"", pause: float = 0.0) -> Hostile:
    """Answer with the parts, each after the client's next bytes; then `then`, for ever."""

    async def serve(stream: Stream) -> None:
        for part in parts:
            await stream.receive_some()
            await _send(stream, part, pause)
        await _go_on(stream, then)

    serve.__name__ = name
    return serve


async def _go_on(stream: Stream, then: bytes) -> None:
    """Send `then`, or nothing, for ever."""
    while then:
        await stream.send_all(then)
        await trio.sleep(PIECE)
    await trio.sleep_forever()


async def _send(stream: Stream, data: bytes, pause: float) -> None:
    if not pause:
        await stream.send_all(data)
        return
    for byte in data:
        await stream.send_all(bytes((byte,)))
        await trio.sleep(pause)


# --- HTTP

BOMB: Final = gzip.compress(bytes(10 * 2**20))
ENTITIES: Final = (
    b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaaaaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%b">' % (98 + n, b"&%c;" % (97 + n) * 20) for n in range(9))
    + b"]><entry><title>&j;</title></entry>"
)


def answer(status: int, *fields: bytes, body: bytes = b"") -> bytes:
    head = b"".join((b"HTTP/1.1 %d X\r\n" % status, *(field + b"\r\n" for field in fields)))
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


HTTP: Final = (
    saying("endless headers", b"HTTP/1.1 200 OK\r\n", then=b"A: b\r\n" * 1000),
    saying("one endless header", b"HTTP/1.1 201 Created\r\nA: ", then=b"b" * 65536),
    saying("endless status line", b"HTTP/1.1 201 ", then=b"O" * 65536),
    saying("endless continue", then=b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    saying(
        "endless chunks",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n",
        then=b"100000\r\n" + bytes(2**20) + b"\r\n",
    ),
    saying(
        "endless chunk extension",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5;",
        then=b"a" * 65536,
    ),
    saying(
        "endless trailers",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        then=b"A: b\r\n" * 1000,
    ),
    saying("endless body", b"HTTP/1.1 200 OK\r\n\r\n", then=bytes(2**20)),
    saying("huge length", b"HTTP/1.1 201 X\r\nContent-Length: 999999999999999\r\n\r\n"),
    saying("two lengths", b"HTTP/1.1 201 X\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n"),
    saying("slow answer", answer(200, body=b"x" * 100_000), pause=1.0),
    saying("redirect", *[answer(307, b"Location: http://elsewhere.example.net/orders")] * 50),
    saying("moved", *[answer(302, b"Location: //elsewhere.example.net/orders")] * 50),
    saying("login page", *[answer(200, b"Content-Type: text/html", body=b"<html>Hello")] * 50),
    saying("no content", *[answer(204)] * 50),
    saying("bomb", *[answer(200, b"Content-Encoding: gzip", body=BOMB)] * 50),
    saying("bomb in an error", *[answer(500, b"Content-Encoding: gzip", body=BOMB)] * 50),
    saying("entities", *[answer(200, body=ENTITIES)] * 50),
    saying("entities in an error", *[answer(500, body=ENTITIES)] * 50),
    saying("deep xml", *[answer(200, body=b"<a>" * 100_000)] * 50),
    saying("deep json", *[answer(200, body=b"[" * 100_000)] * 50),
    saying("busy for ever", *[answer(429, b"Retry-After: " + b"9" * 5000)] * 50),
    saying("switches", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
)


def after_a_message(hostile: Hostile) -> Hostile:
    """Deliver a message to each request for one; answer all other requests as `hostile` does."""

    async def serve(stream: Stream) -> None:
        while data := await stream.receive_some():
            head = bytes(data).partition(b"\r\n")[0]
            if head.startswith(b"OPTIONS ") or b"comp=metadata" in head:
                await stream.send_all(answer(200, b"x-ms-approximate-messages-count: 1"))
            elif b"/messages/head" in head:
                await stream.send_all(REST_MESSAGE)
            elif head.startswith(b"GET ") and b"numofmessages" in head:
                await stream.send_all(STORAGE_MESSAGE)
            else:
                await hostile(RewoundStream(stream, data))
                return

    serve.__name__ = hostile.__name__
    return serve


_TOKEN: Final = b"11111111-2222-4333-8444-555555555555"
REST_MESSAGE: Final = answer(
    201,
    b"Location: http://" + HERE.encode() + b"/orders/messages/7/" + _TOKEN,
    b'BrokerProperties: {"SequenceNumber":7,"DeliveryCount":1,"LockToken":"' + _TOKEN + b'",'
    b'"LockedUntilUtc":"Thu, 26 Nov 2026 12:01:00 GMT"}',
    body=b"x",
)
STORAGE_MESSAGE: Final = answer(
    200,
    b"Date: Thu, 26 Nov 2026 12:00:00 GMT",
    b"Content-Type: application/xml",
    body=b"<?xml version='1.0' encoding='utf-8'?><QueueMessagesList><QueueMessage>"
    b"<MessageId>" + _TOKEN + b"</MessageId>"
    b"<InsertionTime>Thu, 26 Nov 2026 11:59:00 GMT</InsertionTime>"
    b"<ExpirationTime>Thu, 03 Dec 2026 11:59:00 GMT</ExpirationTime>"
    b"<PopReceipt>cmVjZWlwdA==</PopReceipt>"
    b"<TimeNextVisible>Thu, 26 Nov 2026 12:01:00 GMT</TimeNextVisible>"
    b"<DequeueCount>1</DequeueCount><MessageText>eA==</MessageText>"
    b"</QueueMessage></QueueMessagesList>",
)


# --- AMQP 1.0

SASL: Final = b"AMQP\x03\x01\x00\x00"
PLAIN: Final = b"AMQP\x00\x01\x00\x00"


def sasl_frame(code: int, fields: list[Any]) -> bytes:
    body = encode(described(code, fields))
    return (len(body) + 8).to_bytes(4) + b"\x02\x01\0\0" + body


def _symbols(*names: str) -> Typed:
    return Typed(Kind.ARRAY, tuple(Typed(Kind.SYMBOL, name) for name in names))


MECHANISMS: Final = sasl_frame(0x40, [_symbols("ANONYMOUS", "PLAIN")])
WELCOME: Final = SASL + MECHANISMS + sasl_frame(0x44, [Typed(Kind.UBYTE, 0)])
OPEN: Final = PLAIN + frame(0x10, ["hostile", None, uint(65536), Typed(Kind.USHORT, 10)])
BEGIN: Final = frame(0x11, [Typed(Kind.USHORT, 0), uint(0), uint(2**31), uint(2**31), uint(255)])


def credit(handle: int = 0, amount: int = 2**32 - 1) -> bytes:
    windows = [uint(0), uint(2**31), uint(0), uint(2**31)]
    return frame(0x13, [*windows, uint(handle), uint(0), uint(amount)])


def attach(name: str, *, receives: bool, handle: int = 0, second: bool = False) -> bytes:
    """`second`: the receiver settles second, so that its settlement is to be confirmed."""
    mode = Typed(Kind.UBYTE, 1) if second else None
    fields = [name, uint(handle), receives, None, mode, SOURCE, TARGET, None, None]
    return frame(0x12, [*fields, None if receives else uint(0)])


def settled(first: int, last: int) -> bytes:
    return frame(0x15, [True, uint(first), uint(last), True, described(0x24, [])])


def transfer(number: int, *, more: bool = False, payload: bytes | None = None) -> bytes:
    fields = [uint(0), uint(number), b"%d" % number, uint(0), False, more]
    data = encode_message(Message(body=b"x")) if payload is None else payload
    return frame(0x14, fields, data)


# A disposition whose state is an array of four billion nulls, in ten bytes.
_STATE: Final = b"\0\x53\x15\xc0\x11\6\x41\x43\x43\x41\xf0\0\0\0\5\xff\xff\xff\xff\x40\x40"
BILLIONS: Final = (len(_STATE) + 8).to_bytes(4) + b"\2\0\0\0" + _STATE

Script = Callable[[Any], Iterable[bytes]]
"""Frames with which the namespace answers an attach, a transfer or a disposition."""


def takes_links(heard: Any, *, second: bool = False) -> Iterable[bytes]:
    """The answer of a good namespace to an attach; to all else, nothing."""
    if heard.kind == "attach":
        handle = int(heard.handle)
        yield attach(heard.name, receives=not heard.role, handle=handle, second=second)
        if not heard.role:
            yield credit(int(heard.handle))


def amqp_server(name: str, script: Script) -> Hostile:
    """A namespace with a valid greeting, which continues with its script."""

    async def serve(stream: Stream) -> None:
        frames = Frames()
        await stream.send_all(WELCOME)
        async for data in stream:
            for heard in frames.feed(bytes(data)):
                for said in _greeting(heard) if heard.kind in _GREETED else script(heard):
                    await stream.send_all(said)
                    await trio.sleep(PIECE)

    serve.__name__ = name
    return serve


_GREETED: Final = ("open", "begin", "sasl_init")


def _greeting(heard: Any) -> Iterable[bytes]:
    match heard.kind:
        case "open":
            yield OPEN
        case "begin":
            yield BEGIN


def _after_links(*said: bytes, for_ever: bytes = b"") -> Script:
    def script(heard: Any) -> Iterable[bytes]:
        yield from takes_links(heard)
        if heard.kind == "attach":
            yield from said
            while for_ever:
                yield for_ever

    return script


def _after_transfers(*said: bytes) -> Script:
    def script(heard: Any) -> Iterable[bytes]:
        yield from takes_links(heard)
        if heard.kind == "transfer":
            yield from said

    return script


def _many_transfers(heard: Any) -> Iterable[bytes]:
    yield from takes_links(heard)
    if heard.kind == "attach" and heard.role:
        yield from (transfer(number) for number in itertools.count())


def _endless_transfer(heard: Any) -> Iterable[bytes]:
    yield from takes_links(heard)
    if heard.kind == "attach" and heard.role:
        while True:
            yield transfer(0, more=True, payload=bytes(30_000))


def _redirect(heard: Any) -> Iterable[bytes]:
    yield from takes_links(heard)
    if heard.kind == "attach":
        to = {symbol("network-host"): "elsewhere.example.net", symbol("port"): uint(5672)}
        error = described(0x1D, [symbol("amqp:link:redirect"), "go there", to])
        yield frame(0x16, [uint(int(heard.handle)), True, error])


def _many_links(heard: Any) -> Iterable[bytes]:
    yield from takes_links(heard)
    if heard.kind == "attach":
        for number in itertools.count(1):
            yield attach(f"unasked {number}", receives=True, handle=number % 250 + 1)


AMQP: Final = (
    saying("sasl of bytes", SASL, then=b"\0"),
    saying("sasl of many mechanisms", SASL, then=MECHANISMS),
    saying("sasl of challenges", SASL + MECHANISMS, then=sasl_frame(0x42, [b"more?"])),
    saying("sasl with a large frame", SASL + (2**31).to_bytes(4) + b"\2\1\0\0", then=bytes(65536)),
    saying("open of 4 GiB", WELCOME + PLAIN + b"\xff\xff\xff\xff\2\0\0\0", then=bytes(65536)),
    saying("empty frames", WELCOME + OPEN, then=b"\0\0\0\x08\2\0\0\0" * 100),
    saying("flows before a session", WELCOME + OPEN, then=credit()),
    saying("another version", b"AMQP\x00\x02\x00\x00"),
    saying("slow greeting", WELCOME + OPEN, pause=1.0),
    amqp_server("no answer to links", lambda heard: ()),
    amqp_server("credit and nothing else", takes_links),
    amqp_server("credit for ever", _after_links(for_ever=credit() * 100)),
    amqp_server("settles what was not sent", _after_links(settled(5, 2**31))),
    amqp_server("settles all but what was sent", _after_transfers(settled(1, 2**31 - 1))),
    amqp_server("settles backwards", _after_transfers(settled(9, 3))),
    amqp_server("settles for ever", _after_links(for_ever=settled(7, 9) * 100)),
    amqp_server("more messages than credit", _many_transfers),
    amqp_server("message without an end", _endless_transfer),
    amqp_server("redirect", _redirect),
    amqp_server("links that nobody asked for", _many_links),
    amqp_server("a list of four billion nulls", _after_links(BILLIONS)),
)

# --- AMQP 0-9-1


def methods(channel: int, *said: Any) -> bytes:
    return b"".join(method_frame(channel, each) for each in said)


START: Final = methods(0, commands.Connection.Start(mechanisms="PLAIN"))
TUNE: Final = methods(0, commands.Connection.Tune(100, 131_072, 60))
OPENED: Final = methods(0, commands.Connection.OpenOk())
GREETING: Final = (START, TUNE, OPENED)
CHANNEL: Final = methods(1, commands.Channel.OpenOk())
CONFIRMS: Final = methods(1, commands.Confirm.SelectOk())
NO_CHANNEL: Final = methods(1, commands.Channel.Close(406, "no", 0, 0))
HEARTBEAT: Final = b"\x08\0\0\0\0\0\0\xce"
DELIVER: Final = methods(1, commands.Basic.Deliver("t", 1, False, "", "orders"))


def header(size: int) -> bytes:
    payload = b"\x00\x3c\x00\x00" + size.to_bytes(8) + b"\x00\x00"
    return b"\x02\x00\x01" + len(payload).to_bytes(4) + payload + b"\xce"


ONE: Final = DELIVER + header(1) + b"\x03\x00\x01\x00\x00\x00\x01x\xce"
SENDING: Final = (*GREETING, CHANNEL, CONFIRMS)

RABBITMQ: Final = (
    saying("heartbeats instead of a greeting", then=HEARTBEAT * 100),
    saying("challenges", START, then=methods(0, commands.Connection.Secure("more?"))),
    saying("starts again", START, then=START),
    saying("tunes again", START, then=TUNE),
    saying("slow greeting", START + TUNE + OPENED, pause=1.0),
    saying("frame of 4 GiB", b"\1\0\0\xff\xff\xff\xff", then=bytes(65536)),
    saying("no channel", *GREETING, then=HEARTBEAT * 100),
    saying("blocks for ever", *GREETING, then=methods(0, commands.Connection.Blocked("x"))),
    saying("confirms what was not sent", *SENDING, then=methods(1, commands.Basic.Ack(9, False))),
    saying("refuses what was not sent", *SENDING, then=methods(1, commands.Basic.Nack(9, False))),
    saying("confirms number zero", *SENDING, methods(1, commands.Basic.Ack(0, False))),
    saying("answers another question", *GREETING, then=CHANNEL),
    saying("content for nobody", *GREETING, CHANNEL, then=ONE),
    saying("body of 8 EiB", *GREETING, CHANNEL, DELIVER + header(2**63), then=bytes(65536)),
    saying(
        "closes the channel for ever",
        *GREETING,
        then=methods(1, commands.Channel.Close(406, "no", 0, 0)),
    ),
    saying("unknown methods", *GREETING, then=b"\1\0\0\0\0\0\4\xff\xff\xff\xff\xce"),
)


def rabbitmq_that_settles(name: str, *said: bytes, then: bytes = b"") -> Hostile:
    """
    A RabbitMQ that delivers a message, and says `said` where it should confirm the settlement, then
    `then` for ever.
    """
    good = {
        commands.Connection.StartOk: TUNE,
        commands.Connection.Open: OPENED,
        commands.Basic.Consume: b"".join(
            (
                methods(1, commands.Basic.QosOk(), commands.Basic.ConsumeOk("c1")),
                methods(1, commands.Basic.Deliver("c1", 1, False, "", "orders")),
                ONE[len(DELIVER) :],
            )
        ),
        commands.Channel.Open: CHANNEL,
    }

    async def serve(stream: Stream) -> None:
        await stream.receive_some()
        await stream.send_all(START)
        while data := bytes(await stream.receive_some()):
            for kind, reply in good.items():
                if kind.index.to_bytes(4) in data:
                    await stream.send_all(reply)
            if commands.Basic.Ack.index.to_bytes(4) in data:
                break
        for part in said:
            await stream.send_all(part)
        await _go_on(stream, then)

    serve.__name__ = name
    return serve


RABBITMQ_SETTLING: Final = (
    rabbitmq_that_settles("nothing"),
    rabbitmq_that_settles("heartbeats", then=HEARTBEAT * 100),
    rabbitmq_that_settles("another answer", methods(1, commands.Queue.DeleteOk(1))),
    rabbitmq_that_settles("the end of the channel", NO_CHANNEL),
    rabbitmq_that_settles("the message again, for ever", then=ONE * 100),
    rabbitmq_that_settles("garbage", random.Random(3).randbytes(500)),
    rabbitmq_that_settles("an answer on another channel", methods(9, commands.Basic.QosOk())),
    rabbitmq_that_settles(
        "the end of the connection", methods(0, commands.Connection.Close(320, "x", 0, 0))
    ),
)


def delivers(*said: bytes, for_ever: bytes = b"") -> Script:
    """Deliver one message to each receiver; answer its disposition with `said`."""

    def script(heard: Any) -> Iterable[bytes]:
        yield from takes_links(heard, second=True)
        if heard.kind == "flow" and heard.handle is not None and heard.link_credit:
            yield transfer(0)
        if heard.kind == "disposition":
            yield from said
            while for_ever:
                yield for_ever

    return script


AMQP_SETTLING: Final = (
    amqp_server("nothing", delivers()),
    amqp_server("another settlement", delivers(settled(5, 9))),
    amqp_server("everything but that", delivers(settled(1, 2**31 - 1))),
    amqp_server("backwards", delivers(settled(9, 3))),
    amqp_server("for ever another", delivers(for_ever=settled(7, 9) * 100)),
    amqp_server("four billion nulls", delivers(BILLIONS)),
    amqp_server("a state of no kind", delivers(frame(0x15, [True, uint(0), uint(0), True, "x"]))),
    amqp_server("the end of the link", delivers(frame(0x16, [uint(0), True, None]))),
    amqp_server("the end of the session", delivers(frame(0x17, [None]))),
    amqp_server("messages", delivers(for_ever=transfer(1) * 10)),
)

NAMESPACES: Final = {
    "amqp": (make_amqp, (*ANY, *AMQP)),
    "rabbitmq": (make_rabbitmq, (*ANY, *RABBITMQ)),
    "servicebus": (make_servicebus, (*ANY, *HTTP)),
    "storage-queue": (make_storage_queue, (*ANY, *HTTP)),
}
CASES: Final = [
    pytest.param(make, serve, id=f"{kind}: {serve.__name__.replace('_', ' ')}")
    for kind, (make, scripts) in NAMESPACES.items()
    for serve in scripts
]
SETTLING: Final = [
    pytest.param(make, after_a_message(serve), id=f"{kind}: {serve.__name__.replace('_', ' ')}")
    for kind, (make, scripts) in NAMESPACES.items()
    if HTTP[0] in scripts
    for serve in (*ANY, *HTTP)
] + [
    pytest.param(make, serve, id=f"{kind}: {serve.__name__}")
    for kind, make, scripts in (
        ("amqp", make_amqp, AMQP_SETTLING),
        ("rabbitmq", make_rabbitmq, RABBITMQ_SETTLING),
    )
    for serve in scripts
]
"""Namespaces that deliver a message, and answer its settlement as they like."""
