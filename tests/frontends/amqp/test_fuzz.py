"""Broken conversations: nothing crashes, grows, or disturbs others. `make fuzz` tries more."""

import random

import pytest
import trio

from gateway.domain.entity import EntityPath
from tests.frontends.amqp.fuzz import CONVERSATIONS, open_endpoint, resident, run

SEED = 4
MIB = 2**20


async def test_a_recorded_conversation_works_as_long_as_it_is_whole(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    endpoint = await open_endpoint(nursery)

    for pieces in CONVERSATIONS:
        await endpoint.say(pieces, random.Random(0))

    kept = await endpoint.broker.peek(EntityPath("peeking"), limit=10)
    assert len(kept) == 4


@pytest.mark.slow
def test_broken_conversations_harm_nobody() -> None:
    run(SEED, lambda done: done < 300)
    before = resident()

    run(SEED + 1, lambda done: done < 700)

    assert resident() - before < 8 * MIB
