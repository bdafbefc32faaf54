"""Sessions of a queue: their locks, the next session, and their stored form."""

from collections.abc import Sequence
from datetime import timedelta

import attrs
import pytest

from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityStatus, QueueProperties
from gateway.domain.errors import (
    EntityDisabled,
    InvalidRequest,
    QuotaExceeded,
    SessionLockLost,
    SessionNotAvailable,
    SessionRequired,
    StateDamaged,
)
from gateway.domain.message import Abandon, Complete, Defer, ReceiveMode
from gateway.store.engine.queue import Queue
from gateway.store.engine.records import STATE_OVERHEAD, SessionRecord, State
from gateway.store.engine.session_rules import AcceptedSession
from gateway.store.engine.sessions import MAX_SESSION_STATE
from tests.harness.retained import entries
from tests.store.engine.queue import at, content, message, naive_storage, queue_on

PEEK_LOCK = ReceiveMode.PEEK_LOCK
LOCK = 60  # seconds
PROPERTIES = QueueProperties(requires_session=True)


def make(**properties: object) -> Queue:
    return queue_on(naive_storage(), attrs.evolve(PROPERTIES, **properties))  # type: ignore[arg-type]


def send(queue: Queue, session: str, *bodies: str, life: float | None = None) -> None:
    sent = [attrs.evolve(message(body, life=life), session=session) for body in bodies]
    queue.send(sent, at(1))


def accept(queue: Queue, session: str | None = None, now: Now | None = None) -> AcceptedSession:
    accepted = queue.sessions.accept(session, now or at(1))
    assert accepted is not None
    return accepted


def take(queue: Queue, held: AcceptedSession, now: Now | None = None, limit: int = 10) -> list[str]:
    return content(queue.sessions.receive(held.holder, limit, PEEK_LOCK, now or at(1)))


def available(queue: Queue) -> int:
    """Return the number of sessions that became available since the last call."""
    return queue.drain_news(at(1)).active


def woken(queue: Queue) -> Sequence[str]:
    """The locked sessions in which something has changed since the last call."""
    return sorted(queue.drain_news(at(1)).sessions)


# --- locks of sessions


def test_the_session_that_has_waited_the_longest_is_next() -> None:
    queue = make()
    for session in ("b", "a", "b", "c"):
        send(queue, session, "m")

    assert [accept(queue).session for _ in range(3)] == ["b", "a", "c"]
    assert queue.sessions.accept(None, at(1)) is None


def test_a_session_without_messages_may_be_held_too() -> None:
    queue = make()
    held = accept(queue, "empty")

    assert take(queue, held) == []
    with pytest.raises(SessionNotAvailable):
        queue.sessions.accept("empty", at(1))


def test_the_holder_of_a_session_gets_its_messages_alone_and_in_order() -> None:
    queue = make()
    send(queue, "a", "1", "2")
    send(queue, "b", "x")
    send(queue, "a", "3")
    held = accept(queue, "a")

    assert take(queue, held, limit=2) == ["1", "2"]
    assert take(queue, held) == ["3"]
    assert take(queue, held) == []


def test_a_message_that_is_given_back_comes_again_first_and_in_order() -> None:
    queue = make()
    send(queue, "a", "1", "2", "3", "4")
    held = accept(queue, "a")
    taken = queue.sessions.receive(held.holder, 3, PEEK_LOCK, at(1))
    for each in (taken[2], taken[0]):
        queue.sessions.settle(held.holder, each.token, Abandon(), at(1))

    assert take(queue, held, limit=1) == ["1"]
    assert take(queue, held) == ["3", "4"]


def test_closing_a_session_counts_no_delivery_however_often() -> None:
    queue = make(max_delivery_count=2)
    send(queue, "a", "1")
    for _ in range(10):
        held = accept(queue, "a")
        assert take(queue, held) == ["1"]
        queue.sessions.release(held.holder, at(1))

    [taken] = queue.sessions.receive(accept(queue, "a").holder, 1, PEEK_LOCK, at(1))
    assert taken.deliveries == 1
    assert queue.info().dead_lettered == 0


