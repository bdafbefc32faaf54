"""Receives a session's messages whose bodies are in a store."""

from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from gateway.brokers.forwarding_session import ForwardingSession
from gateway.capabilities import SessionReceiver
from gateway.domain.errors import BrokerError
from gateway.domain.message import Abandon, Delivery, Settlement
from gateway.extensions.claims.receiver import ClaimedReceiver


@attrs.define(eq=False, kw_only=True)
class ClaimedSession(ForwardingSession, ClaimedReceiver):
    """A `SessionReceiver` that keeps the session's order, even if a body is late."""

    session: SessionReceiver
    in_order: bool = True

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """As `ClaimedReceiver.settle`. No held message overtakes one that goes back."""
        await super().settle(delivery, settlement)
        await self._give_back_held([settlement])

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`, and `settle`."""
        verdicts = await super().settle_many(settlements)
        await self._give_back_held(settlement for _, settlement in settlements)
        return verdicts

    async def _give_back_held(self, settlements: Iterable[Settlement]) -> None:
        if any(isinstance(each, Abandon) for each in settlements):
            held, self._held = self._held, deque()
            await self._give_back([each.delivery for each in held])
