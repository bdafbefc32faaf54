"""The contract of brokers that defer, cancel schedules, detect duplicates or change queues."""

from typing import Any

import pytest
import trio

from gateway.capabilities import Peeks, ReceivesDeferred, Schedules, Updates
from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    PreconditionFailed,
)
from gateway.domain.message import (
    DEAD_LETTER_REASON,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Message,
    MessageState,
    ReceiveMode,
)
from gateway.offering import required
from tests.brokers.contract import (
    FAR,
    SECOND,
    SOON,
    ids,
    is_empty,
    make,
    now_there,
    numbered,
    take,
    take_all,
    take_one,
)
from tests.brokers.kinds import Capability, needs, waits


async def deferred(broker: Any, queue: EntityPath, name: str = "1") -> int:
    """The number of a message that was sent, received and deferred."""
    await broker.send(queue, numbered(name))
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Defer())
    number: int = delivery.sequence_number
    return number


# --- schedules


@needs(Capability.NUMBERED_SCHEDULE | Capability.PEEK)
async def test_a_cancelled_schedule_never_comes(broker, orders):
    due = await now_there(broker, orders) + FAR
    numbers = await required(broker, Schedules).schedule(
        orders, [Message(message_id=name, scheduled=due) for name in ("a", "b", "c")]
    )
    await required(broker, Schedules).cancel_scheduled(orders, numbers[:2])
    left = await required(broker, Peeks).peek(orders, limit=10)

    assert [(each.sequence_number, each.message.message_id) for each in left] == [(numbers[2], "c")]
    assert left[0].state is MessageState.SCHEDULED
    assert (await broker.inspect(orders)).scheduled == 1


@needs(Capability.NUMBERED_SCHEDULE)
async def test_a_schedule_is_cancelled_once_and_all_or_none(broker, orders):
    due = await now_there(broker, orders) + FAR
    one, two = await required(broker, Schedules).schedule(
        orders, [Message(scheduled=due), Message(scheduled=due)]
    )
    await required(broker, Schedules).cancel_scheduled(orders, [one])
    with pytest.raises(MessageNotFound):
        await required(broker, Schedules).cancel_scheduled(orders, [two, one])

    assert (await broker.inspect(orders)).scheduled == 1


@needs(Capability.NUMBERED_SCHEDULE | Capability.PEEK)
async def test_a_message_sent_at_once_is_no_schedule(broker, orders):
    await broker.send(orders, numbered(1))
    [shown] = await required(broker, Peeks).peek(orders)
    with pytest.raises(MessageNotFound):
        await required(broker, Schedules).cancel_scheduled(orders, [shown.sequence_number])
    with pytest.raises(InvalidRequest, match="scheduled"):
        await required(broker, Schedules).schedule(orders, numbered(2))


@needs(Capability.NUMBERED_SCHEDULE)
async def test_a_schedule_is_cancelled_on_its_own_queue_only(broker, orders):
    due = await now_there(broker, orders) + FAR
    other = await make(broker, "other")
    [number] = await required(broker, Schedules).schedule(orders, [Message(scheduled=due)])

    with pytest.raises(MessageNotFound):
        await required(broker, Schedules).cancel_scheduled(other, [number])


# --- deferral


@needs(Capability.DEFERRAL)
async def test_a_deferred_message_comes_by_its_number_only(broker, orders):
    number = await deferred(broker, orders)
    assert await is_empty(broker, orders)
    async with broker.open_receiver(orders) as receiver:
        [delivery] = await required(receiver, ReceivesDeferred).receive_deferred([number])
        await receiver.settle(delivery, Complete())

        assert delivery.sequence_number == number
        assert delivery.message.message_id == "1"
        assert delivery.delivery_count == 2
        assert delivery.state is MessageState.DEFERRED
        with pytest.raises(MessageNotFound):
            await required(receiver, ReceivesDeferred).receive_deferred([number])


@needs(Capability.DEFERRAL | Capability.DEFERRED_COUNT)
async def test_deferred_messages_are_counted(broker, orders):
    await deferred(broker, orders)
    info = await broker.inspect(orders)

    assert (info.active, info.deferred) == (0, 1)


@needs(Capability.DEFERRAL | Capability.PEEK | Capability.COUNTS)
async def test_a_dead_letter_can_be_deferred(broker, orders):
    await broker.send(orders, numbered(1, 2))
    async with broker.open_receiver(orders) as receiver:
        for delivery in await take_all(receiver, 2):
            await receiver.settle(delivery, DeadLetter(reason="bad"))
    async with broker.open_receiver(orders.dead_letter) as receiver:
        one, two = await take_all(receiver, 2)
        number = one.sequence_number
        await receiver.settle(two, Abandon())
        await receiver.settle(one, Defer())
        others = await take(receiver)
        shown = await required(broker, Peeks).peek(orders.dead_letter, limit=10)
        dead = (await broker.inspect(orders)).dead_lettered
        for settlement in (Abandon(), Defer(), Complete()):
            [late] = await required(receiver, ReceivesDeferred).receive_deferred([number])
            await receiver.settle(late, settlement)
    async with broker.open_receiver(orders) as receiver:
        with pytest.raises(MessageNotFound):
            await required(receiver, ReceivesDeferred).receive_deferred([number])

    assert (ids(others), dead) == (["2"], 2)
    assert [each.state for each in shown] == [MessageState.DEFERRED, MessageState.ACTIVE]
    assert (late.message.message_id, late.state) == ("1", MessageState.DEFERRED)
    assert late.message.properties[DEAD_LETTER_REASON] == "bad"


