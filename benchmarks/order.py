"""
The cost of an order: an ordered entity beside a plain one, by the number of keys; and an entity
whose order is kept by leases, with one gateway.

    32 senders ──▶ pair ──▶ primary                      healthy
                        └─▶ secondary                    outage: the entity is pinned to the backlog
                            secondary ──▶ syphon ──▶ primary      the way back

All parts are in this process. Both namespaces keep their messages in memory, and each request to
one of them takes `--delay`, as over a network: the cost of an order is waiting. The ways take
turns, and a ratio is the median of the rounds' ratios. In the end all messages must be on the
primary, and those of each ordered key in their order.
"""

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures import medians_of, ratios_of
from benchmarks.fleet import bench_envelope
from benchmarks.machine import facts_of_processor
from benchmarks.report import report_of, show_facts
from gateway.app.runtime import Runtime
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.extensions.order.options import ORDERED as ORDER_TABLE
from gateway.extensions.order.options import OrderLeaseMode, OrderOptions
from gateway.forwarding_broker import ForwardingBroker
from gateway.pairing.additions import PairDependencies, PairPeers
from gateway.pairing.options import PairOptions, SyphonOptions
from gateway.pairing.pair import Pair, PairParts
from gateway.pairing.provision import Backlog, further_queues, provision
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, Receiver
from gateway.store.local.broker import LocalOptions
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.message import encoded_size

AnyReport = TypeVar("AnyReport", bound=attrs.AttrsInstance)

PLAIN, ORDERED, LEASED = WAYS = ("plain", "ordered", "leased")
ENTITY: Final = EntityPath("orders")
LABEL: Final = "bench"
BODY: Final = b"x" * 1024
SENDERS: Final = 32
KEYS: Final = (1, 10, 100)
ALONE: Final = PairPeers()
QUEUES: Final = 4
MILLISECONDS: Final = 2.0
ROUNDS: Final = 3
SECONDS: Final = 2.0
LONGEST: Final = 600.0  # seconds for the way back
_PAGE: Final = 1000  # messages that a peek asks for
WIDTH: Final = 110


class FarBroker(ForwardingBroker):
    """A namespace that answers a send after `delay` seconds."""

    def __init__(self, inner: Broker, delay: float) -> None:
        self._inner, self._delay = inner, delay

    @property
    def inner(self) -> Broker:
        return self._inner

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await trio.sleep(self._delay)
        await self._inner.send(entity, messages)

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self._inner.open_receiver(entity, mode)


@attrs.frozen(kw_only=True)
class Figures:
    """The medians of the rounds of one way with a number of keys."""

    way: str
    keys: int
    healthy: float  # messages/s
    healthy_cpu: float  # microseconds of processor time a message
    outage: float
    outage_cpu: float
    back: float  # messages/s that the syphon moves
    back_cpu: float
    ratios: Mapping[str, float]  # of these rates to those of the plain way


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    delay: float  # milliseconds
    figures: Sequence[Figures]


async def stored_in(primary: MemoryBroker) -> list[Delivery]:
    """All messages of the entity, in their order; one call of `peek` shows a part of many."""
    found, first = list[Delivery](), 0
    while page := await primary.peek(ENTITY, from_sequence=first, limit=_PAGE):
        found += page
        first = page[-1].sequence_number + 1
    return found


@attrs.define(eq=False)
class Round:
    """
    The work of a pair: a time of sends while all is well, another in an outage, and the way back.
    """

    pair: Pair
    primary: MemoryBroker
    syphon: Syphon
    keys: int
    sent: dict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))  # by key
    total: int = 0

    async def run(self, seconds: float) -> Mapping[str, float]:
        healthy, healthy_cpu = await self._send(seconds)
        self.pair.states.force_over(ENTITY)
        before = self.total
        outage, outage_cpu = await self._send(seconds)
        diverted = self.total - before
        self.pair.states.force_back(ENTITY)
        began, cpu = trio.current_time(), time.process_time()
        await self._move_back()
        return {
            "healthy": healthy,
            "healthy_cpu": healthy_cpu,
            "outage": outage,
            "outage_cpu": outage_cpu,
            "back": diverted / (trio.current_time() - began),
            "back_cpu": 1e6 * (time.process_time() - cpu) / diverted,
        }

    async def _send(self, seconds: float) -> tuple[float, float]:
        """Messages/s, and microseconds of processor time for each message."""
        before, cpu, began = self.total, time.process_time(), trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(SENDERS):
                nursery.start_soon(self._sender, number, began + seconds)
        sent, took = self.total - before, trio.current_time() - began
        return sent / took, 1e6 * (time.process_time() - cpu) / sent

    async def _sender(self, number: int, until: float) -> None:
        turn = number
        while trio.current_time() < until:
            key = str(turn % self.keys)
            turn += SENDERS + 1
            name = f"{number}-{turn}-{trio.current_time()}"
            message = Message(message_id=name, body=BODY, session_id=key)
            self.sent[key].append(name)  # a call has its place in the order from its beginning
            await self.pair.broker.send_diverting(ENTITY, [message])
            self.total += 1

    async def _move_back(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.syphon.run)
            with trio.fail_after(LONGEST):
                # Polled, since no event reports that all have moved.
                for pause in itertools.repeat(0.02):
                    if (await self.primary.inspect(ENTITY)).active == self.total:
                        break
                    await trio.sleep(pause)
            nursery.cancel_scope.cancel()

    async def check(self, *, ordered: bool) -> None:
        """
        Each message is there once.

        Raises:
            SystemExit: one is missing, or an ordered key isn't in its order.
        """
        found: dict[str, list[str]] = defaultdict(list)
        for each in await stored_in(self.primary):
            found[str(each.message.session_id)].append(str(each.message.message_id))
        for key, names in self.sent.items():
            if (found[key] if ordered else sorted(found[key])) != (
                names if ordered else sorted(names)
            ):
                raise SystemExit(f"key {key}: the messages aren't those that were sent")


