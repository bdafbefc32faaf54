"""
Measures the overhead of a send through the gateway, beside a direct send and a send through nginx.

    wrk ──────────────────▶ broker        direct
    wrk ────▶ nginx ──────▶ broker        a hop more
    wrk ────▶ gateway ────▶ broker        the pair's primary; its secondary is a second broker

All of it runs on this machine, in turn, and each round visits every cell once.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import Fleet, client_of, gateway_config, open_fleet, token
from benchmarks.load import Measured, post
from benchmarks.proxy import nginx
from benchmarks.stopwatch import processor_time
from benchmarks.targets import Target, show_targets
from gateway.demo.audit import pending
from gateway.domain.entity import EntityPath
from gateway.domain.errors import OutcomeUnknown

CONNECTIONS: Final = (1, 8, 64)
ROUNDS: Final = 5
SECONDS: Final = 2
WARM_UP: Final = 1
PATHS: Final = ("direct", "nginx", "gateway")  # each namespace has a queue of that name
MOST_ADDED: Final = 12.0  # times what nginx adds to p50, at one connection
LEAST_RATE: Final = 0.7  # of the direct sends/s
MOST_PROCESSOR: Final = 200e-6  # seconds of the gateway's processor time for a send
MOST_P99: Final = 2.0  # times the direct p99
AT_PROCESSOR: Final = 8  # connections
AT_P99: Final = 64


@attrs.frozen(kw_only=True)
class Run:
    """A measurement."""

    measured: Measured
    processor: Mapping[str, float]  # seconds of processor time for a send, of each process


@attrs.frozen(kw_only=True)
class Cell:
    """The medians of all rounds for one way and number of connections. Times are seconds."""

    path: str
    connections: int
    p50: float
    p99: float
    rate: float  # sends/s
    processor: Mapping[str, float]  # as in `Run`


@attrs.frozen(kw_only=True)
class Comparison:
    """The medians of the rounds' ratios, at one number of connections."""

    connections: int
    nginx_adds: float  # seconds, to p50
    gateway_adds: float
    rate: float  # the gateway's sends/s over the direct ones
    p99: float  # the gateway's over the direct one

    @property
    def times_nginx(self) -> float | None:
        """None where nginx added nothing that could be measured."""
        return self.gateway_adds / self.nginx_adds if self.nginx_adds > 0 else None


@attrs.frozen(kw_only=True)
class Count:
    """The messages in a queue afterwards, beside the answers that its senders got."""

    path: str
    acknowledged: int
    held: int
    unanswered: int  # the most sends that the end of a measurement has cut off

    @property
    def right(self) -> bool:
        return self.acknowledged <= self.held <= self.acknowledged + self.unanswered


Rounds = Mapping[tuple[str, int], Sequence[Run]]


@attrs.frozen(kw_only=True)
class Report:
    cells: Sequence[Cell]
    comparisons: Sequence[Comparison]
    counts: Sequence[Count]
    diverted: int  # messages on the secondary, where none belongs

    @property
    def right(self) -> bool:
        return self.diverted == 0 and all(count.right for count in self.counts)


async def measure(folder: Path, *, rounds: int, seconds: int) -> Report:
    """Start everything, measure, count, and end everything."""
    async with open_fleet(folder) as fleet:
        primary, secondary = await fleet.start_brokers(*PATHS)
        gateway = await fleet.start("gateway", gateway_config(primary.port, secondary.port))
        async with nginx(folder / "nginx", primary.port) as proxy:
            ports = {"direct": primary.port, "nginx": proxy.port, "gateway": gateway.port}
            processes = {
                "gateway": [gateway.pid],
                "broker": [primary.pid],
                "nginx": [*proxy.pids],
            }
            measured, unanswered = await _load(ports, processes, rounds=rounds, seconds=seconds)
        return await _report(fleet, measured, unanswered)


async def _load(
    ports: Mapping[str, int],
    processes: Mapping[str, Sequence[int]],
    *,
    rounds: int,
    seconds: int,
) -> tuple[Rounds, int]:
    """All measurements, and how many sends of each way may have been left unanswered."""
    measured: dict[tuple[str, int], list[Run]] = {}
    key, unanswered = token(), 0
    # Round 0 warms up: its figures don't count, its messages do.
    for number in range(rounds + 1):
        for connections in CONNECTIONS:
            unanswered += connections
            for path in PATHS:
                url = f"http://127.0.0.1:{ports[path]}/{path}/messages"
                lasting = seconds if number else WARM_UP
                before = _processor(processes)
                result = await post(url, key, connections=connections, seconds=lasting)
                after = _processor(processes)
                taken = {
                    name: (after[name] - before[name]) / result.answers
                    for name in ("wrk", path, "broker")
                    if name in after
                }
                run = Run(measured=result, processor=taken)
                measured.setdefault((path, connections), []).append(run)
    return measured, unanswered


def _processor(processes: Mapping[str, Sequence[int]]) -> Mapping[str, float]:
    """Seconds of processor time so far, by name; `wrk` is the only child that ends meanwhile."""
    times = os.times()
    taken = {name: sum(map(processor_time, pids)) for name, pids in processes.items()}
    return taken | {"wrk": times.children_user + times.children_system}


