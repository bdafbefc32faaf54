"""Two gateways behind nginx: one of them is killed under load, and then the other one."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gateway.demo.ports import free_port
from tests.e2e.load import Load, bodies, pair_before_brokers
from tests.e2e.processes import ROOT, Gateways
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

CONFIG = ROOT / "conf" / "examples" / "nginx-balancer.conf"
NGINX = "/usr/sbin/nginx"


def config_for(folder: Path, port: int, gateways: list[str]) -> None:
    """Write the example's configuration for these addresses."""
    text = CONFIG.read_text().replace("listen 0.0.0.0:5672", f"listen 127.0.0.1:{port}")
    for example, address in zip(("10.0.0.11:5672", "10.0.0.12:5672"), gateways, strict=True):
        assert example in text
        text = text.replace(example, address)
    folder.mkdir()
    settings = f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;"
    (folder / "nginx.conf").write_text(f"{settings}\n{text}")


@asynccontextmanager
async def balancer(folder: Path, gateways: list[str]) -> AsyncIterator[int]:
    """The example's nginx in front of these addresses; its port."""
    port = free_port()
    config_for(folder, port, gateways)
    options = ["-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
    process = await trio.lowlevel.open_process([NGINX, *options], stderr=subprocess.DEVNULL)
    try:
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    async with await trio.open_tcp_stream("127.0.0.1", port):
                        break
                except OSError:
                    await trio.sleep(0.02)
        yield port
    finally:
        process.terminate()
        with trio.fail_after(PATIENCE, shield=True):
            await process.wait()


async def test_whichever_gateway_is_killed_nothing_acknowledged_is_lost_and_clients_go_on(
    gateways: Gateways, tmp_path: Path
) -> None:
    pair = await pair_before_brokers(gateways)
    both = [await gateways.start(pair, name=name) for name in ("one", "two")]

    async with balancer(tmp_path / "nginx", [each.address for each in both]) as port:
        front = gateways.prepare("", name="balancer")
        front.ports = [port]
        load = Load(front, forgives=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await load.some()
            for killed in both:
                await killed.kill()
                await load.some()
                await killed.start()
                await load.some()
            load.stop()
        found = await bodies(front, load.accepted)

    assert not load.errors
    assert load.broken, "no connection was open to a gateway that was killed"
    assert load.accepted - found == set()
