"""
The two sides that an entity is received from: the primary, and its backlog queue.

The primary leads: an entity that it doesn't have, or that requires sessions, is refused whatever
the backlog has, and a queue that nobody could ask isn't called empty.
"""

import random
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar, Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NoToken, NotSupported, Unreachable
from gateway.extensions.receive_in_outage.backlog_receiver import BacklogOpening, BacklogReceiver
from gateway.extensions.receive_in_outage.events import BacklogNotReceived
from gateway.frontends.outages import PAUSE, Outages
from gateway.ports import Broker, Receiver

# The places: at 0 a sequence number stays as the primary has given it.
PRIMARY: Final = 0
BACKLOG: Final = 1
# Of a backlog queue that can't be received from though its namespace answers: it may be missing.
_AGAIN: Final = Backoff(first=0.5, cap=30.0)


@attrs.define(eq=False, kw_only=True)
class BothSides:
    """`JoinedQueues`: an entity at the primary, and its messages on the backlog."""

    leading: ClassVar[int | None] = PRIMARY
    in_order: ClassVar[bool] = False
    primary: Broker
    secondary: Broker
    entity: EntityPath
    queue: EntityPath  # of the backlog
    opening: BacklogOpening
    outages: Outages  # of the primary
    outages_of_backlog: Outages
    rng: random.Random
    changes: Changes = attrs.field(factory=Changes)  # there are none
    _told: bool = attrs.field(default=False, init=False)  # why the backlog isn't received from

    def places(self) -> Collection[int]:
        """As `JoinedQueues.places`."""
        return (PRIMARY, BACKLOG)

    def open_receiver(self, place: int) -> AbstractAsyncContextManager[Receiver]:
        """As `JoinedQueues.open_receiver`."""
        return self.primary.open_receiver(self.entity) if place == PRIMARY else self._backlog()

    @asynccontextmanager
    async def _backlog(self) -> AsyncIterator[Receiver]:
        async with self.secondary.open_receiver(self.queue) as inner:
            yield BacklogReceiver(
                inner=inner, entity=self.entity, queue=self.queue, opening=self.opening
            )

    async def wait_before_retry(self, place: int, error: BrokerError, failures: int) -> None:
        """
        As `JoinedQueues.wait_before_retry`: within a second of a namespace's return. That of the
        backlog is told if it is no outage: an operator must act.
        """
        if isinstance(error, Unreachable | NoToken) and not error.is_final:
            outages = self.outages if place == PRIMARY else self.outages_of_backlog
            await outages.wait_answer(self.entity if place == PRIMARY else self.queue)
        elif error.counts_as_outage or place == PRIMARY:
            await trio.sleep(PAUSE)
        else:
            if not self._told:
                self._told = True
                self.opening.observer.report(
                    BacklogNotReceived(entity=self.entity, queue=self.queue, reason=str(error))
                )
            await trio.sleep(_AGAIN.delay(failures, self.rng))

    def check_enlisted(self, place: int) -> None:
        """As `JoinedQueues.check_enlisted`."""
        if place != PRIMARY:
            raise NotSupported(
                f"{self.entity}: a message that was received from the backlog can't be settled in a"
                " transaction, which is the primary's alone"
            )
