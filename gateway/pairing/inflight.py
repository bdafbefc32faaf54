"""Limits the bytes of sends in progress, in total and per entity."""

from typing import Final

import attrs
import trio

from gateway.changes import Turns
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy
from gateway.fair_budget import FairBudget

# One entity may use a quarter of the limit, so that one that hangs leaves room for the others.
SHARE: Final = 4
RETRY_AFTER: Final = 1.0  # seconds, in the answer to a send that found no room


@attrs.define(eq=False)
class InFlight:
    """The bytes of sends that aren't answered yet."""

    limit: int
    _budget: FairBudget = attrs.field(init=False)
    _turns: Turns = attrs.field(factory=Turns, init=False)

    def __attrs_post_init__(self) -> None:
        self._budget = FairBudget(self.limit, self.limit // SHARE)

    @property
    def total(self) -> int:
        return self._budget.acquired

    def reserve(
        self, entity: EntityPath, size: int, deadline: float, *, in_order: bool = False
    ) -> "Reservation":
        """
        A context that reserves `size` bytes while its body runs; it waits for room until the
        deadline.

        A send that is larger than the limit goes when no other is in progress. With `in_order` the
        body runs after those of earlier such calls have begun.

        Raises:
            Busy: there was no room before the deadline.
        """
        return Reservation(self, entity, size, deadline, in_order)

    async def acquire(
        self, entity: EntityPath, size: int, deadline: float, *, in_order: bool
    ) -> None:
        """Reserve `size` bytes until `release`. Waits and raises as `reserve` does."""
        with self._turns.acquire(entity.key if in_order else None) as turn:
            if turn.before is not None:
                with trio.move_on_at(deadline):
                    await turn.come()
            is_next = turn.before is None
            has_room = is_next and await self._budget.acquire(entity.key, size, deadline)
        if not has_room:
            raise Busy(
                f"sends in progress reach max_inflight ({self.limit} bytes), or a quarter of it"
                f" for {entity} alone",
                retry_after=RETRY_AFTER,
            )

    def release(self, entity: EntityPath, size: int) -> None:
        self._budget.release(entity.key, size)


@attrs.frozen(eq=False)
class Reservation:
    """Made by `InFlight.reserve`; a generator would cost each send twice as much."""

    inflight: InFlight
    entity: EntityPath
    size: int
    deadline: float
    in_order: bool

    async def __aenter__(self) -> None:
        await self.inflight.acquire(self.entity, self.size, self.deadline, in_order=self.in_order)

    async def __aexit__(self, *_: object) -> None:
        self.inflight.release(self.entity, self.size)
