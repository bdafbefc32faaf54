"""
The price of a sidecar: its processor time and its milliseconds, at steady rates, by protocol.

    client ──────────────▶ store       direct
    client ──▶ gateway ──▶ store       a pair's primary, and well

A client sends so many messages of 1 KiB a second, on time whether or not earlier ones were
answered, and then as fast as it can. Its latencies begin when a send is due. The two ways take
turns.

The figures of two cores, which client, gateway and store share, say what other machines can do by a
model: a process takes no core longer than it works, and a message costs it what it costs here. So
n cores carry at most n / (the sum of all processes' time for a message), and no process more than
1 / (its own time). The last table holds that against what two cores did.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import quorum_queue
from benchmarks.amqp_adapter import open_service_bus
from benchmarks.amqp_figures import Flight
from benchmarks.amqp_idle import service_bus
from benchmarks.azurite_client import QUEUE as STORAGE_QUEUE
from benchmarks.azurite_client import StorageQueueClient, held, signed
from benchmarks.closed_loop import BODY, MessagesMissing
from benchmarks.fleet import (
    client_of,
    gateway_config,
    open_fleet,
    token,
)
from benchmarks.keepalive import connect
from benchmarks.machine import facts
from benchmarks.namespaces import start_gateway
from benchmarks.over_http import RestClient
from benchmarks.rabbitmq_adapter import open_rabbitmq
from benchmarks.report import print_report, show_facts
from benchmarks.service_bus import pair_config
from benchmarks.stopwatch import Stopwatch
from benchmarks.storage_queue import connection_string, storage_pair_config
from benchmarks.targets import Target, show_targets
from gateway.demo.machines import KEY, KEY_NAME, broker_config
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.ports import Broker
from tests.harness.azurite import azurite
from tests.harness.rabbitmq import USER, rabbitmq
from tests.harness.secret_files import write_secret

AMQP: Final = "AMQP 1.0"
REST: Final = "Service Bus REST"
STORAGE: Final = "Storage Queue REST"
RABBITMQ: Final = "AMQP 0-9-1"
PROTOCOLS: Final = (AMQP, REST, STORAGE, RABBITMQ)
DIRECT: Final = "direct"
GATEWAY: Final = "gateway"
WAYS: Final = (DIRECT, GATEWAY)

RATES: Final = (100, 1000, 5000)  # messages/s
FULL_SPEED: Final = math.inf
TASKS: Final = 64  # sends that may be in flight; over HTTP each has a connection
KEPT: Final = 0.95  # of a rate: a way that does less can't carry it
CORES: Final = 2  # that client, gateway and store share
# What was measured, as a share of the model's rate: processes that wait for each other, or for a
# disk, leave some of the cores idle. More than the model says can only be an error of measurement.
LEAST: Final = 0.7
MOST: Final = 1.1
WIDTH: Final = 120
_PAUSE: Final = 0.5  # seconds for a server to tidy up
_QUEUE: Final = quorum_queue.QUEUE

Send = Callable[[int], Awaitable[None]]


@attrs.frozen(kw_only=True)
class Way:
    """A way of a protocol: its sends, one for each task, and the processes that serve them."""

    protocol: str
    name: str
    sends: Sequence[Send]
    pids: Mapping[str, int]  # "gateway" where there is one, and "store"


Rounds = Mapping[tuple[str, str, float], Sequence[Flight]]  # by protocol, way and rate


@attrs.frozen(kw_only=True)
class Price:
    """The costs of the sidecar at a rate. Times are seconds."""

    protocol: str
    rate: float
    reached: Mapping[str, float]  # messages/s, by way
    direct: tuple[float, float]  # p50, p99
    added: tuple[float, float]
    processor: float  # of the gateway, for a message
    store: tuple[float, float]  # the same of the store: direct, and behind the gateway

    @property
    def is_carried(self) -> bool:
        return min(self.reached.values()) >= KEPT * self.rate


@attrs.frozen(kw_only=True)
class Limit:
    """The highest rate of a way on the cores that its processes share, and what the model says."""

    protocol: str
    way: str
    measured: float  # messages/s
    costs: Mapping[str, float]  # seconds of processor time for a message, of each process

    @property
    def predicted(self) -> float:
        return most(self.costs, CORES)

    @property
    def busy(self) -> float:
        """The cores that its processes took."""
        return self.measured * sum(self.costs.values())


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    prices: Sequence[Price]
    limits: Sequence[Limit]
    targets: Sequence[Target]


def most(costs: Mapping[str, float], cores: float) -> float:
    """Messages/s that these processes carry on so many cores, by the model."""
    return min(cores / sum(costs.values()), 1 / max(costs.values()))


async def flight_of(way: Way, rate: float, seconds: float) -> Flight:
    """Send at that rate for `seconds`; return when all sends are answered."""
    watch, began = Stopwatch(way.pids), time.perf_counter()
    number = 0

    async def loop(send: Send) -> None:
        nonlocal number
        while True:
            due = began + number / rate
            number += 1
            if number > 1 and max(due, time.perf_counter()) >= began + seconds:
                return  # the first one is sent, however late
            if (wait := due - time.perf_counter()) > 0:
                await trio.sleep(wait)
                due = time.perf_counter()  # a timer is late by up to a millisecond
            elif rate == FULL_SPEED:
                due = time.perf_counter()
            await send(number)
            watch.add(time.perf_counter() - due)

    async with trio.open_nursery() as nursery:
        for send in way.sends:
            nursery.start_soon(loop, send)
    return Flight(**watch.read())


async def measure(
    folder: Path, protocols: Sequence[str], rates: Sequence[float], rounds: int, seconds: float
) -> Report:
    """
    Raises:
        MessagesMissing: a store has fewer messages than were acknowledged.
    """
    about = dict(facts(folder))
    found: dict[tuple[str, str, float], list[Flight]] = {}
    for protocol in protocols:
        sent = 0
        async with _OPEN[protocol](folder / protocol.replace(" ", "-")) as (ways, count):
            for number in range(rounds + 1):
                for rate in (*rates, FULL_SPEED):
                    for way in ways:
                        flight = await flight_of(way, rate, seconds if number else seconds / 10)
                        sent += flight.messages
                        await trio.sleep(_PAUSE)
                        if number:  # round 0 warms up
                            found.setdefault((protocol, way.name, rate), []).append(flight)
            if (held := await count()) < sent:
                raise MessagesMissing(f"{protocol}: {sent} acknowledged, {held} are there")
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return report(about, found)


def report(about: Mapping[str, str], rounds: Rounds) -> Report:
    prices = [
        _price(protocol, rate, rounds[protocol, DIRECT, rate], flights)
        for (protocol, way, rate), flights in rounds.items()
        if way == GATEWAY and rate != FULL_SPEED
    ]
    limits = [
        _limit(protocol, way, flights)
        for (protocol, way, rate), flights in rounds.items()
        if rate == FULL_SPEED
    ]
    return Report(facts=about, prices=prices, limits=limits, targets=[*map(_target, limits)])


def _price(protocol: str, rate: float, direct: Sequence[Flight], ours: Sequence[Flight]) -> Price:
    together = list(zip(direct, ours, strict=True))
    return Price(
        protocol=protocol,
        rate=rate,
        reached={DIRECT: _median(direct, _rate), GATEWAY: _median(ours, _rate)},
        direct=(_median(direct, _p50), _median(direct, _p99)),
        added=(
            statistics.median(own.p50 - other.p50 for other, own in together),
            statistics.median(own.p99 - other.p99 for other, own in together),
        ),
        processor=_median(ours, lambda flight: flight.servers["gateway"]),
        store=(_median(direct, _store), _median(ours, _store)),
    )


def _limit(protocol: str, way: str, flights: Sequence[Flight]) -> Limit:
    costs = {
        name: statistics.median(each.servers[name] for each in flights)
        for name in flights[0].servers
    }
    costs["client"] = _median(flights, lambda flight: flight.client)
    return Limit(protocol=protocol, way=way, measured=_median(flights, _rate), costs=costs)


def _target(limit: Limit) -> Target:
    share = limit.measured / limit.predicted
    return Target(
        text=f"{limit.protocol}, {limit.way}: {LEAST} to {MOST} of the model's rate",
        reached=LEAST <= share <= MOST,
        found=f"{share:.2f}",
    )


def _median(flights: Sequence[Flight], figure: Callable[[Flight], float]) -> float:
    return statistics.median(map(figure, flights))


def _rate(flight: Flight) -> float:
    return flight.rate


def _p50(flight: Flight) -> float:
    return flight.p50


def _p99(flight: Flight) -> float:
    return flight.p99


def _store(flight: Flight) -> float:
    return flight.servers["store"]


# --- the protocols


Opened = tuple[Sequence[Way], Callable[[], Awaitable[int]]]


def _by_broker(broker: Broker) -> Sequence[Send]:
    """All tasks share the broker's connection."""

    async def send(number: int) -> None:
        await broker.send(EntityPath(_QUEUE), [Message(message_id=str(number), body=BODY)])

    return [send] * TASKS


