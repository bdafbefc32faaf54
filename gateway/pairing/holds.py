"""Entities that the syphon lets rest, and how gently it begins again."""

import random
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events import SyphonHeld
from gateway.domain.failover import State
from gateway.pairing.changes import Changes
from gateway.pairing.grace import Grace
from gateway.pairing.standings import DIVERTED, Attempt, Standings
from gateway.ports import Observer

MAX_HOLDS: Final = 10_000  # beyond it the oldest is forgotten, and its entity asked too early


@attrs.define(eq=False)
class _Hold:
    until: float
    failures: int = 0
    window: int = 1  # messages that may go at once after a failure


@attrs.define(eq=False, kw_only=True)
class Holds:
    """
    One row for each entity that failed, shared by the tasks of all backlog queues.

    Where the failover standings are known (the syphon runs inside the gateway), an entity that
    is failed over or pinned is held too, and is let go as soon as it comes back.
    """

    rng: random.Random
    observer: Observer
    largest: int  # messages that may go at once in good times
    standings: Standings | None = None
    _holds: dict[str, _Hold] = attrs.field(factory=dict, init=False)
    _gone: Grace = attrs.field(factory=Grace, init=False)  # by the entity's key
    _news: Changes = attrs.field(factory=Changes, init=False)  # of what the primary says

    def held(self, entity: EntityPath) -> bool:
        if self._out(entity):
            self._row(entity).window = 1  # gently, when it comes back
            return True
        return self._rests(entity)

    def window(self, entity: EntityPath) -> int:
        """
        How many messages may go at once: it doubles with each success after a failure.

        One to a suspect entity: if nobody learns what became of it, one more copy is enough.
        """
        if self._suspect(entity):
            return 1
        hold = self._holds.get(entity.key)
        return self.largest if hold is None else hold.window

    def trial(self, entity: EntityPath) -> Attempt | None:
        """The right to send the one message that shows whether a half-open entity is well."""
        if self.standings is None or self.standings.state_of(entity) is not State.HALF_OPEN:
            return None
        if self._rests(entity):
            return None
        return self.standings.begin_trial(entity)

    def end_trial(self, trial: Attempt, error: BrokerError | None) -> None:
        """Tell the standings what the trial found."""
        if self.standings is None:
            return
        if error is None:
            self.standings.sent(trial)
        elif error.counts_as_outage:
            self.standings.failed(trial, error)

    def release(self, trial: Attempt) -> None:
        """The trial is over, also if it found nothing; the next may begin."""
        if self.standings is not None:
            self.standings.release(trial)

    def hold(self, entity: EntityPath, backoff: Backoff, reason: str, least: float = 0.0) -> None:
        """
        A send to that entity failed: it rests, longer after each failure in a row.

        Sends of several queues that were under way together fail together, and that is once.
        """
        hold = self._row(entity)
        if hold.until <= trio.current_time():
            hold.failures += 1
        hold.window = 1
        seconds = max(least, backoff.delay(hold.failures, self.rng))
        hold.until = max(hold.until, trio.current_time() + seconds)
        self._news.note()
        self.observer.report(SyphonHeld(entity=entity, seconds=seconds, reason=reason))

    def gone_for(self, entity: EntityPath) -> float:
        """
        Seconds since the primary first said that there is no such entity, which it says again.

        It may have been there meanwhile, if nothing was heard of it for longer than any hold.
        """
        self._row(entity)
        return self._gone.lasted(entity.key)

    def confirm(self, entity: EntityPath) -> None:
        """
        The primary accepted a message: no more waiting, but a slow start.

        It isn't suspect any more, as after any send that it accepts.
        """
        if self.standings is not None and self._suspect(entity):
            self.standings.sent(self.standings.begin(entity))
        self._gone.end(entity.key)
        hold = self._holds.get(entity.key)
        if hold is None:
            return
        hold.failures, hold.until = 0, 0.0
        self._news.note()
        hold.window *= 2
        if hold.window >= self.largest:
            del self._holds[entity.key]

    @property
    def resting(self) -> int:
        """How many entities rest now after a failure of their own."""
        now = trio.current_time()
        return sum(hold.until > now for hold in self._holds.values())

    async def wait_release(self, entity: EntityPath) -> None:
        """Return when the entity isn't held any more."""
        await trio.lowlevel.checkpoint()
        while self.held(entity):
            hold = self._holds.get(entity.key)
            until = 0.0 if hold is None else hold.until
            if until > trio.current_time():
                with trio.move_on_at(until):
                    await self._news.wait(self._news.version)
            elif self.standings is not None:
                await self.standings.changes.wait(self.standings.changes.version)

    def failed(self, entity: EntityPath) -> bool:
        """Whether the primary has taken nothing of it since it failed."""
        hold = self._holds.get(entity.key)
        return hold is not None and hold.failures > 0

    async def wait_proof(self, entity: EntityPath, seconds: float) -> bool:
        """
        Wait for what becomes of a message that tries an entity which has failed.

        False: it's held again. True: the primary took one, or said nothing for so many seconds.
        """
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(seconds):
            while self.failed(entity) and not self.held(entity):
                await self._news.wait(self._news.version)
        return not self.held(entity)

    def _row(self, entity: EntityPath) -> _Hold:
        if entity.key not in self._holds and len(self._holds) >= MAX_HOLDS:
            del self._holds[next(iter(self._holds))]
        return self._holds.setdefault(entity.key, _Hold(0.0))

    def _rests(self, entity: EntityPath) -> bool:
        hold = self._holds.get(entity.key)
        return hold is not None and hold.until > trio.current_time()

    def _out(self, entity: EntityPath) -> bool:
        if self.standings is None:
            return False
        return self.standings.state_of(entity) in DIVERTED

    def _suspect(self, entity: EntityPath) -> bool:
        return self.standings is not None and self.standings.state_of(entity) is State.SUSPECT
