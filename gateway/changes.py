"""
Calls and tasks that wait for each other: a version counter, turns, which keep the order of calls,
and the tasks that calls start.
"""

from typing import Self

import attrs
import trio


@attrs.define(eq=False)
class Changes:
    """Counts changes. Waiters pass the last version that they saw, so that no change is missed."""

    _version: int = attrs.field(default=0, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _followers: list["Changes"] = attrs.field(factory=list, init=False)

    @property
    def version(self) -> int:
        return self._version

    def notify(self) -> None:
        """Count a change, and wake all waiters."""
        self._version += 1
        if self._waiting:  # each message comes here, mostly without a waiting task
            self._waiting.unpark_all()
        for each in self._followers:
            each.notify()

    def pass_on(self, follower: "Changes") -> None:
        """Count each change from now on in `follower`, too, which lives as long as this one."""
        self._followers.append(follower)

    async def wait(self, seen: int) -> int:
        """Return the version as soon as it differs from `seen`."""
        await trio.lowlevel.checkpoint()  # as of every wait of Trio
        while self._version == seen:
            await self._waiting.park()
        return self._version

    async def wait_next(self) -> int:
        """Return the version of the next change after this call."""
        return await self.wait(self._version)


@attrs.define(eq=False)
class QueueTurn:
    """
    A place in the order of its queue, made by `Turns.acquire`. Leaving the block ends the turn.

    A call that was cancelled while it waited doesn't let the calls behind it go before those in
    front of it.
    """

    _turns: "Turns"
    key: str | None
    before: "QueueTurn | None"  # None: no other turn must end first
    over: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def come(self) -> None:
        """Return once all earlier turns have ended; at once if they have."""
        while self.before is not None:
            if not self.before.over.is_set():
                await self.before.over.wait()
            self.before = self.before.before

    def release(self) -> None:
        """Let the next call go on. It begins after the caller's next checkpoint."""
        if not self.over.is_set():
            self.over.set()
            self._turns.forget(self)


@attrs.define(eq=False)
class Turns:
    """A queue of turns for each key."""

    _last: dict[str, QueueTurn] = attrs.field(factory=dict, init=False)

    def acquire(self, key: str | None) -> QueueTurn:
        """
        Take the next turn of the key. Without a key, the turn has no other before or behind it.
        """
        if key is None:
            return QueueTurn(self, None, None)
        turn = self._last[key] = QueueTurn(self, key, self._last.get(key))
        return turn

    def forget(self, turn: QueueTurn) -> None:
        """Forget a turn that has ended. `QueueTurn.release` calls this."""
        if turn.key is None or self._last.get(turn.key) is not turn:
            return
        before = turn.before
        while before is not None and before.over.is_set():
            before = before.before
        if before is None:
            del self._last[turn.key]
        else:  # the turn ended without having come
            self._last[turn.key] = before


@attrs.define(eq=False)
class RunsTasks:
    """A `gateway.ports.Service` that owns the tasks which other calls start in `_nursery`."""

    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)  # None: isn't running

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the tasks going until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None
