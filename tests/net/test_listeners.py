"""Ports: where they are, how many may come, and that one bad connection harms no other."""

import errno
import socket
import ssl
from contextlib import AsyncExitStack, ExitStack
from functools import partial

import pytest
import trio
import trio.testing

from gateway.net.descriptors import duplicates
from gateway.net.listeners import (
    CannotListen,
    Listener,
    PortOptions,
    inherited_sockets,
    open_listener,
    peer_address,
)
from gateway.net.tls import ClientTlsOptions, TlsOptions, client_context, server_context
from gateway.net.visits import record_authorized
from tests.harness.open_files import room_for_files
from tests.harness.patience import PATIENCE


def crash(peer, error):
    raise error


def ends_in(ends):
    return lambda peer, error: ends.append((peer, error))


async def echo(stream):
    async for data in stream:
        await stream.send_all(data)


async def known_echo(stream):
    """Echo as for a client that has shown its key."""
    record_authorized()
    await echo(stream)


async def start(nursery, handler, **fields):
    fields.setdefault("on_crash", crash)
    listener = await open_listener("127.0.0.1:0", **fields)
    await nursery.start(partial(listener.serve, handler, connections=nursery))
    return listener


async def exchange(stream, data=b"hello"):
    with trio.fail_after(PATIENCE):
        await stream.send_all(data)
        return await stream.receive_some()


async def ask(listener, data=b"hello"):
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream("127.0.0.1", listener.port) as stream:
            return await exchange(stream, data)


def dial(clients, listener):
    """Connect at once, so that no task of the port runs in between."""
    return clients.enter_context(socket.create_connection(("127.0.0.1", listener.port)))


async def test_port_0_takes_a_free_port_and_says_which(nursery):
    listener = await start(nursery, echo)

    assert listener.address == f"127.0.0.1:{listener.port}"
    assert listener.port > 0
    assert await ask(listener) == b"hello"


async def test_a_stream_tells_who_is_connected(nursery):
    seen = []

    async def note(stream):
        seen.append(peer_address(stream))
        await echo(stream)

    listener = await start(nursery, note)
    await ask(listener)

    assert seen == ["127.0.0.1"]
    one, _ = trio.testing.memory_stream_pair()
    assert peer_address(one) is None


async def test_an_ipv6_address_stands_in_brackets():
    listener = await open_listener("[::1]:0", on_crash=crash)

    assert listener.address == f"[::1]:{listener.port}"
    await listener.aclose()


async def test_a_name_with_several_addresses_has_one_port():
    listener = await open_listener("localhost:0", on_crash=crash)

    assert listener.port > 0
    await listener.aclose()


async def test_a_taken_port_is_named_with_what_to_do(nursery):
    taken = await start(nursery, echo)

    with pytest.raises(CannotListen, match=f"{taken.address}.*another port.*--port-offset"):
        await open_listener(taken.address, on_crash=crash)


@pytest.mark.parametrize(
    "address", ["", "5672", ":5672", "localhost", "::1:5672", "localhost:x", "localhost:70000"]
)
async def test_an_invalid_address_is_an_error_with_examples(address):
    with pytest.raises(CannotListen, match=r"write host:port"):
        await open_listener(address, on_crash=crash)


@pytest.mark.slow
async def test_without_files_a_port_reports_it_each_second_and_accepts_later(nursery, caplog):
    reports, lost = trio.open_memory_channel(10)
    listener = await start(
        nursery, known_echo, on_lost=lambda peer, error: reports.send_nowait((peer, error.errno))
    )

    with room_for_files(3):
        known = await trio.open_tcp_stream("127.0.0.1", listener.port)
        assert await exchange(known) == b"hello"  # it gives way to nobody from now on
        late = await trio.open_tcp_stream("127.0.0.1", listener.port)
        await late.send_all(b"hello")
        with trio.fail_after(PATIENCE):
            told = [await lost.receive(), await lost.receive()]
    with trio.fail_after(PATIENCE):
        answer = await late.receive_some()
    await known.aclose()
    await late.aclose()

    assert answer == b"hello"
    assert told == [("", errno.EMFILE)] * 2
    assert caplog.records == []  # Trio's own, with tracebacks


