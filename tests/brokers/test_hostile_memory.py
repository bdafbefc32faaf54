"""An answer over HTTP takes as much memory as an honest one may need, however long it is."""

import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.brokers.servicebus.peer import MAX_ANSWER
from gateway.capabilities import Peeks
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import Delivery, Message
from gateway.offering import required
from gateway.ports import Broker
from gateway.wire.pairgate import frames
from gateway.wire.storage_queue.xml import longest_list
from tests.brokers.hostile import answer, make_servicebus, make_storage_queue, network_of

pytestmark = pytest.mark.slow

ORDERS: Final = EntityPath("orders")
MIB: Final = 2**20
DELIVERY: Final = MIB + 16 * 1024  # bytes that one may take in an answer of Service Bus REST
PIECE: Final = 64 * 1024
PAIRGATE: Final = b"X-Pairgate: 1"
XML: Final = b"Content-Type: application/xml"
AMQP: Final = b"Content-Type: " + frames.CONTENT_TYPE.encode()


async def send(broker: Broker) -> None:
    await broker.send(ORDERS, [Message(body=b"x")])


def receive(limit: int) -> Callable[[Broker], Awaitable[None]]:
    async def call(broker: Broker) -> None:
        async with broker.open_receiver(ORDERS) as receiver:
            await receiver.receive(limit)

    return call


async def peek(broker: Broker) -> None:
    await required(broker, Peeks).peek(ORDERS, limit=8)


async def list_queues(broker: Broker) -> None:
    await broker.list_queues()


@attrs.frozen(kw_only=True)
class Case:
    make: Callable[[], Broker]
    call: Callable[[Broker], Awaitable[None]]
    limit: int  # bytes of the answer's body
    status: int = 200
    fields: tuple[bytes, ...] = ()  # of the answer
    is_pairgate: bool = False


