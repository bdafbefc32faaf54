"""A receiver whose results are reported: messages were received, or couldn't be."""

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, Protocol

import attrs

from gateway.capabilities import KeepsMessages, Polls, ReceivesDeferred, SettlesMany, TakesBack
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery, Settlement
from gateway.offering import Wrapper
from gateway.ports import Receiver


class Listens(Protocol):
    """Is informed of receives."""

    def receive_began(self, receive: object) -> None:
        """A receive waits for messages from now on."""

    def receive_ended(
        self, receive: object, entity: EntityPath, error: BrokerError | None, deliveries: int
    ) -> None:
        """The receive has returned, failed, or was cancelled."""


@attrs.frozen(eq=False)
class WatchedReceiver(Wrapper):
    """A `Receiver` that reports how each `receive` of `_inner` ended."""

    _inner: Receiver
    entity: EntityPath
    listens: Listens

    forwards: ClassVar[frozenset[type]] = frozenset(
        (KeepsMessages, Polls, ReceivesDeferred, SettlesMany, TakesBack)
    )

    @property
    def inner(self) -> Receiver:
        return self._inner

    async def receive(self, limit: int) -> Sequence[Delivery]:
        receive, error, taken = object(), None, 0
        self.listens.receive_began(receive)
        try:
            deliveries = await self._inner.receive(limit)
            taken = len(deliveries)
        except BrokerError as failure:
            error = failure
            raise
        finally:
            self.listens.receive_ended(receive, self.entity, error, taken)
        return deliveries

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await self._inner.settle(delivery, settlement)

    async def renew(self, delivery: Delivery) -> datetime:
        return await self._inner.renew(delivery)
