import math
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy
from gateway.domain.message import AcceptedBy, Message
from gateway.pairing.inflight import InFlight
from tests.harness.faults import Hang, Operation
from tests.harness.retained import entries
from tests.pairing.harness import BILLS, ORDERS, Timed, outcome_of, send, virtual_time

pytestmark = virtual_time

SEND = Operation.SEND
NO_TRIAL = Backoff(first=1000.0, cap=1000.0)


async def test_past_the_bound_of_bytes_in_flight_a_send_waits_and_then_is_busy(harness):
    pair = await harness.pair(max_inflight=2000, send_timeout=20.0, attempt_timeout=20.0)
    harness.primary.fail(Hang(), SEND, entity=ORDERS)
    harness.secondary.fail(Hang(), SEND)
    big = Message(message_id="big", body=bytes(1800))

    with Timed() as timed:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, send(pair, big))
            await wait_all_tasks_blocked()
            error = await outcome_of(send(pair, big, entity=BILLS))
            timed.__exit__()
            nursery.cancel_scope.cancel()
            seconds = timed.seconds

    assert isinstance(error, Busy)
    assert 0 < seconds < 20.0  # before its deadline, so that the client hears it
    assert harness.primary.sends(BILLS) == 0


async def test_no_entity_holds_more_than_a_quarter_of_the_bytes(harness):
    pair = await harness.pair(max_inflight=4000)
    harness.primary.fail(Hang(), SEND, entity=ORDERS)
    half = Message(message_id="half", body=bytes(600))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(outcome_of, send(pair, half))
        await wait_all_tasks_blocked()
        waiting = harness.primary.sends()
        accepted_by = await send(pair, half, entity=BILLS)()
        nursery.cancel_scope.cancel()

    assert waiting == 1
    assert accepted_by is AcceptedBy.PRIMARY


@pytest.fixture
def inflight():
    return InFlight(1000)


async def reserve(inflight, entity, size, seconds=math.inf, deadline=math.inf):
    async with inflight.reserve(entity, size, deadline):
        await trio.sleep(seconds)


async def test_room_is_given_back_also_after_an_error(inflight):
    with pytest.raises(ValueError, match="x"):
        async with inflight.reserve(ORDERS, 400, math.inf):
            raise ValueError("x")

    assert inflight.total == 0
    assert entries(inflight) == 0


async def test_a_waiting_sender_goes_on_when_there_is_room(inflight, nursery):
    nursery.start_soon(reserve, inflight, ORDERS, 200, 5.0)
    await wait_all_tasks_blocked()
    started = trio.current_time()

    await reserve(inflight, ORDERS, 200, 0.0)

    assert trio.current_time() - started == pytest.approx(5.0)


async def test_without_room_in_time_it_is_busy(inflight, nursery):
    nursery.start_soon(reserve, inflight, ORDERS, 200)
    await wait_all_tasks_blocked()

    with pytest.raises(Busy) as caught:
        await reserve(inflight, ORDERS, 200, deadline=trio.current_time() + 3.0)

    assert caught.value.retry_after > 0
    assert inflight.total == 200
    nursery.cancel_scope.cancel()


async def test_a_message_larger_than_everything_may_go_alone(inflight):
    await reserve(inflight, ORDERS, 5000, 0.0)

    assert inflight.total == 0


async def test_a_sender_that_gives_up_waiting_holds_nothing(inflight, nursery):
    nursery.start_soon(reserve, inflight, ORDERS, 200)
    await wait_all_tasks_blocked()

    with trio.move_on_after(1.0):
        await reserve(inflight, ORDERS, 200)

    assert inflight.total == 200
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("held", "size", "fits"), [(10, 15, True), (10, 16, False)])
async def test_a_share_is_a_quarter_and_no_more(held, size, fits):
    inflight = InFlight(100)

    async with inflight.reserve(BILLS, 1, math.inf), inflight.reserve(ORDERS, held, math.inf):
        error = await outcome_of(partial(_pass_through, inflight, ORDERS, size))

    assert (error is None) is fits


