"""The number of requests that may be in flight follows from the answers to those before."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.pairing.syphon.slow_start import EACH, SLOW, SLOWER, RequestRoom, SlowStart
from tests.pairing.harness import virtual_time

pytestmark = virtual_time

QUICK = SLOW / 8


@pytest.fixture
def slow_start() -> SlowStart:
    return SlowStart(first=4, least=2, most=16)


async def answer(slow_start: SlowStart, requests: int, seconds: float = QUICK) -> None:
    """So many requests at once, each answered after so many seconds."""

    async def one() -> None:
        async with slow_start.room():
            began = trio.current_time()
            await trio.sleep(seconds)
            slow_start.answered(began)

    async with trio.open_nursery() as nursery:
        for _ in range(requests):
            nursery.start_soon(one)


async def test_the_limit_grows_while_more_than_half_of_it_is_in_flight(
    slow_start: SlowStart,
) -> None:
    await answer(slow_start, 2)
    half = slow_start.limit
    await answer(slow_start, 3)

    assert (half, slow_start.limit) == (4, 5)


async def test_the_limit_has_a_bound(slow_start: SlowStart) -> None:
    for _ in range(10):
        await answer(slow_start, slow_start.limit)

    assert slow_start.limit == 16


@pytest.mark.parametrize(
    ("quickest", "messages", "expected"),
    [
        (None, 1, SLOW + EACH),
        (0.01, 100, SLOW + 100 * EACH),
        (1.0, 1, SLOWER * 1.0),
        (0.01, 1, SLOW + EACH),
    ],
)
async def test_an_answer_is_slow_by_its_messages_or_by_the_quickest_one(
    slow_start: SlowStart, quickest: float | None, messages: int, expected: float
) -> None:
    if quickest is not None:
        await answer(slow_start, 1, 2.0)
        await answer(slow_start, 1, quickest)
        await answer(slow_start, 1, 3.0)

    assert slow_start.slow_after(messages) == pytest.approx(expected)


async def test_an_answer_in_just_the_time_is_not_slow(slow_start: SlowStart) -> None:
    began = trio.current_time()
    await trio.sleep(1.0)
    slow_start.answered(began)
    await trio.sleep(SLOWER - 1.0)
    slow_start.answered(began)
    in_time = slow_start.limit
    await trio.sleep(0.1)
    slow_start.answered(began)

    assert (in_time, slow_start.limit) == (4, 2)


async def test_a_quarter_of_a_second_is_quick_and_a_thousandth_more_for_each_message(
    slow_start: SlowStart,
) -> None:
    slow_start.answered(trio.current_time())
    began = trio.current_time()
    await trio.sleep(0.2509)
    slow_start.answered(began)
    in_time = slow_start.limit
    await trio.sleep(0.0006)
    slow_start.answered(began)

    assert (in_time, slow_start.limit) == (4, 2)
    assert SLOWER == 4.0


async def test_the_limit_is_halved_once_for_all_that_were_in_flight(slow_start: SlowStart) -> None:
    for _ in range(10):
        await answer(slow_start, slow_start.limit)
    began = trio.current_time()
    await trio.sleep(1.0)
    lowered = trio.current_time()
    limits = []
    for request in (began, began, lowered):
        slow_start.lower(request)
        limits.append(slow_start.limit)
    await trio.sleep(1.0)
    slow_start.lower(lowered + 0.5)

    assert limits == [8, 8, 8]
    assert slow_start.limit == 4


async def test_the_limit_is_never_below_the_least(slow_start: SlowStart) -> None:
    for _ in range(5):
        await trio.sleep(1.0)
        slow_start.lower(trio.current_time())

    assert slow_start.limit == 2


async def test_beyond_the_limit_that_was_enough_it_grows_by_one_in_two_rounds(
    slow_start: SlowStart,
) -> None:
    for _ in range(10):
        await answer(slow_start, slow_start.limit)
    await trio.sleep(1.0)
    slow_start.lower(trio.current_time())
    limits = []
    for _ in range(3):
        await answer(slow_start, slow_start.limit)
        limits.append(slow_start.limit)

    assert limits == [8, 8, 9]


async def test_at_the_limit_that_was_enough_it_grows_slowly_already(
    slow_start: SlowStart,
) -> None:
    for _ in range(10):
        await answer(slow_start, slow_start.limit)
    await trio.sleep(1.0)
    slow_start.lower(trio.current_time())
    await answer(slow_start, 5)

    assert slow_start.limit == 8


async def test_after_a_loss_it_begins_as_at_the_start_and_slows_down_at_half(
    slow_start: SlowStart,
) -> None:
    for _ in range(10):
        await answer(slow_start, slow_start.limit)
    slow_start.start_again()
    limits = [slow_start.limit]
    for _ in range(3):
        await answer(slow_start, slow_start.limit)
        limits.append(slow_start.limit)

    assert limits[:3] == [4, 6, 8]
    assert limits[3] <= 9


async def test_a_request_that_waits_begins_when_one_ends_in_the_order_of_arrival(
    slow_start: SlowStart, nursery: trio.Nursery
) -> None:
    begun, ends = [], [trio.Event() for _ in range(8)]

    async def request(number: int) -> None:
        async with slow_start.room():
            begun.append(number)
            await ends[number].wait()

    for number in range(8):
        nursery.start_soon(request, number)
        await wait_all_tasks_blocked()
    first = list(begun)
    ends[2].set()
    await wait_all_tasks_blocked()
    second = list(begun)
    for number in (0, 1):
        ends[number].set()
        await wait_all_tasks_blocked()

    assert (first, second, begun) == ([0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6])
    nursery.cancel_scope.cancel()


async def hold_room(slow_start: SlowStart, ends: trio.Event) -> None:
    """A request that is in progress until that event."""
    async with slow_start.room():
        await ends.wait()


async def wait_for_room(slow_start: SlowStart, returned: list[bool]) -> None:
    await slow_start.wait_for_room()
    returned.append(True)


async def test_those_who_wait_for_room_return_when_no_request_waits(
    slow_start: SlowStart, nursery: trio.Nursery
) -> None:
    ends, returned = trio.Event(), list[bool]()

    for _ in range(5):
        nursery.start_soon(hold_room, slow_start, ends)
    await wait_all_tasks_blocked()
    nursery.start_soon(wait_for_room, slow_start, returned)
    await wait_all_tasks_blocked()
    before = list(returned)
    ends.set()
    await wait_all_tasks_blocked()

    assert (before, returned) == ([], [True])


async def test_a_cancelled_request_leaves_its_place_in_the_queue(
    slow_start: SlowStart, nursery: trio.Nursery
) -> None:
    ends, returned, scope = trio.Event(), list[bool](), trio.CancelScope()

    async def impatient() -> None:
        with scope:
            await hold_room(slow_start, ends)

    for _ in range(4):
        nursery.start_soon(hold_room, slow_start, ends)
    await wait_all_tasks_blocked()
    nursery.start_soon(impatient)
    await wait_all_tasks_blocked()
    nursery.start_soon(wait_for_room, slow_start, returned)
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()

    assert returned == [True]
    ends.set()


class Requests:
    """Requests that end when the test says so."""

    def __init__(self, slow_start: SlowStart, nursery: trio.Nursery) -> None:
        self.slow_start, self.nursery = slow_start, nursery
        self.rooms: list[RequestRoom] = []
        self.ends: list[trio.Event] = []

    async def begin(self, requests: int) -> int:
        """Begin so many more; return how many of all have room."""
        for _ in range(requests):
            self.nursery.start_soon(self._request)
            await wait_all_tasks_blocked()
        return len(self.rooms)

    async def end(self, number: int) -> int:
        """End that request; return how many of all have had room."""
        self.ends[number].set()
        await wait_all_tasks_blocked()
        return len(self.rooms)

    async def _request(self) -> None:
        async with self.slow_start.room() as room:
            self.rooms.append(room)
            self.ends.append(ended := trio.Event())
            await ended.wait()


@pytest.fixture
def requests(slow_start: SlowStart, nursery: trio.Nursery) -> Requests:
    return Requests(slow_start, nursery)


async def test_a_room_that_is_left_early_is_left_once(requests: Requests) -> None:
    begun = [await requests.begin(7)]
    requests.rooms[0].leave()
    await wait_all_tasks_blocked()
    begun.append(len(requests.rooms))
    begun.append(await requests.end(0))

    assert begun == [4, 5, 5]


async def test_a_room_is_left_after_its_time(
    slow_start: SlowStart, requests: Requests, nursery: trio.Nursery
) -> None:
    await requests.begin(5)
    nursery.start_soon(requests.rooms[0].leave_after, 1.0)
    begun = []
    for seconds in (0.9, 0.2):
        await trio.sleep(seconds)
        begun.append(len(requests.rooms))

    assert begun == [4, 5]


async def test_a_quick_answer_to_a_request_without_room_lets_another_begin(
    slow_start: SlowStart, requests: Requests
) -> None:
    await requests.begin(6)
    requests.rooms[0].leave()
    await wait_all_tasks_blocked()
    before = len(requests.rooms)
    slow_start.answered(trio.current_time())
    await wait_all_tasks_blocked()

    assert (before, len(requests.rooms)) == (5, 6)


async def test_all_for_whom_there_is_room_begin_together(
    slow_start: SlowStart, requests: Requests
) -> None:
    await trio.sleep(1.0)
    slow_start.lower(trio.current_time())
    before = await requests.begin(6)
    slow_start.start_again()

    assert (before, await requests.end(0)) == (2, 5)
