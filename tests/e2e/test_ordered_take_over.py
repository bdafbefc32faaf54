"""Take-overs of the gateway that orders sends, and of one that forwards its own."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gateway.checker.history import Run
from gateway.checker.order import order_kept
from gateway.extensions.order.lease import LEASE
from gateway.wire.servicebus.sas import sign_sas
from tests.e2e.ordered import History, forwarding
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rest import KEY, KEY_NAME
from tests.e2e.take_over import TAKE_OVER, successor

pytestmark = pytest.mark.slow

GRACE = 'limits.grace = "60s"\n'
SOME = 5
SLOW = b"slow" * 16_384  # the bytes of a body for whose end the gateway waits a minute


async def test_sends_go_on_while_the_orderer_and_a_gateway_that_forwards_are_taken_over(
    gateways: Gateways,
) -> None:
    primary, one, other = await forwarding(gateways, TAKE_OVER + GRACE)
    history = History()

    async def some() -> None:
        """Return when each producer had some more messages accepted."""
        for name, number in Counter(history.numbers).items():
            await history.acknowledged(name, number + SOME)

    async def take_over(*, is_orderer: bool) -> None:
        """Return when a new process of such a gateway has taken over, and the old one has ended."""
        nonlocal one, other
        orderer = orderer_of(gateways)
        before = one if (one.folder == orderer) is is_orderer else other
        async with sent_slowly(before) as finish:
            after = successor(gateways, before)
            await after.start()
            await before.seen("draining")
            await some()
            assert before.running, "it has the slow send"
            assert await finish() == 201
        assert await before.wait() == 0
        one, other = (after if each is before else each for each in (one, other))
        await some()

    async with trio.open_nursery() as nursery:
        for gateway in (one, other):
            for number in range(2):
                nursery.start_soon(history.produce, f"{gateway.folder.name} {number}", gateway)
        for name in ("one 0", "one 1", "other 0", "other 1"):
            await history.acknowledged(name, SOME)
        await take_over(is_orderer=True)
        await take_over(is_orderer=False)
        before_the_outage = history.acked
        await primary.kill()
        await take_over(is_orderer=True)
        await take_over(is_orderer=False)
        await primary.start()
        await history.sent_to("primary")
        await some()
        history.is_over = True

    assert set(history.answers) == {201}
    taken = [
        line["seconds"]
        for process in gateways.processes
        for line in process.log
        if line["event"] == "order_lease_taken"
    ]
    assert max(taken) < LEASE, "no orderer waited for the last one's lease to run out"
    copies = await history.find(primary)
    assert order_kept(Run.of(history.records)).problems == ()
    assert {copies[name] for name in before_the_outage} == {1}
    assert copies[SLOW.decode()] == 4


def orderer_of(gateways: Gateways) -> Path:
    """The folder of the gateway that is the orderer."""
    taken = [
        (line["timestamp"], process.folder)
        for process in gateways.processes
        for line in process.log
        if line["event"] == "order_lease_taken"
    ]
    return max(taken)[1]


@asynccontextmanager
async def sent_slowly(gateway: GatewayProcess) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """
    A send whose body is still on its way, so that the gateway doesn't end. The function sends the
    last byte, and returns the status.
    """
    token = sign_sas(f"http://{gateway.address}/", KEY_NAME, KEY, int(time.time()) + 600)
    head = (
        f"POST /orders/messages HTTP/1.1\r\nHost: {gateway.address}\r\n"
        f"Authorization: {token}\r\nContent-Length: {len(SLOW)}\r\n\r\n"
    )
    stream = await trio.open_tcp_stream("127.0.0.1", gateway.port)

    async def finish() -> int:
        await stream.send_all(SLOW[-1:])
        answer = await stream.receive_some()
        return int(bytes(answer).split()[1])

    async with stream:
        await stream.send_all(head.encode() + SLOW[:-1])
        yield finish
