"""The rules of one queue, on a naive storage: a dict that is searched from end to end."""

from datetime import timedelta

import attrs
import pytest

from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityStatus, QueueProperties
from gateway.domain.errors import (
    EntityDisabled,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    QuotaExceeded,
)
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, Message
from gateway.store.engine.dispatch import MOST_TAKEN
from gateway.store.engine.queue_checks import check_properties
from gateway.store.engine.queue_content import SWEEP
from gateway.store.engine.records import MOST_PEEKED, State
from tests.harness.retained import entries
from tests.store.engine.queue import (
    PEEK_LOCK,
    NaiveRows,
    at,
    content,
    enlarge,
    fresh,
    make,
    message,
    send,
    take,
)

MINUTE = 60


def in_doubt(seconds: float, ahead: float) -> Now:
    """The wall clock was set so far ahead a moment ago."""
    wall = round((seconds + ahead) * 1e6)
    return Now(wall, seconds, seconds + 60, round(seconds * 1e6))


def test_locked_messages_are_not_read_again():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, *range(200))
    take(queue, at(1), 100)
    rows.read = 0
    for _ in range(10):
        take(queue, at(1), 1)

    assert rows.read == 10


def test_a_message_that_is_given_back_comes_before_one_that_was_never_taken():
    queue = make()
    send(queue, "a", "b", "c", "d")
    a, b, c = take(queue, at(1), 3)
    queue.release([c.token, a.token], at(2))

    assert content(take(queue, at(2), 3)) == ["a", "c", "d"]
    assert b.token


def test_one_take_looks_at_a_bounded_number_of_messages_and_the_next_goes_on():
    """The messages may not be handed out: they were delivered too often before."""
    rows = NaiveRows()
    queue = make(rows)
    send(queue, *range(500))
    for row in list(rows.rows.values()):
        rows.count_delivery(row, 10, durable=True)
    found = [take(queue, at(1), 1), take(queue, at(1), 1)]

    assert found == [[], []]
    assert queue.info().dead_lettered == 2 * (1 + SWEEP)


def test_a_message_that_may_not_be_handed_out_is_made_up_for_and_no_more():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, "worn", "a", "b", "c")
    rows.count_delivery(rows.rows[1], 10, durable=True)

    assert content(take(queue, at(1), 2)) == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "word"),
    [(EntityStatus.DISABLED, "Disabled"), (EntityStatus.RECEIVE_DISABLED, "ReceiveDisabled")],
)
def test_a_disabled_queue_gives_nothing_and_says_why(status, word):
    queue = make()
    send(queue, "a")
    queue.entity.properties = QueueProperties(status=status)

    with pytest.raises(EntityDisabled, match=f"^orders is {word}$"):
        take(queue, at(1))
    queue.entity.properties = QueueProperties(status=EntityStatus.SEND_DISABLED)
    assert content(take(queue, at(1))) == ["a"]


def test_a_restart_ends_all_locks():
    queue = make()
    send(queue, "a")
    [a] = take(queue, at(1))
    queue.reload()

    with pytest.raises(LockLost):
        queue.settle(a.token, Complete(), at(1))
    assert queue.next_event(at(1)) is None


def test_a_deferred_message_whose_lock_ran_out_can_be_taken_again():
    queue = make()
    send(queue, "a")
    [a] = take(queue, at(1))
    queue.settle(a.token, Defer(), at(1))
    queue.receive_deferred([1], PEEK_LOCK, at(1))

    with pytest.raises(MessageNotFound):
        queue.receive_deferred([1], PEEK_LOCK, at(60))
    assert content(queue.receive_deferred([1], PEEK_LOCK, at(61))) == ["a"]


def test_an_expired_message_needs_no_room():
    queue = make(max_size_in_megabytes=1)
    queue.send([attrs.evolve(message("a", life=5), size=1000)] * 1048, at(1))
    for _ in range(6):
        queue.sweep(at(10))
    queue.send([attrs.evolve(message("b", life=5), size=1000)] * 100, at(10))
    queue.send([attrs.evolve(message("c"), size=1000)] * 1000, at(20))

    assert queue.info().active == 1000


