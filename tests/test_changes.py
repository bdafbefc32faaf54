"""A version that grows, and the tasks that wait for it."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.changes import Changes


async def test_each_change_is_the_next_version(autojump_clock):
    changes = Changes()
    versions = [changes.version]
    for _ in range(3):
        changes.notify()
        versions.append(changes.version)

    assert versions == [0, 1, 2, 3]


@pytest.mark.parametrize("seen", [-1, 0, 3])
async def test_a_caller_that_saw_another_version_doesnt_wait(seen, autojump_clock):
    changes = Changes()
    changes.notify()
    started = trio.current_time()

    assert await changes.wait(seen) == 1
    assert trio.current_time() == started


async def test_a_change_wakes_all_who_wait(nursery, autojump_clock):
    changes = Changes()
    woken = []

    async def wait():
        woken.append(await changes.wait(changes.version))

    for _ in range(3):
        nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    before = list(woken)

    changes.notify()
    await wait_all_tasks_blocked()

    assert before == []
    assert woken == [1, 1, 1]


async def test_a_waiter_that_is_woken_late_hears_of_the_last_version(nursery, autojump_clock):
    changes = Changes()
    woken = []

    async def wait():
        woken.append(await changes.wait(changes.version))

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    changes.notify()
    changes.notify()
    await wait_all_tasks_blocked()

    assert woken == [2]


async def test_waiting_ends_with_a_cancellation_also_where_there_is_a_change(autojump_clock):
    changes = Changes()
    changes.notify()

    with trio.move_on_after(0) as scope:
        await changes.wait(0)

    assert scope.cancelled_caught


async def test_the_next_change_is_one_after_the_call(autojump_clock):
    changes = Changes()
    changes.notify()
    versions = []

    async def wait() -> None:
        versions.append(await changes.wait_next())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert versions == []
        changes.notify()

    assert versions == [2]
