"""Processes under a service manager: the test is the socket that systemd would have."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from tests.e2e.processes import START_SECONDS, Gateways

pytestmark = [pytest.mark.live, pytest.mark.slow]

CONFIG = """
[namespaces.here]
url = "memory:"
queues = ["orders"]

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


@pytest.fixture
async def notified() -> AsyncIterator[tuple[str, trio.socket.SocketType]]:
    """The address for `NOTIFY_SOCKET`, and the socket."""
    name = f"pairgate-{uuid4()}"
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_DGRAM) as its:
        await its.bind(f"\0{name}")
        yield f"@{name}", its


async def until(its: trio.socket.SocketType, assignment: str) -> list[str]:
    """The assignments until this one, without signs of life."""
    found = list[str]()
    with trio.fail_after(START_SECONDS):
        while True:
            lines = (await its.recv(4096)).decode().splitlines()
            found += [line for line in lines if line != "WATCHDOG=1" or line == assignment]
            if assignment in lines:
                return found


async def test_a_service_tells_that_it_is_ready_lives_reloads_and_ends(
    tmp_path: Path, notified: tuple[str, trio.socket.SocketType]
) -> None:
    address, its = notified
    # A heartbeat every three seconds: the kernel keeps ten of them, and more, while this process
    # stands still, would take a message's place.
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "9000000"}
    async with trio.open_nursery() as nursery:
        gateways = Gateways(tmp_path, nursery, {"gateway": environment, "listener": environment})
        gateway = await gateways.start(CONFIG, name="gateway")

        assert await until(its, "READY=1") == ["READY=1", "STATUS=serving"]
        await until(its, "WATCHDOG=1")
        gateway.signal(signal.SIGHUP)
        reloading, date, ready = await until(its, "READY=1")
        assert (reloading, ready) == ("RELOADING=1", "READY=1")
        assert date.startswith("MONOTONIC_USEC=")
        gateway.signal(signal.SIGTERM)
        # Read at once: heartbeats fill the socket's queue, and messages without room are dropped.
        assert await until(its, "STOPPING=1") == ["STOPPING=1", "STATUS=draining: SIGTERM"]
        assert await gateway.wait() == 0

        command = ("listen", "orders", "--exec", "true")
        listener = await gateways.start(CONFIG, name="listener", command=command)
        await until(its, "READY=1")
        await until(its, "WATCHDOG=1")
        listener.signal(signal.SIGABRT)  # as systemd does when the signs of life stay away
        assert await listener.wait() == -signal.SIGABRT
        nursery.cancel_scope.cancel()

    # The journal shows where the event loop hung.
    assert "Fatal Python error: Aborted" in listener.garbage
    assert any("in main" in line for line in listener.garbage)
