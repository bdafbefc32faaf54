"""
Sessions of an entity that is received from at both sides: each has one receiver.

A receiver of a session holds its lock at each side that answers. While it does, no other receiver
gets the session at either side, even if one of the two goes away. Two receivers that find a session
at the same time see each other, and each lets go. The receiver gets the messages of both sides;
while the primary is away, those of the backlog.
"""

import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import attrs
import trio

from gateway.brokers.joined.receiver import open_joined_receiver
from gateway.brokers.joined.session import JoinedSession
from gateway.brokers.task_scope import TaskScope
from gateway.capabilities import SessionReceiver, Sessions
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, SessionNotAvailable, Unavailable
from gateway.domain.message import ReceiveMode
from gateway.extensions.receive_in_outage.backlog_session import BacklogSession
from gateway.extensions.receive_in_outage.sides import BACKLOG, PRIMARY, BothSides
from gateway.extensions.receive_in_outage.two_sided_session import HeldSides, TwoSidedSession
from gateway.offering import required
from gateway.ports import WallClock

# Seconds for the lock of a certain session. A namespace that didn't answer has less next time: in
# an outage that hangs, each session would wait for it.
PATIENCE: Final = 2.0
LITTLE_PATIENCE: Final = 0.5
# Seconds for which the primary alone looks for a session: if both sides have it, as after an
# outage, two looks at the same time would see each other.
HEAD_START: Final = 0.1
AGAIN: Final = 0.5  # seconds at most, after a session that another receiver has


@asynccontextmanager
async def open_two_sided_session(
    sides: BothSides,
    session_id: str | None,
    silent: set[int],
    *,
    clock: WallClock,
    rng: random.Random,
) -> AsyncIterator[SessionReceiver]:
    """
    As `Sessions.open_session`, at each side that answers. `silent` has the sides that
    didn't answer in time, whichever session was asked for.
    """
    async with TaskScope() as scope:
        search = _SideSearch(sides=sides, silent=silent, rng=rng, nursery=scope.nursery)
        found = await search.session(session_id)
        if found.home is None or found.there is None:
            yield _at_one_side(sides, found)
            return
        held = HeldSides(sides=sides, home=found.home, there=found.there)
        async with open_joined_receiver(
            held, sides.entity, ReceiveMode.PEEK_LOCK, clock=clock, rng=rng
        ) as joined:
            yield TwoSidedSession(inner=joined, home=found.home, there=found.there)


@attrs.frozen
class _SideLock:
    """The lock of a session, which is released when the scope is cancelled."""

    session: SessionReceiver
    scope: trio.CancelScope


@attrs.frozen(kw_only=True)
class _LockedSession:
    """A session with its locks. None: that side was away."""

    home: SessionReceiver | None
    there: SessionReceiver | None


def _at_one_side(sides: BothSides, found: _LockedSession) -> SessionReceiver:
    if found.home is not None:
        return found.home
    assert found.there is not None, "one side has the session"
    session = BacklogSession(
        inner=found.there,
        outages=sides.outages,
        entity=sides.entity,
        queue=sides.queue,
        opening=sides.opening,
    )
    return JoinedSession(inner=session, place=BACKLOG)


