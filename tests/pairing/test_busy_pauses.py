import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy
from gateway.domain.events.gateway import BusyPause
from gateway.pairing.busy_pauses import BusyPauses
from tests.harness.retained import entries
from tests.pairing.harness import BILLS, ORDERS, virtual_time

pytestmark = virtual_time


@pytest.fixture
def pauses(events):
    return BusyPauses(least=10.0, rng=random.Random(1), observer=events)


async def waits_of(senders, pauses):
    """Return the seconds that each of a number of senders waits now."""
    started, waits = trio.current_time(), []

    async def wait():
        await pauses.wait(ORDERS, started + 1000.0)
        waits.append(trio.current_time() - started)

    async with trio.open_nursery() as nursery:
        for _ in range(senders):
            nursery.start_soon(wait)
    return waits


async def test_all_senders_to_the_entity_wait_and_not_all_go_at_once(pauses):
    pauses.begin(ORDERS, Busy(retry_after=1.0))

    waits = await waits_of(20, pauses)

    assert min(waits) >= 10.0
    assert max(waits) <= 12.0
    assert len(set(waits)) == 20


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

    pauses.clear(ORDERS)

    assert pauses.left(ORDERS) == pytest.approx(10.0)


async def test_the_time_of_being_busy_begins_with_the_first_answer_without_a_success(pauses):
    pauses.begin(ORDERS, Busy())
    await trio.sleep(11.0)
    second = pauses.begin(ORDERS, Busy())
    pauses.clear(ORDERS)
    await trio.sleep(11.0)

    third = pauses.begin(ORDERS, Busy())

    assert second == pytest.approx(11.0)
    assert third == pytest.approx(11.0)


async def test_a_success_after_the_pause_forgets_it(pauses):
    pauses.begin(ORDERS, Busy())
    await trio.sleep(11.0)

    pauses.clear(ORDERS)

    assert pauses.begin(ORDERS, Busy()) == 0.0


async def test_pauses_of_long_ago_take_no_memory(pauses):
    pauses.begin(ORDERS, Busy())
    one = entries(pauses)
    for number in range(100):
        pauses.begin(EntityPath(f"entity-{number}"), Busy())
    await trio.sleep(25.0)
    await wait_all_tasks_blocked()

    pauses.begin(ORDERS, Busy())

    assert entries(pauses) == one


async def test_a_sender_waits_at_most_a_fifth_longer_than_the_pause(pauses):
    pauses.begin(ORDERS, Busy(retry_after=100.0))

    waits = await waits_of(50, pauses)

    assert 100.0 <= min(waits) < 105.0
    assert 115.0 < max(waits) <= 120.0


async def test_the_answer_of_a_busy_entity_names_it_and_the_seconds(pauses):
    pauses.begin(ORDERS, Busy(retry_after=30.0))

    with pytest.raises(Busy, match=r"^orders is busy for another 30 s$"):
        await pauses.wait(ORDERS, trio.current_time() + 25.0)


async def test_without_a_pause_nobody_waits(pauses):
    started = trio.current_time()

    await pauses.wait(ORDERS, started - 1.0)

    assert trio.current_time() == started
    assert pauses.left(ORDERS) == 0.0


async def test_a_pause_that_is_over_leaves_nothing_to_wait_for(pauses):
    pauses.begin(ORDERS, Busy())
    await trio.sleep(15.0)

    assert pauses.left(ORDERS) == 0.0


async def test_only_pauses_that_run_are_counted(pauses):
    pauses.begin(ORDERS, Busy())
    await trio.sleep(5.0)
    pauses.begin(BILLS, Busy())
    both = pauses.running
    await trio.sleep(5.0)
    one = pauses.running
    await trio.sleep(5.0)

    assert [both, one, pauses.running] == [2, 1, 0]


async def test_a_pause_is_told_again_only_when_it_gets_longer(pauses, events):
    pauses.begin(ORDERS, Busy())
    pauses.begin(ORDERS, Busy())
    await trio.sleep(1.0)

    pauses.begin(ORDERS, Busy())

    assert events.all == [BusyPause(entity=ORDERS, seconds=10.0)] * 2


