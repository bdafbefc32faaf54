"""Namespaces in which a bug ends a step at any call, and their whole state, for a comparison."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Final

import attrs

import gateway
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.files import Disk
from gateway.store.embedded.store import Store
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.entity_store import EntityStore
from gateway.store.engine.message_index import Lane
from gateway.store.engine.namespace import Namespace, always_watched
from gateway.store.engine.queue import Queue
from gateway.store.engine.records import Row, State
from gateway.store.local.memory import MemoryEntityStore
from gateway.store.local.step import Fault, Step, attempt, report_of
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.sql.action import compile_action
from gateway.wire.sql.filter import compile_filter
from tests.harness.store_work import connection_of

Work = Callable[[Namespace, Now], Any]

_ROOT: Final = str(Path(gateway.__file__).parent)
# The modules in which a step runs; the code that undoes it is left alone.
_PLACES: Final = tuple(
    f"{_ROOT}/{place}"
    for place in (
        "domain/",
        "store/engine/",
        "store/local/memory",
        "store/embedded/changes",
        "store/embedded/checksums",
        "store/embedded/counters",
        "store/embedded/entities",
        "store/embedded/rows",
        "store/embedded/session_rows",
        "store/embedded/store.py",
        "wire/",
    )
)
_TABLES: Final = ("queue", "rule", "message", "session", "seen", "quarantine")


class PlantedBug(Exception):
    """No error of ours."""


@cache
def _is_of_a_step(file: str) -> bool:
    return file.startswith(_PLACES) and not file.endswith("journal.py")


@attrs.define(eq=False)
class Bug:
    """Raises at the call of that number in a step, if the step has that many."""

    number: int = 0
    calls: int = 0
    place: str = ""

    @contextmanager
    def planted(self) -> Iterator[None]:
        self.calls = 0
        before = sys.gettrace()
        sys.settrace(self._look)
        try:
            yield
        finally:
            sys.settrace(before)

    @property
    def hit(self) -> bool:
        return self.calls >= self.number > 0

    def _look(self, frame: FrameType, event: str, _argument: object) -> None:
        name, function = frame.f_code.co_filename, frame.f_code.co_name
        if event != "call" or not _is_of_a_step(name) or function == "<genexpr>":
            return  # a generator that is closed raises nothing
        self.calls += 1
        if self.calls == self.number:
            self.place = f"{name}:{function}"
            raise PlantedBug(self.place)


def make_namespace(store: EntityStore) -> Namespace:
    tokens = (f"token {number}" for number in count(1))
    return Namespace(
        max_message_size=10**6,
        max_queues=100,
        create_missing=True,
        store=store,
        new_token=tokens.__next__,
        packing=Packing(pack, decode_message),
        compile_sql=lambda sql: compile_filter(sql.expression, sql.parameters),
        compile_action=lambda sql: compile_action(sql.expression, sql.parameters, tokens.__next__),
    )


def pack(message: Message) -> tuple[bytes, int]:
    content = encode_message(message)
    return content, len(content)


class InMemory:
    """Each step by itself."""

    def __init__(self, _folder: Path) -> None:
        self.namespace = make_namespace(MemoryEntityStore())

    def run(self, work: Work, now: Now, bug: Bug) -> tuple[Step[Any], list[Fault]]:
        step, faults = Step(EntityPath("orders"), now, work), list[Fault]()
        self.namespace.journal.forget()

        def run() -> None:
            with bug.planted():
                step.run(self.namespace)

        fault = attempt(run)
        if fault is not None:
            self.namespace.journal.rewind()
            step.fault(fault)
            faults.append((step.path, fault))
        return step, list(report_of(self.namespace, now, faults, always_watched).faults)

    def stored(self) -> object:
        """Nothing."""
        return None

    def close(self) -> None:
        """Nothing is left."""


class _Alone(Committer):
    """The bug comes where each step is run by itself."""

    bug: Bug

    def _run_together(self, steps: Any) -> None:
        raise PlantedBug

    def _run_apart(self, steps: Any, faults: Any) -> None:
        with self.bug.planted():
            super()._run_apart(steps, faults)


class _Together(Committer):
    """The bug comes where all steps are run together, and not again."""

    bug: Bug

    def _run_together(self, steps: Any) -> None:
        with self.bug.planted():
            super()._run_together(steps)


class OnDisk:
    """A store, with each step in a transaction of its own."""

    kind: type[Any] = _Alone

    def __init__(self, folder: Path) -> None:
        self.path = folder / "a.db"
        self.store = Store.open(self.path, lambda: 7, Disk())
        self.namespace = make_namespace(self.store)
        self.committer = self.kind(self.store, self.namespace)

    def run(self, work: Work, now: Now, bug: Bug) -> tuple[Step[Any], list[Fault]]:
        step = Step(EntityPath("orders"), now, work)
        self.committer.bug = bug
        report = self.committer.run([step])
        assert not self.committer.failed
        return step, list(report.faults)

    def stored(self) -> object:
        """Return all committed rows, by table."""
        connection = connection_of(self.store)
        assert not connection.in_transaction
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
            for table in _TABLES
        }

    def close(self) -> None:
        self.store.close()


class OnDiskTogether(OnDisk):
    """The same, where a bug that doesn't come again is survived."""

    kind = _Together


