"""Messages change without a client: they become due, expire, are forwarded, all in portions."""

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.clocks.times import Now
from gateway.domain.errors import MessageNotFound, MessageTooLarge, QuotaExceeded
from gateway.domain.message import (
    MAX_REASON_LENGTH,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Message,
    ReceiveMode,
)
from gateway.domain.storage_queue import PopReceipt
from gateway.store.engine.queue import Queue
from gateway.store.engine.queue_content import SWEEP
from gateway.store.engine.records import State
from tests.store.engine.enqueue import Way
from tests.store.engine.queue import NaiveRows, at, content, make, message, send, take
from tests.store.engine.queue_content import NoWay, doubtful

# --- due messages


def test_nothing_becomes_due_while_the_wall_clock_is_in_doubt() -> None:
    queue = make()
    queue.send([message("a", due=50)], at(1))
    queue.sweep(doubtful(100))

    assert queue.info().scheduled == 1
    queue.sweep(at(100))
    assert queue.info().scheduled == 0


def test_a_message_that_is_visible_again_is_no_event_any_more() -> None:
    queue = make()
    send(queue, "a")
    queue.visibility.dequeue(1, 5_000_000, at(1))
    events = [queue.next_event(at(1))]
    queue.sweep(at(6))

    assert [*events, queue.next_event(at(6))] == [6, None]


def test_one_step_does_a_bounded_part_of_what_is_due_and_says_that_there_is_more() -> None:
    queue = make()
    queue.send([message(number, due=10) for number in range(SWEEP + 1)], at(1))
    queue.sweep(at(10))

    assert queue.info().scheduled == 1
    assert queue.next_event(at(10)) == 10
    taken, more = queue.visibility.dequeue(2 * SWEEP, 1, at(10))
    assert (len(taken), more) == (SWEEP, True)


def test_a_dead_letter_never_expires_whatever_is_stored_of_it() -> None:
    rows = NaiveRows()
    queue = make(rows)
    send(queue, "a")
    [a] = take(queue, at(1))
    queue.settle(a.token, DeadLetter(reason="bad"), at(1))
    [dead] = rows.rows.values()
    rows.rows[dead.sequence] = attrs.evolve(dead, expires=5)

    assert content(take(queue, at(100), state=State.DEAD)) == ["a"]


def test_a_deferred_message_expires_too() -> None:
    queue = make()
    queue.send([message("a", life=5)], at(1))
    [a] = take(queue, at(1))
    queue.settle(a.token, Defer(), at(2))

    with pytest.raises(MessageNotFound):
        queue.receive_deferred([1], ReceiveMode.PEEK_LOCK, at(6))
    assert queue.info().deferred == 0


def test_nobody_has_changed_or_used_a_new_queue() -> None:
    info = make().info()

    assert (info.version, info.accessed) == (0, None)


# --- forwarding


def stocked(number: int) -> tuple[Queue, Way]:
    """A queue whose messages go on from now on."""
    queue, way = make(), Way()
    send(queue, *range(number))
    queue.lead(way, None)
    return queue, way


def test_one_step_passes_on_a_bounded_number_and_the_next_is_due_at_once() -> None:
    queue, way = stocked(2 * SWEEP + 1)
    passed, events = [], []
    for _ in range(3):
        queue.sweep(at(5))
        passed.append(len(way.arrived))
        events.append(queue.next_event(at(5)))

    assert passed == [SWEEP, 2 * SWEEP, 2 * SWEEP + 1]
    assert events == [5, 5, None]
    assert queue.info().active == 0


def test_a_message_that_goes_nowhere_any_more_is_not_waited_for() -> None:
    queue, _ = stocked(2 * SWEEP)
    queue.sweep(at(5))
    queue.lead(None, None)
    queue.sweep(at(5))

    assert queue.next_event(at(5)) is None
    assert queue.info().active == SWEEP


def test_an_expired_message_is_not_passed_on() -> None:
    queue, way = make(), Way()
    queue.send([message("a", life=5), message("b")], at(1))
    queue.lead(way, None)
    queue.sweep(at(10))

    assert [(row.content, hops) for row, hops in way.arrived] == [("b", 1)]


