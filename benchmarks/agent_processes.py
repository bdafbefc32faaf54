"""
An agent with a thousand queues, as processes: measures the resources that a gateway, the agent and
a listener started by it take until all queues are open, and afterwards without a message.

    python -m benchmarks.agent_processes [--queues N ...] [--protocol NAME ...] [--settle S]
                                         [--seconds S] [--wakes N] [--json]

The listener receives through the gateway over one protocol after the other. Descriptors are those
of the process, connections those of them that lead to a TCP peer. A wake is one message for a queue
that is idle: the time from its sender's answer until the handler is called, by one clock.
"""

import argparse
import os
import statistics
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.listener import NOTES, now
from benchmarks.listener_scale import names_of
from benchmarks.machine import facts
from benchmarks.memory import resident
from benchmarks.report import report_of, show_facts
from benchmarks.stopwatch import processor_time
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import Message
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, open_gateways

REST: Final = "service-bus-http"
AMQP: Final = "amqp"
PROTOCOLS: Final = (REST, AMQP)
# With an environment of its own a process isn't forked from another, whose memory it would share.
OWN: Final = {"PYTHONHASHSEED": "0"}
START_LIMIT: Final = 300.0  # seconds
WAKE_LIMIT: Final = 120.0
FAILURES: Final = "listener_failed"
_LOOK: Final = 0.002
_MIB: Final = 1024 * 1024
_WIDTH: Final = 140


@attrs.frozen(kw_only=True)
class Process:
    """The figures of a process, when all queues are open."""

    name: str
    start: float  # seconds of the processor until then
    mebibytes: float
    descriptors: int
    connections: int  # at most, of several looks
    idle: float  # of the processor without a message: 1 is one processor


@attrs.frozen(kw_only=True)
class Found:
    protocol: str
    queues: int
    seconds: float  # from the start of the agent until the listener has opened all queues
    processes: Sequence[Process]
    failures: int  # of receives
    wakes: Sequence[float]  # milliseconds; infinite: the send failed, or none in time


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    found: Sequence[Found]


@attrs.frozen(kw_only=True)
class Plan:
    queues: Sequence[int] = (1, 1000)
    protocols: Sequence[str] = PROTOCOLS
    settle: float = 180.0  # seconds from the start until receives of idle queues have become rare
    seconds: float = 60.0  # of the idle processor time
    wakes: int = 20


async def measure(folder: Path, plan: Plan) -> Report:
    found: list[Found] = []
    about = facts(folder)
    for queues in plan.queues:
        for protocol in plan.protocols:
            async with open_gateways(folder / f"{protocol}-{queues}") as gateways:
                gateways.environments.update(gateway=OWN, agent=OWN)
                found.append(await _measure(gateways, queues, protocol, plan))
    return Report(facts=about, found=found)


async def _measure(gateways: Gateways, queues: int, protocol: str, plan: Plan) -> Found:
    paths = names_of(queues)
    ends = "".join(
        f'\n[[endpoints]]\nprotocol = "{name}"\nbind = "127.0.0.1:0"\n' for name in (AMQP, "admin")
    )
    gateway = await gateways.start(
        broker_config(*(each.name for each in paths)) + ends, name="gateway"
    )
    began_at, began = processor_time(gateway.pid), trio.current_time()
    agent = await gateways.start(
        agent_config(gateway, protocol, paths), name="agent", command=("agent",)
    )
    await agent.until(lambda: agent.count("started") == 2, START_LIMIT)
    seconds = trio.current_time() - began
    listener = int((await agent.seen("process_started"))["pid"])
    pids = {"gateway": gateway.pid, "agent": agent.pid, "listener": listener}
    spent = {name: processor_time(pid) for name, pid in pids.items()}
    spent["gateway"] -= began_at
    connections = dict.fromkeys(pids, 0)
    async with _looked_at(pids, connections):
        await trio.sleep(plan.settle)
        before = {name: processor_time(pid) for name, pid in pids.items()}
        await trio.sleep(plan.seconds)
    idle = {name: processor_time(pid) - before[name] for name, pid in pids.items()}
    processes = [
        Process(
            name=name,
            start=spent[name],
            mebibytes=resident(pid) / _MIB,
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            connections=connections[name],
            idle=idle[name] / plan.seconds,
        )
        for name, pid in pids.items()
    ]
    wakes = await _wake(gateway, agent.folder / NOTES, paths, plan.wakes)
    return Found(
        protocol=protocol,
        queues=queues,
        seconds=seconds,
        processes=processes,
        failures=agent.count(FAILURES),
        wakes=wakes,
    )


