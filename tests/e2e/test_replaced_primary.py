"""
The runbook of docs/how-to/operate/replace-a-primary.md: the primary is gone for good, another one
takes its place, and the backlog that was meant for the former one comes to it.
"""

import re
from pathlib import Path

import pytest
import trio

from tests.e2e.commands import run
from tests.e2e.processes import Gateways, broker_config
from tests.e2e.rest import send, take
from tests.e2e.upgrade import KEYS, config_of, unpack
from tests.harness.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.live]

ADOPT = re.compile(r"--adopt ([0-9a-f]{16})")


async def test_another_primary_gets_the_backlog_of_the_former_one(
    gateways: Gateways, tmp_path: Path
) -> None:
    new = await gateways.start(broker_config("orders", "bills", url="embedded:new.db"), name="a")
    folder = tmp_path / "b"
    unpack("south.db", folder)
    (folder / "pairgate.toml").write_text(config_of(new.address))

    _, refused, errors = await run(folder, "check", **KEYS)
    named = ADOPT.search(refused + errors)
    assert named is not None, refused
    code, output, errors = await run(folder, "provision", "--adopt", named[1], **KEYS)
    assert code == 0, (output, errors)
    gateways.environments["b"] = KEYS
    command = ("serve", "--adopt", named[1])
    gateway = await gateways.start(config_of(new.address), name="b", command=command)
    with trio.fail_after(PATIENCE):
        bodies = [await take(new.address, "orders") for _ in range(5)]
    assert sorted(filter(None, bodies)) == sorted(
        [b"last", *(f"in an outage {number}".encode() for number in range(4))]
    )
    assert await send(gateway.address, "orders", b"new") == (201, "primary")
    assert await gateway.stop() == 0
