"""
Measures the wire for RabbitMQ's own clients, beside the same client that talks to RabbitMQ itself.

    pika ──AMQP 0-9-1─────────────────▶ RabbitMQ      direct
    pika ──AMQP 0-9-1──▶ pairgate ────▶ RabbitMQ      a pair's primary, and well

One durable quorum queue, messages of 1 KiB, with confirms. The client is a process of its own with
one connection, and takes back what it has sent. Each round visits every cell once.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import quorum_queue
from benchmarks.amqp import (
    FULL,
    QUICK,
    WIDTH,
    WINDOWS,
    Effort,
    Job,
    Measure,
    client,
    show_cells,
    visit,
)
from benchmarks.amqp_figures import Cell, Ratio, Rounds, cells_of, ratio_of
from benchmarks.fleet import open_fleet
from benchmarks.machine import facts
from benchmarks.namespaces import PIKA, QUEUE, start_gateway
from benchmarks.report import print_report, show_facts
from benchmarks.targets import Target, show_targets
from tests.harness.rabbitmq import USER, rabbitmq

THROUGH: Final = "pika, Pairgate"
SENDS: Final = 0.8  # of the direct rate, with a core of the gateway's own
RECEIVES: Final = 0.9
MANY: Final = 100  # in flight: fewer wait for each other, and a relay adds its time to each
COST: Final = 60e-6  # seconds of the gateway's processor time for a message that is sent


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    cells: Sequence[Cell]
    ratios: Sequence[Ratio]
    targets: Sequence[Target]


async def measure(folder: Path, windows: Sequence[int], effort: Effort) -> Report:
    """
    Raises:
        ClientFailed: a message is missing, or the client got an error.
    """
    about = {**facts(folder), "RabbitMQ": quorum_queue.version()}
    async with _open_ways(folder) as measures:
        rounds = await visit(measures, windows, effort)
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return report(about, rounds)


def report(about: Mapping[str, str], rounds: Rounds) -> Report:
    ratios = [
        ratio_of(window, pairs, rounds[PIKA, window])
        for (way, window), pairs in rounds.items()
        if way == THROUGH
    ]
    cells = cells_of(rounds)
    targets = [_rate(each) for each in ratios if each.window >= MANY]
    targets += [_cost(each) for each in cells if each.way == THROUGH and each.window >= MANY]
    return Report(facts=about, cells=cells, ratios=ratios, targets=targets)


def _rate(ratio: Ratio) -> Target:
    return Target(
        text=f"sends at least {SENDS}, receives at least {RECEIVES} of direct,"
        f" {ratio.window} in flight",
        reached=ratio.send >= SENDS and ratio.receive >= RECEIVES,
        found=f"{ratio.send:.2f} and {ratio.receive:.2f}",
    )


def _cost(cell: Cell) -> Target:
    found = cell.servers["gateway"]
    return Target(
        text=f"{cell.operation}: at most {1e6 * COST:.0f} us of the gateway,"
        f" {cell.window} in flight",
        reached=found <= COST,
        found=f"{1e6 * found:.0f} us",
    )


@asynccontextmanager
async def _open_ways(folder: Path) -> AsyncIterator[Mapping[str, Measure]]:
    """Both servers run side by side; only one client has work at a time."""
    async with (
        rabbitmq(folder / "rabbitmq") as (node, port),
        open_fleet(folder) as fleet,
    ):
        await quorum_queue.declare(port)
        gateway = await start_gateway(fleet, port, "rabbitmq")
        direct = Job(port, {"RabbitMQ": node.pid}, USER, USER, QUEUE, False)
        servers = {"gateway": gateway.pid, "RabbitMQ": node.pid}
        through = attrs.evolve(direct, port=gateway.port, servers=servers)
        yield {
            PIKA: client(direct, sys.executable, "benchmarks.rabbitmq_pika"),
            THROUGH: client(through, sys.executable, "benchmarks.rabbitmq_pika"),
        }


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    show_cells(found.cells, console)
    table = Table("in flight", "sends", "receives", title="Pairgate / direct", box=SIMPLE_HEAD)
    for ratio in found.ratios:
        table.add_row(str(ratio.window), f"{ratio.send:.2f}", f"{ratio.receive:.2f}")
    console.print(table)
    show_targets(found.targets, console)


def main() -> int:
    parser = argparse.ArgumentParser(description="The costs of the wire for RabbitMQ's clients.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument(
        "--windows", nargs="+", type=int, default=WINDOWS, help="messages in flight"
    )
    parser.add_argument("--rounds", type=int, help="rounds after the warm-up")
    parser.add_argument("--quick", action="store_true", help="a short run; its figures don't count")
    parser.add_argument("--folder", type=Path, help="where the stores are made: choose the disk")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    effort = attrs.evolve(effort, rounds=arguments.rounds or effort.rounds)
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-", dir=arguments.folder) as folder:
        found = trio.run(measure, Path(folder), arguments.windows, effort)
    print_report(found, _show, as_json=arguments.json, width=WIDTH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
