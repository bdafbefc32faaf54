"""Planted bugs in the rules and the storage of our own namespaces: what the machine has to find."""

from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs

from gateway.brokers.embedded.committer import Committer
from gateway.brokers.embedded.rows import SqliteRows
from gateway.brokers.local.memory import MemoryEntityStore
from gateway.brokers.local.memory_rows import MemorySeenIds
from gateway.domain.clocks.times import Now
from gateway.domain.errors import BrokerError
from gateway.domain.message import Abandon, Complete, Defer, Settlement
from gateway.engine import enqueue as enqueue
from gateway.engine import queue_checks
from gateway.engine.dispatch import Dispatch
from gateway.engine.enqueue import EnqueueRules
from gateway.engine.locks import Locks
from gateway.engine.message_index import MessageIndex
from gateway.engine.queue import Queue
from gateway.engine.queue_content import QueueContent
from gateway.engine.records import Row, Storage
from gateway.engine.sessions import Sessions
from gateway.engine.topic_routing import TopicRouting
from tests.simulation.planted.catalogue import Function, Mutant


def _instead(wrong: type[Settlement], right: type[Settlement]) -> Any:
    def replace(settle: Function) -> Function:
        def planted(self: Queue, token: str | None, how: Settlement, now: Now) -> None:
            settle(self, token, wrong() if isinstance(how, right) else how, now)

        return planted

    return replace


def _to_the_end(_right: Function) -> Function:
    def planted(self: QueueContent, row: Row, now: Now) -> None:
        if self.fit(row, now):
            self.index.replace(row, attrs.evolve(row, sequence=self.next_sequence()))

    return planted


def _shared_ids(right: Function) -> Function:
    shared: WeakKeyDictionary[MemoryEntityStore, MemorySeenIds] = WeakKeyDictionary()

    def planted(self: MemoryEntityStore, entity: Any) -> Storage:
        storage: Storage = right(self, entity)
        return attrs.evolve(storage, seen=shared.setdefault(self, MemorySeenIds()))

    return planted


def _not_counted(right: Function) -> Function:
    def planted(self: Dispatch, row: Row, *rest: Any) -> Any:
        return right(self, attrs.evolve(row, deliveries=max(0, row.deliveries - 1)), *rest)

    return planted


def _early(right: Function) -> Function:
    def planted(*arguments: Any) -> Row:
        row: Row = right(*arguments)
        return row if row.due is None else attrs.evolve(row, due=row.due - 10**6)

    return planted


def _held_twice(right: Function) -> Function:
    def planted(self: Any, session: str | None, *rest: Any) -> Any:
        self._held.pop(session, None)
        return right(self, session, *rest)

    return planted


def _lost_on_the_way(right: Function) -> Function:
    def planted(self: QueueContent, row: Row, onward: Any, hops: int, now: Now) -> None:
        try:
            onward.targets(row, hops, now)
        except BrokerError:
            return
        right(self, row, onward, hops, now)

    return planted


def _without_reason(right: Function) -> Function:
    def planted(self: QueueContent, row: Row, why: Any, now: Now) -> None:
        right(self, row, attrs.evolve(why, reason=""), now)

    return planted


def _one_by_one(right: Function) -> Function:
    def planted(self: EnqueueRules, messages: Sequence[Any], now: Now) -> list[int]:
        return [number for each in messages for number in right(self, [each], now)]

    return planted


def _late(_right: Function) -> Function:
    """Answers before the commit, which comes with the next batch."""

    def planted(self: Any, steps: Sequence[Any]) -> Any:
        if self._store._connection.in_transaction:
            self._store.commit()
        self._begin(steps)
        self._run_steps(steps, [])
        return self._namespace.report(steps[-1].now)

    return planted


def _nothing(_right: Function) -> Function:
    return lambda *_arguments, **_named: None


def _nobody(_right: Function) -> Function:
    return lambda *_arguments: iter(())


MEMORY: Final = (
    Mutant("locks never run out", Locks, "run_out", _nobody),
    Mutant("renewing extends no lock", Locks, "extend", _nothing),
    Mutant("completing gives back", Queue, "settle", _instead(Abandon, Complete)),
    Mutant("deferring gives back", Queue, "settle", _instead(Abandon, Defer)),
    Mutant("nothing expires", queue_checks, "later", _nothing),
    Mutant("what is given back goes to the end", QueueContent, "give_back", _to_the_end),
    Mutant("ids are known to all queues", MemoryEntityStore, "add", _shared_ids),
    Mutant("deliveries aren't counted", Dispatch, "_deliver", _not_counted),
    Mutant("schedules come early", enqueue, "accept", _early),
    Mutant("a session is held twice", Sessions, "accept", _held_twice),
    Mutant("what a target refuses is lost", QueueContent, "forward", _lost_on_the_way),
    Mutant("dead letters have no reason", QueueContent, "dead_letter", _without_reason),
    Mutant("batches are taken in part", EnqueueRules, "send", _one_by_one),
    Mutant("there is no quota", EnqueueRules, "check_quota", _nothing),
    Mutant("a disabled queue gives", Queue, "check_active", _nothing),
    Mutant(
        "only one subscription gets a copy",
        TopicRouting,
        "targets",
        lambda right: lambda *arguments: right(*arguments)[:1],
    ),
    Mutant("sizes are not counted", MessageIndex, "_add_bytes", _nothing),
)

EMBEDDED: Final = (
    Mutant("acknowledged before the commit", Committer, "run", _late),
    Mutant(
        "counts before the limit aren't durable",
        SqliteRows,
        "count_delivery",
        lambda right: (
            lambda self, row, deliveries, durable: right(self, row, deliveries, durable=False)
        ),
    ),
)
