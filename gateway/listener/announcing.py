"""A namespace that announces each message sent to it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import Message
from gateway.forwarding_broker import Send, SendWrapper
from gateway.listener.bodies import body_size
from gateway.ports import Broker

T = TypeVar("T")


@attrs.frozen(eq=False)
class Announcing(SendWrapper):
    """
    `inner`; `announce` is called after each send that may have been accepted, with the queue and
    the bytes of the bodies.

    Needed for namespaces that are polled; those that push wake their receivers themselves.
    """

    _inner: Broker
    _announce: Callable[[EntityPath, int], None]

    @property
    def inner(self) -> Broker:
        return self._inner

    async def wrap_send(self, send: Send[T], entity: EntityPath, messages: Sequence[Message]) -> T:
        has_come = True  # unless the outcome is "not sent"
        try:
            return await send(entity, messages)
        except BrokerError as error:
            has_come = error.outcome is not Outcome.NOT_SENT
            raise
        finally:
            if has_come:
                self._announce(entity, sum(map(body_size, messages)))
