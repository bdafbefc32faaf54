"""Topics of the namespace are exchanges, and their subscriptions queues."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from pamqp import base, commands

from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unreachable
from gateway.domain.message import Message
from gateway.domain.topics.topology import SubscriptionProperties, TopicInfo, TopicProperties
from gateway.frontends.rabbitmq.known_topology import KnownTopology
from gateway.store.local.memory import MemoryBroker
from tests.frontends.rabbitmq_broker.site import Site, site
from tests.harness.clocks import VirtualClock

EVENTS, AUDIT = EntityPath("events"), EntityPath("events/subscriptions/audit")


@asynccontextmanager
async def with_topic(
    known: KnownTopology | None = None, policies: tuple[AccessPolicy, ...] = ()
) -> AsyncIterator[Site]:
    async with site(known=known, policies=policies) as here:
        await here.broker.create_topic(EVENTS, TopicProperties())
        await here.broker.create_subscription(EVENTS, "audit", SubscriptionProperties())
        yield here


async def test_a_publish_to_a_topic_of_the_namespace_reaches_its_subscriptions(
    autojump_clock,
) -> None:
    async with with_topic() as here:
        client = await here.connect()
        await client.confirms()
        await client.publish(b"x", "orders.new", "events", mandatory=True)
        await client.hears(commands.Basic.Ack)

        assert await here.bodies(AUDIT.name) == [b"x"]


async def test_a_client_that_declares_its_exchange_publishes_to_the_topic_all_the_same(
    autojump_clock,
) -> None:
    """An exchange of the gateway's own would confirm the message, and nobody would get it."""
    async with with_topic() as here:
        client = await here.connect()
        for kind in ("topic", "fanout"):
            declare = commands.Exchange.Declare(exchange="events", exchange_type=kind, durable=True)
            await client.asks(declare, commands.Exchange.DeclareOk)
        await client.publish(b"x", "", "events")

        assert await client.count(AUDIT.name) == 1


async def test_a_subscription_is_a_queue_to_consumers(autojump_clock) -> None:
    async with with_topic() as here:
        await here.broker.send(EVENTS, [Message(body=b"x"), Message(body=b"y")])
        client = await here.connect()
        assert (await client.declares(AUDIT.name)).message_count == 2
        got = await client.gets(AUDIT.name)
        consume = commands.Basic.Consume(queue=AUDIT.name, consumer_tag="workers")
        await client.asks(consume, commands.Basic.ConsumeOk)
        delivered = await client.hears(commands.Basic.Deliver)
        await client.send(commands.Basic.Ack(delivery_tag=2))
        await trio.sleep(1)

        assert got is not None
        assert (got.body, delivered.body) == (b"x", b"y")
        assert (await here.broker.inspect(AUDIT)).active == 0


async def test_an_exchange_may_be_bound_to_a_topic(autojump_clock) -> None:
    async with with_topic() as here:
        client = await here.connect()
        bind = commands.Exchange.Bind(destination="events", source="amq.topic", routing_key="a.#")
        await client.asks(bind, commands.Exchange.BindOk)
        for key in ("a.b", "other"):
            await client.publish(key.encode(), key, "amq.topic")

        assert await client.count(AUDIT.name) == 1
        assert await here.bodies(AUDIT.name) == [b"a.b"]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (commands.Queue.Bind(queue="orders", exchange="events"), "a binding to 'events', a topic"),
        (commands.Queue.Bind(queue=AUDIT.name, exchange="amq.fanout"), "a subscription of the"),
        (commands.Queue.Delete(queue=AUDIT.name), "a subscription of the namespace"),
        (commands.Queue.Declare(queue=AUDIT.name, arguments={"x-message-ttl": 1}), "arguments of"),
        (commands.Exchange.Delete(exchange="events"), "a topic of the namespace"),
    ],
    ids=["a binding of a topic", "a binding of a subscription", "a queue", "terms", "an exchange"],
)
async def test_a_topic_is_changed_by_its_namespace_alone(
    autojump_clock, request_: base.Frame, text: str
) -> None:
    async with with_topic() as here:
        client = await here.connect()
        await client.declares("orders")
        passive = commands.Exchange.Declare(exchange="events", passive=True)
        await client.asks(passive, commands.Exchange.DeclareOk)
        close = await client.asks(request_, commands.Connection.Close)

        assert (close.reply_code, text in close.reply_text) == (540, True), close.reply_text
        assert (await here.broker.inspect_subscription(EVENTS, "audit")).properties


async def test_a_topic_that_is_gone_is_no_exchange(autojump_clock) -> None:
    async with with_topic() as here:
        client = await here.connect()
        await client.publish(b"x", "", "events")
        await client.count(AUDIT.name)
        await here.broker.delete_topic(EVENTS)
        await client.publish(b"y", "", "events", mandatory=True)
        await client.hears(commands.Basic.Return)
        await client.publish(b"z", "", "events")

        assert (await client.hears(commands.Channel.Close)).method.reply_code == 404


async def test_a_topic_is_known_after_a_restart_in_an_outage(autojump_clock) -> None:
    known = KnownTopology()
    async with with_topic(known) as here:
        client = await here.connect()
        await client.publish(b"x", "", "events")
        await client.count(AUDIT.name)

    async with site(known=known) as again:  # whose namespace can't say that it has the topic
        client = await again.connect()
        declare = commands.Exchange.Declare(exchange="events", passive=True)
        await client.asks(declare, commands.Exchange.DeclareOk)


class Away(MemoryBroker):
    """A namespace that doesn't answer."""

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        raise Unreachable(f"no answer about {topic}")


async def test_an_exchange_that_may_be_a_topic_is_not_made_in_an_outage(autojump_clock) -> None:
    async with site(broker=Away(VirtualClock(), random.Random(1))) as here:
        client = await here.connect()
        close = await client.asks(
            commands.Exchange.Declare(exchange="events"), commands.Connection.Close
        )

        assert (close.reply_code, "events" in here.vhost.table.exchanges) == (320, False)


async def test_a_publish_to_a_topic_needs_the_right_to_send_to_it(autojump_clock) -> None:
    sends = frozenset({Right.SEND})
    policies = [
        AccessPolicy(name=name, keys=("key",), rights=sends, entities=(name,))
        for name in ("events", "orders")
    ]
    async with with_topic(policies=tuple(policies)) as here:
        allowed = await here.connect(user="events", password="key")
        await allowed.confirms()
        await allowed.publish(b"x", "", "events")
        await allowed.hears(commands.Basic.Ack)
        other = await here.connect(user="orders", password="key")
        await other.publish(b"x", "", "events")

        assert (await other.hears(commands.Channel.Close)).method.reply_code == 403
