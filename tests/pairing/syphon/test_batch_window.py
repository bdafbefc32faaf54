"""A drain limits the batches that it takes ahead, and waits while they are too many."""

from itertools import chain, repeat

import pytest
import trio

from gateway.domain.message import DataBody, Delivery, Message, ValueBody
from gateway.pairing.syphon.batch_window import MAX_AHEAD, QUICK, BatchWindow
from tests.pairing.harness import virtual_time

pytestmark = virtual_time

PATIENCE = 15.0


def deliveries(count=10, body=b"x"):
    return [Delivery(message=Message(body=body), sequence_number=each) for each in range(count)]


def make_window(largest=10, **options):
    return BatchWindow(largest=largest, patience=PATIENCE, **options)


async def seconds_until_room(batches):
    started = trio.current_time()
    await batches.wait_for_room()
    return trio.current_time() - started


async def batches_until_full(batches, body=b"x", counts=(10,) * 20):
    """
    Begin batches with so many deliveries until the next one has to wait; return their number.
    """
    for number, count in enumerate(counts, 1):
        batches.begin(deliveries(count, body=body))
        if await seconds_until_room(batches) > 0.0:
            return number
    raise AssertionError("room for all of them")


def go_well(batches, times):
    for _ in range(times):
        batch = batches.begin(deliveries())
        batch.moved = batch.deliveries
        batches.finish(batch)


async def test_the_first_batch_is_moved_before_another_is_taken():
    assert await batches_until_full(make_window()) == 1


async def test_each_batch_that_is_moved_whole_doubles_what_is_taken_ahead():
    batches = make_window()
    go_well(batches, 1)

    assert await batches_until_full(batches) == 2


async def test_no_more_than_so_many_are_taken_ahead():
    batches = make_window()
    go_well(batches, 10)

    assert await batches_until_full(batches) == 4


@pytest.mark.parametrize(
    ("counts", "taken"),
    [
        ([10, 5, 5, 10], 5),  # 30 are in progress, so that a full one has room
        ([10, 5, 6, 10], 4),  # 31 are
        ([4, 10, 10, 6], 5),
        ([1] * 6, 7),  # small ones are limited, too
        ([1] * 5, 7),
    ],
)
async def test_small_batches_leave_the_room_of_full_ones(counts, taken):
    batches = make_window()
    go_well(batches, 10)

    assert await batches_until_full(batches, counts=chain(counts, repeat(10))) == taken


@pytest.mark.parametrize("count", range(1, 11))
async def test_no_more_messages_are_taken_than_four_full_batches_have(count):
    batches = make_window()
    go_well(batches, 10)

    assert count * await batches_until_full(batches, counts=repeat(count)) <= 40


async def test_a_small_batch_is_alone_too_while_one_is_taken_at_a_time():
    assert await batches_until_full(make_window(), counts=repeat(1)) == 1


async def test_a_full_batch_is_what_it_may_have_now():
    batches = make_window(within=lambda most: min(most, 2))
    go_well(batches, 10)

    assert batches.most == 2
    assert await batches_until_full(batches, counts=repeat(2)) == 4


@pytest.mark.parametrize(
    "trouble", [{"moved": 9}, {"moved": 10, "gently": True}, {"moved": 10, "began": -11.0}]
)
async def test_trouble_slowness_and_a_gentle_start_end_that(trouble):
    batches = make_window()
    go_well(batches, 10)
    batch = batches.begin(deliveries())
    began = batch.began + trouble.pop("began", 0.0)
    for name, value in {**trouble, "began": began}.items():
        setattr(batch, name, value)

    batches.finish(batch)

    assert await batches_until_full(batches) == 1


