"""The rate limit of a syphon, and what it knows of its messages and their queue."""

from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain.envelope import Unwrapped
from gateway.domain.message import Delivery
from gateway.pairing.syphon.backlog_message import BacklogMessage, BacklogQueueInfo, Progress
from tests.harness.clocks import START
from tests.pairing.harness import ORDERS, QUEUE, Timed, message, virtual_time

HOUR = timedelta(hours=1)
UNWRAPPED = Unwrapped(
    entity=ORDERS,
    message=message("m1"),
    time_to_live=None,
    expires=None,
    attempt="a1",
    origin="gateway-1",
)


def received(unwrapped: Unwrapped = UNWRAPPED, now: float = 0.0, **dates: object) -> BacklogMessage:
    delivery = Delivery(message=message("m1"), sequence_number=5, **dates)  # type: ignore[arg-type]
    return BacklogMessage.of(QUEUE, delivery, unwrapped, now)


@pytest.mark.parametrize(("attempt", "identity"), [("a1", "a1"), ("", "m1")])
def test_a_copy_is_known_by_its_attempt_or_else_by_the_id_of_its_message(attempt, identity):
    assert received(attrs.evolve(UNWRAPPED, attempt=attempt)).copy == (QUEUE.key, 5, identity)


@pytest.mark.parametrize(
    ("dates", "can_expire"),
    [
        ({}, False),
        ({"time_to_live": HOUR}, True),
        ({"expires": START}, True),
        ({"time_to_live": HOUR, "expires": START}, True),
    ],
)
def test_a_message_with_a_time_to_live_or_a_date_can_expire(dates, can_expire):
    assert received(attrs.evolve(UNWRAPPED, **dates)).can_expire is can_expire


@virtual_time
async def test_a_stay_on_the_backlog_goes_on_after_the_receipt():
    one = received(now=trio.current_time(), enqueued=START, received=START + HOUR)
    await trio.sleep(5.0)

    assert one.stay is not None
    assert (one.stay.enqueued, one.stay.lasted) == (START, HOUR + timedelta(seconds=5))
    assert received().stay is None


@pytest.mark.parametrize(
    ("reported", "shortest", "longest"), [(None, 15.0, 60.0), (timedelta(seconds=30), 30.0, 30.0)]
)
def test_a_lock_of_unknown_duration_lasts_a_quarter_of_a_minute_to_a_minute(
    reported, shortest, longest
):
    info = BacklogQueueInfo(lock_duration=reported)

    assert (info.shortest_lock, info.longest_lock) == (shortest, longest)


@pytest.mark.parametrize(
    ("rate", "messages", "within"),
    [(None, 100, 100), (10.0, 100, 10), (10.0, 5, 5), (0.1, 100, 1)],
)
def test_a_batch_has_no_more_messages_than_the_rate_allows_in_a_second(rate, messages, within):
    assert Progress(rate=rate, began=0.0).within_rate(messages) == within


@pytest.mark.parametrize(
    ("rate", "batches", "within"),
    [(None, 1, 100), (2.0, 0, 20), (2.0, 1, 20), (2.0, 4, 5), (20.0, 1, 100), (0.01, 1, 1)],
)
def test_a_batch_has_its_share_of_what_the_rate_moves_in_a_third_of_a_lock(rate, batches, within):
    progress = Progress(rate=rate, began=0.0, batches=batches)

    assert progress.within_lock(100, lock=30.0) == within


def test_no_batch_is_in_progress_at_first():
    assert Progress(rate=None, began=0.0).batches == 0


@virtual_time
async def test_a_syphon_has_received_once_it_got_messages_since_they_wait():
    progress = Progress(rate=None)
    progress.record_waiting()
    found = [progress.has_received]
    progress.record_received()
    found.append(progress.has_received)
    await trio.sleep(1.0)
    progress.record_move()
    await trio.sleep(1.0)
    progress.record_waiting()
    found.append(progress.has_received)

    assert found == [False, True, False]


@virtual_time
async def test_messages_that_went_make_the_next_ones_wait_for_their_time():
    progress = Progress(rate=2.0)
    progress.spend(4)
    progress.spend(2)

    with Timed() as timed:
        await progress.wait_for_rate_limit()

    assert timed.seconds == pytest.approx(3.0)


@virtual_time
async def test_a_rate_that_wasnt_used_isnt_saved_up():
    progress = Progress(rate=2.0)
    progress.spend(1)
    await trio.sleep(100.0)
    progress.spend(4)

    with Timed() as timed:
        await progress.wait_for_rate_limit()

    assert timed.seconds == pytest.approx(2.0)


@virtual_time
async def test_without_a_largest_rate_nothing_waits():
    progress = Progress(rate=None)
    progress.spend(1_000_000)

    with Timed() as timed:
        await progress.wait_for_rate_limit()

    assert timed.seconds == 0.0


@virtual_time
async def test_a_waiting_message_has_waited_since_the_first_look_after_the_last_move():
    progress = Progress(rate=None)
    await trio.sleep(5.0)
    first = progress.record_waiting()
    await trio.sleep(5.0)
    second = progress.record_waiting()
    progress.record_move()
    await trio.sleep(5.0)
    after_a_move = progress.record_waiting()

    assert (first, second, after_a_move) == (0.0, 5.0, 0.0)
