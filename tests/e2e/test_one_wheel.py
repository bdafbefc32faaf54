"""Maintenance of a primary whose backlog syphons of their own move: the primary is spared."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.ports import Broker
from tests.brokers.rabbitmq.nodes import Nodes
from tests.brokers.rabbitmq.nodes import client as rabbitmq_client
from tests.brokers.storage_queue.azurites import client as azurite_client
from tests.brokers.storage_queue.azurites import url_of
from tests.e2e.commands import ADMIN, admin_of, pairgate_provision, status_at, with_fixed_port
from tests.e2e.control import order, under_load, until_it_holds_back
from tests.e2e.installation import client
from tests.e2e.processes import (
    ENVELOPE_VARIABLE,
    KEY_VARIABLE,
    GatewayProcess,
    Gateways,
    broker_config,
)
from tests.harness.azurite import KEY, azurite
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import USER

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")
EVERY = 0.02  # seconds between two sends


@attrs.frozen
class Site:
    """The configurations of two namespaces, and a client of the first one."""

    primary: str
    secondary: str
    open_primary: Callable[[], AbstractAsyncContextManager[Broker]]

    async def on_primary(self) -> int:
        async with self.open_primary() as broker:
            return (await broker.inspect(ORDERS)).active or 0


@asynccontextmanager
async def pairgates(gateways: Gateways, scheme: str) -> AsyncIterator[Site]:
    amqp = scheme == "servicebus"
    config = broker_config()
    if amqp:
        config = config.replace('"service-bus-http"', '"service-bus"')
    servers = [await gateways.start(config, name=name) for name in ("primary", "secondary")]

    def lines(server: GatewayProcess) -> str:
        if amqp:
            address = (
                f"Endpoint=sb://{server.address};SharedAccessKeyName=RootManageSharedAccessKey"
            )
            url = f"servicebus:{address};UseDevelopmentEmulator=true"
        else:
            url = f"servicebus+http://RootManageSharedAccessKey@{server.address}"
        return f'url = "{url}"\nkey = {{ env = "{KEY_VARIABLE}" }}\n'

    yield Site(lines(servers[0]), lines(servers[1]), lambda: client(servers[0]))


@asynccontextmanager
async def rabbits(nodes: Nodes, folder: Path) -> AsyncIterator[Site]:
    await trio.lowlevel.checkpoint()
    password = folder / "password"
    password.write_text(USER)
    password.chmod(0o600)

    def lines(name: str) -> str:
        url = f"rabbitmq://{USER}@127.0.0.1:{nodes.port(name)}/"
        return f'url = "{url}"\npassword = {{ file = "{password}" }}\n'

    yield Site(lines("primary"), lines("secondary"), lambda: rabbitmq_client(nodes.port("primary")))


@asynccontextmanager
async def azurites(folder: Path) -> AsyncIterator[Site]:
    password = folder / "password"
    password.write_text(KEY)
    password.chmod(0o600)

    def lines(port: int) -> str:
        return f'url = "storage-queue:{url_of(port)}"\nkey = {{ file = "{password}" }}\n'

    async with azurite(folder / "north") as (_, north), azurite(folder / "south") as (_, south):
        yield Site(lines(north), lines(south), lambda: azurite_client(north))


def config_of(site: Site) -> str:
    return f"""
logging = {{ level = "debug" }}

[namespaces.north]
{site.primary}
queues = ["{ORDERS}"]

[namespaces.south]
{site.secondary}

[pairing]
primary = "north"
secondary = "south"
label = "wheel"
backlog_queues = 1
enable_syphon = false
failover_interval = "1s"
attempt_timeout = "30s"
send_timeout = "60s"
slow_call_duration = "off"
envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]
"""


async def until_it_has(site: Site, messages: int) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            if await site.on_primary() >= messages:
                return
            await trio.sleep(0.5)


@pytest.mark.parametrize(
    "kind",
    [
        "servicebus",
        "servicebus+http",
        pytest.param("rabbitmq", marks=[pytest.mark.live, pytest.mark.shared]),
        pytest.param("storage-queue", marks=pytest.mark.live),
    ],
)
async def test_nothing_reaches_the_primary_between_failover_and_failback(
    gateways: Gateways, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    match kind:
        case "rabbitmq":
            opened = rabbits(request.getfixturevalue("shared_nodes"), tmp_path)
        case "storage-queue":
            opened = azurites(tmp_path)
        case _:
            opened = pairgates(gateways, kind)
    async with opened as site:
        await maintain(gateways, site)


async def maintain(gateways: Gateways, site: Site) -> None:
    pair = config_of(site)
    await pairgate_provision(gateways, pair)
    gateway = await gateways.start(
        f'{pair}\n[[endpoints]]\nprotocol = "service-bus-http"\nbind = "127.0.0.1:0"\n{ADMIN}',
        name="gateway",
    )
    await with_fixed_port(gateway)
    syphons = [
        await gateways.start(pair + admin_of("syphon"), name=name, command=("syphon",))
        for name in ("one", "other")
    ]
    async with under_load(gateway, EVERY) as first:
        await first.more("primary")
        over = await order(gateway, "failover", targets=["*"], reason="maintenance")
        await first.more("backlog")
    for syphon in syphons:
        await until_it_holds_back(syphon)
    before = await site.on_primary()
    async with under_load(gateway, EVERY) as load:
        await load.more("backlog")
        for syphon in syphons:
            await syphon.kill()
            await syphon.start()
            await load.more("backlog")
            await until_it_holds_back(syphon)
    await gateway.kill()
    await gateway.start()
    async with under_load(gateway, EVERY) as later:
        await later.more("backlog")
        for syphon in syphons:
            await until_it_holds_back(syphon)
        during = await site.on_primary()
        status = await status_at(gateway.ports[1])
        await order(gateway, "failback", targets=["*"])
        await later.more("primary")
    await until_it_has(site, sum(len(each.accepted) for each in (first, load, later)))

    assert over["after"]["not_reached"] == []
    kinds = [each["name"].partition(" on ")[0] for each in status["pair"]["processes"]]
    assert {*kinds} == {"serve", "syphon"}  # also those that were killed a moment ago
    assert status["progress"]["state"] == "held-back"
    assert during == before
    assert sum(each.count("syphoned") for each in syphons) > 0
