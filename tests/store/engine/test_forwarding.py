"""Forwarded messages: their targets refuse some of them, and ways lead on or in a circle."""

from collections.abc import Callable
from itertools import pairwise

import attrs
import pytest

from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityPath, EntityStatus
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityNotFound,
    MessageTooLarge,
    QuotaExceeded,
)
from gateway.domain.message import ReceiveMode
from gateway.store.engine.forwarding import Forward, leads_to
from gateway.store.engine.queue import Queue
from gateway.store.engine.queue_content import TooManyHops
from gateway.store.engine.records import State
from tests.store.engine import namespace
from tests.store.engine.enqueue import forwarded
from tests.store.engine.queue import at, make, message


def to(queue: Queue | None) -> Forward:
    return Forward(EntityPath("Orders"), {"orders": queue}.get)


def full() -> Queue:
    """A queue of messages that expire at 6, with 576 bytes left of its megabyte."""
    queue = make(max_size_in_megabytes=1)
    queue.send([attrs.evolve(message("a", life=5), size=1000)] * 1048, at(1))
    return queue


def test_a_message_is_forwarded_four_times_and_no_more() -> None:
    queue = make()

    assert to(queue).copies(forwarded(), 4, at(1)) == [(queue, forwarded())]
    with pytest.raises(TooManyHops, match="Orders: the message was forwarded 4 times already"):
        to(queue).copies(forwarded(), 5, at(1))


def test_a_message_that_was_forwarded_too_often_is_kept_aside_with_the_reason_of_service_bus() -> (
    None
):
    space = namespace.make()
    for name, target in pairwise("abcdef"):
        namespace.create(space, name, forward_to=target)
    namespace.create(space, "f")
    space.find(EntityPath("a")).send([namespace.message()], at(1))
    last = space.find(EntityPath("e"))
    [kept] = last.receive(State.TRANSFER, 1, ReceiveMode.PEEK_LOCK, at(1))

    assert kept.row.reason == "MaxTransferHopCountExceeded"


@pytest.mark.parametrize(
    ("target", "size", "error"),
    [
        (lambda: None, 10, EntityNotFound),
        (lambda: make(status=EntityStatus.SEND_DISABLED), 10, EntityDisabled),
        (make, 1001, MessageTooLarge),
        (full, 577, QuotaExceeded),
    ],
    ids=["gone", "disabled", "too large", "full"],
)
def test_a_target_refuses_what_it_would_refuse_from_its_sender(
    target: Callable[[], Queue | None], size: int, error: type[BrokerError]
) -> None:
    with pytest.raises(error):
        to(target()).copies(forwarded(size=size), 1, at(1))


def test_an_expired_message_needs_no_room_in_a_target() -> None:
    queue = full()

    assert to(queue).copies(forwarded(size=577), 1, at(6)) == [(queue, forwarded(size=577))]


def test_a_queue_that_forwards_to_another_uses_it() -> None:
    queue = make()
    to(queue).copies(forwarded(), 1, at(7))

    assert queue.info().accessed == to_date(7_000_000)


def test_a_sender_is_not_told_that_a_queue_could_not_forward() -> None:
    queue = make()
    queue.lead(to(None), None)
    queue.send([message("a")], at(1))

    assert queue.info().transfer_dead_lettered == 1


@pytest.mark.parametrize(
    ("goal", "leads"), [("a", True), ("c", True), ("e", True), ("d", False), ("x", False)]
)
def test_ways_are_followed_to_their_end_and_around_a_circle_once(goal: str, leads: bool) -> None:
    ways = {"a": "be", "b": "c", "c": "b", "d": "a"}

    assert leads_to("a", goal, lambda key: ways.get(key, "")) is leads