def content_of(namespace: Namespace) -> object:
    """All that a namespace knows of its entities, but for when one was accessed last."""
    return {
        "queues": {key: _queue(queue) for key, queue in sorted(namespace._queues.items())},
        "topics": {
            key: (
                routing.properties,
                routing.rules,
                routing.sql_rules,
                {
                    name: (each.properties, dict(sorted(each.rules.items())))
                    for name, each in sorted(routing.subscriptions.items())
                },
            )
            for key, routing in sorted(namespace._routings.items())
        },
        "names": {kind.__name__: list(keys) for kind, keys in namespace._names._keys.items()},
    }


def _queue(queue: Queue) -> object:
    content = queue._content
    index, sessions, rows = content.index, content.sessions, _rows(queue)
    return {
        "entity": attrs.asdict(
            queue.entity, recurse=False, filter=lambda field, _: field.name != "journal"
        ),
        "onward": (content.onward is None, content.onward_dead is None, content._unfinished),
        "bytes": (index.bytes, index.used),
        "dates": (index.next_due, index.next_visible, index.next_expiry, index._swept),
        "locked": [row.sequence for row in rows if index.is_locked(row)],
        "quarantined": index.has_quarantined,
        "lanes": {state: _lane(index._known_lane(state) or Lane()) for state in State},
        "rows": rows,
        "locks": _locks(queue._dispatch._locks),
        "sessions": sessions
        and {
            "locks": _locks(sessions._locks),
            "held": {
                name: (sorted(held.tokens), held.cursor, sorted(held.returned))
                for name, held in sessions._held.items()
            },
            "order": (sessions._cursor, sorted(sessions._returned), sorted(sessions._returned_ids)),
            "states": [content.storage.sessions.get(name) for name in ("one", "two", "three")],
        },
        "seen": [content.storage.seen.until(name) for name in ("a", "b", "c")],
    }


def _rows(queue: Queue) -> list[Row]:
    rows = queue._content.storage.rows
    return [row for state in State for row in rows.after(state, -1, 1000)]


def _lane(lane: Lane) -> object:
    return lane.cursor, sorted(lane.returned or ()), sorted(lane._known or ()), lane.messages


def _locks(locks: Any) -> object:
    if locks is None:
        return {}
    return {
        token: (
            lock.held.sequence if hasattr(lock.held, "sequence") else lock.held.id,
            locks._deadlines.get(token),
        )
        for token, lock in sorted(locks._locks.items())
    }


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Return a text for each place where two contents differ."""
    if before == after:
        return []  # mostly, and at once
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            text
            for key in dict.fromkeys([*before, *after])
            for text in differences(before.get(key), after.get(key), f"{place}/{key}")
        ]
    return [f"{place}: {before} became {after}"]
