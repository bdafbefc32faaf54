"""
A session that is held at both sides: its receiver gets the messages of both.

The primary's lock is the session's: the session ends with it. If that of the backlog is lost, as in
an outage of the secondary, the session goes on at the primary.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from typing import ClassVar, Final

import attrs
import trio

from gateway.brokers.forwarding_session import ForwardingSession
from gateway.brokers.joined.receiver import JoinedReceiver
from gateway.capabilities import (
    Enlists,
    EnlistsState,
    KeepsMessages,
    ReceivesAvailable,
    ReceivesDeferred,
    SessionReceiver,
    TakesBack,
    TransactedState,
)
from gateway.changes import Changes
from gateway.domain.errors import BrokerError
from gateway.domain.message import Abandon, Delivery, Settlement
from gateway.extensions.receive_in_outage.backlog_receiver import BacklogReceiver
from gateway.extensions.receive_in_outage.sides import BACKLOG, PRIMARY, BothSides
from gateway.offering import Wrapper, required
from gateway.ports import Receiver

PATIENCE: Final = 2.0  # seconds for the secondary's part of a renewal
_AGAIN: Final = 5.0  # seconds: a lock that is lost doesn't come back


@attrs.define(eq=False, kw_only=True)
class HeldSides:
    """`JoinedQueues`: a session at the primary, and at the backlog."""

    leading: ClassVar[int | None] = PRIMARY
    in_order: ClassVar[bool] = True
    sides: BothSides
    home: SessionReceiver
    there: SessionReceiver
    changes: Changes = attrs.field(factory=Changes)  # there are none

    def places(self) -> Collection[int]:
        """As `JoinedQueues.places`."""
        return (PRIMARY, BACKLOG)

    def open_receiver(self, place: int) -> AbstractAsyncContextManager[Receiver]:
        """As `JoinedQueues.open_receiver`. The locks are their holders'."""
        return self._open(place)

    @asynccontextmanager
    async def _open(self, place: int) -> AsyncIterator[Receiver]:
        sides = self.sides
        if place == PRIMARY:
            yield self.home
        else:
            yield BacklogReceiver(
                inner=self.there, entity=sides.entity, queue=sides.queue, opening=sides.opening
            )

    async def wait_before_retry(self, place: int, error: BrokerError, failures: int) -> None:
        """As `JoinedQueues.wait_before_retry`."""
        await trio.sleep(_AGAIN)

    def check_enlisted(self, place: int) -> None:
        """As `JoinedQueues.check_enlisted`."""
        self.sides.check_enlisted(place)


@attrs.frozen(eq=False, kw_only=True)
class TwoSidedSession(ForwardingSession, Wrapper):
    """A `SessionReceiver` of both sides, by the receiver that joins them."""

    inner: JoinedReceiver
    home: SessionReceiver
    there: SessionReceiver
    forwards: ClassVar[frozenset[type]] = frozenset(
        (Enlists, KeepsMessages, ReceivesAvailable, ReceivesDeferred, TakesBack)
    )

    @property
    def session(self) -> SessionReceiver:
        return self.home

    async def renew_session(self) -> datetime:
        """As `SessionReceiver.renew_session`; a lock that is lost at the backlog is no error."""
        until = await self.home.renew_session()
        with trio.move_on_after(PATIENCE), suppress(BrokerError):
            await self.there.renew_session()
        return until

    def enlist_state(self, state: bytes | None) -> TransactedState:
        """As `EnlistsState.enlist_state`."""
        return required(self.home, EnlistsState).enlist_state(state)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        return await self.inner.receive(limit)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """As `Receiver.settle`. No kept message overtakes one that goes back."""
        await self.inner.settle(delivery, settlement)
        await self._give_back_kept([settlement])

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`, and `settle`."""
        verdicts = await self.inner.settle_many(settlements)
        await self._give_back_kept(settlement for _, settlement in settlements)
        return verdicts

    async def _give_back_kept(self, settlements: Iterable[Settlement]) -> None:
        if any(isinstance(each, Abandon) for each in settlements):
            await self.inner.give_back()

    async def renew(self, delivery: Delivery) -> datetime:
        return await self.inner.renew(delivery)
