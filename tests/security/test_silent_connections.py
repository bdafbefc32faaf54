"""Clients that connect and send nothing useful take no other client's place."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.domain.message import Message
from gateway.wire.amqp.message import encode_message
from tests.e2e.processes import GatewayProcess, Gateways
from tests.harness.patience import PATIENCE
from tests.security.gateway import (
    PROTOCOLS,
    ask,
    every_port,
    head,
    port_of,
    read_head,
    status,
    token,
)
from tests.security.slow_clients import PART, SENDER, UNFINISHED
from tests.wire.amqp.frames import transfer

pytestmark = pytest.mark.slow

ACCEPTED = b"\x53\x24"  # the descriptor of that outcome
MANY = 1100  # a port takes 1,000
# No connection ends because its time is over.
PATIENT = """
[limits]
first_timeout = "3h"
opening_timeout = "1h"
head_timeout = "1h"
idle_timeout = "1h"
"""
# SASL ANONYMOUS, then an `open` of a container without any field but its id.
ANONYMOUS = (
    b"AMQP\x03\x01\x00\x00"
    b"\x00\x00\x00\x19\x02\x01\x00\x00\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS"
    b"AMQP\x00\x01\x00\x00"
    b"\x00\x00\x00\x11\x02\x00\x00\x00\x00\x53\x10\xc0\x04\x01\xa1\x01a"
)


@asynccontextmanager
async def connected(port: int, opening: bytes) -> AsyncIterator[None]:
    """Many connections that say that and nothing more."""
    streams = []
    try:
        for _ in range(MANY):
            streams.append(await trio.open_tcp_stream("127.0.0.1", port))
            if opening:
                await streams[-1].send_all(opening)
        yield
    finally:
        for stream in streams:
            stream.socket.close()


async def answered(gateway: GatewayProcess, protocol: str) -> bool:
    """True if the gateway serves a client that has a key at that port."""
    port = port_of(gateway, protocol)
    if protocol == "amqp":
        return (await ask(port, b"AMQP\x03\x01\x00\x00", enough=8))[:5] == b"AMQP\x03"
    if protocol == "storage-queue":  # an answer is enough: a signature is long to make
        request = head("GET", "/devstoreaccount1?comp=list", ("Host", "localhost"))
        return status(await ask(port, request)) == 403
    target = "/livez" if protocol == "admin" else "/$Resources/queues"
    fields = [("Host", f"127.0.0.1:{port}"), ("Authorization", token(port))]
    return status(await ask(port, head("GET", target, *fields))) == 200


async def test_a_port_serves_clients_beside_many_silent_ones(gateways: Gateways) -> None:
    gateway = await gateways.start(every_port() + PATIENT)
    half = head("POST", "/orders/messages", ("Host", "localhost"))[:-2]

    for protocol in PROTOCOLS:
        opening = {"amqp": ANONYMOUS, "service-bus-http": half}.get(protocol, b"")
        async with connected(port_of(gateway, protocol), opening):
            assert await answered(gateway, protocol)
            # The others, that of operators among them, have room of their own.
            assert await answered(gateway, "admin")


async def test_a_client_that_has_shown_a_key_gives_way_to_no_silent_one(gateways: Gateways) -> None:
    gateway = await gateways.start(every_port())
    port = port_of(gateway, "service-bus-http")
    fields = [("Host", "localhost"), ("Authorization", token(port)), ("Content-Length", "0")]
    request = head("POST", "/orders/messages", *fields)

    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.fail_after(PATIENCE):
            await stream.send_all(request)
            assert status(await read_head(stream)) == 201
            async with connected(port, b""):
                assert await answered(gateway, "service-bus-http")
                await stream.send_all(request)
                assert status(await read_head(stream)) == 201


async def test_a_client_that_shows_no_key_has_little_time(gateways: Gateways) -> None:
    gateway = await gateways.start(every_port() + PATIENT.replace("3h", "100ms"))

    for protocol in PROTOCOLS:
        for opening in (b"", ANONYMOUS if "http" not in protocol else b"GET "):
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(gateway, protocol))
            async with stream:
                with trio.fail_after(PATIENCE):
                    await stream.send_all(opening)
                    while await ended(stream):
                        pass


async def test_a_client_that_does_not_end_a_frame_is_told_so_and_harms_no_other(
    gateways: Gateways,
) -> None:
    gateway = await gateways.start(every_port() + '[limits.amqp]\npartial_timeout = "4s"')
    port = port_of(gateway, "amqp")

    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(SENDER + PART + UNFINISHED[:-1])
        answer = b""
        with trio.fail_after(PATIENCE):
            while data := await ended(stream):
                answer += data
                assert await answered(gateway, "service-bus-http")
    message = encode_message(Message(body=b"slow"))
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(SENDER + transfer(1, more=True, payload=message[:5]))
        with trio.fail_after(PATIENCE):
            await trio.sleep(0.5)
            await stream.send_all(transfer(1, payload=message[5:]))
            settled = b""
            while ACCEPTED not in settled and (data := await stream.receive_some()):
                settled += data

    assert b"amqp:resource-limit-exceeded" in answer
    assert b"a frame or a message wasn't complete after 4.0 seconds" in answer
    assert ACCEPTED in settled


async def ended(stream: trio.SocketStream) -> bytes:
    """Return the bytes of one read; none at the end, however the connection ends."""
    try:
        return bytes(await stream.receive_some())
    except trio.BrokenResourceError:
        return b""
