"""RabbitMQ's own client, unchanged, through a gateway whose namespaces are no RabbitMQ."""

from typing import Any

import pika
import pytest
import trio

from gateway.brokers.servicebus.broker import ServiceBusRestOptions, open_namespace
from gateway.domain.entity import EntityPath
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from tests.e2e.processes import (
    START_SECONDS,
    GatewayProcess,
    Gateways,
    broker_config,
    pair_config,
)
from tests.e2e.rest import KEY, KEY_NAME
from tests.harness.blocking import blocking, pika_connection
from tests.harness.certificates import now
from tests.pages import blocks

pytestmark = [pytest.mark.live, pytest.mark.slow]

QUEUE = "orders"
BEFORE = 20  # messages
HELD = 3  # messages that a client has without a settlement
EMULATOR = (
    "servicebus:Endpoint=sb://{address}/;SharedAccessKeyName=RootManageSharedAccessKey;"
    "UseDevelopmentEmulator=true"
)


def connected(gateway: GatewayProcess) -> pika.BlockingConnection:
    return pika_connection(gateway.port)


def rabbitmq_pair(primary: GatewayProcess, secondary: GatewayProcess, *, over_amqp: bool) -> str:
    text = pair_config(primary.address, secondary.address)
    if over_amqp:
        for each in (primary, secondary):
            url = f"servicebus+http://RootManageSharedAccessKey@{each.address}"
            text = text.replace(url, EMULATOR.format(address=each.address))
    return text.replace('protocol = "service-bus-http"', 'protocol = "rabbitmq"')


class Publisher:
    """Publishes with confirms until it is told to end, each message with all kinds of values."""

    def __init__(self, gateway: GatewayProcess, exchange: str = "") -> None:
        self.gateway = gateway
        self.exchange = exchange
        self.sent = 0
        self.is_ending = False
        self.error = ""

    def run(self) -> None:
        connection = connected(self.gateway)
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            while not self.is_ending:
                number = self.sent
                headers = {"number": number, "deep": {"list": [1, None, "two"]}}
                properties = pika.BasicProperties(headers=headers, content_type="text/plain")
                body = b"%d" % number
                channel.basic_publish(self.exchange, QUEUE, body, properties, mandatory=True)
                self.sent += 1
        except pika.exceptions.AMQPError as error:
            self.error = repr(error)
        else:
            connection.close()

    async def until(self, count: int) -> None:
        with trio.fail_after(START_SECONDS):
            while self.sent < count and not self.error:  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert not self.error


def declare(gateway: GatewayProcess) -> None:
    connection = connected(gateway)
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.exchange_declare("events", "topic", durable=True)
    channel.queue_bind(QUEUE, "events", "orders.#")
    connection.close()


def consumed(gateway: GatewayProcess, count: int, queue: str = QUEUE) -> dict[bytes, Any]:
    """Consume until as many different messages have come."""
    connection = connected(gateway)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=50)
    found: dict[bytes, Any] = {}
    for method, properties, body in channel.consume(queue, inactivity_timeout=START_SECONDS):
        if method is None:
            break
        channel.basic_ack(method.delivery_tag)
        found[body] = properties
        if len(found) == count:
            break
    connection.close()
    return found