async def _held_at(port: int) -> int:
    """The messages in the queue of a Pairgate."""
    async with client_of(port) as broker:
        return (await broker.inspect(EntityPath(_QUEUE))).active or 0


@asynccontextmanager
async def _amqp(folder: Path) -> AsyncIterator[Opened]:
    async with open_fleet(folder) as fleet, AsyncExitStack() as stack:
        store = await fleet.start("store", service_bus(_QUEUE))
        gateway = await fleet.start("gateway", pair_config(store.port, free_port()))

        async def way(name: str, port: int, pids: Mapping[str, int]) -> Way:
            job = {"user": KEY_NAME, "password": KEY}
            broker = await stack.enter_async_context(open_service_bus(job, port))
            return Way(protocol=AMQP, name=name, sends=_by_broker(broker), pids=pids)

        pids = {"store": store.pid}
        yield (
            [
                await way(DIRECT, store.port, pids),
                await way(GATEWAY, gateway.port, {"gateway": gateway.pid, **pids}),
            ],
            lambda: _held_at(store.port),
        )


@asynccontextmanager
async def _rest(folder: Path) -> AsyncIterator[Opened]:
    async with open_fleet(folder) as fleet, AsyncExitStack() as stack:
        store = await fleet.start("store", broker_config(_QUEUE))
        gateway = await fleet.start("gateway", gateway_config(store.port, free_port()))
        authorization = {"Authorization": token()}

        async def way(name: str, port: int, pids: Mapping[str, int]) -> Way:
            connections = [await stack.enter_async_context(connect(port)) for _ in range(TASKS)]
            sends = [RestClient(each, authorization).send for each in connections]
            return Way(protocol=REST, name=name, sends=sends, pids=pids)

        pids = {"store": store.pid}
        yield (
            [
                await way(DIRECT, store.port, pids),
                await way(GATEWAY, gateway.port, {"gateway": gateway.pid, **pids}),
            ],
            lambda: _held_at(store.port),
        )


