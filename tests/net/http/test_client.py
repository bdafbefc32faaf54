"""A request has an answer, was not sent, or its outcome is unknown."""

import contextlib
import random
import socket
import ssl
from datetime import UTC, datetime
from functools import partial

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from gateway.domain.errors import InvalidRequest, OutcomeUnknown, Unavailable, Untrusted
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.http.server import HttpServer
from gateway.net.listeners import open_listener
from gateway.net.tls import ClientTlsOptions, TlsOptions, client_context, server_context
from gateway.net.tls_handshake import connect_tls
from gateway.wire.http.messages import Headers, Request, Response
from tests.harness.chaos_proxy import (
    ChaosProxy,
    ResetAfter,
    ResetBefore,
    ResetDuring,
    SwallowResponse,
    Truncate,
)
from tests.net.conftest import plain_error

POST = Request(method="POST", target="/q/messages", body=b"hello")
OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"


def crash(peer, error):
    raise error


class Server:
    """A real HTTP server that counts its requests."""

    def __init__(self):
        self.requests = []
        self.connections = 0
        self.http = HttpServer(
            handler=self.answer, error_body=plain_error, wall_clock=lambda: datetime.now(UTC)
        )

    async def answer(self, request):
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return Response(status=201, headers=Headers.of({"X-Name": "é"}), body=request.body)

    async def connected(self, stream):
        self.connections += 1
        await self.http.serve_connection(stream)

    async def start(self, nursery, **fields):
        listener = await open_listener("127.0.0.1:0", on_crash=crash, **fields)
        await nursery.start(partial(listener.serve, self.connected, connections=nursery))
        return listener.port


@pytest.fixture
def server():
    return Server()


@pytest.fixture
async def client_of(nursery):
    """Makes clients of real ports, and closes them at the end."""
    clients = []

    def make(*address, **fields):
        clients.append(HttpClient(*address, **fields))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


def scripted(*answers):
    """A client whose n-th connection answers any request with the n-th bytes, and ends."""
    streams = []
    answers = list(answers)

    async def connect():
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        await theirs.send_all(answers.pop(0))
        await theirs.send_eof()
        streams.append(theirs)
        return ours

    return HttpClient("host", 80, connect=connect), streams


async def test_an_answer_is_whole_and_the_connection_is_used_again(server, nursery, client_of):
    client = client_of("127.0.0.1", await server.start(nursery))

    responses = [await client.request(POST) for _ in range(5)]

    assert {(response.status, response.body) for response in responses} == {(201, b"hello")}
    assert responses[0].headers.get("x-name") == "é"
    assert server.connections == 1


async def test_host_and_length_are_added_and_the_rest_is_kept(server, nursery, client_of):
    port = await server.start(nursery)
    client = client_of("127.0.0.1", port)

    await client.request(
        Request(method="PUT", target="/a%20b?c=d", headers=Headers.of({"X-cAsE": "é"}))
    )

    (request,) = server.requests
    assert request.headers.items == (
        ("Host", f"127.0.0.1:{port}"),
        ("X-cAsE", "é"),
        ("Content-Length", "0"),
    )


async def test_the_connection_used_last_is_used_first(server, nursery, client_of):
    client = client_of("127.0.0.1", await server.start(nursery))
    async with trio.open_nursery() as requests:
        for _ in range(3):
            requests.start_soon(client.request, POST)
    before = server.connections

    for _ in range(10):
        await client.request(POST)

    assert server.connections == before


async def test_only_so_many_connections_are_opened(autojump_clock):
    open_now, most = 0, 0

    async def connect():
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await trio.sleep(1)
        ours, theirs = memory_stream_pair()
        await theirs.send_all(OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        open_now -= 1
        return ours

    client = HttpClient("host", 80, connect=connect, options=HttpClientOptions(max_connections=3))
    async with trio.open_nursery() as requests:
        for _ in range(10):
            requests.start_soon(client.request, POST)

    assert most <= 3


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 201 Cre",
        b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\no",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 201 Created\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"hello",
        b"HTTP/1.1 201 Created\r\nX: " + b"x" * 70000,
    ],
    ids=["none", "half a head", "half a body", "no last chunk", "no end", "100", "rubbish", "huge"],
)
async def test_without_a_whole_answer_the_outcome_is_unknown(answer):
    client, _ = scripted(answer)

    with pytest.raises(OutcomeUnknown, match="host:80"):
        await client.request(POST)


