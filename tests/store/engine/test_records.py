"""Dates on both clocks, and the numbers that stand on a disk."""

import sqlite3
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from gateway.domain.clocks.times import Now, later, to_date, to_micros
from gateway.store.engine.records import MAX_SEQUENCE, Row, State

SECOND = 1_000_000
PLAIN = Row(sequence=7, number=4, state=State.ACTIVE, enqueued=0, size=1, content=None)


@pytest.mark.parametrize(
    ("date", "micros"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2001, 9, 9, 1, 46, 40, 7, tzinfo=UTC), 1_000_000_000_000_007),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
    ],
)
def test_a_date_is_microseconds_since_1970(date: datetime, micros: int) -> None:
    assert (to_micros(date), to_date(micros)) == (micros, date)


def test_a_message_that_would_outlive_the_year_9998_never_ends() -> None:
    end = to_micros(datetime(9999, 12, 31, tzinfo=UTC))

    assert later(5, timedelta(microseconds=7)) == 12
    assert later(end - 2, timedelta(microseconds=1)) == end - 1
    assert later(end - 1, timedelta(microseconds=1)) is None
    assert later(end, timedelta.max) is None


def test_a_date_is_as_far_away_on_the_other_clock() -> None:
    now = Now(wall=100 * SECOND, monotonic=5.0)

    assert now.when(100 * SECOND) == 5.0
    assert now.when(102 * SECOND + 500_000) == 7.5
    assert now.when(99 * SECOND) == 4.0
    assert now.trusted


def test_nothing_is_due_while_a_clock_that_was_set_is_in_doubt() -> None:
    now = Now(wall=100 * SECOND, monotonic=5.0, untrusted_until=8.0)

    assert not now.trusted
    assert [now.when(second * SECOND) for second in (90, 103, 104)] == [8.0, 8.0, 9.0]
    assert Now(wall=0, monotonic=8.0, untrusted_until=8.0).trusted


def test_states_keep_their_numbers_on_the_disk() -> None:
    assert {state.name: int(state) for state in State} == {
        "ACTIVE": 0,
        "SCHEDULED": 1,
        "DEAD": 2,
        "DEFERRED": 3,
        "TRANSFER": 4,
        "DEAD_DEFERRED": 5,
        "TRANSFER_DEFERRED": 6,
    }


def test_the_last_number_is_the_last_that_sqlite_can_be_asked_for() -> None:
    connection = sqlite3.connect(":memory:")

    assert connection.execute("SELECT ?", [MAX_SEQUENCE]).fetchone() == (MAX_SEQUENCE,)
    with pytest.raises(OverflowError):
        connection.execute("SELECT ?", [MAX_SEQUENCE + 1])
    connection.close()


@pytest.mark.parametrize(
    ("original", "first", "stamp"), [(None, 4, 0), (3, 3, 0), (6, 6, 0), (8, 4, 8)]
)
def test_a_lower_number_is_the_first_one_and_a_higher_one_a_stamp(
    original: int | None, first: int, stamp: int
) -> None:
    row = attrs.evolve(PLAIN, original=original)

    assert (row.first, row.stamp) == (first, stamp)


def test_a_new_row_was_delivered_to_nobody_and_is_well() -> None:
    assert (PLAIN.deliveries, PLAIN.damaged) == (0, False)