@needs(Capability.DEFERRAL | Capability.PEEK)
async def test_deferred_messages_are_shown_among_the_others(broker, orders):
    number = await deferred(broker, orders)
    await broker.send(orders, [Message(message_id="later")])
    shown = await required(broker, Peeks).peek(orders, limit=10)

    assert shown[0].sequence_number == number
    assert [each.state for each in shown] == [MessageState.DEFERRED, MessageState.ACTIVE]


@needs(Capability.DEFERRAL)
@pytest.mark.parametrize("settlement", [Abandon(), Defer()], ids=repr)
async def test_a_deferred_message_that_is_not_done_stays_deferred(broker, orders, settlement):
    number = await deferred(broker, orders)
    async with broker.open_receiver(orders) as receiver:
        [delivery] = await required(receiver, ReceivesDeferred).receive_deferred([number])
        with pytest.raises(MessageNotFound):
            await required(receiver, ReceivesDeferred).receive_deferred([number])
        await receiver.settle(delivery, settlement)
        [again] = await required(receiver, ReceivesDeferred).receive_deferred([number])

        assert again.delivery_count == 3
    assert await is_empty(broker, orders)


@needs(Capability.DEFERRAL | Capability.DEAD_LETTER | Capability.PEEK)
async def test_a_deferred_message_can_be_dead_lettered(broker, orders):
    number = await deferred(broker, orders)
    async with broker.open_receiver(orders) as receiver:
        [delivery] = await required(receiver, ReceivesDeferred).receive_deferred([number])
        await receiver.settle(delivery, DeadLetter(reason="bad"))
        with pytest.raises(LockLost):
            await receiver.settle(delivery, Complete())
    [dead] = await required(broker, Peeks).peek(orders.dead_letter)

    assert dead.message.properties["DeadLetterReason"] == "bad"


@needs(Capability.DEFERRAL)
async def test_deferred_messages_are_taken_all_or_none(broker, orders):
    one, two = await deferred(broker, orders, "1"), await deferred(broker, orders, "2")
    async with broker.open_receiver(orders) as receiver:
        with pytest.raises(MessageNotFound):
            await required(receiver, ReceivesDeferred).receive_deferred([one, 10**6])
        both = await required(receiver, ReceivesDeferred).receive_deferred([two, one])

        assert ids(both) == ["2", "1"]


@needs(Capability.DEFERRAL)
async def test_a_deferred_message_can_be_received_and_deleted(broker, orders):
    number = await deferred(broker, orders)
    async with broker.open_receiver(orders, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        [delivery] = await required(receiver, ReceivesDeferred).receive_deferred([number])

        assert delivery.lock_token is None
        with pytest.raises(MessageNotFound):
            await required(receiver, ReceivesDeferred).receive_deferred([number])


@needs(Capability.DEFERRAL | Capability.DEAD_LETTER | Capability.DEFERRED_COUNT)
@waits
async def test_a_deferred_message_expires_when_it_is_asked_for(broker):
    queue = await make(broker, dead_lettering_on_expiration=True)
    # Seconds, in which it is received and deferred, on a busy machine, too.
    await broker.send(queue, [Message(message_id="1", time_to_live=SOON)])
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Defer())
        await trio.sleep(SOON.total_seconds() + 0.5)
        before = await broker.inspect(queue)
        with pytest.raises(MessageNotFound):
            await required(receiver, ReceivesDeferred).receive_deferred([delivery.sequence_number])
        after = await broker.inspect(queue)

    assert (before.deferred, before.dead_lettered) == (1, 0)
    assert (after.deferred, after.dead_lettered) == (0, 1)


