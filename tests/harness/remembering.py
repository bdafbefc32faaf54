"""
A namespace behind one connection, as those over AMQP: a failed dial is remembered, and a connection
on which sends fail is replaced.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf

import attrs
import trio

from gateway.capabilities import Batches
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome, Unavailable
from gateway.domain.health.trust import Trust
from gateway.domain.message import Message
from gateway.net.reconnecting import ANY_TIME, Failures
from tests.harness.faults import Call, Fault, FaultyBroker, Operation, T, Work, no_fault


def _see_nothing(answered: bool) -> None:
    """Do nothing with the replacement of a connection."""


@attrs.define(eq=False, kw_only=True)
class RememberingBroker(FaultyBroker):
    """
    A `FaultyBroker` with `capabilities.FailsFast`: `Unavailable` stands for a dial that failed.

    From `stuck_at` on, each send meets the fault `stuck` on a connection that was opened before,
    for ever; probes are answered. `on_replaced` is called with True if a send on the replaced
    connection was answered after the one began that shows that it has gone bad.
    """

    rng: random.Random
    backoff: Backoff = Backoff(first=0.1, cap=5.0)
    stuck_at: float = inf
    stuck: Fault | None = None
    on_replaced: Callable[[bool], None] = _see_nothing
    _failures: Failures = attrs.field(init=False)
    _trust: Trust = attrs.field(init=False)
    _answered: float = attrs.field(default=-inf, init=False)  # on the present connection

    def __attrs_post_init__(self) -> None:
        self._failures = Failures(backoff=self.backoff, rng=self.rng)
        self._trust = Trust(trio.current_time())
        if self.fault is no_fault:
            self.fault = self._meet

    def _meet(self, operation: Operation, entity: EntityPath) -> Fault | None:
        bad = self._trust.opened < self.stuck_at <= trio.current_time()
        return self.stuck if bad and operation is Operation.SEND else None

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """A context for a send: the rule of the adapters."""
        trust, began = self._trust, trio.current_time()
        try:
            yield
        except BrokerError as error:
            if error.counts_as_outage:
                self._replace(trust, began, bad=trust.failed(began, trio.current_time()))
            else:
                self._note_answer(trust)
            raise
        except trio.Cancelled:
            self._replace(trust, began, bad=trust.given_up(began, trio.current_time()))
            raise
        self._note_answer(trust)

    def _note_answer(self, trust: Trust) -> None:
        trust.answered(trio.current_time())
        if trust is self._trust:
            self._answered = trio.current_time()

    def _replace(self, trust: Trust, began: float, *, bad: bool) -> None:
        if bad and trust is self._trust:
            self.on_replaced(self._answered >= began)
            self._trust, self._answered = Trust(trio.current_time()), -inf

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
        verdicts = await self._send_all(entity, batches)
        failed = [error for error in verdicts if isinstance(error, Unavailable)]
        if failed:
            self._failures.add(failed[0])
        else:
            self._failures.connected()
            self._failures.clear()
        return verdicts

    async def _send_all(self, entity: EntityPath, batches: Batches) -> Sequence[BrokerError | None]:
        verdicts: Sequence[BrokerError | None] = []
        try:
            with self._judged():
                verdicts = await super().send_many(entity, batches)
                for error in verdicts:
                    if error is not None and error.counts_as_outage:
                        raise error
        except BrokerError:
            return verdicts
        return verdicts

    async def probe(self, entity: EntityPath) -> None:
        call = Call(operation=Operation.PROBE, entity=entity)
        await self._connected(call, partial(super().probe, entity), ANY_TIME)

    async def _send(self, entity: EntityPath, messages: Sequence[Message], since: float) -> None:
        call = Call(operation=Operation.SEND, entity=entity, messages=tuple(messages))
        with self._judged():
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
