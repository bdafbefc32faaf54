"""S13: which arrivals are out of order, and which sends have no order."""

from math import inf

import pytest

from gateway.checker.history import Run
from gateway.checker.judgements import Validity
from gateway.checker.operations import Acked, CopyPlace, Delivered, Found, Invoked
from gateway.checker.order import order_kept

HOLDS, BROKEN, IDLE = Validity.HOLDS, Validity.BROKEN, Validity.IDLE


def sent(name, began, acked=None, *, order="k", entity="orders", not_before=-inf):
    invoked = Invoked(
        at=began,
        message_id=name,
        entity=entity,
        fingerprint="",
        order=order,
        not_before=not_before,
    )
    return [invoked] if acked is None else [invoked, Acked(at=acked, message_id=name)]


def came(name, copy, at=100.0, *, entity="orders"):
    return [Delivered(at=at, message_id=name, entity=entity, fingerprint="", copy=str(copy))]


def validity(*groups):
    return order_kept(Run.of([record for group in groups for record in group])).validity


def test_messages_arrive_in_the_order_of_their_sends():
    assert validity(sent("a", 1, 2), sent("b", 3, 4), came("a", 1), came("b", 2)) is HOLDS


def test_a_message_mustnt_overtake_one_that_was_acknowledged_before_it_was_sent():
    decision = order_kept(
        Run.of([*sent("a", 1, 2), *sent("b", 3, 4), *came("a", 2), *came("b", 1)])
    )

    assert decision.validity is BROKEN
    assert "b, sent at 3.000, arrived before a, acknowledged at 2.000" in decision.problems[0]


def test_sends_at_the_same_time_have_no_order():
    assert validity(sent("a", 1, 3), sent("b", 3, 4), came("a", 2), came("b", 1)) is HOLDS
    assert validity(sent("a", 1, 3), sent("b", 3.1, 4), came("a", 2), came("b", 1)) is BROKEN


@pytest.mark.parametrize(
    "second",
    [
        sent("b", 3, 4, order="other"),
        sent("b", 3, 4, order=""),
        sent("b", 3, 4, not_before=50.0),
    ],
    ids=["another key", "no order", "a date"],
)
def test_messages_without_a_common_order_may_overtake(second):
    assert validity(sent("a", 1, 2), second, came("a", 2), came("b", 1)) is IDLE


def test_the_same_key_of_another_entity_is_another_order():
    other = sent("b", 3, 4, entity="bills")

    assert validity(sent("a", 1, 2), other, came("a", 2), came("b", 1, entity="bills")) is IDLE


def test_only_first_arrivals_count():
    again = [*came("a", 1), *came("b", 2), *came("a", 3), *came("a", 1, at=200.0)]

    assert validity(sent("a", 1, 2), sent("b", 3, 4), again) is HOLDS


def test_a_message_that_was_never_acknowledged_may_come_late():
    assert validity(sent("a", 1), sent("b", 3, 4), came("a", 2), came("b", 1)) is HOLDS


def test_a_message_that_was_never_acknowledged_mustnt_overtake():
    assert validity(sent("a", 1, 2), sent("b", 3), came("a", 2), came("b", 1)) is BROKEN


def test_a_repeated_send_counts_from_its_first_try():
    repeated = [*sent("b", 0.5), *sent("b", 3, 4)]

    assert validity(sent("a", 1, 2), repeated, came("a", 2), came("b", 1)) is HOLDS


def test_a_message_that_the_audit_finds_on_the_primary_has_arrived():
    found = Found(at=300, place=CopyPlace.PRIMARY, queue="orders", message_id="a", copy="2")
    lost = Found(at=300, place=CopyPlace.BACKLOG, queue="orders", message_id="a", copy="2")

    assert validity(sent("a", 1, 2), sent("b", 3, 4), came("b", 1), [found]) is BROKEN
    assert validity(sent("a", 1, 2), sent("b", 3, 4), came("b", 1), [lost]) is IDLE


def test_copies_without_numbers_are_in_the_order_of_their_deliveries():
    came_last = [*came("b", "x", 50.0), *came("a", "y", 60.0)]

    assert validity(sent("a", 1, 2), sent("b", 3, 4), came_last) is BROKEN
    assert validity(sent("a", 1, 2), sent("b", 3, 4), came("a", "x", 5), came("b", "y")) is HOLDS


def test_the_last_of_all_that_were_acknowledged_before_decides():
    sends = [*sent("a", 1, 2), *sent("b", 1, 2.5), *sent("c", 3, 4)]

    assert validity(sends, came("a", 3), came("b", 1), came("c", 2)) is BROKEN
