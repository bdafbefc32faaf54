"""
Settles deliveries of several queues, each at the queue that it came from.

A delivery's sequence number leads back to its queue. `sequence.py` says which numbers have no room
for that.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.brokers.joined.queues import JoinedQueues, JoinedSource
from gateway.brokers.joined.sequence import has_room, inward, outward, place_of
from gateway.capabilities import (
    ChangesBody,
    Enlists,
    KeepsMessages,
    TakesBack,
    TransactedSettlement,
)
from gateway.capabilities.settling import SettlementDoubts, settle_all
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost
from gateway.domain.message import Delivery, Settlement
from gateway.offering import Wrapper, offered, required
from gateway.ports import Receiver

_MOST_UNSETTLED: Final = 100_000  # whose queue is remembered; the messages of older ones come again


@attrs.define(eq=False, kw_only=True)
class JoinedSettling(Wrapper):
    """The half of a `Receiver` of several queues that settles what they have delivered."""

    queues: JoinedQueues
    entity: EntityPath
    _sources: dict[int, JoinedSource] = attrs.field(factory=dict, init=False)
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts, init=False)
    # By lock token, of unsettled deliveries whose sequence number has no room for the place.
    _origins: Bounded[str | None, int] = attrs.field(
        factory=lambda: Bounded(_MOST_UNSETTLED), init=False
    )

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        with self._doubts.settling(delivery.lock_token):
            await self._receiver_of(delivery).settle(self._inward(delivery), settlement)
        self._origins.pop(delivery.lock_token, None)

    async def renew(self, delivery: Delivery) -> datetime:
        with self._doubts.using(delivery.lock_token):
            return await self._receiver_of(delivery).renew(self._inward(delivery))

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`; the queues settle at the same time."""
        verdicts: list[BrokerError | None] = [None] * len(settlements)
        of_place: dict[int, list[int]] = {}
        for index, (delivery, _) in enumerate(settlements):
            of_place.setdefault(self._place_of(delivery), []).append(index)

        async def settle(indexes: Sequence[int]) -> None:
            found = await self._settle_at([settlements[index] for index in indexes])
            for index, verdict in zip(indexes, found, strict=True):
                verdicts[index] = verdict

        if len(of_place) == 1:
            await settle(*of_place.values())
        else:
            async with trio.open_nursery() as nursery:
                for indexes in of_place.values():
                    nursery.start_soon(settle, indexes)
        return verdicts

    async def _settle_at(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """Settle deliveries of one queue."""
        for delivery, _ in settlements:
            self._doubts.begin(delivery.lock_token)
        try:
            receiver = self._receiver_of(settlements[0][0])
        except LockLost as error:
            return self._verdicts(settlements, [error] * len(settlements))
        own = [(self._inward(delivery), settlement) for delivery, settlement in settlements]
        found = await settle_all(receiver, own)
        for (delivery, _), verdict in zip(own, found, strict=True):
            if verdict is None:
                self._origins.pop(delivery.lock_token, None)
        return self._verdicts(settlements, found)

    def _verdicts(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        found: Sequence[BrokerError | None],
    ) -> Sequence[BrokerError | None]:
        return [
            self._doubts.resolve(delivery.lock_token, verdict)
            for (delivery, _), verdict in zip(settlements, found, strict=True)
        ]

    def enlist(self, delivery: Delivery, settlement: Settlement) -> TransactedSettlement:
        """As `Enlists.enlist`; the queues say which of them can be settled so."""
        place = self._place_of(delivery)
        self.queues.check_enlisted(place)
        enlists = required(self._receiver_at(place), Enlists)
        return enlists.enlist(self._inward(delivery), settlement)

    def forget_message(self, delivery: Delivery) -> None:
        """As `KeepsMessages.forget_message`."""
        source = self._sources.get(self._place_of(delivery))
        keeps = source and source.receiver and offered(source.receiver, KeepsMessages)
        if keeps:
            keeps.forget_message(self._inward(delivery))

    async def change_body(self, delivery: Delivery, body: bytes) -> datetime:
        """As `ChangesBody.change_body`."""
        changes = required(self._receiver_of(delivery), ChangesBody)
        return await changes.change_body(self._inward(delivery), body)

    @property
    def takes_back_uncounted(self) -> bool:
        """As `TakesBack.takes_back_uncounted`: true if all queues do."""
        sources = self._sources.values()
        return all(takes_back(each.receiver) for each in sources if each.receiver is not None)

    def _outward(self, place: int, delivery: Delivery) -> Delivery:
        if has_room(delivery):
            return outward(delivery, place)
        self._origins[delivery.lock_token] = place
        return delivery

    def _inward(self, delivery: Delivery) -> Delivery:
        return delivery if delivery.lock_token in self._origins else inward(delivery)

    def _place_of(self, delivery: Delivery) -> int:
        origin = self._origins.get(delivery.lock_token)
        return place_of(delivery) if origin is None else origin

    def _receiver_of(self, delivery: Delivery) -> Receiver:
        return self._receiver_at(self._place_of(delivery))

    def _receiver_at(self, place: int) -> Receiver:
        source = self._sources.get(place)
        if source is None or source.receiver is None:
            raise LockLost(
                f"{self.entity}: its queue {place} isn't received from here any more; those of its"
                " messages that weren't settled are delivered again"
            )
        return source.receiver


def takes_back(receiver: Receiver | None) -> bool:
    takes_back = None if receiver is None else offered(receiver, TakesBack)
    return takes_back is not None and takes_back.takes_back_uncounted
