"""A purge deletes the messages of a backlog queue that an operator has seen, and no more."""

from typing import Any

import pytest
import trio

from gateway.domain.errors import InvalidRequest
from gateway.domain.events.control import ControlCalled
from gateway.domain.message import DeadLetter
from gateway.domain.operators.control import Operator
from gateway.extensions.purge.events import BacklogPurged
from gateway.extensions.purge.order import PurgeAnswer, PurgeOrder
from gateway.extensions.purge.purge import Purge
from tests.pairing.harness import LABEL, ORDERS, QUEUE, Harness, message, virtual_time

pytestmark = virtual_time

ANN = Operator(name="ann", peer="127.0.0.1:5000")


def purge_of(harness: Harness) -> Purge:
    return Purge(
        source=harness.secondary.broker, label=LABEL, clock=harness.clock, observer=harness.events
    )


async def purge(harness: Harness, **fields: Any) -> PurgeAnswer:
    return await purge_of(harness).execute(PurgeOrder(queue=QUEUE.name, **fields), ANN)


async def purge_confirmed(harness: Harness, messages: int, **fields: Any) -> PurgeAnswer:
    return await purge(harness, confirm=QUEUE.name, messages=messages, **fields)


async def left(harness: Harness) -> int:
    return len(await harness.secondary.store.peek(QUEUE, limit=1000))


async def filled(harness: Harness, messages: int) -> None:
    await harness.divert(*(message(f"m{number}") for number in range(messages)))


async def test_without_a_confirmation_messages_are_only_counted(harness: Harness) -> None:
    await filled(harness, 3)

    answer = await purge(harness)

    assert (answer.messages, answer.purged, await left(harness)) == (3, 0, 3)
    assert harness.events.of(ControlCalled) == []


async def test_all_that_was_seen_is_deleted_and_reported(harness: Harness) -> None:
    await filled(harness, 120)

    answer = await purge_confirmed(harness, 120, reason="test data")

    assert (answer.messages, answer.purged, answer.left) == (120, 120, 0)
    assert await left(harness) == 0
    [called] = harness.events.of(ControlCalled)
    assert (called.action, called.operator, called.reason) == ("purge", "ann", "test data")
    assert harness.events.of(BacklogPurged) == [
        BacklogPurged(queue=QUEUE.name, messages=120, left=0, operator="ann")
    ]


async def test_nothing_is_deleted_when_more_has_come(harness: Harness) -> None:
    await filled(harness, 4)

    with pytest.raises(InvalidRequest, match=r"more has come: .* has 4 messages, and 3 were seen"):
        await purge_confirmed(harness, 3)

    assert await left(harness) == 4
    assert [each.changed for each in harness.events.of(ControlCalled)] == [False]
    assert harness.events.of(BacklogPurged) == []


async def test_fewer_than_seen_are_deleted_all(harness: Harness) -> None:
    await filled(harness, 2)

    answer = await purge_confirmed(harness, 5)

    assert (answer.messages, answer.purged, await left(harness)) == (2, 2, 0)


async def test_a_message_that_comes_meanwhile_stays(harness: Harness) -> None:
    await filled(harness, 2)
    store = harness.secondary.store
    real = store.inspect

    async def inspect(queue: Any) -> Any:
        info = await real(queue)
        await harness.divert(message("late"))
        return info

    harness.secondary.broker.inner.inspect = inspect  # type: ignore[method-assign]

    answer = await purge_confirmed(harness, 2)

    assert (answer.purged, await left(harness)) == (2, 1)


async def test_a_message_that_comes_meanwhile_is_not_deleted_instead_of_a_locked_one(
    harness: Harness,
) -> None:
    await filled(harness, 3)
    store = harness.secondary.store
    real = store.inspect

    async def inspect(queue: Any) -> Any:
        info = await real(queue)
        await trio.sleep(1.0)
        await harness.divert(message("late"))
        return info

    harness.secondary.broker.inner.inspect = inspect  # type: ignore[method-assign]
    async with store.open_receiver(QUEUE) as syphon:
        await syphon.receive(1)

        answer = await purge_confirmed(harness, 3)

    assert (answer.purged, answer.left, await left(harness)) == (2, 1, 2)


async def test_messages_that_a_syphon_holds_are_left(harness: Harness) -> None:
    await filled(harness, 3)
    async with harness.secondary.store.open_receiver(QUEUE) as syphon:
        await syphon.receive(1)

        answer = await purge_confirmed(harness, 3)

    assert (answer.messages, answer.purged, answer.left) == (3, 2, 1)


async def test_dead_letters_are_purged_by_themselves(harness: Harness) -> None:
    await filled(harness, 2)
    async with harness.secondary.store.open_receiver(QUEUE) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, DeadLetter(reason="EntityNotFound"))

    counted = await purge(harness, dead_letters=True)
    answer = await purge_confirmed(harness, 1, dead_letters=True)

    assert (counted.messages, answer.purged) == (1, 1)
    assert await left(harness) == 1
    assert not await harness.secondary.store.peek(QUEUE.dead_letter, limit=10)


async def test_a_cancelled_purge_tells_what_it_has_deleted(harness: Harness) -> None:
    await filled(harness, 3)
    async with harness.secondary.store.open_receiver(QUEUE) as syphon:
        await syphon.receive(1)
        with trio.move_on_after(1.0):  # the purge waits for the locked message
            await purge_confirmed(harness, 3)

    assert harness.events.of(BacklogPurged) == [
        BacklogPurged(queue=QUEUE.name, messages=2, left=1, operator="ann")
    ]


async def test_only_backlog_queues_of_this_pair_are_purged(harness: Harness) -> None:
    for name in (ORDERS.name, "west/x-servicebus-transfer/0"):
        with pytest.raises(InvalidRequest, match="a backlog queue of this pair"):
            await purge_of(harness).execute(PurgeOrder(queue=name), ANN)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"queue": "a//b"}, "entity name"),
        ({"queue": "a", "confirm": "b", "messages": 1}, "confirm: the name of the queue"),
        ({"queue": "a", "confirm": "a"}, "messages: the number"),
        ({"queue": "a", "messages": -1}, "messages: 0 or more"),
        ({"queue": "a", "reason": "x" * 500}, "reason: at most"),
    ],
)
async def test_a_malformed_order_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        PurgeOrder(**fields)
