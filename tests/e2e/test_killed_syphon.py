"""
A gateway that is killed in an outage: the messages that its syphon had locked still come home.
"""

import re
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.ports import Broker
from tests.e2e.installation import client
from tests.e2e.processes import Gateways, broker_config, pair_config
from tests.e2e.rest import send

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MESSAGES = 20
ORDERS = EntityPath("orders")
QUEUE = backlog.queue_name("east", 0)
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
    pair = pair_config(primary.address, secondary.address, backlog_queues=1)
    gateway = await gateways.start(
        REST_URL.sub(AMQP_URL, pair) if is_amqp else pair, name="gateway"
    )

    await primary.kill()
    for number in range(MESSAGES):
        assert await send(gateway.address, "orders", b"%d" % number) == (201, "backlog")
    await gateway.seen("namespace_lost")
    await gateway.kill()
    await gateway.start()
    await primary.start()

    async with client(primary) as broker:
        with trio.fail_after(60.0):
            while True:
                if await depth(broker, ORDERS) >= MESSAGES:
                    break
                await trio.sleep(0.2)
    async with client(secondary) as broker:
        assert await depth(broker, QUEUE) == 0
    assert gateway.count("syphon_stalled") == 0


async def depth(broker: Broker, queue: EntityPath) -> int:
    return (await broker.inspect(queue)).active or 0
