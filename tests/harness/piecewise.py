"""A namespace that stores a batch message by message, as RabbitMQ does: some may be refused."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gateway.capabilities import Batches
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, PartlyAccepted, QuotaExceeded
from gateway.domain.message import Message


@attrs.define(eq=False)
class PiecewiseBroker:
    """
    `inner` with queues that are full now and then: `is_full` is asked for each message. The verdict
    of a batch is that of RabbitMQ's adapter.
    """

    _inner: Any
    _is_full: Callable[[EntityPath], bool]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        As `Broker.send`.

        Raises:
            QuotaExceeded: all messages were refused.
            PartlyAccepted: some were.
        """
        accepted = []
        for message in messages:
            if not self._is_full(entity):
                await self._inner.send(entity, [message])
                accepted.append(message)
        if len(accepted) == len(messages):
            return
        full = QuotaExceeded(f"{entity}: refused by the queue, which is full")
        if not accepted:
            raise full
        raise PartlyAccepted(
            f"{len(accepted)} messages were accepted, then: {full}", accepted, full
        )

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`."""
        verdicts: list[BrokerError | None] = []
        for batch in batches:
            try:
                await self.send(entity, batch)
            except BrokerError as error:
                verdicts.append(error)
            else:
                verdicts.append(None)
        return verdicts
