"""A syphon begins gently with the messages that may have killed the syphon before."""

import random
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.envelope import Unwrapped
from gateway.domain.events.gateway import Syphoned
from gateway.domain.message import Abandon, Delivery
from gateway.pairing.syphon.backlog_message import BacklogMessage
from gateway.pairing.syphon.redelivery_guard import RedeliveryGuard
from tests.pairing.harness import BILLS, ORDERS, QUEUE, message, virtual_time

pytestmark = virtual_time

IDS = [str(number) for number in range(8)]


async def divert_and_try(harness, *ids, entity=ORDERS, times=1):
    """Put messages on the backlog that were received and released a number of times."""
    await harness.divert(*map(message, ids), entity=entity)
    async with harness.secondary.store.open_receiver(QUEUE) as receiver:
        for _ in range(times):
            for delivery in await receiver.receive(len(ids)):
                await receiver.settle(delivery, Abandon())


def sizes(harness):
    return [event.messages for event in harness.events.of(Syphoned)]


async def test_a_message_that_was_delivered_before_waits_while_all_else_is_moved(harness):
    await divert_and_try(harness, "old")
    await harness.divert(message("new"))
    await harness.divert(message("bill"), entity=BILLS)
    await harness.syphon()

    await trio.sleep(0.39)
    meanwhile = await harness.primary.ids() + await harness.primary.ids(BILLS)
    await trio.sleep(0.22)

    assert meanwhile == ["new", "bill"]
    assert await harness.primary.ids() == ["new", "old"]


@pytest.mark.parametrize(("times", "seconds"), [(1, 0.5), (2, 1.0), (3, 2.0), (9, 5.0)])
async def test_the_oftener_it_was_delivered_the_longer_it_waits(harness, times, seconds):
    await divert_and_try(harness, "old", times=times)
    await harness.syphon()

    await trio.sleep(0.79 * seconds)
    meanwhile = await harness.primary.ids()
    await trio.sleep(0.42 * seconds)

    assert meanwhile == []
    assert await harness.primary.ids() == ["old"]


async def test_a_guarded_message_stays_locked_while_it_waits(harness):
    short = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=timedelta(seconds=1))
    await harness.secondary.store.update_queue(QUEUE, short)
    await divert_and_try(harness, "old", times=9)
    await harness.syphon()

    await trio.sleep(0.5)
    async with harness.secondary.store.open_receiver(QUEUE) as other:
        with trio.move_on_after(3.0):
            pytest.fail(f"it was free: {await other.receive(1)}")
    await trio.sleep(10.0)

    assert await harness.primary.ids() == ["old"]


async def test_then_it_goes_gently(harness):
    await divert_and_try(harness, *IDS)
    await harness.syphon()

    await trio.sleep(1.0)

    assert sizes(harness) == [1, 2, 4, 1]
    assert sorted(await harness.primary.ids()) == IDS


async def test_the_longest_wait_is_five_seconds_give_or_take_a_fifth():
    began, backlog_messages = trio.current_time(), [taken("old", times=99)]

    moments = [
        RedeliveryGuard(began=began, rng=random.Random(seed)).split(backlog_messages)[2]
        for seed in range(200)
    ]

    assert 4.0 <= min(moments) - began < 4.3
    assert 5.7 < max(moments) - began <= 6.0


async def test_after_its_first_seconds_a_syphon_is_not_wary_any_more():
    redelivery_guard = RedeliveryGuard(began=trio.current_time(), rng=random.Random(1))
    backlog_messages = [taken(name, times=9) for name in IDS]

    early = redelivery_guard.split(backlog_messages)
    await trio.sleep(6.0)
    late = redelivery_guard.split(backlog_messages)

    assert (early[0], len(early[1])) == ([], len(IDS))
    assert (late[0], len(late[1])) == (backlog_messages, 0)
    assert late[2] < trio.current_time()


async def test_a_message_that_nobody_had_before_waits_for_no_moment():
    redelivery_guard = RedeliveryGuard(began=trio.current_time(), rng=random.Random(1))
    backlog_messages = [taken(name, times=1) for name in IDS]

    now, suspects, moment = redelivery_guard.split(backlog_messages)

    assert (now, len(suspects)) == (backlog_messages, 0)
    assert moment < trio.current_time()


async def test_waiting_messages_go_in_another_order_each_time():
    backlog_messages = [taken(name, times=2) for name in IDS]
    began = trio.current_time()

    lives = [
        RedeliveryGuard(began=began, rng=random.Random(seed)).split(backlog_messages)[1]
        for seed in range(40)
    ]

    assert {one[0].copy for one in lives} == {each.copy for each in backlog_messages}
    assert all(
        sorted(one.copy for one in life) == sorted(c.copy for c in backlog_messages)
        for life in lives
    )


def taken(name, *, times):
    delivery = Delivery(message=message(name), sequence_number=1, delivery_count=times)
    unwrapped = Unwrapped(
        entity=ORDERS,
        message=message(name),
        time_to_live=None,
        expires=None,
        attempt=name,
        origin="gateway",
    )
    return BacklogMessage.of(QUEUE, delivery, unwrapped, now=0.0)
