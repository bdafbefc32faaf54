"""Links on which clients send."""

from gateway.domain.message import Message
from gateway.wire.amqp import events as amqp
from tests.frontends.rest_client import ORDERS


async def test_a_message_is_accepted_once_the_broker_has_it(house, sdk):
    link = await sdk.sender()

    outcome = await sdk.send(link, Message(message_id="a", body=b"hello"))

    (kept,) = await house.broker.peek(ORDERS, limit=10)
    assert outcome == amqp.ACCEPTED
    assert (kept.message.message_id, kept.message.body) == ("a", b"hello")
