"""
The state of every entity of one pair. Healthy entities need no memory.

All methods except the waits are synchronous, so that no other task runs between read and write.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityNotFound,
    NoAnswer,
    NotAuthorized,
    NoToken,
    Unreachable,
    no_answer,
)
from gateway.domain.events.gateway import EntityStateChanged, LoopPaused
from gateway.domain.failover import Failover, FailoverEvent, State
from gateway.domain.operators.control import Override, Overrides
from gateway.pairing.entity_record import (
    HEALTHY,
    MAX_TROUBLED,
    Attempt,
    EntityRecord,
    EntityState,
    Records,
    SharedState,
)
from gateway.pairing.evidence import Evidence
from gateway.pairing.options import (
    OnRefusedCredentials,
    OnUnreachable,
    PairOptions,
    WhileSuspect,
    entity_rule,
    rule_for,
    shortest_pause,
)
from gateway.ports import Observer, WallClock

HEARTBEAT: Final = 2.0  # seconds between two heartbeats
FAILED_OVER: Final = frozenset({State.SECONDARY, State.HALF_OPEN})
SUSPECT: Final = frozenset({State.SUSPECT})
FAILING: Final = frozenset({State.SUSPECT, State.HALF_OPEN})  # where a failed probe counts
PROBED: Final = FAILED_OVER | {State.SUSPECT}
DIVERTED: Final = frozenset({State.SECONDARY, State.HALF_OPEN, State.PINNED})
FAILURES: Final = frozenset({FailoverEvent.FAILED, FailoverEvent.SUSPECTED})
FORCED: Final = "forced by an operator"
MOST_ANSWERS: Final = 10_000  # entities, the last used ones, for which advice is taken


def _keep(entity: EntityPath) -> None:
    """Do nothing, as no other process shares the states."""


def _keep_pins() -> None:
    """Do nothing, as no other process shares the states."""


def keep_to_oneself(entity: EntityPath, began: float, reason: str) -> None:
    """Do nothing, as this gateway knows no other one."""


def _know_none(entity: EntityPath) -> bool:
    """Return False, as nothing remembers the primary's entities."""
    return False


