"""The contract of brokers that can change a message's properties while it is settled."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.capabilities import Peeks, ReceivesDeferred, Sessions
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest, LockLost, MessageTooLarge
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Kind,
    Message,
    Settlement,
    Typed,
    ValueBody,
    symbol,
)
from gateway.offering import required
from tests.brokers.contract import make, take_one
from tests.brokers.kinds import Capability, needs

BODY = ValueBody([symbol("s"), Typed(Kind.DECIMAL128, bytes(16))])
SENT = Message(
    message_id="1",
    body=BODY,
    properties={"old": Typed(Kind.INT, 1), "kept": datetime(2026, 11, 21, tzinfo=UTC)},
    subject="s",
)
CHANGES = {"old": "new", "added": Typed(Kind.USHORT, 2), "map": {"a": [1, None]}}
AMENDED = {**SENT.properties, **CHANGES}


async def settled(broker: Any, queue: EntityPath, settlement: Settlement) -> Delivery:
    """A message that was sent, received, and settled like this."""
    await broker.send(queue, [SENT])
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, settlement)
    return delivery


@needs(Capability.AMENDMENT)
async def test_an_abandoned_message_comes_with_its_new_properties(broker, orders):
    await settled(broker, orders, Abandon(properties=CHANGES))
    async with broker.open_receiver(orders) as receiver:
        again = await take_one(receiver)
        await receiver.settle(again, Complete())

    assert again.message.properties == AMENDED
    assert (again.message.body, again.message.subject) == (BODY, "s")
    assert again.delivery_count == 2


@needs(Capability.AMENDMENT)
async def test_a_message_is_amended_again_and_again(broker, orders):
    await settled(broker, orders, Abandon(properties={"a": 1}))
    async with broker.open_receiver(orders) as receiver:
        for change in ({"b": 2}, {"a": 3}):
            await receiver.settle(await take_one(receiver), Abandon(properties=change))

    [shown] = await required(broker, Peeks).peek(orders)
    assert shown.message.properties == {**SENT.properties, "a": 3, "b": 2}


@needs(Capability.AMENDMENT)
async def test_a_deferred_message_has_its_new_properties(broker, orders):
    delivery = await settled(broker, orders, Defer(properties=CHANGES))
    async with broker.open_receiver(orders) as receiver:
        [deferred] = await required(receiver, ReceivesDeferred).receive_deferred(
            [delivery.sequence_number]
        )
        await receiver.settle(deferred, Complete())

    assert deferred.message.properties == AMENDED


@needs(Capability.AMENDMENT)
async def test_a_dead_letter_has_its_new_properties_besides_the_reason(broker, orders):
    await settled(broker, orders, DeadLetter(reason="r", description="d", properties=CHANGES))
    async with broker.open_receiver(orders.dead_letter) as receiver:
        dead = await take_one(receiver)
        await receiver.settle(dead, Complete())

    why = {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}
    assert dead.message.properties == {**AMENDED, **why}


@needs(Capability.AMENDMENT)
async def test_a_dead_letter_that_is_forwarded_has_its_new_properties(broker):
    await make(broker, "graves")
    orders = await make(broker, "orders", forward_dead_lettered_messages_to="graves")
    await settled(broker, orders, DeadLetter(reason="r", properties=CHANGES))

    [shown] = await required(broker, Peeks).peek(EntityPath("graves"))
    assert shown.message.properties["added"] == CHANGES["added"]


@needs(Capability.AMENDMENT)
async def test_the_queue_knows_how_large_it_is_afterwards(broker, orders):
    await settled(broker, orders, Abandon(properties={"added": "x" * 1000}))
    larger = (await broker.inspect(orders)).size
    async with broker.open_receiver(orders) as receiver:
        await receiver.settle(await take_one(receiver), Abandon(properties={"added": ""}))
        smaller = (await broker.inspect(orders)).size
        await receiver.settle(await take_one(receiver), Complete())

    assert larger - smaller >= 1000
    assert (await broker.inspect(orders)).size == 0


@needs(Capability.AMENDMENT)
@pytest.mark.parametrize(
    ("properties", "error"),
    [({"n": 2**70}, InvalidRequest), ({"n": "x" * 2**21}, MessageTooLarge)],
)
async def test_a_message_that_can_not_be_amended_stays_locked_as_it_is(
    broker, orders, properties, error
):
    await broker.send(orders, [SENT])
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)
        with pytest.raises(error):
            await receiver.settle(delivery, DeadLetter(reason="r", properties=properties))
        await receiver.settle(delivery, Abandon())

    [shown] = await required(broker, Peeks).peek(orders)
    assert shown.message == SENT


@needs(Capability.AMENDMENT)
async def test_a_refused_settlement_amends_nothing(broker, orders):
    delivery = await settled(broker, orders, Abandon())
    async with broker.open_receiver(orders) as receiver:
        again = await take_one(receiver)
        with pytest.raises(LockLost):
            await receiver.settle(delivery, Abandon(properties=CHANGES))
        with pytest.raises(InvalidRequest, match="reason"):
            await receiver.settle(again, DeadLetter(reason="x" * 5000, properties=CHANGES))

        [shown] = await required(broker, Peeks).peek(orders)
        assert shown.message == SENT


@needs(Capability.AMENDMENT | Capability.SESSIONS)
async def test_a_message_of_a_session_is_amended_too(broker):
    orders = EntityPath("orders")
    await broker.create_queue(orders, QueueProperties(requires_session=True))
    await broker.send(orders, [Message(session_id="s", properties={"old": 1})])
    async with required(broker, Sessions).open_session(orders, "s") as receiver:
        await receiver.settle(await take_one(receiver), Abandon(properties={"old": 2}))

        assert (await take_one(receiver)).message.properties == {"old": 2}
