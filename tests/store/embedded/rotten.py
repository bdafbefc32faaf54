"""A store with pages of every kind, and the state of it after one bit has flipped."""

import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw
import attrs

from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, MessageNotFound, StateDamaged
from gateway.domain.message import Complete, DeadLetter, Defer, ReceiveMode
from gateway.domain.topics.filters import Rule, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.files import StoreError
from gateway.store.embedded.store import Store
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.entity_store import StoredEntity
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import Incoming, Row, State
from gateway.store.engine.topics import Topics
from gateway.store.local.step import Step
from tests.harness.crash_disk import Image, read_image, write_image
from tests.harness.store_work import connection_of, open_committer, roomy
from tests.store.embedded.crash_states import FILES, STORE

PAGE: Final = 4096
NOW: Final = Now(10**15, 1.0)
DAY: Final = 24 * 3600 * 10**6
LATER: Final = attrs.evolve(NOW, wall=NOW.wall + 2 * DAY)
PLAIN, UNIQUE, SESSIONS, TOPIC = map(EntityPath, ("plain", "unique", "sessions", "topic"))
QUEUES: Final = {
    PLAIN: QueueProperties(max_delivery_count=1000),
    UNIQUE: QueueProperties(requires_duplicate_detection=True),
    SESSIONS: QueueProperties(requires_session=True),
}


@attrs.frozen
class Found:
    """Everything of a store that can be peeked, read and received, and how much it quarantined."""

    shown: Mapping[tuple[str, int], Row]
    entities: Sequence[StoredEntity]
    seen: Mapping[str, int]  # until when
    states: Mapping[str, bytes | None]  # of sessions, but for those that are said to be damaged
    received: frozenset[tuple[str, bytes]]
    deferred: Sequence[int]
    quarantined: int = 0
    damaged: frozenset[str] = frozenset()  # sessions


@attrs.define(eq=False)
class Owner:
    """Runs each step by itself, as clients request it."""

    committer: Committer
    quarantined: int = 0
    damaged: set[str] = attrs.field(factory=set)

    def run(self, path: EntityPath, work: Any) -> Any:
        step: Step[Any] = Step(path, NOW, work)
        report = self.committer.run([step])
        for _, news in report.news:
            self.quarantined += 0 if news is None else len(news.quarantined)
            self.damaged.update(() if news is None else news.damaged)
        return step.result()


def build(folder: Path) -> None:
    """A store whose last commits stand in its log alone; `close` and nothing does any more."""
    committer, store = open_committer(folder / STORE, roomy())
    owner = Owner(committer)
    rng = random.Random(0)
    for path, properties in QUEUES.items():
        owner.run(path, lambda space, now, path=path, p=properties: space.create(path, p, now))
    _subscribe(owner)
    _send(owner, rng, 600)
    _settle(owner, 200)
    committer.tidy()
    _send(owner, rng, 60)
    _settle(owner, 20)
    store.forsake()


def _subscribe(owner: Owner) -> None:
    """Entities and rules on more than one page, and some that are deleted."""

    def work(space: Namespace, now: Now) -> None:
        topics = Topics(space)
        topics.create(TOPIC, TopicProperties(), now)
        for number in range(40):
            name, text = f"reader{number}", f"number = {number} AND color = 'red'"
            rule = Rule(name=f"rule{number}", filter=SqlFilter(expression=text))
            topics.subscribe(TOPIC, name, SubscriptionProperties(), rule, now)

    owner.run(TOPIC, work)


def _send(owner: Owner, rng: random.Random, count: int) -> None:
    steps: list[Step[Any]] = []
    for number in range(count):
        path = rng.choice((PLAIN, PLAIN, PLAIN, UNIQUE, SESSIONS))
        size = rng.choice((50, 300, 300, 9000))
        name = f"id{count}-{number}"
        content = f"{name} ".encode() + rng.randbytes(size)
        incoming = Incoming(
            content=content,
            size=len(content),
            time_to_live=timedelta(days=400) if number % 3 == 0 else None,
            scheduled=to_date(NOW.wall + DAY) if number % 7 == 0 else None,
            session=f"s{number % 20}" if path is SESSIONS else None,
            message_id=name,
        )
        work = partial(_send_one, path, incoming)
        steps.append(Step(path, NOW, work))
    for first in range(0, count, 30):
        owner.committer.run(steps[first : first + 30])