def pair_options(order: OrderOptions) -> PairOptions:
    return PairOptions(label=LABEL).with_table(ORDER_TABLE, order)


# A pair that needs each queue that there may be.
ALL: Final = OrderOptions(ordered=("*",), order_lease=OrderLeaseMode.WAIT)


def make_pair(
    runtime: Runtime,
    primary: Broker,
    secondary: Broker,
    ordered: Sequence[str],
    order_lease: OrderLeaseMode,
    peers: PairPeers = ALONE,
) -> Pair:
    """A pair before these namespaces, which doesn't run yet."""
    queues = tuple(backlog.queue_name(LABEL, index) for index in range(QUEUES))
    dependencies = PairDependencies(
        clock=runtime.now,
        rng=runtime.rng("order"),
        new_id=runtime.new_id,
        observer=runtime.observer,
        measure=encoded_size,
    )
    return PairParts(
        primary=primary,
        secondary=secondary,
        options=pair_options(OrderOptions(ordered=tuple(ordered), order_lease=order_lease)),
        backlog=Backlog(queues=queues, max_message_size=None),
        envelope=bench_envelope(encrypts=False),
        dependencies=dependencies,
        peers=peers,
    ).assemble()


@asynccontextmanager
async def open_round(way: str, keys: int, delay: float) -> AsyncIterator[Round]:
    runtime = Runtime()
    options = LocalOptions()
    rng = runtime.rng("order")
    primary, secondary = (MemoryBroker(runtime.now, rng, options) for _ in range(2))
    await primary.create_queue(ENTITY, QueueProperties())
    await provision(secondary, LABEL, QUEUES, further=further_queues(pair_options(ALL)))
    far, away = FarBroker(primary, delay), FarBroker(secondary, delay)
    patterns = () if way == PLAIN else ("*",)
    mode = OrderLeaseMode.WAIT if way == LEASED else OrderLeaseMode.OFF
    pair = make_pair(runtime, far, away, patterns, mode)
    syphon = Syphon(
        primary=far,
        source=away,
        label=LABEL,
        options=SyphonOptions(),
        envelope=bench_envelope(encrypts=False),
        clock=runtime.now,
        rng=rng,
        observer=runtime.observer,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(pair.run)
        yield Round(pair, primary, syphon, keys)
        nursery.cancel_scope.cancel()


async def measure(
    folder: Path, *, keys: Sequence[int], rounds: int, seconds: float, delay: float
) -> Report:
    """Measure all ways in turn."""
    taken: dict[tuple[str, int], list[Mapping[str, float]]] = defaultdict(list)
    for number in range(rounds + 1):
        for each in keys:
            for way in WAYS:
                async with open_round(way, each, delay) as made:
                    found = await made.run(seconds)
                    await made.check(ordered=way != PLAIN)
                if number:  # round 0 warms up
                    taken[way, each].append(found)
    figures = [_figures(way, each, taken) for each in keys for way in WAYS]
    return Report(facts=dict(facts_of_processor()), delay=1000 * delay, figures=figures)


def _figures(
    way: str, keys: int, taken: Mapping[tuple[str, int], Sequence[Mapping[str, float]]]
) -> Figures:
    found, plain = taken[way, keys], taken[PLAIN, keys]
    return Figures(way=way, keys=keys, ratios=ratios_of(found, plain), **medians_of(found))


def _show(report: Report, console: Console) -> None:
    show_facts(report.facts, console)
    columns = (
        "keys",
        "way",
        "healthy/s",
        "",
        "CPU us",
        "outage/s",
        "",
        "CPU us",
        "back/s",
        "",
        "CPU us",
    )
    title = f"{SENDERS} senders, {report.delay:g} ms a send; ratios to plain"
    table = Table(*columns, title=title, box=SIMPLE_HEAD)
    for each in report.figures:
        table.add_row(
            str(each.keys),
            each.way,
            f"{each.healthy:.0f}",
            f"{each.ratios['healthy']:.2f}",
            f"{each.healthy_cpu:.0f}",
            f"{each.outage:.0f}",
            f"{each.ratios['outage']:.2f}",
            f"{each.outage_cpu:.0f}",
            f"{each.back:.0f}",
            f"{each.ratios['back']:.2f}",
            f"{each.back_cpu:.0f}",
        )
    console.print(table)


def run(
    description: str,
    measure: Callable[..., Awaitable[AnyReport]],
    show: Callable[[AnyReport, Console], None],
    *,
    keys: Sequence[int],
    seconds: float,
    width: int = WIDTH,
) -> int:
    """Run a benchmark of ordered entities with the options of its command; 0: its exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--keys", nargs="+", type=int, default=keys, help="numbers of keys")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=seconds, help="of each round and way")
    parser.add_argument("--delay", type=float, default=MILLISECONDS, help="milliseconds a send")
    given = parser.parse_args()
    work = partial(
        measure,
        keys=given.keys,
        rounds=given.rounds,
        seconds=given.seconds,
        delay=given.delay / 1000,
    )
    report_of(work, show, as_json=given.json, width=width)
    return 0


def main() -> int:
    return run("The cost of an order.", measure, _show, keys=KEYS, seconds=SECONDS)


if __name__ == "__main__":
    sys.exit(main())
