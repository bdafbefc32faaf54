"""Planted bugs in the AMQP front end. Importing this needs the engine."""

from collections.abc import Sequence
from typing import Any, Final

from gateway.domain.errors import BrokerError, Outcome
from gateway.frontends.amqp.incoming import IncomingLink
from gateway.wire.amqp.events import RELEASED
from tests.simulation.planted.patch import Function, Mutant


def accept_before_the_pair_does(right: Function) -> Function:
    async def send(self: IncomingLink, group: Sequence[Any]) -> None:
        self._answer(group, [None] * len(group))
        await self._try(group)

    return send


def release_what_nobody_knows(right: Function) -> Function:
    def answer(
        self: IncomingLink, group: Sequence[Any], errors: Sequence[BrokerError | None]
    ) -> None:
        for each, error in zip(group, errors, strict=True):
            if error is not None and error.outcome is Outcome.UNKNOWN:
                self._context.engine.settle(each.event.delivery, RELEASED)
                self._done(each.event)
            else:
                right(self, [each], [error])

    return answer


MUTANTS: Final = (
    Mutant(
        "a transfer is accepted before the pair does",
        IncomingLink,
        "_send",
        accept_before_the_pair_does,
    ),
    Mutant("no answer is released", IncomingLink, "_answer", release_what_nobody_knows),
)
