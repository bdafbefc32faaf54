"""
The state of every entity of one pair, and each move from one state to another. Healthy entities
need no memory.

    senders and probes     `states`: they are the evidence that moves an entity
    operators              pin entities to the backlog, and return them
    other processes        adopt what this one decides, and the other way round

All methods except the waits are synchronous, so that no other task runs between read and write.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final, Protocol

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import EntityStateChanged
from gateway.domain.failover import Failover, FailoverEvent, State
from gateway.domain.operators.control import Override, Overrides
from gateway.pairing.entity_record import (
    HEALTHY,
    MAX_TROUBLED,
    EntityRecord,
    EntityState,
    Records,
    SharedState,
)
from gateway.pairing.evidence import Evidence
from gateway.pairing.options import PairOptions, entity_rule, rule_for
from gateway.ports import Observer, WallClock

FAILED_OVER: Final = frozenset({State.SECONDARY, State.HALF_OPEN})
SUSPECT: Final = frozenset({State.SUSPECT})
PROBED: Final = FAILED_OVER | SUSPECT
DIVERTED: Final = FAILED_OVER | {State.PINNED}
FAILURES: Final = frozenset({FailoverEvent.FAILED, FailoverEvent.SUSPECTED})
FORCED: Final = "forced by an operator"


def keep_to_oneself(entity: EntityPath, began: float, reason: str) -> None:
    """Do nothing, as this gateway knows no other one."""


class SharesStates(Protocol):
    """Has the states adopted by the other processes with the same pair."""

    def record_state(self, entity: EntityPath) -> None:
        """The entity's state has changed; other processes should adopt it."""
        ...

    def record_pins(self) -> None:
        """The pins have changed."""
        ...


@attrs.define(eq=False, kw_only=True)
class StateTable:
    """Runs the table of `domain.failover`, with one row for each troubled entity."""

    options: PairOptions
    clock: WallClock
    observer: Observer
    max_troubled: int = MAX_TROUBLED  # entities
    # Called when this gateway comes to suspect a healthy entity by evidence of its own, with the
    # start of the request that shows a failure, and the reason.
    tell: Callable[[EntityPath, float, str], None] = attrs.field(
        default=keep_to_oneself, on_setattr=attrs.setters.frozen
    )
    changes: Changes = attrs.field(factory=Changes, init=False)
    evidence: Evidence = attrs.field(init=False)
    pins: Overrides = attrs.field(factory=Overrides, init=False)
    _sharing: list[SharesStates] = attrs.field(factory=list, init=False)
    _records: Records = attrs.field(init=False)
    _epoch: int = attrs.field(default=0, init=False)

    @_records.default
    def _no_records(self) -> Records:
        return Records(self.max_troubled)

    @evidence.default
    def _no_evidence(self) -> Evidence:
        return Evidence(slow_call_rate=self.options.slow_call_rate)

    # For senders and the prober.

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

    def interval_ends(self, entity: EntityPath) -> float | None:
        """The end of a suspect entity's failover interval, by Trio's clock."""
        record = self._records.get(entity.key)
        if record is None or record.failover.state is not State.SUSPECT:
            return None
        return record.failover.ends(rule_for(entity, self.options))

    async def wait_verdict(self, entity: EntityPath, deadline: float) -> bool:
        """
        Wait for the verdict on a suspect entity. False: there is no verdict before the deadline, or
        waiting is useless, as the trial or probe has failed or has been silent for `suspect_wait`.
        """
        record = self._records.get(entity.key)
        if record is None:
            return True
        until = min(deadline, record.wait_until)
        if trio.current_time() >= until:
            return False
        with trio.move_on_at(until):
            await record.verdict.park()
        return trio.current_time() < until

    async def wait_moved(self, entity: EntityPath, state: State) -> None:
        """Return when the entity's state isn't `state` any more."""
        while (record := self._records.get(entity.key)) and record.failover.state is state:
            await record.moved.park()

    # For operators.

    def force_over(self, entity: EntityPath, reason: str = FORCED) -> None:
        """Pin the entity to the backlog until `force_back`."""
        record = self._records.of(entity, self.clock())
        if record is not None:
            self._advance(record, FailoverEvent.FORCED_OVER, reason)

    def force_back(self, entity: EntityPath, reason: str = FORCED) -> None:
        """Return the entity to the primary. Its failures are counted from zero again."""
        record = self._records.get(entity.key)
        if record is not None:
            self._advance(record, FailoverEvent.FORCED_BACK, reason)

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
        for each in self._sharing:
            each.record_pins()
        for entity in entities:
            self.state_of(entity)
        for record in list(self._records.values()):
            covered = self.is_covered(record.entity)
            if record.failover.state is State.PINNED and not covered:
                self.force_back(record.entity, reason)
            elif covered:
                self.state_of(record.entity)
        self.changes.notify()

    # For other processes with the same pair.

    def share_with(self, processes: SharesStates) -> None:
        """From now on note there each change that this process has decided."""
        self._sharing.append(processes)

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

    # For observers, and for the state file.

    def troubled(self) -> list[EntityState]:
        """All entities that aren't healthy."""
        return self._records.states()

    def answering(self) -> Counter[State]:
        """The number, by state, of the troubled entities whose past alone delays their return."""
        return self._records.answering(trio.current_time())

    @property
    def is_any_troubled(self) -> bool:
        """True if an entity isn't healthy. Cheap, as it is asked after each change of a state."""
        return self._records.is_any_troubled

    def to_probe(self) -> list[EntityPath]:
        """The entities that need probes: suspect, secondary or half-open."""
        return self._records.those_in(PROBED)

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
        self.changes.notify()

    def _advance(
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
            for each in self._sharing:
                each.record_state(record.entity)
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
        self.changes.notify()


def _reason_of(pin: Override | None) -> str:
    return FORCED if pin is None else f"{FORCED}: {pin.text}"
