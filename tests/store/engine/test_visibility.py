"""Messages that are hidden for a while: receipts, visible messages, and poison."""

import attrs
import pytest

from gateway.domain.clocks.times import Now
from gateway.domain.errors import LockLost, MessageNotFound, MessageTooLarge
from gateway.domain.message import DeadLetter, Defer, Message
from gateway.domain.storage_queue import PopReceipt
from gateway.store.engine.queue import Queue
from gateway.store.engine.queue_content import SWEEP
from gateway.store.engine.records import MOST_PEEKED, Row, State
from gateway.store.engine.visibility import Poison
from tests.store.engine.enqueue import Way, forwarded
from tests.store.engine.queue import NaiveRows, at, content, enlarge, make, message, send, take
from tests.store.engine.queue_content import NoWay, doubtful

SECOND = 1_000_000  # microseconds


def hide(queue: Queue, limit: int = 1, hidden: int = 10 * SECOND, now: Now | None = None):
    return queue.visibility.dequeue(limit, hidden, now or at(1))[0]


def receipt(row: Row) -> PopReceipt:
    return PopReceipt(row.sequence, row.stamp, row.deliveries)


# --- taking


def test_a_taken_message_is_hidden_and_comes_again_after_its_time():
    queue = make()
    send(queue, "a", "b")
    [first] = hide(queue)
    queue.sweep(at(11))
    again = hide(queue, 9, now=at(11))

    assert (first.sequence, first.due, first.deliveries) == (1, 11 * SECOND, 1)
    assert [(row.sequence, row.deliveries) for row in again] == [(1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("hidden", "state", "due"),
    [(0, State.ACTIVE, None), (1, State.SCHEDULED, SECOND + 1), (2, State.SCHEDULED, SECOND + 2)],
)
def test_a_message_that_is_hidden_for_no_time_is_there_at_once(hidden, state, due):
    queue = make()
    send(queue, "a")
    [row] = hide(queue)
    changed = queue.visibility.change(receipt(row), hidden, None, at(1))

    assert (changed.state, changed.due) == (state, due)
    assert len(hide(queue)) == (1 if hidden == 0 else 0)


def test_one_take_looks_at_a_bounded_number_and_says_that_there_may_be_more():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, *range(500))
    for row in list(rows.rows.values()):
        rows.count_delivery(row, 10, durable=True)

    assert queue.visibility.dequeue(1, SECOND, at(1)) == ([], True)
    assert queue.info().dead_lettered == 1 + SWEEP


def test_a_message_that_may_not_be_taken_is_made_up_for_and_no_more():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, "worn", "a", "b", "c")
    rows.count_delivery(rows.rows[1], 10, durable=True)

    assert [row.sequence for row in hide(queue, 2)] == [2, 3]


def test_where_there_are_fewer_than_were_asked_for_there_are_no_more():
    queue = make()
    send(queue, "a")
    taken, more = queue.visibility.dequeue(5, SECOND, at(1))

    assert (len(taken), more) == (1, False)


def test_a_message_that_is_hidden_as_it_is_sent_is_so_if_it_is_there():
    queue = make()
    [place] = queue.send([message("a")], at(1))
    row = queue.peek([State.ACTIVE], 0, 1)[0]
    hidden = queue.visibility.hide_new(row, 10 * SECOND, at(1))
    stranger = forwarded()

    assert (hidden.sequence, hidden.number) == place
    assert (hidden.state, hidden.deliveries) == (State.SCHEDULED, 0)
    assert queue.visibility.hide_new(hidden, SECOND, at(1)) is hidden
    assert queue.visibility.hide_new(stranger, SECOND, at(1)) is stranger


# --- looking


def test_a_peek_sees_the_messages_that_anybody_could_take_page_by_page():
    queue = make()
    send(queue, *range(200))
    take(queue, at(1), 3)
    peek = queue.visibility.peek
    first, last = peek(-1, 5, at(1))
    second, then = peek(last, 5, at(1))

    assert ([row.sequence for row in first], last) == ([4, 5, 6, 7, 8], 8)
    assert ([row.sequence for row in second], then) == ([9, 10, 11, 12, 13], 72)
    assert peek(0, 5, at(1))[1] == 64
    assert peek(136, 99, at(1))[1] == 200
    assert peek(137, 99, at(1))[1] is None
    assert peek(200, 5, at(1)) == ([], None)


