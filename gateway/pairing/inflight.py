"""Limits the bytes of sends in progress, in total and per entity."""

from typing import Final

import attrs
import trio

from gateway.changes import Turn, Turns
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy

SHARE: Final = 4  # one entity may use a quarter of the limit
RETRY_AFTER: Final = 1.0


@attrs.define(eq=False)
class InFlight:
    """The bytes of sends that aren't answered yet."""

    limit: int
    _total: int = attrs.field(default=0, init=False)
    _by_entity: dict[str, int] = attrs.field(factory=dict, init=False)
    _freed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _turns: Turns = attrs.field(factory=Turns, init=False)

    @property
    def total(self) -> int:
        return self._total

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

    async def take(
        self, entity: EntityPath, size: int, deadline: float, *, in_order: bool = False
    ) -> None:
        """Reserve `size` bytes until `give_back`. Waits and raises as `reserve` does."""
        if in_order or not self._fits(entity, size):
            with self._turns.take(entity.key if in_order else None) as turn:
                if turn.before is not None or not self._fits(entity, size):
                    await self._wait(entity, size, deadline, turn)
        self._total += size
        self._by_entity[entity.key] = self._by_entity.get(entity.key, 0) + size

    def give_back(self, entity: EntityPath, size: int) -> None:
        self._total -= size
        self._by_entity[entity.key] -= size
        if not self._by_entity[entity.key]:
            del self._by_entity[entity.key]
        self._freed.unpark_all()

    async def _wait(self, entity: EntityPath, size: int, deadline: float, turn: Turn) -> None:
        with trio.move_on_at(deadline):
            await turn.come()
            while not self._fits(entity, size):
                await self._freed.park()
            return
        raise Busy(
            f"sends in progress reach max_inflight ({self.limit} bytes), or a quarter of it for"
            f" {entity} alone",
            retry_after=RETRY_AFTER,
        )

    def _fits(self, entity: EntityPath, size: int) -> bool:
        held = self._by_entity.get(entity.key, 0)
        if held == 0 and self._total == 0:
            return True
        share_kept = held == 0 or held + size <= self.limit // SHARE
        return share_kept and self._total + size <= self.limit


@attrs.frozen(eq=False)
class Reservation:
    """Made by `InFlight.reserve`; a generator would cost each send twice as much."""

    inflight: InFlight
    entity: EntityPath
    size: int
    deadline: float
    in_order: bool

    async def __aenter__(self) -> None:
        await self.inflight.take(self.entity, self.size, self.deadline, in_order=self.in_order)

    async def __aexit__(self, *_: object) -> None:
        self.inflight.give_back(self.entity, self.size)
