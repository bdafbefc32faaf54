"""The same history of a queue runs on each storage: all of them must give the same result."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, ReceiveMode
from gateway.store.embedded import schema
from gateway.store.embedded.changes import StoreChanges
from gateway.store.embedded.counters import Counters, DeliveryCounts
from gateway.store.embedded.rows import SqliteRows
from gateway.store.embedded.session_rows import SqliteSeenIds, SqliteSessions
from gateway.store.engine.journal import Journal
from gateway.store.engine.records import Incoming, State, Storage
from gateway.store.local.memory_rows import (
    MemoryNumbers,
    MemoryRows,
    MemorySeenIds,
    MemorySessions,
)
from tests.store.engine.queue import naive_storage, queue_on

STATES = st.sampled_from([State.ACTIVE, State.DEAD])
SECONDS = st.integers(0, 30)
# Of messages, and those that a storage can't be asked for.
NUMBERS = st.integers(1, 9) | st.sampled_from([-(2**70), 0, 2**63 - 1, 2**63, 2**70])
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 3), st.none() | SECONDS, st.none() | SECONDS),
    st.tuples(st.just("take"), STATES, st.integers(1, 4), st.sampled_from(ReceiveMode)),
    st.tuples(
        st.just("settle"),
        st.integers(0, 9),
        st.sampled_from([Complete(), Abandon(), DeadLetter(reason="r"), Defer()]),
    ),
    st.tuples(st.just("release"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("renew"), st.integers(0, 9)),
    st.tuples(st.just("take_deferred"), st.lists(NUMBERS, min_size=1, max_size=2)),
    st.tuples(st.just("cancel"), st.lists(NUMBERS, min_size=1, max_size=2)),
    st.tuples(st.just("peek"), st.sampled_from(State), st.integers(0, 9), st.integers(1, 3)),
    st.tuples(st.just("wait"), SECONDS),
    st.tuples(st.just("restart")),
)


class History:
    """Applies steps to a queue and notes each answer."""

    looks = True  # at everything after each step
    dead_letters = True  # what has expired

    def __init__(self, storage: Storage) -> None:
        self.time = 1
        properties = QueueProperties(
            max_delivery_count=2,
            lock_duration=timedelta(seconds=10),
            dead_lettering_on_expiration=self.dead_letters,
        )
        self.queue = queue_on(storage, properties)

    def apply(self, step: tuple[Any, ...]) -> Any:
        now = Now(self.time * 10**6, self.time)
        try:
            answer = getattr(self, step[0])(now, *step[1:])
        except BrokerError as error:
            answer = type(error)
        shown = [self.queue.peek([state], 0, 100) for state in State] if self.looks else []
        return answer, self.queue.drain_news(now), shown, self.queue.info()

    def send(self, now: Now, number: int, life: int | None, due: int | None) -> None:
        message = Incoming(
            content=b"content",
            size=7,
            time_to_live=None if life is None else timedelta(seconds=life),
            scheduled=None if due is None else to_date((due + 10) * 10**6),
        )
        self.queue.send([message] * number, now)

    def take(self, now: Now, state: State, limit: int, mode: ReceiveMode) -> Any:
        return self.queue.receive(state, limit, mode, now)

    def take_deferred(self, now: Now, numbers: list[int]) -> Any:
        return self.queue.receive_deferred(numbers, ReceiveMode.PEEK_LOCK, now)

    def peek(self, _now: Now, state: State, number: int, limit: int) -> Any:
        return self.queue.peek([state], number, limit)

    def cancel(self, now: Now, numbers: list[int]) -> None:
        self.queue.cancel(numbers, now)

    def settle(self, now: Now, token: int, settlement: Any) -> None:
        self.queue.settle(f"lock-{token}", settlement, now)

    def release(self, now: Now, token: int, delivered: bool) -> None:
        self.queue.release([f"lock-{token}"], now, delivered=delivered)

    def renew(self, now: Now, token: int) -> int:
        return self.queue.renew(f"lock-{token}", now)

    def wait(self, now: Now, seconds: int) -> None:
        self.time += seconds
        self.queue.sweep(Now(self.time * 10**6, self.time))

    def restart(self, _now: Now) -> None:
        self.queue.reload()


def memory_storage() -> Storage:
    return Storage(MemoryNumbers(), MemoryRows(), MemorySessions(), MemorySeenIds())


def sqlite_storage(connection: apsw.Connection) -> Storage:
    return Storage(
        Counters(connection, Journal()).begin(1),
        SqliteRows(connection, 1, StoreChanges(connection), DeliveryCounts()),
        SqliteSessions(connection, 1),
        SqliteSeenIds(connection, 1),
    )


@given(st.lists(STEPS, max_size=25))
def test_every_storage_tells_the_same(tmp_path_factory, steps):
    folder: Path = tmp_path_factory.mktemp("store")
    schema.create(folder / "a.db", 1)
    connection = schema.connect(folder / "a.db")
    connection.execute("BEGIN")
    try:
        naive = History(naive_storage())
        memory = History(memory_storage())
        sqlite = History(sqlite_storage(connection))
        for step in steps:
            expected = naive.apply(step)

            assert memory.apply(step) == expected
            assert sqlite.apply(step) == expected
    finally:
        connection.close()


class UnseenHistory(History):
    """A history without looks and burials, which would end the read-ahead."""

    looks = False
    dead_letters = False


@given(st.lists(STEPS, max_size=25))
def test_rows_that_were_read_ahead_are_what_the_storage_has(tmp_path_factory, steps):
    folder: Path = tmp_path_factory.mktemp("store")
    schema.create(folder / "a.db", 1)
    connection = schema.connect(folder / "a.db")
    connection.execute("BEGIN")
    # The number of takes after which three rows are read ahead.
    crowd = [("take", State.ACTIVE, 1, ReceiveMode.PEEK_LOCK)] * 19
    try:
        naive = UnseenHistory(naive_storage())
        sqlite = UnseenHistory(sqlite_storage(connection))
        for step in [("send", 30, 5, None), *crowd, *steps]:
            assert sqlite.apply(step) == naive.apply(step)
    finally:
        connection.close()


NAMES = st.sampled_from(["a", "b", "c"])
SESSION_STEPS = st.one_of(
    st.tuples(st.just("send"), NAMES, st.none() | SECONDS, st.none() | SECONDS),
    st.tuples(st.just("accept"), st.none() | NAMES),
    st.tuples(st.just("take"), st.integers(0, 9), st.integers(1, 3)),
    st.tuples(
        st.just("settle"),
        st.integers(0, 9),
        st.integers(0, 9),
        st.sampled_from([Complete(), Abandon(), DeadLetter(reason="r"), Defer()]),
    ),
    st.tuples(st.just("take_deferred"), st.integers(0, 9), st.integers(1, 9)),
    st.tuples(st.just("renew"), st.integers(0, 9)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("set_state"), st.integers(0, 9), st.none() | st.binary(max_size=2)),
    st.tuples(st.just("page"), st.none() | st.integers(0, 30)),
    st.tuples(st.just("wait"), SECONDS),
    st.tuples(st.just("restart")),
)


class SessionHistory(History):
    """The same of a queue with sessions, whose messages are known once only."""

    def __init__(self, storage: Storage) -> None:
        self.time = 1
        self.sent = 0
        properties = QueueProperties(
            max_delivery_count=3,
            lock_duration=timedelta(seconds=10),
            requires_session=True,
            requires_duplicate_detection=True,
            duplicate_detection_window=timedelta(seconds=20),
        )
        self.queue = queue_on(storage, properties)

    def send(self, now: Now, session: str, life: int | None, due: int | None) -> Any:
        self.sent += 1
        message = Incoming(
            content=b"content",
            size=7,
            session=session,
            message_id=str(self.sent // 2),
            time_to_live=None if life is None else timedelta(seconds=life),
            scheduled=None if due is None else to_date((due + 10) * 10**6),
        )
        return self.queue.send([message], now)

    def accept(self, now: Now, session: str | None) -> Any:
        return self.queue.sessions.accept(session, now)

    def take(self, now: Now, holder: int, limit: int) -> Any:
        mode = ReceiveMode.PEEK_LOCK
        return self.queue.sessions.receive(f"lock-{holder}", limit, mode, now)

    def settle(self, now: Now, holder: int, token: int, settlement: Any) -> None:
        self.queue.sessions.settle(f"lock-{holder}", f"lock-{token}", settlement, now)

    def take_deferred(self, now: Now, holder: int, number: int) -> Any:
        mode = ReceiveMode.PEEK_LOCK
        return self.queue.sessions.receive_deferred(f"lock-{holder}", [number], mode, now)

    def renew(self, now: Now, holder: int) -> int:
        return self.queue.sessions.renew(f"lock-{holder}", now)

    def release(self, now: Now, holder: int) -> None:
        self.queue.sessions.release(f"lock-{holder}", now)

    def set_state(self, now: Now, holder: int, state: bytes | None) -> Any:
        self.queue.sessions.set_state(f"lock-{holder}", state, now)
        return self.queue.sessions.state(f"lock-{holder}", now)

    def page(self, _now: Now, since: int | None) -> Any:
        return self.queue.sessions.page(None if since is None else since * 10**6, 0, 10)

    def nobody_waits_in_vain(self, now: Now) -> bool:
        """True if accepting one session after the other yields every available message."""
        active = self.queue.info().active or 0
        seen = 0
        while (accepted := self.queue.sessions.accept(None, now)) is not None:
            mode = ReceiveMode.RECEIVE_AND_DELETE
            seen += len(self.queue.sessions.receive(accepted.holder, 100, mode, now))
        return seen == active == (self.queue.info().active or 0) + seen


@given(st.lists(SESSION_STEPS, max_size=25))
def test_every_storage_tells_the_same_of_sessions(tmp_path_factory, steps):
    folder: Path = tmp_path_factory.mktemp("store")
    schema.create(folder / "a.db", 1)
    connection = schema.connect(folder / "a.db")
    connection.execute("BEGIN")
    try:
        naive = SessionHistory(naive_storage())
        memory = SessionHistory(memory_storage())
        sqlite = SessionHistory(sqlite_storage(connection))
        for step in steps:
            expected = naive.apply(step)

            assert memory.apply(step) == expected
            assert sqlite.apply(step) == expected
        end = Now((naive.time + 100) * 10**6, naive.time + 100)
        for history in (naive, memory, sqlite):
            history.queue.sweep(end)
            assert history.nobody_waits_in_vain(end)
    finally:
        connection.close()
