"""Orders of operators, and the overrides that they leave behind."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import MOST, Action, Order, Override, Overrides, matches

NOW = datetime(2026, 11, 25, 3, tzinfo=UTC)
LATER = NOW + timedelta(hours=3)


def override(target: str, *, since: datetime = NOW, until: datetime | None = None) -> Override:
    return Override(target=target, reason="", operator="ann", since=since, until=until)


def given_overrides(*targets: str) -> Overrides:
    overrides = Overrides()
    overrides.add([override(each) for each in targets])
    return overrides


def covered(overrides: Overrides, *names: str) -> set[str]:
    return {name for name in names if overrides.covering(name) is not None}


def test_a_pattern_covers_what_it_matches_whatever_the_case() -> None:
    overrides = given_overrides("Orders/*")

    assert covered(overrides, "orders/eu", "ORDERS/us/1", "orders", "bills") == {
        "orders/eu",
        "ORDERS/us/1",
    }


def test_the_same_order_changes_nothing_and_keeps_its_date() -> None:
    overrides = given_overrides("orders")

    again = override("orders", since=LATER)

    assert not overrides.add([again])
    assert [each.since for each in overrides] == [NOW]


def test_an_order_with_another_end_replaces_the_first_and_keeps_its_date() -> None:
    overrides = given_overrides("orders")

    assert overrides.add([override("ORDERS", since=LATER, until=LATER)])
    assert [(each.since, each.until) for each in overrides] == [(NOW, LATER)]


def test_taking_back_a_part_leaves_the_rest_in_effect() -> None:
    overrides = given_overrides("*")

    assert overrides.remove(["orders"])
    assert covered(overrides, "orders", "bills") == {"bills"}
    assert not overrides.remove(["orders"])


def test_a_new_order_covers_what_was_taken_back_from_an_earlier_one() -> None:
    overrides = given_overrides("*")
    overrides.remove(["orders"])

    assert overrides.add([override("*")])
    assert covered(overrides, "orders", "bills") == {"orders", "bills"}


def test_taking_back_everything_ends_all_orders() -> None:
    overrides = given_overrides("*", "orders/*", "bills")

    assert overrides.remove(["*"])
    assert overrides.all() == ()
    assert not overrides


def test_taking_back_what_no_order_concerns_changes_nothing() -> None:
    assert not given_overrides("orders").remove(["bills"])


@given(
    st.lists(st.sampled_from(["*", "a", "a*", "*a", "ab", "b*", "*b"]), max_size=4),
    st.lists(st.sampled_from(["*", "a", "a*", "*a", "ab", "b*", "*b"]), max_size=4),
    st.sampled_from(["a", "b", "ab", "ba", "aa"]),
)
def test_an_entity_is_covered_if_an_order_matches_and_none_took_it_back(
    ordered: list[str], taken_back: list[str], name: str
) -> None:
    overrides = given_overrides(*ordered)
    overrides.remove(taken_back)

    expected = any(matches(each, name) for each in ordered) and not any(
        matches(each, name) for each in taken_back
    )
    assert (overrides.covering(name) is not None) == expected


def test_orders_end_at_their_date_and_the_next_end_is_known() -> None:
    overrides = Overrides()
    overrides.add([override("orders", until=LATER), override("bills")])

    assert overrides.next_end == LATER
    assert overrides.pop_ended(LATER - timedelta(seconds=1)) == []
    assert [each.target for each in overrides.pop_ended(LATER)] == ["orders"]
    assert [each.target for each in overrides] == ["bills"]
    assert overrides.next_end is None


def test_the_number_of_orders_and_of_exceptions_is_limited() -> None:
    overrides = given_overrides(*(f"q{index}" for index in range(MOST - 1)), "*x")

    with pytest.raises(InvalidRequest, match="in effect already"):
        overrides.add([override("one-more")])
    with pytest.raises(InvalidRequest, match="exceptions already"):
        overrides.remove([f"{index}x" for index in range(MOST + 1)])
    assert len(overrides.all()) == MOST
    assert covered(overrides, "0x") == {"0x"}


@pytest.mark.parametrize("target", ["", "a//b", "a?", "[ab]", "a b", "../x", "a" * 300])
def test_a_target_that_no_entity_can_match_is_refused(target: str) -> None:
    with pytest.raises(InvalidRequest, match="target"):
        Order(action=Action.FAILOVER, targets=(target,))


def test_an_order_needs_targets_a_short_reason_and_a_date_with_a_time_zone() -> None:
    with pytest.raises(InvalidRequest, match="targets: 1 to"):
        Order(action=Action.PAUSE, targets=())
    with pytest.raises(InvalidRequest, match="reason"):
        Order(action=Action.PAUSE, reason="x" * 1000)
    with pytest.raises(InvalidRequest, match="time zone"):
        Order(action=Action.PAUSE, until=datetime(2026, 1, 1))
