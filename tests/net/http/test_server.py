"""A connection: requests in, responses out, under deadlines, until it ends."""

import contextlib

import h11
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from gateway.net.clients import MOST_PEEKS, Clients
from gateway.net.http.heads import read_fields, written_fields
from gateway.net.http.server import HttpServerOptions
from gateway.net.visits import FIRST_ON_ITS_WAY, ON_ITS_WAY, Visits, peek_until_written
from gateway.wire.http.messages import Headers, Response
from tests.net.conftest import Exchange, read_all, read_response

GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"


async def test_the_request_arrives_as_it_was_sent(exchange):
    client = exchange.connect()

    await client.send_all(
        b"PUT /a%20b?c=%2F&d HTTP/1.1\r\nhOsT: x\r\nPriority-Name: \xc3\xa9\r\nOther: \xe9\r\n"
        b"Content-Length: 5\r\n\r\nhe\x00\xffo"
    )
    await read_response(client)

    (request,) = exchange.requests
    assert request.method == "PUT"
    assert request.target == "/a%20b?c=%2F&d"
    assert request.headers.items == (
        ("hOsT", "x"),
        ("Priority-Name", "é"),
        ("Other", "é"),
        ("Content-Length", "5"),
    )
    assert request.body == b"he\x00\xffo"


async def test_a_response_has_its_length_date_and_server(exchange):
    client = exchange.connect()

    await client.send_all(POST)
    head, body = await read_response(client)

    assert head.split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"X-Path: /a",
        b"Date: Sat, 21 Nov 2026 12:00:00 GMT",
        b"Server: pairgate",
        b"Content-Length: 5",
    ]
    assert body == b"hello"


async def test_a_response_is_written_at_once(exchange):
    client = exchange.connect(pair=lockstep_stream_pair)

    await client.send_all(POST)
    written = await client.receive_some(65536)

    assert written.endswith(b"\r\n\r\nhello")


@pytest.mark.parametrize("pair", [memory_stream_pair, lockstep_stream_pair])
async def test_one_connection_takes_many_requests(pair, exchange):
    client = exchange.connect(pair=pair)

    bodies = []
    for _ in range(20):
        await client.send_all(POST)
        bodies.append((await read_response(client))[1])

    assert bodies == [b"hello"] * 20


@pytest.mark.parametrize(
    "request_bytes",
    [
        GET,
        POST,
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n",
    ],
)
async def test_bytes_may_come_one_at_a_time(request_bytes, exchange, autojump_clock):
    client = exchange.connect()

    for _ in range(2):
        for index in range(len(request_bytes)):
            await client.send_all(request_bytes[index : index + 1])
            await wait_all_tasks_blocked()
        await read_response(client)

    assert [request.body for request in exchange.requests] in ([b"", b""], [b"hello", b"hello"])


async def test_a_client_that_asks_may_send_its_body(exchange):
    client = exchange.connect()

    await client.send_all(
        b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    )
    permission = await client.receive_some()
    await client.send_all(b"hello")
    _, body = await read_response(client)

    assert permission == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert body == b"hello"


async def test_a_body_that_is_too_large_gets_no_permission(exchange, autojump_clock):
    client = exchange.connect(exchange.server(options=HttpServerOptions(max_body=4)))

    await client.send_all(
        b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    )
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_head_has_the_length_and_not_the_body(exchange):
    async def handler(request):
        await trio.lowlevel.checkpoint()
        return Response(status=200, body=b"hello")

    client = exchange.connect(exchange.server(handler))

    await client.send_all(GET.replace(b"GET", b"HEAD") + GET)
    await client.send_eof()
    answer = await read_all(client)

    assert answer.count(b"Content-Length: 5\r\n") == 2
    assert answer.count(b"hello") == 1


async def test_a_bad_body_of_head_is_refused_without_one(exchange, autojump_clock):
    client = exchange.connect()

    await client.send_all(
        b"HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n"
    )
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
async def test_no_content_has_neither_body_nor_length(status, exchange):
    async def handler(request):
        await trio.lowlevel.checkpoint()
        return Response(status=status)

    client = exchange.connect(exchange.server(handler))

    await client.send_all(GET)
    head, _ = await read_response(client)

    assert head.startswith(b"HTTP/1.1 %d" % status)
    assert b"content-length" not in head.lower()


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"],
)
async def test_the_connection_ends_when_the_client_wants_that(request_bytes, exchange):
    client = exchange.connect()

    await client.send_all(request_bytes)
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer


