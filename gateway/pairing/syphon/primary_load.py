"""
The load of one syphon on the primary, over all entities and backlog queues.

A syphon begins with a few sends at a time (`slow_start`), so that live traffic has room. A send
without a quick answer makes it ask the primary with a probe, which is no message, and begin no
further send before the answer (`ask`): each send to a primary that doesn't answer may arrive twice.

While the primary can't be reached it sends and receives nothing, and probes the primary. A syphon
inside a gateway leaves these probes to the gateway's prober.
"""

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.backoff import Backoff
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, Unreachable
from gateway.domain.health.reachability import Reachability
from gateway.pairing.syphon.slow_start import RequestRoom, SlowStart
from gateway.ports import Broker

# `FIRST`, `LEAST`, `MOST` and the constants of `slow_start` come from the model of a thousand
# gateways that get their primary back: benchmarks/thousand_gateways.py, with its figures in
# benchmarks/results/2026-11-26-fleet.md. Without them all drains sent at once.
FIRST: Final = 8  # sends in flight at the start, and after a return of the primary
LEAST: Final = 4
MOST: Final = 256
PATIENCE: Final = 1.0  # seconds after which a send without an answer leaves room for others
MOST_SEEN: Final = 1000  # entities
AT_ONCE: Final = 4  # probes of entities whose sends have no answer
# Between probes of a lost primary. The backlog of an outage moves at most so long after its end.
PROBES: Final = Backoff(first=1.0, cap=5.0)


