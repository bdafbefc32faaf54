"""A namespace that announces each message sent to it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from gateway.capabilities import Batches, SendEach, TransactedWork, Transacts, sends_in
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.forwarding_broker import SendWrapper
from gateway.listener.bodies import body_size
from gateway.offering import required
from gateway.ports import Broker

T = TypeVar("T")


@attrs.frozen(eq=False)
class Announcing(SendWrapper):
    """
    A broker that announces its sends: after each call of `inner` that may have sent messages, it
    calls `announce` with the queue and the bytes of the bodies. Needed for namespaces that are
    polled; namespaces that push wake their receivers themselves.
    """

    _inner: Broker
    _announce: Callable[[EntityPath, int], None]

    @property
    def inner(self) -> Broker:
        return self._inner

    async def wrap_sends(
        self, send: SendEach[T], entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        come = batches  # all messages may have been accepted, as after a cancellation
        try:
            verdicts = await send(entity, batches)
            come = [
                batch
                for batch, verdict in zip(batches, verdicts, strict=True)
                if not isinstance(verdict, BrokerError) or verdict.outcome is not Outcome.NOT_SENT
            ]
            return verdicts
        finally:
            if come:
                self._announce(entity, sum(body_size(each) for batch in come for each in batch))

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`."""
        await required(self._inner, Transacts).check_transactions()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """As `Transacts.commit`."""
        come = sends_in(work)  # as in `wrap_sends`
        try:
            await required(self._inner, Transacts).commit(work)
        except BrokerError as error:
            if error.outcome is Outcome.NOT_SENT:
                come = []
            raise
        finally:
            for each in come:
                self._announce(each.entity, sum(map(body_size, each.messages)))