def test_a_message_that_has_become_due_cannot_be_cancelled():
    queue = make()
    [place] = queue.send([message("a", due=10)], at(1))

    with pytest.raises(MessageNotFound):
        queue.cancel([place.number], at(10))
    assert content(take(queue, at(10))) == ["a"]


def test_a_message_that_is_only_hidden_cannot_be_cancelled():
    queue = make()
    [place] = queue.send([message("a")], at(1))
    queue.visibility.dequeue(1, 60_000_000, at(1))

    with pytest.raises(MessageNotFound, match="isn't scheduled"):
        queue.cancel([place.number], at(2))


def test_scheduled_messages_are_cancelled_all_or_none_and_each_once():
    queue = make()
    places = queue.send([message("a", due=10), message("b", due=10)], at(1))
    first, second = (place.number for place in places)

    with pytest.raises(MessageNotFound):
        queue.cancel([first, 99], at(2))
    assert queue.info().scheduled == 2
    queue.cancel([first, first, second], at(2))
    assert queue.info().scheduled == 0


@pytest.mark.parametrize("what", ["send", "cancel", "take", "settle"])
def test_each_operation_of_a_queue_uses_it(what):
    queue = make()
    [due, _] = queue.send([message("later", due=100), message("a")], at(1))
    [a] = take(queue, at(2), 1)
    does = {
        "send": lambda: send(queue, "b", now=at(7)),
        "cancel": lambda: queue.cancel([due.number], at(7)),
        "take": lambda: take(queue, at(7)),
        "settle": lambda: queue.settle(a.token, Complete(), at(7)),
    }
    does[what]()

    assert queue.info().accessed == to_date(7_000_000)


@pytest.mark.parametrize("state", [State.DEAD, State.TRANSFER], ids=lambda state: state.name)
def test_a_dead_letter_can_only_be_deferred_completed_or_given_back(state):
    rows = NaiveRows()
    queue = make(rows)
    send(queue, "a")
    rows.rows[1] = attrs.evolve(rows.rows[1], state=state)
    queue.reload()
    [dead] = take(queue, at(1), state=state)

    with pytest.raises(InvalidRequest, match="can't be dead-lettered again"):
        queue.settle(dead.token, DeadLetter(reason="bad"), at(1))
    queue.settle(dead.token, Abandon(), at(1))
    [dead] = take(queue, at(1), state=state)
    queue.settle(dead.token, Defer(), at(1))
    assert take(queue, at(1), state=state) == []
    counts = queue.info().dead_lettered, queue.info().transfer_dead_lettered
    assert sum(number or 0 for number in counts) == 1
    [dead] = queue.receive_deferred([1], PEEK_LOCK, at(1), state)
    with pytest.raises(InvalidRequest, match="can't be dead-lettered again"):
        queue.settle(dead.token, DeadLetter(reason="bad"), at(1))
    queue.settle(dead.token, Complete(), at(1))
    assert rows.rows == {}


def test_a_released_message_is_nobodys_any_more():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, "a", "b")
    a, b = take(queue, at(1))
    queue.release(["unknown", a.token, b.token], at(1), delivered=False)

    assert rows.durable == []
    with pytest.raises(LockLost):
        queue.settle(a.token, Complete(), at(1))
    assert content(take(queue, at(1))) == ["a", "b"]


def test_a_message_that_its_receiver_cannot_read_is_put_aside():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, "a")
    [a] = take(queue, at(1))
    queue.quarantine(a.token, at(1))

    assert rows.rows == {}
    assert queue.drain_news(at(1)).quarantined == [1]
    with pytest.raises(LockLost):
        queue.settle(a.token, Complete(), at(1))