def test_a_message_that_cannot_go_on_is_kept_aside_with_the_reason() -> None:
    queue = make()
    queue.lead(NoWay(), None)
    queue.send([message("a", life=50)], at(1))
    [kept] = take(queue, at(1), state=State.TRANSFER)

    assert queue.info().transfer_dead_lettered == 1
    assert (kept.row.content, kept.row.expires) == ("a", None)
    assert (kept.row.reason, kept.row.description) == ("QuotaExceeded", "there is full")
    assert (kept.row.sequence, kept.row.original) == (2, 1)


def test_a_long_reason_is_cut() -> None:
    queue = make()
    queue.lead(NoWay(text="x" * 5000), None)
    send(queue, "a")
    [kept] = take(queue, at(1), state=State.TRANSFER)

    assert kept.row.description == "x" * MAX_REASON_LENGTH


def test_a_dead_letter_that_cannot_go_on_says_both_reasons_and_keeps_its_deliveries() -> None:
    rows = NaiveRows()
    queue = make(rows, max_delivery_count=2)
    queue.lead(None, NoWay())
    send(queue, "a")
    for _ in range(2):
        [a] = take(queue, at(1))
        queue.settle(a.token, Abandon(), at(1))
    [kept] = take(queue, at(1), state=State.TRANSFER)

    assert kept.row.description == (
        "there is full; it was dead-lettered for MaxDeliveryCountExceeded:"
        " Message could not be consumed after 2 delivery attempts."
    )
    assert kept.deliveries == 3
    assert rows.durable == [1, 2]  # a message that is only kept needs no batch of its own


def test_a_dead_letter_goes_where_dead_letters_are_forwarded_to_and_says_whose_it_was() -> None:
    queue, way = make(), Way()
    queue.lead(None, way)
    queue.send([message("a", life=50)], at(1))
    [a] = take(queue, at(1))
    queue.settle(a.token, DeadLetter(reason="bad", description="very"), at(1))
    [(dead, hops)] = way.arrived

    assert hops == 1
    assert (dead.content, dead.source, dead.expires) == ("a", "orders", None)
    assert (dead.reason, dead.description) == ("bad", "very")
    assert queue.info().dead_lettered == queue.info().active == 0


def test_a_dead_letter_that_stays_has_its_first_number_and_no_source() -> None:
    queue = make()
    send(queue, "a")
    [a] = take(queue, at(1))
    queue.settle(a.token, DeadLetter(reason="bad"), at(1))
    [dead] = take(queue, at(1), state=State.DEAD)

    assert (dead.row.sequence, dead.row.original, dead.row.source) == (2, 1, None)


# --- amended messages


def growing(size: int) -> Queue:
    """A queue in which a message that is amended has that size."""
    return make(packed=size)


def test_a_message_may_grow_to_the_limit_by_its_new_properties() -> None:
    queue = growing(1000)
    send(queue, Message())
    [a] = take(queue, at(1))
    queue.settle(a.token, Abandon(properties={"new": 1}), at(1))

    assert queue.info().size == 1000
    assert content(take(queue, at(1)))[0].properties == {"new": 1}


def test_a_message_that_would_grow_above_the_limit_stays_as_it_is_and_locked() -> None:
    queue = growing(1001)
    send(queue, Message())
    [a] = take(queue, at(1))

    with pytest.raises(MessageTooLarge, match="1001 bytes, at most 1000"):
        queue.settle(a.token, Abandon(properties={"new": 1}), at(1))
    assert queue.info().size == 10
    assert take(queue, at(1)) == []


def test_a_message_that_was_larger_already_may_stay_so() -> None:
    queue = growing(900)
    send(queue, Message())
    [a] = take(queue, at(1))
    queue.settle(a.token, Abandon(properties={"new": 1}), at(1))
    queue.entity.max_message_size = 100
    [a] = take(queue, at(1))
    queue.settle(a.token, Abandon(properties={"new": 2}), at(1))

    assert queue.info().size == 900


# --- deletions before a date


def dead(queue: Queue, name: str, now: Now) -> None:
    """Dead-letter the message, also if others are before it."""
    taken = queue.receive(State.ACTIVE, 100, ReceiveMode.PEEK_LOCK, now)
    for each in taken:
        last = each.row.content == name
        queue.settle(each.token, DeadLetter(reason="r") if last else Abandon(), now)


