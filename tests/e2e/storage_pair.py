"""A pair of two Azurites, for tests of real processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs

from tests.brokers.storage_queue.azurites import url_of
from tests.e2e.processes import ENVELOPE_VARIABLE, Gateways
from tests.e2e.storage_clients import ENDPOINT
from tests.harness.azurite import azurite
from tests.harness.servers import ServerProcess

SYPHON_BATCH: Final = 10


@attrs.frozen(kw_only=True)
class Servers:
    primary: ServerProcess
    secondary: ServerProcess
    primary_port: int
    secondary_port: int


@asynccontextmanager
async def two_azurites(folder: Path) -> AsyncIterator[Servers]:
    async with (
        azurite(folder / "north") as (primary, primary_port),
        azurite(folder / "south") as (secondary, secondary_port),
    ):
        yield Servers(
            primary=primary,
            secondary=secondary,
            primary_port=primary_port,
            secondary_port=secondary_port,
        )


def config_of(servers: Servers, key: Path) -> str:
    def namespace(name: str, port: int) -> str:
        return f"""
[namespaces.{name}]
url = "storage-queue:{url_of(port)}"
key = {{ file = "{key}" }}
connect_timeout = "2s"
poll = {{ first = "50ms", cap = "500ms" }}
"""

    return f"""
logging = {{ level = "debug" }}
{namespace("north", servers.primary_port)}
queues = ["orders"]
{namespace("south", servers.secondary_port)}
[pairing]
primary = "north"
secondary = "south"
label = "north"
backlog_queues = 2
enable_syphon = true
failover_interval = "1s"
send_timeout = "60s"
attempt_timeout = "3s"
ping_interval = "1s"
envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]

[pairing.syphon]
batch = {SYPHON_BATCH}
attempt_timeout = "2s"
unknown_retry = {{ first = "500ms", cap = "2s" }}
retry = {{ first = "500ms", cap = "2s" }}
rescan = "2s"

{ENDPOINT}
"""


async def provision(gateways: Gateways, config: str) -> None:
    process = await gateways.start(config, name="provision", command=("provision",), wait=False)
    assert await process.wait() == 0, process.garbage