def test_the_end_of_a_sessions_lock_counts_its_deliveries() -> None:
    queue = make()
    send(queue, "a", "1", "2")
    held = accept(queue, "a")
    take(queue, held, limit=1)
    queue.sweep(at(1 + LOCK))
    queue.sessions.release(held.holder, at(1 + LOCK))

    again = queue.sessions.receive(accept(queue, "a", at(70)).holder, 2, PEEK_LOCK, at(70))
    assert [each.deliveries for each in again] == [2, 1]


def test_a_completed_message_comes_never_again() -> None:
    queue = make()
    send(queue, "a", "1")
    held = accept(queue, "a")
    [taken] = queue.sessions.receive(held.holder, 1, PEEK_LOCK, at(1))
    queue.sessions.settle(held.holder, taken.token, Complete(), at(1))
    queue.sessions.release(held.holder, at(1))

    assert queue.sessions.accept(None, at(1)) is None
    assert queue.sessions.page(None, 0, 9) == []


def test_a_session_that_is_let_go_gives_back_its_messages() -> None:
    queue = make()
    send(queue, "a", "1", "2")
    held = accept(queue, "a")
    take(queue, held, limit=1)
    queue.sessions.release(held.holder, at(1))

    assert take(queue, accept(queue)) == ["1", "2"]


@pytest.mark.parametrize("release", ["released", "ran out"])
def test_a_deferred_message_is_free_when_its_session_is_let_go(release: str) -> None:
    queue, late = make(), at(1 + LOCK)
    send(queue, "a", "1")
    held = accept(queue, "a")
    [taken] = queue.sessions.receive(held.holder, 1, PEEK_LOCK, at(1))
    queue.sessions.settle(held.holder, taken.token, Defer(), at(1))
    queue.sessions.receive_deferred(held.holder, [1], PEEK_LOCK, at(1))
    if release == "released":
        queue.sessions.release(held.holder, at(1))
    holder = accept(queue, "a", late).holder

    assert content(queue.sessions.receive_deferred(holder, [1], PEEK_LOCK, late)) == ["1"]


def test_a_session_that_is_let_go_is_lost_and_ends_no_second_time() -> None:
    queue = make()
    held = accept(queue, "a")
    queue.sessions.release(held.holder, at(1))

    with pytest.raises(SessionLockLost):
        take(queue, held)
    accept(queue, "a", at(50))
    queue.sweep(at(1 + LOCK))
    with pytest.raises(SessionNotAvailable):
        queue.sessions.accept("a", at(1 + LOCK))


def test_a_session_that_somebody_asked_for_by_name_is_passed_over() -> None:
    queue = make()
    send(queue, "a", "1")
    send(queue, "b", "2")
    accept(queue, "a")

    assert accept(queue).session == "b"


def test_a_session_that_is_let_go_stands_where_its_oldest_message_is_now() -> None:
    queue = make()
    send(queue, "a", "1", "2")
    send(queue, "b", "3")
    first, _ = accept(queue), accept(queue)
    [taken] = queue.sessions.receive(first.holder, 1, PEEK_LOCK, at(1))
    queue.sessions.settle(first.holder, taken.token, Complete(), at(1))
    available(queue)
    queue.sessions.release(first.holder, at(1))

    assert available(queue) == 1
    assert take(queue, accept(queue)) == ["2"]


def test_a_session_whose_oldest_message_expired_since_it_was_let_go_isnt_forgotten() -> None:
    queue = make()
    send(queue, "a", "1", life=5)
    send(queue, "b", "2")
    send(queue, "a", "3")
    send(queue, "c", "4")
    first, _, _ = accept(queue), accept(queue), accept(queue)
    queue.sessions.release(first.holder, at(1))

    assert take(queue, accept(queue, now=at(10)), at(10)) == ["3"]


