"""Parts of the tests of queue that other tests need, too."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import attrs

from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import ReceiveMode
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.queue import Queue, QueueDependencies
from gateway.store.engine.queue_content import Entity
from gateway.store.engine.records import Incoming, Row, SessionRecord, State, Storage, Total

PEEK_LOCK = ReceiveMode.PEEK_LOCK


@attrs.define
class NaiveRows:
    """`Rows` without any index; counts how many rows it hands out."""

    rows: dict[int, Row] = attrs.field(factory=dict)
    read: int = 0
    paged: int = 0
    durable: list[int] = attrs.field(factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        self.rows.update((row.sequence, attrs.evolve(row, deliveries=0)) for row in rows)

    def get(self, sequence: int) -> Row | None:
        self.read += 1
        return self.rows.get(sequence)

    def first_from(self, state: State, number: int) -> int | None:
        rows = self.rows.values()
        found = (r.sequence for r in rows if r.state is state and r.number >= number)
        return min(found, default=None)

    def after(self, state: State, sequence: int, limit: int) -> Sequence[Row]:
        return self._some(lambda row: (row.state is state, row.sequence), sequence, 2**63, limit)

    def page(self, state: State, sequence: int, limit: int, most_bytes: int) -> Sequence[Row]:
        rows, size = list[Row](), 0
        for row in self.after(state, sequence, limit):
            if size < most_bytes:
                rows.append(row)
            size += row.size
        self.paged += len(rows)
        return rows

    def due(self, date: int, limit: int, *, hidden: bool) -> Sequence[Row]:
        return self._some(
            lambda row: (row.due is not None and row.is_hidden is hidden, row.due or 0),
            -1,
            date,
            limit,
        )

    def expired(self, since: int, wall: int, limit: int) -> Sequence[Row]:
        return self._some(_expiry, since, wall, limit)

    def in_session(self, session: str, sequence: int, limit: int) -> Sequence[Row]:
        return self._some(
            lambda row: (row.state is State.ACTIVE and row.session == session, row.sequence),
            sequence,
            2**63,
            limit,
        )

    def next_due(self, *, hidden: bool) -> int | None:
        rows = self.due(2**63, 1, hidden=hidden)
        return rows[0].due if rows else None

    def next_expiry(self, since: int) -> int | None:
        rows = self._some(_expiry, since, 2**63, 1)
        return rows[0].expires if rows else None

    def count_delivery(self, row: Row, deliveries: int, *, durable: bool) -> None:
        stored = self.rows[row.sequence]
        self.rows[row.sequence] = attrs.evolve(stored, deliveries=deliveries)
        if durable:
            self.durable.append(deliveries)

    def replace(self, old: Row, new: Row) -> None:
        content = self.rows.pop(old.sequence).content
        self.rows[new.sequence] = attrs.evolve(new, content=content)

    def rewrite(self, sequence: int, content: Any, size: int) -> None:
        self.rows[sequence] = attrs.evolve(self.rows[sequence], content=content, size=size)

    def remove(self, sequence: int) -> None:
        del self.rows[sequence]

    def quarantine(self, sequence: int) -> None:
        del self.rows[sequence]

    def totals(self) -> Mapping[State, Total]:
        return {
            state: Total(len(rows), sum(row.size for row in rows))
            for state in State
            if (rows := [row for row in self.rows.values() if row.state is state])
        }

    def _some(
        self, key: Callable[[Row], tuple[bool, int]], low: int, high: int, limit: int
    ) -> list[Row]:
        keyed = [(key(row)[1], row.sequence, row) for row in self.rows.values() if key(row)[0]]
        found = [row for value, _, row in sorted(keyed, key=lambda k: k[:2]) if low < value <= high]
        self.read += len(found[:limit])
        return found[:limit]


@attrs.define
class NaiveSessions:
    """`SessionRows` without any index."""

    records: dict[str, SessionRecord] = attrs.field(factory=dict)

    def get(self, session: str) -> SessionRecord | None:
        return self.records.get(session)

    def put(self, record: SessionRecord) -> None:
        self.records[record.id] = record

    def remove(self, session: str) -> None:
        self.records.pop(session, None)

    def next(self, after: int) -> SessionRecord | None:
        later = [each for each in self.records.values() if each.first and each.first > after]
        return min(later, key=lambda record: record.first or 0, default=None)

    def page(self, updated_since: int | None, skip: int, top: int) -> Sequence[str]:
        if updated_since is None:
            found = sorted(each.id for each in self.records.values() if each.first is not None)
        else:
            updates = [
                (each.updated, each.id)
                for each in self.records.values()
                if each.state is not None and each.updated > updated_since
            ]
            found = [session for _, session in sorted(updates)]
        return found[skip : skip + top]

    def state_bytes(self) -> int:
        return sum(record.size for record in self.records.values())


@attrs.define
class NaiveSeenIds:
    """`SeenIds` without any index."""

    ids: dict[str, int] = attrs.field(factory=dict)

    def until(self, message_id: str) -> int | None:
        return self.ids.get(message_id)

    def put(self, message_id: str, until: int) -> None:
        self.ids[message_id] = until

    def forget(self, wall: int, limit: int) -> None:
        for message_id in [each for each, until in self.ids.items() if until <= wall][:limit]:
            del self.ids[message_id]


@attrs.define
class NaiveNumbers:
    """Counts whatever is drawn, as nothing is undone."""

    drawn: list[State] = attrs.field(factory=list)

    def next(self, state: State, count: int = 1) -> int:
        first = self.drawn.count(state) + 1
        self.drawn += [state] * count
        return first


def naive_storage(rows: NaiveRows | None = None) -> Storage:
    return Storage(
        NaiveNumbers(), NaiveRows() if rows is None else rows, NaiveSessions(), NaiveSeenIds()
    )


def _expiry(row: Row) -> tuple[bool, int]:
    return row.state is State.ACTIVE and row.expires is not None, row.expires or 0


def at(seconds: float, untrusted_until: float = 0) -> Now:
    return Now(round(seconds * 1e6), seconds, untrusted_until)


def make(rows: NaiveRows | None = None, *, packed: int = 10, **properties: Any) -> Queue:
    """A queue whose messages have that size once they are packed."""
    return queue_on(naive_storage(rows), QueueProperties(**properties), packed=packed)


def queue_on(storage: Storage, properties: QueueProperties, *, packed: int = 10) -> Queue:
    tokens, sequences = count(), count(1)
    path = EntityPath("orders")
    return Queue.make(
        Entity(path=path, properties=properties, created=0, updated=0, max_message_size=1000),
        storage,
        QueueDependencies(
            next_sequence=lambda: next(sequences),
            new_token=lambda: f"lock-{next(tokens)}",
            packing=Packing(lambda message: (message, packed), lambda content: content),
            concern=lambda queue: None,
        ),
    )


def fresh(queue: Queue, now: Now | None = None) -> tuple[int, int]:
    """Return the number of messages that became available: active ones, and dead letters."""
    news = queue.drain_news(now or at(1))
    return news.active, news.dead


def message(content: object, life: float | None = None, due: float | None = None) -> Incoming:
    return Incoming(
        content=content,
        size=10,
        time_to_live=None if life is None else timedelta(seconds=life),
        scheduled=None if due is None else to_date(round(due * 1e6)),
    )


def send(queue: Queue, *content: object, now: Now | None = None) -> None:
    queue.send([message(content) for content in content], now or at(1))


def take(queue: Queue, now: Now, limit: int = 10, state: State = State.ACTIVE) -> list[TakenRow]:
    return queue.receive(state, limit, PEEK_LOCK, now)


def content(taken: Sequence[TakenRow]) -> list[Any]:
    return [each.row.content for each in taken]


def enlarge(rows: NaiveRows, size: int) -> None:
    """Let each message have so many bytes."""
    rows.rows = {number: attrs.evolve(row, size=size) for number, row in rows.rows.items()}
