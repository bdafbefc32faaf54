"""Tasks that wait for messages of a queue are woken, one for each message."""

import trio
from trio.testing import wait_all_tasks_blocked

from gateway.store.engine.records import State
from gateway.store.local.notifier import Notifier

ACTIVE = State.ACTIVE


class Site:
    """Tasks that look for messages, of which there are `messages`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.notifier, self.messages, self.looks, self.found = Notifier(), 0, 0, 0
        self._nursery = nursery

    async def look(self) -> bool:
        await trio.lowlevel.checkpoint()
        self.looks += 1
        if not self.messages:
            return False
        self.messages -= 1
        return True

    async def begin(self) -> trio.CancelScope:
        """A task that waits; the scope ends it."""
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                assert await self.notifier.find(ACTIVE, self.look)
                self.found += 1

        self._nursery.start_soon(run)
        await wait_all_tasks_blocked()
        return scope


async def test_a_cancelled_task_without_a_notification_wakes_no_other_one() -> None:
    async with trio.open_nursery() as nursery:
        here = Site(nursery)
        scopes = [await here.begin() for _ in range(10)]
        for scope in reversed(scopes):
            scope.cancel()
            await wait_all_tasks_blocked()

    assert here.looks == 10


async def test_a_task_that_is_cancelled_with_a_notification_hands_it_on() -> None:
    async with trio.open_nursery() as nursery:
        here = Site(nursery)
        first, second = [await here.begin() for _ in range(2)]
        here.messages = 1
        here.notifier.notify(ACTIVE, 1)
        first.cancel()
        await wait_all_tasks_blocked()
        found = here.found
        second.cancel()

    assert found == 1


async def test_a_task_that_is_cancelled_while_it_looks_lets_another_one_look() -> None:
    async with trio.open_nursery() as nursery:
        here = Site(nursery)
        await here.begin()
        first = trio.CancelScope()
        asked = trio.Event()

        async def hang() -> bool:
            asked.set()
            await trio.sleep_forever()

        async def run() -> None:
            with first:
                await here.notifier.find(ACTIVE, hang)

        nursery.start_soon(run)
        await asked.wait()
        here.messages = 1
        first.cancel()
        await wait_all_tasks_blocked()
        found = here.found

    assert found == 1