async def test_the_last_file_goes_to_a_client_who_keeps_it_while_nobody_waits(nursery):
    lost = []
    listener = await start(nursery, echo, on_lost=ends_in(lost))

    with room_for_files(2):
        async with await trio.open_tcp_stream("127.0.0.1", listener.port) as client:
            await trio.testing.wait_all_tasks_blocked()
            answer = await exchange(client)

    assert answer == b"hello"
    assert lost == []


async def test_without_files_the_longest_idle_stranger_gives_way_to_a_client(nursery):
    lost, strangers = [], []
    listener = await start(nursery, echo, on_lost=ends_in(lost))

    with room_for_files(3):
        for _ in range(2):
            stranger = await trio.open_tcp_stream("127.0.0.1", listener.port)
            strangers.append(stranger)
            await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(PATIENCE):
            given_way = await strangers[0].receive_some()
        answer = await exchange(strangers[1])
    for each in strangers:
        await each.aclose()

    assert (given_way, answer) == (b"", b"hello")
    assert ("", errno.EMFILE) in [(peer, getattr(error, "errno", None)) for peer, error in lost]


async def test_surplus_clients_wait_in_the_kernel(nursery):
    running, most = 0, 0

    async def handler(stream):
        nonlocal running, most
        record_authorized()
        running += 1
        most = max(most, running)
        await stream.receive_some()
        await trio.sleep(0.02)
        await stream.send_all(b"done")
        running -= 1

    listener = await start(nursery, handler, options=PortOptions(max_connections=2))
    answers = []

    async def client():
        answers.append(await ask(listener))

    async with trio.open_nursery() as clients:
        for _ in range(8):
            clients.start_soon(client)

    assert answers == [b"done"] * 8
    assert most == 2


@pytest.mark.parametrize(("shares", "together"), [(False, 10), (True, 1)])
async def test_clients_that_come_together_are_accepted_together(nursery, shares, together):
    """The last one doesn't wait for a turn of all other connections for each client before it."""
    order, done = [], trio.Event()

    async def handler(stream):
        order.append("begins")
        await trio.lowlevel.checkpoint()
        order.append("goes on")
        if order.count("goes on") == 10:
            done.set()

    sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listener = Listener(sockets, on_crash=crash)
    if shares:
        listener.share_sockets()
    async with AsyncExitStack() as clients:
        for _ in range(10):
            client = await trio.open_tcp_stream("127.0.0.1", listener.port)
            await clients.enter_async_context(client)
        await nursery.start(partial(listener.serve, handler, connections=nursery))
        with trio.fail_after(PATIENCE):
            await done.wait()

    assert order.index("goes on") == together


async def test_one_peer_can_not_take_all_connections(nursery):
    lost = []
    options = PortOptions(max_connections_per_peer=1)
    listener = await start(nursery, known_echo, options=options, on_lost=ends_in(lost))

    async with await trio.open_tcp_stream("127.0.0.1", listener.port) as first:
        await first.send_all(b"a")
        await first.receive_some()
        async with await trio.open_tcp_stream("127.0.0.1", listener.port) as second:
            with trio.fail_after(PATIENCE):
                refused = await second.receive_some()
        await first.send_all(b"b")
        still_served = await first.receive_some()

    assert (refused, still_served) == (b"", b"b")
    assert len(lost) == 1


@pytest.fixture
async def connect():
    """Open connections in which nothing is said; closed at the end."""
    streams = []

    async def connected(listener):
        streams.append(await trio.open_tcp_stream("127.0.0.1", listener.port))
        return streams[-1]

    yield connected
    for stream in streams:
        await stream.aclose()


@pytest.mark.parametrize(
    "limit", [{"max_connections": 3}, {"max_connections_per_peer": 2}], ids=["port", "peer"]
)
async def test_the_longest_idle_connection_that_authorized_nothing_gives_way(
    limit, connect, nursery
):
    lost = []
    listener = await start(nursery, echo, options=PortOptions(**limit), on_lost=ends_in(lost))
    silent = [await connect(listener) for _ in range(2)]
    if "max_connections" in limit:
        silent.append(await connect(listener))

    with trio.fail_after(PATIENCE):
        assert await ask(listener) == b"hello"
        assert await silent[0].receive_some() == b""

        await silent[1].send_all(b"a")
        assert await silent[1].receive_some() == b"a"
    ((_, group),) = lost
    assert "closed for another connection" in str(group.exceptions[0])


