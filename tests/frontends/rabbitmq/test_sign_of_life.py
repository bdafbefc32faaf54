"""The pair is told of a broker that greets nobody: its own states show the consequences."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import memory_stream_pair

from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.frontends.rabbitmq.sign_of_life import SignOfLife
from gateway.pairing.pair import Pair
from tests.frontends.rabbitmq.peers import SLOW
from tests.harness.faults import Hang
from tests.pairing.harness import BILLS, ORDERS, Harness, Timed, send


async def dial_silence() -> trio.abc.Stream:
    """Dial a broker that is frozen."""
    await trio.lowlevel.checkpoint()
    ours, _ = memory_stream_pair()
    return ours


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[Harness, Pair]]:
    """A pair that has just been told of a broker without a sign of life."""
    async with trio.open_nursery() as nursery:
        harness = Harness(nursery=nursery)
        await harness.open()
        pair = await harness.pair()
        await send(pair)()
        await trio.sleep(SLOW / 2)  # without a word
        assert not await SignOfLife(dial_silence, pair.states, SLOW / 2).is_given()
        yield harness, pair
        nursery.cancel_scope.cancel()


async def test_sends_after_it_wait_a_moment_for_a_broker_that_is_frozen(autojump_clock):
    async with silent() as (harness, pair):
        harness.primary.fail(Hang())

        for entity in (ORDERS, BILLS):
            with Timed() as timed:
                assert await send(pair, entity=entity)() is AcceptedBy.BACKLOG
            assert timed.seconds == pytest.approx(pair.broker.options.suspect_wait)


async def test_sends_after_a_false_alarm_go_to_the_primary(autojump_clock):
    async with silent() as (_, pair):
        for _ in range(3):
            with Timed() as timed:
                assert await send(pair)() is AcceptedBy.PRIMARY
            assert timed.seconds == 0.0

        await trio.sleep(2 * pair.broker.options.failover_interval)
        assert pair.states.state_of(ORDERS) is State.PRIMARY
        assert pair.states.troubled() == []
