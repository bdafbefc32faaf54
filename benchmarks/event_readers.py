"""
A gateway under load while 100 clients read its events, half of which never read.

    alone      sends ──▶ gateway ──▶ sink
    readers    sends ──▶ gateway ──▶ sink
                            └──▶ 50 readers of /events, and 50 clients that ask and never read

Both ways have the same load, `RATE` sends a second however long earlier ones take, and the same
events: an entity without messages is failed over and back all the time, `ORDERS_PER_SECOND` orders
a second of two events each. The rounds of both ways alternate. Sends shouldn't be slower with
readers, and the memory, sampled after each round, shouldn't grow. On a machine that does other work
the times of sends tell of that work; then the gateway's CPU for the readers says what they cost.
"""

import argparse
import json
import socket
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import client_of, gateway_config, open_fleet
from benchmarks.machine import facts_of_processor
from benchmarks.memory import MIB, resident
from benchmarks.report import report_of, show_facts
from benchmarks.stopwatch import processor_time
from benchmarks.targets import Target, show_targets
from benchmarks.traffic import OpenLoop, service_of
from benchmarks.workers import sink
from gateway.demo.machines import DemoMachine
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath
from gateway.net.http.client import HttpClient
from gateway.ports import Broker
from gateway.wire.http.messages import Headers, Request

ALONE, READERS = WAYS = ("alone", "readers")
CLIENTS: Final = 100
RATE: Final = 100.0  # sends a second
ORDERS_PER_SECOND: Final = 20
KEPT: Final = 1000  # events: a client that never reads has more to come than its socket takes
ROUNDS: Final = 9
SECONDS: Final = 6
SETTLE_SECONDS: Final = 4.0
SMALL_BUFFER: Final = 4096  # bytes, of a client that never reads
WIDTH: Final = 110
MOST_CPU: Final = 0.02  # of a core, for all readers
MOST_GROWTH: Final = 3.0  # MiB, beyond the growth without readers
_ADMIN: Final = """
[[endpoints]]
protocol = "admin"
bind = "localhost:{port}"
"""


@attrs.frozen(kw_only=True)
class Round:
    """The figures of one round, with readers or without."""

    way: str
    sent: int
    p50: float  # seconds, from when a send was due
    p99: float
    cpu: float  # of the gateway, seconds in a second
    resident: int  # bytes, at the end
    read: int  # bytes of events, by all readers
    connected: int  # clients that still were at the end


@attrs.frozen(kw_only=True)
class Report:
    facts: dict[str, str]
    rounds: Sequence[Round]
    slower: float  # the median time of a send with readers, over that without: median of the rounds
    cpu: float  # of the gateway for the readers, seconds in a second: median of the rounds
    growth: float  # MiB, of the memory with readers from the first third of the rounds to the last
    growth_alone: float  # the same without

    @property
    def targets(self) -> tuple[Target, ...]:
        return (
            Target(
                text=f"all readers take at most {1e3 * MOST_CPU:.0f} ms of a processor in a second",
                reached=self.cpu <= MOST_CPU,
                found=f"{1e3 * self.cpu:.0f} ms; a send takes {self.slower:.2f} times as long",
            ),
            Target(
                text=f"memory grows by at most {MOST_GROWTH} MiB more than without readers",
                reached=self.growth - self.growth_alone <= MOST_GROWTH,
                found=f"{self.growth:.1f} MiB, and {self.growth_alone:.1f} MiB without",
            ),
        )


@attrs.define(eq=False)
class Clients:
    """The clients of one round; every other one reads."""

    port: int
    number: int
    read: int = 0
    connected: int = 0

    async def run(self) -> None:
        """Run all clients until cancelled."""
        async with trio.open_nursery() as nursery:
            for each in range(self.number):
                nursery.start_soon(self._ask, each % 2 == 0)

    async def _ask(self, reads: bool) -> None:
        """Ask for all events; then read on, or never."""
        with trio.socket.socket() as own:
            if not reads:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            await own.connect(("127.0.0.1", self.port))
            await own.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.connected += 1
            try:
                if not reads:
                    await trio.sleep_forever()
                while data := await own.recv(65536):
                    self.read += len(data)
            finally:
                self.connected -= 1


async def steer(client: HttpClient, number: int) -> None:
    """Fail an entity over or back, though nobody knows it."""
    action = ("failover", "failback")[number % 2]
    answer = await client.request(
        Request(
            method="POST",
            target=f"/v1/{action}",
            headers=Headers.of({"Content-Type": "application/json"}),
            body=json.dumps({"targets": ["other"], "force": True}).encode(),
        )
    )
    if answer.status != 200:
        raise SystemExit(f"/v1/{action} was answered by {answer.status}: {answer.body!r}")


