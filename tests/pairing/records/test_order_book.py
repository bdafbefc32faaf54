"""The orders that a process knows: their sequence, and how long those of others hold."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import attrs
import pytest

from gateway.domain.health.process_records import ORDERS_HOLD
from gateway.domain.operators.control import Action, Order, Override
from gateway.domain.operators.given_orders import GivenOrder
from gateway.pairing.records.order_book import OrderBook

START = datetime(2026, 11, 30, tzinfo=UTC)
NOW = int(START.timestamp() * 1000)  # as a revision


@attrs.define
class SetClock:
    date: datetime = START

    def __call__(self) -> datetime:
        return self.date


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def book(clock: SetClock) -> OrderBook:
    return OrderBook(process="p1", clock=clock)


def of_another(revision: int, action: Action = Action.FAILOVER) -> GivenOrder:
    return GivenOrder(
        revision=revision,
        process="p2",
        action=action,
        targets=("orders",),
        operator="bob",
        at=START,
    )


def override(target: str, seconds: float, *excepted: str) -> Override:
    return Override(
        target=target,
        reason="case 7",
        operator="ann",
        since=START - timedelta(seconds=seconds),
        until=START + timedelta(hours=1),
        excepted=excepted,
    )


def test_a_process_that_begins_knows_no_orders(book: OrderBook) -> None:
    assert (book.own, book.others, book.others_until, book.reload) == ((), (), None, 0)


def test_a_revision_is_the_time_in_milliseconds(book: OrderBook) -> None:
    assert book.revision == 0

    book.give(Order(action=Action.FAILOVER, targets=("orders",)), "ann")

    assert book.revision == NOW


@pytest.mark.parametrize("ahead", [-5000, 0, 5000])
def test_an_order_given_here_is_newer_than_all_that_are_known(book: OrderBook, ahead: int) -> None:
    book.learn([of_another(NOW + ahead), of_another(NOW + ahead - 10, Action.PAUSE)])

    book.give(Order(action=Action.FAILBACK, targets=("orders",)), "ann")

    assert book.revision == max(NOW, NOW + ahead + 1)


def test_a_request_to_reload_is_newer_than_those_of_others(book: OrderBook) -> None:
    book.ask_reload()
    alone = book.reload
    book.hear_reload(NOW + 5000)
    book.ask_reload()

    assert (alone, book.reload) == (NOW, NOW + 5001)


def test_a_request_to_reload_is_told_at_once(book: OrderBook) -> None:
    book.ask_reload()

    assert book.given.version == 1


@pytest.mark.parametrize(
    ("heard", "reloads"),
    [
        ((-1,), 0),
        ((0,), 0),
        ((1,), 1),
        ((1, 1), 1),
        ((1, 2), 2),
        ((5, 1, 5), 1),
    ],
)
def test_a_process_reloads_for_each_newer_request_that_is_from_after_its_start(
    book: OrderBook, heard: tuple[int, ...], reloads: int
) -> None:
    for milliseconds in heard:
        book.hear_reload(NOW + milliseconds)

    assert book.reloads.version == reloads


def test_the_orders_of_others_are_in_force_and_listed(book: OrderBook) -> None:
    book.learn([of_another(1)])

    assert book.others == (of_another(1),)
    assert [each.target for each in book.in_force().pins] == ["orders"]


def test_orders_from_before_a_restart_come_beside_those_that_are_known(book: OrderBook) -> None:
    book.adopt([of_another(NOW - 9)])
    given = book.given.version

    book.adopt([of_another(NOW - 9), of_another(NOW - 8, Action.PAUSE)])
    book.adopt([of_another(NOW - 9)])

    assert [each.revision for each in book.own] == [NOW - 9, NOW - 8]
    assert book.given.version == given + 1


def test_overrides_of_an_earlier_version_are_in_force_with_what_they_except(
    book: OrderBook,
) -> None:
    pins = [override("*", 5, "bills"), override("orders", 9)]
    pauses = [override("news/*", 7, "news/eu")]

    book.adopt_overrides(pins, pauses)

    force = book.in_force()
    assert {each.target: each.excepted for each in force.pins} == {"*": ("bills",), "orders": ()}
    assert {each.target: each.excepted for each in force.pauses} == {"news/*": ("news/eu",)}
    assert [(each.reason, each.until is None) for each in book.own if not each.gives] == [
        ("", True)
    ] * 2
    assert [each.targets[0] for each in book.own if each.action is Action.FAILOVER] == [
        "orders",
        "*",
    ]


def test_orders_of_others_hold_from_the_last_time_that_they_are_heard(
    book: OrderBook, clock: SetClock
) -> None:
    assert book.learn([of_another(1)])
    first = book.others_until
    clock.date += 0.9 * ORDERS_HOLD / 3

    assert not book.learn([of_another(1)])
    soon = book.others_until
    clock.date = START + ORDERS_HOLD / 3
    book.learn([of_another(1)])

    assert (first, soon) == (START + ORDERS_HOLD, START + ORDERS_HOLD)
    assert book.others_until == START + ORDERS_HOLD / 3 + ORDERS_HOLD


def test_a_change_for_the_state_file_is_an_order_or_a_later_date(
    book: OrderBook, clock: SetClock
) -> None:
    versions = [book.changes.version]

    def note() -> None:
        versions.append(book.changes.version)

    book.give(Order(action=Action.FAILOVER, targets=("orders",)), "ann")
    note()
    book.learn([of_another(1)])
    note()
    book.learn([of_another(1)])
    note()
    clock.date += ORDERS_HOLD / 2
    book.learn([of_another(1)])
    note()
    book.learn([])
    note()
    clock.date += ORDERS_HOLD
    book.learn([])
    note()

    assert [later - earlier for earlier, later in pairwise(versions)] == [1, 1, 0, 1, 1, 0]
