"""
An outage that began with an earlier version ends with this one: its stores, its state file and the
messages of its backlog, as its processes left them in `version_1`.
"""

import lzma
from pathlib import Path

import pytest
import trio

from tests.e2e.processes import ENVELOPE_VARIABLE, KEY_VARIABLE, Gateways, broker_config
from tests.e2e.rest import send, take

pytestmark = [pytest.mark.slow, pytest.mark.live]

# With which the messages of the backlog were signed.
KEYS = {ENVELOPE_VARIABLE: "an envelope key for tests only"}
LEFT = Path(__file__).with_name("version_1")


def config_of(primary: str) -> str:
    return f"""
logging = {{ level = "debug" }}

[namespaces.north]
url = "servicebus+http://RootManageSharedAccessKey@{primary}"
key = {{ env = "{KEY_VARIABLE}" }}

[namespaces.south]
url = "embedded:south.db"

[pairing]
primary = "north"
secondary = "south"
label = "north"
backlog_queues = 2
enable_syphon = true
failover_interval = "1s"
ping_interval = "1s"
state = "state.json"
envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


async def test_the_backlog_of_an_earlier_version_comes_home(
    gateways: Gateways, tmp_path: Path
) -> None:
    north = gateways.prepare(broker_config("orders", "bills", url="embedded:north.db"), name="a")
    unpack("north.db", north.folder)
    await north.start()
    gateways.environments["b"] = KEYS
    gateway = gateways.prepare(config_of(north.address), name="b")
    unpack("south.db", gateway.folder)
    (gateway.folder / "state.json").write_bytes((LEFT / "state.json").read_bytes())
    await gateway.start()

    with trio.fail_after(60):
        bodies = [await take(north.address, "orders", wait=20) for _ in range(6)]
    assert sorted(filter(None, bodies)) == sorted(
        [b"before", b"last", *(f"in an outage {number}".encode() for number in range(4))]
    )
    assert await take(north.address, "bills") == b"bill"
    await gateway.seen("entity_state_changed", entity="orders", after="primary")
    assert await send(gateway.address, "orders", b"new") == (201, "primary")
    assert await gateway.stop() == 0


def unpack(name: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / name).write_bytes(lzma.decompress((LEFT / f"{name}.xz").read_bytes()))
