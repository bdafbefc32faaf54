"""
Random work on a store, and its expected content afterwards, in plain dicts. The rules for the
expected content are few and are repeated here, by hand: a test that took them from the store would
never find anything missing.
"""

import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import apsw
import attrs

from gateway.brokers.lock_tokens import lock_tokens
from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import OutcomeUnknown
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.files import Disk, StoreError
from gateway.store.embedded.store import Store
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.queue import Queue
from gateway.store.engine.records import Incoming, MessageNumbers, State
from gateway.store.local.step import Step

NAMES: Final = ("plain", "other", "sessions", "unique")
_PLAIN: Final = QueueProperties(
    max_delivery_count=10_000,  # nothing is moved for having been delivered too often
    lock_duration=timedelta(minutes=5),
    duplicate_detection_window=timedelta(days=7),
)
_PROPERTIES: Final = {
    "sessions": attrs.evolve(_PLAIN, requires_session=True),
    "unique": attrs.evolve(_PLAIN, requires_duplicate_detection=True),
}
_SIZES: Final = (30, 300, 1500, 5000)  # bytes; the last takes overflow pages
_HOUR: Final = 3600 * 10**6
_BEGIN: Final = 10**15
_ANY: Final = 10**6
# The message ids that duplicate detection compares.
_IDS: Final = tuple(f"unique{number}" for number in range(20))
_LIVE: Final = (State.ACTIVE, State.DEAD)


@attrs.define
class Kept:
    """The messages that must be in one queue, by content: each with its state and its due date."""

    messages: dict[bytes, tuple[State, int | None]] = attrs.field(factory=dict)
    sessions: dict[str, bytes] = attrs.field(factory=dict)  # states
    seen: frozenset[str] = frozenset()

    def sweep(self, wall: int) -> None:
        for content, (_, due) in self.messages.items():
            if due is not None and due <= wall:
                self.messages[content] = (State.ACTIVE, None)

    def copy(self) -> "Kept":
        return Kept(dict(self.messages), dict(self.sessions), self.seen)


World = Mapping[str, Kept]


def roomy(vfs: str | None = None) -> Disk:
    """A disk that is never full, and whose file system isn't checked."""
    return Disk(
        free_bytes=lambda _: 2**40,
        file_system=lambda _: "ext4",
        sync_seconds=lambda _: 1.0,
        vfs=vfs,
    )


def open_committer(path: Path, disk: Disk) -> tuple[Committer, Store]:
    """As the broker does it in the thread of its writer."""
    store = Store.open(path, lambda: 7, disk)
    try:
        namespace = Namespace(
            max_message_size=2**20,
            max_queues=100,
            create_missing=False,
            store=store,
            new_token=lock_tokens(random.Random(0)),
            packing=Packing(
                lambda message: (str(message.message_id).encode(), 0),
                lambda content: Message(message_id=content.split()[0].decode()),
            ),
            compile_sql=lambda _filter: lambda _message: True,
            compile_action=lambda _action: lambda message: message,
        )
    except StoreError:
        store.forsake()
        raise
    except apsw.Error as error:
        store.forsake()
        raise StoreError(f"{path}: {error}") from error
    return Committer(store, namespace), store


def connection_of(store: Store) -> apsw.Connection:
    """
    Return the store's own connection, as a store allows no second one, to read its inner state or
    to harm it.
    """
    connection: apsw.Connection = store._connection
    return connection


def read_world(store: Store) -> World:
    """
    Return the content of a store, by queue.

    Raises:
        AssertionError: a message is there twice, or damaged.
    """
    world: dict[str, Kept] = {}
    for queue, _ in store.load():
        storage = store.storage(queue.path)
        kept = world[queue.path.key] = Kept()
        for state in State:
            for row in storage.rows.after(state, 0, _ANY):
                if row.damaged or row.content in kept.messages:
                    raise AssertionError(f"{queue.path}: {row}")
                kept.messages[row.content] = (state, row.due)
        for session in storage.sessions.page(0, 0, _ANY):
            record = storage.sessions.get(session)
            if record is not None and record.state is not None:
                kept.sessions[session] = record.state
        if queue.path.key == "unique":
            kept.seen = frozenset(each for each in _IDS if storage.seen.until(each) is not None)
    return world


