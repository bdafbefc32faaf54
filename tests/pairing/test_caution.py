"""How a syphon begins with what may have killed the one before it."""

import random
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.envelope import Unwrapped
from gateway.domain.events import Syphoned
from gateway.domain.message import Abandon, Delivery
from gateway.pairing.caution import Caution
from gateway.pairing.transfer import Cargo
from tests.pairing.lab import BILLS, ORDERS, QUEUE, message, virtual_time

pytestmark = virtual_time

IDS = [str(number) for number in range(8)]


async def divert_and_try(lab, *ids, entity=ORDERS, times=1):
    """Put messages on the backlog that were taken and given back that many times."""
    await lab.divert(*map(message, ids), entity=entity)
    async with lab.secondary.store.open_receiver(QUEUE) as receiver:
        for _ in range(times):
            for delivery in await receiver.receive(len(ids)):
                await receiver.settle(delivery, Abandon())


def sizes(lab):
    return [event.messages for event in lab.events.of(Syphoned)]


async def test_what_was_delivered_before_waits_while_all_else_is_moved(lab):
    await divert_and_try(lab, "old")
    await lab.divert(message("new"))
    await lab.divert(message("bill"), entity=BILLS)
    await lab.syphon()

    await trio.sleep(0.39)
    meanwhile = await lab.primary.ids() + await lab.primary.ids(BILLS)
    await trio.sleep(0.22)

    assert meanwhile == ["new", "bill"]
    assert await lab.primary.ids() == ["new", "old"]


@pytest.mark.parametrize(("times", "seconds"), [(1, 0.5), (2, 1.0), (3, 2.0), (9, 20.0)])
async def test_the_oftener_it_was_delivered_the_longer_it_waits(lab, times, seconds):
    await divert_and_try(lab, "old", times=times)
    await lab.syphon()

    await trio.sleep(0.79 * seconds)
    meanwhile = await lab.primary.ids()
    await trio.sleep(0.42 * seconds)

    assert meanwhile == []
    assert await lab.primary.ids() == ["old"]


async def test_it_stays_locked_while_it_waits(lab):
    short = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=timedelta(seconds=5))
    await lab.secondary.store.update_queue(QUEUE, short)
    await divert_and_try(lab, "old", times=9)
    await lab.syphon()

    await trio.sleep(1.0)
    async with lab.secondary.store.open_receiver(QUEUE) as other:
        with trio.move_on_after(14.0):
            pytest.fail(f"it was free: {await other.receive(1)}")
    await trio.sleep(10.0)

    assert await lab.primary.ids() == ["old"]


async def test_then_it_goes_gently(lab):
    await divert_and_try(lab, *IDS)
    await lab.syphon()

    await trio.sleep(1.0)

    assert sizes(lab) == [1, 2, 4, 1]
    assert sorted(await lab.primary.ids()) == IDS


async def test_the_longest_wait_is_twenty_seconds_give_or_take_a_fifth():
    began, cargo = trio.current_time(), [taken("old", times=99)]

    moments = [Caution(began=began, rng=random.Random(seed)).split(cargo)[2] for seed in range(200)]

    assert 16.0 <= min(moments) - began < 17.0
    assert 23.0 < max(moments) - began <= 24.0


async def test_after_its_first_seconds_a_syphon_is_not_wary_any_more():
    caution = Caution(began=trio.current_time(), rng=random.Random(1))
    cargo = [taken(name, times=9) for name in IDS]

    early = caution.split(cargo)
    await trio.sleep(24.0)
    late = caution.split(cargo)

    assert (early[0], len(early[1])) == ([], len(IDS))
    assert (late[0], len(late[1])) == (cargo, 0)
    assert late[2] < trio.current_time()


async def test_what_nobody_had_before_waits_for_no_moment():
    caution = Caution(began=trio.current_time(), rng=random.Random(1))
    cargo = [taken(name, times=1) for name in IDS]

    now, suspects, moment = caution.split(cargo)

    assert (now, len(suspects)) == (cargo, 0)
    assert moment < trio.current_time()


async def test_what_waits_goes_in_another_order_each_time():
    cargo = [taken(name, times=2) for name in IDS]
    began = trio.current_time()

    lives = [Caution(began=began, rng=random.Random(seed)).split(cargo)[1] for seed in range(40)]

    assert {one[0].copy for one in lives} == {each.copy for each in cargo}
    assert all(sorted(one.copy for one in life) == sorted(c.copy for c in cargo) for life in lives)


def taken(name, *, times):
    delivery = Delivery(message=message(name), sequence_number=1, delivery_count=times)
    unwrapped = Unwrapped(
        entity=ORDERS,
        message=message(name),
        time_to_live=None,
        expires=None,
        attempt="1",
        origin="gateway",
    )
    return Cargo(copy=(QUEUE.key, 1, name), delivery=delivery, unwrapped=unwrapped)
