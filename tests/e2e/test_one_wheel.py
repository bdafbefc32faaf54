"""Maintenance of a primary whose backlog syphons of their own move: the primary is spared."""

import json
import re

import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from tests.e2e.commands import ADMIN, get, with_fixed_port
from tests.e2e.control import order, under_load
from tests.e2e.installation import client
from tests.e2e.processes import PATIENT, Gateways, broker_config, pair_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ORDERS = EntityPath("orders")
REST_URL = re.compile(r"servicebus\+http://(\w+)@([0-9.:]+)")
AMQP_URL = r"servicebus:Endpoint=sb://\2/;SharedAccessKeyName=\1;UseDevelopmentEmulator=true"
FOLLOWED = 3.0  # seconds: a syphon reads every two
PATIENCE = 60.0


async def test_nothing_reaches_the_primary_between_failover_and_failback(
    gateways: Gateways,
) -> None:
    config = broker_config().replace('"service-bus-http"', '"service-bus"')
    primary = await gateways.start(config, name="primary")
    secondary = await gateways.start(config, name="secondary")
    async with client(primary) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
    async with client(secondary) as broker:
        for queue in (backlog.queue_name("east", 0), backlog.heartbeat_queue("east")):
            await broker.create_queue(queue, QueueProperties())
    pair = REST_URL.sub(
        AMQP_URL,
        pair_config(
            primary.address, secondary.address, backlog_queues=1, enable_syphon=False, **PATIENT
        ),
    )
    gateway = await gateways.start(pair + ADMIN, name="gateway")
    await with_fixed_port(gateway)
    alone, _, _ = pair.partition("[[endpoints]]")
    syphons = [
        await gateways.start(alone, name=name, command=("syphon",)) for name in ("one", "other")
    ]

    async def on_primary() -> int:
        async with client(primary) as broker:
            return (await broker.inspect(ORDERS)).active or 0

    async with under_load(gateway) as load:
        await load.more("primary")
        over = await order(gateway, "failover", targets=["*"], reason="maintenance")
        await trio.sleep(FOLLOWED)
        before = await on_primary()
        await load.more("backlog", 30)
        for syphon in syphons:
            await syphon.kill()
            await syphon.start()
            await load.more("backlog", 30)
    await gateway.kill()
    await gateway.start()
    async with under_load(gateway) as later:
        await later.more("backlog", 30)
        await trio.sleep(FOLLOWED)
        during = await on_primary()
        _, body = await trio.to_thread.run_sync(get, gateway.ports[1], "/status")
        await order(gateway, "failback", targets=["*"])
        await later.more("primary")
    accepted = len(load.accepted) + len(later.accepted)
    with trio.fail_after(PATIENCE):
        while True:
            if await on_primary() >= accepted:
                break
            await trio.sleep(0.2)

    assert over["after"]["not_reached"] == []
    kinds = [each["name"].partition(" on ")[0] for each in json.loads(body)["pair"]["processes"]]
    assert {*kinds} == {"serve", "syphon"}  # also those that were killed a moment ago
    assert during == before
    assert sum(each.count("syphoned") for each in syphons) > 0
