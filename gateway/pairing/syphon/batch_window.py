"""
Limits how many batches a drain processes concurrently.

The limit starts at 1, doubles after each batch that moved completely and at full speed, and drops
back to 1 after any other. With a limit above 1, the drain receives while earlier batches are sent.
It stands for full batches: one that is smaller, as its messages came late, leaves room for others.

While batches move completely and quickly, they become larger, too: the tasks, writes and waits of a
batch cost as much processor time as some twenty messages.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.clocks.lock_ends import USUAL_LOCK
from gateway.domain.entity import EntityPath
from gateway.domain.message import Body, DataBody, Delivery

# Measured: ten batches in flight are no faster than four, and four of 300 messages take 59 us of
# processor time for a message instead of 70 with 100 (benchmarks/results/2026-11-22-syphon.md and
# 2026-11-26-syphon.md). The limits of time and bytes keep a slow primary at 100: a killed syphon
# may duplicate all that is in flight.
MAX_BATCHES: Final = 4
# Batches for each further full one. A receive returns what has arrived, so that half of the batches
# are small: if each took the place of a full one, half of the messages would be in flight, and a
# primary that confirms after 50 ms would get 0.9 of them (benchmarks/results/2026-11-30-syphon.md).
# Without a limit a trickle of messages would be moved one by one, a send for each.
SMALLER: Final = 2
MAX_AHEAD: Final = 4 * 1024 * 1024  # bytes of bodies: with more in progress, no further batch
GROWTH: Final = 3  # times `largest`: the most deliveries of a batch while batches are quick
GROWS: Final = 100  # deliveries: a smaller `largest` was chosen by a user, and is kept
QUICK: Final = 0.5  # seconds, at most, that a quick batch takes
# From the model of a thousand gateways: all drains receive at once when the primary is back.
FIRST: Final = 10  # deliveries of a batch after a return of the primary


@attrs.define(eq=False, kw_only=True)
class ReceivedBatch:
    """Messages that were received together, until each is moved, dead-lettered or suspended."""

    deliveries: int
    weight: int  # bytes of the bodies
    began: float
    entities: Collection[EntityPath] = ()  # that its messages are for
    moved: int = 0  # completed or dead-lettered
    gently: bool = False  # in small sends, to an entity that has just returned


@attrs.define(eq=False, kw_only=True)
class BatchWindow:
    """
    The batches of one drain. `limit` is the maximum number of deliveries of the next batch: as many
    as can be moved well within a lock. `stuck` counts consecutive batches that moved nothing.
    """

    largest: int  # deliveries, unless the last batch was quick
    patience: float  # seconds after which slow batches aren't waited for
    # Lowers the deliveries of a full batch to what a limit of rate or time allows now.
    within: Callable[[int], int] = lambda deliveries: deliveries
    limit: int = attrs.field(init=False)
    stuck: int = attrs.field(default=0, init=False)
    _allowed: int = attrs.field(default=1, init=False)
    _batches: list[ReceivedBatch] = attrs.field(factory=list, init=False)
    _changes: Changes = attrs.field(factory=Changes, init=False)

    def __attrs_post_init__(self) -> None:
        self.limit = self.largest

    @property
    def most(self) -> int:
        """The most deliveries that the next batch may have now."""
        return self.within(self.limit)

    def start_again(self) -> None:
        """Begin with small batches: all drains receive at once when the primary is back."""
        self.limit = min(self.limit, FIRST)

    def begin(self, deliveries: Sequence[Delivery]) -> ReceivedBatch:
        """Add a batch of these deliveries."""
        batch = ReceivedBatch(
            deliveries=len(deliveries),
            weight=sum(_weight(each.message.body) for each in deliveries),
            began=trio.current_time(),
        )
        self._batches.append(batch)
        return batch

    def finish(self, batch: ReceivedBatch) -> None:
        """Remove the batch, and adapt the limits to its result."""
        if batch not in self._batches:
            return  # `wait_for_room` removed it already
        self._batches.remove(batch)
        self.stuck = 0 if batch.moved else self.stuck + 1
        seconds = trio.current_time() - batch.began
        slow = seconds > USUAL_LOCK / 6
        well = batch.moved == batch.deliveries and not batch.gently and not slow
        if slow:
            self.limit = max(1, min(self.limit, self.largest) // 2)
        else:
            most = self._most_like(batch) if well and seconds <= QUICK else self.largest
            self.limit = min(most, 2 * self.limit)
        self._allowed = min(MAX_BATCHES, 2 * self._allowed) if well else 1
        self._changes.notify()

    def _most_like(self, batch: ReceivedBatch) -> int:
        """The deliveries of the largest batch of such messages of which all others have room."""
        room = MAX_AHEAD // MAX_BATCHES * batch.deliveries // max(batch.weight, 1)
        return max(self.largest, min(most_of(self.largest), room))

    async def wait_for_room(self) -> None:
        """Return when another batch may begin. Batches that hang are waited for `patience`."""
        with trio.move_on_after(self.patience) as scope:
            while not self._has_room():
                await self._changes.wait_next()
        if scope.cancelled_caught:
            self.skip()

    def skip(self, hangs: Callable[[ReceivedBatch], bool] = lambda _: True) -> None:
        """Wait no more for the present batches for which `hangs` is true."""
        for batch in list(self._batches):
            if hangs(batch):
                self.finish(batch)

    async def wait_empty(self) -> None:
        """Return when no batch is in progress."""
        while self._batches:
            await self._changes.wait_next()

    def _has_room(self) -> bool:
        if not self._batches:
            return True
        further = self._allowed - 1
        if len(self._batches) > SMALLER * further:
            return False
        if sum(batch.deliveries for batch in self._batches) > further * self.most:
            return False
        return sum(batch.weight for batch in self._batches) <= MAX_AHEAD


def most_of(largest: int) -> int:
    """The most deliveries that a batch may ever have."""
    return GROWTH * largest if largest >= GROWS else largest


def _weight(body: Body) -> int:
    match body:
        case bytes():
            return len(body)
        case DataBody(parts):
            return sum(map(len, parts))
    return 0