def test_a_peek_shows_no_message_after_those_that_are_a_mebibyte_together():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, *range(12))
    enlarge(rows, MOST_PEEKED // 10)

    assert [row.content for row in queue.peek([State.ACTIVE], 0, 100)] == [*range(11)]
    assert [row.content for row in queue.peek([State.ACTIVE], 12, 100)] == [11]


@pytest.mark.parametrize("large", [0, 1, 20])
def test_a_peek_reads_no_large_messages_beyond_those_that_it_shows(large):
    rows = NaiveRows()
    queue = make(rows)
    send(queue, *range(40))
    for number in range(large + 1, 41):
        rows.rows[number] = attrs.evolve(rows.rows[number], size=MOST_PEEKED)

    assert len(queue.peek([State.ACTIVE], 0, 32)) == large + 1
    assert rows.paged == large + 1


def test_a_peek_passes_damaged_messages_however_many_they_are():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, *range(30))
    for number in range(1, 30):
        rows.rows[number] = attrs.evolve(rows.rows[number], damaged=True)

    assert [row.content for row in queue.peek([State.ACTIVE], 0, 1)] == [29]


def test_a_peek_at_several_states_sees_no_more_than_was_asked_for():
    queue = make()
    for number in range(4):
        queue.send([message(number, due=None if number % 2 else 100)], at(1))
    states = [State.ACTIVE, State.SCHEDULED]

    assert [row.content for row in queue.peek(states, 0, 3)] == [0, 1, 2]
    assert [row.content for row in queue.peek(states, 3, 3)] == [2, 3]
    assert queue.peek(states, 2**70, 3) == []
    assert [row.content for row in queue.peek(states, -(2**70), 1)] == [0]


def test_a_damaged_message_is_not_mended_by_new_properties():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, Message())
    [a] = take(queue, at(1))
    rows.rows[1] = attrs.evolve(rows.rows[1], damaged=True)
    queue.settle(a.token, Abandon(properties={"new": 1}), at(2))

    assert rows.rows[1].content == Message()
    assert take(queue, at(2)) == []


def test_a_message_that_nobody_has_seen_is_not_counted_as_delivered():
    queue = make()
    send(queue, "a")
    [a] = take(queue, at(1))
    queue.release([a.token], at(1), delivered=False)

    assert [each.deliveries for each in take(queue, at(1))] == [1]


def test_a_message_that_a_receiver_gives_back_unseen_is_not_counted_either():
    queue = make()
    send(queue, "a")
    for _ in range(20):  # more often than it may be delivered
        [a] = take(queue, at(1))
        queue.settle(a.token, Abandon(delivered=False), at(1))

    assert [each.deliveries for each in take(queue, at(1))] == [1]


def test_a_lock_ends_by_the_monotonic_clock_alone():
    queue = make()
    send(queue, "a")
    [a] = take(queue, Now(0, 1.0))
    ten_years = 315_360_000_000_000
    queue.renew(a.token, Now(ten_years, 30.0))

    assert take(queue, Now(ten_years, 89.0)) == []
    assert content(take(queue, Now(0, 90.0))) == ["a"]


def test_before_its_first_delivery_a_queue_knows_no_lock():
    queue = make()
    queue.release(["unknown"], at(1))

    with pytest.raises(LockLost):
        queue.renew("unknown", at(1))
    with pytest.raises(LockLost):
        queue.settle("unknown", Complete(), at(1))


def test_a_lock_can_be_renewed_many_times_and_leaves_nothing_behind():
    queue = make()
    send(queue, "a")
    [a] = take(queue, at(1))
    few = entries(queue)
    for second in range(2, 2000):
        queue.entity.journal.forget()  # as after each step
        queue.renew(a.token, at(second))

    assert entries(queue) < few + 100


def test_the_last_deliveries_are_counted_durably():
    rows = NaiveRows()
    queue = make(rows, max_delivery_count=4)
    send(queue, "a")
    for _ in range(4):
        [a] = take(queue, at(1))
        queue.settle(a.token, Abandon(), at(1))

    assert rows.durable == [3, 4]


def test_a_message_that_came_to_its_limit_before_a_restart_is_not_served():
    rows = NaiveRows()
    queue = make(rows, max_delivery_count=1)
    send(queue, "a")
    take(queue, at(1))
    queue.reload()

    assert take(queue, at(1)) == []
    assert content(take(queue, at(1), state=State.DEAD)) == ["a"]


