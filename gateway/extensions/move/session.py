"""A session of an entity that may be moved: it is at one side at a time."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

import attrs
import trio

from gateway.brokers.joined.sequence import inward
from gateway.brokers.joined.session import JoinedSession
from gateway.capabilities import (
    Enlists,
    EnlistsState,
    SessionReceiver,
    Sessions,
    TransactedSettlement,
    TransactedState,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, SessionLockLost
from gateway.domain.message import Delivery, ReceiveMode, Settlement
from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.sides import elsewhere
from gateway.extensions.move.stages import OLD
from gateway.offering import required
from gateway.ports import Broker

T = TypeVar("T")


@attrs.define(eq=False, kw_only=True)
class SessionSearch:
    """Waits for a session at the side that is received from, and holds it."""

    book: MoveBook
    entity: EntityPath
    _session: SessionReceiver | None = attrs.field(default=None, init=False)
    _error: BrokerError | None = attrs.field(default=None, init=False)
    _over: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def place(self) -> int:
        """The side that is received from now."""
        return self.book.receives_from(self.entity)[0]

    async def opened(self) -> SessionReceiver:
        """
        Return the session once it is locked.

        Raises:
            BrokerError: as `Sessions.open_session`.
        """
        await self._over.wait()
        if self._session is not None:
            return self._session
        assert self._error is not None, "the search is over"
        raise self._error

    async def hold(
        self, sides: Sequence[Broker], session_id: str | None, mode: ReceiveMode
    ) -> None:
        """Lock a session, and hold it until cancelled; a search follows the entity's stage."""
        while not self._over.is_set():
            place = self.place
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_when_left, place, nursery.cancel_scope)
                try:
                    sessions = required(sides[place], Sessions)
                    async with sessions.open_session(self.entity, session_id, mode) as inner:
                        self._session = MovedSession(inner=inner, place=place, moved=self)
                        self._over.set()
                        await trio.sleep_forever()
                except BrokerError as error:
                    self._error = error
                    self._over.set()
                    nursery.cancel_scope.cancel()

    async def _cancel_when_left(self, place: int, search: trio.CancelScope) -> None:
        await self.left(place)
        if self._session is None:
            search.cancel()

    async def left(self, place: int) -> None:
        """Return when another side is received from."""
        while True:
            seen = self.book.changes.version
            if self.place != place:
                return
            await self.book.changes.wait(seen)


@attrs.frozen(eq=False, kw_only=True)
class MovedSession(JoinedSession):
    """A `SessionReceiver` that is lost when the entity leaves its side."""

    moved: SessionSearch

    async def wait_lost(self) -> NoReturn:
        await self._while_here(self.inner.wait_lost)
        raise AssertionError("it waits until it raises")

    async def receive(self, limit: int) -> Sequence[Delivery]:
        async def receive() -> Sequence[Delivery]:
            return await JoinedSession.receive(self, limit)

        return await self._while_here(receive)

    def enlist(self, delivery: Delivery, settlement: Settlement) -> TransactedSettlement:
        """As `Enlists.enlist`, at the old side."""
        self._check_old()
        return required(self.inner, Enlists).enlist(inward(delivery), settlement)

    def enlist_state(self, state: bytes | None) -> TransactedState:
        """As `EnlistsState.enlist_state`, at the old side."""
        self._check_old()
        return required(self.inner, EnlistsState).enlist_state(state)

    def _check_old(self) -> None:
        if self.place != OLD:
            raise elsewhere(self.moved.entity)

    async def _while_here(self, wait: Callable[[], Awaitable[T]]) -> T:
        """
        Raises:
            SessionLockLost: the other side is received from now.
        """
        found: list[T] = []
        errors: list[BrokerError] = []

        async def run(scope: trio.CancelScope) -> None:
            try:
                found.append(await wait())
            except BrokerError as error:
                errors.append(error)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, nursery.cancel_scope)
            await self.moved.left(self.place)
            nursery.cancel_scope.cancel()
        if errors:
            raise errors[0]
        if found:
            return found[0]
        raise SessionLockLost(f"session {self.session_id}: its entity has moved; open it again")
