"""A namespace that tells of each message which was sent to it."""

from collections.abc import Callable, Sequence

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import Leg, Message
from gateway.listener.bodies import body_size
from gateway.passing import PassesOn
from gateway.ports import Broker


@attrs.frozen(eq=False)
class Announcing(PassesOn):
    """
    `inner`, and `announce` hears of what has come, or may have: the queue, and the bytes of the
    bodies.

    Namespaces that push need none of it; it is for those that have to be asked.
    """

    _inner: Broker
    _announce: Callable[[EntityPath, int], None]

    @property
    def inner(self) -> Broker:
        return self._inner

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """As `Broker.send`."""
        has_come = True  # unless an error is sure that it hasn't
        try:
            return await self._inner.send(entity, messages)
        except BrokerError as error:
            has_come = error.outcome is not Outcome.NOT_SENT
            raise
        finally:
            if has_come:
                self._announce(entity, sum(map(body_size, messages)))
