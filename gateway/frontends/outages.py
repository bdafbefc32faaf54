"""
Receivers that outlive an outage of the namespace behind them.

A receive that fails in an outage is made again once the namespace has answered. While no connection
can be made, one of the waiting receives asks the namespace for all, so that its return wakes them
together, and each of their number costs no dial of its own.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, TypeVar

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NoToken, Unreachable
from gateway.ports import Broker

T = TypeVar("T")

# Seconds between two questions: receivers are to have messages within a second of the return.
PAUSE: Final = 0.5
_PATIENCE: Final = 5.0  # seconds for an answer, longer than a namespace needs that is just back


@attrs.define(eq=False)
class Outages:
    """Waits for the return of one namespace, for any number of receivers."""

    _broker: Broker
    _returns: Changes = attrs.field(factory=Changes, init=False)
    _asking: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _asked: float = attrs.field(default=-inf, init=False)  # the last question, by Trio's clock

    async def outlast(self, entity: EntityPath, receive: Callable[[], Awaitable[T]]) -> T:
        """
        Return the result of `receive`, which is called again after each outage.

        Raises:
            BrokerError: as `receive`, if the error isn't that of an outage, or is final.
        """
        while True:
            try:
                return await receive()
            except BrokerError as error:
                if not error.counts_as_outage or error.is_final:
                    raise
                failure = error
            if isinstance(failure, Unreachable | NoToken):
                await self.wait_answer(entity)
            else:
                await trio.sleep(PAUSE)

    async def is_away(self, entity: EntityPath) -> bool:
        """True if the namespace doesn't answer a question about the entity."""
        return not await self._answers(entity)

    async def wait_answer(self, entity: EntityPath) -> None:
        """Return once the namespace has answered a question about the entity, or about another."""
        seen = self._returns.version
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask, entity)
            await self._returns.wait(seen)
            nursery.cancel_scope.cancel()

    async def _ask(self, entity: EntityPath) -> None:
        """Ask the namespace until it answers, and tell all who wait; or wait for that turn."""
        async with self._asking:
            answered = False
            while not answered:
                # A date, not a pause: receives that are given up soon don't start it again.
                await trio.sleep_until(self._asked + PAUSE)
                self._asked = trio.current_time()
                answered = await self._answers(entity)
            self._returns.notify()

    async def _answers(self, entity: EntityPath) -> bool:
        with trio.move_on_after(_PATIENCE):
            try:
                await self._broker.probe(entity)
            except BrokerError as error:
                return not error.counts_as_outage
            return True
        return False