def _send_one(path: EntityPath, message: Incoming, space: Namespace, now: Now) -> None:
    space.find(path).send([message], now)


def _settle(owner: Owner, count: int) -> None:
    def work(space: Namespace, now: Now) -> None:
        queue = space.find(PLAIN)
        why = DeadLetter(reason="why", description="because")
        for taken in queue.receive(State.ACTIVE, count, ReceiveMode.PEEK_LOCK, now):
            kind = (Complete(), why, Defer(), Complete())[taken.row.sequence % 4]
            queue.settle(taken.token, kind, now)

        rules = space.find(SESSIONS).sessions
        accepted = rules.accept(None, now)
        if accepted is not None:
            rules.set_state(accepted.holder, b"state of a session" * 10, now)
            rules.release(accepted.holder, now)

    owner.run(PLAIN, work)


# --- the results


def look(folder: Path, deferred: Sequence[int] = ()) -> tuple[str, Found | None]:
    """
    Open a store, see and receive everything, the deferred messages by number.

    Say whether it "refused", "stopped", "lost" an entity, or "served".
    """
    try:
        committer, store = open_committer(folder / STORE, roomy())
    except StoreError:
        return "refused", None
    owner = Owner(committer)
    try:
        entities = [entity for entity, _ in store.load()]
        seen = _seen(store)
        shown, states = _peek(owner), _session_states(owner)
        received = frozenset(_receive(owner, deferred))
    except BrokerError:
        return ("stopped" if committer.failed else "lost"), None
    finally:
        store.forsake()
    numbers = [number for (_, number), row in shown.items() if row.state is State.DEFERRED]
    damaged = frozenset(owner.damaged)
    return "served", Found(
        shown, entities, seen, states, received, numbers, owner.quarantined, damaged
    )


def _peek(owner: Owner) -> dict[tuple[str, int], Row]:
    shown: dict[tuple[str, int], Row] = {}
    for path in QUEUES:
        rows = owner.run(
            path, lambda space, _, path=path: space.find(path).peek(list(State), 0, 10**4)
        )
        shown.update({(path.key, row.sequence): attrs.evolve(row, deliveries=0) for row in rows})
    return shown


def _session_states(owner: Owner) -> dict[str, bytes | None]:
    def work(space: Namespace, now: Now) -> dict[str, bytes | None]:
        rules = space.find(SESSIONS).sessions
        states: dict[str, bytes | None] = {}
        for name in rules.page(0, 0, 10**4):
            accepted = rules.accept(name, now)
            with suppress(StateDamaged):
                states[name] = rules.state(accepted.holder, now)
            rules.release(accepted.holder, now)
        return states

    return owner.run(SESSIONS, work)


def _seen(store: Store) -> dict[str, int]:
    """
    Return the expiry of each id of the store's duplicate detection, even of ids there by mistake.
    """
    seen: dict[str, int] = {}
    names: list[Any] = connection_of(store).execute("SELECT id FROM seen").fetchall()
    for entity, _ in store.load():
        if entity.path == UNIQUE:
            storage = store.storage(entity.path)
            found = {name: storage.seen.until(name) for (name,) in names}
            seen = {name: until for name, until in found.items() if until is not None}
    return seen


