"""Backoff per entity: when the syphon sends to it again, and how many messages at once."""

import math
import random
from collections.abc import Mapping
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.backoff import Backoff
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import SyphonBackedOff
from gateway.domain.failover import State
from gateway.pairing.entity_record import Attempt
from gateway.pairing.state_table import DIVERTED, SUSPECT
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.grace import Grace
from gateway.pairing.syphon.pauses import Pauses
from gateway.pairing.syphon.primary_load import PrimaryLoad
from gateway.ports import Observer

SPREAD: Final = 0.2  # the entities of a namespace that was busy don't resume together
MAX_BACKOFFS: Final = 10_000  # beyond it the oldest is forgotten: its entity is tried early
IN_TROUBLE: Final = DIVERTED | SUSPECT


@attrs.define(eq=False, kw_only=True)
class Permit:
    """Permission for one send to an entity, with `most` messages. `release` ends it."""

    entity: EntityPath
    most: int
    attempt: Attempt | None  # for the failover states; None: they aren't known
    began: float = attrs.field(factory=trio.current_time)


@attrs.define(eq=False)
class _EntityBackoff:
    until: float = 0.0
    failures: int = 0
    window: int = 1  # messages per send
    failed_at: float = math.inf  # when it failed by an outage, with which it ends
    # The sends that no other may join: the one after a failure, and those without an answer.
    tries: set[Permit] = attrs.field(factory=set)


