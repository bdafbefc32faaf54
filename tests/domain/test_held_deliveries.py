import math

from gateway.domain.held_deliveries import HeldDeliveries
from tests.harness.retained import entries


def table(*tokens, most=math.inf):
    held = HeldDeliveries(most)
    for number, token in enumerate(tokens):
        held.add(token, token.upper(), weight=10, ends=float(number))
    return held


def test_a_delivery_is_found_by_its_token_until_it_is_settled():
    held = table("a", "b")

    assert held.get("a") == "A"
    assert held.pop("a") == "A"
    assert held.get("a") is held.pop("a") is held.get(None) is None
    assert list(held) == ["B"]


def test_beyond_the_bound_the_oldest_is_dropped_with_its_weight():
    held = table("a", "b", "c", most=2)

    assert list(held) == ["B", "C"]
    assert held.weight == 20


def test_locks_end_in_their_order_and_a_renewed_one_is_the_last():
    held = table("a", "b", "c", "d")
    held.renew("a", 10.0)
    held.renew("gone", 0.0)

    assert held.next_end == 1.0
    assert held.pop_ended(2.0) == ["B", "C"]
    assert held.weight == 20
    assert list(held) == ["D", "A"]
    assert held.pop_ended(math.inf) == ["D", "A"]
    assert held.next_end == math.inf


def test_the_weight_follows_each_message():
    held = table("a", "b")
    held.weigh("a", 0)
    held.weigh("gone", 5)

    assert held.weight == 10
    held.add("b", "again", weight=3)
    assert held.weight == 3


def test_a_walk_may_remove_deliveries():
    held = table("a", "b", "c")

    for each in held:
        held.pop(each.lower())

    assert len(held) == held.weight == 0
    assert entries(held) == 0


def test_nothing_is_left_after_all_is_dropped():
    held = table("a", "b", "c")
    held.clear()

    assert (len(held), held.weight) == (0, 0)
