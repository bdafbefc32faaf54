"""One history of a queue, on each storage: they must tell the same."""

from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.brokers.embedded import schema
from gateway.brokers.embedded.rows import DeliveryCounts, SqliteRows
from gateway.brokers.memory import MemoryRows
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import Abandon, Complete, DeadLetter, ReceiveMode
from gateway.domain.queue import Queue
from gateway.domain.stored import Incoming, Now, Rows, State, to_date
from tests.domain.test_queue import NaiveRows

STATES = st.sampled_from([State.ACTIVE, State.DEAD])
SECONDS = st.integers(0, 30)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 3), st.none() | SECONDS, st.none() | SECONDS),
    st.tuples(st.just("take"), STATES, st.integers(1, 4), st.sampled_from(ReceiveMode)),
    st.tuples(
        st.just("settle"),
        st.integers(0, 9),
        st.sampled_from([Complete(), Abandon(), DeadLetter(reason="r")]),
    ),
    st.tuples(st.just("release"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("renew"), st.integers(0, 9)),
    st.tuples(st.just("wait"), SECONDS),
    st.tuples(st.just("restart")),
)


class History:
    """Applies steps to a queue and notes whatever it answers."""

    def __init__(self, rows: Rows) -> None:
        tokens, sequences = count(), count(1)
        self.time = 1
        self.queue = Queue(
            path=EntityPath("orders"),
            properties=QueueProperties(
                max_delivery_count=2,
                lock_duration=timedelta(seconds=10),
                dead_lettering_on_expiration=True,
            ),
            created=0,
            max_message_size=1000,
            rows=rows,
            next_sequence=lambda: next(sequences),
            new_token=lambda: str(next(tokens)),
        )

    def apply(self, step: tuple[Any, ...]) -> Any:
        now = Now(self.time * 10**6, self.time)
        try:
            answer = getattr(self, step[0])(now, *step[1:])
        except BrokerError as error:
            answer = type(error)
        fresh = [self.queue.drain_fresh(state) for state in State]
        shown = [self.queue.peek([state], 0, 100) for state in State]
        return answer, fresh, shown, self.queue.info(), self.queue.next_event(now)

    def send(self, now: Now, number: int, life: int | None, due: int | None) -> None:
        message = Incoming(
            content=b"content",
            size=7,
            time_to_live=None if life is None else timedelta(seconds=life),
            scheduled=None if due is None else to_date((due + 10) * 10**6),
        )
        self.queue.send([message] * number, now)

    def take(self, now: Now, state: State, limit: int, mode: ReceiveMode) -> Any:
        return self.queue.take(state, limit, mode, now)

    def settle(self, now: Now, token: int, settlement: Any) -> None:
        self.queue.settle(str(token), settlement, now)

    def release(self, now: Now, token: int, delivered: bool) -> None:
        self.queue.release([str(token)], now, delivered=delivered)

    def renew(self, now: Now, token: int) -> int:
        return self.queue.renew(str(token), now)

    def wait(self, now: Now, seconds: int) -> None:
        self.time += seconds
        self.queue.sweep(Now(self.time * 10**6, self.time))

    def restart(self, _now: Now) -> None:
        self.queue.reload()


@given(st.lists(STEPS, max_size=25))
def test_every_storage_tells_the_same(tmp_path_factory, steps):
    folder: Path = tmp_path_factory.mktemp("store")
    schema.create(folder / "a.db", 1)
    connection = schema.connect(folder / "a.db")
    connection.execute("BEGIN")
    try:
        naive = History(NaiveRows())
        memory = History(MemoryRows())
        sqlite = History(SqliteRows(connection, 1, DeliveryCounts()))
        for step in steps:
            expected = naive.apply(step)

            assert memory.apply(step) == expected
            assert sqlite.apply(step) == expected
    finally:
        connection.close()
