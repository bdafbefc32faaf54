"""The two sides of a move as queues that are received from as one."""

import random
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NotSupported
from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.stages import OLD
from gateway.ports import Broker, Receiver

_AGAIN: Final = Backoff(first=0.5, cap=5.0)


@attrs.define(eq=False, kw_only=True)
class MovedQueue:
    """
    `JoinedQueues`: an entity at both namespaces, as far as its stage says.

    A receiver stays at a side that it was at, until it is closed: the messages that its client
    holds can be settled, and what is returned there is received again. Where order is kept it
    leaves: that side is empty then.
    """

    leading: ClassVar[int | None] = None
    in_order: ClassVar[bool] = False
    sides: Sequence[Broker]
    entity: EntityPath
    book: MoveBook
    rng: random.Random
    _served: set[int] = attrs.field(factory=set, init=False)

    @property
    def changes(self) -> Changes:
        return self.book.changes

    def places(self) -> Collection[int]:
        """As `JoinedQueues.places`."""
        now, move = self.book.receives_from(self.entity), self.book.find(self.entity)
        if move is not None and move.ordered and not self.entity.is_dead_letter:
            return now
        self._served.update(now)
        return self._served

    def open_receiver(self, place: int) -> AbstractAsyncContextManager[Receiver]:
        """As `JoinedQueues.open_receiver`."""
        return self.sides[place].open_receiver(self.entity)

    async def wait_before_retry(self, place: int, error: BrokerError, failures: int) -> None:
        """As `JoinedQueues.wait_before_retry`."""
        await trio.sleep(_AGAIN.delay(failures, self.rng))

    def check_enlisted(self, place: int) -> None:
        """As `JoinedQueues.check_enlisted`: a transaction is one of the namespace that is left."""
        if place != OLD:
            raise elsewhere(self.entity)


def elsewhere(entity: EntityPath) -> NotSupported:
    return NotSupported(
        f"{entity} is being moved: a transaction works again once [move] is removed"
    )
