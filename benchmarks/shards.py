"""
Rates of a sharded queue, by the number of its shards, beside a plain queue.

    32 senders ──▶ ShardedBroker ──▶ namespace ──▶ ShardedBroker ──▶ 8 receivers

Namespaces:

    limited    in this process, in memory; each queue takes one request at a time, which lasts
               `--delay`: the limit of a queue, whatever the machine
    rabbitmq   one node, quorum queues
    azurite    two servers, between which the shards alternate

The ways take turns, and a ratio is the median of the rounds' ratios. Each message must arrive
exactly once: else the run ends with an error.
"""

import argparse
import itertools
import random
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures import medians_of, ratios_of
from benchmarks.machine import facts_of_processor
from benchmarks.report import report_of, show_facts
from gateway.brokers.rabbitmq.broker import open_namespace as open_rabbitmq
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.brokers.storage_queue.broker import open_namespace as open_storage
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.capabilities.settling import settle_all
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, Delivery, Message, ReceiveMode, Settlement
from gateway.extensions.sharding.broker import ShardedBroker
from gateway.extensions.sharding.places import ShardPlaces
from gateway.extensions.sharding.table import ShardingRule, ShardTable
from gateway.forwarding_broker import ForwardingBroker
from gateway.ports import Broker, Receiver
from gateway.store.local.memory import MemoryBroker
from tests.harness.azurite import ACCOUNT, KEY, azurite
from tests.harness.rabbitmq import USER, rabbitmq

LIMITED, RABBITMQ, AZURITE = KINDS = ("limited", "rabbitmq", "azurite")
PLAIN: Final = 0  # shards: a queue that isn't sharded
SHARDS: Final = (PLAIN, 1, 2, 4)
BODY: Final = b"x" * 1024
SENDERS: Final = 32
RECEIVERS: Final = 8
LIMIT: Final = 10  # deliveries of one receive
MILLISECONDS: Final = 2.0
ROUNDS: Final = 3
SECONDS: Final = 2.0
LONGEST: Final = 120.0  # seconds for the receivers
WIDTH: Final = 100


def utc() -> datetime:
    return datetime.now(UTC)


@attrs.define(eq=False)
class LimitedBroker(ForwardingBroker):
    """A namespace each of whose queues takes one request at a time, which lasts `delay` seconds."""

    _inner: Broker
    delay: float
    _turns: dict[str, trio.Lock] = attrs.field(factory=lambda: defaultdict(trio.Lock), init=False)

    @property
    def inner(self) -> Broker:
        return self._inner

    async def take_turn(self, entity: EntityPath) -> None:
        async with self._turns[entity.key]:
            await trio.sleep(self.delay)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self.take_turn(entity)
        await self._inner.send(entity, messages)

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        async with self._inner.open_receiver(entity, mode) as inner:
            yield LimitedReceiver(inner, entity, self)


@attrs.frozen(eq=False)
class LimitedReceiver:
    """A receiver of a `LimitedBroker`: a receive is a request, and so is each settlement."""

    inner: Receiver
    entity: EntityPath
    broker: LimitedBroker

    async def receive(self, limit: int) -> Sequence[Delivery]:
        found = await self.inner.receive(limit)
        await self.broker.take_turn(self.entity)
        return found

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await self.broker.take_turn(self.entity)
        await self.inner.settle(delivery, settlement)

    async def renew(self, delivery: Delivery) -> datetime:
        return await self.inner.renew(delivery)


Open = Callable[[], AbstractAsyncContextManager[Sequence[Broker]]]


@attrs.frozen(kw_only=True)
class Figures:
    """The medians of the rounds of a namespace with a number of shards."""

    namespace: str
    shards: int  # 0: a plain queue
    sends: float  # messages/s
    send_cpu: float  # microseconds of this process's processor time for each message
    receives: float  # messages/s that are received and completed
    receive_cpu: float
    ratios: Mapping[str, float]  # of these to those of the plain queue


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    delay: float  # milliseconds
    figures: Sequence[Figures]


async def measure(
    folder: Path,
    *,
    kinds: Sequence[str],
    shards: Sequence[int],
    rounds: int,
    seconds: float,
    delay: float,
) -> Report:
    """Measure all ways in turn."""
    taken: dict[tuple[str, int], list[Mapping[str, float]]] = defaultdict(list)
    for kind in kinds:
        async with AsyncExitStack() as stack:
            namespaces = await _opened(stack, kind, folder, delay)
            for number in range(rounds + 1):
                for each in shards:
                    found = await _round(namespaces, EntityPath(f"q{number}-{each}"), each, seconds)
                    if number:  # round 0 warms up
                        taken[kind, each].append(found)
    figures = [_figures(kind, each, taken) for kind in kinds for each in shards]
    return Report(facts=dict(facts_of_processor()), delay=1000 * delay, figures=figures)