async def test_a_row_is_kept_for_as_long_again_as_the_least_pause(pauses):
    pauses.begin(ORDERS, Busy(retry_after=30.0))
    await trio.sleep(39.0)
    in_the_row = pauses.begin(ORDERS, Busy())
    await trio.sleep(21.0)

    assert in_the_row == pytest.approx(39.0)
    assert pauses.begin(ORDERS, Busy()) == 0.0


async def test_a_success_during_the_pause_begins_another_row(pauses):
    pauses.begin(ORDERS, Busy())
    await trio.sleep(4.0)
    pauses.clear(ORDERS)
    left = pauses.left(ORDERS)
    await trio.sleep(3.0)

    assert left == pytest.approx(6.0)
    assert pauses.begin(ORDERS, Busy()) == pytest.approx(3.0)


@pytest.mark.parametrize("seconds", [10.0, 11.0])
async def test_after_a_success_that_ends_the_pause_another_row_begins(pauses, seconds):
    pauses.begin(ORDERS, Busy())
    await trio.sleep(seconds)
    pauses.clear(ORDERS)
    await trio.sleep(5.0)

    assert pauses.begin(ORDERS, Busy()) == 0.0


async def test_also_the_last_half_second_of_a_pause_is_waited_for(pauses):
    started = trio.current_time()
    pauses.begin(ORDERS, Busy())
    await trio.sleep(9.5)

    await pauses.wait(ORDERS, started + 60.0)

    assert trio.current_time() - started >= 10.0


async def test_a_success_of_an_entity_without_a_pause_changes_nothing(pauses):
    pauses.begin(BILLS, Busy())

    pauses.clear(ORDERS)

    assert pauses.left(BILLS) == pytest.approx(10.0)
    assert pauses.running == 1


async def busy_in_a_row(pauses: BusyPauses, answers: int) -> list[float]:
    """The pauses after busy answers of a namespace that names no time, each to a new send."""
    found = []
    for _ in range(answers):
        pauses.begin(ORDERS, Busy(retry_after=1.0, backs_off=True))
        found.append(pauses.left(ORDERS))
        await trio.sleep(found[-1])
    return found


async def test_pauses_of_a_namespace_that_names_no_time_double_up_to_a_limit(pauses):
    for found, usual in zip(
        await busy_in_a_row(pauses, 8), (1, 2, 4, 8, 16, 30, 30, 30), strict=True
    ):
        assert max(1.0, usual * 0.8) <= found <= usual * 1.2


async def test_an_accepted_send_makes_the_next_such_pause_short_again(pauses):
    assert (await busy_in_a_row(pauses, 5))[-1] >= 12.0
    pauses.clear(ORDERS)

    assert (await busy_in_a_row(pauses, 1))[0] <= 1.2


async def test_an_accepted_send_during_such_a_pause_makes_the_next_one_short_too(pauses):
    await busy_in_a_row(pauses, 4)
    pauses.begin(ORDERS, Busy(backs_off=True))
    pauses.clear(ORDERS)
    await trio.sleep(20.0)

    assert (await busy_in_a_row(pauses, 1))[0] <= 1.2


async def test_an_answer_during_such_a_pause_tells_how_long_the_entity_has_been_busy(pauses):
    pauses.begin(ORDERS, Busy(retry_after=10.0, backs_off=True))
    await trio.sleep(3.0)

    assert pauses.begin(ORDERS, Busy(backs_off=True)) == pytest.approx(3.0)


async def test_sends_that_are_answered_together_make_one_such_pause(pauses):
    for _ in range(50):
        pauses.begin(ORDERS, Busy(retry_after=1.0, backs_off=True))

    assert pauses.left(ORDERS) <= 1.2


async def test_an_entity_is_busy_for_as_long_as_nothing_is_accepted(pauses):
    for text in ("busy", "busy", "slow down"):
        pauses.begin(ORDERS, Busy(text))
        await trio.sleep(15.0)
    [(entity, seconds, error)] = pauses.lasting()

    assert (entity, seconds, str(error)) == (ORDERS, 45.0, "slow down")
    await trio.sleep(20.0)
    assert list(pauses.lasting()) == []
    pauses.begin(ORDERS, Busy("again"))
    await trio.sleep(5.0)
    pauses.clear(ORDERS)
    assert [seconds for _, seconds, _ in pauses.lasting()] == [0.0]


async def test_such_pauses_are_of_a_second_to_half_a_minute(pauses):
    assert pauses.backoff == Backoff(first=1.0, cap=30.0)