def test_a_receiver_that_takes_and_lets_go_a_session_again_and_again_leaves_one_trace() -> None:
    queue = make()
    send(queue, "a", "1")
    send(queue, "b", "2")
    accept(queue)
    accept(queue)
    queue.sweep(at(1 + LOCK))
    traces = []
    for _ in range(100):
        queue.sessions.release(accept(queue, "a", at(100)).holder, at(100))
        queue.entity.journal.forget()  # as after each step
        traces.append(entries(queue))

    assert traces == traces[:1] * 100


def test_a_session_that_is_let_go_has_its_place_among_the_others() -> None:
    queue = make()
    for session in ("a", "b", "c"):
        send(queue, session, "m")
    first, second = accept(queue), accept(queue)
    queue.sessions.release(second.holder, at(1))
    queue.sessions.release(first.holder, at(1))

    assert [accept(queue).session for _ in range(3)] == ["a", "b", "c"]


def test_a_message_that_was_given_back_and_expired_since_comes_to_nobody() -> None:
    queue = make()
    send(queue, "a", "1", life=5)
    held = accept(queue, "a")
    [taken] = queue.sessions.receive(held.holder, 1, PEEK_LOCK, at(1))
    queue.sessions.settle(held.holder, taken.token, Abandon(), at(1))
    queue.sweep(at(10))

    assert take(queue, held, at(10)) == []


def test_after_a_restart_the_sessions_have_their_places_again() -> None:
    queue = make()
    for session in ("a", "b", "c"):
        send(queue, session, "m")
    accept(queue)
    queue.sessions.release(accept(queue).holder, at(1))
    queue.reload()
    held = [accept(queue) for _ in range(3)]
    queue.sessions.release(held[1].holder, at(1))

    assert [each.session for each in held] == ["a", "b", "c"]
    assert accept(queue).session == "b"


def test_a_session_whose_oldest_message_expired_comes_later() -> None:
    queue = make()
    send(queue, "a", "old", life=5)
    send(queue, "b", "m")
    send(queue, "a", "new")

    assert [accept(queue, now=at(10)).session for _ in range(2)] == ["b", "a"]


def test_a_session_all_of_whose_messages_expired_is_gone() -> None:
    queue = make()
    send(queue, "a", "old", life=5)

    assert queue.sessions.accept(None, at(10)) is None
    assert queue.sessions.page(None, 0, 9) == []


def test_one_search_puts_a_bounded_number_of_sessions_right_and_the_next_goes_on() -> None:
    queue = make()
    for number in range(250):
        send(queue, f"old {number}", "m", life=5)
    send(queue, "new", "m")
    while queue.info().active != 1:
        queue.sweep(at(10))
    available(queue)

    assert queue.sessions.accept(None, at(10)) is None
    assert available(queue) == 1  # a receiver should look again
    assert accept(queue, now=at(10)).session == "new"


def test_a_session_has_a_name_of_128_characters_at_most() -> None:
    queue = make()
    accept(queue, "s" * 128)

    with pytest.raises(InvalidRequest, match="at most 128"):
        queue.sessions.accept("s" * 129, at(1))
    with pytest.raises(InvalidRequest, match="surrogate"):
        queue.sessions.accept("\ud800", at(1))


def test_a_message_must_name_its_session() -> None:
    queue = make()

    with pytest.raises(SessionRequired):
        queue.send([message("a")], at(1))
    with pytest.raises(InvalidRequest, match="at most 128"):
        send(queue, "s" * 129, "a")


def test_a_message_that_is_not_due_makes_no_session_available() -> None:
    queue = make()
    queue.send([attrs.evolve(message("later", due=100), session="a")], at(1))

    assert queue.sessions.accept(None, at(99)) is None
    assert queue.sessions.page(None, 0, 9) == []
    assert take(queue, accept(queue, now=at(100)), at(100)) == ["later"]


# --- for how long


def test_a_session_is_held_for_the_lock_duration() -> None:
    queue = make()
    held = accept(queue, "a", at(1))

    assert held.until == (1 + LOCK) * 1_000_000
    assert queue.sessions.renew(held.holder, at(50)) == (50 + LOCK) * 1_000_000
    take(queue, held, at(49 + LOCK))
    with pytest.raises(SessionLockLost):
        take(queue, held, at(50 + LOCK))


