"""A loop that measures must not lose count, nor take a broker's word for it."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from benchmarks.closed_loop import Measured, MessagesMissing, Way, drain, send_for, total
from benchmarks.floor import floor
from benchmarks.in_process import in_process


class Sieve:
    """A broker and its client: keeps all but every third message."""

    def __init__(self) -> None:
        self.held = 0

    async def send(self, number: int) -> None:
        await trio.sleep(0.01)
        self.held += number % 3 > 0

    async def receive_and_complete(self) -> int:
        await trio.sleep(1)
        if self.held == 0:
            return 0
        self.held -= 1
        return 1


async def test_a_message_that_is_sent_in_process_is_received(tmp_path: Path) -> None:
    async with in_process(tmp_path) as way:
        sent = await send_for(way, 8, 0.05)

        received = await drain(way, 8, sent.messages)

    assert received.messages == sent.messages > 0


async def test_the_floor_counts_what_is_sent_to_it(tmp_path: Path) -> None:
    async with floor(tmp_path) as way:
        sent = await send_for(way, 2, 0.05)

        received = await drain(way, 2, sent.messages)

    assert received.messages == sent.messages > 0


async def test_a_missing_message_is_noticed(autojump_clock: trio.testing.MockClock) -> None:
    sieve = Sieve()

    @asynccontextmanager
    async def open_client() -> AsyncIterator[Sieve]:
        yield sieve

    way = Way(name="sieve", open_client=open_client, most=100)
    sent = await send_for(way, 4, math.inf)

    with pytest.raises(MessagesMissing, match="100 acknowledged, 67 received"):
        await drain(way, 4, sent.messages)


def test_several_measurements_count_by_their_time() -> None:
    short = Measured(messages=100, seconds=1.0, busy=0.9)
    long = Measured(messages=200, seconds=3.0, busy=0.5)

    whole = total([short, long])

    assert whole == Measured(messages=300, seconds=4.0, busy=pytest.approx(0.6))
    assert whole.rate == 75
