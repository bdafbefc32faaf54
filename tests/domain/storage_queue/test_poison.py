"""Poison messages go to another queue, and say why."""

from gateway.domain.entity import EntityPath
from gateway.domain.storage_queue import UNLIMITED, poison_queue, too_many

ORDERS = EntityPath("Orders")


def test_poison_goes_to_a_queue_that_is_named_after_its_own() -> None:
    assert poison_queue(ORDERS).name == "Orders-poison"


def test_poison_says_how_often_it_was_taken() -> None:
    why = too_many(ORDERS, 6, 5)

    assert why.reason == "PoisonThresholdExceeded"
    assert why.description == "Orders: dequeued 6 times and not removed; 5 expected."


def test_a_queue_of_storage_queue_gives_nothing_up_and_is_as_large_as_one_can_be() -> None:
    assert UNLIMITED.max_delivery_count == 2_147_483_647  # as far as an integer of the wire goes
    assert UNLIMITED.max_size_in_megabytes == 81_920  # the most that Service Bus sells