def test_a_message_that_was_taken_is_locked_as_long_as_the_session_and_no_longer() -> None:
    queue = make()
    send(queue, "a", "1")
    held = accept(queue, "a", at(1))
    take(queue, held, at(1))
    queue.sessions.renew(held.holder, at(50))

    assert take(queue, held, at(100)) == []
    assert take(queue, accept(queue, "a", at(50 + LOCK)), at(50 + LOCK)) == ["1"]


@pytest.mark.parametrize("what", ["renew", "state", "set", "settle", "take", "deferred"])
def test_a_receiver_that_lost_a_session_does_nothing_in_it(what: str) -> None:
    queue = make()
    rules, late = queue.sessions, at(1 + LOCK)
    holder = accept(queue, "a").holder
    does = {
        "renew": lambda: rules.renew(holder, late),
        "state": lambda: rules.state(holder, late),
        "set": lambda: rules.set_state(holder, b"s", late),
        "settle": lambda: rules.settle(holder, "t", Complete(), late),
        "take": lambda: rules.receive(holder, 1, PEEK_LOCK, late),
        "deferred": lambda: rules.receive_deferred(holder, [1], PEEK_LOCK, late),
    }

    with pytest.raises(SessionLockLost):
        does[what]()
    rules.release(holder, late)  # which is nothing


def test_the_end_of_a_session_is_an_event() -> None:
    queue = make(lock_duration=timedelta(seconds=30))
    accept(queue, "a", at(1))

    assert queue.next_event(at(1)) == 31
    queue.sweep(at(31))
    assert queue.next_event(at(31)) is None


def test_a_receiver_that_lets_a_session_go_too_late_makes_it_available_all_the_same() -> None:
    queue = make()
    send(queue, "a", "1")
    held = accept(queue, "a")
    available(queue)
    queue.sessions.release(held.holder, at(1 + LOCK))

    assert available(queue) == 1


def test_a_message_that_becomes_due_in_a_session_comes_to_its_holder() -> None:
    queue = make()
    held = accept(queue, "a")
    queue.send([attrs.evolve(message("later", due=10), session="a")], at(1))

    assert take(queue, held, at(9)) == []
    assert take(queue, held, at(10)) == ["later"]


def test_a_receiver_that_takes_a_session_uses_the_queue() -> None:
    queue = make()
    accept(queue, "a", at(7))

    assert queue.info().accessed == to_date(7_000_000)


def test_a_session_remembers_only_what_is_locked_in_it() -> None:
    queue = make()
    send(queue, "a", "1", "2")
    held = accept(queue, "a")
    first, second = queue.sessions.receive(held.holder, 2, PEEK_LOCK, at(1))
    queue.sessions.settle(held.holder, first.token, Complete(), at(1))

    assert queue.sessions._sessions.find(held.holder, at(1)).held.tokens == {second.token}


def test_a_disabled_queue_gives_no_session() -> None:
    queue = make()
    held = accept(queue, "a")
    queue.entity.properties = attrs.evolve(PROPERTIES, status=EntityStatus.RECEIVE_DISABLED)

    for refused in (
        lambda: queue.sessions.accept("b", at(1)),
        lambda: queue.sessions.receive(held.holder, 1, PEEK_LOCK, at(1)),
        lambda: queue.sessions.receive_deferred(held.holder, [1], PEEK_LOCK, at(1)),
    ):
        with pytest.raises(EntityDisabled):
            refused()


# --- notifications


def test_a_message_in_a_session_that_nobody_holds_makes_it_available() -> None:
    queue = make()
    send(queue, "a", "1", "2")

    assert available(queue) == 2
    assert available(queue) == 0


def test_each_holder_of_a_session_is_told_of_its_messages() -> None:
    queue = make()
    held = accept(queue, "a")
    send(queue, "a", "1")
    [taken] = queue.sessions.receive(held.holder, 1, PEEK_LOCK, at(1))
    news = queue.drain_news(at(1))
    queue.sessions.settle(held.holder, taken.token, Abandon(), at(1))

    assert (news.sessions, news.active) == ({"a"}, 0)
    assert woken(queue) == ["a"]
    assert woken(queue) == []


