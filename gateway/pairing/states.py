"""
The evidence of sends and probes about the entities of one pair, which moves their states.

All methods are synchronous, so that no other task runs between read and write.
"""

import random
from collections.abc import Callable
from typing import Final

import attrs
import trio

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
from gateway.domain.events.gateway import LoopPaused
from gateway.domain.failover import FailoverEvent, State
from gateway.pairing.entity_record import Attempt, EntityRecord
from gateway.pairing.options import (
    OnRefusedCredentials,
    OnUnreachable,
    WhileSuspect,
    rule_for,
    shortest_pause,
)
from gateway.pairing.state_table import SUSPECT, StateTable

HEARTBEAT: Final = 2.0  # seconds between two heartbeats
FAILING: Final = SUSPECT | {State.HALF_OPEN}  # where a failed probe counts
MOST_ANSWERS: Final = 10_000  # entities, the last used ones, for which advice is taken


def _know_none(entity: EntityPath) -> bool:
    """Return False, as nothing remembers the primary's entities."""
    return False


@attrs.define(eq=False, kw_only=True)
class EntityStates(StateTable):
    """The states of a pair's entities, moved by the results of all senders and probes."""

    rng: random.Random
    address: str = ""  # of the primary, for the reasons; empty: it has no address
    # Returns True if the primary has had the entity.
    is_known: Callable[[EntityPath], bool] = _know_none
    # The start of the newest answered request by entity, for `advise`; None: advice is ignored.
    answers: Bounded[str, float] | None = attrs.field(default=None, on_setattr=attrs.setters.frozen)
    _pauses: int = attrs.field(default=0, init=False)
    _last_heartbeat: float | None = attrs.field(default=None, init=False)

    # For senders.

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
            self._record_answer(attempt.began)
            if self.answers is not None:
                self.answers[attempt.entity.key] = attempt.began
        if record is None:
            return
        record.last_answer = max(record.last_answer, attempt.began)
        if not late and attempt.epoch >= record.epoch:
            self._advance(
                record, FailoverEvent.TRIAL_SENT if attempt.trial else FailoverEvent.SENT, "sent"
            )
        self._close_trial(attempt, record)

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
            self.evidence.record_failure(attempt, error)
        record = self._records.of(attempt.entity, self.clock())
        if record is not None and attempt.epoch >= record.epoch:
            record.shared = False
            self._advance(record, FailoverEvent.SUSPECTED, str(error), began=attempt.began)

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
            self._advance(record, FailoverEvent.SUSPECTED, "another entity had no answer in time")
            return
        self._advance(record, FailoverEvent.SUSPECTED, f"the namespace: {namespace.reason}")
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
            self._advance(record, FailoverEvent.FAILED, str(error), began=attempt.began)
            if isinstance(error, EntityNotFound | EntityDisabled):
                self._record_missing(record, str(error), error)
            if attempt.trial:
                self._delay_next_trial(record)
        self._close_trial(attempt, record)

    def refused(self, attempt: Attempt) -> None:
        """Record an answer that says nothing about the entity's health."""
        self._record_answer(attempt.began)
        record = self._records.get(attempt.entity.key)
        if record is not None and attempt.epoch >= record.epoch:
            why = "no failure for a whole interval, and an answer"
            self._advance(record, FailoverEvent.REFUSED, why, began=attempt.began)

    def release(self, attempt: Attempt) -> None:
        """End an attempt without a result."""
        record = self._records.get(attempt.entity.key)
        if record is not None:
            self._close_trial(attempt, record)

    # For the prober. `probe` is the attempt that `begin` returned.

    def probed(self, entity: EntityPath, probe: Attempt | None = None) -> None:
        """Record that a probe reached the entity on the primary."""
        if probe is not None:
            self.evidence.comeback.worked(probe.began)
            self._record_answer(probe.began)
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
            self._advance(record, event, "a probe was answered")

    def probe_unanswered(self, probe: Attempt) -> None:
        """Record that a probe has had no answer for so long that one would be late."""
        self._notice_pause()
        if probe.pauses == self._pauses:
            self.evidence.record_failure(probe, NoAnswer("a probe has had no answer in time"))

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
            self._advance(
                record, FailoverEvent.REFUSED, f"a probe was answered: {error}", began=probe.began
            )
        else:
            shared = isinstance(error, Unreachable | NoAnswer | NoToken)
            self._probe_failed(probe, f"a probe failed: {error}", shared=shared)

    def record_unreachable(
        self, entity: EntityPath, error: BrokerError, probe: Attempt | None = None
    ) -> None:
        """Record that a probe found the entity deleted or disabled."""
        record = self._records.get(entity.key)
        if record is None:
            return
        # Sends of a suspect get the error themselves, unless an outage explains it.
        if record.failover.state is not State.SUSPECT or self.counts(entity, error):
            self._record_missing(record, f"a probe found: {error}", error)
        self.probe_failed(entity, error, probe)

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
        self._advance(record, FailoverEvent.SUSPECTED, reason, began=began, advised=True)
        return True

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
                self._advance(record, FailoverEvent.FAILED, reason, began=attempt.began)
                if attempt.trial:
                    self._delay_next_trial(record)
        return record

    def _record_missing(self, record: EntityRecord, reason: str, error: BrokerError) -> None:
        """Remember that the primary has no such entity, or has disabled it, and tell operators."""
        if record.unreachable is None:
            record.reason = reason
            self.changes.notify()
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
                self._advance(each, FailoverEvent.FAILED, reason, began=probe.began)
                each.stop_waiting()

    def _assess(self, attempt: Attempt, error: BrokerError) -> None:
        """Use an error as evidence about the namespace."""
        if error.counts_as_outage:
            self.evidence.record_failure(attempt, error)
        else:
            self._record_answer(attempt.began)

    def _record_answer(self, began: float) -> None:
        """Use an answer to a request that began at `began` as evidence about the namespace."""
        if not self.evidence.record_answer(began):
            return
        for record in list(self._records.values()):
            if record.shared and record.failover.state is State.SUSPECT:
                self._advance(record, FailoverEvent.REFUSED, "the namespace answers", began=began)

    def _trial_pause(self, record: EntityRecord) -> float:
        """Seconds until the next trial: less than the interval, so that failures add up."""
        pause = self.options.trial_pause.delay(record.trial_failures, self.rng)
        return min(pause, rule_for(record.entity, self.options).interval / 2)

    def _close_trial(self, attempt: Attempt, record: EntityRecord) -> None:
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
            self._advance(record, FailoverEvent.PAUSED, f"the gateway was paused for {late:.1f} s")
