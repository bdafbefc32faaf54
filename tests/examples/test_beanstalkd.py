"""The plug-in example: an installed distribution adds a kind of namespace, and nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.e2e.processes import environment, open_gateways
from tests.e2e.rest import send, take
from tests.harness.beanstalkd import beanstalkd
from tests.harness.patience import PATIENCE
from tests.harness.servers import frozen
from tests.pages import named_blocks

ROOT = Path(__file__).parents[2]
PAGE = "examples/beanstalkd/README.md"


def installed(folder: Path) -> Path:
    """The distribution in a folder of its own, as the page's first command installs it."""
    [(_, commands)] = named_blocks(PAGE, "sh")
    pip, install, source = commands.splitlines()[0].split()
    place = folder / "installed"
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(place)]
    copy = folder / "source"
    subprocess.run(["cp", "-r", str(ROOT / source), str(copy)], check=True, timeout=PATIENCE)
    subprocess.run(
        [sys.executable, "-m", pip, install, *flags, str(copy)], check=True, timeout=PATIENCE
    )
    return place


def config_of_page(port: int) -> str:
    [(_, config)] = named_blocks(PAGE, "ini")
    return config.replace(":11300", f":{port}").replace(":5300", ":0")


@pytest.mark.slow
async def test_an_outage_of_a_beanstalkd_loses_nothing(tmp_path: Path) -> None:
    place = await trio.to_thread.run_sync(installed, tmp_path)
    path = os.pathsep.join([str(place), str(ROOT)])
    async with (
        beanstalkd(tmp_path / "beanstalkd") as (server, port),
        open_gateways(tmp_path) as gateways,
    ):
        gateways.environments["gateway"] = {"PYTHONPATH": path}
        gateway = await gateways.start(config_of_page(port), name="gateway")
        answers = [await send(gateway.address, "orders", b"healthy")]
        await server.kill()
        answers.append(await send(gateway.address, "orders", b"diverted"))
        await server.start()
        await gateway.seen("backlog_empty")
        taken = {await take(gateway.address, "orders") for _ in range(2)}
        async with frozen(server):
            await send(gateway.address, "orders", b"slow")
        slow = await gateway.seen("slow_operation", namespace="tubes")
        await send(gateway.address, "orders", bytes(40_000))
        large = await gateway.seen("large_message_sent", namespace="tubes")

    assert answers == [(201, "primary"), (201, "backlog")]
    assert taken == {b"healthy", b"diverted"}
    assert slow["seconds"] > 0.5
    assert large["entity"] == "orders"
    assert large["bytes"] > 40_000


def test_a_kind_that_is_not_installed_is_refused_with_those_that_are(tmp_path: Path) -> None:
    config = tmp_path / "pairgate.toml"
    config.write_text(config_of_page(11300))
    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert ended.returncode == 2
    assert "one of memory, embedded, rabbitmq" in ended.stderr
