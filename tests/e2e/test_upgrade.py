"""
An outage that began with an earlier version ends with this one: its stores, its state file and the
messages of its backlog, as its processes left them in `version_1`.
"""

from pathlib import Path

import pytest
import trio

from tests.e2e.processes import Gateways, broker_config
from tests.e2e.rest import send, take
from tests.e2e.upgrade import KEYS, LEFT, config_of, unpack
from tests.harness.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.live]


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

    with trio.fail_after(PATIENCE):
        bodies = [await take(north.address, "orders") for _ in range(6)]
    assert sorted(filter(None, bodies)) == sorted(
        [b"before", b"last", *(f"in an outage {number}".encode() for number in range(4))]
    )
    assert await take(north.address, "bills") == b"bill"
    await gateway.seen("entity_state_changed", entity="orders", after="primary")
    assert await send(gateway.address, "orders", b"new") == (201, "primary")
    assert await gateway.stop() == 0