def agent_config(gateway: GatewayProcess, protocol: str, queues: Sequence[EntityPath]) -> str:
    """
    Return the configuration of an agent with one listener, which finds the gateway by `protocol`
    alone.
    """
    config = gateway.config
    for port, other in zip(gateway.ports, PROTOCOLS, strict=False):
        if other != protocol:
            config = config.replace(
                f'[[endpoints]]\nprotocol = "{other}"\nbind = "127.0.0.1:{port}"\n', ""
            )
    return f"""{config}
[agent]
interval = "5s"

[[agent.listeners]]
queues = "{" ".join(queue.name for queue in queues)}"
python = "benchmarks.listener:handle"
min_processes = 1
max_processes = 1
"""


@asynccontextmanager
async def _looked_at(pids: Mapping[str, int], most: dict[str, int]) -> AsyncIterator[None]:
    """`most` has the most connections of each process, of looks a second apart."""

    async def look() -> None:
        while True:
            for name, pid in pids.items():
                most[name] = max(most[name], connections_of(pid))
            await trio.sleep(1.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        yield
        nursery.cancel_scope.cancel()


def connections_of(pid: int) -> int:
    """The number of a process's sockets that have a TCP peer."""
    peers = set()
    for file in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "01":  # ESTABLISHED, of Linux's include/net/tcp_states.h
                peers.add(f"socket:[{fields[9]}]")
    found = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            found += os.readlink(entry.path) in peers
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


async def _wake(
    gateway: GatewayProcess, notes: Path, queues: Sequence[EntityPath], count: int
) -> Sequence[float]:
    """
    Send one message after the other, to queues that are spread over all; return the waits.

    A wait is the milliseconds from the answer to the send until the handler was called; infinite:
    the send failed.
    """
    waits = []
    async with client(gateway) as broker:
        for number in range(count):
            queue = queues[number * len(queues) // count]
            try:
                await broker.send(queue, [Message(message_id=str(number), body=b"x")])
            except BrokerError:  # the gateway has no connection left for its sender
                waits.append(inf)
                continue
            answered = now()
            called = await _called(notes, number)
            waits.append(1000.0 * (called - answered))
    return waits


async def _called(notes: Path, number: int) -> float:
    with trio.move_on_after(WAKE_LIMIT):
        while True:  # polled, since another process changes the state
            called = _calls(notes)
            if str(number) in called:
                return float(called[str(number)])
            await trio.sleep(_LOOK)
    return inf


def _calls(notes: Path) -> Mapping[str, str]:
    """The moment of each call, by the message's id."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    return dict(line.split() for line in lines)


def show(report: Report, console: Console) -> None:
    show_facts(report.facts, console)
    table = Table("protocol", "queues", "process", title="when all queues are open, and idle")
    for name in ("start, CPU s", "MiB", "descriptors", "connections", "idle, CPU %"):
        table.add_column(name, justify="right")
    for each in report.found:
        for process in each.processes:
            table.add_row(
                each.protocol,
                f"{each.queues}",
                process.name,
                f"{process.start:.2f}",
                f"{process.mebibytes:.1f}",
                f"{process.descriptors}",
                f"{process.connections}",
                f"{100 * process.idle:.2f}",
            )
    console.print(table)
    for each in report.found:
        console.print(
            f"{each.protocol}, {each.queues}: open after {each.seconds:.1f} s,"
            f" {each.failures} failed receives; wakes: median"
            f" {statistics.median(each.wakes):.1f} ms, longest {max(each.wakes):.1f} ms"
        )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    usual = Plan()
    parser.add_argument("--queues", type=int, nargs="+", default=list(usual.queues))
    parser.add_argument("--protocol", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--settle", type=float, default=usual.settle)
    parser.add_argument("--seconds", type=float, default=usual.seconds)
    parser.add_argument("--wakes", type=int, default=usual.wakes)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    plan = Plan(
        queues=options.queues,
        protocols=options.protocol,
        settle=options.settle,
        seconds=options.seconds,
        wakes=options.wakes,
    )

    async def in_folder(folder: Path) -> Report:
        return await measure(folder, plan)

    report_of(in_folder, show, as_json=options.json, width=_WIDTH)


if __name__ == "__main__":
    main(sys.argv[1:])