async def steer_on(client: HttpClient) -> None:
    """Until cancelled, give orders at the rate of the benchmark."""
    began, number = trio.current_time(), 0
    while True:
        await trio.sleep_until(began + number / ORDERS_PER_SECOND)
        await steer(client, number)
        number += 1


async def measure(folder: Path, *, rounds: int, seconds: int, number: int = CLIENTS) -> Report:
    """Start everything, measure both ways in turn, and end everything."""
    facts = dict(facts_of_processor())
    found: list[Round] = []
    async with sink() as primary, sink() as secondary, open_fleet(folder) as fleet:
        port = free_port()
        config = gateway_config(primary, secondary, attempt_timeout="1s")
        gateway = await fleet.start("gateway", config + _ADMIN.format(port=port))
        admin = HttpClient("127.0.0.1", port)
        try:
            for order in range(KEPT // 2):
                await steer(admin, order)
            async with client_of(gateway.port) as broker, trio.open_nursery() as nursery:
                nursery.start_soon(steer_on, admin)
                for each in range(rounds + 1):
                    for way in WAYS:
                        opened = Clients(port, number if way == READERS else 0)
                        taken = await _measure_one(way, gateway, broker, seconds, opened)
                        if each:  # round 0 warms up
                            found.append(taken)
                nursery.cancel_scope.cancel()
        finally:
            await admin.aclose()
    return _report(facts, found)


async def _measure_one(
    way: str, gateway: DemoMachine, broker: Broker, seconds: int, opened: Clients
) -> Round:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(opened.run)
        await trio.sleep(SETTLE_SECONDS)  # so that all readers have the kept events
        loop, began = OpenLoop(name=way, entity=EntityPath("orders")), trio.current_time()
        before = processor_time(gateway.pid)
        async with trio.open_nursery() as sending:
            sending.start_soon(loop.run, broker, RATE)
            await trio.sleep(seconds)
            loop.stopping = True
        used = processor_time(gateway.pid) - before
        lasted, served = trio.current_time() - began, service_of(loop, began)
        if served.acknowledged < served.sent:
            raise SystemExit(f"{served.sent - served.acknowledged} sends weren't acknowledged")
        latencies = sorted(send.latency for send in loop.sends)
        taken = Round(
            way=way,
            sent=served.sent,
            p50=served.p50,
            p99=latencies[len(latencies) * 99 // 100],
            cpu=used / lasted,
            resident=resident(gateway.pid),
            read=opened.read,
            connected=opened.connected,
        )
        nursery.cancel_scope.cancel()
    return taken


def _report(facts: dict[str, str], rounds: Sequence[Round]) -> Report:
    alone, readers = ([each for each in rounds if each.way == way] for way in WAYS)
    pairs = list(zip(alone, readers, strict=True))
    return Report(
        facts=facts,
        rounds=rounds,
        slower=statistics.median(there.p50 / here.p50 for here, there in pairs),
        cpu=statistics.median(there.cpu - here.cpu for here, there in pairs),
        growth=_growth(readers),
        growth_alone=_growth(alone),
    )


def _growth(rounds: Sequence[Round]) -> float:
    third = max(1, len(rounds) // 3)
    first, last = (
        statistics.median(each.resident for each in part)
        for part in (rounds[:third], rounds[-third:])
    )
    return (last - first) / MIB


def _show(report: Report, console: Console) -> None:
    show_facts(report.facts, console)
    table = Table(
        "way", "sends", "p50 ms", "p99 ms", "CPU ms/s", "memory MiB", "read KiB", "clients"
    )
    for each in report.rounds:
        table.add_row(
            each.way,
            str(each.sent),
            f"{1e3 * each.p50:.2f}",
            f"{1e3 * each.p99:.1f}",
            f"{1e3 * each.cpu:.0f}",
            f"{each.resident / MIB:.1f}",
            f"{each.read / 1024:.0f}",
            str(each.connected),
        )
    console.print(table)
    show_targets(report.targets, console)


def main() -> None:
    parser = argparse.ArgumentParser(description="A gateway under load with readers of events.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="seconds of each measurement")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    arguments = parser.parse_args()
    report_of(
        lambda folder: measure(
            folder, rounds=arguments.rounds, seconds=arguments.seconds, number=arguments.clients
        ),
        _show,
        as_json=arguments.json,
        width=WIDTH,
    )


if __name__ == "__main__":
    main()
