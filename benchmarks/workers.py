"""
The rate of a gateway with one and with two workers, before namespaces that aren't the bottleneck.

    alone           wrk ──▶ gateway, 1 process ──▶ sink
    side by side    the same twice at once: what twice the processes can do on this machine at all
    workers         wrk ──▶ gateway, 2 workers ──▶ sink

A machine with two cores can't give each process one while wrk and the sink need theirs. So the rate
is reckoned from processor time: the messages that all processes together send in a second in which
each of them has a core of its own. The parent's processor time counts as its workers'.

Processes that share cores and caches with others need more processor time for the same work. So the
workers are compared with one gateway of the two side by side, which share them in the same way.
"""

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import gateway_config, open_fleet, token
from benchmarks.load import Measured, post
from benchmarks.machine import facts_of_processor
from benchmarks.proxy import listens
from benchmarks.report import report_of, show_facts
from benchmarks.stopwatch import processor_time
from gateway.demo.machines import DemoMachine, LogLine, MachineFailed
from gateway.demo.ports import free_port

ALONE, BESIDE, WORKERS = WAYS = ("alone", "side by side", "workers")
CONNECTIONS: Final = 64  # for each process that serves: twice the cores have twice the clients
ROUNDS: Final = 5
SECONDS: Final = 5
WIDTH: Final = 110
LEAST: Final = 1.7  # times the rate, with twice the cores
_END_SECONDS: Final = 10.0


@attrs.frozen(kw_only=True)
class Round:
    """A measurement of a way."""

    way: str
    messages: int
    seconds: float
    cpu: Sequence[float]  # seconds, of each process that serves clients
    parent_cpu: float = 0.0  # seconds

    @property
    def per_message(self) -> float:
        """Seconds of processor time, of all of its processes."""
        return (sum(self.cpu) + self.parent_cpu) / self.messages

    @property
    def rate(self) -> float:
        """Messages a second, if each process that serves had a core."""
        return len(self.cpu) / self.per_message

    @property
    def share(self) -> float:
        """The share of the busiest process."""
        return max(self.cpu) / sum(self.cpu)


@attrs.frozen(kw_only=True)
class Row:
    """The medians of all rounds of one way."""

    way: str
    cpu_us: float  # per message
    parent_us: float
    rate: float  # messages a second, if each process that serves had a core
    measured: float  # messages a second, on this machine as it was
    share: float


@attrs.frozen(kw_only=True)
class Report:
    facts: dict[str, str]
    rows: Sequence[Row]
    times: float  # workers' rate, over that of one gateway side by side: median of the rounds
    times_alone: float  # the same over that of one gateway alone

    @property
    def is_reached(self) -> bool:
        return self.times >= LEAST


@attrs.define(eq=False)
class Pids:
    """The processes of each gateway that serve clients, from its log."""

    workers: defaultdict[str, list[int]] = attrs.field(factory=lambda: defaultdict(list))

    def note(self, name: str, line: LogLine) -> None:
        if line.get("event") == "worker_started":
            self.workers[name].append(line["pid"])

    def of(self, machine: DemoMachine) -> tuple[list[int], int | None]:
        """
        Return the ids of the processes that serve, and that of their parent; None: there is no
        parent.
        """
        workers = self.workers[machine.name]
        return (workers, machine.pid) if workers else ([machine.pid], None)


def config(workers: int, primary: int, secondary: int) -> str:
    return f"workers = {workers}\n{gateway_config(primary, secondary, attempt_timeout='1s')}"


