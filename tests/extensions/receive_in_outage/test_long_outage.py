"""In an hour-long outage consumers work as fast as in good health."""

from contextlib import suppress
from itertools import count
from typing import Final

import pytest
import trio

from gateway.domain.errors import Unreachable
from gateway.domain.message import Complete
from tests.extensions.receive_in_outage.stand import Stand
from tests.pairing.harness import ORDERS, Harness, message, virtual_time

pytestmark = [pytest.mark.slow, virtual_time]

HEALTHY: Final = 600.0  # seconds
OUTAGE: Final = 3600.0
CONSUMERS: Final = 2
WORK: Final = 1.0  # seconds for a message
LOAD: Final = 1.1  # more than the consumers can do, so that they never wait for a message
BATCH: Final = 10


async def send(stand: Stand) -> None:
    pause = BATCH * WORK / (CONSUMERS * LOAD)
    for number in count():
        await stand.send(*(message(f"{number}-{each}") for each in range(BATCH)))
        await trio.sleep(pause)


async def consume(stand: Stand, done: list[float]) -> None:
    async with stand.broker.open_receiver(ORDERS) as receiver:
        while True:
            for delivery in await receiver.receive(5):
                await trio.sleep(WORK)
                with suppress(Unreachable):  # the primary, whose message was in hand, has just left
                    await receiver.settle(delivery, Complete())
                    done.append(trio.current_time())


async def test_consumers_work_through_an_hours_outage_at_the_healthy_rate(
    harness: Harness,
) -> None:
    stand, done = await Stand.make(harness), list[float]()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, stand)
        for _ in range(CONSUMERS):
            nursery.start_soon(consume, stand, done)
        await trio.sleep(HEALTHY)
        stand.lose_primary()
        lost = trio.current_time()
        await trio.sleep(OUTAGE)
        nursery.cancel_scope.cancel()

    healthy = sum(at < lost for at in done) / (lost - began)
    in_outage = sum(at >= lost for at in done) / OUTAGE
    assert healthy == pytest.approx(CONSUMERS / WORK, rel=0.05)
    assert in_outage == pytest.approx(healthy, rel=0.05)
    assert sum(stand.done) > 0.95 * CONSUMERS / WORK * OUTAGE  # at the backlog
