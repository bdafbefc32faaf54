"""A channel's receiver of one queue, which its consumers and its `basic.get` share."""

import math
from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery
from gateway.frontends.rabbitmq_broker.counted_receiver import open_counted
from gateway.frontends.rabbitmq_broker.vhost import ServedQueue
from gateway.ports import Broker, Receiver

_PAUSE: Final = 0.5  # seconds between two attempts in an outage, as in `frontends.outages`
_HALF: Final = 0.5  # of a lock's duration, after which it's renewed


@attrs.define(eq=False)
class UnsettledDelivery:
    """A delivery that the client has, and hasn't settled."""

    queue: ServedQueue
    receiver: Receiver
    delivery: Delivery  # without its message
    consumer: object | None  # None: of `basic.get`
    renewed: float  # when its lock began, by Trio's clock
    is_lost: bool = False  # its message comes again
    is_chosen: bool = False  # the client settles it, in a transaction that isn't committed

    @property
    def due(self) -> float:
        """When its lock is to be renewed; infinite: it has none that ends."""
        until, received = self.delivery.locked_until, self.delivery.received
        if self.is_lost or until is None:
            return math.inf
        if received is None:
            return self.renewed + _HALF * 60
        return self.renewed + _HALF * max(1.0, (until - received).total_seconds())


@attrs.define(eq=False)
class QueueReceiver:
    """`run` holds a receiver open, and opens another one after an outage."""

    queue: ServedQueue
    _broker: Broker
    _receiver: Receiver | None = attrs.field(default=None, init=False)
    _error: BrokerError | None = attrs.field(default=None, init=False)  # final
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def close(self) -> None:
        """Let `run` end."""
        self._scope.cancel()

    async def run(self) -> None:
        """Until `close`, or the queue can't be received from."""
        with self._scope:
            await self._hold_open()

    async def _hold_open(self) -> None:
        while self._error is None:
            try:
                async with open_counted(self._broker, self.queue) as receiver:
                    self._set(receiver)
                    while self._receiver is receiver:
                        await self._changed.park()
            except BrokerError as error:
                self._receiver = None
                if not error.counts_as_outage or error.is_final:
                    self._error = error
                    self._changed.unpark_all()
            await trio.sleep(_PAUSE)

    def _set(self, receiver: Receiver | None) -> None:
        self._receiver = receiver
        self._changed.unpark_all()

    def retire(self, receiver: Receiver, error: BrokerError) -> None:
        """A receive has failed: another receiver is opened, unless the error is final."""
        if not error.counts_as_outage or error.is_final:
            self._error = error
        if self._receiver is receiver:
            self._set(None)

    async def opened(self) -> Receiver:
        """
        Return the receiver when it is open.

        Raises:
            BrokerError: it can't be opened; no outage.
        """
        while self._receiver is None:
            if self._error is not None:
                raise self._error
            await self._changed.park()
        return self._receiver