async def test_a_stranger_keeps_its_place_at_a_port_that_another_client_has_left(connect, nursery):
    lost = []
    options = PortOptions(max_connections=2)
    listener = await start(nursery, echo, options=options, on_lost=ends_in(lost))
    stranger, leaving = await connect(listener), await connect(listener)
    await trio.testing.wait_all_tasks_blocked()

    await leaving.aclose()
    await trio.testing.wait_all_tasks_blocked()
    answers = [await ask(listener), await exchange(stranger)]

    assert answers == [b"hello", b"hello"]
    assert lost == []


async def test_each_socket_of_a_port_serves_its_clients_by_the_last_slot(nursery):
    sockets = []
    for _ in range(2):
        sockets += await trio.open_tcp_listeners(0, host="127.0.0.1")
    listener = Listener(sockets, on_crash=crash, options=PortOptions(max_connections=1))
    await nursery.start(partial(listener.serve, known_echo, connections=nursery))

    answers = []
    for each in sockets:
        async with await trio.open_tcp_stream(*each.socket.getsockname()) as client:
            answers.append(await exchange(client))

    assert answers == [b"hello"] * 2


async def test_a_stranger_gives_way_to_no_client_whom_another_process_accepts(connect, nursery):
    lost = []
    sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
    copies = inherited_sockets(duplicates([each.socket.fileno() for each in sockets]))
    full = Listener(
        sockets, on_crash=crash, on_lost=ends_in(lost), options=PortOptions(max_connections=1)
    )
    full.share_sockets()
    await nursery.start(partial(full.serve, echo, connections=nursery))
    stranger = await connect(full)
    await trio.testing.wait_all_tasks_blocked()
    other = Listener(copies, on_crash=crash)
    other.share_sockets()
    await nursery.start(partial(other.serve, echo, connections=nursery))

    answers = [await ask(other), await exchange(stranger)]

    assert answers == [b"hello"] * 2
    assert lost == []


async def test_a_client_whose_request_is_unread_gives_way_after_those_who_are_silent(nursery):
    """Trio runs the tasks of one moment in any order: the port's comes first in half of them."""
    answers = []
    for _ in range(12):
        listener = await start(nursery, echo, options=PortOptions(max_connections=2))
        with ExitStack() as clients:
            asking, _silent = (dial(clients, listener) for _ in range(2))
            await trio.testing.wait_all_tasks_blocked()
            asking.send(b"hello")
            dial(clients, listener)
            await trio.testing.wait_all_tasks_blocked()
            asking.setblocking(False)
            answers.append(asking.recv(16))

    assert answers == [b"hello"] * 12


async def test_a_connection_that_authorized_something_gives_way_to_nobody(connect, nursery):
    served = []

    async def handler(stream):
        if await stream.receive_some() == b"key":
            record_authorized()
        served.append(stream)
        await stream.send_all(b"fine")
        await echo(stream)

    listener = await start(nursery, handler, options=PortOptions(max_connections=2))
    known, silent = await connect(listener), await connect(listener)
    await known.send_all(b"key")
    await known.receive_some()

    with trio.fail_after(PATIENCE):
        assert await ask(listener) == b"fine"
        assert await silent.receive_some() == b""
        await known.send_all(b"still here")
        assert await known.receive_some() == b"still here"


async def test_a_connection_that_authorizes_nothing_has_little_time(connect, nursery):
    lost = []
    options = PortOptions(first_timeout=0.05)
    listener = await start(nursery, echo, options=options, on_lost=ends_in(lost))
    knowing = await start(nursery, known_echo, options=options)
    known, silent = await connect(knowing), await connect(listener)

    with trio.fail_after(PATIENCE):
        assert await silent.receive_some() == b""
        await known.send_all(b"a")
        assert await known.receive_some() == b"a"
    ((_, group),) = lost
    assert isinstance(group.exceptions[0], trio.TooSlowError)


