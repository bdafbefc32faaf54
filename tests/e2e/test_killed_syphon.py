"""
A gateway that is killed in an outage: the messages that its syphon had locked still come home.
"""

import re
from collections.abc import Callable
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.brokers.servicebus.broker import ServiceBusRestBroker
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

MESSAGES = 20
ORDERS = EntityPath("orders")
QUEUE = backlog.queue_name("east", 0)
# So that it is killed amid its work, although the machine may stall.
SLOWLY = "[pairing.syphon]\nmax_drain_rate = 1.0\n"
LONG = timedelta(minutes=5)  # longer than this test waits
REST_URL = re.compile(r"servicebus\+http://(\w+)@([0-9.:]+)")
AMQP_URL = r"servicebus:Endpoint=sb://\2/;SharedAccessKeyName=\1;UseDevelopmentEmulator=true"


@pytest.mark.parametrize("is_amqp", [True, False], ids=["amqp", "rest"])
async def test_a_message_that_a_killed_syphon_had_locked_comes_home(
    gateways: Gateways, is_amqp: bool
) -> None:
    """Over AMQP at once, however long its locks are; over REST after a lock, which is short."""
    config = broker_config().replace('"service-bus-http"', '"service-bus"')
    primary = await gateways.start(config, name="primary")
    secondary = await gateways.start(config, name="secondary")
    lock = LONG if is_amqp else backlog.QUEUE_PROPERTIES.lock_duration
    async with client(primary) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
    async with client(secondary) as broker:
        await broker.create_queue(QUEUE, attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=lock))
    pair = pair_config(primary.address, secondary.address, backlog_queues=1) + SLOWLY
    gateway = await gateways.start(
        REST_URL.sub(AMQP_URL, pair) if is_amqp else pair, name="gateway"
    )

    await primary.kill()
    for number in range(MESSAGES):
        assert await send(gateway.address, "orders", b"%d" % number) == (201, "backlog")
    await primary.start()
    await seen(primary, ORDERS, lambda messages: messages >= 1)
    async with client(secondary) as broker:
        with trio.fail_after(PATIENCE):
            while not await most_deliveries(broker):  # noqa: ASYNC110 of another process
                await trio.sleep(0.05)
        await gateway.kill()
        assert await most_deliveries(broker) >= 1, "some are in its hands"
    await gateway.start()

    await seen(secondary, QUEUE, lambda messages: messages == 0)
    await seen(primary, ORDERS, lambda messages: messages >= MESSAGES)
    assert gateway.count("syphon_stalled") == 0


async def seen(process: GatewayProcess, queue: EntityPath, rule: Callable[[int], bool]) -> None:
    """Return when the rule holds for the number of messages in the queue."""
    async with client(process) as broker:
        with trio.fail_after(PATIENCE):
            while not rule((await broker.inspect(queue)).active or 0):  # noqa: ASYNC110 another's
                await trio.sleep(0.05)


async def most_deliveries(secondary: ServiceBusRestBroker) -> int:
    """The most deliveries that a message has had which is at the backlog."""
    left = await secondary.peek(QUEUE, from_sequence=0, limit=MESSAGES)
    return max((each.delivery_count for each in left), default=0)