@attrs.frozen
class Task:
    """A step of the work, and its effect on the world if it succeeds."""

    queue: str
    step: Step[Any]
    effect: Callable[[Kept, Any], object]


@attrs.define(eq=False)
class Work:
    """
    Runs random batches on a store. `worlds` has the expected content of the store after each batch.
    All choices come from the generator, so that the same seed does the same on every store.
    """

    committer: Committer
    _rng: random.Random
    worlds: list[World] = attrs.field(factory=lambda: [{}])
    _clock: Now = attrs.field(factory=lambda: Now(_BEGIN, 1.0))
    _made: int = 0
    _held: list[tuple[str, TakenRow]] = attrs.field(factory=list)
    _numbers: list[tuple[str, State, int, bytes]] = attrs.field(factory=list)

    def go_on_with(self, committer: Committer, world: World) -> None:
        """The store was opened again, and holds that."""
        self.committer = committer
        self._held.clear()
        self._numbers.clear()
        self.worlds.append(world)

    def run_batch(self) -> str:
        """
        Run one; return "done", "refused" (nothing happened) or "unknown" (the store has failed).
        """
        tasks = self._plan()
        self.committer.run([task.step for task in tasks])
        errors = {type(task.step.error) for task in tasks}
        if self.committer.failed:
            return "unknown" if OutcomeUnknown in errors else "refused"
        if any(error is not None and error.__name__ == "StorageFull" for error in errors):
            return "refused"
        self._write_down(tasks)
        return "done"

    def _write_down(self, tasks: list[Task]) -> None:
        world = {name: kept.copy() for name, kept in self.worlds[-1].items()}
        for task in tasks:
            kept = world.setdefault(task.queue, Kept())
            if task.step.error is None:
                kept.sweep(task.step.now.wall)
                task.effect(kept, task.step.value)
            else:
                raise AssertionError(f"{task.queue}: {task.step.error}") from task.step.error
        for task in tasks:
            if task.effect is _gone:
                del world[task.queue]
        self.worlds.append(world)

    # --- planning

    def _plan(self) -> list[Task]:
        if not self.worlds[-1]:
            return [self._create(name) for name in NAMES]
        if self._rng.random() < 0.1:
            self._clock = attrs.evolve(self._clock, wall=self._clock.wall + _HOUR)
        if self._rng.random() < 0.05:
            return [self._delete_or_create()]
        return [self._task() for _ in range(self._rng.randint(1, 4))]

    def _task(self) -> Task:
        there = [name for name in NAMES if name in self.worlds[-1]]
        name = self._rng.choice(there)
        kinds = [self._send, self._send]
        if name == "sessions":
            kinds += [self._serve_session, self._serve_session]
        else:
            kinds += [self._take, self._settle, self._settle, self._find_number]
        return self._rng.choice(kinds)(name)

    def _create(self, name: str) -> Task:
        path, properties = EntityPath(name), _PROPERTIES.get(name, _PLAIN)
        step = Step(path, self._now(), lambda space, now: space.create(path, properties, now))
        return Task(name, step, lambda _kept, _value: None)

    def _delete_or_create(self) -> Task:
        if "other" not in self.worlds[-1]:
            return self._create("other")
        path = EntityPath("other")
        self._held = [each for each in self._held if each[0] != "other"]
        self._numbers = [each for each in self._numbers if each[0] != "other"]
        return Task("other", Step(path, self._now(), lambda space, _: space.delete(path)), _gone)

    def _send(self, name: str) -> Task:
        scheduled = self._rng.random() < 0.2
        due = self._clock.wall + self._rng.randint(1, _HOUR // 2) if scheduled else None
        incoming = [self._incoming(name, due) for _ in range(self._rng.randint(1, 4))]
        state = State.ACTIVE if due is None else State.SCHEDULED

        def sent(kept: Kept, places: list[MessageNumbers]) -> None:
            for (_, number), message in zip(places, incoming, strict=True):
                if name == "unique":
                    if message.message_id in kept.seen:
                        continue
                    kept.seen |= {message.message_id or ""}
                kept.messages[message.content] = (state, due)
                if due is not None:
                    self._numbers.append((name, state, number, message.content))

        return self._on(name, lambda queue, now: queue.send(incoming, now), sent)

    def _incoming(self, name: str, due: int | None) -> Incoming:
        self._made += 1
        message_id = self._rng.choice(_IDS) if name == "unique" else f"{name}{self._made}"
        head = f"{message_id} {self._made} ".encode()
        content = head + self._rng.randbytes(self._rng.choice(_SIZES))
        return Incoming(
            content=content,
            size=len(content),
            scheduled=None if due is None else to_date(due),
            session=f"s{self._rng.randrange(4)}" if name == "sessions" else None,
            message_id=message_id,
        )

    def _take(self, name: str) -> Task:
        state, limit = self._rng.choice(_LIVE), self._rng.randint(1, 4)
        mode = self._rng.choice([ReceiveMode.PEEK_LOCK, *ReceiveMode])

        def taken(kept: Kept, found: list[TakenRow]) -> None:
            for each in found:
                if kept.messages[each.row.content][0] is not state:
                    raise AssertionError(f"{name}: {each.row}")
                if mode is ReceiveMode.PEEK_LOCK:
                    self._held.append((name, each))
                else:
                    del kept.messages[each.row.content]

        return self._on(name, lambda queue, now: queue.receive(state, limit, mode, now), taken)

    def _settle(self, name: str) -> Task:
        if not self._held:
            return self._send(name)
        name, held = self._held.pop(self._rng.randrange(len(self._held)))
        choices: list[Settlement] = [Complete(), Complete(), Abandon()]
        if held.row.state is State.ACTIVE:
            choices += [DeadLetter(reason="why", description="because"), Defer()]
        settlement = self._rng.choice(choices)

        def settled(kept: Kept, _: None) -> None:
            match settlement:
                case Complete():
                    del kept.messages[held.row.content]
                case DeadLetter():
                    kept.messages[held.row.content] = (State.DEAD, None)
                case Defer() if held.row.state is not State.DEFERRED:
                    number = (name, State.DEFERRED, held.row.number, held.row.content)
                    self._numbers.append(number)
                    kept.messages[held.row.content] = (State.DEFERRED, None)

        return self._on(name, lambda queue, now: queue.settle(held.token, settlement, now), settled)

    def _find_number(self, name: str) -> Task:
        """Cancel a scheduled message, or take a deferred one for good."""
        if not self._numbers:
            return self._send(name)
        name, state, number, content = self._numbers.pop(self._rng.randrange(len(self._numbers)))
        now = self._now()

        def work(queue: Queue, now: Now) -> None:
            if state is State.SCHEDULED:
                queue.cancel([number], now)
            else:
                queue.receive_deferred([number], ReceiveMode.RECEIVE_AND_DELETE, now)

        known = self.worlds[-1][name].messages.get(content, (None, None))
        if known[0] is not state or (known[1] is not None and known[1] <= now.wall):
            return self._send(name)
        return self._on(name, work, lambda kept, _: kept.messages.pop(content))

    def _serve_session(self, name: str) -> Task:
        """Accept one, complete its oldest message, set its state, let it go."""
        session, state = f"s{self._rng.randrange(4)}", self._rng.randbytes(100)

        def work(queue: Queue, now: Now) -> list[TakenRow]:
            rules = queue.sessions
            accepted = rules.accept(session, now)
            if accepted is None:
                return []
            found = rules.receive(accepted.holder, 1, ReceiveMode.PEEK_LOCK, now)
            for each in found:
                rules.settle(accepted.holder, each.token, Complete(), now)
            rules.set_state(accepted.holder, state, now)
            rules.release(accepted.holder, now)
            return found

        def served(kept: Kept, found: list[TakenRow]) -> None:
            for each in found:
                del kept.messages[each.row.content]
            kept.sessions[session] = state

        return self._on(name, work, served)

    def _on(
        self, name: str, work: Callable[[Queue, Now], Any], effect: Callable[[Kept, Any], object]
    ) -> Task:
        path = EntityPath(name)
        step = Step(path, self._now(), lambda space, now: work(space.find(path), now))
        return Task(name, step, effect)

    def _now(self) -> Now:
        self._clock = attrs.evolve(self._clock, monotonic=self._clock.monotonic + 0.03)
        return self._clock


def _gone(_kept: Kept, _value: object) -> None:
    """The queue is deleted."""