@attrs.define(eq=False, kw_only=True)
class _SideSearch:
    """Looks for a session that nobody serves; its locks are held by tasks of `nursery`."""

    sides: BothSides
    silent: set[int]
    rng: random.Random
    nursery: trio.Nursery
    _errors: dict[int, BrokerError] = attrs.field(factory=dict, init=False)
    _found: _LockedSession | BrokerError | None = attrs.field(default=None, init=False)
    _over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _looks: dict[int, trio.CancelScope] = attrs.field(factory=dict, init=False)

    @property
    def _entity(self) -> EntityPath:
        return self.sides.entity

    async def session(self, session_id: str | None) -> _LockedSession:
        """
        Lock that session; without an id, one that has messages, at either side.

        Raises:
            SessionNotAvailable: another receiver has that session, at either side.
            BrokerError: as `Sessions.open_session` at the primary; in an outage of it only if the
                backlog can't be asked either.
        """
        if session_id is not None:
            return await self._named(session_id)
        for place in (PRIMARY, BACKLOG):
            self._looks[place] = trio.CancelScope()
            self.nursery.start_soon(self._search_at, place)
        await self._over.wait()
        if isinstance(self._found, BrokerError):
            raise self._found
        assert self._found is not None, "the search is over"
        return self._found

    async def _named(self, session_id: str) -> _LockedSession:
        home = await self._lock(PRIMARY, session_id)
        if isinstance(home, _SideLock):
            return await self._with_other(PRIMARY, home)
        if not home.counts_as_outage:
            raise home
        there = await self._lock(BACKLOG, session_id)
        if isinstance(there, _SideLock):
            return _LockedSession(home=None, there=there.session)
        raise there if isinstance(there, SessionNotAvailable) else home

    async def _search_at(self, place: int) -> None:
        """Look at one side until a session is found, or the search is over."""
        failures = 0
        with self._looks[place]:
            if place == BACKLOG:
                await trio.sleep(HEAD_START)
            while True:
                held = await self._start(place, None)
                if isinstance(held, _SideLock):
                    failures = 0
                    self._errors.pop(place, None)
                    if await self._is_kept(place, held):
                        return
                    await trio.sleep(self.rng.uniform(AGAIN / 2, AGAIN))
                    continue
                failures += 1
                self._record(place, held)
                await self.sides.wait_before_retry(place, held, failures)

    def _record(self, place: int, error: BrokerError) -> None:
        self._errors[place] = error
        if place == PRIMARY and not error.counts_as_outage:
            self._finish(place, error)
        elif len(self._errors) == len(self._looks):
            self._finish(place, self._errors[PRIMARY])

    async def _is_kept(self, place: int, held: _SideLock) -> bool:
        """True if that session is the one that was looked for; otherwise its lock is released."""
        kept = False
        try:
            self._finish(place, await self._with_other(place, held))
            kept = True
        except SessionNotAvailable:
            pass  # another receiver has it
        except BrokerError as error:
            self._record(PRIMARY, error)
        finally:
            if not kept:
                held.scope.cancel()
        return kept

    def _finish(self, place: int, found: "_LockedSession | BrokerError") -> None:
        self._found = found
        self._over.set()
        for other, look in self._looks.items():
            if other != place:
                look.cancel()

    async def _with_other(self, place: int, held: _SideLock) -> _LockedSession:
        """
        The session with its lock at the other side, if that one answers.

        Raises:
            SessionNotAvailable: another receiver has it there.
            BrokerError: the primary has no such session.
        """
        other = await self._lock(BACKLOG if place == PRIMARY else PRIMARY, held.session.session_id)
        if isinstance(other, _SideLock):
            both = {place: held.session}
            home, there = both.get(PRIMARY, other.session), both.get(BACKLOG, other.session)
            return _LockedSession(home=home, there=there)
        if isinstance(other, SessionNotAvailable):
            raise other
        if place == PRIMARY:  # whatever is wrong with the backlog
            return _LockedSession(home=held.session, there=None)
        if not other.counts_as_outage:
            raise other
        return _LockedSession(home=None, there=held.session)

    async def _lock(self, place: int, session_id: str) -> "_SideLock | BrokerError":
        """The lock of that session, or the reason why it can't be had."""
        seconds = LITTLE_PATIENCE if place in self.silent else PATIENCE
        with trio.move_on_after(seconds):
            held = await self._start(place, session_id)
            self.silent.discard(place)
            return held
        self.silent.add(place)
        return Unavailable(f"{self._entity}: no answer about a session within {seconds:g} s")

    async def _start(self, place: int, session_id: str | None) -> "_SideLock | BrokerError":
        held: _SideLock | BrokerError = await self.nursery.start(self._hold, place, session_id)
        return held

    async def _hold(
        self,
        place: int,
        session_id: str | None,
        *,
        task_status: trio.TaskStatus["_SideLock | BrokerError"],
    ) -> None:
        """Hold the lock until its scope is cancelled. Starts once it is there, or with an error."""
        held = False
        try:
            with trio.CancelScope() as scope:
                async with self._open(place, session_id) as session:
                    held = True
                    task_status.started(_SideLock(session, scope))
                    await trio.sleep_forever()
        except BrokerError as error:
            if not held:  # a lock that can't be released ends by itself
                task_status.started(error)

    def _open(
        self, place: int, session_id: str | None
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        broker = self.sides.primary if place == PRIMARY else self.sides.secondary
        queue = self._entity if place == PRIMARY else self.sides.queue
        return required(broker, Sessions).open_session(queue, session_id)
