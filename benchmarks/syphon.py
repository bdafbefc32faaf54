"""
Measures how fast the syphon empties a backlog, beside RabbitMQ's own shovel.

    secondary, backlog queue ──pairgate syphon─────────▶ primary, quorum queue
    secondary, backlog queue ──shovel (on-confirm)─────▶ primary, quorum queue

Two nodes, side by side. Before each turn the backlog queue is filled with envelopes as a gateway
writes them, of messages of 1 KiB. The rate counts from the last look at the primary that found
none of them until all are there, so that no start of a process is in it. The two take turns, with
the syphon of an earlier version as the third where `--before` names its sources, and with a backlog
that is encrypted as another where `--encrypted` is given.

The processor time of each process is measured over the same interval. The nodes don't spin while
they wait, as that time would count too.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import quorum_queue
from benchmarks.amqp import ROOT, WIDTH
from benchmarks.closed_loop import BODY, MessagesMissing
from benchmarks.fleet import ENVELOPE_KEY, LABEL, bench_envelope, now
from benchmarks.machine import facts
from benchmarks.rabbitmq_adapter import open_rabbitmq
from benchmarks.report import print_report, show_facts
from benchmarks.stopwatch import processor_time
from benchmarks.targets import Target, show_targets
from gateway.brokers.rabbitmq.broker import RabbitmqBroker
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.identity import fingerprint
from gateway.domain.message import Message
from tests.harness.rabbitmq import USER, control, rabbitmq
from tests.harness.secret_files import write_secret
from tests.harness.servers import ServerProcess, running

SYPHON: Final = "syphon"
BEFORE: Final = "syphon, before"
ENCRYPTED: Final = "syphon, encrypted"
SHOVEL: Final = "shovel"
PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
LEAST: Final = 1.0  # of the shovel's rate
MOST: Final = 40  # us of processor time per message
PREFETCH: Final = 1000  # the shovel's
SOURCE: Final = backlog.queue_name(LABEL, 0)
TARGET: Final = EntityPath("orders")
UNLIMITED: Final = QueueProperties(max_delivery_count=2**31 - 1)
NO_SPINNING: Final = "+sbwt none +sbwtdcpu none +sbwtdio none"
PASSWORD_FILE: Final = "password"
KEY_FILE: Final = "key"
_CHUNK: Final = 1000
_LOOK_PAUSE: Final = 0.05  # seconds; a look costs the node a fraction of a millisecond
_LIMIT: Final = 600.0


@attrs.frozen(kw_only=True)
class Turn:
    """
    A backlog that was moved. `costs` are microseconds of processor time per message, by process;
    the shovel's own are among those of the secondary, which runs it.
    """

    rate: float  # messages/s
    costs: Mapping[str, float] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    messages: int
    ways: Mapping[str, Turn]  # medians
    ratio: float  # of the syphon's rate to the shovel's: the median of the rounds'
    targets: Sequence[Target]


@attrs.frozen(kw_only=True)
class Node:
    process: ServerProcess
    port: int
    broker: RabbitmqBroker

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{USER}@127.0.0.1:{self.port}"


async def measure(
    folder: Path,
    messages: int,
    rounds: int,
    batch: int | None,
    before: Path | None = None,
    *,
    encrypted: bool = False,
) -> Report:
    """
    Raises:
        MessagesMissing: the moved messages aren't those of the backlog.
    """
    about = {**facts(folder), "RabbitMQ": quorum_queue.version()}
    turns: list[Mapping[str, Turn]] = []
    async with _open_node(folder, PRIMARY) as primary, _open_node(folder, SECONDARY) as second:
        await primary.broker.create_queue(TARGET, UNLIMITED)
        await second.broker.create_queue(SOURCE, UNLIMITED)
        sources = {SYPHON: ROOT} if before is None else {BEFORE: before, SYPHON: ROOT}
        sources |= {ENCRYPTED: ROOT} if encrypted else {}
        for _ in range(rounds):
            found: dict[str, Turn] = {}
            for way, source in sources.items():
                await _fill(primary, second, messages, encrypts=way == ENCRYPTED)
                async with _syphon(folder, primary, second, batch, source) as process:
                    found[way] = await _watch(primary, second, messages, {SYPHON: process})
            await _fill(primary, second, messages)
            async with _shovel(primary, second):
                found[SHOVEL] = await _watch(primary, second, messages, {})
            turns.append(found)
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return report(about, messages, turns)


def report(about: Mapping[str, str], messages: int, turns: Sequence[Mapping[str, Turn]]) -> Report:
    """Return the report; only turns of one round are compared."""
    ratio = statistics.median(each[SYPHON].rate / each[SHOVEL].rate for each in turns)
    ways = {way: _median([each[way] for each in turns]) for way in turns[0]}
    cost = ways[SYPHON].costs.get(SYPHON, 0.0)
    return Report(
        facts=about,
        messages=messages,
        ways=ways,
        ratio=ratio,
        targets=[
            Target(
                text=f"at least {LEAST} of the shovel's rate",
                reached=ratio >= LEAST,
                found=f"{ratio:.2f}",
            ),
            Target(
                text=f"at most {MOST} us of the syphon per message",
                reached=cost <= MOST,
                found=f"{cost:.0f} us",
            ),
        ],
    )


def _median(turns: Sequence[Turn]) -> Turn:
    return Turn(
        rate=statistics.median(each.rate for each in turns),
        costs={
            name: statistics.median(each.costs[name] for each in turns) for name in turns[0].costs
        },
    )


@asynccontextmanager
async def _open_node(folder: Path, name: str) -> AsyncIterator[Node]:
    node = rabbitmq(folder / name, name, plugins=["rabbitmq_shovel"], erlang=NO_SPINNING)
    async with node as (process, port), open_rabbitmq(port, USER) as broker:
        yield Node(process=process, port=port, broker=broker)


async def _fill(primary: Node, secondary: Node, messages: int, *, encrypts: bool = False) -> None:
    """Each message in an envelope of its own, as a gateway that diverts sends them."""
    meant_for = fingerprint(str(await primary.broker.identity()))
    envelope = bench_envelope(encrypts=encrypts)
    for begin in range(0, messages, _CHUNK):
        wrapped = [
            envelope.wrap(
                Message(message_id=str(number), body=BODY),
                TARGET,
                attempt=f"attempt-{number}",
                now=now(),
                primary=meant_for,
            )
            for number in range(begin, min(messages, begin + _CHUNK))
        ]
        await secondary.broker.send(SOURCE, wrapped)


async def _watch(
    primary: Node, secondary: Node, messages: int, others: Mapping[str, ServerProcess]
) -> Turn:
    """
    Empty the primary when all are there.

    Raises:
        MessagesMissing: not in time, or more than there were.
    """
    processes = {**others, PRIMARY: primary.process, SECONDARY: secondary.process}
    began, taken, found = 0.0, dict[str, float](), 0
    with trio.move_on_after(_LIMIT):
        while found < messages:
            await trio.sleep(_LOOK_PAUSE)
            if not found:
                began = time.perf_counter()
                taken = _processor_times(processes)
            found = (await primary.broker.inspect(TARGET)).active or 0
    seconds = time.perf_counter() - began
    costs = {
        name: 1e6 * (now - taken[name]) / messages
        for name, now in _processor_times(processes).items()
    }
    left = (await secondary.broker.inspect(SOURCE)).active
    if found != messages or left:
        raise MessagesMissing(f"{found} of {messages} are on the primary, {left} on the secondary")
    await control(primary.process, "purge_queue", TARGET.name)
    return Turn(rate=messages / seconds, costs=costs)


def _processor_times(processes: Mapping[str, ServerProcess]) -> dict[str, float]:
    return {name: processor_time(process.pid) for name, process in processes.items()}


@asynccontextmanager
async def _syphon(
    folder: Path, primary: Node, secondary: Node, batch: int | None, source: Path
) -> AsyncIterator[ServerProcess]:
    """`pairgate syphon` of the sources in that folder, which begins at once."""
    home = folder / SYPHON
    home.mkdir(exist_ok=True)
    write_secret(home / PASSWORD_FILE, USER)
    write_secret(home / KEY_FILE, ENVELOPE_KEY.key)
    config = home / "pairgate.toml"
    config.write_text(_config(home, primary.port, secondary.port, batch))
    command = [sys.executable, "-m", "gateway", "syphon", "--json", "--config", str(config)]

    async def is_ready() -> bool:
        await trio.lowlevel.checkpoint()
        return True

    process = ServerProcess(
        command=command, folder=home, is_ready=is_ready, environment={"PYTHONPATH": str(source)}
    )
    async with running(process):
        yield process
        await process.stop()


def _config(home: Path, primary: int, secondary: int, batch: int | None) -> str:
    namespaces = "".join(
        f"""
