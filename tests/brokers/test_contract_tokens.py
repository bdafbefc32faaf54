"""The contract of receivers with `SettlesByToken`: any process settles by the token."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.capabilities import LONGEST_TOKEN, SettlesByToken
from gateway.domain.errors import LockLost
from gateway.domain.message import Abandon, Complete, Message
from gateway.offering import required
from tests.brokers.contract import is_empty, take_one
from tests.brokers.kinds import Capability, needs


def text(body: bytes) -> Message:
    """A message that each kind of namespace has as a text alone."""
    date = datetime(2026, 11, 26, tzinfo=UTC)
    return Message(message_id=str(uuid.uuid4()), body=body, creation_time=date)


async def handed_out(broker: Any, queue: Any) -> bytes:
    """The token of the next message, whose receiver is gone."""
    async with broker.open_receiver(queue) as receiver:
        token = required(receiver, SettlesByToken).hand_out(await take_one(receiver))
    assert token is not None
    assert len(token) <= LONGEST_TOKEN
    return token


@needs(Capability.TOKENS)
async def test_another_receiver_completes_by_the_token_of_one_that_is_gone(broker, orders):
    await broker.send(orders, [text(b"one")])
    token = await handed_out(broker, orders)
    async with broker.open_receiver(orders) as receiver:
        adopts = required(receiver, SettlesByToken)
        with adopts.adopt(token) as delivery:
            await receiver.settle(delivery, Complete())
        with adopts.adopt(token) as delivery, pytest.raises(LockLost):
            await receiver.settle(delivery, Complete())

    assert await is_empty(broker, orders)


@needs(Capability.TOKENS)
async def test_another_receiver_renews_and_abandons_by_the_present_token(broker, orders):
    await broker.send(orders, [text(b"one")])
    token = await handed_out(broker, orders)
    async with broker.open_receiver(orders) as receiver:
        adopts = required(receiver, SettlesByToken)
        with adopts.adopt(token) as delivery:
            await receiver.renew(delivery)
            renewed = adopts.hand_out(delivery)
        assert renewed is not None
        assert (renewed == token) is adopts.renews_in_place
        if renewed != token:
            with adopts.adopt(token) as delivery, pytest.raises(LockLost):
                await receiver.settle(delivery, Complete())
    async with broker.open_receiver(orders) as receiver:
        with required(receiver, SettlesByToken).adopt(renewed) as delivery:
            await receiver.settle(delivery, Abandon())
        again = await take_one(receiver)
        await receiver.settle(again, Complete())

    assert (again.message.body, again.delivery_count) == (b"one", 2)


@needs(Capability.TOKENS)
@pytest.mark.parametrize("token", [b"", b"Q", b"S", b"other", b"Qa\n", b"S" + bytes(11)])
async def test_a_token_of_nobody_settles_nothing(broker, orders, token):
    async with broker.open_receiver(orders) as receiver:
        adopts = required(receiver, SettlesByToken)
        with pytest.raises(LockLost), adopts.adopt(token) as delivery:
            await receiver.settle(delivery, Complete())
