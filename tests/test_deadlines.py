"""
`answered_within`: an answer in time, or an error that names the silent peer, and for how long.
"""

from math import inf

import pytest
import trio

from gateway.deadlines import answered_within
from gateway.domain.errors import Busy, NoAnswer, Outcome, OutcomeUnknown, Unavailable


async def test_an_answer_in_time_is_returned(autojump_clock):
    async def ask() -> str:
        with answered_within(5):
            await trio.sleep(4.9)
            return "it is done"

    assert await ask() == "it is done"


async def test_after_the_deadline_the_outcome_is_unknown(autojump_clock):
    text = r"^no answer from orders within 2\.5 s$"
    with pytest.raises(OutcomeUnknown, match=text) as caught, answered_within(2.5, "from orders"):
        await trio.sleep(60)

    assert trio.current_time() == 2.5
    assert caught.value.outcome is Outcome.UNKNOWN
    assert caught.value.__suppress_context__  # no traceback of a cancellation in the log


@pytest.mark.parametrize("kind", [Unavailable, NoAnswer])
async def test_the_caller_says_which_error_and_where(autojump_clock, kind):
    text = r"^east:5672: no answer from the namespace within 1 s$"
    with pytest.raises(kind, match=text) as caught, answered_within(1, at="east:5672", error=kind):
        await trio.sleep(60)

    assert type(caught.value) is kind


async def test_the_namespaces_own_error_passes(autojump_clock):
    with pytest.raises(Busy), answered_within(1):
        raise Busy


async def test_the_seconds_may_have_begun_before(autojump_clock):
    began = trio.current_time()
    await trio.sleep(3)

    with pytest.raises(OutcomeUnknown, match="within 5 s"), answered_within(5, since=began):
        await trio.sleep(60)
    assert trio.current_time() == 5


@pytest.mark.parametrize("seconds", [0, -1])
async def test_without_time_left_only_an_answer_at_once_counts(autojump_clock, seconds):
    with pytest.raises(OutcomeUnknown), answered_within(seconds):
        await trio.lowlevel.checkpoint()
    with answered_within(seconds):
        pass  # the body never waited, so nothing was cancelled


async def test_the_deadline_may_be_moved_from_within(autojump_clock):
    with answered_within(5) as scope:
        scope.deadline = inf
        await trio.sleep(60)

    assert trio.current_time() == 60


async def test_a_cancellation_from_outside_is_none_of_its_own(autojump_clock):
    with trio.move_on_after(1) as outside:
        with answered_within(5):
            await trio.sleep(60)

    assert outside.cancelled_caught


async def test_a_shield_keeps_a_cancellation_away_until_the_deadline(autojump_clock):
    with pytest.raises(OutcomeUnknown), trio.move_on_after(1), answered_within(5, shield=True):
        await trio.sleep(60)
    assert trio.current_time() == 5


async def test_errors_of_side_tasks_outlive_the_deadline(autojump_clock):
    """A deadline hides no error that came with it."""

    async def fails_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise Busy

    with pytest.RaisesGroup(Busy), answered_within(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails_at_the_end)
            nursery.start_soon(trio.sleep_forever)
