"""The destination of poison messages: the dead-letter sub-queue, or a queue `NAME-poison`."""

from typing import Any, Final

import attrs

from gateway.deadlines import answered_within
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    MAX_REASON_LENGTH,
    Complete,
    DeadLetter,
    Delivery,
    Message,
)
from gateway.listening.queue_session import QueueSession

MALFORMED: Final = "MalformedMessage"
TOO_MANY_ATTEMPTS: Final = "PoisonMessage"
SUFFIX: Final = "-poison"  # if a namespace has no dead-letter sub-queue


def dead_letter(reason: str, error: object, attempts: int) -> DeadLetter:
    """The settlement with the last error and the number of attempts."""
    name = f"{type(error).__name__}: " if isinstance(error, BaseException) else ""
    description = f"attempts: {attempts}; last error: {name}{error}"
    return DeadLetter(reason=reason, description=description[:MAX_REASON_LENGTH])


def poison_queue(queue: EntityPath) -> EntityPath:
    return EntityPath(f"{queue}{SUFFIX}")


@attrs.define(eq=False)
class Burial:
    """Dead-letters a message, in as many attempts as necessary."""

    _is_copied: bool = attrs.field(default=False, init=False)  # to the poison queue

    async def bury(
        self, session: QueueSession[Any], delivery: Delivery, settlement: DeadLetter
    ) -> None:
        """
        Dead-letter a message. If the namespace can't, return when a copy is in the poison queue and
        the message itself is completed, in this order. A message that was copied isn't copied
        again.

        Raises:
            BrokerError: the message wasn't dead-lettered, and will be delivered again.
                `EntityNotFound`: there is no poison queue.
        """
        if self._is_copied:
            await session.settle(delivery, Complete())
            return
        try:
            await session.settle(delivery, settlement)
        except NotSupported:
            copy = _with_reason(delivery.message, settlement)
            await _send(session, poison_queue(session.queue), copy)
            self._is_copied = True
            await session.settle(delivery, Complete())


async def _send(session: QueueSession[Any], queue: EntityPath, message: Message) -> None:
    limit = session.job.options.answer_timeout
    session.stats.count(Operation.SEND, 1)
    with answered_within(limit, f"from {queue}"):
        await session.job.broker.send(queue, [message])


def _with_reason(message: Message, settlement: DeadLetter) -> Message:
    why = {
        DEAD_LETTER_REASON: settlement.reason,
        DEAD_LETTER_DESCRIPTION: settlement.description,
    }
    return attrs.evolve(message, properties={**message.properties, **why})
