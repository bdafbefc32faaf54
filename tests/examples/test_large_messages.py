"""The example of an interceptor that reports large messages, and lets each send go on."""

import random

from pairgate_beanstalkd.large_messages import LargeMessageInterceptor, LargeMessageSent

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.interception.broker import InterceptedBroker
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.crowds import Repeats
from gateway.wire.amqp.message import encoded_size
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import Events

ORDERS = EntityPath("orders")
SMALL, LARGE = Message(body=bytes(90)), Message(body=bytes(200))


async def test_each_send_with_a_message_above_the_limit_is_told_and_goes_on() -> None:
    events, store = Events(), MemoryBroker(VirtualClock(), random.Random(0))
    limit = encoded_size(SMALL)
    broker = InterceptedBroker(store, [LargeMessageInterceptor("tubes", limit, events)])
    await broker.create_queue(ORDERS, QueueProperties())

    for batch in ([SMALL], [SMALL, LARGE], [LARGE]):
        await broker.send(ORDERS, batch)

    event = LargeMessageSent(namespace="tubes", entity="orders", bytes=encoded_size(LARGE))
    assert events.of(LargeMessageSent) == [event, event]
    assert (await store.inspect(ORDERS)).active == 4


def test_further_large_messages_of_the_same_queue_are_counted() -> None:
    repeats = Repeats(10.0)
    orders, bills = (
        LargeMessageSent(namespace="tubes", entity=name, bytes=70_000)
        for name in ("orders", "bills")
    )

    assert [repeats.pass_on(each, 0.0) for each in (orders, orders, bills)] == [True, False, True]
    assert list(repeats.counted(10.0)) == [(orders, 1)]
