"""
A session that is held at the backlog alone, as the primary is away.

It ends once the primary answers, the messages that it has given are settled, and the backlog has no
more of them: the client accepts the session again, at both sides. Its state stays at the primary.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.brokers.forwarding_session import ForwardingSession
from gateway.capabilities import SessionReceiver
from gateway.changes import Changes
from gateway.domain.errors import BrokerError, SessionLockLost, Unavailable
from gateway.domain.message import Abandon, Delivery, Settlement
from gateway.extensions.receive_in_outage.backlog_receiver import BacklogReceiver
from gateway.frontends.outages import Outages

IDLE: Final = 1.0  # seconds without a message, after which the session may go on at the primary


@attrs.define(eq=False, kw_only=True)
class BacklogSession(ForwardingSession, BacklogReceiver):
    """A `SessionReceiver` of messages on the backlog."""

    inner: SessionReceiver
    outages: Outages  # of the primary
    _held: set[int] = attrs.field(factory=set, init=False)  # sequence numbers, until settled
    _settled: Changes = attrs.field(factory=Changes, init=False)
    # Received, and not returned yet: a call that is cancelled then must let no later message pass.
    _ready: deque[Delivery] = attrs.field(factory=deque, init=False)

    @property
    def session(self) -> SessionReceiver:
        return self.inner

    async def get_state(self) -> bytes | None:
        """As `SessionReceiver.get_state`. Raises `Unavailable`: only the primary has it."""
        raise self._without_state()

    async def set_state(self, state: bytes | None) -> None:
        """As `SessionReceiver.set_state`. Raises `Unavailable`: only the primary has it."""
        raise self._without_state()

    def _without_state(self) -> Unavailable:
        return Unavailable(
            f"{self.entity}: the state of session {self.session_id!r} is at the primary, which"
            " could not be reached when the session was accepted"
        )

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """As `Receiver.receive`. Raises `SessionLockLost`: the session goes on at the primary."""
        failure: BrokerError | None = None
        if not self._ready:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_when_over, nursery.cancel_scope)
                try:
                    self._ready.extend(await BacklogReceiver.receive(self, limit))
                except BrokerError as error:
                    failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if not self._ready:
            raise SessionLockLost(
                f"{self.entity}: session {self.session_id!r} goes on at the primary: accept it"
                " again"
            )
        return self._pop(limit)

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        return self._pop(limit) or await BacklogReceiver.receive_available(self, limit)

    def _pop(self, limit: int) -> Sequence[Delivery]:
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    async def _cancel_when_over(self, receiving: trio.CancelScope) -> None:
        while self._held:
            await self._settled.wait_next()
        await trio.sleep(IDLE)
        await self.outages.wait_answer(self.entity)
        receiving.cancel()

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """As `Receiver.settle`. No later message overtakes one that goes back."""
        try:
            await BacklogReceiver.settle(self, delivery, settlement)
        finally:
            self._release([delivery])
        await self._give_back_later_ones([settlement])

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`, and `settle`."""
        try:
            verdicts = await BacklogReceiver.settle_many(self, settlements)
        finally:
            self._release([delivery for delivery, _ in settlements])
        await self._give_back_later_ones(settlement for _, settlement in settlements)
        return verdicts

    async def _give_back_later_ones(self, settlements: Iterable[Settlement]) -> None:
        if not any(isinstance(each, Abandon) for each in settlements):
            return
        while self._ready:
            delivery = self._ready.popleft()
            with suppress(BrokerError):  # its lock ends with the session's instead
                await self.inner.settle(delivery.handle, Abandon(delivered=False))
            self._release([delivery])

    def _release(self, deliveries: Sequence[Delivery]) -> None:
        self._held.difference_update(each.sequence_number for each in deliveries)
        self._settled.notify()

    async def _opened(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        found = await BacklogReceiver._opened(self, deliveries)
        self._held.update(each.sequence_number for each in found)
        return found