CASES: Final = {
    "servicebus: send": Case(make=make_servicebus, call=send, limit=MAX_ANSWER, status=201),
    "servicebus: receive": Case(
        make=make_servicebus, call=receive(8), limit=DELIVERY, fields=(b"BrokerProperties: {}",)
    ),
    "servicebus: receive from a Pairgate": Case(
        make=make_servicebus,
        call=receive(8),
        limit=8 * DELIVERY,
        fields=(PAIRGATE, AMQP),
        is_pairgate=True,
    ),
    "servicebus: peek": Case(
        make=make_servicebus,
        call=peek,
        limit=8 * DELIVERY,
        fields=(PAIRGATE, AMQP),
        is_pairgate=True,
    ),
    "servicebus: list queues": Case(
        make=make_servicebus, call=list_queues, limit=MAX_ANSWER, fields=(XML,)
    ),
    "storage-queue: send": Case(
        make=make_storage_queue, call=send, limit=MAX_ANSWER, status=201, fields=(XML,)
    ),
    "storage-queue: receive one": Case(
        make=make_storage_queue, call=receive(1), limit=longest_list(1), fields=(XML,)
    ),
    "storage-queue: receive": Case(
        make=make_storage_queue, call=receive(100), limit=longest_list(32), fields=(XML,)
    ),
    "storage-queue: peek": Case(
        make=make_storage_queue, call=peek, limit=longest_list(32), fields=(XML,)
    ),
    "storage-queue: list queues": Case(
        make=make_storage_queue, call=list_queues, limit=MAX_ANSWER, fields=(XML,)
    ),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@attrs.define
class Peak:
    bytes: int = 0  # allocated at a time within the block


@contextmanager
def measured() -> Iterator[Peak]:
    peak = Peak()
    tracemalloc.start()
    try:
        yield peak
        peak.bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def serving(case: Case, framing: bytes, pieces: Callable[[], Iterator[bytes]]) -> Any:
    """A namespace that answers what is asked before, and then with that body."""

    async def serve(stream: trio.abc.Stream) -> None:
        while data := await stream.receive_some():
            head = bytes(data).partition(b"\r\n")[0]
            if head.startswith(b"OPTIONS ") or b"comp=metadata" in head:
                fields = [b"x-ms-approximate-messages-count: 1"]
                await stream.send_all(answer(200, *fields, *([PAIRGATE] * case.is_pairgate)))
                continue
            lines = b"".join(field + b"\r\n" for field in (*case.fields, framing))
            await stream.send_all(b"HTTP/1.1 %d X\r\n%b\r\n" % (case.status, lines))
            for piece in pieces():
                await stream.send_all(piece)

    return serve


def for_ever(piece: bytes) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        while True:
            yield piece

    return pieces


@cases
@pytest.mark.parametrize(
    ("framing", "piece"),
    [
        (b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n" % (PIECE, bytes(PIECE))),
        (b"Content-Length: 999999999999999", bytes(PIECE)),
    ],
    ids=["chunks", "length"],
)
async def test_an_endless_answer_is_refused_at_its_limit(
    case: Case,
    framing: bytes,
    piece: bytes,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    serve = serving(case, framing, for_ever(piece))
    async with network_of(serve, monkeypatch), case.make() as broker:
        with measured() as peak, pytest.raises(BrokerError) as caught:
            await case.call(broker)

    assert f"the body is above {case.limit} bytes" in str(caught.value)
    assert caught.value.outcome is Outcome.UNKNOWN  # of a receive: messages may be locked
    assert peak.bytes < 1.25 * case.limit + MIB


# Documents that take much more memory than their bytes, if a parser lets them.
INFLATED: Final = {
    "zeros": (b"", b"\0", b""),
    "elements": (b"<QueueMessagesList>", b"<a/>", b"</QueueMessagesList>"),
    "messages": (
        b"<QueueMessagesList>",
        b"<QueueMessage><MessageText></MessageText></QueueMessage>",
        b"</QueueMessagesList>",
    ),
    "queues": (
        b"<EnumerationResults><Queues>",
        b"<Queue><Name>a</Name></Queue>",
        b"</Queues></EnumerationResults>",
    ),
    "lines": (
        b"<QueueMessagesList><QueueMessage><MessageText>&amp;",
        b"a\n",
        b"</MessageText></QueueMessage></QueueMessagesList>",
    ),
    "wide characters": (
        "<QueueMessagesList><QueueMessage><MessageText>\N{GRINNING FACE}".encode(),
        b"a",
        b"</MessageText></QueueMessage></QueueMessagesList>",
    ),
    "wide texts": (
        b"<QueueMessagesList>",
        b"<QueueMessage><MessageText>%b&amp;%b</MessageText></QueueMessage>"
        % ("\N{GRINNING FACE}".encode(), b"a" * 250_000),
        b"</QueueMessagesList>",
    ),
    "entries": (
        b'<feed xmlns="http://www.w3.org/2005/Atom">',
        b"<entry><title>a</title></entry>",
        b"</feed>",
    ),
}


# Each parser meets its own documents, and one of elements that it doesn't know: those that only
# another parser knows would be the same to it.
LISTS: Final = {"servicebus: list queues": "entries", "storage-queue: list queues": "queues"}
DOCUMENTS: Final = [
    pytest.param(CASES[name], parts, id=f"{document}-{name}")
    for document, parts in INFLATED.items()
    for name in CASES
    if document not in {"messages", "queues", "entries"} or document == LISTS.get(name, "messages")
]


@pytest.mark.parametrize(("case", "parts"), DOCUMENTS)
async def test_an_answer_within_the_limit_takes_a_few_times_its_memory(
    case: Case,
    parts: tuple[bytes, bytes, bytes],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    begin, middle, end = parts
    count = (case.limit - len(begin) - len(end)) // len(middle)
    body = begin + middle * count + end
    serve = serving(case, b"Content-Length: %d" % len(body), lambda: iter([body]))
    async with network_of(serve, monkeypatch), case.make() as broker:
        with measured() as peak, trio.move_on_after(60), suppress(BrokerError):
            await case.call(broker)

    # The network of the test has the body, too.
    assert peak.bytes < 6 * case.limit + 4 * MIB


async def test_a_delivery_of_nothing_but_small_properties_takes_more(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    case = CASES["servicebus: receive from a Pairgate"]
    message = Message(properties={f"{number:x}": None for number in range(140_000)})
    body = frames.build_deliveries([Delivery(message=message, sequence_number=7)])
    assert 0.9 * DELIVERY < len(body) < DELIVERY
    serve = serving(case, b"Content-Length: %d" % len(body), lambda: iter([body]))
    async with network_of(serve, monkeypatch), case.make() as broker:
        with measured() as peak:
            await receive(1)(broker)

    assert peak.bytes < 16 * DELIVERY