async def test_an_answer_above_the_limit_is_unknown():
    async def connect():
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        await theirs.send_all(OK)
        return ours

    client = HttpClient("host", 80, connect=connect, options=HttpClientOptions(max_body=1))

    with pytest.raises(OutcomeUnknown, match="above 1 bytes"):
        await client.request(POST)


async def test_a_length_above_the_limit_is_refused_before_the_body_comes():
    client, _ = scripted(b"HTTP/1.1 201 Created\r\nContent-Length: 17\r\n\r\n")

    with pytest.raises(OutcomeUnknown, match="above 16 bytes"):
        await client.request(POST, 16)


async def test_a_request_may_have_a_limit_of_its_own():
    answer = b"HTTP/1.1 201 Created\r\nContent-Length: 17\r\n\r\n" + b"x" * 17
    client, _ = scripted(answer)

    response = await client.request(POST, 17)

    assert response.body == b"x" * 17


@pytest.mark.parametrize(
    ("method", "answer", "status"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204),
        ("POST", b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 201),
        ("POST", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 503),
    ],
)
async def test_every_whole_answer_is_returned(method, answer, status):
    client, _ = scripted(answer)

    response = await client.request(Request(method=method, target="/"))

    assert response.status == status


async def test_bytes_after_the_answer_end_the_connection():
    client, streams = scripted(OK + OK, OK)

    await client.request(POST)
    await client.request(POST)

    assert len(streams) == 2


async def test_a_header_that_would_inject_another_one_is_never_sent():
    client, streams = scripted(OK)

    with pytest.raises(InvalidRequest):
        await client.request(
            Request(method="GET", target="/", headers=Headers.of({"X": "a\r\nY: b"}))
        )

    assert await streams[0].receive_some() == b""


async def test_a_refused_connection_means_nothing_was_sent(client_of):
    listener = await open_listener("127.0.0.1:0", on_crash=crash)
    port = listener.port
    await listener.aclose()
    client = client_of("127.0.0.1", port)

    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
        await client.request(POST)


@pytest.mark.parametrize("host", ["does-not-exist.invalid", f"{'a' * 70}.example"])
async def test_a_name_that_is_unknown_means_nothing_was_sent(client_of, host):
    client = client_of(host, 80)

    with pytest.raises(Unavailable):
        await client.request(POST)


async def test_a_connect_that_takes_too_long_means_nothing_was_sent(autojump_clock):
    client = HttpClient("host", 80, connect=trio.sleep_forever)

    with pytest.raises(Unavailable, match="in 5 s"):
        await client.request(POST)


@pytest.mark.parametrize(
    ("fault", "applied"),
    [(ResetBefore(), 0), (ResetDuring(40), 0), (SwallowResponse(), 1), (Truncate(10), 1)],
)
@pytest.mark.parametrize("kept_alive", [False, True])
async def test_a_connection_that_breaks_later_is_unknown(
    fault, applied, kept_alive, server, nursery, client_of
):
    proxy = ChaosProxy("127.0.0.1", await server.start(nursery), rng=random.Random(1))
    client = client_of("127.0.0.1", await nursery.start(proxy.serve))
    if kept_alive:
        await client.request(POST)
    before = len(server.requests)

    proxy.fault = fault
    with pytest.raises(OutcomeUnknown), trio.fail_after(30):
        await client.request(POST)

    assert len(server.requests) - before == applied


async def test_a_stale_connection_is_found_before_it_is_used(server, nursery, client_of):
    proxy = ChaosProxy("127.0.0.1", await server.start(nursery), rng=random.Random(1))
    client = client_of("127.0.0.1", await nursery.start(proxy.serve))
    proxy.fault = ResetAfter()

    for _ in range(3):
        await client.request(POST)
        while True:  # until it is reset
            if not proxy.links:
                break
            await trio.sleep(0.001)

    assert len(server.requests) == 3


