"""The record of one troubled entity, and an attempt to send to an entity."""

from collections import Counter
from collections.abc import Callable, Container
from datetime import datetime
from math import inf
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.failover import STEADY, Failover, FailoverRule, State

HEALTHY: Final = Failover()
MAX_TROUBLED: Final = 10_000  # further entities have no state: each send is diverted by itself


@attrs.frozen(kw_only=True)
class Attempt:
    """
    An attempt on the primary, a send or a probe, that is in progress.

    `epoch` and `pauses` are the values of the pair's counters when the attempt began. If its entity
    has since changed from the primary to the backlog or back, or the gateway was paused, its result
    is out of date and ignored.
    """

    entity: EntityPath
    epoch: int
    pauses: int
    began: float  # trio.current_time()
    trial: bool = False


@attrs.frozen(kw_only=True)
class EntityState:
    """The state of one troubled entity, as operators see it and as it survives a restart."""

    entity: EntityPath
    state: State
    since: datetime
    reason: str
    missing: bool = False  # the primary had it, and has it no more, or has disabled it


@attrs.frozen(kw_only=True)
class SharedState:
    """The state of one entity for other processes: the moments of `failover` count from now."""

    entity: EntityPath
    since: datetime
    reason: str
    failover: Failover


@attrs.define(eq=False)
class EntityRecord:
    """The failover of one entity, its trial, and the tasks that wait for it."""

    entity: EntityPath
    since: datetime
    reason: str = ""
    failover: Failover = HEALTHY
    epoch: int = 0  # of its last change between primary and backlog
    changed: float = 0.0
    trial: Attempt | None = None  # in progress
    trial_failures: int = 0
    next_trial: float = 0.0
    last_answer: float = -inf  # start of the newest request that was answered
    wait_until: float = 0.0  # sends to a suspect entity wait until then
    shared: bool = False  # suspect because the namespace is lost
    unreachable: BrokerError | None = None
    verdict: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    moved: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def stop_waiting(self) -> None:
        """Wake the sends that wait for a verdict: they are diverted."""
        self.wait_until = 0.0
        self.verdict.unpark_all()


class Records(dict[str, EntityRecord]):
    """
    The records of troubled entities, by their keys; `most` of them. Healthy entities need no
    memory.
    """

    def __init__(self, most: int = MAX_TROUBLED) -> None:
        self._most = most

    def of(self, entity: EntityPath, now: datetime) -> EntityRecord | None:
        """The record of the entity, created if missing; None: there are too many already."""
        record = self.get(entity.key)
        if record is None and len(self) < self._most:
            record = self[entity.key] = EntityRecord(entity, now)
        return record

    def states(self) -> list[EntityState]:
        return [
            EntityState(
                entity=r.entity,
                state=r.failover.state,
                since=r.since,
                reason=r.reason,
                missing=r.unreachable is not None,
            )
            for r in self.values()
            if r.failover.state is not State.PRIMARY
        ]

    @property
    def is_any_troubled(self) -> bool:
        return any(r.failover.state is not State.PRIMARY for r in self.values())

    def answering(self, now: float) -> Counter[State]:
        """
        The number, by state, of those whose past alone delays their return: they have succeeded for
        `STEADY` seconds, and the newest answer isn't older.
        """
        return Counter(
            r.failover.state
            for r in self.values()
            if r.failover.is_steady(now) and now - r.last_answer <= STEADY
        )

    def those_in(self, states: Container[State]) -> list[EntityPath]:
        return [r.entity for r in self.values() if r.failover.state in states]

    def forget_recovered(self, rule_of: Callable[[EntityPath], FailoverRule], kept: float) -> None:
        """Forget entities that have been healthy for `kept` seconds."""
        now = trio.current_time()
        for key, record in list(self.items()):
            healthy = record.failover.is_healthy(rule_of(record.entity), now)
            if healthy and record.trial is None and record.changed < now - kept:
                del self[key]
