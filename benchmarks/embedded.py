"""
Measures the embedded broker, in process and over HTTP, beside RabbitMQ and Azurite.

    tasks ───────────────────────▶ EmbeddedBroker           in process
    clients ──HTTP──▶ pairgate serve ──▶ EmbeddedBroker     over HTTP
    clients ──HTTP──▶ one sync a message            the floor: h11, Trio and the disk
    clients ──AMQP 0-9-1──▶ RabbitMQ                        a durable quorum queue, confirms
    clients ──HTTP──▶ Azurite                               a Storage Queue, not durable

Every measurement sends, and then receives and completes what was sent: nothing may be missing.
Each round visits every cell once. After that: whether a message costs more where there are many.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.azurite_client import azurite_queue
from benchmarks.closed_loop import (
    AZURITE,
    FLOOR,
    HTTP,
    IN_PROCESS,
    RABBITMQ,
    Measured,
    Way,
    drain,
    send_for,
    total,
)
from benchmarks.figures import Pair, Report, report
from benchmarks.floor import floor
from benchmarks.in_process import in_process
from benchmarks.machine import facts
from benchmarks.over_http import over_http
from benchmarks.quorum_queue import quorum_queue
from benchmarks.report import print_report, show_facts
from benchmarks.sizes import Growth, Sides, grow
from benchmarks.targets import show_targets

OpenWay = Callable[[Path], AbstractAsyncContextManager[Way]]

WIDTH: Final = 110  # characters of the tables
REST: Final = 0.5  # seconds for a broker to tidy up, before the next one is measured
CLIENTS: Final = (1, 8, 64)
WAYS: Final[Mapping[str, OpenWay]] = {
    IN_PROCESS: in_process,
    HTTP: over_http,
    FLOOR: floor,
    RABBITMQ: quorum_queue,
    AZURITE: azurite_queue,
}
SIZES: Final = ("messages", "entities", "idle entities")


@attrs.frozen(kw_only=True)
class Effort:
    """The length and the number of the measurements."""

    rounds: int
    seconds: float  # of sending, in each measurement
    size_rounds: int
    size_messages: int  # in each round
    most: Mapping[str, tuple[int, int]]  # a few and many, of each kind


FULL: Final = Effort(
    rounds=5,
    seconds=1.0,
    size_rounds=9,
    size_messages=5000,
    most={
        "messages": (10_000, 5_000_000),
        "entities": (10, 100_000),
        "idle entities": (10, 100_000),
    },
)
QUICK: Final = Effort(
    rounds=1,
    seconds=0.3,
    size_rounds=3,
    size_messages=1000,
    most={
        "messages": (10_000, 100_000),
        "entities": (10, 2000),
        "idle entities": (10, 2000),
    },
)


async def measure(folder: Path, parts: Sequence[str], effort: Effort) -> Report:
    """Measure those parts: ways and sizes."""
    about = dict(facts(folder))
    rounds: dict[tuple[str, int], list[Pair]] = {}
    async with AsyncExitStack() as stack:
        ways = [
            await stack.enter_async_context(open_way(_made(folder, name)))
            for name, open_way in WAYS.items()
            if name in parts
        ]
        about.update((way.name, way.version) for way in ways if way.version)
        # Round 0 warms up.
        for number in range(effort.rounds + 1 if ways else 0):
            for clients in CLIENTS:
                for way in ways:
                    pair = await _pair(way, clients, effort.seconds)
                    await trio.sleep(REST)
                    if number:
                        rounds.setdefault((way.name, clients), []).append(pair)
    growths = [
        await _growth(folder / f"many {kind}", kind, effort) for kind in SIZES if kind in parts
    ]
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return report(about, rounds, growths)


async def _pair(way: Way, clients: int, seconds: float) -> Pair:
    """Send for `seconds`, in several turns if the broker is to hold few messages."""
    sent: list[Measured] = []
    received: list[Measured] = []
    left = seconds
    while left > 0:
        sent.append(await send_for(way, clients, left))
        received.append(await drain(way, clients, sent[-1].messages))
        left -= sent[-1].seconds
    return Pair(send=total(sent), receive=total(received))


async def _growth(folder: Path, kind: str, effort: Effort) -> Growth:
    few, many = effort.most[kind]
    return await grow(
        folder,
        Sides(kind=kind, few=few, many=many),
        rounds=effort.size_rounds,
        messages=effort.size_messages,
    )


def _made(folder: Path, name: str) -> Path:
    own = folder / name
    own.mkdir()
    return own


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    _show_rates(found, console)
    _show_growths(found, console)
    show_targets(found.targets, console)


def _show_rates(found: Report, console: Console) -> None:
    columns = ("clients", "way", "sends/s", "CPU us", "receives+completes/s", "CPU us")
    table = Table(
        *columns,
        title="messages of 1 KiB; CPU of the process here + the server's",
        box=SIMPLE_HEAD,
    )
    for cell in sorted(found.cells, key=lambda cell: cell.clients):
        table.add_row(
            str(cell.clients),
            cell.way,
            f"{cell.send:.0f}",
            _micros(cell.send_processor),
            f"{cell.receive:.0f}",
            _micros(cell.receive_processor),
        )
    if found.cells:
        console.print(table)
    table = Table("clients", "way", "beside", "sends", "receives+completes", box=SIMPLE_HEAD)
    for one in sorted(found.ratios, key=lambda ratio: ratio.clients):
        row = (str(one.clients), one.way, one.baseline, f"{one.send:.2f}", f"{one.receive:.2f}")
        table.add_row(*row)
    if found.ratios:
        console.print(table)


def _micros(processor: tuple[float, float]) -> str:
    here, server = processor
    return f"{1e6 * here:.0f} + {1e6 * server:.0f}" if server else f"{1e6 * here:.0f}"


def _show_growths(found: Report, console: Console) -> None:
    columns = ("number of", "operation", "few", "us", "many", "us", "times", "in processor time")
    table = Table(*columns, title="the cost of a message, 64 tasks in process", box=SIMPLE_HEAD)
    for one in found.growths:
        table.add_row(
            one.kind,
            one.operation,
            str(one.few),
            f"{1e6 * one.few_cost:.0f}",
            str(one.many),
            f"{1e6 * one.many_cost:.0f}",
            f"{one.ratio:.2f}",
            f"{one.processor_ratio:.2f}",
        )
    if found.growths:
        console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="The speed of the embedded broker.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--only", nargs="+", choices=[*WAYS, *SIZES], help="parts to measure")
    parser.add_argument("--rounds", type=int, help="rounds of the rates, after the warm-up")
    parser.add_argument("--quick", action="store_true", help="a short run; its figures don't count")
    parser.add_argument("--folder", type=Path, help="where the stores are made: choose the disk")
    arguments = parser.parse_args()
    parts, effort = arguments.only or [*WAYS, *SIZES], QUICK if arguments.quick else FULL
    effort = attrs.evolve(effort, rounds=arguments.rounds or effort.rounds)
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-", dir=arguments.folder) as folder:
        found = trio.run(measure, Path(folder), parts, effort)
    print_report(found, _show, as_json=arguments.json, width=WIDTH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
