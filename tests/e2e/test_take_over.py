"""Restarts under load at which no client is refused: the next process takes the sockets over."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from gateway.demo.ports import free_port
from tests.e2e.load import Load, bodies, pair_before_brokers
from tests.e2e.processes import (
    GatewayProcess,
    Gateways,
    broker_config,
    environment,
)
from tests.e2e.rest import request, send, take
from tests.e2e.take_over import COMMAND, TAKE_OVER, successor
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow


async def take_over(gateways: Gateways, before: GatewayProcess, config: str = "") -> GatewayProcess:
    """Return the next process when it serves and its predecessor has ended."""
    after = successor(gateways, before, config)
    await after.start()
    await after.seen("taken_over", pid=before.pid)
    assert await before.wait() == 0
    assert before.count("draining", reason=f"process {after.pid} has taken over") or before.count(
        "draining", reason=f"process {after.pid} takes over, and waits for the stores"
    )
    return after


async def test_no_client_of_a_pair_notices_restarts_and_a_change_of_workers(
    gateways: Gateways,
) -> None:
    pair = await pair_before_brokers(gateways)
    gateway = await gateways.start(TAKE_OVER + pair, name="gateway")
    load = Load(gateway)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await load.some()
        for workers in (1, 2, 1):
            config = gateway.config.replace(TAKE_OVER, f"{TAKE_OVER}workers = {workers}\n", 1)
            after = await take_over(gateways, gateway, config)
            after.config = gateway.config
            gateway = after
            await load.some()
        load.stop()

    assert not load.errors
    assert load.reconnects >= load.senders
    assert load.accepted - await bodies(gateway, load.accepted) == set()


async def test_stores_change_hands_and_a_successor_that_fails_changes_nothing(
    gateways: Gateways,
) -> None:
    config = TAKE_OVER + broker_config("orders").replace("service-bus-http", "service-bus")
    first = await gateways.start(config, name="gateway")
    damaged = first.folder / "damaged.db"
    damaged.write_bytes(b"no store" * 1000)
    bad = first.config.replace("broker.db", "damaged.db")
    load = Load(first)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await load.some()
        failing = successor(gateways, first, bad)
        await failing.start(wait=False)
        assert await failing.wait() == 1
        await first.seen("take_over_failed", pid=failing.pid)
        await load.some()
        second = await take_over(gateways, first, config=first.config)
        await load.some()
        third = await take_over(gateways, second)
        await load.some()
        load.stop()

    assert not load.errors
    assert load.accepted - await bodies(third, load.accepted) == set()
    assert await third.stop() == 0
    assert not (third.folder / "var" / "take-over.sock").exists()


async def test_without_a_gateway_that_runs_it_starts_as_usual_and_without_the_option_not_at_all(
    gateways: Gateways,
) -> None:
    config = broker_config("orders")
    without = gateways.prepare(config, name="gateway", command=COMMAND)
    await without.start(wait=False)
    assert await without.wait() == 2
    assert any("take_over: is missing" in line for line in without.garbage)

    alone = gateways.prepare(TAKE_OVER + config, name="gateway", command=COMMAND)
    await alone.start()
    assert alone.count("taken_over") == 0
    assert await send(alone.address, "orders", b"one") == (201, "primary")


async def test_sockets_of_systemd_are_used_and_never_refuse(tmp_path: Path) -> None:
    config = broker_config("orders").replace("127.0.0.1:0", f"127.0.0.1:{free_port()}")
    (tmp_path / "pairgate.toml").write_text(config)
    address = config.rpartition('bind = "')[2].split('"')[0]
    with socket.socket() as bound:
        host, _, port = address.rpartition(":")
        bound.bind((host, int(port)))
        bound.listen()

        async with trio.open_nursery() as nursery:
            for number in range(2):
                body = f"order {number}".encode()
                # Sent before the process accepts, or even exists.
                nursery.start_soon(send_patiently, address, body)
                code = await served_once(bound, tmp_path, address, body)
                assert code == 0


async def send_patiently(address: str, body: bytes) -> None:
    """Send one message; the gateway may still have to start."""
    status, _, _ = await request(address, "POST", "/orders/messages", body, patience=PATIENCE)
    assert status == 201


async def served_once(bound: socket.socket, folder: Path, address: str, body: bytes) -> int:
    """Start a gateway as systemd would, receive that message, and stop the gateway."""
    launch = [
        "import os, sys",
        f"os.dup2({bound.fileno()}, 3)",
        "os.environ['LISTEN_PID'] = str(os.getpid())",
        "os.execv(sys.executable, [sys.executable, '-m', 'gateway', 'serve'])",
    ]
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", "; ".join(launch)],
        cwd=folder,
        env={**environment(), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "service-bus-http"},
        pass_fds=[bound.fileno()],
        stderr=subprocess.DEVNULL,
    )
    try:
        assert await take(address, "orders") == body
    finally:
        process.terminate()
        with trio.fail_after(PATIENCE, shield=True):
            code: int = await process.wait()
    return code