@needs(Capability.DEFERRAL | Capability.DEAD_LETTER)
async def test_a_dead_letter_is_not_dead_lettered_again(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        await receiver.settle(await take_one(receiver), DeadLetter(reason="bad"))
    async with broker.open_receiver(orders.dead_letter) as receiver:
        dead = await take_one(receiver)
        with pytest.raises(InvalidRequest):
            await receiver.settle(dead, DeadLetter(reason="worse"))
        await receiver.settle(dead, Complete())


# --- duplicates


@needs(Capability.DUPLICATES | Capability.MANAGEMENT)
async def test_a_duplicate_is_taken_and_not_delivered(broker):
    queue = await make(broker, requires_duplicate_detection=True)
    await broker.send(queue, numbered(1))
    await broker.send(queue, numbered(1, 2, 2))
    taken: list[Delivery] = []
    async with broker.open_receiver(queue) as receiver:
        while len(taken) < 2:
            taken += await take(receiver, 5)
        for delivery in taken:
            await receiver.settle(delivery, Complete())
        await broker.send(queue, numbered(1, 3))
        last = await take_one(receiver)

    assert ids([*taken, last]) == ["1", "2", "3"]


@needs(Capability.DUPLICATES | Capability.MANAGEMENT)
@waits
async def test_an_id_may_come_again_after_the_window(broker):
    queue = await make(broker, requires_duplicate_detection=True, duplicate_detection_window=SECOND)
    await broker.send(queue, numbered(1))
    await trio.sleep(1.5)
    await broker.send(queue, numbered(1))

    assert (await broker.inspect(queue)).active == 2


@needs(Capability.DUPLICATES | Capability.NUMBERED_SCHEDULE)
async def test_a_schedule_is_a_duplicate_too(broker):
    queue = await make(broker, requires_duplicate_detection=True)
    due = await now_there(broker, queue) + FAR
    await broker.send(queue, numbered(1))
    await required(broker, Schedules).schedule(queue, [Message(message_id="1", scheduled=due)])
    [number] = await required(broker, Schedules).schedule(
        queue, [Message(message_id="2", scheduled=due)]
    )
    await broker.send(queue, numbered(2))
    info = await broker.inspect(queue)

    assert (info.active, info.scheduled) == (1, 1)
    await required(broker, Schedules).cancel_scheduled(queue, [number])


# --- changes of a queue


@needs(Capability.UPDATE)
async def test_an_update_changes_properties_and_version(broker, orders):
    before = await broker.inspect(orders)
    wanted = QueueProperties(max_delivery_count=3, user_metadata="mine")
    updated = await required(broker, Updates).update_queue(
        orders, wanted, if_version=before.version
    )
    info = await broker.inspect(orders)

    assert updated.properties == info.properties == wanted
    assert info.version != before.version
    assert info.updated >= before.updated == before.created == info.created


@needs(Capability.UPDATE)
async def test_a_stale_update_is_refused(broker, orders):
    before = await broker.inspect(orders)
    wanted = QueueProperties(max_delivery_count=3)
    await required(broker, Updates).update_queue(orders, wanted)
    with pytest.raises(PreconditionFailed):
        await required(broker, Updates).update_queue(
            orders, QueueProperties(), if_version=before.version
        )

    assert (await broker.inspect(orders)).properties == wanted


@needs(Capability.UPDATE)
async def test_an_unknown_queue_is_not_updated(broker, orders):
    with pytest.raises(EntityNotFound):
        await required(broker, Updates).update_queue(EntityPath("nowhere"), QueueProperties())
    with pytest.raises(EntityNotFound):
        await required(broker, Updates).update_queue(orders.dead_letter, QueueProperties())


@needs(Capability.UPDATE)
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("requires_session", "RequiresSession"),
        ("requires_duplicate_detection", "RequiresDuplicateDetection"),
    ],
)
async def test_the_properties_that_a_queue_is_made_with_stay(broker, orders, name, shown):
    before = await broker.inspect(orders)

    with pytest.raises(InvalidRequest, match=shown):
        await required(broker, Updates).update_queue(orders, QueueProperties(**{name: True}))

    assert await broker.inspect(orders) == before


@needs(Capability.UPDATE)
async def test_a_queue_that_is_created_again_is_not_updated_by_a_former_version(broker, orders):
    before = await broker.inspect(orders)
    await broker.delete_queue(orders)
    await trio.sleep(0.01)
    again = await broker.create_queue(orders, QueueProperties(max_delivery_count=7))

    with pytest.raises(PreconditionFailed):
        await required(broker, Updates).update_queue(
            orders, QueueProperties(), if_version=before.version
        )
    assert (await broker.inspect(orders)).properties == again.properties


@needs(Capability.UPDATE)
async def test_a_status_counts_from_its_update_on(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)
        await required(broker, Updates).update_queue(
            orders, QueueProperties(status=EntityStatus.DISABLED)
        )
        with pytest.raises(EntityDisabled):
            await broker.send(orders, numbered(2))
        with pytest.raises(EntityDisabled):
            await take_one(receiver)
        await receiver.settle(delivery, Complete())
    await required(broker, Updates).update_queue(orders, QueueProperties())

    assert await is_empty(broker, orders)


@needs(Capability.UPDATE)
async def test_a_queue_tells_when_it_was_used(broker, orders):
    before = await broker.inspect(orders)
    await broker.send(orders, numbered(1))
    after = await broker.inspect(orders)

    assert before.accessed is None
    assert after.accessed >= after.created