@pytest.mark.parametrize("kind", [bytes, lambda body: DataBody((body,))])
async def test_large_messages_arent_taken_ahead(kind):
    batches = make_window()
    go_well(batches, 10)

    assert await batches_until_full(batches, body=kind(bytes(MAX_AHEAD // 9))) == 1


@pytest.mark.parametrize(("more", "room"), [(0, True), (1, False)])
@pytest.mark.parametrize("body", [bytes, lambda size: DataBody((b"x", bytes(size - 1)))])
async def test_four_mebibytes_may_be_ahead_and_no_more(body, more, room):
    batches = make_window()
    go_well(batches, 10)
    batches.begin(deliveries(1, body=body(4 * 1024 * 1024 - 1)))
    batches.begin(deliveries(1 + more))

    assert (await seconds_until_room(batches) == 0.0) is room


async def test_a_body_that_isnt_bytes_counts_nothing():
    batches = make_window()
    go_well(batches, 10)
    batches.begin(deliveries(1, body=bytes(4 * 1024 * 1024)))
    batches.begin(deliveries(1, body=ValueBody("x" * 1024)))

    assert await seconds_until_room(batches) == 0.0


async def test_each_of_two_batches_that_hang_makes_the_next_smaller():
    batches = make_window(largest=20)
    go_well(batches, 1)
    batches.begin(deliveries(20))
    batches.begin(deliveries(20))

    await batches.wait_for_room()

    assert batches.limit == 5
    assert await seconds_until_room(batches) == 0.0


async def test_a_task_that_waits_for_room_goes_on_as_soon_as_there_is_some(nursery):
    batches = make_window()
    batch = batches.begin(deliveries())

    async def end_later():
        await trio.sleep(3.0)
        batches.finish(batch)

    nursery.start_soon(end_later)

    assert await seconds_until_room(batches) == 3.0


async def test_a_batch_that_hangs_isnt_waited_for_any_longer():
    batches = make_window()
    batch = batches.begin(deliveries())

    assert await seconds_until_room(batches) == PATIENCE
    assert batches.limit == 5  # as after any that was slow
    batches.finish(batch)  # too late to count
    assert batches.limit == 5


@pytest.mark.parametrize(("seconds", "limit"), [(9.9, 10), (10.1, 5)])
async def test_slow_is_what_takes_more_than_a_sixth_of_a_lock(seconds, limit):
    batches = make_window()
    batch = batches.begin(deliveries())
    await trio.sleep(seconds)

    batches.finish(batch)

    assert batches.limit == limit


async def test_slow_batches_get_smaller_down_to_one_and_quick_ones_larger_again():
    batches = make_window(largest=20)
    limits = []
    for seconds in (11.0,) * 5 + (0.0,) * 6:
        batch = batches.begin(deliveries())
        await trio.sleep(seconds)
        batches.finish(batch)
        limits.append(batches.limit)

    assert limits == [10, 5, 2, 1, 1, 2, 4, 8, 16, 20, 20]


async def test_quick_batches_that_are_moved_whole_get_larger_than_usual_up_to_a_bound():
    batches = make_window(largest=100)
    limits = []
    for _ in range(4):
        go_well(batches, 1)
        limits.append(batches.limit)

    assert limits == [200, 300, 300, 300]


@pytest.mark.parametrize(
    ("moved", "gently", "seconds", "limit"),
    [
        (10, False, QUICK, 300),
        (10, False, QUICK + 0.1, 100),
        (9, False, 0.0, 100),
        (10, True, 0.0, 100),
        (10, False, 11.0, 50),
    ],
)
async def test_after_any_other_batch_the_next_is_as_usual_again(moved, gently, seconds, limit):
    batches = make_window(largest=100)
    go_well(batches, 2)
    batch = batches.begin(deliveries())
    batch.moved, batch.gently = moved, gently
    await trio.sleep(seconds)

    batches.finish(batch)

    assert batches.limit == limit


@pytest.mark.parametrize(("at_once", "limit"), [(290, 290), (310, 300), (90, 100)])
async def test_batches_get_no_larger_than_four_of_them_have_room(at_once, limit):
    batches = make_window(largest=100)
    for _ in range(4):
        batch = batches.begin(deliveries(body=bytes(MAX_AHEAD // 4 // at_once)))
        batch.moved = batch.deliveries
        batches.finish(batch)

    assert batches.limit == limit


async def test_batches_that_a_user_wants_small_stay_so():
    batches = make_window(largest=99)
    go_well(batches, 4)

    assert batches.limit == 99


async def test_a_window_counts_consecutive_batches_that_moved_nothing():
    batches = make_window()
    found = [batches.stuck]
    for moved in (0, 0, 1, 0):
        batch = batches.begin(deliveries())
        batch.moved += moved
        batches.finish(batch)
        found.append(batches.stuck)

    assert found == [0, 1, 2, 0, 1]


async def test_a_window_is_empty_when_its_last_batch_has_ended(nursery):
    batches = make_window()
    batch = batches.begin(deliveries())

    async def end_later():
        await trio.sleep(3.0)
        batches.finish(batch)

    nursery.start_soon(end_later)
    started = trio.current_time()
    await batches.wait_empty()

    assert trio.current_time() - started == 3.0


@pytest.mark.parametrize(("largest", "limit"), [(100, 10), (4, 4)])
async def test_after_a_return_a_batch_has_ten_messages_at_most(largest, limit):
    batches = make_window(largest)
    batches.start_again()

    assert batches.limit == limit


@pytest.mark.parametrize(("seconds", "limit"), [(10.0, 10), (10.1, 5)])
async def test_a_batch_that_takes_more_than_a_sixth_of_a_lock_halves_the_next_ones(seconds, limit):
    batches = make_window(10)
    batch = batches.begin(deliveries())
    await trio.sleep(seconds)
    batches.finish(batch)

    assert batches.limit == limit


async def test_a_quick_batch_takes_half_a_second_at_most():
    assert QUICK == 0.5
