"""
Where every entity of one pair stands now. Entities in good health take no memory.

All methods but the waits are synchronous: read, decide, write, with no other task in between.
"""

import fnmatch
import random
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events import LoopPaused, StandingChanged
from gateway.domain.failover import Event, Failover, FailoverRule, State
from gateway.pairing.changes import Changes
from gateway.pairing.options import EntityRule, PairOptions
from gateway.ports import Observer, WallClock

MAX_TROUBLED: Final = 10_000  # further entities are diverted send by send, without a memory of it
BEAT: Final = 2.0  # seconds between two looks at our own pulse
SMALLEST_PAUSE: Final = 2.0  # seconds late before we call it a pause of the gateway
DIVERTED: Final = frozenset({State.SECONDARY, State.HALF_OPEN, State.PINNED})
HEALTHY: Final = Failover()


@attrs.frozen(kw_only=True)
class Attempt:
    """
    A send to the primary that is on its way: what it finds out counts only in its own time.

    `turn` numbers the changes of leg, of all entities, up to its start: when its own entity has
    changed the leg since, the answer is late and says nothing. `pauses` likewise for a gateway
    that stood still meanwhile.
    """

    entity: EntityPath
    turn: int
    pauses: int
    began: float  # trio.current_time()
    trial: bool = False


@attrs.frozen(kw_only=True)
class Standing:
    """What an operator sees of one troubled entity; also what survives a restart."""

    entity: EntityPath
    state: State
    since: datetime
    reason: str


@attrs.define(eq=False)
class _Record:
    entity: EntityPath
    since: datetime
    reason: str = ""
    failover: Failover = HEALTHY
    turn: int = 0  # of its last change of leg
    changed: float = 0.0
    trial: Attempt | None = None  # the one that is on its way
    trial_failures: int = 0
    next_trial: float = 0.0
    unreachable: BrokerError | None = None
    verdict: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)