async def test_a_crash_is_reported_and_harms_nobody_else(nursery):
    crashes = []

    async def handler(stream):
        if await stream.receive_some() == b"bad":
            raise ZeroDivisionError
        await stream.send_all(b"fine")

    listener = await start(
        nursery,
        handler,
        on_crash=ends_in(crashes),
        options=PortOptions(max_connections=1),  # the slot comes back too
    )

    assert [await ask(listener, data) for data in (b"good", b"bad", b"good")] == [
        b"fine",
        b"",
        b"fine",
    ]
    ((_, group),) = crashes
    assert isinstance(group.exceptions[0], ZeroDivisionError)


async def test_a_lost_connection_is_no_crash(nursery):
    lost = []

    async def handler(stream):
        await stream.receive_some()
        raise trio.BrokenResourceError("reset")

    listener = await start(nursery, handler, on_lost=ends_in(lost))

    assert await ask(listener) == b""
    assert len(lost) == 1


@pytest.mark.parametrize(
    ("error", "told"), [(ZeroDivisionError(), "crash"), (trio.BrokenResourceError(), "lost")]
)
@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
async def test_an_observer_of_an_end_learns_whose_it_was(nursery, address, error, told):
    ends = {"crash": [], "lost": []}

    async def handler(stream):
        await stream.receive_some()
        raise error

    listener = await open_listener(
        f"{address}:0", on_crash=ends_in(ends["crash"]), on_lost=ends_in(ends["lost"])
    )
    await nursery.start(partial(listener.serve, handler, connections=nursery))
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream(address.strip("[]"), listener.port) as stream:
            client = f"{address}:{stream.socket.getsockname()[1]}"
            await stream.send_all(b"x")
            await stream.receive_some()

    assert [peer for peer, _ in ends[told]] == [client]


async def test_cancelling_closes_the_port_and_leaves_the_connections(nursery):
    listener = await open_listener("127.0.0.1:0", on_crash=crash)
    async with trio.open_nursery() as acceptors:
        await acceptors.start(partial(listener.serve, echo, connections=nursery))
        address = ("127.0.0.1", listener.port)
        stream = await trio.open_tcp_stream(*address)
        await stream.send_all(b"a")
        await stream.receive_some()
        acceptors.cancel_scope.cancel()

    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(*address)
    await stream.send_all(b"still there")
    assert await stream.receive_some() == b"still there"
    await stream.aclose()


async def test_a_silent_client_can_not_hold_a_slot_by_its_handshake(nursery, certificates):
    tls = server_context(
        TlsOptions(certificate=certificates / "server.pem", key=certificates / "server.key")
    )
    lost = []
    options = PortOptions(handshake_timeout=0.05)
    listener = await start(nursery, echo, tls=tls, options=options, on_lost=ends_in(lost))

    async with await trio.open_tcp_stream("127.0.0.1", listener.port) as stream:
        with trio.fail_after(PATIENCE):
            assert await stream.receive_some() == b""

    assert isinstance(lost[0][1].exceptions[0], trio.TooSlowError)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_without_the_certificate_that_is_required_is_told_by_tls(
    nursery, certificates, version
):
    lost, told = [], trio.Event()

    def note_lost(peer, error):
        lost.append(error)
        told.set()

    tls = server_context(
        TlsOptions(
            certificate=certificates / "server.pem",
            key=certificates / "server.key",
            client_ca=certificates / "ca.pem",
        )
    )
    listener = await start(nursery, echo, tls=tls, on_lost=note_lost)
    context = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))
    context.minimum_version = context.maximum_version = version

    def ask_over_tls():
        with (
            socket.create_connection(("127.0.0.1", listener.port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            secured.sendall(b"hello")
            return secured.recv(100)

    with trio.fail_after(PATIENCE), pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        await trio.to_thread.run_sync(ask_over_tls)
    with trio.fail_after(PATIENCE):
        await told.wait()
    assert isinstance(lost[0].exceptions[0], trio.BrokenResourceError)


async def test_tls_serves_those_who_trust_it(nursery, certificates):
    tls = server_context(
        TlsOptions(certificate=certificates / "server.pem", key=certificates / "server.key")
    )
    listener = await start(nursery, echo, tls=tls)
    trust = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))

    stream = await trio.open_ssl_over_tcp_stream(
        "localhost", listener.port, ssl_context=trust, https_compatible=True
    )
    async with stream:
        await stream.send_all(b"secret")
        assert await stream.receive_some() == b"secret"
