"""AMQP over WebSocket: bytes in binary messages, to and from a client that is wsproto."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import lockstep_stream_pair, memory_stream_pair
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)

from gateway.net.http.websocket import PATH, SUBPROTOCOLS, accept_websocket


class Client:
    """The other side: wsproto as a client, on one end of a pair of streams."""

    def __init__(self, pair=memory_stream_pair):
        self.stream, self.server_side = pair()
        self.socket = WSConnection(ConnectionType.CLIENT)
        self.server = None

    async def send(self, *events):
        await self.stream.send_all(b"".join(self.socket.send(event) for event in events))

    async def receive(self):
        """Return the events of one read."""
        self.socket.receive_data(bytes(await self.stream.receive_some()) or None)
        return list(self.socket.events())

    async def connect(self, target=PATH, subprotocols=SUBPROTOCOLS[-1:]):
        """The server's answer; `self.server` is its stream, if that is a yes."""

        async def accept():
            self.server = await accept_websocket(self.server_side)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            await self.send(Request(host="h", target=target, subprotocols=list(subprotocols)))
            (answer, *_) = await self.receive()
        return answer


# Azure.Messaging.ServiceBus, AmqpConnectionScope.cs: WebSocketsPathSuffix has the slash.
@pytest.mark.parametrize(
    "target",
    [
        PATH,
        f"{PATH}/",
        "/$ServiceBus/WebSocket",
        f"{PATH}?a=b",
        f"{PATH}/?a=b",
        # qpid-proton-j-extensions 1.2.6, WebSocketUpgrade.createUpgradeRequest.
        f"https://localhost:5671{PATH}",
    ],
)
# Microsoft.Azure.Amqp, WebSocketTransportSettings.cs: WebSocketSubProtocol is "amqp".
@pytest.mark.parametrize("subprotocol", ["amqp", "AMQPWSB10"])
async def test_each_clients_path_and_subprotocol_are_accepted(target, subprotocol):
    answer = await Client().connect(target, [subprotocol])

    assert isinstance(answer, AcceptConnection)
    assert answer.subprotocol == subprotocol


async def test_the_first_subprotocol_that_is_known_is_chosen():
    answer = await Client().connect(subprotocols=["binary", "AMQPWSB10", "amqp"])

    assert answer.subprotocol == "AMQPWSB10"


@pytest.mark.parametrize(
    ("target", "subprotocols", "status"),
    [
        ("/other", ["amqp"], 404),
        ("https://h/other", ["amqp"], 404),
        (f"https://h@i{PATH}", ["amqp"], 404),
        (f"{PATH}//", ["amqp"], 404),
        (f"{PATH}/orders", ["amqp"], 404),
        (PATH, [], 400),
        (PATH, ["mqtt"], 400),
    ],
)
async def test_other_requests_are_refused(target, subprotocols, status):
    client = Client()

    answer = await client.connect(target, subprotocols)

    assert isinstance(answer, RejectConnection)
    assert answer.status_code == status
    assert client.server is None


UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: amqp\r\n\r\n"
)


async def test_an_upgrade_without_a_body_is_accepted():
    client = Client()
    await client.stream.send_all(UPGRADE.replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"))

    assert await accept_websocket(client.server_side) is not None


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /$servicebus/websocket HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
        UPGRADE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        UPGRADE.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\nhello"),
        UPGRADE.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        b"GET / HTTP/1.1\r\nHost: \xff..\r\nUpgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10000,
        b"\0\0\0\0\r\n\r\n",
    ],
)
async def test_an_invalid_upgrade_is_refused(request_):
    client = Client()
    await client.stream.send_all(request_)

    stream = await accept_websocket(client.server_side)

    assert stream is None
    assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 400")


async def test_a_client_that_goes_during_the_request_breaks_it():
    client = Client()
    await client.stream.send_all(b"GET / HT")
    await client.stream.aclose()

    with pytest.raises(trio.BrokenResourceError):
        await accept_websocket(client.server_side)


async def test_bytes_go_both_ways():
    client = Client()
    await client.connect()

    await client.send(BytesMessage(data=b"one"), BytesMessage(data=b"two"))
    received = await client.server.receive_some()
    await client.server.send_all(bytes(200_000))
    sent = bytearray()
    while len(sent) < 200_000:
        for event in await client.receive():
            sent += event.data

    assert received == b"onetwo"
    assert sent == bytes(200_000)