@attrs.define(eq=False, kw_only=True)
class Standings:
    """The table of `domain.failover`, one row per troubled entity, shared by all senders."""

    options: PairOptions
    clock: WallClock
    observer: Observer
    rng: random.Random
    _records: dict[str, _Record] = attrs.field(factory=dict, init=False)
    changes: Changes = attrs.field(factory=Changes, init=False)
    _turn: int = attrs.field(default=0, init=False)
    _pauses: int = attrs.field(default=0, init=False)
    _last_beat: float | None = attrs.field(default=None, init=False)

    # What senders ask and tell.

    def state_of(self, entity: EntityPath) -> State:
        record = self._records.get(entity.key)
        return State.PRIMARY if record is None else record.failover.state

    def unreachable(self, entity: EntityPath) -> BrokerError | None:
        """What a probe found, if the entity is gone or disabled on the primary."""
        record = self._records.get(entity.key)
        return None if record is None else record.unreachable

    def begin(self, entity: EntityPath) -> Attempt:
        """A send to the primary starts."""
        return Attempt(
            entity=entity, turn=self._turn, pauses=self._pauses, began=trio.current_time()
        )

    def begin_trial(self, entity: EntityPath) -> Attempt | None:
        """
        Be the one send that tries the primary while the entity is suspect or half open.

        None: another one is, or it is too early for the next. Who gets an attempt must end it
        with `sent`, `failed` or `release`, of which the first one counts.
        """
        record = self._records.get(entity.key)
        if record is None or record.trial is not None or trio.current_time() < record.next_trial:
            return None
        if record.failover.state not in {State.SUSPECT, State.HALF_OPEN}:
            return None
        record.trial = attrs.evolve(self.begin(entity), trial=True)
        return record.trial

    def sent(self, attempt: Attempt) -> None:
        """The primary accepted it."""
        record = self._records.get(attempt.entity.key)
        if record is None:
            return
        if attempt.turn >= record.turn:
            self._note(record, Event.TRIAL_SENT if attempt.trial else Event.SENT, "sent")
        self._end_trial(attempt, record)

    def failed(self, attempt: Attempt, error: BrokerError) -> None:
        """It failed in a way that counts as an outage."""
        self._notice_pause()
        record = self._records.get(attempt.entity.key)
        if record is None and len(self._records) < MAX_TROUBLED:
            record = _Record(attempt.entity, self.clock())
            self._records[attempt.entity.key] = record
        if record is None:
            return
        if attempt.turn >= record.turn and attempt.pauses == self._pauses:
            self._note(record, Event.FAILED, str(error), began=attempt.began)
            if attempt.trial or record.trial_failures == 0:  # sends that fail together are one
                record.trial_failures += 1
            record.next_trial = trio.current_time() + self._trial_pause(record)
        self._end_trial(attempt, record)

    def refused(self, attempt: Attempt) -> None:
        """It was answered, in a way that says nothing about the primary's health."""
        record = self._records.get(attempt.entity.key)
        if record is not None and attempt.turn >= record.turn:
            why = "no failure for a whole interval, and an answer"
            self._note(record, Event.REFUSED, why, began=attempt.began)

    def release(self, attempt: Attempt) -> None:
        """The attempt ended without saying anything about the primary's health."""
        record = self._records.get(attempt.entity.key)
        if record is not None:
            self._end_trial(attempt, record)

    async def wait_verdict(self, entity: EntityPath, seconds: float) -> None:
        """Return when the running trial ended, at the latest after that time."""
        await trio.lowlevel.checkpoint()
        record = self._records.get(entity.key)
        if record is not None and record.trial is not None:
            with trio.move_on_after(seconds):
                await record.verdict.park()

    # What the prober tells.

    def probed(self, entity: EntityPath) -> None:
        """A probe reached the entity on the primary."""
        record = self._records.get(entity.key)
        if record is not None:
            record.unreachable = None
            self._note(record, Event.PROBED, "a probe was answered")

    def probe_failed(self, entity: EntityPath, error: BrokerError) -> None:
        """A probe failed; half open closes again."""
        record = self._records.get(entity.key)
        if record is not None and record.failover.state is State.HALF_OPEN:
            self._note(record, Event.FAILED, f"a probe failed: {error}")

    def found_unreachable(self, entity: EntityPath, error: BrokerError) -> None:
        """A probe found the entity deleted or disabled."""
        record = self._records.get(entity.key)
        if record is None:
            return
        if record.unreachable is None:
            record.reason = f"a probe found: {error}"
            self.changes.note()
        record.unreachable = error
        self.probe_failed(entity, error)

    # What an operator says.

    def force_over(self, entity: EntityPath) -> None:
        """Pin the entity to the backlog until `force_back`."""
        record = self._records.setdefault(entity.key, _Record(entity, self.clock()))
        self._note(record, Event.FORCED_OVER, "an operator said so")

    def force_back(self, entity: EntityPath) -> None:
        """Take the entity back to the primary; if that still fails, a new streak begins."""
        record = self._records.get(entity.key)
        if record is not None:
            self._note(record, Event.FORCED_BACK, "an operator said so")

    # What others watch.

    def troubled(self) -> list[Standing]:
        return [
            Standing(entity=r.entity, state=r.failover.state, since=r.since, reason=r.reason)
            for r in self._records.values()
            if r.failover.state is not State.PRIMARY
        ]

    def failed_over(self) -> list[EntityPath]:
        """Entities that wait for the primary to answer a probe."""
        waiting = {State.SECONDARY, State.HALF_OPEN}
        return [r.entity for r in self._records.values() if r.failover.state in waiting]

    def restore(self, standings: Iterable[Standing]) -> None:
        """Take over what was saved: failed over and pinned entities are so at once."""
        for standing in standings:
            if standing.state not in DIVERTED:
                continue  # suspect: the time before the restart doesn't count
            pinned = standing.state is State.PINNED
            state = State.PINNED if pinned else State.SECONDARY
            self._records[standing.entity.key] = _Record(
                entity=standing.entity,
                since=standing.since,
                reason=standing.reason,
                failover=Failover(state=state),
                changed=trio.current_time(),
            )
        self.changes.note()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Feel our own pulse, so that a paused gateway doesn't take its pause for an outage."""
        self._last_beat = trio.current_time()
        task_status.started()
        try:
            while True:
                await trio.sleep(BEAT)
                self._notice_pause()
                self._last_beat = trio.current_time()
                self._forget_recovered()
        finally:
            self._last_beat = None

    # Inside.

    def _trial_pause(self, record: _Record) -> float:
        """Well below the interval: between trials further apart, each would begin a new streak."""
        pause = self.options.trial_pause.delay(record.trial_failures, self.rng)
        return min(pause, rule_for(record.entity, self.options).interval / 2)

    def _note(
        self, record: _Record, event: Event, reason: str, *, began: float | None = None
    ) -> None:
        before = record.failover
        now = trio.current_time()
        rule = rule_for(record.entity, self.options)
        record.failover = before.advance(event, rule, now=now, began=began)
        after = record.failover.state
        if after is before.state:
            return
        # Between healthy and suspect the leg stays the same, so an answer still counts.
        if {before.state, after} != {State.PRIMARY, State.SUSPECT}:
            self._turn += 1
            record.turn = self._turn
            record.next_trial = now
        if after is State.PRIMARY:
            record.trial_failures = 0
            record.next_trial = now
            record.unreachable = None
        record.since, record.reason, record.changed = self.clock(), reason, now
        record.verdict.unpark_all()
        self.changes.note()
        self.observer.report(
            StandingChanged(
                entity=record.entity, before=before.state.value, after=after.value, reason=reason
            )
        )

    def _end_trial(self, attempt: Attempt, record: _Record) -> None:
        if record.trial is attempt:
            record.trial = None
            record.verdict.unpark_all()

    def _notice_pause(self) -> None:
        if self._last_beat is None:
            return
        late = trio.current_time() - self._last_beat - BEAT
        if late < shortest_pause(self.options):
            return
        self._last_beat = trio.current_time()
        self._pauses += 1
        self.observer.report(LoopPaused(seconds=late))
        for record in self._records.values():
            self._note(record, Event.PAUSED, f"the gateway stood still for {late:.1f} s")

    def _forget_recovered(self) -> None:
        # Kept while an attempt from before the recovery may still answer.
        horizon = trio.current_time() - 2 * self.options.send_timeout
        for key, record in list(self._records.items()):
            healthy = record.failover == HEALTHY and record.trial is None
            if healthy and record.changed < horizon:
                del self._records[key]


def rule_for(entity: EntityPath, options: PairOptions) -> FailoverRule:
    rule = entity_rule(entity, options.entities)
    interval = options.failover_interval
    if rule is not None and rule.failover_interval is not None:
        interval = rule.failover_interval
    return FailoverRule(interval=interval, successes_to_return=options.successes_to_return)


def shortest_pause(options: PairOptions) -> float:
    """
    Seconds late from which the pulse tells of a pause.

    What is shorter makes neither an attempt time out nor a streak old enough, by itself; several
    in a row, each as long as an attempt, would make an outage of any interval.
    """
    harmless = min(shortest_interval(options), options.attempt_timeout) / 2
    return max(SMALLEST_PAUSE, harmless)


def shortest_interval(options: PairOptions) -> float:
    given = (rule.failover_interval for rule in options.entities)
    return min([options.failover_interval, *(seconds for seconds in given if seconds is not None)])


def entity_rule(entity: EntityPath, rules: Sequence[EntityRule]) -> EntityRule | None:
    """The first rule whose pattern matches; case is ignored."""
    return next((r for r in rules if fnmatch.fnmatchcase(entity.key, r.match.lower())), None)