def _receive(owner: Owner, deferred: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    """Yield the contents that a client can receive once all scheduled messages are due."""
    for number in deferred:
        with suppress(MessageNotFound):
            for taken in owner.run(PLAIN, partial(_take_deferred, number)):
                yield PLAIN.key, taken.row.content
    for path in QUEUES:
        for state in (State.ACTIVE, State.DEAD):
            for taken in owner.run(path, partial(_take_all, path, state)):
                yield path.key, taken.row.content


def _take_deferred(number: int, space: Namespace, now: Now) -> list[TakenRow]:
    return space.find(PLAIN).receive_deferred([number], ReceiveMode.PEEK_LOCK, now)


def _take_all(path: EntityPath, state: State, space: Namespace, now: Now) -> list[TakenRow]:
    queue = space.find(path)
    if path is not SESSIONS or state is not State.ACTIVE:
        return queue.receive(state, 10**4, ReceiveMode.PEEK_LOCK, LATER)
    found: list[TakenRow] = []
    while (accepted := queue.sessions.accept(None, LATER)) is not None:
        holder = accepted.holder
        found += queue.sessions.receive(holder, 10**4, ReceiveMode.PEEK_LOCK, LATER)
    return found


def judge(whole: Found, how: str, found: Found | None) -> str:
    """
    Return the effect of one flipped bit: `how` if the store wasn't opened; else "told", "harmless",
    or a word that begins with "lost" or "wrong".
    """
    if found is None:
        return how
    if found.entities != whole.entities:
        return "wrong entity"
    if found.seen.items() - whole.seen.items():
        return "wrong id"
    if found.states.items() - whole.states.items():
        return "wrong session state"
    if whole.states.keys() - found.states.keys() - found.damaged:
        return "lost session state"
    if any(whole.shown.get(key) != row for key, row in found.shown.items()):
        return "wrong"
    if found.received - whole.received:
        return "wrong content"
    if len(whole.received) - len(found.received) > found.quarantined:
        return "lost"
    if found.damaged or found.quarantined:
        return "told"
    return "harmless"


# --- where bits flip


@attrs.frozen
class Place:
    """A run of bytes of one kind in a file."""

    kind: str
    file: str
    begin: int
    length: int


def places(folder: Path, image: Image) -> list[Place]:
    return [
        *_pages(folder),
        *_log(image.get(f"{STORE}-wal", b"")),
        Place("mark", "a.db.hwm", 0, 16),
    ]


def _pages(folder: Path) -> Iterator[Place]:
    """Yield the pages of the database itself, without its log."""
    connection = apsw.Connection(f"file:{folder / STORE}?immutable=1", flags=_READ)
    used: dict[int, str] = {}
    for number, name, kind in connection.execute("SELECT pageno, name, pagetype FROM dbstat"):
        used[number] = f"{name} {kind}"
    connection.close()
    content = (folder / STORE).read_bytes()
    yield Place("header", STORE, 0, 100)
    for number in range(1, len(content) // PAGE + 1):
        begin, end = (number - 1) * PAGE + (100 if number == 1 else 0), number * PAGE
        kind = "pointer map" if number == 2 else used.get(number, "free")
        if kind.endswith(("leaf", "internal")):
            # The file format of SQLite, section 1.6: the bytes between the pointers and the cells
            # have no meaning, and are most of many a page.
            cells, cells_begin = struct.unpack_from(">HH", content, begin + 3)
            pointers_end = begin + (8 if kind.endswith("leaf") else 12) + 2 * cells
            yield Place(kind, STORE, begin, pointers_end - begin)
            begin = (number - 1) * PAGE + cells_begin
        if begin < end:
            yield Place(kind, STORE, begin, end - begin)


_READ: Final = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


def _log(content: bytes) -> Iterator[Place]:
    """The file format of SQLite, section 4.1."""
    if not content:
        return
    yield Place("log header", f"{STORE}-wal", 0, 32)
    for begin in range(32, len(content), 24 + PAGE):
        yield Place("log frame header", f"{STORE}-wal", begin, 24)
        yield Place("log frame", f"{STORE}-wal", begin + 24, PAGE)


def flipped(image: Image, place: Place, rng: random.Random) -> Image:
    content = bytearray(image[place.file])
    content[place.begin + rng.randrange(place.length)] ^= 1 << rng.randrange(8)
    return {**image, place.file: bytes(content)}


def by_kind(all_places: Sequence[Place]) -> dict[str, list[Place]]:
    kinds: dict[str, list[Place]] = {}
    for place in all_places:
        kinds.setdefault(place.kind, []).append(place)
    return kinds


def stores(folder: Path) -> dict[str, Image]:
    """The same store, killed and closed."""
    build(folder)
    killed = read_image(folder, FILES)
    _committer, store = open_committer(folder / STORE, roomy())
    store.close()
    closed = read_image(folder, FILES)
    write_image(folder, closed, FILES)
    return {"killed": killed, "closed": closed}