@attrs.define(eq=False, kw_only=True)
class EntityStates:
    """Runs the table of `domain.failover`, one row per troubled entity, for all senders."""

    options: PairOptions
    clock: WallClock
    observer: Observer
    rng: random.Random
    address: str = ""  # of the primary, for the reasons; empty: it has no address
    max_troubled: int = MAX_TROUBLED  # entities
    # Called after each change of a state that other processes should adopt.
    share: Callable[[EntityPath], None] = _keep
    # Called after each change of `pins`.
    share_pins: Callable[[], None] = _keep_pins
    # Called when this gateway comes to suspect a healthy entity by evidence of its own, with the
    # start of the request that shows a failure, and the reason.
    tell: Callable[[EntityPath, float, str], None] = attrs.field(
        default=keep_to_oneself, on_setattr=attrs.setters.frozen
    )
    # Returns True if the primary has had the entity.
    is_known: Callable[[EntityPath], bool] = _know_none
    # The start of the newest answered request by entity, for `advise`; None: advice is ignored.
    answers: Bounded[str, float] | None = attrs.field(default=None, on_setattr=attrs.setters.frozen)
    _records: Records = attrs.field(init=False)
    changes: Changes = attrs.field(factory=Changes, init=False)
    evidence: Evidence = attrs.field(init=False)
    pins: Overrides = attrs.field(factory=Overrides, init=False)
    _epoch: int = attrs.field(default=0, init=False)
    _pauses: int = attrs.field(default=0, init=False)
    _last_heartbeat: float | None = attrs.field(default=None, init=False)

    @_records.default
    def _no_records(self) -> Records:
        return Records(self.max_troubled)

    @evidence.default
    def _no_evidence(self) -> Evidence:
        return Evidence(slow_call_rate=self.options.slow_call_rate)

    # For senders.

    def state_of(self, entity: EntityPath) -> State:
        record = self._records.get(entity.key)
        state = State.PRIMARY if record is None else record.failover.state
        if self.pins and state is not State.PINNED and self.is_covered(entity):
            self.force_over(entity, _reason_of(self.pins.covering(entity.key)))
            return State.PINNED
        return state

    def unreachable(self, entity: EntityPath) -> BrokerError | None:
        """The error of a probe that found the entity deleted or disabled; None: no such probe."""
        record = self._records.get(entity.key)
        return None if record is None else record.unreachable

    def counts(self, entity: EntityPath, error: BrokerError) -> bool:
        """
        True if the error is an outage of the entity. Refused credentials are one if the options say
        so. So is a known entity that the primary has lost in an outage: it is diverted within the
        failover interval, too, until it's there again.
        """
        if isinstance(error, NotAuthorized):
            return self.options.on_refused_credentials is OnRefusedCredentials.DIVERT
        if isinstance(error, EntityNotFound | EntityDisabled):
            return self._was_lost(entity)
        return error.counts_as_outage

    def is_diverted(self, entity: EntityPath, missing: BrokerError) -> bool:
        """True if sends to an entity that the primary doesn't have, by that error, are diverted."""
        diverts = self.options.on_unreachable is OnUnreachable.DIVERT
        found = self.unreachable(entity) is not None
        return (diverts and found) or self.counts(entity, missing)

    def awaits_credentials(self, entity: EntityPath) -> bool:
        """
        True if credentials that are refused may be good again soon: they worked until the primary
        failed, the failover interval isn't over, and nothing has succeeded since. A broker may be
        up before its users are.
        """
        began = self._outage_of(entity)
        return began is not None and self.evidence.comeback.had_credentials(began)

    def _was_lost(self, entity: EntityPath) -> bool:
        """True if the primary had the entity until an outage, as far as known."""
        if self.options.on_unreachable is not OnUnreachable.DIVERT:
            return False
        found = self.unreachable(entity) is not None and self.state_of(entity) is State.SUSPECT
        return found or (self.is_known(entity) and self._outage_of(entity) is not None)

    def _outage_of(self, entity: EntityPath) -> float | None:
        """
        The start of an outage of the entity or of the namespace whose failover interval isn't over;
        None: there is none.
        """
        if self.options.while_suspect is WhileSuspect.RAISE:
            return None  # until the interval is over the caller gets each error
        record = self._records.get(entity.key)
        began = None
        if record is not None and record.failover.state is State.SUSPECT:
            began = record.failover.failing_since
        if began is None:
            began = self.evidence.comeback.began
        interval = rule_for(entity, self.options).interval
        return began if began is not None and trio.current_time() < began + interval else None

    def begin(self, entity: EntityPath) -> Attempt:
        """Begin an attempt on the primary."""
        return Attempt(
            entity=entity, epoch=self._epoch, pauses=self._pauses, began=trio.current_time()
        )

    def begin_trial(self, entity: EntityPath) -> Attempt | None:
        """
        Begin the one trial of a suspect or half-open entity.

        None: a trial is in progress, or none is due. The caller must end the attempt with `sent`,
        `failed` or `release`; the first of these calls counts.
        """
        record, now = self._records.get(entity.key), trio.current_time()
        if record is None or record.trial is not None or now < record.next_trial:
            return None
        failover = record.failover
        if not (failover.answered or failover.state is State.HALF_OPEN):
            return None
        record.trial = attrs.evolve(self.begin(entity), trial=True)
        record.wait_until = now + self.options.suspect_wait
        return record.trial

    def sent(self, attempt: Attempt, *, late: bool = False) -> None:
        """Record that the primary accepted the send. `late`: so slowly that it's a failure."""
        record = self._records.get(attempt.entity.key)
        if late:
            record = self._sent_late(attempt, record)
        else:
            self.evidence.in_time(attempt)
            self.evidence.comeback.worked(attempt.began)
            self._note_answer(attempt.began)
            if self.answers is not None:
                self.answers[attempt.entity.key] = attempt.began
        if record is None:
            return
        record.last_answer = max(record.last_answer, attempt.began)
        if not late and attempt.epoch >= record.epoch:
            self._note(
                record, FailoverEvent.TRIAL_SENT if attempt.trial else FailoverEvent.SENT, "sent"
            )
        self._end_trial(attempt, record)

    def slow(self, attempt: Attempt, *, is_silence: bool = True) -> None:
        """
        Suspect the entity, as the attempt has had no answer for long. With `is_silence` that is
        evidence about the other entities, too.
        """
        self._notice_pause()
        if attempt.pauses != self._pauses:
            return
        error = no_answer(self.address, "", trio.current_time() - attempt.began)
        if is_silence:
            self.evidence.note_failure(attempt, error)
        record = self._records.of(attempt.entity, self.clock())
        if record is not None and attempt.epoch >= record.epoch:
            record.shared = False
            self._note(record, FailoverEvent.SUSPECTED, str(error), began=attempt.began)

    def shows_life(self, entity: EntityPath, since: float) -> bool:
        """True if the entity is healthy, or has answered a request that began after `since`."""
        record = self._records.get(entity.key)
        return (
            record is None or record.failover.state is State.PRIMARY or record.last_answer > since
        )

    def returned_at(self, entity: EntityPath) -> float:
        """
        When the entity, or the whole namespace, was well again after it had been in trouble; minus
        infinity: it is in trouble, or hasn't been for long.
        """
        record = self._records.get(entity.key)
        state = State.PRIMARY if record is None else record.failover.state
        if state is not State.PRIMARY or self.evidence.namespace.is_lost:
            return -inf
        return max(self.evidence.found_at, -inf if record is None else record.changed)

    def suspect(self, entity: EntityPath) -> None:
        """
        Suspect a healthy entity if the namespace can't be reached, or if another entity has no
        answer and nothing else was answered since. In the second case the entity is asked itself.
        """
        namespace = self.evidence.namespace
        in_doubt = namespace.is_lost or namespace.is_silent_beside(entity.key)
        if not in_doubt or self.state_of(entity) is not State.PRIMARY:
            return
        record = self._records.of(entity, self.clock())
        if record is None:
            return
        record.shared = True
        if not namespace.is_lost:
            self._note(record, FailoverEvent.SUSPECTED, "another entity had no answer in time")
            return
        self._note(record, FailoverEvent.SUSPECTED, f"the namespace: {namespace.reason}")
        # Waiting is useless once the namespace's probes have been silent for as long.
        silent = namespace.since + self.options.suspect_wait
        record.wait_until = min(record.wait_until, silent)

    def failed(self, attempt: Attempt, error: BrokerError) -> None:
        """
        Record that the attempt failed in a way that counts as an outage. A remembered failure says
        nothing once the namespace has answered since.
        """
        self._notice_pause()
        if self.evidence.is_outdated(error):
            self.release(attempt)
            return
        record = self._records.of(attempt.entity, self.clock())
        if record is None:
            return
        if attempt.pauses == self._pauses:
            self._assess(attempt, error)
        if attempt.epoch >= record.epoch and attempt.pauses == self._pauses:
            record.shared = False
            self._note(record, FailoverEvent.FAILED, str(error), began=attempt.began)
            if isinstance(error, EntityNotFound | EntityDisabled):
                self._note_missing(record, str(error), error)
            if attempt.trial:
                self._delay_next_trial(record)
        self._end_trial(attempt, record)

    def refused(self, attempt: Attempt) -> None:
        """Record an answer that says nothing about the entity's health."""
        self._note_answer(attempt.began)
        record = self._records.get(attempt.entity.key)
        if record is not None and attempt.epoch >= record.epoch:
            why = "no failure for a whole interval, and an answer"
            self._note(record, FailoverEvent.REFUSED, why, began=attempt.began)

    def release(self, attempt: Attempt) -> None:
        """End an attempt without a result."""
        record = self._records.get(attempt.entity.key)
        if record is not None:
            self._end_trial(attempt, record)

    async def wait_verdict(self, entity: EntityPath, deadline: float) -> bool:
        """
        Wait for the verdict on a suspect entity. False: there is no verdict before the deadline, or
        waiting is useless, as the trial or probe has failed or has been silent for `suspect_wait`.
        """
        await trio.lowlevel.checkpoint()
        record = self._records.get(entity.key)
        if record is None:
            return True
        until = min(deadline, record.wait_until)
        if trio.current_time() >= until:
            return False
        with trio.move_on_at(until):
            await record.verdict.park()
        return trio.current_time() < until

    # For the prober. `probe` is the attempt that `begin` returned.

    def probed(self, entity: EntityPath, probe: Attempt | None = None) -> None:
        """Record that a probe reached the entity on the primary."""
        if probe is not None:
            self.evidence.comeback.worked(probe.began)
            self._note_answer(probe.began)
            if self.answers is not None and entity.key in self.answers:
                self.answers[entity.key] = probe.began
        record = self._records.get(entity.key)
        if record is not None:
            record.unreachable = None
            record.last_answer = max(
                record.last_answer, trio.current_time() if probe is None else probe.began
            )
            beside = record.trial is not None
            event = FailoverEvent.PROBED_BESIDE if beside else FailoverEvent.PROBED
            self._note(record, event, "a probe was answered")

    def probe_unanswered(self, probe: Attempt) -> None:
        """Record that a probe has had no answer for so long that one would be late."""
        self._notice_pause()
        if probe.pauses == self._pauses:
            silence = no_answer(self.address, "", trio.current_time() - probe.began)
            self.evidence.note_failure(probe, silence)

    def probed_late(self, probe: Attempt, seconds: float) -> None:
        """Record that a probe was answered so slowly that it counts as a failure."""
        self._probe_failed(probe, f"a probe was answered after {seconds:.3g} s", shared=True)

    def probe_failed(
        self, entity: EntityPath, error: BrokerError, probe: Attempt | None = None
    ) -> None:
        """Record a failed probe: it counts for a suspect entity, and ends the state half-open."""
        probe = probe or self.begin(entity)
        if probe.pauses == self._pauses:
            self._assess(probe, error)
        record = self._records.get(entity.key)
        suspect = record is not None and record.failover.state is State.SUSPECT
        if record is not None and suspect and not self.counts(entity, error):
            self._note(
                record, FailoverEvent.REFUSED, f"a probe was answered: {error}", began=probe.began
            )
        else:
            shared = isinstance(error, Unreachable | NoAnswer | NoToken)
            self._probe_failed(probe, f"a probe failed: {error}", shared=shared)

    def found_unreachable(
        self, entity: EntityPath, error: BrokerError, probe: Attempt | None = None
    ) -> None:
        """Record that a probe found the entity deleted or disabled."""
        record = self._records.get(entity.key)
        if record is None:
            return
        # Sends of a suspect get the error themselves, unless an outage explains it.
        if record.failover.state is not State.SUSPECT or self.counts(entity, error):
            self._note_missing(record, f"a probe found: {error}", error)
        self.probe_failed(entity, error, probe)

    async def wait_moved(self, entity: EntityPath, state: State) -> None:
        """Return when the entity's state isn't `state` any more."""
        await trio.lowlevel.checkpoint()
        while (record := self._records.get(entity.key)) and record.failover.state is state:
            await record.moved.park()

    # For operators.

    def force_over(self, entity: EntityPath, reason: str = FORCED) -> None:
        """Pin the entity to the backlog until `force_back`."""
        record = self._records.of(entity, self.clock())
        if record is not None:
            self._note(record, FailoverEvent.FORCED_OVER, reason)

    def force_back(self, entity: EntityPath, reason: str = FORCED) -> None:
        """Return the entity to the primary. Its failures are counted from zero again."""
        record = self._records.get(entity.key)
        if record is not None:
            self._note(record, FailoverEvent.FORCED_BACK, reason)

    def is_covered(self, entity: EntityPath) -> bool:
        """True if one of `pins` covers the entity, and its options let it leave the primary."""
        return self.pins.covering(entity.key) is not None and self.leaves_the_primary(entity)

    def leaves_the_primary(self, entity: EntityPath) -> bool:
        """False if the options of the entity say that it is never diverted."""
        rule = entity_rule(entity, self.options.entities)
        return rule is None or rule.divert

    def apply_pins(self, entities: Iterable[EntityPath], reason: str) -> None:
        """
        Put changed `pins` into effect for these entities, and for those that were pinned before.
        Any other entity follows at its next send, through `state_of`.
        """
        self.share_pins()
        for entity in entities:
            self.state_of(entity)
        for record in list(self._records.values()):
            covered = self.is_covered(record.entity)
            if record.failover.state is State.PINNED and not covered:
                self.force_back(record.entity, reason)
            elif covered:
                self.state_of(record.entity)
        self.changes.note()

    # For other processes with the same pair.

    def shared(self, entity: EntityPath) -> SharedState:
        """The entity's state, for `adopt` in another process."""
        record = self._records.get(entity.key) or EntityRecord(entity, self.clock())
        failover = record.failover.shifted(-trio.current_time())
        return SharedState(
            entity=entity, since=record.since, reason=record.reason, failover=failover
        )

    def all_shared(self) -> list[SharedState]:
        """The states of all entities that aren't healthy, or weren't a while ago."""
        return [self.shared(record.entity) for record in self._records.values()]

    def adopt(self, shared: SharedState) -> bool:
        """
        Replace the entity's state by the one that another process has decided. It is neither
        reported nor shared again, and results of attempts from before a failover don't count.

        False: there are too many troubled entities already.
        """
        record = self._records.get(shared.entity.key)
        if record is None and shared.failover == HEALTHY:
            return True
        record = self._records.of(shared.entity, self.clock())
        if record is None:
            return False
        before, now = record.failover.state, trio.current_time()
        record.failover = shared.failover.shifted(now)
        record.since = shared.since
        if record.failover.state is before:
            if record.failover.answered:
                record.verdict.unpark_all()
            return True
        record.shared = False
        self._move(record, before, shared.reason)
        if before is State.PRIMARY and record.failover.state is not State.PINNED:
            took = self.options.slow_call_duration or 0.0
            since = record.failover.last_failure
            self.tell(record.entity, (now if since is None else since) - took, shared.reason)
        return True

    # For other gateways before the same primary.

    def advise(self, entity: EntityPath, age: float, reason: str) -> bool:
        """
        Suspect a healthy entity, as another gateway does by a request that began `age` seconds ago.
        From then on the probes and sends of this gateway decide.

        False: the advice is ignored, as this gateway has had an answer to a later request, has had
        none at all so far, or doesn't take advice.
        """
        answered = None if self.answers is None else self.answers.get(entity.key)
        began = trio.current_time() - max(age, 0.0)
        if answered is None or answered >= began or not self.leaves_the_primary(entity):
            return False
        if self.state_of(entity) is not State.PRIMARY:
            return False
        record = self._records.of(entity, self.clock())
        if record is None:
            return False
        self._note(record, FailoverEvent.SUSPECTED, reason, began=began, advised=True)
        return True

    def adopt_pins(self, pins: Sequence[Override]) -> None:
        """
        Replace `pins` by those that another process has. Entities that this process has pinned
        meanwhile, and that they no longer cover, return to the primary.
        """
        pinned = [
            record.entity
            for record in self._records.values()
            if record.failover.state is State.PINNED and self.is_covered(record.entity)
        ]
        self.pins.restore(pins)
        for entity in pinned:
            if not self.is_covered(entity):
                self.force_back(entity)

    # For observers.

    def troubled(self) -> list[EntityState]:
        """All entities that aren't healthy."""
        return self._records.states()

    @property
    def is_any_troubled(self) -> bool:
        """True if an entity isn't healthy. Cheap, as it is asked after each change of a state."""
        return self._records.is_any_troubled

    def failed_over(self) -> list[EntityPath]:
        """The entities that are failed over: secondary or half-open."""
        return self._records.those_in(FAILED_OVER)

    def to_probe(self) -> list[EntityPath]:
        """The entities that need probes: suspect, secondary or half-open."""
        return self._records.those_in(PROBED)

    def interval_ends(self, entity: EntityPath) -> float | None:
        """The end of a suspect entity's failover interval, by Trio's clock."""
        record = self._records.get(entity.key)
        if record is None or record.failover.state is not State.SUSPECT:
            return None
        return record.failover.ends(rule_for(entity, self.options))

    def restore(self, states: Iterable[EntityState]) -> None:
        """Restore failed-over and pinned entities; suspect ones count as healthy."""
        for state in states:
            if state.state not in DIVERTED:
                continue  # failures before the restart don't count
            pinned = state.state is State.PINNED
            known = State.PINNED if pinned else State.SECONDARY
            self._records[state.entity.key] = EntityRecord(
                entity=state.entity,
                since=state.since,
                reason=state.reason,
                failover=Failover(state=known),
                changed=trio.current_time(),
            )
        self.changes.note()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Note heartbeats, so that a pause of the gateway isn't an outage of the primary."""
        self._last_heartbeat = trio.current_time()
        task_status.started()
        try:
            while True:
                await trio.sleep(HEARTBEAT)
                self._notice_pause()
                self._last_heartbeat = trio.current_time()
                # Keep records as long as an attempt from before the recovery may be answered.
                kept = 2 * self.options.send_timeout
                self._records.forget_recovered(lambda e: rule_for(e, self.options), kept)
                self.evidence.forget_old(self._last_heartbeat)
        finally:
            self._last_heartbeat = None

    def _sent_late(self, attempt: Attempt, record: EntityRecord | None) -> EntityRecord | None:
        """Count a late answer as a failure, if it is a trial's or too many are late."""
        self._notice_pause()
        if attempt.pauses != self._pauses:
            return record
        seconds = trio.current_time() - attempt.began
        if self.evidence.too_many_late(attempt) or attempt.trial:
            record = self._records.of(attempt.entity, self.clock())
            if record is not None and attempt.epoch >= record.epoch:
                record.shared = False
                reason = f"answers are late, the last by {seconds:.3g} s"
                self._note(record, FailoverEvent.FAILED, reason, began=attempt.began)
                if attempt.trial:
                    self._delay_next_trial(record)
        return record

    def _note_missing(self, record: EntityRecord, reason: str, error: BrokerError) -> None:
        """Remember that the primary has no such entity, or has disabled it, and tell operators."""
        if record.unreachable is None:
            record.reason = reason
            self.changes.note()
        record.unreachable = error

    def _delay_next_trial(self, record: EntityRecord) -> None:
        """Delay the next trial, as one has failed."""
        record.trial_failures += 1
        record.next_trial = trio.current_time() + self._trial_pause(record)
        record.stop_waiting()

    def _probe_failed(self, probe: Attempt, reason: str, *, shared: bool) -> None:
        self._notice_pause()
        if probe.pauses != self._pauses:
            return
        record = self._records.get(probe.entity.key)
        for_all = shared and self.evidence.namespace.is_lost
        for each in list(self._records.values()) if for_all else [record]:
            states = FAILING if each is record else SUSPECT
            if each is not None and each.failover.state in states:
                self._note(each, FailoverEvent.FAILED, reason, began=probe.began)
                each.stop_waiting()

    def _assess(self, attempt: Attempt, error: BrokerError) -> None:
        """Use an error as evidence about the namespace."""
        if error.counts_as_outage:
            self.evidence.note_failure(attempt, error)
        else:
            self._note_answer(attempt.began)

    def _note_answer(self, began: float) -> None:
        """Use an answer to a request that began at `began` as evidence about the namespace."""
        if not self.evidence.note_answer(began):
            return
        for record in list(self._records.values()):
            if record.shared and record.failover.state is State.SUSPECT:
                self._note(record, FailoverEvent.REFUSED, "the namespace answers", began=began)

    def _trial_pause(self, record: EntityRecord) -> float:
        """Seconds until the next trial: less than the interval, so that failures add up."""
        pause = self.options.trial_pause.delay(record.trial_failures, self.rng)
        return min(pause, rule_for(record.entity, self.options).interval / 2)

    def _note(
        self,
        record: EntityRecord,
        event: FailoverEvent,
        reason: str,
        *,
        began: float | None = None,
        advised: bool = False,
    ) -> None:
        before = record.failover
        now = trio.current_time()
        rule = rule_for(record.entity, self.options)
        record.failover = before.advance(event, rule, now=now, began=began)
        after = record.failover.state
        if after is before.state:
            if record.failover.answered and not before.answered:
                record.verdict.unpark_all()
            return
        if State.PRIMARY in (before.state, after):
            record.since = self.clock()  # otherwise keep the date of the first failure
        self._move(record, before.state, reason)
        if event is not FailoverEvent.PAUSED:  # a pause concerns this process alone
            self.share(record.entity)
        if before.state is State.PRIMARY and event in FAILURES and not advised:
            lost = self.evidence.namespace
            since = lost.since if lost.is_lost else now
            self.tell(record.entity, since if began is None else began, reason)
        self.observer.report(
            EntityStateChanged(
                entity=record.entity,
                before=before.state.value,
                after=after.value,
                reason=reason,
                cause=event.cause,
            )
        )

    def _move(self, record: EntityRecord, before: State, reason: str) -> None:
        """Let the record follow its change of state, and wake the tasks that wait for it."""
        after, now = record.failover.state, trio.current_time()
        # Healthy and suspect entities are both sent to on the primary, so an answer still counts.
        if {before, after} != {State.PRIMARY, State.SUSPECT}:
            self._epoch += 1
            record.epoch = self._epoch
            if after is not State.HALF_OPEN:  # there a failed trial delays the next one
                record.next_trial = now
        if after is State.PRIMARY:
            record.trial_failures = 0
            record.next_trial = now
            record.unreachable = None
            record.shared = False
        if after is State.SUSPECT:
            record.wait_until = now + self.options.suspect_wait
        record.reason, record.changed = reason, now
        record.verdict.unpark_all()
        record.moved.unpark_all()
        self.changes.note()

    def _end_trial(self, attempt: Attempt, record: EntityRecord) -> None:
        if record.trial is attempt:
            record.trial = None
            record.verdict.unpark_all()

    def _notice_pause(self) -> None:
        if self._last_heartbeat is None:
            return
        late = trio.current_time() - self._last_heartbeat - HEARTBEAT
        if late < shortest_pause(self.options):
            return
        self._last_heartbeat = trio.current_time()
        self._pauses += 1
        self.observer.report(LoopPaused(seconds=late))
        self.evidence.forget()
        for record in self._records.values():
            self._note(record, FailoverEvent.PAUSED, f"the gateway was paused for {late:.1f} s")


def _reason_of(pin: Override | None) -> str:
    return FORCED if pin is None else f"{FORCED}: {pin.text}"
