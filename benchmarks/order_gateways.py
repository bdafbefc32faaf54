"""
The cost of an order with two gateways, at both of which producers send to the same keys.

    8 senders ──▶ gateway one ──┐             plain      no order
                     ▲ │        ├─▶ primary   wait       the gateway that has the key's lease sends;
                     │ ▼        │                        the other one waits until it lets go
    8 senders ──▶ gateway two ──┘             forward    the other one forwards its sends to it

All parts are in this process; the gateways forward over TCP on this machine. The namespaces keep
their messages in memory, and each send to one of them takes `--delay`. The ways take turns, and a
ratio is the median of the rounds' ratios. In the end all messages must be on the primary once, and
those of each sender and key in their order.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures import medians_of, ratios_of
from benchmarks.machine import facts_of_processor
from benchmarks.order import (
    ALL,
    BODY,
    ENTITY,
    LABEL,
    QUEUES,
    FarBroker,
    make_pair,
    pair_options,
    run,
    stored_in,
)
from benchmarks.report import show_facts
from gateway.app.assembly.others import HeldParts
from gateway.app.runtime import Runtime
from gateway.demo.ports import free_port
from gateway.domain.entity import QueueProperties
from gateway.domain.message import Message
from gateway.extensions.cluster.cluster import Cluster, ClusterPort
from gateway.extensions.cluster.leases import ClusterLeases
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.order.options import OrderLeaseMode
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.net.listeners import open_listener
from gateway.pairing.additions import PairPeers
from gateway.pairing.pair import Pair
from gateway.pairing.provision import further_queues, provision
from gateway.store.local.broker import LocalOptions
from gateway.store.local.memory import MemoryBroker

PLAIN, WAIT, FORWARD = WAYS = ("plain", "wait", "forward")
MODES: Final = {
    PLAIN: OrderLeaseMode.OFF,
    WAIT: OrderLeaseMode.WAIT,
    FORWARD: OrderLeaseMode.FORWARD,
}
GATEWAYS: Final = 2
SENDERS: Final = 16  # at all gateways
KEYS: Final = (1, 100)
SECONDS: Final = 5.0  # several times as long as a gateway keeps a lease that another one wants
WARM_UP: Final = 1.0
SECRET: Final = "a secret of a cluster, for benchmarks"


@attrs.frozen(kw_only=True)
class Figures:
    """The medians of the rounds of one way with a number of keys."""

    way: str
    keys: int
    rate: float  # messages/s
    p50: float  # milliseconds of a send
    p99: float
    longest: float
    cpu: float  # microseconds of processor time a message
    ratios: Mapping[str, float]  # of these figures to those of the plain way


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    delay: float  # milliseconds
    figures: Sequence[Figures]


@attrs.define(eq=False)
class Round:
    """Two gateways before one primary."""

    pairs: Sequence[Pair]
    primary: MemoryBroker
    keys: int
    sent: dict[tuple[int, str], list[str]] = attrs.field(factory=lambda: defaultdict(list))
    total: int = 0

    async def run(self, seconds: float) -> Mapping[str, float]:
        await self._send(WARM_UP)
        before, cpu, began = self.total, time.process_time(), trio.current_time()
        took = sorted(await self._send(seconds))
        sent = self.total - before
        return {
            "rate": sent / (trio.current_time() - began),
            "p50": 1e3 * statistics.median(took),
            "p99": 1e3 * took[len(took) * 99 // 100],
            "longest": 1e3 * took[-1],
            "cpu": 1e6 * (time.process_time() - cpu) / sent,
        }

    async def _send(self, seconds: float) -> Sequence[float]:
        """Send for `seconds`; return the duration of each send."""
        took = list[float]()
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            for number in range(SENDERS):
                nursery.start_soon(self._sender, number, until, took)
        return took

    async def _sender(self, number: int, until: float, took: list[float]) -> None:
        broker = self.pairs[number % len(self.pairs)].broker
        turn = number
        while (began := trio.current_time()) < until:
            key = str(turn % self.keys)
            turn += SENDERS + 1
            name = f"{number}-{turn}-{began}"
            message = Message(message_id=name, body=BODY, session_id=key)
            await broker.send_diverting(ENTITY, [message])
            took.append(trio.current_time() - began)
            self.sent[number, key].append(name)
            self.total += 1

    async def check(self) -> None:
        """
        Each message is there once.

        Raises:
            SystemExit: one is missing, or those of a sender and a key aren't in their order.
        """
        found: dict[tuple[int, str], list[str]] = defaultdict(list)
        for each in await stored_in(self.primary):
            name = str(each.message.message_id)
            found[int(name.partition("-")[0]), str(each.message.session_id)].append(name)
        if found != self.sent:
            raise SystemExit("the messages aren't those that were sent, in their order")


@asynccontextmanager
async def open_round(way: str, keys: int, delay: float) -> AsyncIterator[Round]:
    runtime = Runtime()
    rng = runtime.rng("order")
    primary, secondary = (MemoryBroker(runtime.now, rng, LocalOptions()) for _ in range(2))
    await primary.create_queue(ENTITY, QueueProperties())
    await provision(secondary, LABEL, QUEUES, further=further_queues(pair_options(ALL)))
    far, away = FarBroker(primary, delay), FarBroker(secondary, delay)
    patterns = () if way == PLAIN else ("*",)
    addresses = tuple(f"127.0.0.1:{free_port()}" for _ in range(GATEWAYS))
    clusters = [_cluster(runtime, address, addresses) for address in addresses]
    pairs = [
        make_pair(runtime, far, away, patterns, MODES[way], PairPeers(orderers=cluster.peers))
        for cluster in clusters
    ]
    async with trio.open_nursery() as nursery:
        for pair, cluster in zip(pairs, clusters, strict=True):
            if way == FORWARD:
                await _join(nursery, runtime, pair, cluster)
            await nursery.start(pair.run)
        yield Round(pairs, primary, keys)
        nursery.cancel_scope.cancel()


def _cluster(runtime: Runtime, address: str, peers: tuple[str, ...]) -> Cluster:
    options = ClusterOptions(address=address, peers=peers, secrets=(SECRET,))
    return Cluster.of(options, runtime.rng("cluster"), runtime.observer)


async def _join(nursery: trio.Nursery, runtime: Runtime, pair: Pair, cluster: Cluster) -> None:
    """Let the pair and its peers forward sends to each other."""
    address = cluster.options.address
    own = Leases(pair.broker, runtime.now, new_token=cluster.tokens.new_token)
    leases = ClusterLeases(own, cluster.peers)
    held = LeasedVisibility(pair.broker, leases, runtime.now)
    held_parts = HeldParts(own=own, leases=leases, visibility=held)
    server = cluster.server(held_parts, orders=pair.in_order)
    listener = await open_listener(address, on_crash=_fail)
    port = ClusterPort(address, listener, server, on_open=lambda _: None)
    await nursery.start(cluster.run)
    await nursery.start(port.run)


def _fail(error: BaseException) -> None:
    raise error


async def measure(
    folder: Path, *, keys: Sequence[int], rounds: int, seconds: float, delay: float
) -> Report:
    """Measure all ways in turn."""
    taken: dict[tuple[str, int], list[Mapping[str, float]]] = defaultdict(list)
    facts = dict(facts_of_processor())
    for number in range(rounds + 1):
        for each in keys:
            for way in WAYS:
                async with open_round(way, each, delay) as made:
                    found = await made.run(seconds if number else WARM_UP)
                    await made.check()
                if number:  # round 0 warms up
                    taken[way, each].append(found)
    figures = [
        Figures(
            way=way,
            keys=each,
            ratios=ratios_of(taken[way, each], taken[PLAIN, each]),
            **medians_of(taken[way, each]),
        )
        for each in keys
        for way in WAYS
    ]
    return Report(facts=facts, delay=1000 * delay, figures=figures)


def _show(report: Report, console: Console) -> None:
    show_facts(report.facts, console)
    columns = ("keys", "way", "sends/s", "", "p50 ms", "", "p99 ms", "", "max ms", "CPU us", "")
    title = f"{SENDERS} senders at {GATEWAYS} gateways, {report.delay:g} ms a send; ratios to plain"
    table = Table(*columns, title=title, box=SIMPLE_HEAD)
    for each in report.figures:
        table.add_row(
            str(each.keys),
            each.way,
            f"{each.rate:.0f}",
            f"{each.ratios['rate']:.2f}",
            f"{each.p50:.1f}",
            f"{each.ratios['p50']:.2f}",
            f"{each.p99:.1f}",
            f"{each.ratios['p99']:.2f}",
            f"{each.longest:.0f}",
            f"{each.cpu:.0f}",
            f"{each.ratios['cpu']:.2f}",
        )
    console.print(table)


def main() -> int:
    text = "The cost of an order with two gateways."
    return run(text, measure, _show, keys=KEYS, seconds=SECONDS)


if __name__ == "__main__":
    sys.exit(main())
