"""The rate limit of a syphon, and how long its messages have waited."""

import pytest
import trio

from gateway.pairing.syphon.backlog_message import Progress
from tests.pairing.harness import Timed, virtual_time


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
