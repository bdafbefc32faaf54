"""Planted bugs in the front ends: they answer before the pair has a message, or guess."""

from contextlib import suppress
from typing import Any, Final

import trio

from gateway.domain.errors import BrokerError, EntityNotFound, OutcomeUnknown, Unavailable
from gateway.domain.message import Delivery, Leg, Message
from gateway.domain.visibility import Shown
from gateway.frontends import servicebus_rest, storage_messages, storage_queue
from gateway.frontends.storage_operations import StorageOperations
from gateway.testing.sim.mutant import Function, Mutant
from gateway.wire import storage_queue_operations as storage
from gateway.wire.amqp.options import why_no_engine


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
        shown = Shown(delivery=Delivery(message=message, sequence_number=0), ticket=None)
        answer = storage_messages.put_answer(shown, self.wall_clock())
        return storage.Messages((answer,)), Leg.PRIMARY

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
    from gateway.testing.sim import mutants_amqp

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
