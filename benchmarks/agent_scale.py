"""
An agent with a thousand queues, on virtual time: measures how it scales up by depth and age and
down to zero, and the requests that each strategy sends to the namespace.

    python -m benchmarks.agent_scale [--queues N] [--minutes M] [--burst N] [--json]

The pool, its rules and its looks are the agent's, and each of its processes is a `QueueListener`
with all queues, in this process. One burst comes into ten queues; a message now and then into any.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from math import inf
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.listener_idle import HOURS, NAIVE
from benchmarks.listener_scale import MOST_ROUNDS, SEED, Asked, names_of, store_of
from benchmarks.report import print_report
from gateway.config.options import Agent
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event
from gateway.domain.message import Message
from gateway.frontends.admin.scale import ScaleFigures
from gateway.listening import RAW, Item, ListenerOptions, QueueListener, Trigger, Triggers
from gateway.listening.agent.process_pool import ProcessPool
from gateway.listening.agent.work_depth import WorkWatch
from gateway.listening.scaling.autoscaling import Autoscaler, AutoscalingOptions
from gateway.store.local.memory import MemoryBroker
from gateway.wire.pairgate.listener_report import Report as Work
from tests.harness.clocks import VirtualClock
from tests.harness.determinism import run_seeded
from tests.harness.polled import PolledBroker

START: Final = 0.5  # seconds until a process listens
HANDLING: Final = 0.2  # seconds
PARALLEL: Final = 32
TRICKLE: Final = 300.0  # seconds between two single messages
BURST_QUEUES: Final = 10
QUIET: Final = 300.0  # seconds before the burst
_WIDTH: Final = 130


@attrs.frozen(kw_only=True)
class Strategy:
    """A way to choose the number of processes. `options` is None: one process without an agent."""

    name: str
    options: AutoscalingOptions | None


STRATEGIES: Final = (
    Strategy(name="one process, no agent", options=None),
    Strategy(
        name="by depth, to zero", options=AutoscalingOptions(target_age=None, drain_within=None)
    ),
    Strategy(
        name="by age of 10 s, to zero",
        options=AutoscalingOptions(target_age=10.0, messages_per_process=None, drain_within=None),
    ),
    Strategy(name="all rules, to zero", options=AutoscalingOptions()),
    Strategy(name="all rules, at least one", options=AutoscalingOptions(min_processes=1)),
)


@attrs.frozen(kw_only=True)
class Found:
    """The figures of one strategy."""

    strategy: str
    announced: bool
    messages: int
    burst_median: float  # seconds from a message's arrival until it was handled
    burst_longest: float
    trickle_median: float
    trickle_longest: float
    processes: int  # at most
    process_minutes: float
    ended_at_zero: bool
    looks: float  # requests of the agent's looks, in 22 hours
    receives: float  # requests that found nothing, in 22 hours
    of_naive: float  # both, as a share of a thread's that looks each second at each queue


@attrs.frozen(kw_only=True)
class Report:
    strategies: Sequence[Found]


@attrs.define(eq=False, kw_only=True)
class Fake:
    """A process of the pool: a listener in this one."""

    pid: int
    listener: QueueListener[Message]
    began: float
    report: Work = attrs.field(factory=Work)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def wait(self) -> int:
        await self.ended.wait()
        return 0

    def terminate(self) -> None:
        self.listener.start_drain()

    def kill(self) -> None:
        self.scope.cancel()


@attrs.define(eq=False, kw_only=True)
class Run:
    """A strategy with its queues and messages."""

    strategy: Strategy
    announced: bool
    queues: Sequence[EntityPath]
    minutes: float
    burst: int
    store: MemoryBroker = attrs.field(init=False)
    polled: PolledBroker = attrs.field(init=False)
    triggers: Triggers = attrs.field(factory=lambda: Triggers(hears_all_senders=True))
    _sent: dict[str, float] = attrs.field(factory=dict, init=False)
    _waits: dict[str, list[float]] = attrs.field(factory=dict, init=False)
    _processes: list[Fake] = attrs.field(factory=list, init=False)
    _ends: list[float] = attrs.field(factory=list, init=False)
    _most: int = attrs.field(default=0, init=False)
    _home: trio.Nursery | None = attrs.field(default=None, init=False)
    _pool: ProcessPool | None = attrs.field(default=None, init=False)
    _watch: WorkWatch | None = attrs.field(default=None, init=False)

    async def run(self) -> Found:
        self.store = await store_of(self.queues)
        self.polled = PolledBroker(inner=self.store)
        async with trio.open_nursery() as nursery:
            self._home = nursery
            if self.strategy.options is None:
                await self.start()
            else:
                self._pool = self._make_pool(self.strategy.options)
                nursery.start_soon(self._pool.run)
            nursery.start_soon(self._trickle)
            await trio.sleep(QUIET)
            for number in range(self.burst):
                await self._send("burst", self.queues[number % BURST_QUEUES])
            await trio.sleep(60.0 * self.minutes - QUIET)
            self._ends += [
                trio.current_time() for each in self._processes if not each.ended.is_set()
            ]
            found = self._found()
            nursery.cancel_scope.cancel()
        return found

    async def start(self) -> Fake:
        """A process that listens."""
        await trio.sleep(START)
        fakes: list[Fake] = []

        async def handle(item: Item[Message]) -> None:
            process = fakes[0]
            process.report += Work(running=1)
            try:
                await trio.sleep(HANDLING)
            finally:
                process.report += Work(calls=1, seconds=HANDLING, running=-1)
            kind, _, _ = str(item.message.message_id).partition("-")
            sent = self._sent[str(item.message.message_id)]
            self._waits.setdefault(kind, []).append(trio.current_time() - sent)

        listener = QueueListener(
            broker=self.polled,
            queues=" ".join(queue.name for queue in self.queues),
            format=RAW,
            handle=handle,
            clock=VirtualClock(),
            rng=random.Random(len(self._processes)),
            options=ListenerOptions(parallel=PARALLEL),
            triggers=self.triggers if self.announced else None,
        )
        process = Fake(pid=len(self._processes) + 1, listener=listener, began=trio.current_time())
        fakes.append(process)
        self._processes.append(process)
        self._most = max(self._most, sum(not each.ended.is_set() for each in self._processes))
        assert self._home is not None
        self._home.start_soon(self._live, process)
        return process

    async def _live(self, process: Fake) -> None:
        with process.scope:
            await process.listener.run()
        self._ends.append(trio.current_time())
        process.ended.set()

    def report(self, event: Event) -> None:
        """As `Observer`."""

    def _make_pool(self, options: AutoscalingOptions) -> ProcessPool:
        agent = Agent()
        figures = ScaleFigures(broker=self.store, wall_clock=VirtualClock(), answer_timeout=5.0)
        self._watch = WorkWatch(
            reader=Asked(figures_of=figures),  # type: ignore[arg-type]
            queues=self.queues,
            idle_interval=agent.idle_interval,
            is_told=self.announced,
        )
        pool = ProcessPool(
            listener="all",
            autoscaler=Autoscaler(options=options, rule=options.make_rule()),
            options=agent,
            parallel=PARALLEL,
            look=self._watch.poll,
            start=self.start,
            load=lambda: None,
            observer=self,
            rng=random.Random(3),
        )
        pool.is_told = self.announced
        return pool

    async def _trickle(self) -> None:
        rng = random.Random(4)
        while True:
            await trio.sleep(rng.expovariate(1.0 / TRICKLE))
            await self._send("trickle", rng.choice(self.queues))

    async def _send(self, kind: str, queue: EntityPath) -> None:
        message_id = f"{kind}-{len(self._sent)}"
        self._sent[message_id] = trio.current_time()
        await self.store.send(queue, [Message(message_id=message_id)])
        if self.announced:
            self.triggers.publish(Trigger(queue=queue))
            if self._watch is not None and self._pool is not None:
                self._watch.announce(queue)
                self._pool.announce()

    def _found(self) -> Found:
        counted = self.store.meter.usage().operations
        looks = counted[Operation.INSPECT] + counted[Operation.PEEK]
        receives = self.polled.polls.total() - counted[Operation.RECEIVE]
        scale = HOURS * 60.0 / self.minutes
        burst, trickle = (self._waits.get(kind, [inf]) for kind in ("burst", "trickle"))
        lives = zip(sorted(self._ends), sorted(each.began for each in self._processes), strict=True)
        return Found(
            strategy=self.strategy.name,
            announced=self.announced,
            messages=len(burst) + len(trickle),
            burst_median=statistics.median(burst),
            burst_longest=max(burst),
            trickle_median=statistics.median(trickle),
            trickle_longest=max(trickle),
            processes=self._most,
            process_minutes=sum(end - began for end, began in lives) / 60.0,
            ended_at_zero=all(each.ended.is_set() for each in self._processes),
            looks=looks * scale,
            receives=receives * scale,
            of_naive=(looks + receives) * scale / NAIVE / len(self.queues),
        )


def measure(queues: int, minutes: float, burst: int) -> Report:
    """Each strategy, with announcements and without."""
    paths = names_of(queues)
    strategies = [
        run_seeded(
            Run(
                strategy=strategy, announced=announced, queues=paths, minutes=minutes, burst=burst
            ).run,
            seed=SEED,
            most_rounds=MOST_ROUNDS,
        )
        for announced in (True, False)
        for strategy in STRATEGIES
    ]
    return Report(strategies=strategies)


def show(report: Report, console: Console) -> None:
    table = Table("strategy", "announced", title=f"requests in {HOURS} hours")
    columns = ("burst s", "longest", "single s", "longest", "processes", "minutes", "zero")
    for name in (*columns, "looks", "receives", "of threads'"):
        table.add_column(name, justify="right")
    for each in report.strategies:
        table.add_row(
            each.strategy,
            "yes" if each.announced else "no",
            f"{each.burst_median:.1f}",
            f"{each.burst_longest:.1f}",
            f"{each.trickle_median:.1f}",
            f"{each.trickle_longest:.1f}",
            f"{each.processes}",
            f"{each.process_minutes:.0f}",
            "yes" if each.ended_at_zero else "no",
            f"{each.looks:.0f}",
            f"{each.receives:.0f}",
            f"{100 * each.of_naive:.2f} %",
        )
    console.print(table)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--burst", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    report = measure(options.queues, options.minutes, options.burst)
    print_report(report, show, as_json=options.json, width=_WIDTH)


if __name__ == "__main__":
    main(sys.argv[1:])
