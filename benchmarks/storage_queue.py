"""
Measures Storage Queue with Pairgate: over its own durable store, and in front of Azurite.

    clients ──HTTP──▶ pairgate serve ──▶ embedded:          durable
    clients ──HTTP──▶ Azurite                               saves every 5 s
    clients ──HTTP──▶ pairgate serve ──HTTP──▶ Azurite      what the gateway costs

A queue has a number of messages that stay. In turns some are put, and then as many are got and
deleted. Afterwards each queue must hold as many as before.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.azurite_client import QUEUE, StorageQueueClient, held, signed
from benchmarks.closed_loop import MessagesMissing
from benchmarks.fleet import open_fleet
from benchmarks.keepalive import RequestFailed, connect
from benchmarks.machine import facts
from benchmarks.report import print_report, show_facts
from benchmarks.sizes import fill
from benchmarks.stopwatch import processor_time
from benchmarks.storage_figures import (
    AZURITE,
    GET,
    PAIRGATE,
    PUT,
    SHALLOW,
    THROUGH,
    Flight,
    Pair,
    Place,
    Report,
    flight,
    report,
)
from benchmarks.targets import show_targets
from tests.harness.azurite import ACCOUNT, KEY, azurite, version
from tests.harness.secret_files import write_secret

WIDTH: Final = 120  # characters of the tables
REST: Final = 0.3  # seconds for a server to tidy up, before the next one is measured
LIMIT: Final = 300.0  # seconds of one turn
CONNECTIONS: Final = (1, 8, 32)
DEPTHS: Final = (SHALLOW, 10_000, 1_000_000)
FILLERS: Final = 8  # connections that fill a queue
# A get costs Azurite time for each of its messages. With 10,000 of them it serves 32 connections so
# slowly that it takes them for idle after 5 s and resets them.
MOST_DEPTH: Final = {PAIRGATE: DEPTHS[-1], AZURITE: SHALLOW, THROUGH: SHALLOW}
_ENDPOINT: Final = """
[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:0"
"""
_STORE: Final = f"""
[namespaces.here]
url = "embedded:broker.db"
{_ENDPOINT}"""


@attrs.frozen(kw_only=True)
class Effort:
    """The length and the number of the measurements."""

    rounds: int
    seconds: float  # of each measurement, whose last turn ends after that
    turn: int = 500  # messages put, and then got


FULL: Final = Effort(rounds=3, seconds=2.0)
QUICK: Final = Effort(rounds=1, seconds=0.2, turn=50)


@attrs.frozen(kw_only=True)
class Server:
    """A server that is measured, with a queue of `depth` messages."""

    way: str
    depth: int
    port: int
    pids: Mapping[str, int]  # of all processes that serve it, by name

    def processor(self) -> Mapping[str, float]:
        """Seconds of processor time so far, of each process."""
        return {name: processor_time(pid) for name, pid in self.pids.items()}


async def measure(
    folder: Path,
    ways: Sequence[str],
    depths: Sequence[int],
    connections: Sequence[int],
    effort: Effort,
) -> Report:
    """
    Raises:
        MessagesMissing: a queue doesn't hold what it has to.
    """
    about = dict(facts(folder))
    rounds: dict[Place, list[Pair]] = {}
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(_OPEN[way](folder / f"{way} {depth}", depth))
            for depth in depths
            for way in ways
            if depth <= MOST_DEPTH[way]
        ]
        # Round 0 warms up.
        for number in range(effort.rounds + 1):
            for count in connections:
                for server in servers:
                    pair = await _pair(server, count, effort)
                    await trio.sleep(REST)
                    if number:
                        place = Place(server.way, server.depth, count)
                        rounds.setdefault(place, []).append(pair)
        for server in servers:
            await _audit(server)
    if AZURITE in ways:
        about[AZURITE] = version()
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return report(about, rounds)


# --- the servers


@asynccontextmanager
async def _pairgate(folder: Path, depth: int) -> AsyncIterator[Server]:
    """Start a gateway whose store is filled before it is opened."""
    home = folder / PAIRGATE
    home.mkdir(parents=True)
    fill(home / "broker.db", depth)
    async with open_fleet(folder) as fleet:
        machine = await fleet.start(PAIRGATE, _STORE)
        yield Server(way=PAIRGATE, depth=depth, port=machine.port, pids={"Pairgate": machine.pid})


@asynccontextmanager
async def _azurite(folder: Path, depth: int) -> AsyncIterator[Server]:
    async with azurite(folder) as (process, port):
        await _fill(port, depth)
        yield Server(way=AZURITE, depth=depth, port=port, pids={"Azurite": process.pid})


@asynccontextmanager
async def _through(folder: Path, depth: int) -> AsyncIterator[Server]:
    """Azurite is the primary of a pair, of which the secondary isn't needed."""
    async with azurite(folder / "azurite") as (process, port), open_fleet(folder) as fleet:
        await _fill(port, depth)
        secret = folder / "connection"
        write_secret(secret, connection_string(port))
        machine = await fleet.start("gateway", storage_pair_config(secret))
        pids = {"gateway": machine.pid, "Azurite": process.pid}
        yield Server(way=THROUGH, depth=depth, port=machine.port, pids=pids)


def connection_string(port: int) -> str:
    """The connection string of an Azurite on that port."""
    return (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"QueueEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
    )


def storage_pair_config(secret: Path) -> str:
    """A gateway before the account whose connection string that file has."""
    return f"""
[namespaces.azurite]
url = "storage-queue:"
connection_string = {{ file = {json.dumps(str(secret))} }}

[namespaces.other]
url = "embedded:backlog.db"

[pairing]
primary = "azurite"
secondary = "other"
label = "bench"
{_ENDPOINT}"""


OpenServer = Callable[[Path, int], AbstractAsyncContextManager[Server]]
_OPEN: Final[dict[str, OpenServer]] = {
    PAIRGATE: _pairgate,
    AZURITE: _azurite,
    THROUGH: _through,
}


async def _fill(port: int, depth: int) -> None:
    """Make the queue, with its messages."""
    async with connect(port) as connection:
        await connection.ask(signed("PUT", QUEUE, {}), 201)
    left = iter(range(depth))

    async def put() -> None:
        async with connect(port) as connection:
            client = StorageQueueClient(connection)
            for number in left:
                await client.send(number)

    async with trio.open_nursery() as nursery:
        for _ in range(FILLERS):
            nursery.start_soon(put)


async def _audit(server: Server) -> None:
    async with connect(server.port) as connection:
        found = await held(connection)
    if found != server.depth:
        raise MessagesMissing(f"{server.way}: {server.depth} messages stay, {found} are there")


# --- measuring


@attrs.define(eq=False)
class Laps:
    """The turns of one kind of operation: latencies, wall and processor time."""

    server: Server
    latencies: list[float] = attrs.field(factory=list)
    seconds: float = 0.0
    client: float = 0.0  # seconds of processor time
    servers: Counter[str] = attrs.field(factory=Counter)  # the same, of each server's process

    async def run(
        self, clients: Sequence[StorageQueueClient], one: "Operation", number: int
    ) -> None:
        """
        Let the clients do a number of operations together.

        Raises:
            MessagesMissing: the operations didn't end in time.
            RequestFailed: the server answered with an error, or ended a connection.
        """
        left = iter(range(number))

        async def loop(client: StorageQueueClient) -> None:
            for each in left:
                began = time.perf_counter()
                try:
                    while not await one(client, each):  # a get that found nothing; others have some
                        await trio.lowlevel.checkpoint()
                except (RequestFailed, trio.BrokenResourceError) as error:
                    where = f"{self.server.way} with {self.server.depth} messages"
                    raise RequestFailed(f"{where}: {error}") from error
                self.latencies.append(time.perf_counter() - began)

        began, processor = time.perf_counter(), time.process_time()
        before = self.server.processor()
        with trio.move_on_after(LIMIT) as limit:
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(loop, client)
        if limit.cancelled_caught:
            raise MessagesMissing(f"a turn of {number} took longer than {LIMIT:.0f} s")
        self.seconds += time.perf_counter() - began
        self.client += time.process_time() - processor
        self.servers.update(self.server.processor())
        self.servers.subtract(before)

    def flight(self) -> Flight:
        return flight(self.latencies, self.seconds, self.client, self.servers)


Operation = Callable[[StorageQueueClient, int], Awaitable[int]]


async def put(client: StorageQueueClient, number: int) -> int:
    await client.send(number)
    return 1


async def get(client: StorageQueueClient, _: int) -> int:
    return await client.receive_and_complete()


async def _pair(server: Server, connections: int, effort: Effort) -> Pair:
    puts, gets = Laps(server), Laps(server)
    async with AsyncExitStack() as stack:
        clients = [
            StorageQueueClient(await stack.enter_async_context(connect(server.port)))
            for _ in range(connections)
        ]
        while puts.seconds + gets.seconds < effort.seconds:
            await puts.run(clients, put, effort.turn)
            await gets.run(clients, get, effort.turn)
    return Pair(put=puts.flight(), get=gets.flight())


# --- showing


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    _show_cells(found, console)
    table = Table("way", "beside", "depth", "beside", "connections", PUT, GET, box=SIMPLE_HEAD)
    for one in found.ratios:
        table.add_row(
            one.place.way,
            one.baseline.way,
            str(one.place.depth),
            str(one.baseline.depth),
            str(one.place.connections),
            f"{one.put:.2f}",
            f"{one.get:.2f}",
        )
    if found.ratios:
        console.print(table)
    show_targets(found.targets, console)


def _show_cells(found: Report, console: Console) -> None:
    columns = ("depth", "connections", "way", "operation", "per s", "p50 ms", "p99 ms", "CPU us")
    table = Table(*columns, title="messages of 1 KiB", box=SIMPLE_HEAD)
    for cell in sorted(found.cells, key=lambda cell: (cell.place.depth, cell.place.connections)):
        table.add_row(
            str(cell.place.depth),
            str(cell.place.connections),
            cell.place.way,
            cell.operation,
            f"{cell.rate:.0f}",
            f"{1e3 * cell.p50:.2f}",
            f"{1e3 * cell.p99:.2f}",
            ", ".join(
                f"{name} {1e6 * taken:.0f}"
                for name, taken in {"client": cell.client, **cell.servers}.items()
            ),
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="The speed of Storage Queue with Pairgate.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--only", nargs="+", choices=[*_OPEN], help="ways to measure")
    parser.add_argument(
        "--depths", nargs="+", type=int, default=DEPTHS, help="messages that stay in the queue"
    )
    parser.add_argument("--connections", nargs="+", type=int, default=CONNECTIONS)
    parser.add_argument("--rounds", type=int, help="rounds after the warm-up")
    parser.add_argument("--seconds", type=float, help="seconds of each measurement")
    parser.add_argument("--quick", action="store_true", help="a short run; its figures don't count")
    parser.add_argument("--folder", type=Path, help="where the stores are made: choose the disk")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    effort = attrs.evolve(
        effort,
        rounds=arguments.rounds or effort.rounds,
        seconds=arguments.seconds or effort.seconds,
    )
    depths = (SHALLOW, 1000) if arguments.quick else arguments.depths
    ways = arguments.only or [*_OPEN]
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-", dir=arguments.folder) as folder:
        found = trio.run(measure, Path(folder), ways, depths, arguments.connections, effort)
    print_report(found, _show, as_json=arguments.json, width=WIDTH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
