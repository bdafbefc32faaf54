"""A receiver whose results are reported: the received and settled messages, and the durations."""

from collections.abc import Awaitable, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Final, Protocol

import attrs
import trio

from gateway.capabilities import (
    ChangesBody,
    Enlists,
    HidesMessages,
    KeepsMessages,
    Polls,
    ReceivesAvailable,
    ReceivesDeferred,
    SettlesByToken,
    SettlesMany,
    TakesBack,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.health.operation_times import RECEIVE, name_of, name_of_all
from gateway.domain.message import Delivery, Settlement
from gateway.offering import Wrapper, required
from gateway.ports import Receiver

# The capabilities of a receiver that pass through the wrappers of telemetry unchanged.
UNSEEN: Final[frozenset[type]] = frozenset(
    (
        ChangesBody,
        Enlists,
        HidesMessages,
        KeepsMessages,
        ReceivesDeferred,
        SettlesByToken,
        TakesBack,
    )
)


class Listens(Protocol):
    """Is informed of receives."""

    def receive_began(self, receive: object) -> None:
        """Note that a receive waits for messages from now on."""

    def receive_ended(
        self, receive: object, entity: EntityPath, error: BrokerError | None, deliveries: int
    ) -> None:
        """Note that the receive has returned, failed, or was cancelled."""

    def took(self, name: str, seconds: float, error: BrokerError | None = None) -> None:
        """Note that an operation of that name (`domain.health.operation_times`) has ended."""


@attrs.frozen(eq=False)
class WatchedReceiver(Wrapper):
    """
    A `Receiver` that reports the end of each `receive` and `poll` of `_inner`, and the durations of
    receives with messages and of settlements.
    """

    _inner: Receiver
    entity: EntityPath
    listens: Listens

    forwards: ClassVar[frozenset[type]] = UNSEEN

    @property
    def inner(self) -> Receiver:
        return self._inner

    async def receive(self, limit: int) -> Sequence[Delivery]:
        return await self._received(self._inner.receive(limit))

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        available = required(self._inner, ReceivesAvailable)
        return await self._received(available.receive_available(limit))

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """As `Polls.poll`."""
        return await self._received(required(self._inner, Polls).poll(limit, lock))

    async def _received(self, call: Awaitable[Sequence[Delivery]]) -> Sequence[Delivery]:
        receive, error, taken, began = object(), None, 0, trio.current_time()
        self.listens.receive_began(receive)
        try:
            deliveries = await call
            taken = len(deliveries)
        except BrokerError as failure:
            error = failure
            raise
        finally:
            self.listens.receive_ended(receive, self.entity, error, taken)
            if taken or error is not None:
                self.listens.took(RECEIVE, trio.current_time() - began, error)
        return deliveries

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        began = trio.current_time()
        try:
            await self._inner.settle(delivery, settlement)
        except BrokerError as error:
            self.listens.took(name_of(settlement), trio.current_time() - began, error)
            raise
        self.listens.took(name_of(settlement), trio.current_time() - began)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`: one operation, with the first error of any settlement."""
        began = trio.current_time()
        verdicts = await required(self._inner, SettlesMany).settle_many(settlements)
        error = next((each for each in verdicts if each is not None), None)
        name = name_of_all([settlement for _, settlement in settlements])
        self.listens.took(name, trio.current_time() - began, error)
        return verdicts

    async def renew(self, delivery: Delivery) -> datetime:
        return await self._inner.renew(delivery)
