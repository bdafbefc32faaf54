"""A client that says one byte a second, or reads nothing, is cut off in time; others are served."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair

from gateway.domain.entity import QueueProperties
from gateway.domain.message import Message
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.options import AmqpOptions
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.frontend import StorageQueueFrontend
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.net.http.server import HttpServer
from gateway.net.sniffing import Sniffer
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import LocalVisibility
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.performatives import described, uint
from tests.frontends.rest_client import wall_clock
from tests.fuzz.connections import UPGRADE
from tests.security.slow_clients import (
    AMQP,
    AUTHORIZED,
    BEGIN,
    ORDERS,
    PART,
    SASL,
    SENDER,
    UNFINISHED,
)
from tests.wire.amqp.frames import frame

SECOND: Final = 1.0
LONG: Final = 3600.0
HEAD: Final = 10.0  # seconds for the first bytes, and for the head of a request
RATE: Final = 5.0 + 2.0  # a body's grace, and what a byte a second takes to be too slow
WRITE: Final = 30.0  # seconds in which a client must read an answer
GOODBYE: Final = 2.0
AMQP_WRITE: Final = 20.0  # the same over AMQP, as configured here
AMQP_UNREAD: Final = AMQP_WRITE + 5.0  # and its close
AMQP_PARTIAL: Final = 20.0  # and for a frame or a message
AMQP_UNFINISHED: Final = 2 * AMQP_PARTIAL + 5.0  # it may be seen late; and the close
OPEN: Final = 30.0 + 5.0  # seconds until an AMQP connection must be open, and its close
GET: Final = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
HTTP: Final = ("service-bus-http", "storage-queue", "admin")
LENGTH: Final = b"Content-Length: 100000\r\n\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"


@attrs.define(eq=False)
class Ports:
    """The ports of all front ends, in memory."""

    sniffers: dict[str, Sniffer]
    nursery: trio.Nursery

    def connect(self, port: str) -> "Connection":
        client, end = lockstep_stream_pair()
        connection = Connection(client)
        self.nursery.start_soon(self._serve, self.sniffers[port], end, connection)
        return connection

    async def _serve(
        self, sniffer: Sniffer, end: trio.abc.Stream, connection: "Connection"
    ) -> None:
        try:
            await sniffer.serve_connection(end)
        except* (trio.BrokenResourceError, trio.TooSlowError, ConnectionError):
            await trio.lowlevel.checkpoint()
        finally:
            connection.ended.set()

    async def witness(self) -> None:
        """Another client of each port, each second; each answer comes at once."""
        while True:
            for port in HTTP:
                with trio.fail_after(0.5):
                    connection = self.connect(port)
                    await connection.stream.send_all(
                        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
                    )
                    assert (await connection.stream.receive_some()).startswith(b"HTTP/1.1 ")
                    await trio.aclose_forcefully(connection.stream)
            await trio.sleep(SECOND)


@attrs.define(eq=False)
class Connection:
    stream: trio.abc.Stream
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def drip(self, data: bytes) -> None:
        """Send a byte each second, and read the answer."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            try:
                for at in range(len(data)):
                    await self.stream.send_all(data[at : at + 1])
                    await trio.sleep(SECOND)
            except trio.BrokenResourceError:
                return
            await trio.sleep_forever()

    async def _read(self) -> None:
        async for _ in self.stream:
            await trio.lowlevel.checkpoint()

    async def only_say(self, first: bytes, then: bytes) -> None:
        """Say the one, then the other ten times a second, and read nothing."""
        try:
            await self.stream.send_all(first)
            while True:
                await self.stream.send_all(then)
                await trio.sleep(SECOND / 10)
        except trio.BrokenResourceError:
            return


@pytest.fixture
async def ports(nursery: trio.Nursery) -> AsyncIterator[Ports]:
    async with opened(nursery) as found:
        yield found


@asynccontextmanager
async def opened(nursery: trio.Nursery) -> AsyncIterator[Ports]:
    broker = MemoryBroker(wall_clock, random.Random(0))
    async with broker:
        await broker.create_queue(ORDERS, QueueProperties())
        await broker.send(ORDERS, [Message(body=bytes(1000)) for _ in range(50)])
        leases = Leases(broker, wall_clock)
        await nursery.start(leases.run)
        authorizer = Authorizer((), wall_clock=wall_clock, accepts_well_known_key=True)
        accounts = Accounts([], wall_clock=wall_clock, accepts_well_known_key=True)
        operations = StorageOperations(
            broker=broker,
            visibility=LocalVisibility(broker),
            sends=True,
            wall_clock=wall_clock,
            marks=accounts.marks,
        )
        rest = ServiceBusRestFrontend(
            broker=broker, leases=leases, authorizer=authorizer, wall_clock=wall_clock
        )
        queues = StorageQueueFrontend(
            operations=operations, accounts=accounts, wall_clock=wall_clock
        )
        admin = AdminFrontend(broker=broker, authorizer=authorizer, wall_clock=wall_clock)
        amqp = AmqpFrontend(
            broker=broker,
            leases=leases,
            authorizer=authorizer,
            wall_clock=wall_clock,
            options=AmqpOptions(
                write_timeout=AMQP_WRITE, engine=EngineOptions(partial_timeout=AMQP_PARTIAL)
            ),
        )
        http = {
            name: HttpServer(
                handler=front.handle, error_body=front.refuse, wall_clock=wall_clock
            ).serve_connection
            for name, front in zip(HTTP, (rest, queues, admin), strict=True)
        }
        yield Ports(
            {
                **{name: Sniffer(http=serve) for name, serve in http.items()},
                "service-bus": Sniffer(amqp=amqp.serve_connection),
            },
            nursery,
        )
        nursery.cancel_scope.cancel()