def test_a_session_that_is_let_go_is_available_and_who_waits_in_it_is_told() -> None:
    queue = make()
    send(queue, "a", "1")
    held = accept(queue, "a")
    queue.drain_news(at(1))
    queue.sessions.release(held.holder, at(1))
    news = queue.drain_news(at(1))

    assert (news.active, news.sessions) == (1, {"a"})


def test_an_empty_session_that_is_let_go_is_of_no_interest() -> None:
    queue = make()
    held = accept(queue, "a")
    queue.sessions.release(held.holder, at(1))

    assert available(queue) == 0


# --- state


def test_a_session_keeps_its_state_without_messages() -> None:
    queue = make()
    held = accept(queue, "a")
    queue.sessions.set_state(held.holder, b"state", at(1))
    queue.sessions.release(held.holder, at(1))

    assert queue.sessions.state(accept(queue, "a").holder, at(1)) == b"state"


def test_a_session_keeps_its_state_when_its_last_message_is_gone() -> None:
    queue = make()
    send(queue, "a", "1")
    held = accept(queue, "a")
    queue.sessions.set_state(held.holder, b"state", at(1))
    [taken] = queue.sessions.receive(held.holder, 1, PEEK_LOCK, at(1))
    queue.sessions.settle(held.holder, taken.token, Complete(), at(1))
    queue.sessions.release(held.holder, at(1))

    assert queue.sessions.state(accept(queue, "a").holder, at(1)) == b"state"
    assert queue.sessions.page(None, 0, 9) == []


def test_a_session_that_nobody_gave_a_state_has_none() -> None:
    queue = make()

    assert queue.sessions.state(accept(queue, "a").holder, at(1)) is None


def test_a_state_has_256_kib_at_most() -> None:
    queue = make()
    holder = accept(queue, "a").holder
    queue.sessions.set_state(holder, b"s" * MAX_SESSION_STATE, at(1))

    assert MAX_SESSION_STATE == 256 * 1024
    with pytest.raises(InvalidRequest, match="at most 262144 bytes expected, got 262145"):
        queue.sessions.set_state(holder, b"s" * (MAX_SESSION_STATE + 1), at(1))
    assert queue.sessions.state(holder, at(1)) == b"s" * MAX_SESSION_STATE


def test_the_states_of_a_queue_have_its_quota() -> None:
    queue = make(max_size_in_megabytes=1)
    whole = b"s" * MAX_SESSION_STATE
    for session in "abc":
        queue.sessions.set_state(accept(queue, session).holder, whole, at(1))
    last = accept(queue, "d").holder

    with pytest.raises(QuotaExceeded, match="of 1048576 bytes"):
        queue.sessions.set_state(last, whole, at(1))
    queue.reload()
    last, first = accept(queue, "d").holder, accept(queue, "a").holder
    with pytest.raises(QuotaExceeded):
        queue.sessions.set_state(last, whole, at(1))
    assert queue.sessions.state(last, at(1)) is None

    queue.sessions.set_state(first, whole[1:], at(2))  # less is allowed
    queue.sessions.set_state(first, None, at(3))
    queue.sessions.set_state(last, whole, at(4))


