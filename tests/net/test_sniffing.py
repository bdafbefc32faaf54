"""
A port serves several protocols: which handler serves which client, and which clients none serves.
"""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway.net.sniffing import HalfCloseableRewoundStream, Opening, Sniffer, SniffingOptions
from gateway.net.tls import ClientTlsOptions, TlsOptions, client_context, server_context
from gateway.net.visits import FIRST_ON_ITS_WAY

AMQP = b"AMQP\x03\x01\x00\x00"
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def telling(name):
    """A handler that answers with its name and the first bytes that it got."""

    async def handler(stream):
        await stream.send_all(name + b":" + await stream.receive_some())
        await stream.aclose()

    return handler


def sniffer(**fields):
    named = {"amqp": telling(b"amqp"), "http": telling(b"http"), "https": telling(b"https")}
    return Sniffer(**{**named, **fields})


@pytest.fixture
def tls(certificates):
    files = TlsOptions(certificate=certificates / "server.pem", key=certificates / "server.key")
    return server_context(files)


async def served(nursery, server):
    """The client's end of a connection that it serves."""
    client, end = trio.testing.memory_stream_pair()
    nursery.start_soon(server.serve_connection, end)
    await trio.lowlevel.checkpoint()
    return client


async def ask(server, data):
    """All that comes back."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            client = await served(nursery, server)
            await client.send_all(data)
            return b"".join([part async for part in client])


async def secured(nursery, server, certificates):
    raw = await served(nursery, server)
    trust = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))
    return trio.SSLStream(raw, trust, server_hostname="localhost", https_compatible=True)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x16\x03\x01", Opening.TLS),
        (AMQP, Opening.AMQP),
        (b"AMQP", Opening.AMQP),
        (UPGRADE, Opening.WEBSOCKET),
        (UPGRADE.replace(b"/", b"https://h.example:5671/", 1), Opening.WEBSOCKET),
        (UPGRADE.replace(b"/", b"http://h/", 1), Opening.WEBSOCKET),
        (b"GET https://h/orders HTTP/1.1", Opening.HTTP),
        (b"GET https:// HTTP/1.1", Opening.HTTP),
        (b"GET https://" + b"h" * 512, Opening.HTTP),
        (b"GET ftp://h/", Opening.HTTP),
        (b"GET /$servicebus/websockex HTTP/1.1", Opening.HTTP),
        (b"POST /orders/messages HTTP/1.1", Opening.HTTP),
        (b"AMQX", Opening.HTTP),
        (b"\x00", Opening.HTTP),
    ],
)
def test_the_first_bytes_tell_the_protocol(data, kind):
    assert Opening.of(data) is kind


@given(
    st.binary(max_size=40)
    | st.sampled_from([AMQP, UPGRADE, b"GET / HTTP/1.1\r\n\r\n", b"\x16"])
    | st.binary(max_size=40).map(lambda rest: b"GET https://" + rest)
    | st.just(UPGRADE.replace(b"/", b"https://h/", 1))
)
def test_no_more_bytes_change_what_was_told(data):
    told = [Opening.of(data[:end]) for end in range(len(data) + 1)]

    known = [kind for kind in told if kind is not None]
    assert len(set(known)) <= 1
    assert told[0] is None
    assert told == [None] * (len(told) - len(known)) + known


@pytest.mark.parametrize(
    ("data", "answer"),
    [(AMQP, b"amqp:" + AMQP), (b"GET / HTTP/1.1\r\n", b"http:GET / HTTP/1.1\r\n")],
)
async def test_each_protocol_has_its_handler_which_gets_every_byte(data, answer):
    assert await ask(sniffer(), data) == answer


async def test_the_bytes_may_come_one_by_one(nursery):
    client = await served(nursery, sniffer())
    for byte in AMQP[:4]:
        await client.send_all(bytes([byte]))
        await trio.testing.wait_all_tasks_blocked()

    with trio.fail_after(30):
        assert await client.receive_some() == b"amqp:AMQP"


async def test_a_websocket_is_a_stream_of_amqp(nursery):
    client = await served(nursery, sniffer())
    frame = b"\x82\x88\0\0\0\0" + AMQP
    with trio.fail_after(30):
        await client.send_all(UPGRADE + frame)
        answer = b""
        while b"amqp:" not in answer:
            answer += await client.receive_some()

    assert answer.startswith(b"HTTP/1.1 101")
    assert b"AMQPWSB10" in answer
    assert answer.split(b"\r\n\r\n")[1].startswith(b"\x82\x0damqp:" + AMQP)


async def test_tls_and_plain_text_share_the_port(nursery, tls, certificates):
    server = sniffer(tls=tls)
    stream = await secured(nursery, server, certificates)
    with trio.fail_after(30):
        await stream.send_all(b"POST")
        inside = await stream.receive_some()

    assert inside == b"https:POST"
    assert await ask(server, b"POST") == b"http:POST"


@pytest.mark.slow
async def test_where_a_certificate_is_asked_for_plain_text_is_no_way_around(certificates):
    files = TlsOptions(
        certificate=certificates / "server.pem",
        key=certificates / "server.key",
        client_ca=certificates / "ca.pem",
    )

    with pytest.raises(ExceptionGroup) as caught:
        await ask(sniffer(tls=server_context(files)), AMQP)

    assert caught.group_contains(ConnectionRefusedError, match="requires TLS")


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"POST /orders/messages HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
        (UPGRADE, b"HTTP/1.1 400 Bad Request\r\n"),
        (AMQP, b"AMQP\x02\x01\x00\x00"),  # the header of TLS in AMQP
    ],
)
async def test_where_tls_is_required_plain_text_is_told_so_in_its_protocol(data, answer, tls):
    server, served_one, told = sniffer(tls=tls, requires_tls=True), [], []
    client, end = trio.testing.memory_stream_pair()

    async def serve():
        try:
            await server.serve_connection(end)
        except ConnectionRefusedError as error:
            served_one.append(str(error))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await client.send_all(data)
            told.append(await client.receive_some())
            await client.aclose()

    assert told[0].startswith(answer)
    assert answer.startswith(b"AMQP") or b"use https" in told[0]
    assert served_one == ["plain text on a port that requires TLS"]


async def test_where_tls_is_required_it_is_taken(nursery, tls, certificates):
    stream = await secured(nursery, sniffer(tls=tls, requires_tls=True), certificates)

    with trio.fail_after(30):
        await stream.send_all(b"POST")
        assert await stream.receive_some() == b"https:POST"


async def test_tls_without_a_certificate_for_it_is_refused():
    with pytest.raises(ExceptionGroup) as caught:
        await ask(sniffer(), b"\x16\x03\x01\x00\x00")

    assert caught.group_contains(
        ConnectionRefusedError, match="TLS on a port without a certificate"
    )


async def test_where_only_amqp_is_spoken_a_request_is_refused_as_no_websocket():
    answer = await ask(sniffer(http=None), b"GET /orders HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("data", [b"", b"AMQ", b"GET /$service", UPGRADE[:-2]])
async def test_a_client_that_says_nothing_of_use_is_cut_in_time(data, autojump_clock):
    server = sniffer(options=SniffingOptions(opening_timeout=3))
    began = trio.current_time()

    with pytest.raises(ExceptionGroup) as caught:
        await ask(server, data)

    assert caught.group_contains(trio.TooSlowError)
    assert trio.current_time() - began == pytest.approx(3)


async def test_a_drain_ends_who_has_not_begun_and_no_one_else(nursery, autojump_clock):
    async def wait(stream):
        await trio.sleep(1)
        await stream.send_all(b"done")

    server = sniffer(amqp=wait)
    silent, busy = [await served(nursery, server) for _ in range(2)]
    await busy.send_all(AMQP)
    await trio.testing.wait_all_tasks_blocked()

    server.drain()

    assert await silent.receive_some() == b""
    assert await busy.receive_some() == b"done"


async def test_a_client_that_comes_while_it_drains_and_says_nothing_is_sent_away_soon(
    autojump_clock,
):
    server = sniffer()
    server.drain()
    began = trio.current_time()

    assert await ask(server, b"") == b""
    assert trio.current_time() - began == pytest.approx(FIRST_ON_ITS_WAY)


async def test_a_drain_serves_an_opening_that_was_on_its_way(nursery, autojump_clock):
    async def answer(stream):
        await stream.send_all(b"done")

    server = sniffer(amqp=answer)
    client = await served(nursery, server)
    await trio.testing.wait_all_tasks_blocked()

    server.drain()
    await trio.sleep(FIRST_ON_ITS_WAY / 2)
    await client.send_all(AMQP)

    assert await client.receive_some() == b"done"


async def test_bytes_that_were_looked_at_are_given_in_the_pieces_asked_for():
    client, end = trio.testing.memory_stream_pair()
    stream = HalfCloseableRewoundStream(end, b"abcdef")
    await client.send_all(b"ghi")

    assert [await stream.receive_some(4), await stream.receive_some(4)] == [b"abcd", b"ef"]
    assert await stream.receive_some() == b"ghi"
    await stream.send_eof()
    assert await client.receive_some() == b""


async def test_a_check_whether_somebody_listens_is_no_lost_connection(nursery):
    client = await served(nursery, sniffer())

    await client.send_eof()

    assert await client.receive_some() == b""


async def test_a_client_that_leaves_in_the_middle_of_a_word_is_lost():
    client, end = trio.testing.memory_stream_pair()
    await client.send_all(b"AM")
    await client.send_eof()

    with pytest.raises(trio.BrokenResourceError):
        await sniffer().serve_connection(end)
