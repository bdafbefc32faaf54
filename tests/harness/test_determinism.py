"""A run that its seed repeats, on a clock that jumps."""

import gc
import itertools
import threading

import pytest
import trio

from tests.harness.determinism import Standstill, run_seeded

pytestmark = pytest.mark.slow


def order_of_tasks(seed, rounds=1):
    order = []

    async def task(number):
        for _ in range(rounds):
            order.append(number)
            await trio.lowlevel.checkpoint()

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(task, number)

    run_seeded(main, seed=seed)
    return tuple(order)


def test_a_seed_repeats_the_order_of_tasks_and_another_has_another():
    assert order_of_tasks(7) == order_of_tasks(7)
    assert len({order_of_tasks(seed) for seed in range(20)}) > 5


def test_a_trio_of_another_thread_changes_no_order():
    alone = order_of_tasks(7, rounds=5000)
    over = threading.Event()

    async def spin():
        while not over.is_set():
            await trio.lowlevel.checkpoint()

    other = threading.Thread(target=trio.run, args=(spin,))
    other.start()
    try:
        beside = [order_of_tasks(7, rounds=5000) for _ in range(5)]
    finally:
        over.set()
        other.join()

    assert set(beside) == {alone}


def test_time_is_what_somebody_waits_for():
    moments = []

    async def sleeper(seconds):
        await trio.sleep(seconds)
        moments.append(trio.current_time())

    async def main():
        async with trio.open_nursery() as nursery:
            for seconds in (3600.0, 0.5, 7.25):
                nursery.start_soon(sleeper, seconds)

    run_seeded(main, seed=1)

    assert moments == [0.5, 7.25, 3600.0]


def test_no_time_passes_while_a_task_can_run():
    async def main():
        with trio.move_on_after(0.001) as scope:
            for _ in range(1000):
                await trio.lowlevel.checkpoint()
        return scope.cancelled_caught, trio.current_time()

    assert run_seeded(main, seed=1) == (False, 0.0)


def test_time_that_is_over_at_once_ends_what_waited():
    async def main():
        with trio.move_on_after(5.0) as scope:
            trio.lowlevel.current_clock().jump(60.0)
            await trio.sleep_forever()
        return scope.cancelled_caught, trio.current_time()

    assert run_seeded(main, seed=1) == (True, 60.0)


async def go_nowhere():
    await trio.sleep(2.5)
    while True:
        await trio.lowlevel.checkpoint()


async def hardly_move():
    for _ in itertools.count():
        await trio.sleep(1e-6)


async def hear_of_the_end(ended):
    try:
        await trio.sleep_forever()
    finally:
        ended.append(trio.current_time())


@pytest.mark.parametrize("task", [go_nowhere, hardly_move])
def test_a_run_that_stands_still_is_ended(task):
    ended = []

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear_of_the_end, ended)
            nursery.start_soon(task)

    with pytest.raises(Standstill):
        run_seeded(main, seed=1)
    assert len(ended) == 1


def test_a_busy_run_is_not_ended_while_its_time_passes():
    async def main():
        for _ in range(100):
            await trio.sleep(0.1)
        return trio.current_time()

    assert run_seeded(main, seed=1, most_rounds=12) == pytest.approx(10.0)


def test_garbage_is_collected_again_after_a_run():
    async def main():
        return gc.isenabled()

    assert not run_seeded(main, seed=1)
    assert gc.isenabled()