@attrs.define(eq=False, kw_only=True)
class PrimaryLoad:
    """Shared by the drains of a syphon. `run` must live as long as they do."""

    primary: Broker
    rng: random.Random
    attempt_timeout: float  # seconds, of a probe
    retry: Backoff = PROBES  # between probes
    probes: bool = True  # false: a gateway's prober finds out whether the primary is lost
    changes: Changes = attrs.field(factory=Changes, init=False)  # each loss and return
    _slow_start: SlowStart = attrs.field(
        factory=lambda: SlowStart(first=FIRST, least=LEAST, most=MOST), init=False
    )
    _reachability: Reachability = attrs.field(factory=Reachability, init=False)
    found_at: float = attrs.field(default=-math.inf, init=False)  # after it was lost, the last time
    # Entities that back off, and are probed: True for those whose probe has failed.
    _out: Bounded[EntityPath, bool] = attrs.field(factory=lambda: Bounded(MOST_SEEN), init=False)
    # When such an entity answered again, the last time.
    _returns: Bounded[EntityPath, float] = attrs.field(
        factory=lambda: Bounded(MOST_SEEN, renews=True), init=False
    )
    # The start of the newest request that was answered.
    _answered: float = attrs.field(default=-math.inf, init=False)
    _asking: dict[object, float] = attrs.field(factory=dict, init=False)  # when each `ask` began
    _probes: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(AT_ONCE), init=False
    )
    # Some may be in trouble alone, so that any of them is probed.
    _seen: Bounded[str, EntityPath] = attrs.field(factory=lambda: Bounded(MOST_SEEN), init=False)

    @property
    def is_lost(self) -> bool:
        """True while the primary can't be reached: several entities failed, and none answers."""
        return self._reachability.is_lost

    @property
    def limit(self) -> int:
        """The number of sends that may be in flight."""
        return self._slow_start.limit

    def returned_at(self, entity: EntityPath) -> float:
        """
        When a probe showed that the primary, or the entity, is well again; minus infinity: none has
        since it failed.
        """
        return max(self.found_at, self._returns.get(entity, -math.inf))

    def probe_until_back(self, entity: EntityPath) -> None:
        """
        Probe the entity from now on, since a send to it failed. It is back when a probe is answered
        after one that failed; if the first is answered, the probes don't show what is wrong.
        """
        if self.probes and entity not in self._out:
            self._out[entity] = False
            self.changes.notify()

    @property
    def is_in_doubt(self) -> bool:
        """True while a send has no answer, and no later request has one."""
        return any(began > self._answered for began in self._asking.values())

    def is_silent(self, entity: EntityPath) -> bool:
        """True if neither a send to the entity nor a probe had an answer, and nothing had since."""
        return self._out.get(entity, False) and self._reachability.is_silent(entity.key)

    def must_ask(self, entity: EntityPath) -> bool:
        """True if another entity is silent: this one gets no send before an answer to `ask`."""
        return any(self.is_silent(each) for each in self._out if each != entity)

    def patience(self, messages: int) -> float:
        """Seconds after which a send of that many messages without an answer is a reason to ask."""
        return self._slow_start.slow_after(messages)

    async def ask(self, entity: EntityPath) -> bool:
        """
        Probe the entity, for `PATIENCE`, since a send to it, or to another one, has had no answer
        for too long.

        False: the probe had no answer either. The entity then counts as silent, unless another one
        has answered meanwhile. Several silent ones are a lost primary; with one alone the others
        must be looked for, as the primary may answer for them.
        """
        question, began = object(), trio.current_time()
        self._asking[question] = began
        answered = False
        try:
            with trio.move_on_after(PATIENCE):
                async with self._probes:
                    answered = await self._is_answered(entity)
        finally:
            del self._asking[question]
            self.changes.notify()
        if answered or not self.probes:
            return answered
        self._out[entity] = True
        self._silent(entity, began)
        return answered

    async def wait_judged(self) -> None:
        """Return when no send is `in doubt`; a checkpoint only if one is."""
        while self.is_in_doubt:
            await self.changes.wait_next()

    @asynccontextmanager
    async def room(self, entity: EntityPath) -> AsyncIterator[RequestRoom]:
        """
        Wait until a send to the entity may begin. The room ends with the block, or by
        `RequestRoom.leave`.
        """
        self._seen[entity.key] = entity
        async with self._slow_start.room() as room:
            yield room

    def answered(self, entity: EntityPath, began: float, messages: int = 1) -> None:
        """Record that the entity accepted a send of `messages` messages that began at `began`."""
        self._out.pop(entity, None)
        self._record_answer(began)
        self._slow_start.answered(began, messages)

    def failed(self, entity: EntityPath, began: float, error: BrokerError) -> None:
        """Record that a send that began at `began` failed, or has had no answer in time."""
        if isinstance(error, Busy):
            self._slow_start.lower(began)
        if not error.counts_as_outage:
            self._record_answer(began)
            return
        if not self.probes:
            return
        self._seen[entity.key] = entity
        if isinstance(error, Unreachable):
            self._lose(str(error))
        else:
            self._silent(entity, began)

    def backlog_busy(self, began: float) -> None:
        """
        Record that the backlog was too busy for a settlement that began at `began`. Each send to
        the primary has one, so fewer sends help.
        """
        self._slow_start.lower(began)

    async def wait_found(self) -> None:
        """Return when the primary isn't known to be unreachable; a checkpoint only if it is."""
        while self.is_lost:
            await self.changes.wait_next()

    async def wait_for_room(self) -> None:
        """Return when no send waits for room: more messages would only be kept locked."""
        await self._slow_start.wait_for_room()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, probe the primary, or those of its entities that failed."""
        task_status.started()
        while True:
            seen, failures = self.changes.version, 0
            async with trio.open_nursery() as probing:
                while self.is_lost or self._out:
                    failures += 1
                    await trio.sleep(self.retry.delay(failures, self.rng))
                    for entity in self._chosen():
                        probing.start_soon(self._probe, entity)  # one that hangs holds up no other
                probing.cancel_scope.cancel()
            if self.changes.version == seen:
                await self.changes.wait(seen)

    def _chosen(self) -> list[EntityPath]:
        """The entities to probe now: any one of a lost primary, otherwise each that is silent."""
        entities = list(self._seen.values() if self.is_lost else self._out)
        most = 1 if self.is_lost else AT_ONCE
        return self.rng.sample(entities, min(most, len(entities)))

    async def _probe(self, entity: EntityPath) -> None:
        answered = False
        with trio.move_on_after(self.attempt_timeout):
            answered = await self._is_answered(entity)
        if entity in self._out:
            self._out[entity] |= not answered

    async def _is_answered(self, entity: EntityPath) -> bool:
        """Probe the entity. True: there was an answer, whatever it says."""
        began = trio.current_time()
        try:
            await self.primary.probe(entity)
        except BrokerError as error:
            if error.counts_as_outage:
                return False
        self._record_answer(began)
        if self._out.pop(entity, False):
            self._returns[entity] = trio.current_time()
            self.changes.notify()
        return True

    def _silent(self, entity: EntityPath, began: float) -> None:
        was_lost = self.is_lost
        self._reachability.silent(entity.key, began, trio.current_time())
        if self.is_lost and not was_lost:
            self._slow_start.start_again()
            self.changes.notify()

    def _lose(self, reason: str) -> None:
        was_lost = self.is_lost
        self._reachability.unconnected(reason, trio.current_time())
        if not was_lost:
            self._slow_start.start_again()
            self.changes.notify()

    def _record_answer(self, began: float) -> None:
        """Record an answer to a request that began at `began`."""
        self._answered = max(self._answered, began)
        was_lost, was_silent = self.is_lost, self._reachability.is_any_silent
        if self._reachability.answered(began) and was_lost:
            self.found_at = trio.current_time()
        if was_lost or was_silent or self._asking:
            self.changes.notify()