@asynccontextmanager
async def sink() -> AsyncIterator[int]:
    """Run a sink; yield its port."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.sink", str(port)]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL)
    try:
        if not await listens(process, port):
            raise MachineFailed("the sink doesn't listen")
        yield port
    finally:
        process.kill()
        with trio.move_on_after(_END_SECONDS, shield=True):
            await process.wait()


async def measure(folder: Path, *, rounds: int, seconds: int) -> Report:
    """Start everything, measure all ways in turn, and end everything."""
    pids = Pids()
    facts = dict(facts_of_processor())
    async with sink() as primary, sink() as secondary, open_fleet(folder) as fleet:
        fleet.watch = pids.note
        one = await fleet.start("one", config(1, primary, secondary))
        other = await fleet.start("other", config(1, primary, secondary))
        both = await fleet.start("workers", config(2, primary, secondary))
        ways = {ALONE: [one], BESIDE: [one, other], WORKERS: [both]}
        measured: dict[str, list[Round]] = {way: [] for way in WAYS}
        for number in range(rounds + 1):
            for way, gateways in ways.items():
                taken = await _measure_one(way, gateways, pids, seconds)
                if number:  # round 0 warms up
                    measured[way].append(taken)
        if any(fleet.events[each.name, "entity_state_changed"] for each in fleet.machines):
            raise SystemExit("the sink was taken for a namespace that is down")
    together = list(zip(*measured.values(), strict=True))
    return Report(
        facts=facts,
        rows=[_row(rounds) for rounds in measured.values()],
        times=statistics.median(
            workers.rate / (beside.rate / 2) for _, beside, workers in together
        ),
        times_alone=statistics.median(workers.rate / alone.rate for alone, _, workers in together),
    )


async def _measure_one(
    way: str, gateways: Sequence[DemoMachine], pids: Pids, seconds: int
) -> Round:
    serving = [pid for each in gateways for pid in pids.of(each)[0]]
    parents = [pid for each in gateways if (pid := pids.of(each)[1]) is not None]
    before = [processor_time(pid) for pid in (*serving, *parents)]
    results: list[Measured] = []

    async def load(gateway: DemoMachine) -> None:
        connections = CONNECTIONS * len(serving) // len(gateways)
        url = f"http://127.0.0.1:{gateway.port}/orders/messages"
        results.append(await post(url, token(), connections=connections, seconds=seconds))

    async with trio.open_nursery() as nursery:
        for gateway in gateways:
            nursery.start_soon(load, gateway)
    after = [processor_time(pid) for pid in (*serving, *parents)]
    taken = [now - was for was, now in zip(before, after, strict=True)]
    return Round(
        way=way,
        messages=sum(result.answers for result in results),
        seconds=max(result.answers / result.rate for result in results),
        cpu=taken[: len(serving)],
        parent_cpu=sum(taken[len(serving) :]),
    )


def _row(rounds: Sequence[Round]) -> Row:
    return Row(
        way=rounds[0].way,
        cpu_us=1e6 * statistics.median(each.per_message for each in rounds),
        parent_us=1e6 * statistics.median(each.parent_cpu / each.messages for each in rounds),
        rate=statistics.median(each.rate for each in rounds),
        measured=statistics.median(each.messages / each.seconds for each in rounds),
        share=statistics.median(each.share for each in rounds),
    )


def _show(report: Report, console: Console) -> None:
    show_facts(report.facts, console)
    table = Table(
        "gateway",
        "CPU us a message",
        "of it the parent",
        "messages/s, a core each",
        "measured messages/s",
        "busiest process",
    )
    for row in report.rows:
        table.add_row(
            row.way,
            f"{row.cpu_us:.1f}",
            f"{row.parent_us:.1f}",
            f"{row.rate:.0f}",
            f"{row.measured:.0f}",
            f"{100 * row.share:.0f} %",
        )
    console.print(table)
    mark = "[green]reached[/green]" if report.is_reached else "[yellow]missed[/yellow]"
    console.print(
        f"{mark}: two workers have at least {LEAST} times the rate of one process beside another:"
        f" {report.times:.2f} (of one that is alone: {report.times_alone:.2f})",
        highlight=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="One and two workers of a gateway.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="seconds of each measurement")
    arguments = parser.parse_args()
    report = report_of(
        lambda folder: measure(folder, rounds=arguments.rounds, seconds=arguments.seconds),
        _show,
        as_json=arguments.json,
        width=WIDTH,
    )
    return 0 if report.is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
