"""The port of the cluster, with any kind of client."""

import random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.domain.message import Complete
from gateway.extensions.cluster.channel import Channel, connect
from gateway.extensions.cluster.events import PeerRefused
from gateway.extensions.cluster.handshake import ClientHandshake
from gateway.extensions.cluster.requests import (
    LARGEST,
    RenewHeld,
    SettleHeld,
    build_request,
    parse_answer,
)
from gateway.extensions.cluster.server import HANDSHAKE_SECONDS, PATIENCE
from tests.extensions.cluster.gateways import ADDRESSES, ORDERS, SECRET, Network, Node, open_network

ONE, TWO, _ = ADDRESSES
HELLO = ClientHandshake(SECRET, ONE, random.Random(7)).hello
GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"AMQP\x03\x01\x00\x00",
    b"PGCLUST2" + bytes(40),
    bytes(48),
    HELLO + b"\x00\x00\x00\x10" + bytes(16),
    HELLO + b"\xff\xff\xff\xff",
    HELLO + b"\x00\x00\x00\x00",
]


@pytest.fixture
async def network():
    async with open_network() as network:
        yield network


def refusals(node: Node) -> list[str]:
    return [event.reason for event in node.events if isinstance(event, PeerRefused)]


async def ended(stream: trio.abc.Stream) -> None:
    """Return when the other side has ended the connection."""
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        return


async def still_settles(network: Network, one: Node) -> None:
    two = await network.start(TWO)
    delivery = await one.received()
    await two.leases.settle(ORDERS, delivery.lock_token, Complete())


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_ends_its_connection_and_nothing_else(
    network: Network, garbage: bytes, autojump_clock: MockClock
) -> None:
    one = await network.start(ONE)
    stream = await network.dial(ONE)

    await stream.send_all(garbage)
    await ended(stream)

    assert trio.current_time() == 0, "it was refused at once"
    assert len(refusals(one)) == 1
    await still_settles(network, one)


@settings(max_examples=50)
@given(data=st.binary(max_size=200), known=st.integers(0, len(HELLO)))
def test_so_do_arbitrary_bytes_also_after_a_right_beginning(data: bytes, known: int) -> None:
    async def main() -> None:
        async with open_network() as network:
            one = await network.start(ONE)
            stream = await network.dial(ONE)
            await stream.send_all(HELLO[:known] + data)
            await stream.send_eof()
            await ended(stream)
            await still_settles(network, one)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("begun", [b"", HELLO[:5], HELLO[:40], HELLO, HELLO + b"\x00\x00"])
async def test_a_peer_that_says_nothing_more_is_sent_away(
    network: Network, begun: bytes, autojump_clock: MockClock
) -> None:
    one = await network.start(ONE)
    stream = await network.dial(ONE)
    if begun:
        await stream.send_all(begun)

    await ended(stream)

    assert trio.current_time() == HANDSHAKE_SECONDS
    assert refusals(one) == [f"no handshake within {HANDSHAKE_SECONDS:g} s"]


async def test_a_peer_that_leaves_without_a_word_is_no_event(
    network: Network, autojump_clock: MockClock
) -> None:
    """A balancer looks whether the port is open."""
    one = await network.start(ONE)
    stream = await network.dial(ONE)

    await stream.aclose()
    await trio.sleep(60)

    assert one.events == []


async def peer(network: Network) -> Channel:
    stream = await network.dial(ONE)
    return await connect(stream, ClientHandshake(SECRET, ONE, random.Random(3)))


async def test_a_peer_that_breaks_the_rules_is_sent_away(
    network: Network, autojump_clock: MockClock
) -> None:
    one = await network.start(ONE)
    for wrong in (b"\xff\xff\xff\xff", (LARGEST + 17).to_bytes(4), b"\0\0\0\x20" + bytes(32)):
        channel = await peer(network)
        await channel.stream.send_all(wrong)
        await ended(channel.stream)

    assert len(refusals(one)) == 3
    await still_settles(network, one)


async def test_a_request_that_makes_no_sense_is_answered_and_the_next_one_too(
    network: Network, autojump_clock: MockClock
) -> None:
    one = await network.start(ONE)
    delivery = await one.received()
    channel = await peer(network)

    for content in (b"", b"\0\0\0\2{}", b"\0\0\0\xff{}", bytes(1000)):
        await channel.send(content)
        assert isinstance(parse_answer(await channel.receive(LARGEST) or b""), Exception)
    await channel.send(build_request(SettleHeld(ORDERS, delivery.lock_token or "", Complete())))
    answer = parse_answer(await channel.receive(LARGEST) or b"")

    assert not isinstance(answer, Exception)


async def test_a_connection_that_nobody_uses_ends(
    network: Network, autojump_clock: MockClock
) -> None:
    await network.start(ONE)
    channel = await peer(network)

    await ended(channel.stream)

    assert trio.current_time() == PATIENCE


async def test_a_settlement_runs_to_its_end_although_the_peer_has_left(
    network: Network, autojump_clock: MockClock
) -> None:
    one = await network.start(ONE)
    delivery = await one.received()
    channel = await peer(network)
    await channel.send(build_request(SettleHeld(ORDERS, delivery.lock_token or "", Complete())))

    await channel.stream.aclose()
    await trio.sleep(1)

    assert (await network.broker.inspect(ORDERS)).active == 2


async def test_a_renewal_is_answered_with_the_new_end(
    network: Network, autojump_clock: MockClock
) -> None:
    one = await network.start(ONE)
    delivery = await one.received()
    await trio.sleep(10)
    channel = await peer(network)

    await channel.send(build_request(RenewHeld(ORDERS, delivery.lock_token or "")))
    answer = parse_answer(await channel.receive(LARGEST) or b"")

    assert not isinstance(answer, Exception)
    assert delivery.locked_until is not None
    assert answer.until is not None
    assert (answer.until - delivery.locked_until).total_seconds() == 10
