"""A nursery behind an object: its tasks end with the block, whose error stays as it is."""

import pytest
import trio

from gateway.brokers.task_scope import TaskScope
from gateway.domain.errors import Unavailable


async def test_tasks_are_cancelled_when_the_block_ends(autojump_clock: trio.abc.Clock) -> None:
    async with TaskScope() as tasks:
        tasks.nursery.start_soon(trio.sleep_forever)
        await trio.sleep(1.0)

    assert trio.current_time() == 1.0


async def test_tasks_have_the_grace_to_end(autojump_clock: trio.abc.Clock) -> None:
    done: list[float] = []

    async def work(seconds: float) -> None:
        await trio.sleep(seconds)
        done.append(seconds)

    async with TaskScope(grace=2.0) as tasks:
        for seconds in (1.0, 3.0):
            tasks.nursery.start_soon(work, seconds)

    assert (done, trio.current_time()) == ([1.0], 2.0)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_error_of_the_block_is_in_no_group(is_cancelled: bool) -> None:
    async def fail(around: trio.CancelScope) -> None:
        async with TaskScope() as tasks:
            tasks.nursery.start_soon(trio.sleep_forever)
            if is_cancelled:
                around.cancel()
            raise Unavailable("out")

    with trio.CancelScope() as around, pytest.raises(Unavailable, match="out"):
        await fail(around)


async def test_a_cancellation_ends_block_and_tasks(autojump_clock: trio.abc.Clock) -> None:
    with trio.move_on_after(1.0) as around:
        async with TaskScope() as tasks:
            tasks.nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    assert around.cancelled_caught


async def test_an_error_of_a_task_is_a_bug_and_leaves_in_a_group() -> None:
    async def fail() -> None:
        raise ValueError("bug")

    async def work() -> None:
        async with TaskScope() as tasks:
            tasks.nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await work()

    [bug] = caught.value.exceptions
    assert isinstance(bug, ValueError)
