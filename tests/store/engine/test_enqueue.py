"""Messages are enqueued: within their limits, and with the number of times they were forwarded."""

from datetime import timedelta

import pytest

from gateway.domain.entity import EntityStatus
from gateway.domain.errors import EntityDisabled, MessageTooLarge, QuotaExceeded
from gateway.domain.message import Message
from gateway.store.engine.records import Incoming, State
from tests.store.engine.enqueue import Way, forwarded, leading
from tests.store.engine.queue import at, content, make, message, send, take

MEGABYTE = 2**20


def sized(size: int) -> Incoming:
    return Incoming(content="a", size=size)


# --- limits


def test_a_message_may_be_as_large_as_the_limit() -> None:
    queue = make()
    queue.send([sized(1000)], at(1))

    with pytest.raises(MessageTooLarge, match="1001 bytes, at most 1000"):
        queue.send([sized(1), sized(1001)], at(1))
    assert queue.info().active == 1


def test_a_queue_may_be_filled_to_its_last_byte() -> None:
    queue = make(max_size_in_megabytes=1)
    queue.send([sized(1000)] * 1048, at(1))
    queue.send([sized(MEGABYTE - 1000 * 1048)], at(1))

    assert queue.info().size == MEGABYTE
    with pytest.raises(QuotaExceeded, match="holds 1048576 of 1048576"):
        queue.send([sized(1)], at(1))


def test_a_message_that_every_target_takes_counts_against_the_quota() -> None:
    way = Way(to_sender=True, count=2)
    queue = leading(way, max_size_in_megabytes=1)
    queue.send([sized(1000)] * (MEGABYTE // 2000), at(1))
    way.arrived.clear()

    with pytest.raises(QuotaExceeded):
        queue.send([sized(1000)] * (MEGABYTE // 2000 + 1), at(1))
    assert way.arrived == []


@pytest.mark.parametrize(
    ("status", "word"),
    [(EntityStatus.DISABLED, "Disabled"), (EntityStatus.SEND_DISABLED, "SendDisabled")],
)
def test_a_disabled_queue_takes_nothing_and_says_why(status: EntityStatus, word: str) -> None:
    queue = make(status=status)

    with pytest.raises(EntityDisabled, match=f"^orders is {word}$"):
        send(queue, "a")


def test_a_queue_that_gives_nothing_takes_messages_all_the_same() -> None:
    queue = make(status=EntityStatus.RECEIVE_DISABLED)
    send(queue, "a")

    assert queue.info().active == 1
    with pytest.raises(EntityDisabled):
        take(queue, at(1))


# --- forwarded


def test_a_message_sent_to_a_queue_that_forwards_is_forwarded_once() -> None:
    told, untold = Way(to_sender=True), Way()
    for way in (told, untold):
        send(leading(way), "a")

    assert (told.asked, told.hops) == ([1], [1])
    assert (untold.asked, untold.hops) == ([1], [1])


def test_a_message_that_came_from_another_queue_is_forwarded_once_more() -> None:
    way = Way()
    leading(way).arrive(forwarded(), 2, at(5))

    assert (way.asked, way.hops) == ([3], [3])


def test_a_message_without_a_session_goes_where_dead_letters_go_and_that_is_once_more() -> None:
    way = Way()
    queue = make(requires_session=True)
    queue.lead(None, way)
    queue.arrive(forwarded(expires=9_000_000), 2, at(5))
    [(dead, hops)] = way.arrived

    assert hops == 3
    assert (dead.reason, dead.source, dead.expires) == ("Session ID is null.", "orders", None)
    assert "requires sessions" in dead.description


def test_a_message_without_a_session_is_a_dead_letter_and_says_where_it_came_from() -> None:
    queue = make(requires_session=True)
    queue.arrive(forwarded(source="invoices", expires=9_000_000), 2, at(5))
    [dead] = take(queue, at(100), state=State.DEAD)

    assert (dead.row.reason, dead.row.source) == ("Session ID is null.", "invoices")


def test_a_scheduled_message_is_forwarded_when_it_is_due() -> None:
    for way in (Way(to_sender=True), Way()):
        queue = leading(way)
        queue.send([message("later", due=100), message("now")], at(1))
        before = len(way.arrived)
        queue.sweep(at(100))

        assert (before, len(way.arrived)) == (1, 2)


def test_a_message_that_arrives_begins_anew_and_keeps_its_first_number() -> None:
    queue = make()
    queue.arrive(forwarded(deliveries=5, state=State.DEAD, original=3, enqueued=1), 1, at(5))
    [taken] = take(queue, at(5))

    assert (taken.row.sequence, taken.row.original) == (1, 3)
    assert (taken.row.enqueued, taken.deliveries) == (5_000_000, 1)


@pytest.mark.parametrize(
    ("expires", "life", "expected"),
    [(9, None, 9), (9, 100, 9), (200, 100, 105), (None, 100, 105), (None, None, None)],
)
def test_a_message_that_arrives_lives_as_long_as_it_and_the_queue_allow(
    expires: float | None, life: float | None, expected: float | None
) -> None:
    default = None if life is None else timedelta(seconds=life)
    queue = make(default_time_to_live=default)
    stored = None if expires is None else round(expires * 1e6)
    queue.arrive(forwarded(expires=stored), 1, at(5))
    [taken] = take(queue, at(5))

    assert taken.row.expires == (None if expected is None else round(expected * 1e6))


def test_a_duplicate_that_is_forwarded_arrives_once() -> None:
    queue = make(requires_duplicate_detection=True)
    for number in (1, 2, 1):
        queue.arrive(forwarded(content=Message(message_id=str(number))), 1, at(5))

    assert [each.message_id for each in content(take(queue, at(5)))] == ["1", "2"]


def test_a_message_without_an_id_is_never_a_duplicate() -> None:
    queue = make(requires_duplicate_detection=True)
    for _ in range(2):
        queue.arrive(forwarded(), 1, at(5))

    assert queue.info().active == 2