def test_a_peek_shows_no_message_after_those_that_are_a_mebibyte_together():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, *range(5))
    enlarge(rows, MOST_PEEKED // 2)

    found, last = queue.visibility.peek(-1, 5, at(1))

    assert (contents_of(found), last) == ([0, 1], None)


def test_a_peek_sees_nothing_hidden_damaged_or_expired():
    rows = NaiveRows()
    queue = make(rows)
    queue.send([message("a"), message("b"), message("c", life=5), message("d")], at(1))
    hide(queue)
    rows.rows[2] = attrs.evolve(rows.rows[2], damaged=True)

    def seen(now):
        return contents_of(queue.visibility.peek(-1, 9, now)[0])

    assert seen(at(5.9)) == ["c", "d"]
    assert seen(at(6)) == ["d"]
    assert seen(doubtful(6)) == ["c", "d"]


def contents_of(rows):
    return [row.content for row in rows]


# --- receipts


def test_a_receipt_is_good_until_somebody_takes_or_changes_the_message():
    queue = make()
    send(queue, "a")
    [row] = hide(queue)
    changed = queue.visibility.change(receipt(row), 10 * SECOND, None, at(1))

    with pytest.raises(LockLost):
        queue.visibility.remove(receipt(row), at(1))
    queue.visibility.remove(receipt(changed), at(1))
    assert queue.info().scheduled == 0
    with pytest.raises(MessageNotFound):
        queue.visibility.remove(receipt(changed), at(1))


def test_a_receipt_is_stale_while_the_message_is_locked_and_after_that():
    queue = make()
    send(queue, "a")
    [row] = hide(queue, hidden=SECOND)
    [locked] = take(queue, at(2))
    with pytest.raises(LockLost):
        queue.visibility.find(receipt(row), at(2))
    queue.release([locked.token], at(2))
    with pytest.raises(LockLost):
        queue.visibility.find(receipt(row), at(2))


def test_a_receipt_without_a_number_of_deliveries_is_of_a_message_that_nobody_has_taken():
    queue = make()
    send(queue, "a")
    assert queue.visibility.find(PopReceipt(1, 0), at(1)).sequence == 1
    [a] = take(queue, at(1))
    queue.release([a.token], at(1))

    with pytest.raises(LockLost):
        queue.visibility.find(PopReceipt(1, 0), at(1))


@pytest.mark.parametrize("settlement", [Defer(), DeadLetter(reason="bad")], ids=["defer", "dead"])
def test_a_message_put_aside_otherwise_has_no_receipt(settlement):
    queue = make()
    send(queue, "a")
    [a] = take(queue, at(1))
    queue.settle(a.token, settlement, at(1))

    for sequence in (1, 2):
        with pytest.raises(MessageNotFound):
            queue.visibility.find(PopReceipt(sequence, 0, 1), at(1))


def test_a_damaged_or_expired_message_has_no_receipt():
    rows = NaiveRows()
    queue = make(rows)
    queue.send([message("a", life=5), message("b")], at(1))
    [first, second] = hide(queue, 2)
    rows.rows[2] = attrs.evolve(rows.rows[2], damaged=True)

    assert queue.visibility.find(receipt(first), at(5.9)).sequence == 1
    assert queue.visibility.find(receipt(first), doubtful(6)).sequence == 1
    for row in (first, second):
        with pytest.raises(MessageNotFound):
            queue.visibility.find(receipt(row), at(6))


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False)])
def test_another_body_may_be_as_large_as_the_limit(size, fits):
    queue = make(packed=size)
    send(queue, Message())
    [row] = hide(queue)
    change = queue.visibility.change
    if fits:
        change(receipt(row), 0, b"new", at(1))
    else:
        with pytest.raises(MessageTooLarge, match="at most 1000 bytes"):
            change(receipt(row), 0, b"new", at(1))

    assert queue.info().size == (size if fits else 10)
    assert content(take(queue, at(20)))[0].body == (b"new" if fits else b"")


def test_a_message_that_its_taker_cannot_read_is_put_aside_unless_it_has_changed_since():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, "a")
    [row] = hide(queue)
    changed = queue.visibility.change(receipt(row), SECOND, None, at(1))
    queue.visibility.quarantine(row)
    assert list(rows.rows) == [1]
    queue.visibility.quarantine(changed)
    assert rows.rows == {}
    queue.visibility.quarantine(changed)
    assert queue.drain_news(at(1)).quarantined == [1]


# --- clearing


def test_a_queue_is_cleared_in_portions_but_for_what_is_locked():
    queue = make()
    send(queue, *range(10))
    queue.send([message("later", due=100) for _ in range(3)], at(1))
    deferred, _ = take(queue, at(1), 2)
    queue.settle(deferred.token, Defer(), at(1))
    portions, last = [], -1
    while last is not None:
        last = queue.visibility.clear(last, 3)
        portions.append(last)

    assert portions == [4, 7, 10, None]
    assert (queue.info().active, queue.info().scheduled, queue.info().deferred) == (1, 0, 0)


def test_a_queue_is_cleared_on_from_where_all_that_is_before_was_looked_at():
    queue = make()
    send(queue, *range(6))
    hide(queue, 3)

    assert queue.visibility.clear(-1, 3) == 3


# --- poison


def poisoned(way: Way, noted: list[Row] | None = None) -> Poison:
    return Poison(after=2, onward=way, note=([] if noted is None else noted).append)


def worn(queue: Queue) -> None:
    """Send a message, and let it be received twice until it is visible again."""
    send(queue, "a")
    for second in (1, 2):
        queue.sweep(at(second))
        hide(queue, hidden=SECOND, now=at(second))
    queue.sweep(at(3))


def test_a_message_that_was_taken_too_often_goes_where_poison_goes():
    queue, way, noted = make(), Way(), []
    worn(queue)
    taken, more = queue.visibility.dequeue(1, SECOND, at(3), poisoned(way, noted))
    [(row, hops)] = way.arrived

    assert (taken, more) == ([], False)
    assert (way.asked, hops, [each.sequence for each in noted]) == ([1], 1, [1])
    assert (row.reason, row.source, row.expires) == ("PoisonThresholdExceeded", "orders", None)
    assert row.description == "orders: dequeued 2 times and not removed; 2 expected."
    assert queue.info().active == 0


def test_poison_that_can_go_nowhere_is_served_as_before():
    queue = make()
    worn(queue)
    taken, _ = queue.visibility.dequeue(1, SECOND, at(3), poisoned(NoWay()))

    assert [row.deliveries for row in taken] == [3]


def test_a_message_that_was_taken_less_often_is_no_poison():
    queue, way = make(), Way()
    send(queue, "a")
    hide(queue, hidden=SECOND)
    queue.sweep(at(2))
    taken, _ = queue.visibility.dequeue(1, SECOND, at(2), poisoned(way))

    assert ([row.deliveries for row in taken], way.arrived) == ([2], [])
