"""
Measures an outage of the primary for a producer: through the gateway, and without it.

    open loop ──▶ gateway ──▶ primary (killed, or frozen)
                      └─────▶ secondary ──(the gateway's syphon)──▶ primary
    open loop ──────────────▶ primary                                  the baseline

Both loops run at once, through the same outage. In the end every queue is audited.
"""

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import Fleet, client_of, gateway_config, open_fleet
from benchmarks.stopwatch import processor_time
from benchmarks.targets import Target, show_targets
from benchmarks.traffic import OpenLoop, Service, service_of
from gateway.checker.operations import CopyPlace, Found, Uncertain
from gateway.checker.verdict import Rules, Verdict, Violation, judge
from gateway.demo.audit import AuditedNamespace, audit, pending
from gateway.demo.machines import DemoMachine
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.ports import Broker

CONNECTIONS: Final = 1000  # of each loop, so that none of its sends waits for another
HEALTHY: Final = 3.0  # seconds before the outage, and after it
LOOK: Final = 0.1
DRAIN_LIMIT: Final = 240.0
MOST_STALL: Final = 2.5  # seconds, with a frozen primary
WIDTH: Final = 170  # characters of the table
WAYS: Final = ("gateway", "direct")  # each has a queue of that name


@attrs.frozen(kw_only=True)
class Scenario:
    """An outage. Both loops send at `rate`, messages/s."""

    outage: str
    interval: str  # `failover_interval`
    seconds: float
    rate: float


SCENARIOS: Final = (
    Scenario(outage="killed", interval="0s", seconds=8.0, rate=100.0),
    Scenario(outage="killed", interval="2s", seconds=8.0, rate=100.0),
    Scenario(outage="killed", interval="60s", seconds=8.0, rate=100.0),
    # Longer than one attempt, and with a rate that leaves no more sends open than files may be.
    Scenario(outage="frozen", interval="2s", seconds=16.0, rate=40.0),
    Scenario(outage="frozen", interval="60s", seconds=16.0, rate=40.0),
)


@attrs.frozen(kw_only=True)
class Drain:
    """The way home of the backlog. Times are seconds."""

    messages: int  # on the backlog when the primary was back
    time: float | None  # from then until it was empty; None: it never was
    rate: float | None  # messages/s, from the first that moved


@attrs.frozen(kw_only=True)
class Row:
    """The figures of one loop in one scenario."""

    scenario: Scenario
    way: str
    service: Service
    drain: Drain | None  # None: there is no backlog
    lost: int
    duplicates: int
    passed: bool
    # Seconds of processor time for a message of either loop, of each process.
    costs: Mapping[str, float]


@attrs.define(eq=False)
class Run:
    """A scenario, with processes of its own."""

    scenario: Scenario
    fleet: Fleet
    loops: Sequence[OpenLoop] = attrs.field(
        factory=lambda: [OpenLoop(way, EntityPath(way)) for way in WAYS], init=False
    )
    _began: float = attrs.field(default=0.0, init=False)  # the outage
    _ended: float = attrs.field(default=0.0, init=False)
    # Seconds of processor time of each process; of a killed one, until then.
    _taken: Counter[str] = attrs.field(factory=Counter, init=False)

    async def perform(self) -> list[Row]:
        primary, secondary = await self.fleet.start_brokers(*WAYS)
        gateway = await self.fleet.start(
            "gateway",
            gateway_config(
                primary.port,
                secondary.port,
                failover_interval=self.scenario.interval,
                enable_syphon=True,
            ),
        )
        async with AsyncExitStack() as stack:
            at_primary, at_secondary = [
                await stack.enter_async_context(client_of(machine.port))
                for machine in (primary, secondary)
            ]
            for machine in self.fleet.machines:
                self._taken[machine.name] -= processor_time(machine.pid)
            drain = await self._suffer(primary, gateway, at_secondary)
            for machine in self.fleet.machines:
                self._taken[machine.name] += processor_time(machine.pid)
            await gateway.stop()
            return await self._rows(at_primary, at_secondary, drain)

    async def _suffer(
        self, primary: DemoMachine, gateway: DemoMachine, at_secondary: Broker
    ) -> Drain:
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            for loop, machine in zip(self.loops, (gateway, primary), strict=True):
                client = client_of(machine.port, connections=CONNECTIONS)
                broker = await stack.enter_async_context(client)
                nursery.start_soon(loop.run, broker, self.scenario.rate)
            await trio.sleep(HEALTHY)
            self._began = trio.current_time()
            await self._take_away(primary)
            await trio.sleep(self.scenario.seconds)
            await self._bring_back(primary)
            self._ended = trio.current_time()
            nursery.start_soon(self._stop_later)
            return await _watch(at_secondary)

    async def _take_away(self, primary: DemoMachine) -> None:
        if self.scenario.outage == "killed":
            self._taken[primary.name] += processor_time(primary.pid)
            await primary.kill()
        else:
            os.kill(primary.pid, signal.SIGSTOP)

    async def _bring_back(self, primary: DemoMachine) -> None:
        if self.scenario.outage == "killed":
            await primary.start(self.fleet.nursery)
        else:
            os.kill(primary.pid, signal.SIGCONT)

    async def _stop_later(self) -> None:
        await trio.sleep(HEALTHY)
        for loop in self.loops:
            loop.stopping = True

    async def _rows(self, at_primary: Broker, at_secondary: Broker, drain: Drain) -> list[Row]:
        found = await audit(
            [AuditedNamespace.primary(at_primary), AuditedNamespace.secondary(at_secondary)]
        )
        sent = [record for loop in self.loops for record in loop.records]
        verdict = judge([*sent, *self._uncertain(), *found], Rules())
        copies = Counter(
            one.message_id
            for one in found
            if isinstance(one, Found) and one.place is CopyPlace.PRIMARY
        )
        return [self._row(loop, drain, verdict, copies) for loop in self.loops]

    def _uncertain(self) -> list[Uncertain]:
        """The sends that met the outage, of which the primary may have got a copy as well."""
        return [
            Uncertain(at=self._ended, message_id=send.message_id)
            for loop in self.loops
            for send in loop.sends
            if send.due <= self._ended and send.answered >= self._began
        ]

    def _row(self, loop: OpenLoop, drain: Drain, verdict: Verdict, copies: Counter[str]) -> Row:
        mine = {send.message_id for send in loop.sends}
        messages = sum(len(each.sends) for each in self.loops)
        lost = [f for f in verdict.findings if f.violation is Violation.LOST]
        return Row(
            scenario=self.scenario,
            way=loop.name,
            service=service_of(loop, self._began),
            drain=drain if loop.name == "gateway" else None,
            lost=sum(finding.message_id in mine for finding in lost),
            duplicates=sum(copies[identity] - 1 for identity in mine if copies[identity] > 1),
            passed=verdict.passed,
            costs={name: taken / messages for name, taken in self._taken.items()},
        )