async def test_the_connection_ends_when_the_handler_wants_that(exchange):
    async def handler(request):
        await trio.lowlevel.checkpoint()
        return Response(status=200, close=True)

    client = exchange.connect(exchange.server(handler))

    await client.send_all(GET + GET)
    answer = await read_all(client)

    assert answer.count(b"HTTP/1.1") == 1
    assert b"\r\nConnection: close\r\n" in answer


# Deadlines


async def timed(stream):
    began = trio.current_time()
    answer = await read_all(stream)
    return answer, trio.current_time() - began


async def test_a_connection_may_be_idle_for_two_minutes(exchange, autojump_clock):
    client = exchange.connect()
    await client.send_all(GET)
    await read_response(client)

    answer, seconds = await timed(client)

    assert (answer, seconds) == (b"", 120)


async def trickle(client, data, size, pause):
    with contextlib.suppress(trio.BrokenResourceError):
        for start in range(0, len(data), size):
            await trio.sleep(pause)
            await client.send_all(data[start : start + size])


async def test_a_head_takes_ten_seconds_from_its_first_byte(exchange, autojump_clock):
    client = exchange.connect()
    exchange.nursery.start_soon(trickle, client, GET, 1, 0.9)

    answer, seconds = await timed(client)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"Connection: close" in answer
    assert seconds == pytest.approx(0.9 + 10)


@pytest.mark.parametrize(("pause", "status"), [(0.9, b"200"), (1.2, b"408")])
async def test_a_body_keeps_the_minimum_rate(pause, status, exchange, autojump_clock):
    client = exchange.connect()
    await client.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 102400\r\n\r\n")
    exchange.nursery.start_soon(trickle, client, b"x" * 102400, 1024, pause)

    head, _ = await read_response(client)

    assert head.startswith(b"HTTP/1.1 " + status)


async def test_a_body_takes_no_longer_than_its_total(exchange, autojump_clock):
    options = HttpServerOptions(body_timeout=20)
    client = exchange.connect(exchange.server(options=options))
    await client.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 102400\r\n\r\n")
    await client.send_all(b"x" * 100000)

    answer, seconds = await timed(client)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert 20 <= seconds <= 22.1


async def test_a_client_that_does_not_read_is_cut(autojump_clock, exchange):
    ours, theirs = lockstep_stream_pair()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.server().serve_connection, theirs)
        await ours.send_all(GET)
        began = trio.current_time()

    assert trio.current_time() - began == pytest.approx(30)


async def test_an_answer_with_peeked_messages_counts_until_it_is_written(exchange, autojump_clock):
    visits, visited = Visits(3600.0, Clients()), []

    async def handler(request):
        await peek_until_written()
        visited.append(request.path)
        return Response(status=200, body=b"hello")

    async def serve(stream):
        with visits.begin("192.0.2.1"):
            await exchange.server(handler).serve_connection(stream)

    async def ask():
        ours, theirs = lockstep_stream_pair()
        exchange.nursery.start_soon(serve, theirs)
        await ours.send_all(GET)
        await wait_all_tasks_blocked()
        return ours

    unread = [await ask() for _ in range(MOST_PEEKS)]
    last = await ask()
    before = len(visited)
    await read_response(unread[0])
    await read_response(last)

    assert before == MOST_PEEKS
    assert len(visited) == MOST_PEEKS + 1


async def test_a_slow_handler_has_no_deadline_here(exchange, autojump_clock):
    async def handler(request):
        await trio.sleep(1000)
        return Response(status=200)

    client = exchange.connect(exchange.server(handler))

    await client.send_all(GET)
    head, _ = await read_response(client)

    assert head.startswith(b"HTTP/1.1 200 ")


# Clients that go away


class Waiting:
    """A handler that waits, and records its end."""

    def __init__(self):
        self.fate = None
        self.begun = trio.Event()

    async def __call__(self, request):
        self.begun.set()
        try:
            await trio.sleep(60)
        except trio.Cancelled:
            self.fate = "cancelled"
            raise
        self.fate = "finished"
        return Response(status=204)


