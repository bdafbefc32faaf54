"""A time to live runs while the gateway has the message, whichever way the message takes."""

from datetime import timedelta

import trio

from gateway.domain.message import AcceptedBy, Message
from tests.harness.faults import Hang, Operation, Refuse, busy
from tests.pairing.harness import ORDERS, QUEUE, message, send, virtual_time

pytestmark = virtual_time

SEND = Operation.SEND
HOUR = timedelta(hours=1)


async def expiry(namespace, queue=ORDERS):
    [delivery] = await namespace.deliveries(queue)
    return delivery.expires


async def test_a_message_that_waits_for_a_frozen_primary_gets_home_with_its_own_expiry(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang(), SEND, times=1)
    sent = harness.clock()

    assert await send(pair, message(time_to_live=HOUR))() is AcceptedBy.BACKLOG
    assert harness.clock() - sent == timedelta(seconds=10)
    await harness.syphon()
    await trio.sleep(5.0)

    assert await expiry(harness.primary) == sent + HOUR


async def test_a_message_that_waits_for_a_busy_primary_has_its_own_expiry(harness):
    pair = await harness.pair()
    harness.primary.fail(busy(5.0), SEND, times=1)
    sent = harness.clock()

    assert await send(pair, message(time_to_live=HOUR))() is AcceptedBy.PRIMARY

    assert harness.clock() - sent >= timedelta(seconds=10)
    assert await expiry(harness.primary) == sent + HOUR


async def test_a_message_on_the_spool_has_its_own_expiry(harness):
    pair = await harness.pair(spool=True)
    harness.primary.fail(Hang(), SEND, times=2)
    harness.secondary.fail(Refuse(), SEND)
    sent = harness.clock()

    assert await send(pair, message(time_to_live=HOUR))() is AcceptedBy.SPOOL
    await harness.syphon(source=harness.spool)
    await trio.sleep(5.0)

    assert await expiry(harness.primary) == sent + HOUR


async def test_a_primary_that_is_asked_after_all_gets_what_is_left(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang(), SEND, times=1)
    harness.secondary.fail(Refuse(), SEND)
    sent = harness.clock()

    assert await send(pair, message(time_to_live=HOUR))() is AcceptedBy.PRIMARY

    assert await expiry(harness.primary) == sent + HOUR


async def test_a_schedule_begins_to_live_when_it_is_due(harness):
    pair = await harness.pair()
    harness.primary.fail(busy(5.0), SEND, times=1)
    due = harness.after(60)

    await send(pair, message(time_to_live=HOUR, scheduled=due))()

    [delivery] = await harness.primary.deliveries()
    assert delivery.expires == due + HOUR


async def test_a_schedule_that_is_due_while_it_waits_lives_from_then_on(harness):
    pair = await harness.pair()
    harness.primary.fail(busy(5.0), SEND, times=1)
    due = harness.after(4)

    await send(pair, message(time_to_live=HOUR, scheduled=due))()

    assert await expiry(harness.primary) == due + HOUR


async def test_a_message_that_expires_while_it_waits_for_the_primary_is_accepted_and_expires_there(
    harness,
):
    pair = await harness.pair()
    harness.primary.fail(busy(5.0), SEND, times=1)

    accepted_by = await send(pair, message(time_to_live=timedelta(seconds=3)))()
    await trio.sleep(1.0)

    assert accepted_by is AcceptedBy.PRIMARY
    async with harness.primary.store.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(1.0):
            assert await receiver.receive(1) == []


async def test_a_message_that_expires_while_it_waits_is_dead_lettered_on_the_backlog(
    harness,
):
    pair = await harness.pair()
    harness.primary.fail(Hang(), SEND, times=1)

    accepted_by = await send(pair, message(time_to_live=timedelta(seconds=3)))()
    await harness.syphon()
    await trio.sleep(5.0)

    assert accepted_by is AcceptedBy.BACKLOG
    assert await harness.primary.ids() == []
    assert await harness.secondary.ids(QUEUE.dead_letter) == ["m1"]


async def test_a_message_that_was_handed_over_at_once_goes_as_it_came(harness):
    pair = await harness.pair()
    sent = Message(message_id="m1", time_to_live=timedelta(seconds=3))
    handed: list[Message] = []
    harness.primary.broker.watch = lambda call: handed.extend(call.messages)

    await send(pair, sent)()

    assert handed[0] is sent


async def test_a_message_that_lives_for_ever_waits_and_lives_for_ever(harness):
    pair = await harness.pair()
    harness.primary.fail(busy(5.0), SEND, times=1)

    await send(pair)()

    assert await expiry(harness.primary) is None
