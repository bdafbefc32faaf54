"""
Probes every troubled entity on the primary until enough probes succeed.

A suspect entity is probed several times within its failover interval, and once more at its end, so
that it fails over or recovers even without sends. While the namespace can't be reached its entities
are probed in turn, a few at a time, as each answer concerns all of them. Once any answer shows that
it is back, each troubled entity is probed at once, whatever its pause.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff, jittered
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, EntityDisabled, EntityNotFound
from gateway.domain.failover import State
from gateway.domain.operators.probe import ProbeResult
from gateway.pairing.entity_record import Attempt
from gateway.pairing.options import PairOptions, rule_for
from gateway.pairing.sending import unanswered
from gateway.pairing.slow_watch import STALL
from gateway.pairing.state_table import PROBED
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.slow_start import SlowStart
from gateway.ports import Broker

# `AT_ONCE` bounds the probes of one gateway, `FIRST` those that a thousand gateways make in the
# second in which their primary returns: benchmarks/results/2026-11-26-fleet.md.
AT_ONCE: Final = 16  # concurrent probes
FIRST: Final = 4  # concurrent probes, until answers show that the namespace is quick
PATIENCE: Final = 1.0  # seconds after which a probe without an answer leaves room for others
IN_TURN: Final = 3  # concurrent probes while the namespace can't be reached: more than one entity
AFTER_SUCCESS: Final = 1.0  # seconds between probes of an entity that answers
JITTER: Final = 0.2
SHARE: Final = 0.25  # of the failover interval, at most, between probes of a suspect
SHORTEST: Final = 0.1  # seconds, however short an interval is
# Seconds between probes of a suspect, at most: after a short outage its sends are back so soon.
# With 3 s a backlog is home within ten seconds after an outage of 20 s (benchmarks/chaos).
LONGEST: Final = 3.0
SPREAD: Final = 1.0  # seconds over which the probes of many entities begin after a return
# Seconds, at least, between two returns that end pauses: a namespace that comes and goes isn't
# probed without a pause.
BETWEEN_RETURNS: Final = 10.0


@attrs.define(eq=False)
class _RequestedProbe:
    """A probe that an operator asked for, and that several operators may wait for."""

    ended: trio.Event = attrs.field(factory=trio.Event)
    result: ProbeResult | None = None  # None: the probe was cancelled


@attrs.define(eq=False, kw_only=True)
class Prober:
    """Runs one task per troubled entity, and none while all are healthy."""

    primary: Broker
    states: EntityStates
    options: PairOptions
    rng: random.Random
    _next: int = attrs.field(default=0, init=False)
    _probed: set[str] = attrs.field(factory=set, init=False)
    _due: dict[str, float] = attrs.field(factory=dict, init=False)  # by `key`, of Trio's clock
    _returns: int = attrs.field(default=0, init=False)  # that have ended pauses
    _pauses: dict[trio.CancelScope, None] = attrs.field(factory=dict, init=False)  # that end then
    # The dates of the next probes of the tasks that probe in turn.
    _turns: dict[int, float] = attrs.field(factory=dict, init=False)
    _asked: dict[str, _RequestedProbe] = attrs.field(
        factory=dict, init=False
    )  # in progress, by `key`
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(AT_ONCE), init=False
    )
    _slow_start: SlowStart = attrs.field(
        factory=lambda: SlowStart(first=FIRST, least=1, most=AT_ONCE), init=False
    )

    def next_probe(self, entity: EntityPath) -> float | None:
        """
        Seconds until a probe that may let the entity return: its own, or while the namespace can't
        be reached the next one of any entity. 0: now. None: none is due.
        """
        lost = self.states.evidence.namespace.is_lost
        due = min(self._turns.values(), default=None) if lost else self._due.get(entity.key)
        if due is None or not self._is_probed(entity):
            return None
        return max(0.0, due - trio.current_time())

    def is_asked(self, entity: EntityPath) -> bool:
        """True if a probe of the entity that an operator asked for is in progress."""
        return entity.key in self._asked

    async def probe_now(self, entity: EntityPath) -> ProbeResult:
        """
        Probe a troubled entity beside the schedule, or wait for such a probe that is in progress.
        The result counts as that of any probe, and takes at most `attempt_timeout`.
        """
        while (asked := self._asked.get(entity.key)) is not None:
            await asked.ended.wait()
            if asked.result is not None:
                return asked.result
        asked = self._asked[entity.key] = _RequestedProbe()
        began = trio.current_time()
        try:
            failure = await self._ask(entity)
            seconds = round(trio.current_time() - began, 3)
            asked.result = ProbeResult(
                answered=failure is None, seconds=seconds, text=failure or ""
            )
            return asked.result
        finally:
            del self._asked[entity.key]
            asked.ended.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_pauses)
            for number in range(IN_TURN):
                nursery.start_soon(self._probe_in_turn, number)
            task_status.started()
            seen = -1
            while True:
                seen = await self.states.changes.wait(seen)
                for entity in self.states.to_probe():
                    if entity.key not in self._probed:
                        self._probed.add(entity.key)
                        nursery.start_soon(self._probe_until_back, entity)

    async def _cancel_pauses(self) -> None:
        """At each return of the namespace end the pauses of all entities that don't answer."""
        returns = self.states.evidence.returns
        seen = returns.version
        while True:
            seen = await returns.wait(seen)
            self._returns += 1
            for scope in self._pauses:
                scope.cancel()
            await trio.sleep(BETWEEN_RETURNS)

    @contextmanager
    def _pausing(self, seconds: float, returns: int) -> Iterator[None]:
        """
        Cancel the block after `seconds`, or when the namespace returns. `returns` are those known
        before the probe that the pause follows.
        """
        with trio.move_on_after(seconds) as scope:
            self._pauses[scope] = None
            if returns != self._returns:
                scope.cancel()
            try:
                yield
            finally:
                del self._pauses[scope]

    async def _probe_until_back(self, entity: EntityPath) -> None:
        failures, state = 0, self.states.state_of(entity)
        try:
            while self._is_probed(entity):
                await self._wait_until_found()
                if not self._is_probed(entity):
                    return
                returns = self._returns
                has_answered = await self._probe(entity)
                before, state = state, self.states.state_of(entity)
                if has_answered:
                    failures = 0
                    await self._wait(entity, jittered(AFTER_SUCCESS, JITTER, self.rng))
                    continue
                # The pauses start at the shortest again after the failover, which this probe may
                # have completed.
                failed_over = state is State.SECONDARY and before is State.SUSPECT
                failures = 1 if failed_over else failures + 1
                pause = self._pause([entity], failures)
                with self._pausing(pause, returns):
                    await self._wait(entity, pause)
                if returns != self._returns:
                    failures = 0
                    await self._spread()
        finally:
            self._probed.discard(entity.key)
            self._due.pop(entity.key, None)

    async def _spread(self) -> None:
        """Wait for a moment of the next second, if there are many entities to probe."""
        if len(self.states.to_probe()) > FIRST:
            await trio.sleep(self.rng.uniform(0.0, SPREAD))

    async def _probe_in_turn(self, number: int) -> None:
        """
        Probe the entities in turn while the namespace can't be reached, until one answers. `number`
        is that of this task.
        """
        changes = self.states.evidence.changes
        while True:
            seen, seen_states, failures = changes.version, self.states.changes.version, 0
            while entities := self._of_the_lost():
                self._next += 1
                returns = self._returns
                await self._probe(entities[self._next % len(entities)])
                failures += 1
                pause = self._pause(entities, failures)
                self._turns[number] = trio.current_time() + pause
                with self._pausing(pause, returns):
                    await self._wait_until_found()
                if returns != self._returns:
                    failures = 0
            self._turns.pop(number, None)
            if self.states.evidence.namespace.is_lost:  # and no entity needs probes, until one does
                await self.states.changes.wait(seen_states)
            else:
                await changes.wait(seen)

    def _of_the_lost(self) -> list[EntityPath]:
        return self.states.to_probe() if self.states.evidence.namespace.is_lost else []

    async def _wait_until_found(self) -> None:
        """Return when the namespace isn't known to be unreachable."""
        evidence = self.states.evidence
        while evidence.namespace.is_lost:
            await evidence.changes.wait_next()

    async def _probe(self, entity: EntityPath) -> bool:
        """Probe it when it is its turn. True: it answered, or needs no probe any more."""
        async with self._limiter, self._slow_start.room() as room:
            if not self._is_probed(entity):
                return True
            async with trio.open_nursery() as nursery:
                nursery.start_soon(room.leave_after, PATIENCE)
                nursery.start_soon(self._record_silence, self.states.begin(entity))
                failure = await self._ask(entity)
                nursery.cancel_scope.cancel()
            return failure is None

    async def _record_silence(self, probe: Attempt) -> None:
        """Use a probe as evidence once an answer would be late: the next entity shouldn't wait."""
        due = probe.began + self.options.slowest_success
        await trio.sleep_until(due)
        if trio.current_time() - due <= STALL:
            self.states.probe_unanswered(probe)

    async def _ask(self, entity: EntityPath) -> str | None:
        """
        Ask the primary, and record the answer. Return the reason why the answer is a failure; None:
        it is a success.
        """
        probe = self.states.begin(entity)
        try:
            with trio.move_on_after(self.options.attempt_timeout) as scope:
                await self.primary.probe(entity)
        except (EntityNotFound, EntityDisabled) as error:
            self.states.record_unreachable(entity, error, probe)
            return str(error)
        except BrokerError as error:
            if isinstance(error, Busy):
                self._slow_start.lower(probe.began)
            self.states.probe_failed(entity, error, probe)
            return str(error)
        took = trio.current_time() - probe.began
        if scope.cancelled_caught:
            late = unanswered(self.primary, entity, self.options.attempt_timeout)
            self.states.probe_failed(entity, late, probe)
            return str(late)
        self._slow_start.answered(probe.began)
        if took >= self.options.slowest_success:
            self.states.probed_late(probe, took)
            return f"the answer took {took:.3g} s"
        self.states.probed(entity, probe)
        return None

    def _pause(self, entities: list[EntityPath], failures: int) -> float:
        """Seconds until the next probe; several must fit into a suspect's failover interval."""
        pause = Backoff(first=1.0, cap=self.options.ping_interval, jitter=JITTER).delay(
            failures, self.rng
        )
        now = trio.current_time()
        for entity in entities:
            if self.states.state_of(entity) is not State.SUSPECT:
                continue
            pause = min(pause, SHARE * rule_for(entity, self.options).interval, LONGEST)
            ends = self.states.interval_ends(entity)
            if ends is not None and ends > now:
                pause = min(pause, ends - now)
        return max(pause, SHORTEST)

    async def _wait(self, entity: EntityPath, seconds: float) -> None:
        """Sleep, or return earlier if the entity's state changes."""
        self._due[entity.key] = trio.current_time() + seconds
        with trio.move_on_after(seconds):
            await self.states.wait_moved(entity, self.states.state_of(entity))

    def _is_probed(self, entity: EntityPath) -> bool:
        return self.states.state_of(entity) in PROBED