def test_a_locked_message_does_not_expire_until_it_comes_back():
    queue = make()
    queue.send([message("a", life=5)], at(1))
    [a] = take(queue, at(1))
    queue.sweep(at(10))
    queue.settle(a.token, Complete(), at(11))

    assert queue.info().active == 0


def test_an_expired_message_that_comes_back_is_gone():
    queue = make(dead_lettering_on_expiration=True)
    queue.send([message("a", life=5)], at(1))
    [a] = take(queue, at(1))
    queue.settle(a.token, Abandon(), at(11))

    assert take(queue, at(11)) == []
    [dead] = take(queue, at(11), state=State.DEAD)
    assert dead.row.reason == "TTLExpiredException"


def test_a_message_of_too_many_deliveries_is_dead_lettered_though_it_has_expired_since():
    queue = make(max_delivery_count=1, lock_duration=timedelta(seconds=5))
    queue.send([message("a", life=7)], at(1))
    take(queue, at(1))

    [dead] = take(queue, at(20), state=State.DEAD)
    assert dead.row.reason == "MaxDeliveryCountExceeded"


def test_a_dead_letter_never_expires():
    queue = make()
    queue.send([message("a", life=5)], at(1))
    [a] = take(queue, at(1))
    queue.settle(a.token, DeadLetter(reason="bad"), at(2))

    assert content(take(queue, at(10_000), state=State.DEAD)) == ["a"]


def test_many_messages_that_expire_at_once_all_go():
    queue = make()
    queue.send([message(number, life=5) for number in range(1000)], at(1))
    locked = take(queue, at(1), 300)
    while (event := queue.next_event(at(10))) is not None and event <= 10:
        queue.sweep(at(10))

    assert queue.info().active == len(locked)


def test_nothing_expires_while_the_wall_clock_is_in_doubt():
    queue = make()
    queue.send([message("a", life=5)], at(1))
    doubtful = at(100, untrusted_until=160)
    queue.sweep(doubtful)

    assert queue.next_event(doubtful) == 160
    assert content(take(queue, doubtful)) == ["a"]


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_a_message_that_comes_while_the_clock_is_in_doubt_ends_before_its_time_by_neither_date(
    ahead,
):
    queue = make()
    queue.send([message("a", life=5), message("b", life=5, due=110)], in_doubt(100, ahead))
    rows = queue.peek([State.ACTIVE, State.SCHEDULED], 0, 10)

    assert [row.expires for row in rows] == [(105 + max(ahead, 0)) * 10**6, 115 * 10**6]


def test_a_message_that_expires_after_the_wall_clock_was_set_back_still_goes():
    queue = make()
    queue.send([message("a", life=5)], at(1000))
    queue.sweep(at(2000))
    queue.send([message("b", life=5)], Now(10_000_000, 2001.0))
    queue.sweep(Now(20_000_000, 2011.0))

    assert queue.info().active == 0


def test_a_life_longer_than_any_date_is_for_ever():
    queue = make(default_time_to_live=timedelta.max)
    send(queue, "a")

    assert [each.row.expires for each in take(queue, at(1))] == [None]


def test_a_scheduled_message_gets_a_new_place_and_lives_from_then_on():
    queue = make()
    queue.send([message("later", life=5, due=100)], at(1))
    send(queue, "first", now=at(2))
    first, later = take(queue, at(100))

    assert content([first, later]) == ["first", "later"]
    assert (later.row.sequence, later.row.original) == (3, 1)
    assert later.row.expires == 105_000_000


def test_the_next_event_is_the_first_thing_that_time_brings_about():
    queue = make(lock_duration=timedelta(seconds=30))
    assert queue.next_event(at(1)) is None
    queue.send([message("a"), message("b", life=20), message("c", due=10)], at(1))
    events = [queue.next_event(at(1))]
    queue.sweep(at(10))
    events.append(queue.next_event(at(10)))
    take(queue, at(10), 1)
    queue.sweep(at(21))
    events.append(queue.next_event(at(21)))

    assert events == [10, 21, 40]