def test_a_deletion_before_a_date_finds_old_dead_letters_behind_newer_ones() -> None:
    queue = make(max_delivery_count=100)
    for second, name in enumerate("abcd", start=1):
        send(queue, name, now=at(second))
    for name in "dbca":  # the order as dead letters
        dead(queue, name, at(10))

    deleted = queue.delete(State.DEAD, 10, at(3).wall, None, at(11))

    assert deleted == 2
    assert content(take(queue, at(12), state=State.DEAD)) == ["d", "c"]


@pytest.mark.slow
def test_a_deletion_before_a_date_goes_past_a_bounded_number_of_newer_dead_letters() -> None:
    rows = NaiveRows()
    queue = make(rows)
    send(queue, "old", now=at(1))
    send(queue, *range(5000), now=at(3))
    for each in take(queue, at(4), limit=6000)[::-1]:
        queue.settle(each.token, DeadLetter(reason="r"), at(4))
    rows.read = 0

    assert queue.delete(State.DEAD, 10, at(2).wall, None, at(6)) == 0
    assert rows.read == 4096
    queue.delete(State.DEAD, 1000, None, None, at(6))
    assert queue.delete(State.DEAD, 10, at(2).wall, None, at(6)) == 1


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=100),
    st.integers(0, 10),
    st.integers(1, 100),
    st.integers(0, 5),
)
def test_a_deletion_takes_the_first_old_ones_that_are_not_locked(
    sent: Sequence[tuple[int, bool]], before: int, limit: int, locked: int
) -> None:
    """The model is a list: those sent and died, in the order of their deaths."""
    queue = make(max_delivery_count=100)
    for number, (second, _) in enumerate(sent):
        send(queue, number, now=at(second))
    taken = {each.row.content: each for each in take(queue, at(10), limit=100)}
    order = [number for number, (_, dies) in enumerate(sent) if dies][::-1]
    for number in order:
        queue.settle(taken[number].token, DeadLetter(reason="r"), at(10))
    held = content(take(queue, at(11), limit=locked, state=State.DEAD)) if locked else []
    free = [n for n in order if n not in held and sent[n][0] < before]

    deleted = queue.delete(State.DEAD, limit, at(before).wall, None, at(12))

    left = [row.content for row in queue.peek([State.DEAD], 0, 1000)]
    assert deleted == len(free[:limit])
    assert left == [n for n in order if n not in free[:limit]]


def test_receivers_may_add_as_many_bytes_to_messages_as_the_quota_has() -> None:
    queue = make(packed=2**19, max_size_in_megabytes=1)
    queue.entity.max_message_size = 2**19
    send(queue, *[Message()] * 5)
    growing = [take(queue, at(1), 1)[0] for _ in range(5)]
    for each in growing[:3]:
        queue.settle(each.token, Defer(properties={"new": 1}), at(1))
    new = {"new": 1}
    for verdict in (
        Defer(properties=new),
        Abandon(properties=new),
        DeadLetter(reason="", properties=new),
    ):
        with pytest.raises(QuotaExceeded, match="receivers may add no more"):
            queue.settle(growing[3].token, verdict, at(1))

    assert queue.info().size == 3 * 2**19 + 20
    [deferred] = queue.receive_deferred([1], ReceiveMode.PEEK_LOCK, at(1))
    queue.settle(deferred.token, Defer(properties={"new": 2}), at(1))  # no more bytes
    queue.settle(growing[4].token, DeadLetter(reason="bad"), at(1))
    [deferred] = queue.receive_deferred([1], ReceiveMode.PEEK_LOCK, at(1))
    queue.settle(deferred.token, Complete(), at(1))
    queue.settle(growing[3].token, Abandon(properties={"new": 1}), at(1))


def test_a_new_body_counts_as_bytes_that_a_receiver_adds() -> None:
    queue = make(packed=2**19, max_size_in_megabytes=1)
    queue.entity.max_message_size = 2**19
    send(queue, *[Message()] * 5)
    rows, _ = queue.visibility.dequeue(5, 5_000_000, at(1))
    receipts = [PopReceipt(row.sequence, row.stamp, row.deliveries) for row in rows]
    for each in receipts[:3]:
        queue.visibility.change(each, 0, b"new", at(1))

    with pytest.raises(QuotaExceeded, match="receivers may add no more"):
        queue.visibility.change(receipts[3], 0, b"new", at(1))
