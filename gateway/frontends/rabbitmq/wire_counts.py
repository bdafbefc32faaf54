"""
Counts the publishes whose end came over the client's own wire, in the counters of the pair. What
goes through the pair is counted there.
"""

from collections.abc import Iterable
from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError, OutcomeUnknown, QuotaExceeded
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.message import AcceptedBy
from gateway.frontends.rabbitmq.channel import KeptPublish

NACK: Final = QuotaExceeded("refused by the queue, which is full")
ENDED: Final = OutcomeUnknown("the channel has ended before the confirm")


@attrs.frozen
class WireCounts:
    _sends: SendCounters

    def accepted(self, publishes: Iterable[KeptPublish]) -> None:
        """The primary has confirmed the publishes."""
        now, accepted = trio.current_time(), self._sends.accepted
        for kept in publishes:
            accepted(AcceptedBy.PRIMARY, 1, now - kept.since)

    def failed(self, publishes: Iterable[KeptPublish], error: BrokerError | None) -> None:
        """The publishes have ended with that error; None: the client has gone."""
        now = trio.current_time()
        for kept in publishes:
            self._sends.failed(error, 1, now - kept.since)

    def committed(self, publishes: int, since: float) -> None:
        """The primary has committed a transaction of so many, asked at `since`."""
        if publishes:
            self._sends.accepted(AcceptedBy.PRIMARY, publishes, trio.current_time() - since)
