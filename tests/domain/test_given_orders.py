"""Orders of a pair's processes: two that know the same orders do the same."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operators.control import Action
from gateway.domain.operators.given_orders import REMEMBERED, GivenOrder, in_force, still_needed

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def _order(
    revision: int, action: Action, *targets: str, process: str = "a", **more: Any
) -> GivenOrder:
    values: dict[str, Any] = {"operator": "ann", "at": NOW, "until": None, "rate": None, **more}
    return GivenOrder(
        revision=revision, process=process, action=action, targets=targets or ("*",), **values
    )


_orders = st.lists(
    st.builds(
        _order,
        st.integers(1, 30),
        st.sampled_from(Action),
        st.sampled_from(["orders", "ord*", "*", "invoices", "i*"]),
        process=st.sampled_from(["a", "b"]),
        until=st.none() | st.sampled_from([NOW - timedelta(1), NOW + timedelta(1)]),
        rate=st.none() | st.just(5.0),
        at=st.sampled_from([NOW, NOW - 2 * REMEMBERED]),
    ),
    max_size=12,
    unique_by=lambda each: each.key,
)


def _held(orders: list[GivenOrder] | tuple[GivenOrder, ...], at: datetime = NOW) -> object:
    """The overrides in force for three entities, without their dates."""
    found = in_force(orders, at)
    names = ("orders", "invoices", "ordinary")
    return (
        [any(pin.covers(name) for pin in found.pins) for name in names],
        [any(pause.covers(name) for pause in found.pauses) for name in names],
        found.rate and found.rate.rate,
    )


@given(_orders, st.randoms())
def test_the_sequence_in_which_orders_arrive_does_not_matter(
    orders: list[GivenOrder], random: Random
) -> None:
    shuffled = [*orders, *orders[:3]]
    random.shuffle(shuffled)

    assert in_force(shuffled, NOW) == in_force(orders, NOW)


@given(_orders, _orders, st.sampled_from([timedelta(), timedelta(hours=1), timedelta(days=2)]))
def test_an_order_is_forgotten_only_when_it_changes_nothing(
    own: list[GivenOrder], others: list[GivenOrder], later: timedelta
) -> None:
    own = [each for each in own if each.process == "a"]
    others = [each for each in others if each.process == "b"]

    kept = still_needed(own, others, NOW)

    assert _held([*kept, *others], NOW + later) == _held([*own, *others], NOW + later)


@given(_orders, _orders)
def test_a_recent_order_is_remembered_for_those_who_come_back_with_older_ones(
    own: list[GivenOrder], others: list[GivenOrder]
) -> None:
    own = [attrs.evolve(each, at=NOW) for each in own if each.process == "a"]
    others = [each for each in others if each.process == "b"]

    kept = still_needed(own, (), NOW)

    assert _held([*kept, *others]) == _held([*own, *others])


@pytest.mark.parametrize("process", ["a", "b"])
def test_an_exception_is_remembered_as_long_as_the_order_that_it_is_from(process: str) -> None:
    pin = _order(1, Action.FAILOVER, "*", process=process)
    back = _order(2, Action.FAILBACK, "orders")
    own, others = ([pin, back], []) if process == "a" else ([back], [pin])

    kept = still_needed(own, others, NOW + 2 * REMEMBERED)

    assert _held([*kept, *others]) == _held([pin, back])
    assert back in kept


def test_the_newest_order_wins_whichever_process_it_was_given_at() -> None:
    pin = _order(1, Action.FAILOVER, "*", process="b")
    back = _order(2, Action.FAILBACK, "orders", process="a")

    found = in_force([back, pin], NOW)

    assert [each.covers("orders") for each in found.pins] == [False]
    assert [each.covers("invoices") for each in found.pins] == [True]
    assert found.revision == 2


def test_an_order_ends_at_its_end_and_takes_no_older_one_back_into_force() -> None:
    endless = _order(1, Action.FAILOVER, "orders", process="b")
    short = _order(2, Action.FAILOVER, "orders", until=NOW + timedelta(hours=1))
    after = NOW + timedelta(hours=2)

    assert in_force([endless, short], NOW).pins[0].until == short.until
    assert in_force([endless, *still_needed([short], (), after)], after).pins == ()


def test_orders_that_took_others_back_are_remembered_for_a_week() -> None:
    back = _order(2, Action.FAILBACK, "orders")

    assert still_needed([back], (), NOW + REMEMBERED) == (back,)
    assert still_needed([back], (), NOW + REMEMBERED + timedelta(seconds=1)) == ()


def test_a_rate_is_taken_back_by_a_later_order_without_one() -> None:
    limit = _order(1, Action.RATE, rate=50.0)
    free = _order(2, Action.RATE, process="b")

    limited = in_force([limit], NOW).rate
    assert limited is not None
    assert limited.rate == 50.0
    assert in_force([limit, free], NOW).rate == free
