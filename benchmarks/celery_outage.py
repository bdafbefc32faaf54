"""
Runs the same Celery application with and without the gateway, through outages of its RabbitMQ.

    producer, worker ──AMQP 0-9-1─────────────────▶ RabbitMQ
    producer, worker ──AMQP 0-9-1──▶ pairgate ────▶ RabbitMQ
                                        └─────────▶ its secondary ──(its syphon)──▶ RabbitMQ

    killed, frozen  one RabbitMQ; the secondary is a store of the gateway's own
    restarted       the same with a cluster of three nodes, which are stopped one after the other;
                    the queues are quorum queues
    swapped         the secondary is another RabbitMQ: the first is killed, and when it's back, the
                    second

Both ways run at once, through the same outage, each with a queue of its own. The producer waits
for the confirm of each task and in the end for each result, by Celery's own `rpc://`. Directly,
Celery knows each node, as it would without the gateway.
"""

import argparse
import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.machine import facts_of_processor
from benchmarks.report import show_facts
from tests.e2e.processes import open_gateways
from tests.harness.rabbitmq import INSTALLED, RABBITMQ_4, USER, Release, rabbitmq
from tests.harness.rabbitmq_cluster import rabbitmq_cluster
from tests.harness.secret_files import write_secret
from tests.harness.servers import ServerProcess, kill
from tests.harness.servers import frozen as freezing

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = ROOT / ".venv-rabbitmq" / "bin" / "python"
RELEASES: Final = {"installed": INSTALLED, "4": RABBITMQ_4}
OUTAGES: Final = ("killed", "frozen", "restarted", "swapped")
WAYS: Final = ("directly", "through Pairgate")
BEFORE: Final = 8.0  # seconds, healthy
AFTER: Final = 5.0  # seconds, at least, in which tasks are sent after the outage
PATIENCE: Final = 60.0  # seconds for the results, after the last task
START: Final = 60.0  # seconds for a worker's start
LOOK: Final = 0.2  # seconds between two looks at its log
STOP: Final = 15.0  # seconds: a worker finishes what it has
WIDTH: Final = 110  # characters of the table
READY: Final = b" ready."  # the end of the line that a worker logs
STORE: Final = 'url = "embedded:store.db"'
GATEWAY: Final = """
[namespaces.primary]
{primary}

[namespaces.secondary]
{secondary}

[pairing]
primary = "primary"
secondary = "secondary"
label = "bench"
enable_syphon = true

[[endpoints]]
protocol = "rabbitmq"
bind = "127.0.0.1:0"
"""


@attrs.frozen(kw_only=True)
class Load:
    tasks: int
    rate: float  # tasks a second, at most
    seconds: float  # of each outage


@attrs.frozen(kw_only=True)
class Row:
    """An outage, as the producer of one way saw it."""

    outage: str
    way: str
    tasks: int
    errors: int
    longest: float  # seconds of one publish
    results: int
    is_worker_alive: bool
    first: float  # seconds from the return to the first task that the worker begins; inf: none
    failures: Mapping[str, int]  # the errors' texts


def row_of(
    outage: str, way: str, seen: Mapping[str, Any], *, first: float, is_worker_alive: bool
) -> Row:
    return Row(
        outage=outage,
        way=way,
        tasks=seen["taken"] + len(seen["failed"]),
        errors=len(seen["failed"]),
        longest=seen["longest"],
        results=seen["results"],
        is_worker_alive=is_worker_alive,
        first=first,
        failures=Counter(seen["failed"]),
    )


Harm = Callable[[float], Awaitable[None]]  # for so many seconds; returns when all is well


@attrs.frozen(kw_only=True)
class Brokers:
    """The RabbitMQs of one outage."""

    ports: Sequence[int]  # that an application without the gateway knows
    hosts: str  # of the primary, as a URL lists them
    harm: Harm
    secondary: str = ""  # another RabbitMQ; empty: a store of the gateway's own
    type_of_queues: str = "classic"


