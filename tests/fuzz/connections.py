"""Bytes of connections: HTTP both ways, WebSocket, messages of AMQP 1.0, AMQP 0-9-1 of a broker."""

import random
import re
import struct
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import h11
import trio
from trio.testing import MockClock, memory_stream_pair

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import GatewayError, InternalError
from gateway.domain.storage_queue import StorageAccount
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.frontend import StorageQueueFrontend
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.net.http.client_codec import ClientCodec
from gateway.net.http.codec import HttpCodec
from gateway.net.http.guard import RequestRefused
from gateway.net.http.websocket import accept_websocket
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import LocalVisibility
from gateway.wire.amqp import exchange
from gateway.wire.amqp.management import requests as management
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.amqp.servicebus import batches
from gateway.wire.http.cloud_events import parse_answer
from gateway.wire.http.date import format_http_date
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.pairgate import frames as between_pairgates
from gateway.wire.rabbitmq import management as rabbitmq_management
from gateway.wire.rabbitmq import properties as rabbitmq
from gateway.wire.rabbitmq.frames import (
    ContentArrived,
    Conversation,
    Login,
    MethodArrived,
    ProtocolError,
)
from gateway.wire.servicebus import answers as servicebus_answers
from gateway.wire.servicebus import operations as servicebus
from gateway.wire.storage_queue import answers as storage_answers
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.signing import signed
from tests.fuzz.by_input import ByInput, Rng, by
from tests.fuzz.documents import read_by

NOW: Final = datetime(2026, 11, 26, 12, tzinfo=UTC)
ORDERS: Final = EntityPath("orders")
END: Final = 7200.0  # virtual seconds: every limit of time is over then
_LINES: Final = by(rb"\r\n|[ :;,=/?&]")


def wall_clock() -> datetime:
    return NOW


# --- HTTP, requests


def read_requests(data: bytes) -> None:
    """
    The fast way and h11 read the same requests, in one piece or in many.

    Raises:
        AssertionError: they don't.
    """
    whole = [_requests(data, plain=plain, step=len(data) or 1) for plain in (True, False)]
    assert whole[0] == whole[1], whole
    if len(data) < 2000:
        assert _requests(data, plain=True, step=7)[0] == whole[0][0]
    for request in whole[0][0]:
        trio.run(_answered, request, clock=MockClock(autojump_threshold=0))


def _requests(data: bytes, *, plain: bool, step: int) -> tuple[list[Request], int | None]:
    """All requests, and the status of the refusal that ends the connection."""
    codec = HttpCodec(max_body=100_000, server_name=b"x", wall_clock=wall_clock, plain=plain)
    found: list[Request] = []
    try:
        for at in range(0, len(data), step):
            codec.feed(data[at : at + step])
            while (request := codec.next_request()) is not None:
                found.append(request)
                codec.build(Response(status=200))
                if not codec.start_next():
                    return found, None
    except RequestRefused as refused:
        return found, refused.status
    return found, None


async def _answered(request: Request) -> None:
    """Each front end answers the request, and none with an error of ours."""
    broker = MemoryBroker(wall_clock, random.Random(0))
    authorizer = Authorizer((), wall_clock=wall_clock, accepts_well_known_key=True)
    accounts = Accounts([StorageAccount(name="account", keys=(b"key",))], wall_clock=wall_clock)
    operations = StorageOperations(
        broker=broker,
        visibility=LocalVisibility(broker),
        sends=True,
        wall_clock=wall_clock,
        marks=accounts.marks,
    )
    async with broker, trio.open_nursery() as nursery:
        await broker.create_queue(ORDERS, QueueProperties())
        leases = Leases(broker, wall_clock)
        await nursery.start(leases.run)
        rest = ServiceBusRestFrontend(
            broker=broker, leases=leases, authorizer=authorizer, wall_clock=wall_clock
        )
        admin = AdminFrontend(broker=broker, authorizer=authorizer, wall_clock=wall_clock)
        queues = StorageQueueFrontend(
            operations=operations, accounts=accounts, wall_clock=wall_clock
        )
        of_owner = _of_owner(request)
        with trio.fail_after(END):
            for answer in (
                await rest.handle(request),
                await admin.handle(request),
                await queues.handle(request),
                await queues.handle(of_owner),
            ):
                assert answer.status not in {500, 502}, answer
                if answer.parts is None:
                    HttpCodec(max_body=1, server_name=b"x", wall_clock=wall_clock).build(answer)
        nursery.cancel_scope.cancel()


def _of_owner(request: Request) -> Request:
    fields = [item for item in request.headers.items if item[0].lower() != "authorization"]
    date = format_http_date(NOW)
    headers = Headers.of([("x-ms-date", date), ("x-ms-version", "2021-12-02"), *fields])
    target = (
        request.target if request.target.startswith("/account") else f"/account{request.target}"
    )
    return signed(
        attrs.evolve(request, headers=headers, target=target), account="account", key=b"key"
    )


