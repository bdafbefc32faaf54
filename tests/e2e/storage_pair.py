"""A pair of two Azurites, for tests of real processes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs

from tests.brokers.storage_queue.azurites import url_of
from tests.e2e.processes import ENVELOPE_VARIABLE, PATIENT, Gateways
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


def config_of(servers: Servers, key: Path, *, is_patient: bool = False) -> str:
    """A pair of both; patient where no account is harmed: then no stall of the machine diverts."""
    times = {"attempt_timeout": "3s", "send_timeout": "60s", **(PATIENT if is_patient else {})}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in times.items())
    connect_timeout = "20s" if is_patient else "2s"

    def namespace(name: str, port: int) -> str:
        return f"""
[namespaces.{name}]
url = "storage-queue:{url_of(port)}"
key = {{ file = "{key}" }}
connect_timeout = "{connect_timeout}"
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
{lines}
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
