"""
Records each outage of the primary, from the events of the process.

    begins   the primary is lost, an entity leaves it, or a message is diverted
    ends     no entity is in trouble, the primary isn't lost, and the backlog is empty

Its memory is bounded: the last `KEPT` outages, each with `MOST_ENTITIES` entities and
`MOST_POINTS` points of its curve.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

import attrs

from gateway.changes import Changes
from gateway.domain.bounded import Bounded
from gateway.domain.dead_letters import label_of
from gateway.domain.events.gateway import (
    DeadLettered,
    Diverted,
    EntityStateChanged,
    Event,
    SendFailed,
    SentTwice,
    SyphonBackedOff,
    Syphoned,
)
from gateway.domain.events.outages import BacklogEmpty, NamespaceBack, NamespaceLost
from gateway.domain.failover import State
from gateway.domain.health.depth_history import DepthSample
from gateway.domain.health.process_records import PairRecords, ProcessRecord
from gateway.domain.health.send_counters import SendCounters
from gateway.extensions.outage_report.events import OutageOver
from gateway.extensions.outage_report.outage import (
    DepthPoint,
    EntityOutage,
    OutageOrder,
    RecordedOutage,
)
from gateway.extensions.outage_report.totals import by_process, with_others
from gateway.ports import WallClock

KEPT: Final = 10  # outages: a bad week
MOST_ENTITIES: Final = 10_000  # that are counted one by one
TOLD_ENTITIES: Final = 100  # in a report
MOST_ORDERS: Final = 100  # of operators, in one outage
MOST_POINTS: Final = 120  # of a curve: of the last hour, one each half minute
LEFT: Final = frozenset({State.SECONDARY.value, State.HALF_OPEN.value, State.PINNED.value})


@attrs.frozen(kw_only=True)
class ClientCounts:
    """Messages of clients since the start of the processes that count them."""

    diverted: int = 0
    possibly_twice: int = 0
    by_entity: Mapping[str, int] = attrs.field(factory=dict)  # diverted; in lower case

    def of(self, entity: str) -> int | None:
        """The diverted messages of the entity; None: some messages are counted without a name."""
        is_whole = sum(self.by_entity.values()) == self.diverted
        return self.by_entity.get(entity.lower(), 0) if is_whole else None


@attrs.define(eq=False)
class _Open:
    """The outage under way."""

    outage: RecordedOutage
    batches: int = 0  # that had ended before
    before: Mapping[str, ProcessRecord] = attrs.field(factory=dict)  # of other processes
    troubled: set[str] = attrs.field(factory=set)  # entities that aren't back
    is_lost: bool = False
    filled: bool = False  # messages were diverted that haven't come home, as far as known
    entities: Bounded[str, EntityOutage] = attrs.field(factory=lambda: Bounded(MOST_ENTITIES))
    counts: Counter[str] = attrs.field(factory=Counter)  # by the names of `RecordedOutage`'s fields
    dead_lettered: Counter[str] = attrs.field(factory=Counter)
    # By what they were when they came into force.
    orders: Bounded[OutageOrder, OutageOrder] = attrs.field(factory=lambda: Bounded(MOST_ORDERS))

    @property
    def waits_for_backlog(self) -> bool:
        """True if everything is back but, perhaps, the messages."""
        return not self.troubled and not self.is_lost


@attrs.define(eq=False, kw_only=True)
class OutageBook:
    """
    The outages of one primary. `record` is called with each event of the process. `counts`: it
    counts what clients send; false in the parent of workers. `moves`: it has the syphon.
    """

    primary: str
    clock: WallClock
    counts: bool = True
    moves: bool = True
    # Since when the primary answers that was lost, as the record of the process tells it.
    back: Callable[[], datetime | None] = lambda: None
    process: str = attrs.field(default="", init=False)  # its id in the records
    changes: Changes = attrs.field(factory=Changes, init=False)  # begun, ended, or waits
    # The counts of the workers, as they were read last; None: no worker has told any.
    workers: ClientCounts | None = attrs.field(default=None, init=False)
    _workers_before: ClientCounts | None = attrs.field(default=None, init=False)
    # Of the pair's processes; None: this one is alone, or nobody tells.
    _records: Callable[[], PairRecords] | None = attrs.field(default=None, init=False)
    _samples: Callable[[], Iterable[DepthSample]] = attrs.field(default=tuple, init=False)
    # Of operators, those in force now.
    _orders: Callable[[], Iterable[OutageOrder]] = attrs.field(default=tuple, init=False)
    _sends: SendCounters = attrs.field(factory=SendCounters, init=False)
    _doubted: dict[str, EntityOutage] = attrs.field(factory=dict, init=False)
    _open: _Open | None = attrs.field(default=None, init=False)
    _restored: datetime | None = attrs.field(default=None, init=False)
    _past: deque[RecordedOutage] = attrs.field(factory=lambda: deque(maxlen=KEPT), init=False)

    def read_from(
        self,
        sends: SendCounters,
        samples: Callable[[], Iterable[DepthSample]],
        records: Callable[[], PairRecords] | None = None,
        process: str = "",
        orders: Callable[[], Iterable[OutageOrder]] = tuple,
    ) -> None:
        """
        Take the slowest send, the curve and the figures of other processes of later reports from
        the pair, which is made after the book: its first events are of the time in which it is
        made. `process` is the id of this one in the records; `orders` are those of operators that
        hold messages back now.
        """
        self._sends, self._samples = sends, samples
        self._records, self.process = records, process
        self._orders = orders

    def restore(self, outages: Iterable[RecordedOutage]) -> None:
        """Remember the outages of the process before, the latest first."""
        self._past.extend(reversed(tuple(outages)))
        self._restored = self.clock()

    @property
    def waits_for_backlog(self) -> bool:
        """True if all entities are back, and the outage lasts until the backlog is empty."""
        return self._open is not None and self._open.waits_for_backlog

    @property
    def is_filled(self) -> bool:
        """True if messages of this outage may wait on the backlog."""
        return self._open is not None and self._open.filled

    def all(self) -> tuple[RecordedOutage, ...]:
        """The outage under way, then the past ones, the latest first."""
        now = () if self._open is None else (self._outage_of(self._open),)
        return (*now, *map(self._with_return, reversed(self._past)))

    def record_orders(self) -> None:
        """Record the orders of operators that are in force, and those that are no more."""
        current = self._open
        if current is None:
            return
        told, in_force = current.orders, dict.fromkeys(self._orders())
        ended = [each for each in told if told[each].ended is None and each not in in_force]
        for each in ended:
            told[each] = attrs.evolve(each, ended=self.clock())
        new = [each for each in in_force if each not in told]
        for each in new:
            told[each] = each
        if new or ended:
            self.changes.notify()

    def record(self, event: Event) -> None:
        match event:
            case NamespaceLost(namespace=name, reason=reason) if name == self.primary:
                self._opened(reason).is_lost = True
            case NamespaceBack(namespace=name) if name == self.primary:
                self._record_back()
            case EntityStateChanged():
                self._record_state(event)
            case Diverted():
                self._record_diverted(event)
            case _:
                self._count(event)

    def close(self, *, empty: bool | None, at: datetime | None = None) -> OutageOver:
        """
        End the outage under way, which waited for the backlog until `at`, or now; return the event
        that tells it.
        """
        current, self._open = self._open, None
        assert current is not None, "the outage waits for the backlog"
        outage = attrs.evolve(self._outage_of(current), ended=at or self.clock(), empty=empty)
        self._workers_before = self.workers
        self._past.append(outage)
        self.changes.notify()
        return over(outage)

    def _opened(self, cause: str) -> _Open:
        if self._open is None:
            dates = [each.began for each in self._doubted.values() if each.began is not None]
            first = min(dates, default=self.clock())
            self._open = _Open(
                RecordedOutage(began=first, cause=cause),
                batches=self._sends.batches,
                before=self._others(),
            )
            self._open.troubled.update(self._doubted)
            for key, each in self._doubted.items():
                self._open.entities[key] = each
            self.record_orders()
            self.changes.notify()
        return self._open

    def _record_back(self) -> None:
        if self._open is not None:
            self._open.is_lost = False
            self._open.outage = attrs.evolve(
                self._open.outage, namespace_back=self.back() or self.clock()
            )
            self.changes.notify()

    def _record_state(self, event: EntityStateChanged) -> None:
        key, now = event.entity.key, self.clock()
        if event.after == State.PRIMARY.value:
            self._doubted.pop(key, None)
            self._record_entity_back(key)
            return
        if len(self._doubted) < MOST_ENTITIES:
            fresh = EntityOutage(entity=event.entity.name, began=now, reason=event.reason)
            self._doubted.setdefault(key, fresh)
        current = self._opened(event.reason) if event.after in LEFT else self._open
        if current is not None and key in self._doubted:
            current.troubled.add(key)
            known = current.entities.get(key) or self._doubted[key]
            current.entities[key] = attrs.evolve(known, back=None)

    def _record_entity_back(self, key: str) -> None:
        current = self._open
        if current is None or key not in current.troubled:
            return
        current.troubled.discard(key)
        known = current.entities.get(key)
        if known is not None:
            current.entities[key] = attrs.evolve(known, back=self.clock())
        if not current.troubled:
            current.outage = attrs.evolve(current.outage, entities_back=self.clock())
            self.changes.notify()

    def _record_diverted(self, event: Diverted) -> None:
        current = self._opened(f"{event.entity}: the primary didn't accept a message")
        current.filled = True
        current.counts["diverted"] += event.messages
        if event.in_doubt:
            current.counts["possibly_twice"] += event.messages
        known = current.entities.get(event.entity.key) or EntityOutage(
            entity=event.entity.name, began=self.clock(), back=self.clock()
        )
        diverted = (known.diverted or 0) + event.messages
        current.entities[event.entity.key] = attrs.evolve(known, diverted=diverted)
        self.changes.notify()

    def _count(self, event: Event) -> None:
        current = self._open
        if current is None:
            return
        match event:
            case Syphoned(messages=messages):
                current.counts["moved"] += messages
            case SyphonBackedOff(in_doubt=messages):
                current.counts["possibly_twice_by_syphon"] += messages
            case SentTwice(messages=messages, certain=certain):
                current.counts["twice" if certain else "possibly_twice"] += messages
            case SendFailed():
                current.counts["failed"] += 1
            case DeadLettered(reason=reason):
                current.dead_lettered[label_of(reason)] += 1
            case BacklogEmpty():
                current.filled = False
                self.changes.notify()

    def _outage_of(self, current: _Open) -> RecordedOutage:
        counts, known = current.counts, list(current.entities.values())
        if not self.counts:
            known = [attrs.evolve(each, diverted=self._by_workers(each.entity)) for each in known]
        most = sorted(known, key=lambda each: (-(each.diverted or 0), each.entity))[:TOLD_ENTITIES]
        outage = attrs.evolve(
            current.outage,
            troubled=len(current.entities),
            entities=tuple(most),
            diverted=self._of_clients(counts["diverted"]),
            twice=self._of_clients(counts["twice"]),
            possibly_twice=self._of_clients(counts["possibly_twice"]),
            failed=self._of_clients(counts["failed"]),
            longest_stall=self._sends.slowest_since(current.batches) if self.counts else None,
            moved=counts["moved"] if self.moves else None,
            possibly_twice_by_syphon=counts["possibly_twice_by_syphon"] if self.moves else None,
            dead_lettered=dict(current.dead_lettered),
            curve=self._curve(current.outage.began),
            orders=tuple(current.orders.values()),
        )
        if self.workers is not None:
            outage = self._with_workers(outage, self.workers)
        unknown = "" if self._records is None else self._records().unknown
        return with_others(outage, current.before, self._others(), unknown)

    def _with_workers(self, outage: RecordedOutage, now: ClientCounts) -> RecordedOutage:
        """Messages between two outages count for the later one: each is of trouble."""
        before = self._workers_before or ClientCounts()
        return attrs.evolve(
            outage,
            diverted=now.diverted - before.diverted,
            possibly_twice=now.possibly_twice - before.possibly_twice,
        )

    def _by_workers(self, entity: str) -> int | None:
        now = None if self.workers is None else self.workers.of(entity)
        before = (self._workers_before or ClientCounts()).of(entity)
        return None if now is None or before is None else now - before

    def _others(self) -> Mapping[str, ProcessRecord]:
        return {} if self._records is None else by_process(self._records(), self.process)

    def _with_return(self, outage: RecordedOutage) -> RecordedOutage:
        """An outage in which the process before ended, with the return that others have seen."""
        if not outage.interrupted or outage.namespace_back is not None or self._restored is None:
            return outage
        dates = [each.primary_back for each in self._others().values()]
        seen = [each for each in dates if each and outage.began < each <= self._restored]
        return attrs.evolve(outage, namespace_back=max(seen, default=None))

    def _of_clients(self, counted: int) -> int | None:
        return counted if self.counts else None

    def _curve(self, since: datetime) -> tuple[DepthPoint, ...]:
        points = [
            DepthPoint(at=each.at, pending=each.pending)
            for each in self._samples()
            if each.at >= since
        ]
        step = -(-len(points) // MOST_POINTS) or 1
        kept = points[::step]
        return tuple(kept if not points or kept[-1] is points[-1] else [*kept, points[-1]])


def over(outage: RecordedOutage) -> OutageOver:
    """The event that tells the end of the outage."""
    ended, began = outage.ended or outage.began, outage.began
    return OutageOver(
        cause=outage.cause,
        seconds=(ended - began).total_seconds(),
        entities=outage.troubled,
        diverted=outage.diverted,
        moved=outage.moved,
        twice=outage.twice,
        possibly_twice=outage.possibly_twice,
        possibly_twice_by_syphon=outage.possibly_twice_by_syphon,
        longest_stall=outage.longest_stall,
        dead_lettered=sum(outage.dead_lettered.values()),
        processes=outage.processes,
        left_out=len(outage.left_out),
        empty=outage.empty,
    )