def of_websocket(data: bytes) -> bytes:
    """A binary message, masked by zeros."""
    return b"\x82\xfe" + len(data).to_bytes(2) + bytes(4) + data


def post(*more: bytes) -> bytes:
    return b"POST /orders/messages HTTP/1.1\r\nHost: localhost\r\n" + b"".join(more)


# The bytes that a client sends at once, those that follow one each second, and the limit.
DRIPS: Final = {
    "nothing": (b"", b"", HEAD),
    "a request's head": (b"", post(LENGTH), HEAD),
    "the end of a head": (post(b"X: a"), b"b" * 1000, HEAD),
    "a body": (post(LENGTH), bytes(1000), RATE),
    "a chunked body": (post(CHUNKED), b"1\r\nx\r\n" * 1000, RATE),
    "one long chunk": (post(CHUNKED, b"10000\r\n"), b"x" * 1000, RATE),
    "trailers": (post(CHUNKED, b"1\r\nx\r\n0\r\n"), b"A: b\r\n" * 1000, RATE),
}
AMQP_DRIPS: Final = {
    "nothing": (b"", b"", HEAD),
    "a header": (b"", b"AMQP\x00\x01\x00\x00", OPEN),
    "SASL": (SASL[:8], SASL[8:] + bytes(1000), OPEN),
    "an open": (SASL, AMQP[len(SASL) :] + bytes(1000), OPEN),
    "the head of a WebSocket": (b"", UPGRADE, HEAD),
    "the end of such a head": (UPGRADE[:-4], b"X" * 1000, HEAD),
    "frames of a WebSocket": (UPGRADE, b"\x82\xfe\x10\x00" + bytes(1000), OPEN),
    "a frame": (SENDER, UNFINISHED[:1000], AMQP_UNFINISHED),
    "frames of one message": (SENDER + PART, PART * 100, AMQP_UNFINISHED),
    "a frame in a WebSocket": (
        UPGRADE + of_websocket(SENDER),
        of_websocket(UNFINISHED)[:1000],
        AMQP_UNFINISHED,
    ),
}
CASES: Final = [
    *((port, name, *case) for port in HTTP for name, case in DRIPS.items()),
    *(("service-bus", name, *case) for name, case in AMQP_DRIPS.items()),
]


@pytest.mark.parametrize(
    ("port", "begin", "rest", "limit"),
    [
        pytest.param(port, begin, rest, limit, id=f"{port}: {name}")
        for port, name, begin, rest, limit in CASES
    ],
)
async def test_a_client_that_says_a_byte_a_second_is_cut_off_and_harms_no_other(
    port: str,
    begin: bytes,
    rest: bytes,
    limit: float,
    ports: Ports,
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ports.witness)
        connection = ports.connect(port)
        began = trio.current_time()
        if begin:
            await connection.stream.send_all(begin)
        nursery.start_soon(connection.drip, rest)
        with trio.fail_after(LONG):
            await connection.ended.wait()
        nursery.cancel_scope.cancel()

    assert trio.current_time() - began <= limit + GOODBYE + SECOND


LIST: Final = b"GET /devstoreaccount1?comp=list HTTP/1.1\r\nHost: localhost\r\n\r\n"
SEND: Final = post(b"Content-Length: 1\r\n\r\nx")
SOURCE: Final = described(0x28, [ORDERS.key])
RECEIVER: Final = AUTHORIZED + (
    frame(0x12, ["link", uint(0), True, None, None, SOURCE, described(0x29, [])])
    + frame(0x13, [None, uint(1000), uint(0), uint(1000), uint(0), uint(0), uint(50)])
)
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
# The port; the bytes that a client sends first, and those that it repeats; and the limit.
UNREAD: Final = {
    "requests over REST": ("service-bus-http", SEND, SEND, WRITE),
    "requests to Storage Queue": ("storage-queue", LIST, LIST, WRITE),
    "requests of an operator": ("admin", GET, GET, WRITE),
    "heartbeats over AMQP": ("service-bus", AMQP + BEGIN, HEARTBEAT, AMQP_UNREAD),
    "credit over AMQP": ("service-bus", RECEIVER, HEARTBEAT, AMQP_UNREAD),
}


@pytest.mark.parametrize(("port", "first", "then", "limit"), UNREAD.values(), ids=UNREAD.keys())
async def test_a_client_that_reads_no_answer_is_cut_off_and_harms_no_other(
    port: str, first: bytes, then: bytes, limit: float, ports: Ports, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ports.witness)
        connection = ports.connect(port)
        began = trio.current_time()
        nursery.start_soon(connection.only_say, first, then)
        with trio.fail_after(LONG):
            await connection.ended.wait()
        nursery.cancel_scope.cancel()

    assert trio.current_time() - began <= limit + GOODBYE + SECOND
