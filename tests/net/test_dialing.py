"""Streams to servers that can't be there."""

import socket
import ssl
from functools import partial

import pytest
import trio

from gateway.domain.errors import Unavailable, Unreachable
from gateway.net.dialing import dial, dial_within
from gateway.net.direct import socket_of
from gateway.net.server_address import ServerAddress


@pytest.mark.parametrize("host", [f"{'a' * 70}.example", "a..b", "\N{SNOWMAN}.example"], ids=ascii)
async def test_a_name_that_no_host_can_have_is_an_outage(host):
    with pytest.raises(Unavailable, match="invalid host name"):
        await dial(ServerAddress(host=host, port=1))


class Names(trio.abc.HostnameResolver):
    """Every name is at `address`."""

    def __init__(self, address):
        self.address = address

    async def getaddrinfo(self, host, port, family=0, kind=0, proto=0, flags=0):
        await trio.lowlevel.checkpoint()
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (self.address, port))]

    async def getnameinfo(self, sockaddr, flags):
        raise AssertionError("nobody asks for that")


async def test_a_name_is_looked_up_for_each_connection():
    names = Names("127.0.0.1")
    trio.socket.set_custom_hostname_resolver(names)
    [first] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = first.socket.getsockname()[1]
    [second] = await trio.open_tcp_listeners(port, host="127.0.0.2")
    place = ServerAddress(host="primary.test", port=port)

    reached = []
    for names.address in ("127.0.0.1", "127.0.0.2"):
        stream = await dial(place)
        reached.append(socket_of(stream).socket.getpeername()[0])
        await stream.aclose()
    await first.aclose()
    await second.aclose()

    assert reached == ["127.0.0.1", "127.0.0.2"]


class NoThread(trio.abc.HostnameResolver):
    """As Trio's own where the machine has no thread to give."""

    async def getaddrinfo(self, host, port, family=0, kind=0, proto=0, flags=0):
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    async def getnameinfo(self, sockaddr, flags):
        raise AssertionError("nobody asks for that")


async def test_without_a_thread_to_look_a_name_up_the_server_is_unavailable():
    trio.socket.set_custom_hostname_resolver(NoThread())

    with pytest.raises(Unavailable, match=r"primary\.test:1: can't start new thread"):
        await dial(ServerAddress(host="primary.test", port=1))


async def test_a_reason_names_its_cause_and_the_address_once():
    async def talk_nonsense(stream):
        await stream.send_all(b"this is no TLS at all\r\n")
        await stream.aclose()

    trio.socket.set_custom_hostname_resolver(None)
    found = []
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(
            partial(trio.serve_tcp, talk_nonsense, 0, host="127.0.0.1")
        )
        port = listener.socket.getsockname()[1]
        tls = ssl.create_default_context()
        for place in (
            ServerAddress(host="127.0.0.1", port=port, tls=tls),
            ServerAddress(host="no-such-host.invalid", port=1),
        ):
            with pytest.raises(Unavailable) as caught:
                await dial(place)
            found.append(str(caught.value))
        nursery.cancel_scope.cancel()
    with pytest.raises(Unavailable) as caught:
        await dial(ServerAddress(host="127.0.0.1", port=1))

    assert str(caught.value) == "127.0.0.1:1: Connection refused"
    assert found[0] == f"127.0.0.1:{port}: TLS: wrong version number"
    assert found[1].startswith("no-such-host.invalid:1: DNS: ")


async def test_a_server_that_never_answers_the_handshake_is_unreachable():
    async def say_nothing(_: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, say_nothing, 0, host="127.0.0.1")
        [listener] = await nursery.start(serve)
        port = listener.socket.getsockname()[1]
        place = ServerAddress(host="127.0.0.1", port=port, tls=ssl.create_default_context())
        with pytest.raises(Unreachable, match="no connection within"):
            await dial_within(place, 0.1)
        nursery.cancel_scope.cancel()