async def test_a_poll_ends_when_its_client_has_gone(exchange, autojump_clock):
    handler = Waiting()
    client = exchange.connect(exchange.server(handler, cancels_when_gone=lambda request: True))
    await client.send_all(GET)
    await handler.begun.wait()
    began = trio.current_time()

    await client.send_eof()
    await read_all(client)

    assert handler.fate == "cancelled"
    assert trio.current_time() - began < 1


async def test_a_send_goes_on_and_is_answered_although_its_client_has_ended(
    exchange, autojump_clock
):
    handler = Waiting()
    client = exchange.connect(exchange.server(handler))
    await client.send_all(GET)
    await handler.begun.wait()

    await client.send_eof()
    answer = await read_all(client)

    assert handler.fate == "finished"
    assert answer.startswith(b"HTTP/1.1 204 ")


async def test_a_poll_whose_client_stays_is_answered(exchange, autojump_clock):
    handler = Waiting()
    client = exchange.connect(exchange.server(handler, cancels_when_gone=lambda request: True))

    await client.send_all(GET)
    head, _ = await read_response(client)

    assert head.startswith(b"HTTP/1.1 204 ")


async def test_requests_sent_ahead_during_a_poll_are_kept(exchange, autojump_clock):
    async def handler(request):
        await trio.sleep(10)
        return await exchange.echo(request)

    client = exchange.connect(exchange.server(handler, cancels_when_gone=lambda request: True))

    for number in range(3):
        await client.send_all(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number)
        await trio.sleep(1)
    for _ in range(3):
        await read_response(client)

    assert [request.path for request in exchange.requests] == ["/0", "/1", "/2"]


async def test_data_sent_ahead_is_bounded(exchange, autojump_clock):
    client = exchange.connect(
        exchange.server(Waiting(), cancels_when_gone=lambda request: True),
        pair=lockstep_stream_pair,
    )
    await client.send_all(GET)
    sent = 0

    with trio.move_on_after(30):
        while True:
            await client.send_all(b"x" * 4096)
            sent += 4096

    assert sent <= 128 * 1024


async def test_a_handler_that_crashes_ends_the_connection_without_an_answer(autojump_clock):
    async def handler(request):
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    ours, theirs = memory_stream_pair()
    await ours.send_all(GET)
    with pytest.RaisesGroup(ZeroDivisionError):
        await Exchange(None).server(handler).serve_connection(theirs)

    assert await read_all(ours) == b""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nSet-Cookie: b"),
        ("X", "a\nSet-Cookie: b"),
        ("X", "a\r"),
        ("X", "a\0"),
        ("X: a\r\nSet-Cookie", "b"),
        ("X Y", "a"),
        ("", "a"),
    ],
)
async def test_a_header_that_would_inject_another_one_is_never_written(exchange, name, value):
    async def handler(request):
        await trio.lowlevel.checkpoint()
        return Response(status=200, headers=Headers.of({name: value}))

    ours, theirs = memory_stream_pair()
    await ours.send_all(GET)
    with pytest.RaisesGroup(h11.LocalProtocolError):
        await Exchange(None).server(handler).serve_connection(theirs)

    assert await read_all(ours) == b""


# Draining


async def test_draining_closes_idle_connections_soon(exchange, autojump_clock):
    server = exchange.server()
    fresh, used = exchange.connect(server), exchange.connect(server)
    await used.send_all(GET)
    await read_response(used)
    began = trio.current_time()

    server.drain.set()

    assert await read_all(used) == b""
    assert trio.current_time() - began == pytest.approx(ON_ITS_WAY)
    assert await read_all(fresh) == b""
    assert trio.current_time() - began == pytest.approx(FIRST_ON_ITS_WAY)


@pytest.mark.parametrize("is_fresh", [True, False])
async def test_draining_answers_the_request_that_was_on_its_way(is_fresh, exchange, autojump_clock):
    server = exchange.server()
    client = exchange.connect(server)
    if not is_fresh:
        await client.send_all(GET)
        await read_response(client)

    server.drain.set()
    await trio.sleep(ON_ITS_WAY / 2)
    await client.send_all(GET)
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 2")
    assert b"\r\nConnection: close\r\n" in answer


