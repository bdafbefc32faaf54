"""
A listener with a thousand queues beside a listener with a single queue, and an agent's requests for
depths.

    python -m benchmarks.listener_scale [--queues N] [--minutes M] [--messages N] [--json]

idle     requests, tasks and memory without a message, on virtual time, on a namespace in memory
start    virtual seconds until all queues are open, also where the namespace doesn't answer
rates    processor time for a message, in many queues and in one
agent    requests for the looks of an agent in a day, with some busy queues
"""

import argparse
import gc
import random
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.listener_idle import HOURS, NAIVE
from benchmarks.report import print_report
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message, ReceiveMode
from gateway.frontends.admin.scale import ScaleFigures
from gateway.listening import RAW, Item, ListenerOptions, QueueListener, Triggers
from gateway.listening.agent.work_depth import WorkWatch
from gateway.ports import Broker, Receiver
from gateway.store.local.memory import MemoryBroker
from gateway.wire.pairgate.scale import EntityFigures
from tests.harness.clocks import VirtualClock
from tests.harness.determinism import run_seeded
from tests.harness.polled import PolledBroker

LATENCY: Final = 0.005  # seconds to open a queue
LONGEST: Final = 4 * 3600.0  # virtual seconds of a start
DAY: Final = 86_400.0
LOOK: Final = 5.0  # seconds between two looks of an agent, the default
SEED: Final = 1
MOST_ROUNDS: Final = 10_000_000  # of Trio's loop in a virtual second
_WIDTH: Final = 120


@attrs.frozen(kw_only=True)
class Way:
    """A way to watch idle queues."""

    name: str
    polls: bool = True
    triggers: bool = False
    hears_all: bool = False
    idle_max: float = 60.0


WAYS: Final = (
    Way(name="polls each second, as the source", idle_max=1.0),
    Way(name="polls"),
    Way(name="triggers, and a sweep", triggers=True),
    Way(name="triggers of all senders", triggers=True, hears_all=True),
    Way(name="the namespace pushes", polls=False),
)


@attrs.frozen(kw_only=True)
class Idle:
    """A listener without a message."""

    way: str
    queues: int
    requests: float  # of one queue in 22 hours
    of_naive: float
    tasks: int
    kilobytes: float  # of one queue
    processor: float  # seconds in an hour


@attrs.frozen(kw_only=True)
class Start:
    namespace: str
    queues: int
    seconds: float


@attrs.frozen(kw_only=True)
class Rate:
    queues: int
    messages: int
    microseconds: float  # of the processor, for a message


@attrs.frozen(kw_only=True)
class Looks:
    """An agent's requests to the namespace."""

    way: str
    queues: int
    busy: int
    a_day: float


@attrs.frozen(kw_only=True)
class Report:
    idle: Sequence[Idle]
    starts: Sequence[Start]
    rates: Sequence[Rate]
    looks: Sequence[Looks]


@attrs.define(eq=False, kw_only=True)
class FarBroker(PolledBroker):
    """A namespace whose queues take a while to open; None: it doesn't answer."""

    latency: float | None = LATENCY

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        await trio.sleep(inf if self.latency is None else self.latency)
        async with PolledBroker.open_receiver(self, entity, mode) as receiver:
            yield receiver


def names_of(queues: int) -> list[EntityPath]:
    return [EntityPath(f"queue-{number}") for number in range(queues)]


async def store_of(queues: Sequence[EntityPath]) -> MemoryBroker:
    store = MemoryBroker(VirtualClock(), random.Random(1))
    for queue in queues:
        await store.create_queue(queue, QueueProperties())
    return store


def listener_of(
    broker: Broker, queues: Sequence[EntityPath], way: Way, handled: list[int] | None = None
) -> QueueListener[Message]:
    async def handle(item: Item[Message]) -> None:
        if handled is not None:
            handled.append(1)

    triggers = Triggers(hears_all_senders=way.hears_all) if way.triggers else None
    return QueueListener(
        broker=broker,
        queues=" ".join(queue.name for queue in queues),
        format=RAW,
        handle=handle,
        clock=VirtualClock(),
        rng=random.Random(2),
        options=ListenerOptions(idle_max=way.idle_max),
        triggers=triggers,
    )


def measure_idle(way: Way, queues: int, minutes: float) -> Idle:
    async def main() -> Idle:
        paths = names_of(queues)
        store = await store_of(paths)
        broker: Broker = PolledBroker(inner=store) if way.polls else store
        async with trio.open_nursery() as nursery:
            before = trio.lowlevel.current_statistics().tasks_living
            with _memory() as used:
                listener = listener_of(broker, paths, way)
                await nursery.start(listener.run)
                await trio.sleep(10.0)
                kilobytes = used() / queues / 1024
            await trio.sleep(600.0)  # the pauses have become long
            counted = _billed(listener)
            began = time.process_time()
            await trio.sleep(60.0 * minutes)
            processor = (time.process_time() - began) * 60.0 / minutes
            requests = (_billed(listener) - counted) * HOURS * 60.0 / minutes / queues
            tasks = trio.lowlevel.current_statistics().tasks_living - before
            nursery.cancel_scope.cancel()
        return Idle(
            way=way.name,
            queues=queues,
            requests=requests,
            of_naive=requests / NAIVE,
            tasks=tasks,
            kilobytes=kilobytes,
            processor=processor,
        )

    return run_seeded(main, seed=SEED, most_rounds=MOST_ROUNDS)