@attrs.define(eq=False, kw_only=True)
class EntityBackoffs:
    """
    The backoff of each entity that failed, shared by the drains of all backlog queues.

    An entity is suspended while it backs off, and then while its one try is under way. A backoff
    after a failure that counts as an outage ends with the outage: when the primary, or by the
    failover states the entity, is well again. Where these states are known (the syphon runs inside
    the gateway) an entity is suspended as well while it is suspect, failed over or pinned, but for
    the one trial that it may have, and is resumed as soon as it returns to the primary. An operator
    may pause it. All are suspended while the primary can't be reached (`primary_load`).
    """

    rng: random.Random
    observer: Observer
    load: PrimaryLoad
    largest: int  # messages per send while the entity is healthy
    gone_grace: float = math.inf  # seconds
    states: EntityStates | None = None
    pauses: Pauses = attrs.field(factory=Pauses)
    most: int = MAX_BACKOFFS
    _backoffs: Bounded[str, _EntityBackoff] = attrs.field(init=False)
    _gone: Grace = attrs.field(factory=Grace, init=False)  # by the entity's key
    _changes: Changes = attrs.field(factory=Changes, init=False)  # of all that suspends an entity

    def __attrs_post_init__(self) -> None:
        self._backoffs = Bounded(self.most)
        self.load.changes.pass_on(self._changes)
        self.pauses.changes.pass_on(self._changes)
        if self.states is not None:
            self.states.changes.pass_on(self._changes)
            self.states.evidence.changes.pass_on(self._changes)

    def is_suspended(self, entity: EntityPath) -> bool:
        """True if nothing may be sent to the entity now."""
        if self._is_in_trouble(entity):
            self._row(entity).window = 1  # the first send after the return has one message
            return True
        return self._is_held(entity)

    def window(self, entity: EntityPath) -> int:
        """
        The number of messages that one send to the entity may have: 1 after a failure, and twice as
        many after each success.
        """
        row = self._backoffs.get(entity.key)
        return self.largest if row is None else row.window

    async def wait_for_more(self) -> bool:
        """
        Return when the primary can be reached, and no send waits for room, so that messages may be
        received. True: the primary was lost meanwhile.
        """
        was_lost = self.load.is_lost
        await self.load.wait_found()
        await self.load.wait_for_room()
        return was_lost

    def begin(self, entity: EntityPath) -> Permit | None:
        """
        Begin a send, or the one trial of a suspect or half-open entity. None: it is suspended.

        The caller must end the permit with `finish` or `release`; the first of these calls counts.
        """
        if self._is_held(entity):
            return None
        attempt, row = None, self._backoffs.get(entity.key)
        if self.states is not None:
            self.states.suspect(entity)
            attempt = self.states.begin(entity)
        if self._is_in_trouble(entity):
            attempt = None if self.states is None else self.states.begin_trial(entity)
            if attempt is None:
                return None
            return Permit(attempt=attempt, entity=entity, most=1)
        permit = Permit(attempt=attempt, entity=entity, most=self.window(entity))
        if row is not None and row.failures:
            row.tries.add(permit)
        return permit

    def hold(self, permit: Permit) -> None:
        """Note that the send has had no answer for long: its entity gets no other meanwhile."""
        row = self._backoffs.setdefault(permit.entity.key, _EntityBackoff(window=self.largest))
        row.tries.add(permit)

    def silent(self, permit: Permit) -> None:
        """Note that neither the send nor a probe of its entity had an answer in time."""
        if self.states is not None and permit.attempt is not None:
            self.states.slow(permit.attempt)

    def finish(self, permit: Permit, error: BrokerError | None) -> None:
        """
        Report the result of a trial to the entity states. A suspect entity becomes healthy by any
        send that is accepted in time.
        """
        attempt = permit.attempt
        if self.states is None or attempt is None:
            return
        is_late = trio.current_time() - attempt.began >= self.states.options.slowest_success
        is_suspect = self.states.state_of(permit.entity) is State.SUSPECT
        if attempt.trial and error is not None and error.counts_as_outage:
            self.states.failed(attempt, error)
        elif error is None and (attempt.trial or (is_suspect and not is_late)):
            self.states.sent(attempt, late=is_late)

    def release(self, permit: Permit) -> None:
        """End the permit, whether or not the send had a result, so that the next one may begin."""
        row, attempt = self._backoffs.get(permit.entity.key), permit.attempt
        if row is not None and permit in row.tries:
            row.tries.remove(permit)
            self._changes.notify()
        if self.states is not None and attempt is not None:
            self.states.release(attempt)

    def back_off(
        self,
        entity: EntityPath,
        backoff: Backoff,
        reason: str,
        least: float = 0.0,
        *,
        outage_at: float | None = None,
        in_doubt: int = 0,
    ) -> None:
        """
        Begin a backoff of at least `least` seconds because a send to the entity failed, of which
        the primary may have `in_doubt` messages. After a failure that counts as an outage, which
        tells about the moment `outage_at`, it ends earlier if the primary is lost and then answers
        again. It isn't reported if the primary was back after that moment and none is in doubt.

        Each consecutive failure lengthens the backoff. Failures during a backoff count as one:
        they are concurrent sends from several queues that fail together.
        """
        row = self._row(entity)
        if row.until <= trio.current_time():
            row.failures += 1
        row.window = 1
        row.failed_at = math.inf if outage_at is None else trio.current_time()
        if outage_at is not None:
            self.load.probe_until_back(entity)
        seconds = max(least, backoff.delay(row.failures, self.rng))
        row.until = max(row.until, trio.current_time() + seconds)
        self._changes.notify()
        is_past = outage_at is not None and outage_at < self.returned_at(entity)
        if in_doubt or not is_past:
            self.observer.report(
                SyphonBackedOff(entity=entity, seconds=seconds, reason=reason, in_doubt=in_doubt)
            )

    def returned_at(self, entity: EntityPath) -> float:
        """
        When the primary, or the entity, was well again after it had failed; minus infinity: it
        hasn't been since.
        """
        known = -math.inf if self.states is None else self.states.returned_at(entity)
        return max(known, self.load.returned_at(entity))

    async def wait_change(self) -> None:
        """Return at the next change of anything that suspends an entity."""
        await self._changes.wait_next()

    def spread(self, seconds: float) -> float:
        """A random time of `seconds` at least, and longer by a share of `SPREAD` at most."""
        return seconds * (1.0 + SPREAD * self.rng.random())

    def gone_for(self, entity: EntityPath) -> float:
        """
        Record that the primary reports the entity as missing; return for how many seconds it has.

        The time starts again when the entity was not reported as missing for `grace.SILENCE`.
        """
        self._row(entity)
        return self._gone.lasted(entity.key)

    def gone(self) -> Mapping[str, float]:
        """Seconds for which each entity has been missing, of those that messages wait for now."""
        return self._gone.lasting()

    def confirm(self, entity: EntityPath, began: float | None = None, messages: int = 1) -> None:
        """End the backoff, and double the window: the primary accepted a send, begun at `began`."""
        if began is not None:
            self.load.answered(entity, began, messages)
        self._gone.forget(entity.key)
        row = self._backoffs.get(entity.key)
        if row is None:
            return
        row.failures, row.until = 0, 0.0
        row.tries.clear()
        self._changes.notify()
        row.window *= 2
        if row.window >= self.largest:
            del self._backoffs[entity.key]

    @property
    def backing_off(self) -> int:
        """The number of entities that back off now because their own sends failed."""
        now = trio.current_time()
        return sum(row.until > now for row in self._backoffs.values())

    async def wait_until_resumed(self, entity: EntityPath) -> None:
        """Return when the entity isn't suspended any more."""
        while self.is_suspended(entity):
            row = self._backoffs.get(entity.key)
            until = trio.current_time() + self._grace_left(entity)
            if self._is_backing_off(entity) and row is not None:
                until = row.until
            with trio.move_on_at(until):
                await self._changes.wait_next()

    async def wait_until_suspended(self, entity: EntityPath) -> None:
        """Return when nothing may be sent to the entity."""
        while not self.is_suspended(entity):
            await self._changes.wait_next()

    def failed(self, entity: EntityPath) -> bool:
        """True if the primary has accepted no message for the entity since its last failure."""
        row = self._backoffs.get(entity.key)
        return row is not None and row.failures > 0

    async def wait_for_outcome(self, entity: EntityPath, seconds: float) -> bool:
        """
        Wait for the outcome of the one message that tries an entity which has failed.

        False: the entity is suspended again. True: the primary accepted a message, or `seconds`
        passed without an outcome.
        """
        with trio.move_on_after(seconds):
            while self.failed(entity) and not self.is_suspended(entity):
                await self._changes.wait_next()
        return not self.is_suspended(entity)

    def _row(self, entity: EntityPath) -> _EntityBackoff:
        return self._backoffs.setdefault(entity.key, _EntityBackoff())

    def _is_held(self, entity: EntityPath) -> bool:
        """True if the primary, an operator, or the syphon's own sends to the entity suspend it."""
        row = self._backoffs.get(entity.key)
        is_tried = row is not None and bool(row.tries)
        is_away = self.load.is_lost or self.load.is_silent(entity)
        is_paused = self.pauses.is_paused(entity)
        return is_tried or is_away or is_paused or self._is_backing_off(entity)

    def _is_backing_off(self, entity: EntityPath) -> bool:
        row = self._backoffs.get(entity.key)
        if row is None or row.until <= trio.current_time():
            return False
        if row.failed_at < self.returned_at(entity):
            row.until = 0.0
            return False
        return True

    def _is_in_trouble(self, entity: EntityPath) -> bool:
        """True if the gateway doesn't send to the entity, but for trials."""
        if self.states is None or self.states.state_of(entity) not in IN_TROUBLE:
            return False
        return self._grace_left(entity) > 0

    def _grace_left(self, entity: EntityPath) -> float:
        """
        Seconds until a failed-over entity that a probe found missing is tried all the same: if the
        primary confirms it, its messages are dead-lettered. Infinite for a pinned entity.
        """
        if self.states is None or self.states.unreachable(entity) is None:
            return math.inf
        if self.states.state_of(entity) is State.PINNED:
            return math.inf
        return self.gone_grace - self.gone_for(entity)