def targets_of(rows: Sequence[Row]) -> list[Target]:
    """The goals for sends through the gateway; each is judged by the scenario that is worst."""
    ours = [row for row in rows if row.way == WAYS[0]]
    frozen = [row.service.longest_stall for row in ours if row.scenario.outage == "frozen"]
    lost = sum(row.lost for row in ours)
    unanswered = sum(row.service.sent - row.service.acknowledged for row in ours)
    targets = [
        Target(text="no acknowledged message lost", reached=lost == 0, found=str(lost)),
        Target(text="each send acknowledged", reached=unanswered == 0, found=f"{unanswered} not"),
    ]
    if frozen:
        targets.append(
            Target(
                text=f"a frozen primary stalls sends for at most {MOST_STALL} s",
                reached=max(frozen) <= MOST_STALL,
                found=f"{max(frozen):.2f} s",
            )
        )
    return targets


async def _watch(at_secondary: Broker) -> Drain:
    """Return when the backlog is empty, or it has been too long."""
    back = moving_since = trio.current_time()
    most: int | None = None
    while trio.current_time() < back + DRAIN_LIMIT:
        left = await _left(at_secondary)
        now = trio.current_time()
        if left is not None and (most is None or left >= most):
            most, moving_since = left, now
        if left == 0:
            moving = now - moving_since
            rate = most / moving if most and moving > 0 else None
            return Drain(messages=most or 0, time=now - back, rate=rate)
        await trio.sleep(LOOK)  # polled, since another process changes the state
    return Drain(messages=most or 0, time=None, rate=None)


async def _left(at_secondary: Broker) -> int | None:
    try:
        return await pending(at_secondary)
    except BrokerError:
        return None  # the gateway is busy: ask again


def _show(rows: Sequence[Row], console: Console) -> None:
    table = Table(
        *("outage", "interval", "way", "sent", "acked %", "windows %", "stall s", "p50 ms"),
        *("worst s", "diverted", "first s", "drain s", "drain/s", "lost", "twice", "verdict"),
        "CPU us",
        title="an outage of the primary",
        box=SIMPLE_HEAD,
    )
    for row in rows:
        service, drain = row.service, row.drain
        table.add_row(
            row.scenario.outage,
            row.scenario.interval if row.way == "gateway" else "",
            row.way,
            str(service.sent),
            f"{100 * service.share:.2f}",
            f"{100 * service.available:.1f}",
            f"{service.longest_stall:.2f}",
            f"{1000 * service.p50:.1f}",
            f"{service.worst:.2f}",
            str(service.diverted),
            _text(service.first_diverted, 2),
            _text(drain.time if drain else None, 1),
            _text(drain.rate if drain else None, 0),
            str(row.lost),
            str(row.duplicates),
            "[green]good[/green]" if row.passed else "[red]broken[/red]",
            _costs(row) if row.way == WAYS[-1] else "",
            end_section=row.way == WAYS[-1],
        )
    console.print(table)
    console.print(
        "acked: within the deadline. windows: of 100 ms, with an answered send. stall: the longest"
        " time without one. first: the first diverted send is answered so long after the outage"
        " begins. drain: from when the primary is back until the backlog is empty. CPU: processor"
        " time for a message of either way, of each process.",
        highlight=False,
    )
    show_targets(targets_of(rows), console)


def _costs(row: Row) -> str:
    return ", ".join(f"{name} {1e6 * cost:.0f}" for name, cost in row.costs.items())


def _text(number: float | None, digits: int) -> str:
    return "" if number is None else f"{number:.{digits}f}"


def _as_json(rows: Sequence[Row]) -> str:
    return json.dumps([attrs.asdict(row) for row in rows], indent=2)


async def measure(folder: Path, scenarios: Sequence[Scenario]) -> list[Row]:
    rows: list[Row] = []
    for number, scenario in enumerate(scenarios):
        async with open_fleet(folder / str(number)) as fleet:
            rows += await Run(scenario, fleet).perform()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="An outage of the primary, for a producer.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--only", choices=sorted({one.outage for one in SCENARIOS}))
    arguments = parser.parse_args()
    scenarios = [one for one in SCENARIOS if arguments.only in {None, one.outage}]
    _allow_many_files()
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-") as folder:
        rows = trio.run(measure, Path(folder), scenarios)
    if arguments.json:
        print(_as_json(rows))
    else:
        _show(rows, Console(width=WIDTH))
    return 0 if all(row.passed for row in rows) else 1


def _allow_many_files() -> None:
    """
    Allow this process and the machines the most open files: sends wait while the primary is frozen.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
