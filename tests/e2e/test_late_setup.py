"""`serve` sets up what an outage prevented as soon as the namespace answers."""

import json

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from tests.e2e.commands import pairgate
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")
BACKLOG = tuple(backlog.queue_name("east", index) for index in range(3))
MADE = {*BACKLOG, backlog.heartbeat_queue("east")}  # on the secondary


@attrs.frozen
class Installation:
    """Two namespaces without any queue, and the configuration of a gateway that wants some."""

    primary: GatewayProcess
    secondary: GatewayProcess
    gateway: GatewayProcess

    async def queues(self, process: GatewayProcess) -> set[EntityPath]:
        async with client(process) as broker:
            return {info.path for info in await broker.list_queues()}

    async def seen(self, process: GatewayProcess, queues: set[EntityPath]) -> None:
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    if await self.queues(process) == queues:
                        return
                except BrokerError:
                    pass  # the setup begins
                await trio.sleep(0.2)


@pytest.fixture
async def installation(gateways: Gateways) -> Installation:
    primary = await gateways.start(broker_config(), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    pair = pair_config(primary.address, secondary.address, backlog_queues=len(BACKLOG))
    config = pair.replace("[namespaces.secondary]", 'queues = ["orders"]\n\n[namespaces.secondary]')
    return Installation(primary, secondary, gateways.prepare(config, name="gateway"))


async def test_with_the_primary_down_the_backlog_is_made_and_used_at_once(
    installation: Installation,
) -> None:
    await installation.primary.kill()
    await installation.gateway.start()
    now = await installation.queues(installation.secondary)
    sent = await send(installation.gateway.address, "orders", b"one")
    await installation.primary.start()
    await installation.seen(installation.primary, {ORDERS})
    made = await installation.gateway.seen("entities_made", namespace="primary")
    with trio.fail_after(PATIENCE):
        while True:
            if await send(installation.gateway.address, "orders", b"two") == (201, "primary"):
                break
            await trio.sleep(0.2)

    assert now == MADE
    assert sent == (201, "backlog")
    assert made["entities"] == "orders"
    assert installation.gateway.count("syphon_stalled") == 0


async def test_with_the_secondary_down_the_primary_is_set_up_and_used_at_once(
    installation: Installation,
) -> None:
    await installation.secondary.kill()
    await installation.gateway.start()
    await installation.seen(installation.primary, {ORDERS})
    sent = await send(installation.gateway.address, "orders", b"one")
    await installation.secondary.start()
    await installation.seen(installation.secondary, MADE)
    ready = await installation.gateway.seen("backlog_ready", usable=len(BACKLOG), reason="")
    await installation.primary.kill()

    assert sent == (201, "primary")
    assert ready["wanted"] == len(BACKLOG)
    assert await send(installation.gateway.address, "orders", b"two") == (201, "backlog")


async def test_with_both_down_serve_begins_and_sets_up_what_comes_back(
    installation: Installation,
) -> None:
    await installation.primary.kill()
    await installation.secondary.kill()
    await installation.gateway.start()
    refused = await send(installation.gateway.address, "orders", b"one")
    await installation.secondary.start()
    await installation.seen(installation.secondary, MADE)
    await installation.primary.start()
    await installation.seen(installation.primary, {ORDERS})

    assert refused[0] == 503
    await installation.gateway.seen("entities_made", namespace="primary")
    await installation.gateway.seen("entities_made", namespace="secondary")
    with trio.fail_after(PATIENCE):
        while True:
            if await send(installation.gateway.address, "orders", b"two") == (201, "primary"):
                break
            await trio.sleep(0.2)


async def test_serve_makes_what_provision_left(installation: Installation) -> None:
    installation.gateway.folder.mkdir()
    installation.gateway.config_file.write_text(installation.gateway.config)
    await installation.secondary.kill()
    code, output, _ = await pairgate(installation.gateway, "provision", "--json")
    await installation.secondary.start()
    await installation.gateway.start()

    assert code == 3
    assert [each["queues"] for each in json.loads(output)] == [["orders"], []]
    assert await installation.queues(installation.secondary) == MADE
    assert (await installation.gateway.seen("backlog_ready"))["usable"] == len(BACKLOG)


async def test_doubtful_settings_are_told_as_soon_as_the_secondary_is_back(
    installation: Installation,
) -> None:
    odd = attrs.evolve(backlog.QUEUE_PROPERTIES, max_delivery_count=10)
    async with client(installation.secondary) as broker:
        await broker.create_queue(BACKLOG[0], odd)
    await installation.secondary.kill()
    await installation.gateway.start()
    before = [line for line in installation.gateway.log if "10 deliveries" in line.get("text", "")]
    await installation.secondary.start()

    await installation.gateway.until(
        lambda: any("10 deliveries" in line.get("text", "") for line in installation.gateway.log)
    )
    assert before == []
