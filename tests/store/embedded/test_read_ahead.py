import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import pytest

from gateway.store.embedded import schema
from gateway.store.embedded.changes import ReadAhead, StoreChanges
from gateway.store.embedded.rows import DeliveryCounts, SqliteRows
from gateway.store.engine.records import Row, State
from gateway.store.local.memory_rows import MemoryRows

QUEUE = (1, State.ACTIVE)
LARGE = 256 * 1024


class Rows:
    """Rows 1 to `last` of each queue, with the numbers of rows that were read at once."""

    def __init__(self, last: int = 1000, size: int = 10) -> None:
        self.ahead = ReadAhead()
        self.last, self.size = last, size
        self.readings: list[int] = []

    def after(self, sequence: int, limit: int = 1, place: tuple[int, State] = QUEUE) -> list[int]:
        rows: Sequence[Row] = self.ahead.pop(place, sequence, limit)
        if not rows:
            end = min(self.last, sequence + self.ahead.size(place, sequence, limit))
            self.readings.append(0)
            rows = self.ahead.keep(place, self.read(sequence + 1, end), limit)
        return [each.sequence for each in rows]

    def read(self, first: int, last: int) -> Iterator[Row]:
        for number in range(first, last + 1):
            self.readings[-1] += 1
            yield row(number, self.size)

    def take(self, after: int, count: int, place: tuple[int, State] = QUEUE) -> None:
        for number in range(after, after + count):
            assert self.after(number, place=place) == [number + 1]


def row(sequence: int, size: int) -> Row:
    return Row(
        sequence=sequence,
        number=sequence,
        state=State.ACTIVE,
        enqueued=0,
        size=size,
        content=b"",
    )


def test_each_reading_that_goes_on_takes_twice_as_many_rows_up_to_64():
    rows = Rows()

    rows.take(0, 191)

    assert rows.readings == [1, 2, 4, 8, 16, 32, 64, 64]


def test_queues_that_take_turns_keep_their_rows():
    rows = Rows()
    queues = [(number, State.ACTIVE) for number in range(10)]

    for after in range(127):
        for queue in queues:
            rows.take(after, 1, queue)

    assert sorted(rows.readings) == sorted([1, 2, 4, 8, 16, 32, 64] * 10)


def test_the_queue_that_was_read_first_is_forgotten():
    rows = Rows()
    queues = [(number, State.ACTIVE) for number in range(257)]
    for queue in queues:
        rows.take(0, 2, queue)
    rows.readings.clear()

    rows.take(2, 1, queues[0])
    rows.take(2, 1, queues[2])

    assert rows.readings == [1]


def test_no_more_is_read_ahead_than_fits():
    rows = Rows(size=30_000)

    rows.take(0, 20)

    assert max(rows.readings) == 2


@pytest.mark.parametrize(("size", "expected"), [(40_000, [2, 1, 1]), (70_000, [1, 1, 1])])
def test_of_large_rows_after_small_ones_one_at_most_is_read_in_vain(size: int, expected: list[int]):
    rows = Rows()
    rows.take(0, 127)
    rows.size = size
    rows.readings.clear()

    rows.take(127, 3)

    assert rows.readings == expected


def test_a_caller_that_asks_for_many_gets_them_at_once():
    rows = Rows()

    assert rows.after(0, 100) == [*range(1, 101)]
    assert rows.after(100, 3) == [101, 102, 103]
    assert rows.after(103, 3) == [104, 105, 106]


def test_rows_of_another_place_or_from_elsewhere_are_read():
    rows = Rows()
    rows.take(0, 30)

    assert rows.after(30, place=(2, State.ACTIVE)) == [31]
    assert rows.after(30, place=(1, State.DEAD)) == [31]
    assert rows.after(10) == [11]
    assert rows.readings[-3:] == [1, 1, 1]


def test_a_row_that_changes_is_read_anew():
    rows = Rows()
    rows.take(0, 16)
    rows.ahead.change(1, 16)  # was handed out before
    rows.ahead.change(2, 17)  # of another queue
    rows.take(16, 1)
    readings = len(rows.readings)

    rows.ahead.change(1, 18)

    assert rows.after(17) == [18]
    assert len(rows.readings) == readings + 1


def test_rows_that_were_read_stay_when_one_is_added_after_them():
    rows = Rows()
    rows.take(0, 16)  # and read up to 31
    readings = len(rows.readings)

    rows.ahead.change(1, 32)
    rows.take(16, 15)

    assert len(rows.readings) == readings


def test_the_end_of_a_queue_is_asked_for_again():
    rows = Rows(last=3)
    rows.take(0, 3)
    assert rows.after(3) == []
    rows.last = 5

    assert rows.after(3) == [4]