@asynccontextmanager
async def _storage(folder: Path) -> AsyncIterator[Opened]:
    async with (
        azurite(folder / "azurite") as (store, port),
        open_fleet(folder) as fleet,
        AsyncExitStack() as stack,
    ):
        async with connect(port) as connection:
            await connection.ask(signed("PUT", STORAGE_QUEUE, {}), 201)
        secret = folder / "connection"
        write_secret(secret, connection_string(port))
        gateway = await fleet.start("gateway", storage_pair_config(secret))

        async def way(name: str, port: int, pids: Mapping[str, int]) -> Way:
            connections = [await stack.enter_async_context(connect(port)) for _ in range(TASKS)]
            sends = [StorageQueueClient(each).send for each in connections]
            return Way(protocol=STORAGE, name=name, sends=sends, pids=pids)

        async def count() -> int:
            async with connect(port) as connection:
                return await held(connection)

        pids = {"store": store.pid}
        yield (
            [
                await way(DIRECT, port, pids),
                await way(GATEWAY, gateway.port, {"gateway": gateway.pid, **pids}),
            ],
            count,
        )


@asynccontextmanager
async def _rabbitmq(folder: Path) -> AsyncIterator[Opened]:
    async with (
        rabbitmq(folder / "rabbitmq") as (store, port),
        open_fleet(folder) as fleet,
        AsyncExitStack() as stack,
    ):
        await quorum_queue.declare(port)
        gateway = await start_gateway(fleet, port, "rabbitmq")

        async def way(name: str, port: int, pids: Mapping[str, int]) -> Way:
            broker = await stack.enter_async_context(open_rabbitmq(port, USER))
            return Way(protocol=RABBITMQ, name=name, sends=_by_broker(broker), pids=pids)

        pids = {"store": store.pid}
        yield (
            [
                await way(DIRECT, port, pids),
                await way(GATEWAY, gateway.port, {"gateway": gateway.pid, **pids}),
            ],
            lambda: quorum_queue.declare(port),
        )