async def test_an_early_refusal_of_a_large_body_is_heard(server, nursery, client_of):
    client = client_of("127.0.0.1", await server.start(nursery))

    response = await client.request(
        Request(method="POST", target="/", body=b"x" * (5 * 1024 * 1024))
    )

    assert response.status == 413
    assert server.requests == []


async def test_connections_that_were_idle_too_long_are_retired(server, nursery, client_of):
    client = client_of(
        "127.0.0.1",
        await server.start(nursery),
        options=HttpClientOptions(idle_timeout=0.05),
    )

    await client.request(POST)
    await trio.sleep(0.1)
    await client.request(POST)

    assert server.connections == 2


@pytest.mark.parametrize("moment", ["connecting", "sending", "waiting", "half an answer"])
async def test_a_cancelled_request_closes_its_connection(moment, autojump_clock):
    ours, theirs = lockstep_stream_pair()
    tries = 0

    async def connect():
        nonlocal tries
        tries += 1
        if tries == 1:
            if moment == "connecting":
                await trio.sleep(5)
            return ours
        await trio.lowlevel.checkpoint()
        fresh, peer = memory_stream_pair()
        await peer.send_all(OK)
        return fresh

    async def peer():
        if moment in ("waiting", "half an answer"):
            await theirs.receive_some(65536)
        if moment == "half an answer":
            await theirs.send_all(OK[:30])

    client = HttpClient("host", 80, connect=connect, options=HttpClientOptions(max_connections=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer)
        with trio.move_on_after(1) as scope:
            await client.request(POST)
    response = await client.request(POST)

    assert scope.cancelled_caught
    assert response.body == b"ok"  # of a new connection, and the slot was given back
    assert tries == 2


FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
PATIENCE = 2.25  # seconds; after that a pair diverts a send


class Balanced:
    """A client of servers behind a load balancer: those of the first connections go bad."""

    def __init__(self, nursery):
        self.connections = self.bad = 0
        self.answer = b""  # of a server that has gone bad; empty: none at all
        self.client = HttpClient("host", 80, connect=partial(self.connect, nursery))

    async def connect(self, nursery):
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        self.connections += 1
        nursery.start_soon(self.serve, theirs, self.connections)
        return ours

    async def serve(self, stream, number):
        with contextlib.suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            while await stream.receive_some(65536):
                await trio.sleep(0.1)
                await stream.send_all(self.answer if number <= self.bad else OK)

    async def have_idle(self, connections):
        async with trio.open_nursery() as requests:
            for _ in range(connections):
                requests.start_soon(self.client.request, POST)
        await trio.sleep(10.0)

    async def status(self):
        with trio.move_on_after(PATIENCE):
            return (await self.client.request(POST)).status


@pytest.fixture
def balanced(nursery):
    return Balanced(nursery)


@pytest.mark.parametrize(("answer", "status"), [(FAILED, 500), (b"", None)])
async def test_after_a_failure_no_connection_is_used_that_may_lead_to_the_same_server(
    balanced, answer, status, autojump_clock
):
    await balanced.have_idle(5)
    balanced.bad, balanced.answer = 5, answer

    statuses = [await balanced.status() for _ in range(3)]

    assert statuses == [status, 201, 201]
    assert balanced.connections == 6


async def test_a_connection_that_was_answered_since_a_failed_request_began_is_kept(
    balanced, autojump_clock
):
    balanced.bad = 1
    async with trio.open_nursery() as requests:
        requests.start_soon(balanced.status)
        await trio.sleep(1.0)
        await balanced.status()

    await balanced.status()

    assert balanced.connections == 2


@pytest.mark.parametrize("answer", [BUSY, OK])
async def test_an_answer_that_is_no_failure_costs_no_connection(balanced, answer, autojump_clock):
    await balanced.have_idle(2)
    balanced.bad, balanced.answer = 2, answer

    for _ in range(3):
        await balanced.status()

    assert balanced.connections == 2


async def test_a_request_that_is_cancelled_soon_costs_one_connection(balanced, autojump_clock):
    await balanced.have_idle(2)

    with trio.move_on_after(0.05):
        await balanced.client.request(POST)
    await balanced.status()

    assert balanced.connections == 2


async def test_closing_closes_what_is_idle_and_takes_no_more(server, nursery, client_of):
    client = client_of("127.0.0.1", await server.start(nursery))
    await client.request(POST)

    await client.aclose()

    with pytest.raises(trio.ClosedResourceError):
        await client.request(POST)


# TLS


def server_tls(certificates, **fields):
    return server_context(
        TlsOptions(
            certificate=certificates / "server.pem", key=certificates / "server.key", **fields
        )
    )


async def test_a_cancelled_closing_closes_everything(autojump_clock):
    streams = []

    async def connect():
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        await theirs.send_all(OK)
        streams.append(theirs)
        return ours

    client = HttpClient("host", 80, connect=connect)
    async with trio.open_nursery() as requests:
        for _ in range(3):
            requests.start_soon(client.request, POST)

    with trio.CancelScope() as scope:
        scope.cancel()
        await client.aclose()

    assert len(streams) == 3
    for theirs in streams:
        await theirs.receive_some()
        with trio.fail_after(1):
            assert await theirs.receive_some() == b""


async def test_a_trusted_server_is_asked_over_tls(server, nursery, client_of, certificates):
    port = await server.start(nursery, tls=server_tls(certificates))
    tls = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))
    client = client_of("localhost", port, tls=tls)

    for _ in range(3):
        assert (await client.request(POST)).status == 201

    assert server.connections == 1