async def publish_through_outage(
    publisher: Publisher, gateway: GatewayProcess, primary: GatewayProcess
) -> None:
    """Publish before the primary is killed, meanwhile, and when it's back."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, publisher.run)
        await publisher.until(BEFORE)
        await primary.kill()
        await gateway.seen("entity_state_changed")
        await publisher.until(publisher.sent + BEFORE)
        await primary.start()
        await gateway.until(lambda: gateway.count("outage_over") > 0, START_SECONDS)
        await publisher.until(publisher.sent + BEFORE)
        publisher.is_ending = True


@pytest.mark.parametrize("over_amqp", [False, True], ids=["another Pairgate", "Service Bus's AMQP"])
async def test_clients_of_rabbitmq_do_not_notice_the_outage_of_another_kind_of_namespace(
    gateways: Gateways, over_amqp: bool
) -> None:
    served = broker_config()
    if over_amqp:
        served = served.replace('"service-bus-http"', '"service-bus"')
    primary = await gateways.start(served, name="primary")
    secondary = await gateways.start(served, name="secondary")
    config = rabbitmq_pair(primary, secondary, over_amqp=over_amqp)
    gateway = await gateways.start(config, name="gateway")
    await blocking(declare, gateway)
    publisher = Publisher(gateway)

    await publish_through_outage(publisher, gateway, primary)
    found = await blocking(consumed, gateway, publisher.sent)

    assert publisher.error == ""
    assert set(found) == {b"%d" % number for number in range(publisher.sent)}
    for body, properties in found.items():
        assert properties.headers == {"number": int(body), "deep": {"list": [1, None, "two"]}}
        assert properties.content_type == "text/plain"


async def test_a_topic_of_the_namespace_is_an_exchange_through_its_outage(
    gateways: Gateways,
) -> None:
    primary = await gateways.start(broker_config(), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    options = ServiceBusRestOptions(key=KEY)
    address = f"//{KEY_NAME}@{primary.address}"
    async with open_namespace("servicebus+http", address, options, now) as there:
        await there.create_topic(EntityPath("events"), TopicProperties())
        await there.create_subscription(EntityPath("events"), "all", SubscriptionProperties())
    config = rabbitmq_pair(primary, secondary, over_amqp=False)
    gateway = await gateways.start(config, name="gateway")
    publisher = Publisher(gateway, "events")

    await publish_through_outage(publisher, gateway, primary)
    found = await blocking(consumed, gateway, publisher.sent, "events/subscriptions/all")

    assert publisher.error == ""
    assert set(found) == {b"%d" % number for number in range(publisher.sent)}


async def test_confirmed_messages_outlive_a_killed_gateway(gateways: Gateways) -> None:
    config = broker_config().replace('"service-bus-http"', '"rabbitmq"')
    gateway = await gateways.start(config, name="gateway")
    await blocking(declare, gateway)
    publisher = Publisher(gateway)

    def hold() -> tuple[pika.BlockingConnection, list[bytes]]:
        connection = connected(gateway)
        channel = connection.channel()
        return connection, [channel.basic_get(QUEUE)[2] for _ in range(HELD)]

    def first() -> list[bytes]:
        connection = connected(gateway)
        channel = connection.channel()
        found = [channel.basic_get(QUEUE) for _ in range(HELD + 1)]
        connection.close()
        return [body for _, _, body in found]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, publisher.run)
        await publisher.until(BEFORE)
        connection, held = await blocking(hold)
        await publisher.until(publisher.sent + BEFORE)
        await gateway.kill()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        await blocking(connection.process_data_events, START_SECONDS)
    await gateway.start()
    again = await blocking(first)
    found = await blocking(consumed, gateway, publisher.sent)

    assert publisher.error != ""
    assert again == [*held, b"%d" % HELD]
    assert set(found) >= {b"%d" % number for number in range(publisher.sent)}


async def test_exchanges_outlive_a_killed_gateway(gateways: Gateways) -> None:
    config = broker_config().replace('"service-bus-http"', '"rabbitmq"')
    gateway = await gateways.start(config, name="gateway")
    await blocking(declare, gateway)
    await gateway.kill()
    await gateway.start()

    def publish() -> None:
        connection = connected(gateway)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("events", "orders.new", b"x", mandatory=True)
        connection.close()

    await blocking(publish)

    assert list(await blocking(consumed, gateway, 1)) == [b"x"]


async def test_the_program_of_the_page_runs_with_its_configuration(gateways: Gateways) -> None:
    [config] = blocks("docs/how-to/connect/serve-rabbitmq-clients.md", "toml")
    [program] = blocks("docs/how-to/connect/serve-rabbitmq-clients.md", "python")
    gateway = await gateways.start(config.replace(":5673", ":0"), name="gateway")
    names: dict[str, Any] = {}

    def run() -> Any:
        exec(program.replace("5673", str(gateway.port)), names)
        got = names["channel"].basic_get("orders", auto_ack=True)
        names["connection"].close()
        return got

    method, _, body = await blocking(run)

    assert (body, method.exchange, method.routing_key) == (b"hello", "events", "orders.new")
