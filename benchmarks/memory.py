"""
The memory that the bodies of many clients cost a gateway, and whether it is freed afterwards.

    python -m benchmarks.memory [--connections 300] [--rounds 3]

A gateway as a process of its own, idle at first. Each load opens all connections at once, and each
sends its body; when all have ended, the process gets a moment. RSS is what Linux counts, sampled
while the load runs.
"""

import argparse
import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console

from benchmarks.fleet import open_fleet, token
from benchmarks.stopwatch import processor_time
from benchmarks.targets import Target, show_targets
from gateway.demo.machines import DemoMachine, broker_config

MIB: Final = 1024 * 1024
BODY: Final = 4_000_000  # bytes, a little below max_body
TAKEN: Final = 900_000  # bytes of a message that the namespace takes
HELD: Final = 0.97  # the part of a body that comes, of one that is never finished
HOLD_SECONDS: Final = 3.0
SETTLE_SECONDS: Final = 12.0  # twice what the gateway waits before it gives memory back
PATIENCE: Final = 60.0  # of one connection
SAMPLE: Final = 0.02
MOST: Final = 1.5  # times the idle figure
STORE_CACHE: Final = 32 * MIB  # of SQLite's pages, filled by the first messages
WIDTH: Final = 110
ZEROS: Final = memoryview(bytes(BODY))


@attrs.frozen
class Load:
    name: str
    size: int
    with_token: bool
    finished: bool = True  # whether the whole body is sent
    kept: int = 0  # bytes that stay by design


LOADS: Final = (
    Load("no token, 4 MB", BODY, with_token=False),
    Load("no token, 4 MB never finished", BODY, with_token=False, finished=False),
    Load("with token, 4 MB: refused as too large", BODY, with_token=True),
    Load("with token, 4 MB never finished", BODY, with_token=True, finished=False),
    Load("with token, 900 kB: stored", TAKEN, with_token=True, kept=STORE_CACHE),
)


def resident(pid: int) -> int:
    """Bytes of memory that a process has now."""
    status = (Path("/proc") / str(pid) / "status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


async def client(port: int, load: Load, answers: Counter[str]) -> None:
    lines = [
        "POST /orders/messages HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Content-Length: {load.size}",
    ]
    if load.with_token:
        lines.append(f"Authorization: {token()}")
    sent = load.size if load.finished else int(load.size * HELD)
    with trio.move_on_after(PATIENCE):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            answer = b""
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all("\r\n".join([*lines, "", ""]).encode())
                await stream.send_all(ZEROS[:sent])
            if not load.finished:
                await trio.sleep(HOLD_SECONDS)
            else:
                with contextlib.suppress(trio.BrokenResourceError):
                    answer = bytes(await stream.receive_some())
            answers[answer[9:12].decode() or "none"] += 1


@attrs.frozen(kw_only=True)
class Measured:
    """The figures of one load."""

    peak: int  # the highest RSS while it ran, in bytes
    after: int  # the RSS afterwards
    processor: float  # seconds of the gateway's processor time for each body
    answers: Counter[str]  # how often which status was answered


async def measure(machine: DemoMachine, load: Load, connections: int) -> Measured:
    answers = Counter[str]()
    peak, before = resident(machine.pid), processor_time(machine.pid)

    async def sample() -> None:
        nonlocal peak
        while True:
            peak = max(peak, resident(machine.pid))
            await trio.sleep(SAMPLE)

    async with trio.open_nursery() as watching:
        watching.start_soon(sample)
        async with trio.open_nursery() as clients:
            for _ in range(connections):
                clients.start_soon(client, machine.port, load, answers)
        watching.cancel_scope.cancel()
    await trio.sleep(SETTLE_SECONDS)
    return Measured(
        peak=peak,
        after=resident(machine.pid),
        processor=(processor_time(machine.pid) - before) / connections,
        answers=answers,
    )


async def run(connections: int, rounds: int, say: Callable[[str], None] = print) -> float:
    """
    Print the figures; return the highest RSS after a load, in times of the idle one. The store's
    cache of pages isn't counted, once there is something to keep in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        async with open_fleet(Path(folder)) as fleet:
            machine = await fleet.start("gateway", broker_config("orders"))
            await trio.sleep(SETTLE_SECONDS)
            idle, worst = resident(machine.pid), 0.0
            say(f"{connections} connections at once; idle {idle / MIB:.0f} MiB")
            for load in LOADS:
                for _ in range(rounds):
                    found = await measure(machine, load, connections)
                    times = (found.after - load.kept) / idle
                    worst = max(worst, times)
                    counts = sorted(found.answers.items())
                    told = ", ".join(f"{code}: {count}" for code, count in counts)
                    say(
                        f"{load.name:42} peak {found.peak / MIB:5.0f} MiB,"
                        f" after {found.after / MIB:5.0f} MiB ({times:.2f} x idle);"
                        f" CPU {1e6 * found.processor:.0f} us a body; answers {told}"
                    )
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory that bodies take, and that comes back.")
    parser.add_argument("--connections", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    times = trio.run(run, arguments.connections, arguments.rounds)
    target = Target(
        text=f"memory afterwards at most {MOST} times the idle figure",
        reached=times <= MOST,
        found=f"{times:.2f} times",
    )
    show_targets([target], Console(width=WIDTH))


if __name__ == "__main__":
    main()