@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, False)])
async def test_all_of_the_room_may_be_held_and_no_more(size, fits):
    inflight = InFlight(100)

    async with inflight.reserve(BILLS, 1, math.inf):
        error = await outcome_of(partial(_pass_through, inflight, ORDERS, size))

    assert (error is None) is fits


async def test_half_of_a_share_may_be_held_twice_and_by_each_of_four():
    inflight = InFlight(100)

    async with (
        inflight.reserve(EntityPath("a"), 25, math.inf),
        inflight.reserve(EntityPath("b"), 25, math.inf),
        inflight.reserve(EntityPath("c"), 25, math.inf),
        inflight.reserve(EntityPath("d"), 12, math.inf),
    ):
        error = await outcome_of(partial(_pass_through, inflight, EntityPath("D"), 13))
        full = await outcome_of(partial(_pass_through, inflight, EntityPath("D"), 14))

    assert error is None
    assert isinstance(full, Busy)


async def test_a_message_larger_than_a_share_goes_when_its_entity_has_nothing_else():
    inflight = InFlight(100)

    async with inflight.reserve(BILLS, 25, math.inf):
        alone = await outcome_of(partial(_pass_through, inflight, ORDERS, 75))
        async with inflight.reserve(ORDERS, 1, math.inf):
            beside = await outcome_of(partial(_pass_through, inflight, ORDERS, 26))

    assert alone is None
    assert isinstance(beside, Busy)


async def test_room_that_is_given_back_counts_for_its_own_entity(inflight, nursery):
    nursery.start_soon(reserve, inflight, BILLS, 100)
    nursery.start_soon(reserve, inflight, ORDERS, 100)
    await wait_all_tasks_blocked()

    await reserve(inflight, ORDERS, 150, 0.0)

    assert inflight.total == 200
    assert await outcome_of(partial(_pass_through, inflight, ORDERS, 151)) is not None
    nursery.cancel_scope.cancel()


async def test_a_waiting_sender_wakes_all_others_that_wait(inflight, nursery):
    """The end of the first send leaves room for both others."""
    nursery.start_soon(reserve, inflight, ORDERS, 250, 5.0)
    await wait_all_tasks_blocked()
    with Timed() as timed:
        async with trio.open_nursery() as waiting:
            waiting.start_soon(reserve, inflight, ORDERS, 120, 1.0)
            waiting.start_soon(reserve, inflight, ORDERS, 120, 1.0)

    assert timed.seconds == pytest.approx(6.0)


async def test_a_sender_that_is_too_large_waits_on_when_others_have_gone(inflight):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reserve, inflight, ORDERS, 200, 1.0)
        nursery.start_soon(reserve, inflight, BILLS, 200, 10.0)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.deadline = trio.current_time() + 60.0
        with Timed() as timed:
            await reserve(inflight, EntityPath("cards"), 900, 0.0)

    assert timed.seconds == pytest.approx(10.0)


async def test_a_sender_that_finds_no_room_may_come_again_after_a_second():
    inflight = InFlight(100)

    async with inflight.reserve(BILLS, 100, math.inf):
        error = await outcome_of(partial(_pass_through, inflight, ORDERS, 1))

    assert error.retry_after == 1.0


@pytest.mark.parametrize(
    ("order", "began"), [({"in_order": True}, ["first", "second"]), ({}, ["second", "first"])]
)
async def test_a_send_in_order_waits_until_the_one_before_it_has_begun(
    inflight, nursery, order, began
):
    found = []

    async def reserve_and_note(name, size):
        async with inflight.reserve(ORDERS, size, math.inf, **order):
            found.append(name)

    async with inflight.reserve(ORDERS, 200, math.inf):
        nursery.start_soon(reserve_and_note, "first", 200)
        await wait_all_tasks_blocked()
    await reserve_and_note("second", 50)  # there is room, and the first has not run yet
    await wait_all_tasks_blocked()

    assert found == began


async def _pass_through(inflight, entity, size):
    async with inflight.reserve(entity, size, trio.current_time() + 1.0):
        pass
