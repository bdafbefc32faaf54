import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy
from gateway.domain.events import BusyPause
from gateway.pairing.pauses import BusyPauses
from tests.pairing.lab import BILLS, ORDERS, virtual_time

pytestmark = virtual_time


@pytest.fixture
def pauses(events):
    return BusyPauses(least=10.0, rng=random.Random(1), observer=events)


async def test_all_senders_to_the_entity_wait_and_not_all_go_at_once(pauses):
    started = trio.current_time()
    pauses.begin(ORDERS, Busy(retry_after=1.0))
    ended = []

    async def wait():
        await pauses.wait(ORDERS, started + 60.0)
        ended.append(trio.current_time() - started)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wait)

    assert min(ended) >= 10.0
    assert max(ended) <= 12.0
    assert len(set(ended)) == 20


async def test_other_entities_dont_wait(pauses):
    pauses.begin(ORDERS, Busy())

    assert pauses.left(BILLS) == 0


async def test_a_pause_that_ends_after_the_deadline_is_busy_at_once(pauses):
    started = trio.current_time()
    pauses.begin(ORDERS, Busy(retry_after=30.0))
    await trio.sleep(10.0)

    with pytest.raises(Busy) as caught:
        await pauses.wait(ORDERS, started + 25.0)

    assert caught.value.retry_after == pytest.approx(20.0)
    assert trio.current_time() == started + 10.0


async def test_nobody_waits_longer_than_the_deadline(pauses):
    started = trio.current_time()
    pauses.begin(ORDERS, Busy())

    await pauses.wait(ORDERS, started + 10.001)

    assert trio.current_time() <= started + 10.001


async def test_busy_again_makes_the_pause_longer_for_who_waits(pauses, nursery):
    started = trio.current_time()
    pauses.begin(ORDERS, Busy())
    ended = []

    async def wait():
        await pauses.wait(ORDERS, started + 100.0)
        ended.append(trio.current_time() - started)

    nursery.start_soon(wait)
    await trio.sleep(9.0)
    pauses.begin(ORDERS, Busy(retry_after=20.0))
    await trio.sleep(50.0)

    assert ended[0] >= 29.0


async def test_a_shorter_wish_doesnt_shorten_the_pause(pauses, events):
    pauses.begin(ORDERS, Busy(retry_after=20.0))

    pauses.begin(ORDERS, Busy(retry_after=1.0))

    assert pauses.left(ORDERS) == pytest.approx(20.0)
    assert events.all == [BusyPause(entity=ORDERS, seconds=20.0)]


async def test_a_late_success_doesnt_end_the_pause(pauses):
    pauses.begin(ORDERS, Busy())

    pauses.end(ORDERS)

    assert pauses.left(ORDERS) == pytest.approx(10.0)


async def test_how_long_it_is_busy_is_counted_from_the_first_answer_without_a_success(pauses):
    pauses.begin(ORDERS, Busy())
    await trio.sleep(11.0)
    second = pauses.begin(ORDERS, Busy())
    pauses.end(ORDERS)
    await trio.sleep(11.0)

    third = pauses.begin(ORDERS, Busy())

    assert second == pytest.approx(11.0)
    assert third == pytest.approx(11.0)


async def test_a_success_after_the_pause_forgets_it(pauses):
    pauses.begin(ORDERS, Busy())
    await trio.sleep(11.0)

    pauses.end(ORDERS)

    assert pauses.begin(ORDERS, Busy()) == 0.0


async def test_pauses_of_long_ago_take_no_memory(pauses):
    for number in range(100):
        pauses.begin(EntityPath(f"entity-{number}"), Busy())
    await trio.sleep(25.0)
    await wait_all_tasks_blocked()

    pauses.begin(ORDERS, Busy())

    assert len(pauses._pauses) == 1