@attrs.frozen(kw_only=True)
class Application:
    """A producer and a worker at these ports, the first that answers."""

    way: str
    ports: Sequence[int]
    folder: Path
    type_of_queues: str

    @property
    def environment(self) -> Mapping[str, str]:
        brokers = (f"amqp://{USER}:{USER}@127.0.0.1:{port}//" for port in self.ports)
        return {
            **os.environ,
            "BROKER": ";".join(brokers),
            "QUEUE": self.way.split()[-1].lower(),
            "TYPE": self.type_of_queues,
            "STARTS": str(self._starts),
        }

    @property
    def _starts(self) -> Path:
        return self.folder / f"{self.way} starts"

    def first_after(self, returned: float) -> float:
        """Seconds from that date until the worker began the first task after it."""
        starts = map(float, self._starts.read_text().split())
        return min((at - returned for at in starts if at >= returned), default=math.inf)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[trio.Process]:
        """A worker that is ready; it's gone afterwards."""
        log = self.folder / f"{self.way}.log"
        arguments = ["worker", "--concurrency=2", "--loglevel=INFO", f"--hostname={self.way[0]}@%h"]
        with log.open("wb") as output:
            worker = await trio.lowlevel.open_process(
                [PYTHON, "-m", "celery", "--app=benchmarks.celery_app", *arguments],
                cwd=ROOT,
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            with trio.fail_after(START):
                while READY not in log.read_bytes():  # noqa: ASYNC110 another process decides
                    await trio.sleep(LOOK)
            yield worker
        finally:
            with trio.move_on_after(STOP, shield=True):
                worker.terminate()
                await worker.wait()
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)

    async def produce(self, load: Load) -> Mapping[str, Any]:
        """Return the figures that the producer prints at its end."""
        figures = map(str, (load.tasks, load.rate, PATIENCE))
        with (self.folder / f"{self.way} producer.log").open("wb") as errors:
            done = await trio.run_process(
                [PYTHON, "-m", "benchmarks.celery_producer", *figures],
                cwd=ROOT,
                env=self.environment,
                capture_stdout=True,
                stderr=errors,
                deliver_cancel=kill,
            )
        found: Mapping[str, Any] = json.loads(done.stdout)
        return found


async def measure(outage: str, load: Load, release: Release, folder: Path) -> Sequence[Row]:
    """Run one outage, under both applications."""
    password = folder / "password"
    write_secret(password, USER)
    async with (
        STAGES[outage](folder, release) as brokers,
        open_gateways(folder) as gateways,
    ):
        file = json.dumps(str(password))
        config = GATEWAY.format(
            primary=_rabbitmq_at(brokers.hosts, file),
            secondary=_rabbitmq_at(brokers.secondary, file) if brokers.secondary else STORE,
        )
        gateway = await gateways.start(config, name="gateway")
        ports = zip(WAYS, (brokers.ports, [gateway.port]), strict=True)
        applications = [
            Application(way=way, ports=at, folder=folder, type_of_queues=brokers.type_of_queues)
            for way, at in ports
        ]
        return await run_through(outage, load, brokers.harm, applications)


def _rabbitmq_at(hosts: str, password: str) -> str:
    """The lines of a namespace."""
    return f'url = "rabbitmq://{USER}@{hosts}"\npassword = {{ file = {password} }}'


async def run_through(
    outage: str, load: Load, harm: Harm, applications: Sequence[Application]
) -> Sequence[Row]:
    rows: dict[str, Row] = {}
    returned = math.inf

    async def run(application: Application, worker: trio.Process) -> None:
        seen = await application.produce(load)
        is_alive, first = worker.poll() is None, application.first_after(returned)
        rows[application.way] = row_of(
            outage, application.way, seen, first=first, is_worker_alive=is_alive
        )

    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(each.working()) for each in applications]
        async with trio.open_nursery() as nursery:
            for application, worker in zip(applications, workers, strict=True):
                nursery.start_soon(run, application, worker)
            await trio.sleep(BEFORE)
            await harm(load.seconds)
            returned = time.time()
    return [rows[way] for way in WAYS]


@asynccontextmanager
async def killed(folder: Path, release: Release) -> AsyncIterator[Brokers]:
    async with one_node(folder / "rabbitmq", release) as (node, port):
        yield Brokers(ports=[port], hosts=f"127.0.0.1:{port}", harm=partial(kill_node, node))