async def test_an_untrusted_certificate_is_no_outage(server, nursery, client_of, certificates):
    port = await server.start(nursery, tls=server_tls(certificates))
    client = client_of("localhost", port, tls=client_context())

    with pytest.raises(Untrusted, match="unable to get local issuer certificate"):
        await client.request(POST)

    assert server.requests == []


async def test_a_certificate_of_another_name_is_untrusted(server, nursery, certificates):
    port = await server.start(nursery, tls=server_tls(certificates))
    stream = partial(trio.open_tcp_stream, "127.0.0.1", port)
    tls = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))

    async def connect():
        plain = await stream()
        try:
            return await connect_tls(plain, tls, "elsewhere", https_compatible=True)
        except trio.BrokenResourceError:
            await trio.aclose_forcefully(plain)
            raise

    client = HttpClient("elsewhere", port, connect=connect)

    with pytest.raises(Untrusted, match="Hostname mismatch"):
        await client.request(POST)


async def test_a_client_certificate_is_shown(server, nursery, certificates, client_of):
    tls = server_tls(certificates, client_ca=certificates / "ca.pem")
    port = await server.start(nursery, tls=tls)
    known = client_context(
        ClientTlsOptions(
            ca=certificates / "ca.pem",
            certificate=certificates / "client.pem",
            key=certificates / "client.key",
        )
    )

    assert (await client_of("localhost", port, tls=known).request(POST)).status == 201


async def test_a_stranger_is_not_served(server, nursery, certificates, client_of):
    tls = server_tls(certificates, client_ca=certificates / "ca.pem")
    port = await server.start(nursery, tls=tls)
    stranger = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))

    with pytest.raises(Untrusted, match="certificate required"):
        await client_of("localhost", port, tls=stranger).request(POST)

    assert server.requests == []


async def test_a_server_that_misses_our_certificate_is_no_outage(nursery, certificates, client_of):
    tls = server_tls(certificates, client_ca=certificates / "ca.pem")
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listening:
            plain, _ = listening.accept()
        secured = tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        with contextlib.suppress(ssl.SSLError):
            secured.do_handshake()
        with socket.socket(fileno=secured.detach()) as plain:
            while plain.recv(65536):  # closing at once would reset the alert away
                continue

    nursery.start_soon(trio.to_thread.run_sync, serve)
    stranger = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))

    port = listening.getsockname()[1]

    with pytest.raises(Untrusted, match="alert"), trio.fail_after(30):
        await client_of("localhost", port, tls=stranger).request(POST)


async def test_tls_to_a_plain_port_means_nothing_was_sent(server, nursery, client_of):
    client = client_of("localhost", await server.start(nursery), tls=client_context())

    with pytest.raises(Unavailable):
        await client.request(POST)