def test_a_state_without_bytes_counts_too() -> None:
    queue = make(max_size_in_megabytes=1)
    for number in range(2**20 // STATE_OVERHEAD):
        queue.sessions.set_state(accept(queue, f"{number}").holder, b"", at(1))
    last = accept(queue, "last").holder

    with pytest.raises(QuotaExceeded):
        queue.sessions.set_state(last, b"", at(1))


def test_a_state_that_is_taken_away_leaves_the_messages() -> None:
    storage = naive_storage()
    queue = queue_on(storage, PROPERTIES)
    send(queue, "a", "1")
    for session in ("a", "b"):
        holder = accept(queue, session).holder
        queue.sessions.set_state(holder, b"state", at(1))
        queue.sessions.set_state(holder, None, at(2))
        assert queue.sessions.state(holder, at(2)) is None

    assert storage.sessions.get("a") == SessionRecord(id="a", first=1, updated=2_000_000)
    assert storage.sessions.get("b") is None


def test_sessions_are_listed_by_name_or_by_the_date_of_their_state() -> None:
    queue = make()
    for session in ("b", "a"):
        send(queue, session, "m")
    for seconds, session in ((5, "y"), (6, "x")):
        queue.sessions.set_state(accept(queue, session).holder, b"s", at(seconds))

    assert queue.sessions.page(None, 0, 9) == ["a", "b"]
    assert queue.sessions.page(None, 1, 1) == ["b"]
    assert queue.sessions.page(None, -1, 1) == ["a"]
    assert queue.sessions.page(None, 0, -1) == []
    assert queue.sessions.page(5_000_000, 0, 9) == ["x"]
    assert queue.sessions.page(0, 0, 9) == ["y", "x"]


def test_a_damaged_state_is_told_and_never_served() -> None:
    storage = naive_storage()
    queue = queue_on(storage, PROPERTIES)
    send(queue, "a", "1")
    record = storage.sessions.get("a")
    assert record is not None
    storage.sessions.put(attrs.evolve(record, first=None, state=b"x", damaged=True))
    held = accept(queue, "a")

    with pytest.raises(StateDamaged):
        queue.sessions.state(held.holder, at(1))
    assert queue.drain_news(at(1)).damaged == ["a"]
    repaired = storage.sessions.get("a")
    assert repaired is not None
    assert repaired.first == 1


@pytest.mark.parametrize(
    "record",
    [
        SessionRecord(id="a", state=b"x"),
        SessionRecord(id="a", state=b"x", damaged=True, reported=True),
    ],
    ids=["well", "told already"],
)
def test_a_session_that_is_well_or_was_told_is_not_told(record: SessionRecord) -> None:
    storage = naive_storage()
    queue = queue_on(storage, PROPERTIES)
    storage.sessions.put(record)
    send(queue, "a", "1")

    assert queue.drain_news(at(1)).damaged == []


def test_a_new_state_mends_a_damaged_one() -> None:
    storage = naive_storage()
    queue = queue_on(storage, PROPERTIES)
    storage.sessions.put(SessionRecord(id="a", state=b"x", damaged=True))
    held = accept(queue, "a")
    queue.sessions.set_state(held.holder, b"new", at(1))

    assert queue.sessions.state(held.holder, at(1)) == b"new"


def test_a_damaged_session_is_never_thrown_away() -> None:
    storage = naive_storage()
    queue = queue_on(storage, PROPERTIES)
    storage.sessions.put(SessionRecord(id="a", first=1, state=None, damaged=True, reported=True))
    queue.sessions.release(accept(queue, "a").holder, at(1))

    assert storage.sessions.get("a") == SessionRecord(
        id="a", first=None, damaged=True, reported=True
    )


# --- queues without


def test_a_receiver_that_names_no_session_gets_nothing_of_a_queue_that_has_them() -> None:
    queue = make()

    with pytest.raises(SessionRequired):
        queue.receive(State.ACTIVE, 1, PEEK_LOCK, at(1))
    with pytest.raises(SessionRequired):
        queue.receive_deferred([1], PEEK_LOCK, at(1))
    assert queue.receive(State.DEAD, 1, PEEK_LOCK, at(1)) == []


def test_a_queue_without_sessions_says_so() -> None:
    with pytest.raises(InvalidRequest, match="doesn't require sessions"):
        _ = make(requires_session=False).sessions


def test_a_message_of_a_session_is_locked_no_longer_than_the_session() -> None:
    queue = make()
    send(queue, "a", "1")
    accepted = accept(queue, "a", at(1))

    [taken] = queue.sessions.receive(accepted.holder, 1, ReceiveMode.PEEK_LOCK, at(5))

    assert taken.locked_until == accepted.until