def test_fresh_says_how_many_became_available():
    queue = make(max_delivery_count=1)
    queue.send([message("a"), message("b"), message("c", due=10)], at(1))
    told = [fresh(queue), fresh(queue)]
    [a] = take(queue, at(1), 1)
    queue.settle(a.token, Abandon(), at(1))
    queue.sweep(at(10))
    told.append(fresh(queue, at(10)))

    assert told == [(2, 0), (0, 0), (1, 1)]


def test_a_damaged_row_is_put_aside_and_never_served():
    rows = NaiveRows()
    queue = make(rows)
    send(queue, "a", "b")
    rows.rows[1] = attrs.evolve(rows.rows[1], damaged=True)

    assert content(take(queue, at(1))) == ["b"]
    assert queue.drain_news(at(1)).quarantined == [1]
    assert queue.info().active == 1


def test_a_refused_settlement_keeps_the_lock():
    queue = make()
    send(queue, "a")
    [a] = take(queue, at(1))
    with pytest.raises(InvalidRequest):
        queue.settle(a.token, DeadLetter(reason="half \ud800"), at(2))
    queue.settle(a.token, Complete(), at(2))
    with pytest.raises(LockLost):
        queue.settle(a.token, Complete(), at(2))


def test_the_size_of_a_queue_follows_its_messages():
    queue = make()
    send(queue, "a", "b", "c")
    a, b, _ = take(queue, at(1))
    queue.settle(a.token, Complete(), at(1))
    queue.settle(b.token, DeadLetter(reason="bad"), at(1))

    assert queue.info().size == 20


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"lock_duration": timedelta(0)}, "LockDuration"),
        ({"default_time_to_live": timedelta(0)}, "DefaultMessageTimeToLive"),
        ({"max_size_in_megabytes": 0}, "MaxSizeInMegabytes"),
        ({"max_message_size": 0}, "maximum message size"),
        ({"lock_duration": timedelta(minutes=6)}, "LockDuration"),
        ({"duplicate_detection_window": timedelta(days=8)}, "DuplicateDetectionHistoryTimeWindow"),
        ({"auto_delete_on_idle": timedelta(minutes=4)}, "AutoDeleteOnIdle"),
        ({"forward_to": "topic/Subscriptions/s"}, "ForwardTo"),
        (
            {"forward_dead_lettered_messages_to": "other/$DeadLetterQueue"},
            "ForwardDeadLetteredMessagesTo",
        ),
    ],
)
def test_a_property_that_makes_no_sense_is_refused_by_its_known_name(properties, name):
    with pytest.raises(InvalidRequest, match=name):
        check_properties(QueueProperties(**properties))


def test_one_step_delivers_a_bounded_number_of_bytes() -> None:
    rows = NaiveRows()
    queue = make(rows)
    queue.entity.max_message_size = MOST_TAKEN
    large = attrs.evolve(message("large"), size=MOST_TAKEN // 2)
    queue.send([large] * 5, at(1))
    rows.read = 0

    assert [len(take(queue, at(1), 100)) for _ in range(3)] == [2, 2, 1]
    assert rows.read <= 6  # no more than are delivered


def test_one_step_delivers_a_bounded_number_of_bytes_of_deferred_messages() -> None:
    rows = NaiveRows()
    queue = make(rows)
    queue.entity.max_message_size = 2 * MOST_TAKEN
    queue.send([attrs.evolve(message("large"), size=2 * MOST_TAKEN)] * 5, at(1))
    numbers = list(range(1, 6))
    for _ in numbers:
        [large] = take(queue, at(1), 1)
        queue.settle(large.token, Defer(), at(1))
    rows.read = 0

    with pytest.raises(QuotaExceeded, match="receive fewer at once"):
        queue.receive_deferred(numbers, PEEK_LOCK, at(1))
    assert rows.read == 2
    [one] = queue.receive_deferred(numbers[:1], PEEK_LOCK, at(1))  # however large
    assert one.row.sequence == 1