_OPEN: Final[Mapping[str, Callable[[Path], AbstractAsyncContextManager[Opened]]]] = {
    AMQP: _amqp,
    REST: _rest,
    STORAGE: _storage,
    RABBITMQ: _rabbitmq,
}


# --- the tables


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    table = Table(
        "protocol",
        "messages/s",
        "direct p50, p99 ms",
        "added p50, p99 ms",
        "gateway us",
        "of a core",
        "store us: direct, behind",
        title="what a sidecar costs: sends of 1 KiB",
        box=SIMPLE_HEAD,
    )
    for price in found.prices:
        row = [price.protocol, f"{price.rate:.0f}"]
        if price.is_carried:
            row += [
                _milliseconds(price.direct),
                _milliseconds(price.added),
                f"{1e6 * price.processor:.0f}",
                f"{price.rate * price.processor:.0%}",
                ", ".join(f"{1e6 * each:.0f}" for each in price.store),
            ]
        else:
            reached = ", ".join(f"{way} {rate:.0f}" for way, rate in price.reached.items())
            row.append(f"not carried: {reached}")
        table.add_row(*row)
    console.print(table)
    table = Table(
        "protocol",
        "way",
        "measured/s",
        "model/s",
        "busy cores",
        "CPU us",
        "gateway alone on a core/s",
        title=f"as fast as they can, {TASKS} in flight, on {CORES} cores",
        box=SIMPLE_HEAD,
    )
    for limit in found.limits:
        costs = ", ".join(f"{name} {1e6 * cost:.0f}" for name, cost in limit.costs.items())
        own = f"{1 / limit.costs['gateway']:.0f}" if limit.way == GATEWAY else ""
        rates = (f"{limit.measured:.0f}", f"{limit.predicted:.0f}", f"{limit.busy:.2f}")
        table.add_row(limit.protocol, limit.way, *rates, costs, own)
    console.print(table)
    show_targets(found.targets, console)


def _milliseconds(seconds: Sequence[float]) -> str:
    return ", ".join(f"{1e3 * each:.2f}" for each in seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description="The price of a sidecar at steady rates.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument(
        "--only", nargs="+", choices=PROTOCOLS, default=PROTOCOLS, help="protocols to measure"
    )
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="messages a second")
    parser.add_argument("--rounds", type=int, default=2, help="rounds after the warm-up")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of each measurement")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-") as folder:
        found = trio.run(
            measure,
            Path(folder),
            arguments.only,
            arguments.rates,
            arguments.rounds,
            arguments.seconds,
        )
    print_report(found, _show, as_json=arguments.json, width=WIDTH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