async def _opened(stack: AsyncExitStack, kind: str, folder: Path, delay: float) -> Sequence[Broker]:
    """The namespaces between which the shards alternate."""
    rng = random.Random(0)
    if kind == LIMITED:
        memory = await stack.enter_async_context(MemoryBroker(utc, rng))
        return [LimitedBroker(memory, delay)]
    if kind == RABBITMQ:
        _, port = await stack.enter_async_context(rabbitmq(folder / kind))
        options = RabbitmqOptions(password=USER)
        adapter = open_rabbitmq("rabbitmq", f"//{USER}@127.0.0.1:{port}/%2f", options, utc, rng)
        return [await stack.enter_async_context(adapter)]
    found = list[Broker]()
    for name in ("first", "second"):
        _, port = await stack.enter_async_context(azurite(folder / name))
        rest = f"AccountName={ACCOUNT};QueueEndpoint=http://127.0.0.1:{port}/{ACCOUNT}"
        storage = open_storage(rest, StorageQueueNamespaceOptions(key=KEY), utc, rng)
        found.append(await stack.enter_async_context(storage))
    return found


async def _round(
    namespaces: Sequence[Broker], queue: EntityPath, shards: int, seconds: float
) -> Mapping[str, float]:
    broker = namespaces[0] if shards == PLAIN else _sharded(namespaces, queue, shards)
    await broker.create_queue(queue, QueueProperties())
    began, cpu = trio.current_time(), time.process_time()
    sent = await _send(broker, queue, began + seconds)
    send_took, send_cpu = trio.current_time() - began, time.process_time() - cpu
    began, cpu = trio.current_time(), time.process_time()
    found = await _receive(broker, queue, len(sent))
    took, receive_cpu = trio.current_time() - began, time.process_time() - cpu
    if sorted(found) != sorted(sent):
        raise SystemExit(f"{queue}: the messages aren't those that were sent")
    await broker.delete_queue(queue)
    return {
        "sends": len(sent) / send_took,
        "send_cpu": 1e6 * send_cpu / len(sent),
        "receives": len(sent) / took,
        "receive_cpu": 1e6 * receive_cpu / len(sent),
    }


def _sharded(namespaces: Sequence[Broker], queue: EntityPath, shards: int) -> ShardedBroker:
    names = tuple(str(number % len(namespaces)) for number in range(shards))
    table = ShardTable.of([ShardingRule(queue=queue.name, shards=shards, namespaces=names)])
    others = {str(number): each for number, each in enumerate(namespaces) if number}
    places = ShardPlaces(home=namespaces[0], others=others, table=table)
    return ShardedBroker(broker=places, table=table, rng=random.Random(0), clock=utc)


async def _send(broker: Broker, queue: EntityPath, until: float) -> list[str]:
    sent: list[str] = []
    names = map(str, itertools.count())

    async def send() -> None:
        while trio.current_time() < until:
            name = next(names)
            await broker.send(queue, [Message(message_id=name, body=BODY)])
            sent.append(name)

    async with trio.open_nursery() as nursery:
        for _ in range(SENDERS):
            nursery.start_soon(send)
    return sent


async def _receive(broker: Broker, queue: EntityPath, count: int) -> list[str]:
    found: list[str] = []

    async def receive(scope: trio.CancelScope) -> None:
        async with broker.open_receiver(queue) as receiver:
            while len(found) < count:
                deliveries = await receiver.receive(LIMIT)
                verdicts = await settle_all(receiver, [(each, Complete()) for each in deliveries])
                if any(verdicts):
                    raise SystemExit(f"{queue}: a settlement failed: {verdicts}")
                found.extend(str(each.message.message_id) for each in deliveries)
            scope.cancel()

    with trio.fail_after(LONGEST):
        async with trio.open_nursery() as nursery:
            for _ in range(RECEIVERS):
                nursery.start_soon(receive, nursery.cancel_scope)
    return found


def _figures(
    kind: str, shards: int, taken: Mapping[tuple[str, int], Sequence[Mapping[str, float]]]
) -> Figures:
    found, plain = taken[kind, shards], taken.get((kind, PLAIN), taken[kind, shards])
    return Figures(
        namespace=kind, shards=shards, ratios=ratios_of(found, plain), **medians_of(found)
    )


def _show(report: Report, console: Console) -> None:
    show_facts(report.facts, console)
    columns = ("namespace", "shards", "sends/s", "", "CPU us", "", "receives/s", "", "CPU us", "")
    title = (
        f"{SENDERS} senders, {RECEIVERS} receivers, {report.delay:g} ms; ratios to a plain queue"
    )
    table = Table(*columns, title=title, box=SIMPLE_HEAD)
    for each in report.figures:
        table.add_row(
            each.namespace,
            str(each.shards or "plain"),
            f"{each.sends:.0f}",
            f"{each.ratios['sends']:.2f}",
            f"{each.send_cpu:.0f}",
            f"{each.ratios['send_cpu']:.2f}",
            f"{each.receives:.0f}",
            f"{each.ratios['receives']:.2f}",
            f"{each.receive_cpu:.0f}",
            f"{each.ratios['receive_cpu']:.2f}",
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="Rates of a sharded queue.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, metavar="NAMESPACE")
    parser.add_argument(
        "--shards", nargs="+", type=int, default=SHARDS, help="shards; 0: a plain queue"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="seconds of sends in each round"
    )
    parser.add_argument(
        "--delay", type=float, default=MILLISECONDS, help="milliseconds of a limited request"
    )
    arguments = parser.parse_args()
    report_of(
        lambda folder: measure(
            folder,
            kinds=arguments.only,
            shards=arguments.shards,
            rounds=arguments.rounds,
            seconds=arguments.seconds,
            delay=arguments.delay / 1000,
        ),
        _show,
        as_json=arguments.json,
        width=WIDTH,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
