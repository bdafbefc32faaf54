"""Pairs of two kinds, as `conf/examples` has them: the primary is killed while the SDK sends."""

import random
from datetime import UTC, datetime

import pytest

from gateway.checker.verdict import Verdict
from gateway.store.embedded.broker import EmbeddedBroker
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config
from tests.e2e.rabbitmq_nodes import VHOST, ExampleNodes, Listed
from tests.e2e.rabbitmq_pair import ORDERS, Installation, check, example, judged, provision, sending

pytestmark = [pytest.mark.live, pytest.mark.slow]

SOME = 50  # messages
ON_THEIR_WAY = 8  # when the primary is killed: nobody knows what became of them


async def test_a_store_keeps_what_a_killed_rabbitmq_can_not_take(
    rabbits: ExampleNodes, gateways: Gateways
) -> None:
    north = rabbits.north
    await north.prepare("rabbitmq-primary-definitions.json")
    address = f"rabbitmq://gateway@127.0.0.1:{north.node.port}/{VHOST}"
    shipped = "rabbitmqs://gateway@rabbit-north.example.net/pairgate"
    config = example("rabbitmq-primary-embedded-secondary.toml", "rabbit-north", {shipped: address})
    await provision(gateways, config)
    await check(gateways, config)
    await north.keep_queues()
    gateway = await gateways.start(config, name="gateway")
    async with sending(gateway) as run:
        await run.senders.acknowledge(SOME)
        await north.node.kill()
        await run.failed_over()
        await run.senders.acknowledge(SOME)
        await north.node.start()
        await came_home(run)

        store = gateway.folder / "var" / "backlog.db"
        async with (
            north.client() as primary,
            EmbeddedBroker(store, lambda: datetime.now(UTC), random.Random()) as secondary,
        ):
            queues = await north.queues()
            verdict = await judged(run, Listed(primary, queues), secondary, ON_THEIR_WAY)

    expect_nothing_lost(run, verdict)


async def test_rabbitmq_keeps_what_a_killed_service_bus_can_not_take(
    rabbits: ExampleNodes, gateways: Gateways
) -> None:
    south = rabbits.south
    await south.prepare("rabbitmq-backlog-definitions.json")
    served = broker_config(ORDERS.name).replace('"service-bus-http"', '"service-bus"')
    primary = await gateways.start(served, name="primary")
    config = example(
        "servicebus-primary-rabbitmq-secondary.toml",
        "contoso-north",
        {
            "servicebus:Endpoint=sb://contoso-north.servicebus.windows.net/;"
            "SharedAccessKeyName=gateway": service_bus(primary),
            "rabbitmqs://gateway@rabbit-south.example.net/pairgate": (
                f"rabbitmq://gateway@127.0.0.1:{south.node.port}/{VHOST}"
            ),
        },
    )
    await provision(gateways, config)
    await check(gateways, config)
    gateway = await gateways.start(config, name="gateway")
    async with sending(gateway) as run:
        await run.senders.acknowledge(SOME)
        await primary.kill()
        await run.failed_over()
        await run.senders.acknowledge(SOME)
        await primary.start()
        await came_home(run)

        async with client(primary) as home, south.client() as backlog:
            queues = await south.queues()
            verdict = await judged(run, home, Listed(backlog, queues), ON_THEIR_WAY)

    expect_nothing_lost(run, verdict)


def service_bus(process: GatewayProcess) -> str:
    """Return the connection string of a Pairgate that stands in for Azure Service Bus."""
    return (
        f"servicebus:Endpoint=sb://{process.address}/;"
        "SharedAccessKeyName=RootManageSharedAccessKey;UseDevelopmentEmulator=true"
    )


async def came_home(run: Installation) -> None:
    """
    Return when the primary takes all sends again, the backlog is empty, and no client sends any
    more.
    """
    await run.came_back()
    await run.senders.acknowledge(SOME)
    await run.senders.stop()
    await run.drained()
    assert await run.gateway.stop() == 0


def expect_nothing_lost(run: Installation, verdict: Verdict) -> None:
    said = run.describe(verdict)
    print(said)  # noqa: T201 the figures of a good run
    assert verdict.passed, said
    assert not run.senders.errors, said
    assert run.diverted >= SOME, said
