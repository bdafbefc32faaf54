"""The message index knows a queue's counts, bytes, order and dates, also after a restart."""

import attrs

from gateway.domain.clocks.times import Now
from gateway.store.engine.message_index import MessageIndex, QuotaUsage
from gateway.store.engine.records import Row, State
from tests.store.engine.queue import (
    NaiveRows,
    at,
    content,
    fresh,
    make,
    message,
    naive_storage,
    queue_on,
    send,
    take,
)


def row(sequence: int, state: State = State.ACTIVE, **fields: object) -> Row:
    plain = Row(sequence=sequence, number=sequence, state=state, enqueued=0, size=10, content="a")
    return attrs.evolve(plain, **fields)


def index(*rows: Row) -> MessageIndex:
    return MessageIndex(NaiveRows({each.sequence: each for each in rows}), QuotaUsage(quota=1000))


def test_after_a_restart_all_that_is_stored_is_known() -> None:
    held = index(row(1), row(2), row(3, State.DEAD), row(4, State.SCHEDULED, due=70))

    assert [held.count(state) for state in (State.ACTIVE, State.DEAD, State.SCHEDULED)] == [2, 1, 1]
    assert (held.bytes, held.used) == (40, 40)
    assert held.drain_fresh() == (2, 1, 0)
    assert (held.next_due, held.next_visible, held.next_expiry) == (70, None, None)


def test_a_restart_counts_nothing_twice() -> None:
    held = index(row(1), row(2, expires=50))
    held.reload()

    assert held.count(State.ACTIVE) == 2
    assert (held.bytes, held.used) == (20, 20)
    assert held.next_expiry == 50


def test_a_restart_forgets_the_dates_of_what_is_gone() -> None:
    rows = NaiveRows({1: row(1, State.SCHEDULED, due=70), 2: row(2, expires=50)})
    held = MessageIndex(rows, QuotaUsage(quota=1000))
    rows.rows.clear()
    held.reload()

    assert (held.next_due, held.next_expiry, held.bytes) == (None, None, 0)


def test_a_restart_gives_back_what_was_locked() -> None:
    queue = make()
    send(queue, "a", "b")
    take(queue, at(1), 1)
    queue.reload()

    assert content(take(queue, at(2))) == ["a", "b"]


def test_a_message_that_expired_while_it_was_locked_goes_after_a_restart() -> None:
    queue = make()
    queue.send([message("a", life=5)], at(1))
    take(queue, at(1))
    queue.sweep(at(10))
    queue.reload()
    queue.sweep(at(11))

    assert queue.info().active == 0


def test_a_message_that_cannot_be_read_takes_no_room_any_more() -> None:
    rows = NaiveRows({1: row(1), 2: row(2)})
    held = MessageIndex(rows, QuotaUsage(quota=1000))
    held.quarantine(rows.rows[1])

    assert list(rows.rows) == [2]
    assert (held.count(State.ACTIVE), held.bytes, held.drain_quarantined()) == (1, 10, [1])


def test_a_rewritten_message_comes_back_with_its_new_size_and_no_content() -> None:
    held = index(row(1))
    new = held.rewrite(row(1), "longer", 25)

    assert (new.size, new.content) == (25, None)
    assert held.bytes == 25


def test_no_more_are_handed_out_than_were_asked_for() -> None:
    queue = make()
    send(queue, "a", "b", "c")
    queue.release([each.token for each in take(queue, at(1))], at(1))

    assert content(take(queue, at(2), 2)) == ["a", "b"]


def test_each_message_that_is_given_back_is_one_that_became_available() -> None:
    queue = make()
    send(queue, "a", "b")
    [a] = take(queue, at(1), 1)
    fresh(queue)
    queue.release([a.token], at(1))

    assert fresh(queue) == (1, 0)


def test_the_first_expiry_counts_in_whatever_order_they_come() -> None:
    queue = make()
    for life in (20, 5, 30):
        queue.send([message("a", life=life)], at(1))

    assert queue.next_event(at(1)) == 6


def test_the_first_date_counts_in_whatever_order_they_come() -> None:
    queue = make()
    for due in (20, 5, 30):
        queue.send([message("a", due=due)], at(1))

    assert queue.next_event(at(1)) == 5


def test_the_next_look_at_what_expired_begins_with_the_last_ones_date() -> None:
    """More may have expired at that moment than one look takes."""
    held = index(*(row(number, expires=number) for number in range(1, 10)))
    looks = [[each.sequence for each in held.expired(Now(50, 0.0), 3)] for _ in range(3)]

    assert looks == [[1, 2, 3], [3, 4, 5], [5, 6, 7]]


def test_a_session_queue_knows_after_a_restart_that_somebody_may_wait() -> None:
    queue = queue_on(naive_storage(), attrs.evolve(make().properties, requires_session=True))
    queue.sessions.accept("a", at(1))
    queue.reload()

    assert queue.drain_news(at(1)).active == 1
    assert queue.sessions.accept("a", at(1)) is not None