async def _report(fleet: Fleet, measured: Rounds, unanswered: int) -> Report:
    primary, secondary, _ = fleet.machines
    counts = []
    async with client_of(primary.port) as at_primary:
        for path in PATHS:
            answers = sum(
                run.measured.answers
                for (way, _), runs in measured.items()
                if way == path
                for run in runs
            )
            held = (await at_primary.inspect(EntityPath(path))).active
            if held is None:
                raise OutcomeUnknown(f"{path} doesn't tell how many messages it holds")
            counts.append(Count(path=path, acknowledged=answers, held=held, unanswered=unanswered))
    async with client_of(secondary.port) as at_secondary:
        diverted = await pending(at_secondary)
    counted = {key: rounds[1:] for key, rounds in measured.items()}
    return Report(
        cells=[_cell(path, n, counted[path, n]) for n in CONNECTIONS for path in PATHS],
        comparisons=[_comparison(n, counted) for n in CONNECTIONS],
        counts=counts,
        diverted=diverted,
    )


def _cell(path: str, connections: int, runs: Sequence[Run]) -> Cell:
    return Cell(
        path=path,
        connections=connections,
        p50=statistics.median(run.measured.p50 for run in runs),
        p99=statistics.median(run.measured.p99 for run in runs),
        rate=statistics.median(run.measured.rate for run in runs),
        processor={
            name: statistics.median(run.processor[name] for run in runs)
            for name in runs[0].processor
        },
    )


def _comparison(connections: int, rounds: Rounds) -> Comparison:
    """Compare the ways; only measurements of the same round are compared."""
    ways = [[run.measured for run in rounds[path, connections]] for path in PATHS]
    together = list(zip(*ways, strict=True))
    return Comparison(
        connections=connections,
        nginx_adds=statistics.median(proxy.p50 - direct.p50 for direct, proxy, _ in together),
        gateway_adds=statistics.median(own.p50 - direct.p50 for direct, _, own in together),
        rate=statistics.median(own.rate / direct.rate for direct, _, own in together),
        p99=statistics.median(own.p99 / direct.p99 for direct, _, own in together),
    )


def _as_json(report: Report) -> str:
    figures = attrs.asdict(report)
    for comparison, figure in zip(report.comparisons, figures["comparisons"], strict=True):
        figure["times_nginx"] = comparison.times_nginx
    figures["right"] = report.right
    return json.dumps(figures, indent=2)


def _show(report: Report, console: Console) -> None:
    columns = ("connections", "way", "p50 ms", "p99 ms", "sends/s", "processor us for a send")
    table = Table(*columns, title="sends of 1 KiB")
    for cell in report.cells:
        table.add_row(
            str(cell.connections),
            cell.path,
            f"{1000 * cell.p50:.2f}",
            f"{1000 * cell.p99:.2f}",
            f"{cell.rate:.0f}",
            ", ".join(f"{name} {1e6 * taken:.0f}" for name, taken in cell.processor.items()),
            end_section=cell.path == PATHS[-1],
        )
    console.print(table)
    table = Table(
        "connections",
        "nginx adds us",
        "the gateway adds us",
        "times",
        "of direct's rate",
        "times direct's p99",
    )
    for one in report.comparisons:
        times = one.times_nginx
        table.add_row(
            str(one.connections),
            f"{1e6 * one.nginx_adds:.0f}",
            f"{1e6 * one.gateway_adds:.0f}",
            "-" if times is None else f"{times:.1f}",
            f"{one.rate:.2f}",
            f"{one.p99:.2f}",
        )
    console.print(table)
    show_targets(_targets(report), console)
    for line in _verdicts(report):
        console.print(line, highlight=False)


def _targets(report: Report) -> list[Target]:
    alone = report.comparisons[0]
    slowest = min(one.rate for one in report.comparisons)
    taken = next(
        cell.processor["gateway"]
        for cell in report.cells
        if cell.path == "gateway" and cell.connections == AT_PROCESSOR
    )
    p99 = next(one.p99 for one in report.comparisons if one.connections == AT_P99)
    times = alone.times_nginx
    return [
        Target(
            text=f"added p50 of one connection at most {MOST_ADDED:.0f} times nginx's",
            reached=times is not None and times <= MOST_ADDED,
            found="nginx added nothing" if times is None else f"{times:.1f} times",
        ),
        Target(
            text=f"sends/s at least {LEAST_RATE} of direct",
            reached=slowest >= LEAST_RATE,
            found=f"{slowest:.2f}",
        ),
        Target(
            text=f"processor time of the gateway for a send at most {1e6 * MOST_PROCESSOR:.0f} us,"
            f" {AT_PROCESSOR} connections",
            reached=taken <= MOST_PROCESSOR,
            found=f"{1e6 * taken:.0f} us",
        ),
        Target(
            text=f"p99 at most {MOST_P99:.0f} times direct's, {AT_P99} connections",
            reached=p99 <= MOST_P99,
            found=f"{p99:.2f} times",
        ),
    ]


def _verdicts(report: Report) -> list[str]:
    lines: list[str] = []
    for count in report.counts:
        mark = "[green]right[/green]" if count.right else "[red]wrong[/red]"
        lines.append(
            f"{mark}: {count.path}: {count.acknowledged} acknowledged, {count.held} in the queue"
            f" (up to {count.unanswered} more were cut off by the ends of the measurements)"
        )
    if report.diverted:
        lines.append(f"[red]wrong[/red]: {report.diverted} messages were diverted")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="The overhead of a send through the gateway.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--seconds", type=int, default=SECONDS, help="whole seconds of each measurement"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-") as folder:
        report = trio.run(_measure_all, Path(folder), arguments)
    if arguments.json:
        print(_as_json(report))
    else:
        _show(report, Console(width=110))
    return 0 if report.right else 1


async def _measure_all(folder: Path, arguments: argparse.Namespace) -> Report:
    return await measure(folder, rounds=arguments.rounds, seconds=arguments.seconds)


if __name__ == "__main__":
    sys.exit(main())
