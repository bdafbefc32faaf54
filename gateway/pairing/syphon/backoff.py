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
from gateway.pairing.states import DIVERTED, EntityStates
from gateway.pairing.syphon.grace import Grace
from gateway.pairing.syphon.pauses import Pauses
from gateway.pairing.syphon.primary_load import PrimaryLoad
from gateway.ports import Observer

SPREAD: Final = 0.2  # the entities of a namespace that was busy don't resume together
MAX_BACKOFFS: Final = 10_000  # beyond it the oldest is forgotten: its entity is tried early


@attrs.define(eq=False)
class _Backoff:
    until: float
    failures: int = 0
    window: int = 1  # messages per send


@attrs.define(eq=False, kw_only=True)
class EntityBackoffs:
    """
    The backoff of each entity that failed, shared by the drains of all backlog queues.

    An entity is suspended while it backs off. Where the failover states are known (the syphon runs
    inside the gateway) an entity is suspended as well while it is failed over or pinned, and is
    resumed as soon as it returns to the primary. An operator may pause it. All are suspended while
    the primary can't be reached (`primary_load`).
    """

    rng: random.Random
    observer: Observer
    load: PrimaryLoad
    largest: int  # messages per send while the entity is healthy
    gone_grace: float = math.inf  # seconds
    states: EntityStates | None = None
    pauses: Pauses = attrs.field(factory=Pauses)
    most: int = MAX_BACKOFFS
    _backoffs: Bounded[str, _Backoff] = attrs.field(init=False)
    _gone: Grace = attrs.field(factory=Grace, init=False)  # by the entity's key
    _changes: Changes = attrs.field(factory=Changes, init=False)  # of answers by the primary

    def __attrs_post_init__(self) -> None:
        self._backoffs = Bounded(self.most)

    def is_suspended(self, entity: EntityPath) -> bool:
        """True if nothing may be sent to the entity now."""
        if self._is_diverted(entity):
            self._row(entity).window = 1  # the first send after the return has one message
            return True
        return self.load.is_lost or self._is_backing_off(entity) or self.pauses.is_paused(entity)

    def window(self, entity: EntityPath) -> int:
        """
        The number of messages that one send to the entity may have.

        It is 1 after a failure and doubles with each success. It is 1 for a suspect entity, so
        that a send whose outcome stays unknown duplicates one message at most.
        """
        if self._is_suspect(entity):
            return 1
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

    def trial(self, entity: EntityPath) -> Attempt | None:
        """Begin the trial of a half-open entity: one message. None: no trial is due."""
        if self.states is None or self.states.state_of(entity) is not State.HALF_OPEN:
            return None
        if self._is_backing_off(entity) or self.pauses.is_paused(entity):
            return None
        return self.states.begin_trial(entity)

    def end_trial(self, trial: Attempt, error: BrokerError | None) -> None:
        """Report the result of a trial to the entity states."""
        if self.states is None:
            return
        if error is None:
            self.states.sent(trial, late=self._is_late(trial.began))
        elif error.counts_as_outage:
            self.states.failed(trial, error)

    def release_trial(self, trial: Attempt) -> None:
        """End the trial, whether or not it had a result, so that the next one may begin."""
        if self.states is not None:
            self.states.release(trial)

    def back_off(
        self, entity: EntityPath, backoff: Backoff, reason: str, least: float = 0.0
    ) -> None:
        """
        Begin a backoff of at least `least` seconds because a send to the entity failed.

        Each consecutive failure lengthens the backoff. Failures during a backoff count as one:
        they are concurrent sends from several queues that fail together.
        """
        row = self._row(entity)
        if row.until <= trio.current_time():
            row.failures += 1
        row.window = 1
        seconds = max(least, backoff.delay(row.failures, self.rng))
        row.until = max(row.until, trio.current_time() + seconds)
        self._changes.note()
        self.observer.report(SyphonBackedOff(entity=entity, seconds=seconds, reason=reason))

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
        """
        End the backoff, and double the window: the primary accepted a send, begun at `began`.

        A suspect entity becomes healthy, as after any send that is accepted in time.
        """
        late = began is not None and self._is_late(began)
        if began is not None:
            self.load.answered(began, messages)
        if self.states is not None and self._is_suspect(entity) and not late:
            self.states.sent(self.states.begin(entity))
        self._gone.end(entity.key)
        row = self._backoffs.get(entity.key)
        if row is None:
            return
        row.failures, row.until = 0, 0.0
        self._changes.note()
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
        await trio.lowlevel.checkpoint()
        while self.is_suspended(entity):
            row = self._backoffs.get(entity.key)
            until = 0.0 if row is None else row.until
            if self.pauses.is_paused(entity):
                await self.pauses.changes.wait_next()
            elif until > trio.current_time():
                with trio.move_on_at(until):
                    await self._changes.wait_next()
            elif self.load.is_lost:
                await self.load.wait_found()
            elif self.states is not None:
                with trio.move_on_after(self._grace_left(entity)):
                    await self.states.changes.wait_next()

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
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(seconds):
            while self.failed(entity) and not self.is_suspended(entity):
                await self._changes.wait_next()
        return not self.is_suspended(entity)

    def _row(self, entity: EntityPath) -> _Backoff:
        return self._backoffs.setdefault(entity.key, _Backoff(0.0))

    def _is_backing_off(self, entity: EntityPath) -> bool:
        row = self._backoffs.get(entity.key)
        return row is not None and row.until > trio.current_time()

    def _is_diverted(self, entity: EntityPath) -> bool:
        if self.states is None or self.states.state_of(entity) not in DIVERTED:
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

    def _is_late(self, began: float) -> bool:
        if self.states is None:
            return False
        return trio.current_time() - began >= self.states.options.slowest_success

    def _is_suspect(self, entity: EntityPath) -> bool:
        return self.states is not None and self.states.state_of(entity) is State.SUSPECT
