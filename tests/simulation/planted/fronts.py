"""Planted bugs in the front ends: they answer before the pair has a message, or guess."""

from contextlib import suppress
from typing import Any, Final

import trio

from gateway.domain.errors import BrokerError, EntityNotFound, OutcomeUnknown, Unavailable
from gateway.domain.message import AcceptedBy, Delivery, Message
from gateway.domain.storage_queue.pop_receipt import TakenMessage
from gateway.frontends.servicebus import rest as servicebus_rest
from gateway.frontends.storage_queue import frontend as storage_queue
from gateway.frontends.storage_queue import messages
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.wire.amqp.options import why_no_engine
from gateway.wire.storage_queue import operations as storage
from tests.simulation.planted.patch import Function, Mutant


def unknown_as_not_sent(right: Function) -> Function:
    def build_error(error: BrokerError, **named: Any) -> Any:
        is_unknown = isinstance(error, OutcomeUnknown)
        return right(Unavailable(str(error)) if is_unknown else error, **named)

    return build_error


def put_before_the_pair_has_it(right: Function) -> Function:
    async def put(self: StorageOperations, put: storage.PutMessage, message_id: str) -> Any:
        async def later() -> None:
            await trio.lowlevel.checkpoint()
            with suppress(BrokerError):
                await right(self, put, message_id)

        trio.lowlevel.spawn_system_task(later)
        await trio.lowlevel.checkpoint()
        message = Message(message_id=message_id, body=put.body)
        shown = TakenMessage(delivery=Delivery(message=message, sequence_number=0), receipt=None)
        answer = messages.put_answer(shown, self.wall_clock(), self.marks)
        return storage.Messages((answer,)), AcceptedBy.PRIMARY

    return put


def unknown_as_no_such_queue(right: Function) -> Function:
    def build_error(error: BrokerError, *arguments: Any) -> Any:
        is_unknown = isinstance(error, OutcomeUnknown)
        return right(EntityNotFound(str(error)) if is_unknown else error, *arguments)

    return build_error


def _of_amqp() -> tuple[Mutant, ...]:
    """Those of its front end, where there can be one."""
    if why_no_engine() is not None:
        return ()
    from tests.simulation.planted import amqp as mutants_amqp

    return mutants_amqp.MUTANTS


MUTANTS: Final = (
    Mutant("the endpoint guesses", servicebus_rest, "build_error", unknown_as_not_sent),
    Mutant(
        "a put is answered before the pair has it",
        StorageOperations,
        "_put",
        put_before_the_pair_has_it,
    ),
    Mutant("no answer is no such queue", storage_queue, "build_error", unknown_as_no_such_queue),
    *_of_amqp(),
)