# --- HTTP, answers

_ASKED: Final = Request(method="POST", target="/orders/messages", body=b"x")
_LOCK: Final = "00000000-0000-4000-8000-000000000000"
_OF_SERVICEBUS: Final[tuple[servicebus.Operation, ...]] = (
    servicebus.ReceiveMessages(entity=ORDERS, timeout=1.0),
    servicebus.ReceiveMessages(entity=ORDERS, timeout=1.0, limit=9),
    servicebus.PeekMessages(entity=ORDERS),
    servicebus.RenewLock(entity=ORDERS, message="1", lock_token=_LOCK),
    servicebus.ProbeEntity(entity=ORDERS),
)
_OF_STORAGE: Final[tuple[storage.Operation, ...]] = (
    storage.GetMetadata(queue="orders"),
    storage.ListQueues(),
    storage.GetMessages(queue="orders"),
    storage.PeekMessages(queue="orders"),
    storage.CreateQueue(queue="orders"),
    storage.UpdateMessage(queue="orders", message_id="m", pop_receipt="p", visibility=1),
)


def read_answer(data: bytes) -> None:
    """
    The fast way and h11 read the same answer; all adapters read it.

    Raises:
        AssertionError: they don't.
    """
    answers = [
        answer
        for plain in (True, False)
        if (answer := _response(data, plain=plain, step=len(data) or 1)) is not None
    ]
    assert all(answer == answers[0] for answer in answers), answers
    if len(data) < 2000:
        in_pieces = _response(data, plain=True, step=5)
        assert not answers or in_pieces == answers[0], (in_pieces, answers)
    if answers:
        _read_by_adapters(answers[0])


def _response(data: bytes, *, plain: bool, step: int) -> Response | None:
    codec = ClientCodec("host:80", _ASKED, 100_000, plain=plain)
    codec.build()
    try:
        for at in range(0, len(data), step):
            response = codec.receive(data[at : at + step])
            if response is not None:
                return response
    except h11.RemoteProtocolError:
        return None
    return None


def _read_by_adapters(answer: Response) -> None:
    read_by(
        (
            *(
                lambda asked=asked: servicebus_answers.parse_response(asked, answer)  # type: ignore[misc]
                for asked in _OF_SERVICEBUS
            ),
            *(
                lambda asked=asked: storage_answers.parse_response(asked, answer)  # type: ignore[misc]
                for asked in _OF_STORAGE
            ),
            lambda: servicebus_answers.parse_identity_response(answer),
            lambda: rabbitmq_management.queue_in(answer),
            lambda: rabbitmq_management.page_in(answer),
            lambda: parse_answer(answer, NOW),
            lambda: between_pairgates.parse_deliveries(answer.body),
        )
    )


# --- WebSocket


def read_websocket(data: bytes) -> None:
    trio.run(_accept, data, clock=MockClock(autojump_threshold=0))


async def _accept(data: bytes) -> None:
    client, end = memory_stream_pair()
    await client.send_all(data)
    await client.send_eof()
    with trio.fail_after(END):
        try:
            stream = await accept_websocket(end)
            while stream is not None and await stream.receive_some(1000):
                await stream.send_all(b"answer")
        except trio.BrokenResourceError:
            return
        if stream is not None:
            await stream.aclose()


def _masked(data: bytes, rng: Rng) -> bytes:
    """Every second time: whole frames behind a good request."""
    if rng.random() < 0.5:
        return data
    head = data.find(b"\r\n\r\n")
    opcode, size = rng.choice((0x82, 0x81, 0x02, 0x80, 0x88, 0x89, 0x8A, 0xC2)), len(data[head:])
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + (size & 0xFFFF).to_bytes(2, "big")
    return UPGRADE + bytes((opcode,)) + length + bytes(4) + data[head:]


UPGRADE: Final = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)


# --- AMQP 1.0, messages


def read_message(data: bytes) -> None:
    read_by(
        (
            lambda: encode_message(decode_message(data)),
            lambda: _managed(data),
            lambda: exchange.parse_reply(data),
            lambda: batches.decode_payload(data, batches.BATCH),
            lambda: [*between_pairgates.parse_messages(len(data).to_bytes(4, "big") + data)],
            lambda: between_pairgates.parse_deliveries(data),
        )
    )


def _managed(data: bytes) -> None:
    request = exchange.parse_request(data)
    management.link_of(request)
    management.timeout_of(request)
    try:
        management.operation_of(request)
    except InternalError:
        raise
    except GatewayError as error:
        management.refusal_of(request, error)


# --- AMQP 0-9-1, as a client

_LOGIN: Final = Login(user="guest", password="guest", vhost="/", heartbeat=10)
_FRAME: Final = struct.Struct(">BHI")


