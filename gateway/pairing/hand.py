"""
How many batches one drain has in hand.

One to begin with. After each that was moved whole, at full speed, there may be twice as many, so
that the next one comes while the last is on its way to the primary; after any other it is one
again.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.domain.lock_ends import USUAL_LOCK
from gateway.domain.message import Body, DataBody, Delivery
from gateway.pairing.changes import Changes

MAX_BATCHES: Final = 4
MAX_AHEAD: Final = 4 * 1024 * 1024  # bytes of bodies in hand: with more, no further batch


@attrs.define(eq=False, kw_only=True)
class Batch:
    """What was received together, until all of it is moved, parked or rests."""

    deliveries: int
    weight: int  # bytes of the bodies
    began: float
    moved: int = 0  # away from the backlog queue
    gently: bool = False  # to an entity that has just come back


@attrs.define(eq=False, kw_only=True)
class Hand:
    """
    The batches of one drain. `limit` says how many deliveries the next may have: no more than what
    can be moved well within a lock. `stuck`: nothing of the last one that ended could be moved.
    """

    largest: int  # deliveries
    patience: float  # seconds until a further batch may be taken without waiting
    limit: int = attrs.field(init=False)
    stuck: bool = attrs.field(default=False, init=False)
    _allowed: int = attrs.field(default=1, init=False)
    _batches: list[Batch] = attrs.field(factory=list, init=False)
    _changes: Changes = attrs.field(factory=Changes, init=False)

    def __attrs_post_init__(self) -> None:
        self.limit = self.largest

    def take(self, deliveries: Sequence[Delivery]) -> Batch:
        batch = Batch(
            deliveries=len(deliveries),
            weight=sum(_weight(each.message.body) for each in deliveries),
            began=trio.current_time(),
        )
        self._batches.append(batch)
        return batch

    def end(self, batch: Batch) -> None:
        """It needn't be waited for any more."""
        if batch not in self._batches:
            return  # that was so already
        self._batches.remove(batch)
        self.stuck = not batch.moved
        slow = trio.current_time() - batch.began > USUAL_LOCK / 6
        self.limit = max(1, self.limit // 2) if slow else min(self.largest, 2 * self.limit)
        well = batch.moved == batch.deliveries and not batch.gently and not slow
        self._allowed = min(MAX_BATCHES, 2 * self._allowed) if well else 1
        self._changes.note()

    async def wait_for_room(self) -> None:
        """Return when there may be another batch; those that hang aren't waited for."""
        with trio.move_on_after(self.patience) as scope:
            while not self._has_room():
                await self._changes.wait(self._changes.version)
        if scope.cancelled_caught:
            for batch in list(self._batches):
                self.end(batch)
        await trio.lowlevel.checkpoint()

    async def wait_empty(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._batches:
            await self._changes.wait(self._changes.version)

    def _has_room(self) -> bool:
        if not self._batches:
            return True
        ahead = sum(batch.weight for batch in self._batches)
        return len(self._batches) < self._allowed and ahead <= MAX_AHEAD


def _weight(body: Body) -> int:
    match body:
        case bytes():
            return len(body)
        case DataBody(parts):
            return sum(map(len, parts))
    return 0
