"""Messages that are diverted to their entity's own backlog queue, and those that go to any."""

from datetime import timedelta

import pytest
import trio

from gateway.domain.events.gateway import BacklogQueueFailed
from gateway.pairing.entity_cache import KnownEntity
from tests.extensions.receive_in_outage.stand import OWN, Stand
from tests.harness.faults import Hang, Operation
from tests.pairing.harness import BILLS, ORDERS, QUEUE, message, virtual_time

pytestmark = virtual_time


async def test_diverted_messages_of_the_entity_go_to_its_own_queue(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"))
    await stand.send(message("b"), entity=BILLS)

    assert await stand.backlog() == ["a"]
    assert await harness.secondary.ids(QUEUE) == ["b"]


async def test_a_scheduled_message_waits_on_the_usual_backlog(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    later = harness.clock() + timedelta(hours=1)
    await stand.broker.send(ORDERS, [message("later", scheduled=later)])
    await stand.broker.send(ORDERS, [message("a")])

    assert await stand.backlog() == ["a"]
    assert await harness.secondary.ids(QUEUE) == ["later"]


@pytest.mark.parametrize("requires", [None, True, False])
async def test_a_message_of_a_session_goes_to_its_own_queue_if_none_is_required(harness, requires):
    stand = await Stand.make(harness)
    stand.pair.entity_cache.store(KnownEntity(entity=ORDERS, requires_session=requires))
    stand.lose_primary()
    await stand.send(message("a", session_id="s"))

    assert await stand.backlog() == ([] if requires is not False else ["a"])


async def test_each_batch_of_a_call_has_its_queue(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    later = harness.clock() + timedelta(hours=1)
    batches = [[message("a")], [message("later", scheduled=later)], [message("b")]]

    assert await stand.pair.broker.send_many(ORDERS, batches) == [None] * 3
    assert await stand.backlog() == ["a", "b"]
    assert await harness.secondary.ids(QUEUE) == ["later"]


async def test_a_queue_that_is_missing_is_left_alone_while_it_cools_down(harness):
    stand = await Stand.make(harness, has_queue=False)
    stand.lose_primary()
    await stand.send(message("a"))
    await stand.send(message("b"))

    assert await harness.secondary.ids(QUEUE) == ["a", "b"]
    assert harness.secondary.sends(OWN) == 1
    assert [event.queue for event in harness.events.of(BacklogQueueFailed)] == [OWN]


async def test_a_queue_that_hangs_costs_a_send_one_attempt(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    harness.secondary.fail(Hang(), Operation.SEND, entity=OWN)
    began = trio.current_time()
    await stand.send(message("a"))

    assert await harness.secondary.ids(QUEUE) == ["a"]
    assert trio.current_time() - began <= 16.0


async def test_the_second_copy_of_a_hedged_send_goes_to_the_usual_backlog(harness):
    stand = await Stand.make(harness, hedge_after=0.1)
    harness.primary.fail(Hang(), Operation.SEND)
    await stand.send(message("a"))

    assert await stand.backlog() == []
    assert await harness.secondary.ids(QUEUE) == ["a"]