def read_0_9_1(data: bytes) -> None:
    whole = _events(data, len(data) or 1)
    if len(data) < 2000:
        in_pieces = _events(data, 5)
        assert in_pieces == whole, (in_pieces, whole)


def _events(data: bytes, step: int) -> list[Any]:
    conversation, events = Conversation(_LOGIN, max_body=100_000), list[Any]()
    try:
        # At last nothing more: from the bytes that have arrived.
        for at in range(0, len(data) + step, step):
            found = conversation.feed(data[at : at + step])
            events += (_shown(event) for event in found)
            for event in found:
                if isinstance(event, ContentArrived):
                    rabbitmq.copy_in(event.header)
                    for dead in (False, True):
                        message = rabbitmq.read(event.header, event.body, is_dead_letter=dead)
                        read_by((lambda message=message: encode_message(message.message),))  # type: ignore[misc]
    except ProtocolError:
        return ["ended"]
    finally:
        conversation.data_to_send()
    return events


def _shown(event: object) -> str:
    if isinstance(event, MethodArrived):
        return f"{event.channel} {event.method.name} {dict(event.method)}"
    return re.sub(" object at 0x[0-9a-f]+", "", repr(event))


def frames_of(data: bytes) -> list[bytes]:
    """The frames; the rest, if it isn't one, is the last piece."""
    pieces, at = [], 0
    while at + _FRAME.size <= len(data):
        end = at + _FRAME.size + _FRAME.unpack_from(data, at)[2] + 1
        if end > len(data):
            break
        pieces.append(data[at:end])
        at = end
    return [*pieces, data[at:]] if at < len(data) else pieces


def whole_frames(data: bytes, rng: Rng) -> bytes:
    """Mostly: changes happen inside of frames, whose sizes are right."""
    if rng.random() < 0.2:
        return data
    pieces = frames_of(data)
    if rng.random() < 0.5 and pieces:
        at = rng.randrange(len(pieces))
        kind, channel, body = pieces[at][:1], pieces[at][1:3], bytearray(pieces[at][7:-1])
        for _ in range(rng.choice((1, 2, 8))):
            if body:
                body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        pieces[at] = kind.ljust(1, b"\1") + channel.ljust(2, b"\0") + len(body).to_bytes(4, "big")
        pieces[at] += bytes(body) + b"\xce"
    return b"".join(pieces)


CONNECTIONS: Final = (
    ByInput(
        name="http-requests",
        check=read_requests,
        split=_LINES,
        words=(
            *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding:"),
            *(b"\tchunked", b"identity", b"\r\n\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b";a=b"),
            *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Host: b\r\n", b"HTTP/1.0"),
            *(b"Connection: keep-alive, Transfer-Encoding\r\n", b"OPTIONS", b"HEAD", b"PATCH"),
            *(b"/orders/messages", b"/$Resources/queues", b"/account/orders?comp=metadata", b"%2f"),
            *(b"\n", b"\r", b" \r\n", b"\t", b"\x0b", b"%00", b"..", b"//", b"*", b"?timeout=0"),
        ),
    ),
    ByInput(
        name="http-answers",
        check=read_answer,
        split=_LINES,
        words=(
            *(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n", b"HTTP/1.0 200 OK"),
            *(
                b"Content-Length: 5\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"Connection: close\r\n",
            ),
            *(b"Retry-After: 99999999999\r\n", b"X-Pairgate: 1\r\n", b"BrokerProperties: {}\r\n"),
            *(b"0\r\n\r\n", b"5\r\nhello\r\n", b"ffffffff\r\n", b"\r\n\r\n", b"\n", b"101", b"304"),
        ),
    ),
    ByInput(name="websocket", check=read_websocket, split=_LINES, mend=_masked),
    ByInput(
        name="amqp-messages",
        check=read_message,
        split=by(rb"\x00[\x53\x80]|[\xa1\xa3\xb1\xc0\xd0\xc1\xd1\xe0\xf0\x71\x81\x83]"),
        words=(
            *(b"\x00\x53\x70", b"\x00\x53\x71", b"\x00\x53\x72", b"\x00\x53\x73", b"\x00\x53\x74"),
            *(b"\x00\x53\x75", b"\x00\x53\x76", b"\x00\x53\x77", b"\x00\x53\x78", b"\x40", b"\x45"),
            *(
                b"\xf0\0\0\0\5\xff\xff\xff\xff\x40",
                b"\xc0\x01\xff",
                b"\xd0\xff\xff\xff\xff",
                b"\x98",
            ),
            *(b"\xa1\x02\xc3\x28", b"\x83\x7f\xff\xff\xff\xff\xff\xff\xff", b"\x00\xa3\x01a\x40"),
            *(b"\xc0\x20\x01" * 40, b"\x00" * 100),
        ),
    ),
    ByInput(name="amqp-0-9-1", check=read_0_9_1, split=frames_of, mend=whole_frames),
)
