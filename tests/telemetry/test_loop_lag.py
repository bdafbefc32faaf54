"""The lag of the event loop: how late it runs a due task."""

import time

import trio
import trio.testing

from gateway.telemetry.loop_lag import EVERY, LoopLag


async def test_nothing_is_told_before_it_measures() -> None:
    await trio.lowlevel.checkpoint()

    assert LoopLag().read() is None
    assert LoopLag().tasks is None


async def test_a_loop_that_keeps_up_is_never_late(autojump_clock: trio.testing.MockClock) -> None:
    lag = LoopLag()
    async with trio.open_nursery() as nursery:
        await nursery.start(lag.run)
        await trio.sleep(EVERY * 10.5)
        before = lag.tasks
        nursery.start_soon(trio.sleep_forever)
        await trio.sleep(EVERY)
        assert (before is not None, lag.tasks) == (True, (before or 0) + 1)
        nursery.cancel_scope.cancel()
    seconds = lag.read()

    assert seconds is not None
    assert (seconds.counts[0], seconds.count) == (11, 11)


async def test_a_task_that_blocks_the_loop_makes_it_late() -> None:
    lag = LoopLag()
    async with trio.open_nursery() as nursery:
        await nursery.start(lag.run)
        while (seconds := lag.read()) is None or not seconds.count:
            time.sleep(EVERY)  # noqa: ASYNC251 that is what is measured
            time.sleep(0.3)  # noqa: ASYNC251
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()

    assert seconds.total >= 0.3
