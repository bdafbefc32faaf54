"""Locks: found by their token while they hold, and gone without a trace after that."""

from gateway.store.engine.journal import Journal
from gateway.store.engine.locks import Locks
from tests.harness.retained import entries


def test_a_lock_holds_until_its_moment() -> None:
    locks = Locks[str]()
    lock = locks.add("t", "held", 10.0)

    assert locks.find("t", 9.9) is lock
    assert locks.find("t", 10.0) is None


def test_only_the_token_finds_a_lock() -> None:
    locks = Locks[str]()
    locks.add("", "held", 10.0)

    assert locks.find(None, 0.0) is None
    assert locks.find("other", 0.0) is None


def test_a_lock_that_is_extended_holds_for_longer() -> None:
    locks = Locks[str]()
    lock = locks.add("t", "held", 10.0)
    locks.extend(lock, 20.0)

    assert locks.next_end() == 20.0
    assert list(locks.run_out(10.0)) == []
    assert list(locks.run_out(20.0)) == [lock]


def test_a_lock_that_has_ended_leaves_nothing_behind() -> None:
    journal = Journal()
    locks = Locks[str](journal)
    for token in ("dropped", "over", "cleared"):
        locks.add(token, "held", {"over": 5.0}.get(token, 10.0))
    locks.drop("dropped")
    assert [lock.token for lock in locks.run_out(5.0)] == ["over"]
    assert locks.find("cleared", 5.0) is not None
    locks.clear()
    journal.forget()

    assert entries(locks) == 0
    assert locks.next_end() is None
