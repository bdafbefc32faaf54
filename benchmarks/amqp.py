"""
Measures AMQP through Pairgate, beside RabbitMQ's AMQP 1.0 with the same client.

    Proton ──AMQP 1.0──▶ pairgate serve ──▶ EmbeddedBroker     one connection
    Proton ──AMQP 1.0──▶ RabbitMQ                              a durable quorum queue
    azure-servicebus ──AMQP 1.0──▶ pairgate serve              RabbitMQ has no $cbs for it
    tasks ──▶ EmbeddedBroker                                   in process: what AMQP adds to

Clients are processes of their own, and stop their own time: with so many messages in flight they
send, and then receive and complete all of it. Each round visits every cell once. After that: the
memory of connections that do nothing.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import quorum_queue
from benchmarks.amqp_figures import (
    IN_PROCESS,
    PROTON,
    RABBITMQ,
    SDK,
    Cell,
    Flight,
    Pair,
    Report,
    Rounds,
    report,
)
from benchmarks.amqp_idle import RECEIVERS, SENDERS, idle_memory, service_bus
from benchmarks.closed_loop import Client, Way, drain, send_for
from benchmarks.fleet import open_fleet
from benchmarks.in_process import in_process
from benchmarks.machine import facts
from benchmarks.report import print_report, show_facts
from benchmarks.targets import show_targets
from gateway.demo.machines import KEY, KEY_NAME
from tests.harness.rabbitmq import USER, rabbitmq

Measure = Callable[[int, float], Awaitable[Pair]]  # with a window, sending for `seconds`

ROOT: Final = Path(__file__).parents[1]
PYTHON_OF_SDK: Final = ROOT / ".venv-azure" / "bin" / "python"
QUEUE: Final = quorum_queue.QUEUE
WIDTH: Final = 120  # characters of the tables
REST: Final = 0.3  # seconds for a broker to tidy up, before the next one is measured
CLIENT_LIMIT: Final = 300.0
WINDOWS: Final = (1, 100, 1000)
WAYS: Final = (PROTON, RABBITMQ, SDK, IN_PROCESS)


class ClientFailed(Exception):
    """A client process ended without figures; the text is its output."""


@attrs.frozen(kw_only=True)
class Effort:
    """The length and the number of the measurements."""

    rounds: int
    seconds: float  # of sending, in each measurement
    idle: int  # connections
    warm_up: int = 1  # rounds that don't count


FULL: Final = Effort(rounds=5, seconds=1.0, idle=5000)
QUICK: Final = Effort(rounds=1, seconds=0.2, idle=50)


async def measure(
    folder: Path, ways: Sequence[str], windows: Sequence[int], effort: Effort
) -> Report:
    about = dict(facts(folder))
    rounds: Rounds = {}
    if ways:
        async with _open_ways(folder, ways) as measures:
            rounds = await visit(measures, windows, effort)
    if RABBITMQ in ways:
        about["RabbitMQ"] = quorum_queue.version()
    kinds = [SENDERS, RECEIVERS] if effort.idle else []
    idle = [await idle_memory(folder / kind, kind, effort.idle) for kind in kinds]
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return report(about, rounds, idle)


async def visit(measures: Mapping[str, Measure], windows: Sequence[int], effort: Effort) -> Rounds:
    """Every way with every window, once in each round."""
    found: dict[tuple[str, int], list[Pair]] = {}
    for number in range(effort.warm_up + effort.rounds):
        for window in windows:
            for way, measure in measures.items():
                pair = await measure(window, effort.seconds)
                await trio.sleep(REST)
                if number >= effort.warm_up:
                    found.setdefault((way, window), []).append(pair)
    return found


@asynccontextmanager
async def _open_ways(folder: Path, ways: Sequence[str]) -> AsyncIterator[Mapping[str, Measure]]:
    """All servers run side by side; only one of them has work at a time."""
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(open_fleet(folder))
        machine = await fleet.start("gateway", service_bus(QUEUE))
        pairgate = Job(machine.port, {"Pairgate": machine.pid}, KEY_NAME, KEY, QUEUE, True)
        found: dict[str, Measure] = {
            PROTON: client(pairgate, sys.executable, "benchmarks.amqp_proton"),
            SDK: client(pairgate, str(PYTHON_OF_SDK), "benchmarks.amqp_azure"),
        }
        if RABBITMQ in ways:
            other = rabbitmq(folder / "rabbitmq", plugins=["rabbitmq_amqp1_0"])
            node, port = await stack.enter_async_context(other)
            await quorum_queue.declare(port)
            # A queue with another kind of name is made by the plugin, and isn't replicated. And a
            # receiver that asks for a confirmation ends its connection.
            job = Job(port, {"RabbitMQ": node.pid}, USER, USER, f"/amq/queue/{QUEUE}", False)
            found[RABBITMQ] = client(job, sys.executable, "benchmarks.amqp_proton")
        if IN_PROCESS in ways:
            way = await stack.enter_async_context(in_process(folder))
            found[IN_PROCESS] = lambda window, seconds: _in_process(way, window, seconds)
        yield {way: found[way] for way in ways}


@attrs.frozen
class Job:
    """The server that a client measures, and the entity that it sends to."""

    port: int
    servers: Mapping[str, int]  # the ids of the processes that serve it, by their names
    user: str
    password: str
    address: str
    confirms: bool  # True: settlements are confirmed to receivers that ask for it


def client(job: Job, program: str, source: str = "", *, module: bool = True) -> Measure:
    """
    A process for each measurement, with new connections: of a Python's module, of another program's
    file, or of a program alone.
    """

    async def measure(window: int, seconds: float) -> Pair:
        """
        Raises:
            ClientFailed: it found something missing or wrong, or took too long.
        """
        arguments = {**attrs.asdict(job), "window": window, "seconds": seconds}
        what = ["-m", source] if module else [source] if source else []
        command = [program, *what, json.dumps(arguments)]
        with trio.move_on_after(CLIENT_LIMIT):
            done = await trio.run_process(
                command, cwd=ROOT, check=False, capture_stdout=True, stderr=subprocess.STDOUT
            )
            try:
                answer = json.loads(done.stdout)
            except ValueError:
                raise ClientFailed(done.stdout.decode(errors="replace")) from None
            return Pair(send=Flight(**answer["send"]), receive=Flight(**answer["receive"]))
        raise ClientFailed(f"{source or program} took longer than {CLIENT_LIMIT} s")

    return measure


async def _in_process(way: Way, window: int, seconds: float) -> Pair:
    """A task for each message in flight. A receive and its completion are one operation here."""
    latencies: list[float] = []

    @asynccontextmanager
    async def open_client() -> AsyncIterator[Client]:
        async with way.open_client() as client:
            yield _Timed(client, latencies)

    timed = attrs.evolve(way, open_client=open_client)
    sent = await send_for(timed, window, seconds)
    send = _flight(latencies, sent.seconds, sent.busy)
    latencies.clear()
    received = await drain(timed, window, sent.messages)
    return Pair(send=send, receive=_flight(latencies, received.seconds, received.busy))


@attrs.frozen(eq=False)
class _Timed:
    _client: Client
    _latencies: list[float]

    async def send(self, number: int) -> None:
        began = time.perf_counter()
        await self._client.send(number)
        self._latencies.append(time.perf_counter() - began)

    async def receive_and_complete(self) -> int:
        began = time.perf_counter()
        completed = await self._client.receive_and_complete()
        self._latencies.extend([time.perf_counter() - began] * completed)
        return completed


def _flight(latencies: list[float], seconds: float, busy: float) -> Flight:
    """Broker and tasks are one process, whose time counts as the broker's."""
    latencies.sort()
    return Flight(
        messages=len(latencies),
        seconds=seconds,
        p50=latencies[len(latencies) // 2],
        p99=latencies[len(latencies) * 99 // 100],
        busy=0.0,
        servers={"broker and tasks": busy * seconds / len(latencies)},
    )


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    show_cells(found.cells, console)
    table = Table("in flight", "sends", "receives", title="Pairgate / RabbitMQ", box=SIMPLE_HEAD)
    for ratio in found.ratios:
        table.add_row(str(ratio.window), f"{ratio.send:.2f}", f"{ratio.receive:.2f}")
    if found.ratios:
        console.print(table)
    show_targets(found.targets, console)


def show_cells(cells: Sequence[Cell], console: Console) -> None:
    columns = ("in flight", "operation", "way", "per s", "p50 ms", "p99 ms", "CPU us")
    table = Table(*columns, title="messages of 1 KiB, durable", box=SIMPLE_HEAD)
    for cell in sorted(cells, key=lambda cell: (cell.window, cell.operation, cell.way)):
        table.add_row(
            str(cell.window),
            cell.operation,
            cell.way,
            f"{cell.rate:.0f}",
            _milliseconds(cell.p50),
            _milliseconds(cell.p99),
            ", ".join(_costs(cell)),
        )
    if cells:
        console.print(table)


def _costs(cell: Cell) -> list[str]:
    """The processor time for a message, of each process."""
    costs = {"client": cell.client, **cell.servers} if cell.client else cell.servers
    return [f"{name} {1e6 * cost:.0f}" for name, cost in costs.items()]


def _milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{1e3 * seconds:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="The speed of AMQP through Pairgate.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--only", nargs="+", choices=[*WAYS, "idle"], help="parts to measure")
    parser.add_argument(
        "--windows", nargs="+", type=int, default=WINDOWS, help="messages in flight"
    )
    parser.add_argument("--rounds", type=int, help="rounds after the warm-up")
    parser.add_argument("--quick", action="store_true", help="a short run; its figures don't count")
    parser.add_argument("--folder", type=Path, help="where the stores are made: choose the disk")
    arguments = parser.parse_args()
    effort, parts = QUICK if arguments.quick else FULL, arguments.only or [*WAYS, "idle"]
    effort = attrs.evolve(
        effort,
        rounds=arguments.rounds or effort.rounds,
        idle=effort.idle if "idle" in parts else 0,
    )
    ways = [way for way in WAYS if way in parts]
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-", dir=arguments.folder) as folder:
        found = trio.run(measure, Path(folder), ways, arguments.windows, effort)
    print_report(found, _show, as_json=arguments.json, width=WIDTH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
