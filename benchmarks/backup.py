"""
Sends to a gateway's own store while `pairgate store backup` copies that store.

    alone     sends ──▶ gateway ──▶ store
    backup    sends ──▶ gateway ──▶ store ──▶ backup (a process of its own) ──▶ copy

Both ways have the same load, `RATE` sends a second however long earlier ones take, and alternate.
The time of a send counts from when it was due.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import client_of, open_fleet
from benchmarks.machine import facts
from benchmarks.memory import MIB
from benchmarks.report import report_of, show_facts
from benchmarks.stopwatch import processor_time
from benchmarks.targets import Target, show_targets
from benchmarks.traffic import OpenLoop
from gateway.demo.machines import broker_config
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.ports import Broker

ALONE, BACKUP = WAYS = ("alone", "backup")
QUEUE: Final = EntityPath("orders")
RATE: Final = 200.0  # sends a second
ROUNDS: Final = 5
SECONDS: Final = 10
SIZE: Final = 512  # MiB of messages in the store
BODY: Final = 200_000  # bytes, of a message that fills the store
FILLERS: Final = 8
LIMIT: Final = 64.0  # MiB a second, the command's own
MOST_SLOWER: Final = 2.0  # times the 99th percentile without a backup
WIDTH: Final = 110


@attrs.frozen(kw_only=True)
class Round:
    """The figures of one round."""

    way: str
    sent: int
    p50: float  # seconds
    p99: float
    worst: float
    cpu: float  # of the gateway, seconds for a send
    copied: float  # seconds that the backup took
    copy: int  # bytes


@attrs.frozen(kw_only=True)
class Report:
    facts: dict[str, str]
    rounds: Sequence[Round]
    slower: float  # the 99th percentile with a backup, over that without: median of the rounds


async def fill(broker: Broker, size: int) -> None:
    """Store `size` MiB of messages."""
    left = size * MIB // BODY

    async def send() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await broker.send(EntityPath("filled"), [Message(body=bytes(BODY))])

    async with trio.open_nursery() as nursery:
        for _ in range(FILLERS):
            nursery.start_soon(send)


async def back_up(store: Path, target: Path, limit: float) -> float:
    """Return the seconds that it took."""
    began = trio.current_time()
    await trio.run_process(
        [
            *(sys.executable, "-m", "gateway", "store", "backup", f"embedded:{store}", str(target)),
            *("--rate-limit", str(limit)),
        ],
        stdout=subprocess.DEVNULL,
    )
    return trio.current_time() - began


async def measure(
    folder: Path, *, rounds: int, seconds: int, size: int, rate: float, limit: float
) -> Report:
    """Measure both ways in turn."""
    found: list[Round] = []
    told = dict(facts(folder))
    async with open_fleet(folder) as fleet:
        gateway = await fleet.start("gateway", broker_config(QUEUE.name, "filled"))
        store = folder / "gateway" / "broker.db"
        async with client_of(gateway.port) as broker:
            await fill(broker, size)
            for each in range(rounds + 1):
                for way in WAYS:
                    loop, target = OpenLoop(name=way, entity=QUEUE), folder / f"copy-{each}.db"
                    before, copied = processor_time(gateway.pid), 0.0
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(loop.run, broker, rate)
                        if way == BACKUP:
                            copied = await back_up(store, target, limit)
                            await trio.sleep(1.0)  # the log, which had to wait, is moved
                        else:
                            await trio.sleep(seconds)
                        loop.stopping = True
                    used = processor_time(gateway.pid) - before
                    if each:  # round 0 warms up
                        found.append(_round(way, loop, used, copied, target))
                    target.unlink(missing_ok=True)
    alone, backup = ([each for each in found if each.way == way] for way in WAYS)
    slower = [there.p99 / here.p99 for here, there in zip(alone, backup, strict=True)]
    return Report(facts=told, rounds=found, slower=statistics.median(slower))


def _round(way: str, loop: OpenLoop, used: float, copied: float, target: Path) -> Round:
    latencies = sorted(send.latency for send in loop.sends)
    return Round(
        way=way,
        sent=len(latencies),
        p50=latencies[len(latencies) // 2],
        p99=latencies[len(latencies) * 99 // 100],
        worst=latencies[-1],
        cpu=used / len(latencies),
        copied=copied,
        copy=target.stat().st_size if target.exists() else 0,
    )


def _show(report: Report, console: Console) -> None:
    show_facts(report.facts, console)
    table = Table("way", "sends", "p50 ms", "p99 ms", "worst ms", "CPU us", "copied in s", "MiB")
    for each in report.rounds:
        table.add_row(
            each.way,
            str(each.sent),
            f"{1e3 * each.p50:.2f}",
            f"{1e3 * each.p99:.1f}",
            f"{1e3 * each.worst:.0f}",
            f"{1e6 * each.cpu:.0f}",
            f"{each.copied:.1f}" if each.copied else "",
            f"{each.copy / MIB:.0f}" if each.copy else "",
        )
    console.print(table)
    target = Target(
        text=f"99 of 100 sends at most {MOST_SLOWER} times as slow beside a backup",
        reached=report.slower <= MOST_SLOWER,
        found=f"{report.slower:.2f} times",
    )
    show_targets([target], console)


def main() -> int:
    parser = argparse.ArgumentParser(description="Sends beside a backup of the store.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="seconds of a round alone")
    parser.add_argument("--size", type=int, default=SIZE, help="MiB of messages in the store")
    parser.add_argument("--rate", type=float, default=RATE, help="sends a second")
    parser.add_argument("--limit", type=float, default=LIMIT, help="MiB a second of the backup")
    given = parser.parse_args()
    report = report_of(
        lambda folder: measure(
            folder,
            rounds=given.rounds,
            seconds=given.seconds,
            size=given.size,
            rate=given.rate,
            limit=given.limit,
        ),
        _show,
        as_json=given.json,
        width=WIDTH,
    )
    return 0 if report.slower <= MOST_SLOWER else 1


if __name__ == "__main__":
    sys.exit(main())