@asynccontextmanager
async def frozen(folder: Path, release: Release) -> AsyncIterator[Brokers]:
    async def freeze(seconds: float) -> None:
        async with freezing(node):
            await trio.sleep(seconds)

    async with one_node(folder / "rabbitmq", release) as (node, port):
        yield Brokers(ports=[port], hosts=f"127.0.0.1:{port}", harm=freeze)


@asynccontextmanager
async def restarted(folder: Path, _: Release) -> AsyncIterator[Brokers]:
    async def restart(seconds: float) -> None:
        for name in cluster.nodes:
            await cluster.stop(name)
            await trio.sleep(seconds)
            await cluster.start(name)
            await cluster.wait_whole()

    async with rabbitmq_cluster(folder / "rabbitmq") as cluster:
        await cluster.wait_whole()
        yield Brokers(
            ports=list(cluster.ports.values()),
            hosts=cluster.hosts,
            harm=restart,
            type_of_queues="quorum",
        )


@asynccontextmanager
async def swapped(folder: Path, release: Release) -> AsyncIterator[Brokers]:
    async def swap(seconds: float) -> None:
        for node in (first, second):
            await kill_node(node, seconds)
            await trio.sleep(BEFORE)

    async with (
        one_node(folder / "first", release) as (first, port),
        one_node(folder / "second", release) as (second, other),
    ):
        yield Brokers(
            ports=[port, other],
            hosts=f"127.0.0.1:{port}",
            harm=swap,
            secondary=f"127.0.0.1:{other}",
        )


STAGES: Final = dict(zip(OUTAGES, (killed, frozen, restarted, swapped), strict=True))


def one_node(
    folder: Path, release: Release
) -> AbstractAsyncContextManager[tuple[ServerProcess, int]]:
    folder.mkdir()
    return rabbitmq(folder, release=release)


async def kill_node(node: ServerProcess, seconds: float) -> None:
    """Return when the node is there again."""
    await node.kill()
    await trio.sleep(seconds)
    await node.start()


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    headings = (
        *("RabbitMQ", "way", "tasks", "errors", "longest publish", "results", "worker alive"),
        "first task",
    )
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        alive = "yes" if row.is_worker_alive else "no"
        longest = f"{row.longest:.2f} s"
        figures = map(str, (row.tasks, row.errors, longest, row.results, alive))
        table.add_row(row.outage, row.way, *figures, f"{row.first:.2f} s")
    return table


def read_load(arguments: Sequence[str] | None = None) -> tuple[Load, str, Sequence[str]]:
    """The load, the release and the outages that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery_outage")
    parser.add_argument("--tasks", type=int, default=600, help="of each way, in each outage")
    parser.add_argument("--rate", type=float, default=15.0, help="tasks a second, at most")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each outage")
    parser.add_argument("--release", choices=RELEASES, default="installed", help="of RabbitMQ")
    parser.add_argument("--only", choices=OUTAGES, help="run this outage alone")
    given = parser.parse_args(arguments)
    if given.rate <= 0:
        parser.error("--rate must be more than 0")
    least = math.ceil(given.rate * (BEFORE + given.seconds + AFTER))
    if given.tasks < least:
        parser.error(f"--tasks must be at least {least}: fewer end before the outage is over")
    load = Load(tasks=given.tasks, rate=given.rate, seconds=given.seconds)
    return load, given.release, OUTAGES if given.only is None else (given.only,)


def main() -> None:
    load, release, outages = read_load()
    if not PYTHON.exists():
        raise SystemExit(f"Celery isn't installed: make {PYTHON.parents[1].name}/.stamp")
    node = RELEASES[release]
    console = Console(width=WIDTH)
    version = {"RabbitMQ": node.home().name.rpartition("-")[2]}
    show_facts({**facts_of_processor(), **version}, console)
    rows: list[Row] = []
    for outage in outages:
        with TemporaryDirectory() as folder:
            rows += trio.run(measure, outage, load, node, Path(folder))
    console.print(table_of(rows))
    for row in rows:
        for text, number in row.failures.items():
            console.print(f"{row.outage}, {row.way}: {number} x {text}", highlight=False)
    console.print(f"load afterwards: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