async def test_bytes_that_come_with_the_request_are_not_lost():
    client = Client()
    masked = bytes.fromhex("82 83 00000000") + b"abc"  # a binary message, its mask being zero
    request = client.socket.send(Request(host="h", target=PATH, subprotocols=list(SUBPROTOCOLS)))
    await client.stream.send_all(request + masked)

    stream = await accept_websocket(client.server_side)

    assert await stream.receive_some() == b"abc"


async def test_no_more_is_received_than_was_asked_for():
    client = Client()
    await client.connect()
    await client.send(BytesMessage(data=b"abcdef"))

    assert await client.server.receive_some(4) == b"abcd"
    assert await client.server.receive_some(4) == b"ef"


async def test_pings_are_answered_while_nobody_sends():
    client = Client()
    await client.connect()
    await client.send(Ping(payload=b"p"), BytesMessage(data=b"x"))

    await client.server.receive_some()

    assert await client.receive() == [Pong(payload=b"p")]


async def test_a_ping_is_answered_after_the_write_of_another_task(autojump_clock):
    client = Client(lockstep_stream_pair)
    await client.connect()
    seen = []

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.server.send_all, bytes(30_000))
            nursery.start_soon(client.server.receive_some)
            nursery.start_soon(client.send, Ping(payload=b"p"), BytesMessage(data=b"x"))
            while not any(isinstance(event, Pong) for event in seen):
                seen += await client.receive()

    assert sum(len(event.data) for event in seen if isinstance(event, BytesMessage)) == 30_000
    assert seen[-1] == Pong(payload=b"p")


async def test_nothing_follows_a_pong_that_was_cancelled_in_the_middle(autojump_clock):
    client = Client(lockstep_stream_pair)
    await client.connect()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, Ping(payload=b"p"))
        with trio.move_on_after(1):  # the pong isn't read
            await client.server.receive_some()

    with pytest.raises(trio.BrokenResourceError, match="in part"):
        await client.server.send_all(b"x")


async def test_the_clients_close_is_answered_and_ends_the_bytes():
    client = Client()
    await client.connect()
    await client.send(BytesMessage(data=b"last"), CloseConnection(code=1000))

    received = [await client.server.receive_some(), await client.server.receive_some()]
    (answer,) = await client.receive()

    assert received == [b"last", b""]
    assert isinstance(answer, CloseConnection)
    with pytest.raises(trio.BrokenResourceError):
        await client.server.send_all(b"more")


async def test_closing_says_goodbye():
    client = Client()
    await client.connect()

    await client.server.aclose()
    (goodbye,) = await client.receive()

    assert (goodbye.code, await client.stream.receive_some()) == (1000, b"")


async def test_closing_does_not_wait_for_a_client_that_does_not_read(autojump_clock):
    client = Client(lockstep_stream_pair)
    await client.connect()

    with trio.fail_after(10):
        await client.server.aclose()

    assert trio.current_time() > 0


async def test_text_breaks_the_stream():
    client = Client()
    await client.connect()
    await client.send(TextMessage(data="AMQP"))

    with pytest.raises(trio.BrokenResourceError):
        await client.server.receive_some()


async def test_a_frame_without_a_mask_ends_the_stream():
    client = Client()
    await client.connect()
    await client.stream.send_all(b"\x82\x03abc")

    assert await client.server.receive_some() == b""


@given(st.binary(min_size=1, max_size=300), st.sets(st.integers(1, 300)))
def test_frames_may_be_cut_anywhere(payload, cuts):
    async def main():
        client = Client()
        await client.connect()
        frame = client.socket.send(BytesMessage(data=payload))
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True):
            await client.stream.send_all(frame[start:end])
        received = bytearray()
        while len(received) < len(payload):
            received += await client.server.receive_some()
        return bytes(received)

    assert trio.run(main) == payload


async def test_many_small_frames_of_one_read_let_others_run(nursery):
    client = Client()
    await client.connect()
    turns = 0

    async def run():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    nursery.start_soon(run)
    empty, last = b"\x82\x80" + bytes(4), b"\x82\x81" + bytes(4) + b"a"
    await client.stream.send_all(empty * 10_000 + last)

    assert await client.server.receive_some() == b"a"
    nursery.cancel_scope.cancel()
    assert turns > 70