def measure_start(queues: int, *, answers: bool) -> Start:
    async def main() -> float:
        paths = names_of(queues)
        store = await store_of(paths)
        broker = FarBroker(inner=store, latency=LATENCY if answers else None)
        listener = listener_of(broker, paths, WAYS[1])
        began = trio.current_time()
        with trio.move_on_after(LONGEST):
            async with trio.open_nursery() as nursery:
                await nursery.start(listener.run)
                nursery.cancel_scope.cancel()
        return trio.current_time() - began

    seconds = run_seeded(main, seed=SEED, most_rounds=MOST_ROUNDS)
    return Start(
        namespace="answers" if answers else "doesn't answer", queues=queues, seconds=seconds
    )


def measure_rate(queues: int, messages: int) -> Rate:
    async def main() -> float:
        paths = names_of(queues)
        store = await store_of(paths)
        for queue in paths:
            await store.send(queue, [Message(body=b"x" * 100)] * (messages // queues))
        handled: list[int] = []
        listener = listener_of(store, paths, Way(name="pushes", polls=False), handled)
        wanted = messages // queues * queues
        began = time.process_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run)
            while len(handled) < wanted:  # noqa: ASYNC110 on virtual time
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        return (time.process_time() - began) / wanted

    seconds = run_seeded(main, seed=SEED, most_rounds=MOST_ROUNDS)
    return Rate(queues=queues, messages=messages, microseconds=1e6 * seconds)


@attrs.define(eq=False, kw_only=True)
class Asked:
    """The figures of a gateway's front end, without the network between."""

    figures_of: ScaleFigures
    one_by_one: bool = False

    async def figures(self, queues: Sequence[EntityPath]) -> Sequence[EntityFigures]:
        if self.one_by_one:
            return [await self.figures_of.of(queue) for queue in queues]
        return await self.figures_of.of_all(queues)


def measure_looks(queues: int, busy: int, minutes: float, *, one_by_one: bool) -> Looks:
    async def main() -> float:
        paths = names_of(queues)
        store = await store_of(paths)
        for queue in paths[:busy]:
            await store.send(queue, [Message(body=b"x")])
        figures = ScaleFigures(broker=store, wall_clock=VirtualClock(), answer_timeout=5.0)
        watch = WorkWatch(
            reader=Asked(figures_of=figures, one_by_one=one_by_one),  # type: ignore[arg-type]
            queues=paths,
            idle_interval=60.0,
            is_told=not one_by_one,
        )
        before = store.meter.usage().total
        for _ in range(round(60.0 * minutes / LOOK)):
            await watch.poll()
            await trio.sleep(LOOK)
        return (store.meter.usage().total - before) * DAY / 60.0 / minutes

    a_day = run_seeded(main, seed=SEED, most_rounds=MOST_ROUNDS)
    way = "each queue at each look, one by one" if one_by_one else "busy ones; all once a minute"
    return Looks(way=way, queues=queues, busy=busy, a_day=a_day)


def measure(queues: int, minutes: float, messages: int) -> Report:
    return Report(
        idle=[measure_idle(way, number, minutes) for number in (1, queues) for way in WAYS],
        starts=[measure_start(queues, answers=answers) for answers in (True, False)],
        rates=[measure_rate(number, messages) for number in (1, queues, 1, queues)],
        looks=[
            measure_looks(queues, busy, min(minutes, 10.0), one_by_one=one_by_one)
            for busy in (0, queues // 100)
            for one_by_one in (True, False)
        ],
    )


def _billed(listener: QueueListener[Message]) -> int:
    return sum(state.billed for state in listener.states().values())


@contextmanager
def _memory() -> Iterator[Callable[[], int]]:
    """Trace memory; the value returns the bytes that are in use."""
    gc.collect()
    tracemalloc.start()
    try:
        yield _used
    finally:
        tracemalloc.stop()


def _used() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def show(report: Report, console: Console) -> None:
    idle = Table("idle", "queues", title=f"a queue without a message, {HOURS} hours")
    for name in ("requests", "of a thread's", "tasks", "KiB a queue", "CPU s/hour"):
        idle.add_column(name, justify="right")
    for each in report.idle:
        idle.add_row(
            each.way,
            f"{each.queues}",
            f"{each.requests:.0f}",
            f"{100 * each.of_naive:.2f} %",
            f"{each.tasks}",
            f"{each.kilobytes:.1f}",
            f"{each.processor:.1f}",
        )
    console.print(idle)
    for start in report.starts:
        console.print(f"start of {start.queues}, {start.namespace}: {start.seconds:.2f} s")
    for rate in report.rates:
        console.print(f"{rate.messages} messages in {rate.queues}: {rate.microseconds:.0f} us each")
    for looks in report.looks:
        console.print(
            f"agent, {looks.queues} queues, {looks.busy} busy, {looks.way}: {looks.a_day:.0f} a day"
        )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    report = measure(options.queues, options.minutes, options.messages)
    print_report(report, show, as_json=options.json, width=_WIDTH)


if __name__ == "__main__":
    main(sys.argv[1:])