[namespaces.{name}]
url = "rabbitmq://{USER}@127.0.0.1:{port}/"
password = {{ file = "{home / PASSWORD_FILE}" }}
"""
        for name, port in (("primary", primary), ("secondary", secondary))
    )
    options = "" if batch is None else f"\n[pairing.syphon]\nbatch = {batch}\n"
    return f"""{namespaces}
[pairing]
primary = "primary"
secondary = "secondary"
label = "{LABEL}"
envelope_keys = [{{ id = "{ENVELOPE_KEY.id}", key = {{ file = "{home / KEY_FILE}" }} }}]
{options}"""


@asynccontextmanager
async def _shovel(primary: Node, secondary: Node) -> AsyncIterator[None]:
    """Run a shovel on the node with the backlog, by AMQP 0-9-1, as safe as a syphon."""
    definition = {
        "src-protocol": "amqp091",
        "src-uri": secondary.url,
        "src-queue": SOURCE.key,
        "src-prefetch-count": PREFETCH,
        "dest-protocol": "amqp091",
        "dest-uri": primary.url,
        "dest-queue": TARGET.key,
        "ack-mode": "on-confirm",
    }
    node = secondary.process
    await control(node, "set_parameter", SHOVEL, SHOVEL, json.dumps(definition))
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await control(node, "clear_parameter", SHOVEL, SHOVEL)


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    title = f"{found.messages} messages of 1 KiB between two quorum queues"
    names = (SYPHON, PRIMARY, SECONDARY)
    columns = ("way", "messages/s", *(f"{name} us" for name in names), "together us")
    table = Table(*columns, title=title, box=SIMPLE_HEAD)
    for way, turn in found.ways.items():
        costs = (f"{turn.costs[name]:.1f}" if name in turn.costs else "" for name in names)
        table.add_row(way, f"{turn.rate:.0f}", *costs, f"{sum(turn.costs.values()):.1f}")
    console.print(table)
    show_targets(found.targets, console)


def main() -> int:
    parser = argparse.ArgumentParser(description="The speed at which a syphon moves a backlog.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--messages", type=int, default=100_000, help="messages in each turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way")
    parser.add_argument("--batch", type=int, help="the syphon's `batch`, instead of its default")
    parser.add_argument("--before", type=Path, help="an earlier version's sources, to compare")
    parser.add_argument("--encrypted", action="store_true", help="also an encrypted backlog")
    parser.add_argument("--folder", type=Path, help="where the nodes' data are: choose the disk")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-", dir=arguments.folder) as folder:
        work = partial(
            measure,
            Path(folder),
            arguments.messages,
            arguments.rounds,
            arguments.batch,
            arguments.before,
            encrypted=arguments.encrypted,
        )
        found = trio.run(work)
    print_report(found, _show, as_json=arguments.json, width=WIDTH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
