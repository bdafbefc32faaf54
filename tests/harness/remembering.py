"""A namespace behind one connection, as those over AMQP: a failed dial is remembered."""

import random
from collections.abc import Sequence
from functools import partial

import attrs
import trio

from gateway.capabilities import Batches
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome, Unavailable
from gateway.domain.message import Message
from gateway.net.reconnecting import ANY_TIME, Failures
from tests.harness.faults import Call, FaultyBroker, Operation, T, Work


@attrs.define(eq=False, kw_only=True)
class RememberingBroker(FaultyBroker):
    """
    A `FaultyBroker` with `capabilities.FailsFast`: `Unavailable` stands for a dial that failed.
    """

    rng: random.Random
    backoff: Backoff = Backoff(first=0.1, cap=5.0)
    _failures: Failures = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._failures = Failures(backoff=self.backoff, rng=self.rng)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._send(entity, messages, trio.current_time())

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `FailsFast.try_send`."""
        await self._send(entity, messages, ANY_TIME)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`."""
        try:
            await self._failures.begin(ANY_TIME if fails_fast else trio.current_time())
        except Unavailable as error:
            for batch in batches:
                call = Call(operation=Operation.SEND, entity=entity, messages=tuple(batch))
                self.watch(attrs.evolve(call, outcome=Outcome.NOT_SENT, error=error))
            return [error] * len(batches)
        verdicts = await super().send_many(entity, batches)
        failed = [error for error in verdicts if isinstance(error, Unavailable)]
        if failed:
            self._failures.add(failed[0])
        else:
            self._failures.connected()
            self._failures.clear()
        return verdicts

    async def probe(self, entity: EntityPath) -> None:
        call = Call(operation=Operation.PROBE, entity=entity)
        await self._connected(call, partial(super().probe, entity), ANY_TIME)

    async def _send(self, entity: EntityPath, messages: Sequence[Message], since: float) -> None:
        call = Call(operation=Operation.SEND, entity=entity, messages=tuple(messages))
        await self._connected(call, partial(super().send, entity, messages), since)

    async def _connected(self, call: Call, work: Work[T], since: float) -> T:
        try:
            await self._failures.begin(since)
        except Unavailable as error:
            self.watch(attrs.evolve(call, outcome=Outcome.NOT_SENT, error=error))
            raise
        try:
            answer = await work()
        except Unavailable as error:
            self._failures.add(error)
            raise
        self._failures.connected()
        self._failures.clear()
        return answer