@pytest.mark.parametrize(
    "change",
    [
        lambda rows, row: rows.remove(row.sequence),
        lambda rows, row: rows.quarantine(row.sequence),
        lambda rows, row: rows.replace(row, attrs.evolve(row, state=State.DEAD, sequence=99)),
        lambda rows, row: rows.rewrite(row.sequence, b"other", 5),
    ],
    ids=["remove", "quarantine", "replace", "rewrite"],
)
def test_each_change_of_a_row_that_was_read_ahead_is_seen(
    tmp_path: Path, change: Callable[[SqliteRows, Row], None]
):
    schema.create(tmp_path / "a.db", 1)
    connection = schema.connect(tmp_path / "a.db")
    connection.execute("BEGIN")
    rows = SqliteRows(connection, 1, StoreChanges(connection), DeliveryCounts())
    rows.add([row(number, 0) for number in range(1, 30)])
    for number in range(19):
        assert [each.sequence for each in rows.after(State.ACTIVE, number, 1)] == [number + 1]
    victim = rows.after(State.ACTIVE, 19, 1)[0]
    assert rows.after(State.ACTIVE, 20, 1)[0].sequence == 21

    change(rows, attrs.evolve(victim, sequence=22))

    left = [(each.sequence, each.content) for each in rows.after(State.ACTIVE, 21, 1)]
    expected = [(22, b"other")] if rows.get(22) is not None else [(23, b"")]
    connection.close()
    assert left == expected


def test_a_row_that_is_added_between_those_that_were_read_is_delivered_in_its_place(
    tmp_path: Path,
):
    schema.create(tmp_path / "a.db", 1)
    connection = schema.connect(tmp_path / "a.db")
    connection.execute("BEGIN")
    rows = SqliteRows(connection, 1, StoreChanges(connection), DeliveryCounts())
    rows.add([row(number, 0) for number in range(1, 30) if number != 20])
    for number in range(18):
        rows.after(State.ACTIVE, number, 1)

    rows.add([row(20, 0)])

    left = [rows.after(State.ACTIVE, number, 1)[0].sequence for number in (18, 19, 20)]
    connection.close()
    assert left == [19, 20, 21]


def test_large_contents_after_small_ones_are_read_one_by_one(tmp_path: Path):
    schema.create(tmp_path / "a.db", 1)
    connection = schema.connect(tmp_path / "a.db")
    connection.execute("BEGIN")
    changes = StoreChanges(connection)
    rows = SqliteRows(connection, 1, changes, DeliveryCounts())
    sizes = [1024] * 127 + [LARGE] * 64
    rows.add(
        attrs.evolve(row(number, size), content=bytes(size)) for number, size in enumerate(sizes, 1)
    )
    changes.flush()
    for number in range(127):
        rows.after(State.ACTIVE, number, 1)

    tracemalloc.start()
    try:
        found = rows.after(State.ACTIVE, 127, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    connection.close()
    assert [each.sequence for each in found] == [128]
    assert peak < 2 * LARGE


def test_rows_that_were_read_outlive_a_commit_and_end_when_a_transaction_is_undone(
    tmp_path: Path,
):
    schema.create(tmp_path / "a.db", 1)
    connection = schema.connect(tmp_path / "a.db")
    connection.execute("BEGIN")
    changes = StoreChanges(connection)
    rows = SqliteRows(connection, 1, changes, DeliveryCounts())
    rows.add([row(number, 0) for number in range(1, 30)])
    for number in range(16):
        rows.after(State.ACTIVE, number, 1)
    changes.flush()
    connection.execute("COMMIT; BEGIN; DELETE FROM message WHERE sequence < 25")

    kept = rows.after(State.ACTIVE, 16, 1)
    changes.forget()
    left = rows.after(State.ACTIVE, 17, 1)

    connection.close()
    assert [each.sequence for each in (*kept, *left)] == [17, 25]


@pytest.mark.parametrize(
    ("limit", "most_bytes", "expected"),
    [(100, 30, [3, 4, 5]), (2, 30, [3, 4]), (100, 31, [3, 4, 5, 6]), (100, 0, [3]), (0, 30, [])],
)
def test_a_page_ends_with_the_row_that_reaches_its_bytes(
    tmp_path: Path, limit: int, most_bytes: int, expected: list[int]
):
    schema.create(tmp_path / "a.db", 1)
    connection = schema.connect(tmp_path / "a.db")
    connection.execute("BEGIN")
    sqlite = SqliteRows(connection, 1, StoreChanges(connection), DeliveryCounts())
    memory = MemoryRows()
    for rows in (sqlite, memory):
        rows.add([row(number, 10) for number in range(1, 30)])

    found = [rows.page(State.ACTIVE, 2, limit, most_bytes) for rows in (sqlite, memory)]

    connection.close()
    assert [[each.sequence for each in page] for page in found] == [expected, expected]
