"""Where a message goes that can't be worked on: to the dead letters, or a queue `NAME-poison`."""

from typing import Any, Final

import attrs
import trio

from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported, OutcomeUnknown
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    MAX_REASON_LENGTH,
    Complete,
    DeadLetter,
    Delivery,
    Message,
)
from gateway.listener.desk import Desk

MALFORMED: Final = "MalformedMessage"
TOO_MANY_ATTEMPTS: Final = "PoisonMessage"
SUFFIX: Final = "-poison"  # of the queue where a namespace has no dead letters


def dead_letter(reason: str, error: object, attempts: int) -> DeadLetter:
    """The settlement that says what went wrong last, and how often it was tried."""
    name = f"{type(error).__name__}: " if isinstance(error, BaseException) else ""
    description = f"attempts: {attempts}; last error: {name}{error}"
    return DeadLetter(reason=reason, description=description[:MAX_REASON_LENGTH])


def poison_queue(queue: EntityPath) -> EntityPath:
    return EntityPath(f"{queue}{SUFFIX}")


@attrs.define(eq=False)
class Burial:
    """One message on its way to the dead letters, however many attempts that takes."""

    _is_copied: bool = attrs.field(default=False, init=False)  # to the poison queue

    async def bury(self, desk: Desk[Any], delivery: Delivery, settlement: DeadLetter) -> None:
        """
        Dead-letter a message. Where that isn't possible, return when a copy is in the poison queue
        and the message itself is completed, in this order. What was copied isn't copied again.

        Raises:
            BrokerError: it comes again. `EntityNotFound`: there is no poison queue.
        """
        if self._is_copied:
            await desk.settle(delivery, Complete())
            return
        try:
            await desk.settle(delivery, settlement)
        except NotSupported:
            copy = _with_reason(delivery.message, settlement)
            await _send(desk, poison_queue(desk.queue), copy)
            self._is_copied = True
            await desk.settle(delivery, Complete())


async def _send(desk: Desk[Any], queue: EntityPath, message: Message) -> None:
    limit = desk.job.options.answer_timeout
    desk.ledger.count(Operation.SEND, 1)
    with trio.move_on_after(limit):
        await desk.job.broker.send(queue, [message])
        return
    raise OutcomeUnknown(f"no answer from {queue} within {limit:g} s")


def _with_reason(message: Message, settlement: DeadLetter) -> Message:
    why = {
        DEAD_LETTER_REASON: settlement.reason,
        DEAD_LETTER_DESCRIPTION: settlement.description,
    }
    return attrs.evolve(message, properties={**message.properties, **why})
