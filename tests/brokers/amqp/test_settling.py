"""Each answer of a broker to a settlement has its meaning: on a socket, with a script."""

from functools import partial

import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.errors import LockLost
from gateway.domain.message import Complete, DeadLetter, Delivery, Message
from gateway.wire.amqp.events import (
    RELEASED,
    AmqpError,
    DeliveryId,
    DispositionReceived,
    LinkAttached,
    Modified,
    Rejected,
)
from gateway.wire.amqp.servicebus.deliveries import encode_delivery
from tests.brokers.amqp.doorkeeper import guarded
from tests.brokers.amqp.scripted import Served, client, confirm, scripted, take
from tests.brokers.contract import take_all

ORDERS = EntityPath("orders")
TOKEN = bytes(range(16))
DELIVERY = Delivery(message=Message(body=b"x"), sequence_number=1)


def hand_out(served: Served, attached: LinkAttached, count: int = 1) -> None:
    take(served, attached)
    if attached.we_send and attached.source is not None and attached.source.address == "orders":
        for number in range(count):
            tag = bytes([number, *TOKEN[1:]])
            served.engine.send(attached.link, tag, encode_delivery(DELIVERY))


@pytest.mark.parametrize("state", [RELEASED, Modified(delivery_failed=True), Rejected()], ids=repr)
async def test_a_delivery_that_the_broker_had_taken_back_is_not_completed(state):
    def take_back(served: Served, event: DispositionReceived) -> None:
        served.engine.settle(event.delivery, state)

    async with scripted() as server, client(server.port) as broker:
        server.on_attach, server.on_settle = hand_out, take_back
        async with broker.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)

            with pytest.raises(LockLost):
                await receiver.settle(delivery, Complete())


async def test_a_rejection_that_is_said_back_is_no_error():
    async with guarded() as (doorkeeper, broker):
        doorkeeper.server.on_attach = hand_out
        async with broker.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)
            await receiver.settle(delivery, DeadLetter(reason="bad"))

        told = doorkeeper.server.told
        [asked] = [each for each in told if isinstance(each, DispositionReceived)][-1:]
        assert isinstance(asked.state, Rejected)


async def test_a_rejection_for_another_reason_is_one():
    def refuse(served: Served, event: DispositionReceived) -> None:
        error = AmqpError(condition="com.microsoft:message-lock-lost", description="too late")
        served.engine.settle(event.delivery, Rejected(error=error))

    async with guarded() as (doorkeeper, broker):
        doorkeeper.server.on_attach, doorkeeper.server.on_settle = hand_out, refuse
        async with broker.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)

            with pytest.raises(LockLost):
                await receiver.settle(delivery, DeadLetter(reason="bad"))


async def test_unsettled_are_given_back_in_the_order_in_which_they_came():
    """Ten times, as any order is the right one at times."""
    given: list[DeliveryId] = []

    def take_back(served: Served, event: DispositionReceived) -> None:
        assert event.state == Modified(delivery_failed=True)
        given.append(event.delivery)
        confirm(served, event)

    async with scripted() as server, client(server.port) as broker:
        server.on_attach, server.on_settle = partial(hand_out, count=3), take_back
        for _ in range(10):
            async with broker.open_receiver(ORDERS) as receiver:
                await take_all(receiver, 3)

    assert len(given) == 30
    assert given == sorted(given)
