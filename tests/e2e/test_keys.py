"""Keys of clients are changed while they send, without a restart and without a refused one."""

import json
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from gateway.cli import main
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, environment
from tests.e2e.rest import send_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

OLD = "the old key of sixteen bytes"
ACCESS = """
[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"

[[access]]
name = "orders"
key = { file = "orders.key" }
rights = ["Manage"]
"""


async def keys(process: GatewayProcess, *words: str) -> dict[str, Any]:
    arguments = ["keys", "rotate", *words, "--json", "--config", str(process.config_file)]
    runner = CliRunner(env=environment())
    done = await trio.to_thread.run_sync(runner.invoke, main, arguments)
    assert done.exit_code == 0, done.output
    value: dict[str, Any] = json.loads(done.stdout)
    return value


async def test_clients_with_the_old_and_the_new_key_are_served_until_the_rotation_is_finished(
    gateways: Gateways,
) -> None:
    process = gateways.prepare(broker_config("orders") + ACCESS)
    process.folder.mkdir()
    file = process.folder / "orders.key"
    file.write_text(OLD)
    file.chmod(0o600)
    await process.start()

    async def statuses(*of: str) -> list[int]:
        return [await send_with(process.address, "orders", "orders", key) for key in of]

    before = await statuses(OLD)
    begun = await keys(process, "orders")
    new = file.read_text().strip()
    during = await statuses(OLD, new)
    again = await keys(process, "orders")
    finished = await keys(process, "orders", "--finish")
    after = await statuses(OLD, new)

    assert (before, during, after) == ([201], [201, 201], [401, 201])
    assert [each["changed"] for each in (begun, again, finished)] == [True, False, True]
    assert all(str(process.ports[1]) in each["reloaded"] for each in (begun, again, finished))
    assert file.read_text().strip() == new
    await process.until(lambda: process.count("reloaded") == 3)
