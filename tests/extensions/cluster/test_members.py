from collections.abc import Sequence

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.extensions.cluster.members import Members, normal
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.cluster.tokens import tag_of
from gateway.net.listeners import CannotListen

SECRET = "a secret of a cluster, for tests only"
ONE, TWO, THREE = "10.0.0.1:5680", "10.0.0.2:5680", "10.0.0.3:5680"


@attrs.define
class Dns:
    """A name service with the test's answers, which counts the requests."""

    found: Sequence[str] = ()
    fails: bool = False
    hangs: bool = False
    asked: int = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        await trio.lowlevel.checkpoint()
        assert (host, port) == ("gateways.test", 5680)
        self.asked += 1
        if self.hangs:
            await trio.sleep_forever()
        if self.fails:
            raise OSError("no answer")
        return self.found


def members(dns: Dns | None = None, **options: object) -> Members:
    if dns is not None:
        options["service"] = "gateways.test:5680"
    configured = ClusterOptions(**{"address": ONE, "secrets": (SECRET,), **options})
    return Members(configured, dns or Dns())


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1:5680", "10.0.0.1:5680"),
        ("Gateway-1.Example.COM.:5680", "gateway-1.example.com:5680"),
        ("[2001:DB8:0:0::1]:5680", "[2001:db8::1]:5680"),
    ],
)
def test_each_address_is_written_in_one_way(address, expected):
    assert normal(address) == expected


class NoThread(trio.abc.HostnameResolver):
    """As Trio's own where the machine has no thread to give."""

    async def getaddrinfo(self, host, port, family=0, kind=0, proto=0, flags=0):
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    async def getnameinfo(self, sockaddr, flags):
        raise AssertionError("nobody asks for that")


@pytest.mark.parametrize("service", [f"{'a' * 70}.test:5680", "gateways.test:5680"])
async def test_a_name_that_cannot_be_looked_up_doesnt_end_the_gateway(service):
    """The first one can't be a host's; for the second one there is no thread."""
    trio.socket.set_custom_hostname_resolver(NoThread())
    configured = ClusterOptions(address=ONE, peers=(TWO,), service=service, secrets=(SECRET,))
    known = Members(configured)

    assert await known.find(tag_of(THREE)) is None
    assert await known.find(tag_of(TWO)) == TWO


def test_an_invalid_address_is_refused():
    with pytest.raises(CannotListen):
        normal("gateway-1")


async def test_the_own_address_may_be_among_the_peers() -> None:
    known = members(peers=(ONE, TWO, "10.0.0.2:5680"))

    assert known.peers == [TWO]
    assert await known.find(tag_of(TWO)) == TWO
    assert await known.find(tag_of(ONE)) is None
    assert await known.find(tag_of(THREE)) is None


async def test_a_name_is_looked_up_again_and_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    dns = Dns([ONE, TWO])
    known = members(dns)
    await nursery.start(known.run)
    await trio.sleep(1)
    assert known.peers == [TWO]

    dns.found = [ONE, THREE]
    await trio.sleep(5)
    assert known.peers == [THREE]

    dns.fails = True
    await trio.sleep(60)
    assert known.peers == [THREE]
    nursery.cancel_scope.cancel()


async def test_an_unknown_tag_has_the_name_looked_up_once_a_second(
    autojump_clock: MockClock,
) -> None:
    dns = Dns([ONE, TWO])
    known = members(dns)

    assert await known.find(tag_of(TWO)) == TWO
    for _ in range(10):
        assert await known.find(tag_of(THREE)) is None
    assert dns.asked == 1

    dns.found = [THREE]
    await trio.sleep(1)
    assert await known.find(tag_of(THREE)) == THREE


async def test_dns_that_hangs_doesnt_hang_a_settlement(autojump_clock: MockClock) -> None:
    dns = Dns(hangs=True)
    known = members(dns, peers=(TWO,))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(known.find, tag_of(THREE))

    assert trio.current_time() <= 4
    assert await known.find(tag_of(TWO)) == TWO
