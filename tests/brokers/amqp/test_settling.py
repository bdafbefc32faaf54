"""Each answer of a broker to a settlement has its meaning: on a socket, with a script."""

from functools import partial

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import LockLost, OutcomeUnknown
from gateway.domain.message import Complete, DeadLetter, Delivery, Message
from gateway.wire.amqp.events import (
    ACCEPTED,
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
from tests.harness.steps import steps_of_tasks

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


async def test_settlements_that_only_wait_for_answers_take_one_step_after_these():
    async with scripted() as server, client(server.port) as broker:
        server.on_attach, server.on_settle = partial(hand_out, count=2), confirm
        async with broker.open_receiver(ORDERS) as receiver:
            settlements = [(each, Complete()) for each in await take_all(receiver, 2)]

            with steps_of_tasks() as steps:
                verdicts = await receiver.settle_many(settlements)

    assert verdicts == [None, None]
    assert steps[trio.lowlevel.current_task().name] == 1


async def test_all_outcomes_of_a_step_are_written_before_the_first_answer():
    """The peer confirms none of them until it has all, the second one with another outcome."""
    asked: list[DispositionReceived] = []

    def confirm_all_at_last(served: Served, event: DispositionReceived) -> None:
        asked.append(event)
        if len(asked) == 3:
            for each, state in zip(asked, (ACCEPTED, RELEASED, ACCEPTED), strict=True):
                served.engine.settle(each.delivery, state)

    async with scripted() as server, client(server.port) as broker:
        server.on_attach, server.on_settle = partial(hand_out, count=3), confirm_all_at_last
        async with broker.open_receiver(ORDERS) as receiver:
            deliveries = await take_all(receiver, 3)
            verdicts = await receiver.settle_many([(each, Complete()) for each in deliveries])

    assert [type(verdict) for verdict in verdicts] == [type(None), LockLost, type(None)]


async def test_a_link_that_ends_leaves_each_settlement_of_a_step_in_doubt():
    def end(served: Served, event: DispositionReceived) -> None:
        served.engine.detach(event.link, AmqpError(condition="amqp:internal-error", description=""))

    async with scripted() as server, client(server.port) as broker:
        server.on_attach, server.on_settle = partial(hand_out, count=2), end
        async with broker.open_receiver(ORDERS) as receiver:
            settlements = [(each, Complete()) for each in await take_all(receiver, 2)]
            first = await receiver.settle_many(settlements)
            again = await receiver.settle_many(settlements)

    assert [type(verdict) for verdict in (*first, *again)] == [OutcomeUnknown] * 4


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
