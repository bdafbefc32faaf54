from datetime import timedelta

import trio

from gateway.moments import Moments
from tests.harness.clocks import VirtualClock


async def test_both_clocks_go_on_together(autojump_clock):
    moments = Moments(VirtualClock())
    before = moments.now()
    await trio.sleep(5)
    after = moments.now()

    assert after.wall - before.wall == 5_000_000
    assert after.trusted


async def test_after_a_step_the_wall_clock_is_in_doubt_for_a_minute(autojump_clock):
    clock = VirtualClock()
    moments = Moments(clock)
    moments.now()
    clock.skew = timedelta(days=3650)
    trusted = [moments.now().trusted]
    await trio.sleep(59)
    trusted.append(moments.now().trusted)
    await trio.sleep(2)
    trusted.append(moments.now().trusted)

    assert trusted == [False, False, True]


async def test_drift_is_no_step(autojump_clock):
    clock = VirtualClock()
    moments = Moments(clock)
    for _ in range(10):
        moments.now()
        clock.skew += timedelta(seconds=1)

    assert moments.now().trusted