async def test_draining_lets_a_busy_connection_answer_and_then_closes_it(exchange, autojump_clock):
    handler = Waiting()
    server = exchange.server(handler)
    client = exchange.connect(server)
    await client.send_all(GET)
    await handler.begun.wait()

    server.drain.set()
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 204 ")
    assert b"\r\nConnection: close\r\n" in answer


async def test_draining_lets_a_request_arrive_that_has_begun(exchange, autojump_clock):
    server = exchange.server()
    client = exchange.connect(server)
    await client.send_all(POST[:20])
    await wait_all_tasks_blocked()

    server.drain.set()
    await wait_all_tasks_blocked()
    await client.send_all(POST[20:])
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize("sent", [b"", GET[:10], POST[:-2], GET])
async def test_a_cancelled_connection_ends_at_once(sent, autojump_clock, exchange):
    ours, theirs = lockstep_stream_pair()
    began = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.server().serve_connection, theirs)
        if sent:
            await ours.send_all(sent)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert trio.current_time() == began
    with pytest.raises(trio.BrokenResourceError):
        await ours.send_all(GET)


# Header values


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"])))
def test_a_header_value_is_read_back_as_the_same_text(text):
    headers = Headers.of({"X-Name": text})

    assert read_fields(written_fields(headers)) == headers


@pytest.mark.parametrize("value", [b"plain", b"\xe9t\xe9", "日本".encode(), "ż ü".encode()])
def test_a_header_value_goes_out_with_the_bytes_it_came_in(value):
    assert written_fields(read_fields([(b"X", value)])) == [(b"X", value)]


def in_parts(*parts, pause=0.0):
    """A handler that answers with these, one after the other."""

    async def each():
        for part in parts:
            await trio.sleep(pause)
            yield part
        await trio.sleep(pause)

    async def handle(request):
        await trio.lowlevel.checkpoint()
        return Response(status=200, parts=each())

    return handle


async def test_a_response_in_parts_ends_with_its_connection(exchange, autojump_clock):
    client = exchange.connect(exchange.server(in_parts(b"one,", b"two", pause=600)))

    await client.send_all(GET)
    head, _, body = (await read_all(client)).partition(b"\r\n\r\n")

    assert b"Content-Length" not in head
    assert b"Connection: close" in head
    assert body == b"one,two"
    assert trio.current_time() == pytest.approx(1800, abs=1)


async def test_each_part_is_sent_when_it_comes(exchange, autojump_clock):
    client = exchange.connect(exchange.server(in_parts(b"one", b"two", pause=600)))

    await client.send_all(GET)
    received = b""
    while not received.endswith(b"one"):
        received += await client.receive_some()

    assert trio.current_time() == pytest.approx(600, abs=1)


async def test_after_head_no_parts_are_sent(exchange, autojump_clock):
    client = exchange.connect(exchange.server(in_parts(b"one")))

    await client.send_all(GET.replace(b"GET", b"HEAD"))

    assert (await read_all(client)).endswith(b"\r\n\r\n")


@pytest.mark.parametrize("end", ["drain", "client"])
async def test_parts_end_with_the_drain_and_with_the_client(end, exchange, autojump_clock):
    ended = trio.Event()

    async def handle(request):
        async def wait():
            try:
                yield b"one"
                await trio.sleep_forever()
            finally:
                ended.set()

        await trio.lowlevel.checkpoint()
        return Response(status=200, parts=wait())

    server = exchange.server(handle)
    client = exchange.connect(server)
    await client.send_all(GET)
    while not (await client.receive_some()).endswith(b"one"):
        pass
    if end == "drain":
        server.drain.set()
    else:
        await client.aclose()

    with trio.fail_after(60):
        await ended.wait()


async def test_a_client_that_reads_no_parts_is_cut(exchange, autojump_clock):
    def endless():
        async def each():
            while True:
                await trio.lowlevel.checkpoint()
                yield b"x" * 1024

        return each()

    async def handle(request):
        await trio.lowlevel.checkpoint()
        return Response(status=200, parts=endless())

    server = exchange.server(handle)
    ours, theirs = lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_all, GET)
        with trio.fail_after(3600):
            await server.serve_connection(theirs)

    assert trio.current_time() == pytest.approx(server.options.write_timeout, abs=1)
