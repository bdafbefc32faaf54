"""
A thousand gateways that lose their primary and get it back, on virtual time.

    python -m benchmarks.thousand_gateways [--sidecars N] [--syphons N] [--queues N] [--outage S]

Each sidecar is a whole pair, each syphon a whole syphon: states, prober, depth, back-off and busy
pauses are those of the product. The namespaces, by `benchmarks.counted_namespace`, count requests.
Every message that a sidecar acknowledged must reach the primary: a run that lost one is an error.
"""

import argparse
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.counted_namespace import Fault, Kind, Link, Namespace, StoredQueue, now
from benchmarks.report import print_report
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import Event
from gateway.domain.failover import State
from gateway.domain.health.process_records import ProcessRecord, SyphonRecord
from gateway.domain.message import AcceptedBy, Message
from gateway.pairing.additions import PairDependencies
from gateway.pairing.options import PairOptions, SyphonOptions
from gateway.pairing.pair import Pair, PairParts
from gateway.pairing.provision import Backlog
from gateway.pairing.records.reader import no_keys
from gateway.pairing.records.writer import RecordWriter
from gateway.pairing.state_table import FAILED_OVER
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.syphon import Syphon
from gateway.wire.amqp.message import encode_sorted
from gateway.wire.pairgate.encryption import MessageEncryption
from tests.harness.determinism import run_seeded

LABEL: Final = "fleet"
KEY: Final = EnvelopeKey(id="fleet", key=b"k" * 32)
BODY: Final = b"x" * 100
ANSWER: Final = 3.0  # seconds that a scrape waits for the secondary, as `app.status.board` does
QUIET: Final = 30.0  # seconds of an empty backlog, after which the run ends
LEFT: Final = 0.01  # of the backlog at the return: by then it has been moved
LOOK: Final = 1.0
MOST_ROUNDS: Final = 10_000_000  # of Trio's loop in a virtual second
_WIDTH: Final = 130


class Lost(Exception):
    """A message that was acknowledged hasn't reached the primary."""


@attrs.frozen(kw_only=True)
class Plan:
    """The fleet, its load, and its outage. Times are seconds of the virtual clock."""

    sidecars: int = 1000
    syphons: int = 20
    queues: int = 10_000
    each: int = 10  # queues that one sidecar sends to
    rate: float = 0.5  # messages/s of one sidecar
    backlog_queues: int = 10
    capacity: float = 2000.0  # requests/s of each namespace
    latency: float = 0.005
    fault: Fault = Fault.REFUSED
    calm: float = 130.0
    outage: float = 600.0
    after: float = 900.0  # at most
    scrape: float = 30.0  # between two reads of a sidecar's metrics; 0: none
    slow: int = 1  # sidecars, and syphons, whose requests take `slow_by` longer
    slow_by: float = 3.0
    drain_rate: float | None = None  # messages/s of one syphon
    seed: int = 1

    @property
    def ends(self) -> float:
        """The end of the outage."""
        return self.calm + self.outage


@attrs.frozen(kw_only=True)
class Load:
    """Requests a second of one kind on one namespace, in the windows of a run."""

    namespace: str
    kind: str
    start_peak: int  # in the first half of `calm`
    calm: float
    onset_peak: int  # in the first minute of the outage
    outage: float
    return_peak: int  # in the minute after the return
    first_minute: float
    after: float


@attrs.frozen(kw_only=True)
class Waits:
    """The seconds that sends of one group of sidecars took, in one window."""

    group: str
    window: str
    sends: int
    median: float
    p99: float
    longest: float
    diverted: int
    refused: int


@attrs.frozen(kw_only=True)
class Report:
    plan: dict[str, object]
    loads: Sequence[Load]
    waits: Sequence[Waits]
    # Seconds from the return until `LEFT` of the backlog is left; None: it didn't come to that.
    drain: float | None
    empty: float | None  # seconds from the return to an empty backlog; None: it didn't become empty
    backlog: int  # messages at the return
    queue_most: int  # messages of the fullest backlog queue
    back_after: float  # seconds from the return until the last entity of the last gateway is back
    duplicates: int
    busy: dict[str, int]  # answers of a busy namespace, by namespace
    connections: dict[str, int]
    events: dict[str, int]


@attrs.define(eq=False)
class Group:
    """The answers that clients of some sidecars got, by window."""

    seconds: dict[str, list[float]] = attrs.field(factory=dict, init=False)
    diverted: Counter[str] = attrs.field(factory=Counter, init=False)
    refused: Counter[str] = attrs.field(factory=Counter, init=False)


@attrs.define(eq=False, kw_only=True)
class Model:
    """A run."""

    plan: Plan
    primary: Namespace = attrs.field(init=False)
    secondary: Namespace = attrs.field(init=False)
    groups: dict[str, Group] = attrs.field(init=False)
    events: Counter[str] = attrs.field(factory=Counter, init=False)
    _arrived: Counter[int] = attrs.field(factory=Counter, init=False)
    _acknowledged: set[int] = attrs.field(factory=set, init=False)
    _numbers: Iterator[int] = attrs.field(factory=count, init=False)
    _ids: Iterator[int] = attrs.field(factory=count, init=False)
    _pairs: list[Pair] = attrs.field(factory=list, init=False)
    _last_return: float = attrs.field(default=0.0, init=False)
    _most: int = attrs.field(default=0, init=False)
    _drained: float | None = attrs.field(default=None, init=False)
    _empty: float | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        self.primary = Namespace(
            name="primary", capacity=plan.capacity, latency=plan.latency, consume=self._consume
        )
        self.secondary = Namespace(name="secondary", capacity=plan.capacity, latency=plan.latency)
        for queue in (*self._backlog.queues, backlog.heartbeat_queue(LABEL)):
            self.secondary.queues[queue.key] = StoredQueue()
        self.groups = {"all others": Group(), "slow": Group()}

    async def run(self) -> Report:
        """
        Return the figures.

        Raises:
            Lost: a message is missing at the end.
        """
        plan = self.plan
        async with trio.open_nursery() as nursery:
            for number in range(plan.sidecars):
                nursery.start_soon(self._sidecar, number)
            for number in range(plan.syphons):
                nursery.start_soon(self._syphon, number)
            await trio.sleep_until(plan.calm)
            self.primary.break_down(plan.fault)
            await trio.sleep_until(plan.ends)
            self.primary.come_back()
            await self._watch_drain()
            nursery.cancel_scope.cancel()
        if self._empty is not None:
            missing = self._acknowledged - self._arrived.keys()
            if missing:
                raise Lost(f"{len(missing)} of {len(self._acknowledged)} messages are missing")
        return self._report()

    def report(self, event: Event) -> None:
        """As `Observer`."""
        self.events[type(event).__name__] += 1

    # --- the fleet

    async def _sidecar(self, number: int) -> None:
        plan, rng = self.plan, random.Random(f"sidecar {self.plan.seed} {number}")
        is_slow = number < plan.slow
        lag = plan.slow_by if is_slow else 0.0
        states: list[EntityStates] = []

        def kind_of(entity: EntityPath) -> Kind:
            healthy = states[0].state_of(entity) is State.PRIMARY
            return Kind.SEND if healthy else Kind.TRIAL

        primary = Link(namespace=self.primary, rng=rng, lag=lag, kind_of=kind_of)
        secondary = Link(namespace=self.secondary, rng=rng, lag=lag)
        pair = PairParts(
            primary=primary,
            secondary=secondary,
            options=PairOptions(label=LABEL, backlog_queues=plan.backlog_queues),
            backlog=self._backlog,
            envelope=self._envelope(f"sidecar-{number}"),
            dependencies=PairDependencies(
                clock=now, rng=rng, new_id=self._new_id, observer=self, measure=_size
            ),
        ).assemble()
        states.append(pair.states)
        if not is_slow:
            self._pairs.append(pair)
        group = self.groups["slow" if is_slow else "all others"]
        names = rng.sample(range(plan.queues), min(plan.each, plan.queues))
        async with trio.open_nursery() as nursery:
            await nursery.start(pair.run)
            if plan.scrape:
                nursery.start_soon(self._scrape, pair, rng)
            while True:
                await trio.sleep(rng.expovariate(plan.rate))
                entity = EntityPath(f"queue-{rng.choice(names)}")
                nursery.start_soon(self._send, pair, entity, group)

    async def _send(self, pair: Pair, entity: EntityPath, group: Group) -> None:
        number, began = next(self._numbers), trio.current_time()
        window = self._window(began)
        message = Message(message_id=str(number), body=BODY)
        try:
            accepted_by = await pair.broker.send_diverting(entity, [message])
        except BrokerError:
            group.refused[window] += 1
        else:
            self._acknowledged.add(number)
            group.diverted[window] += accepted_by is not AcceptedBy.PRIMARY
        group.seconds.setdefault(window, []).append(trio.current_time() - began)

    async def _scrape(self, pair: Pair, rng: random.Random) -> None:
        await trio.sleep(rng.uniform(0.0, self.plan.scrape))
        while True:
            await pair.depth.read(ANSWER, troubled=pair.states.is_any_troubled)
            await trio.sleep(self.plan.scrape)

    async def _syphon(self, number: int) -> None:
        plan, rng = self.plan, random.Random(f"syphon {self.plan.seed} {number}")
        lag = plan.slow_by if number < plan.slow and plan.syphons > plan.slow else 0.0
        primary = Link(namespace=self.primary, rng=rng, lag=lag, kind_of=lambda entity: Kind.SYPHON)
        secondary = Link(namespace=self.secondary, rng=rng, lag=lag)
        syphon = Syphon(
            primary=primary,
            source=secondary,
            label=LABEL,
            options=SyphonOptions(max_drain_rate=plan.drain_rate),
            envelope=self._envelope(f"syphon-{number}"),
            clock=now,
            rng=rng,
            observer=self,
            destination=Destination(primary=primary, observer=self, rng=rng),
        )

        async def describe() -> ProcessRecord:
            await trio.lowlevel.checkpoint()
            return ProcessRecord(
                process=f"syphon-{number}",
                host="fleet",
                kind="syphon",
                pid=number,
                started=now(),
                at=now(),
                interval=30.0,
                syphon=SyphonRecord(),
            )

        records = RecordWriter(
            secondary=secondary,
            label=LABEL,
            keys=no_keys,
            describe=describe,
            interval=30.0,
            rng=rng,
            new_id=self._new_id,
            observer=self,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(syphon.run)
            await nursery.start(records.run)

    @property
    def _backlog(self) -> Backlog:
        indices = range(self.plan.backlog_queues)
        queues = tuple(backlog.queue_name(LABEL, index) for index in indices)
        return Backlog(queues=queues, max_message_size=None)

    def _envelope(self, origin: str) -> Envelope:
        return Envelope(
            pair=LABEL,
            origin=origin,
            keys=(KEY,),
            encode=encode_sorted,
            encryption=MessageEncryption(random.Random(origin)),
        )

    def _new_id(self) -> str:
        return f"{next(self._ids):016x}"

    # --- the watched figures

    def _consume(self, message: Message) -> None:
        self._arrived[int(message.message_id)] += 1

    async def _watch_drain(self) -> None:
        """Return once the backlog has been empty for `QUIET` seconds, or after `plan.after`."""
        plan, empty_since = self.plan, None
        self._most = self._waiting
        while trio.current_time() < plan.ends + plan.after:
            await trio.sleep(LOOK)
            moment, waiting = trio.current_time(), self._waiting
            if self._drained is None and waiting <= LEFT * self._most:
                self._drained = moment - plan.ends
            states = (each.state for pair in self._pairs for each in pair.states.troubled())
            if any(state in FAILED_OVER for state in states):
                self._last_return = moment - plan.ends
            if waiting:
                empty_since = None
            elif empty_since is None:
                empty_since = moment
            if empty_since is not None and moment - empty_since >= QUIET:
                self._empty = empty_since - plan.ends
                return

    @property
    def _waiting(self) -> int:
        return sum(self.secondary.queues[each.key].depth for each in self._backlog.queues)

    def _window(self, moment: float) -> str:
        plan = self.plan
        if moment < plan.calm:
            return "calm" if moment >= plan.calm / 2 else "start"
        if moment < plan.ends:
            return "outage"
        return "first minute" if moment < plan.ends + 60.0 else "after"

    def _report(self) -> Report:
        return Report(
            plan={**attrs.asdict(self.plan), "fault": self.plan.fault.value},
            loads=[
                load
                for namespace in (self.primary, self.secondary)
                for load in self._loads(namespace)
            ],
            waits=[each for name, group in self.groups.items() for each in _waits(name, group)],
            drain=self._drained,
            empty=self._empty,
            backlog=self._most,
            queue_most=max(self.secondary.queues[queue.key].most for queue in self._backlog.queues),
            back_after=self._last_return,
            duplicates=sum(self._arrived.values()) - len(self._arrived),
            busy={each.name: each.busy.total() for each in (self.primary, self.secondary)},
            connections={each.name: each.connections for each in (self.primary, self.secondary)},
            events=dict(sorted(self.events.items())),
        )

    def _loads(self, namespace: Namespace) -> list[Load]:
        whole: Counter[int] = Counter()
        for seconds in namespace.requests.values():
            whole.update(seconds)
        each = [(kind.value, seconds) for kind, seconds in namespace.requests.items()]
        return [self._load(namespace.name, *one) for one in (*each, ("all", whole))]

    def _load(self, namespace: str, kind: str, seconds: Counter[int]) -> Load:
        plan, end = self.plan, max(seconds, default=0) + 1
        calm, down, back = int(plan.calm), int(plan.calm), int(plan.ends)

        def mean(first: int, last: int) -> float:
            return round(sum(seconds[s] for s in range(first, last)) / max(1, last - first), 1)

        def peak(first: int, last: int) -> int:
            return max((seconds[s] for s in range(first, last)), default=0)

        return Load(
            namespace=namespace,
            kind=kind,
            start_peak=peak(0, calm // 2),
            calm=mean(calm // 2, calm),
            onset_peak=peak(down, min(down + 60, back)),
            outage=mean(min(down + 60, back - 1), back),
            return_peak=peak(back, back + 60),
            first_minute=mean(back, back + 60),
            after=mean(back + 60, max(end, back + 61)),
        )


def _waits(name: str, group: Group) -> list[Waits]:
    return [
        Waits(
            group=name,
            window=window,
            sends=len(seconds),
            median=statistics.median(seconds),
            p99=sorted(seconds)[int(0.99 * (len(seconds) - 1))],
            longest=max(seconds),
            diverted=group.diverted[window],
            refused=group.refused[window],
        )
        for window, seconds in group.seconds.items()
    ]


def _size(message: Message) -> int:
    return len(BODY)


def run(plan: Plan) -> Report:
    """
    The figures of that plan. The same plan gives the same figures.

    Raises:
        Lost: a message is missing at the end.
    """
    return run_seeded(Model(plan=plan).run, seed=plan.seed, most_rounds=MOST_ROUNDS)


def show(report: Report, console: Console) -> None:
    table = Table("namespace", "requests/s", title="load on the namespaces")
    for name in ("start, peak", "calm", "onset, peak", "outage", "return, peak", "minute", "after"):
        table.add_column(name, justify="right")
    for load in report.loads:
        table.add_row(
            load.namespace,
            load.kind,
            f"{load.start_peak}",
            f"{load.calm:.1f}",
            f"{load.onset_peak}",
            f"{load.outage:.1f}",
            f"{load.return_peak}",
            f"{load.first_minute:.1f}",
            f"{load.after:.1f}",
        )
    console.print(table)
    waits = Table("sidecars", "window", title="sends of clients")
    for name in ("sends", "median, ms", "p99, ms", "longest, s", "diverted", "refused"):
        waits.add_column(name, justify="right")
    for each in report.waits:
        waits.add_row(
            each.group,
            each.window,
            f"{each.sends}",
            f"{1000 * each.median:.1f}",
            f"{1000 * each.p99:.1f}",
            f"{each.longest:.2f}",
            f"{each.diverted}",
            f"{each.refused}",
        )
    console.print(waits)
    console.print(f"drained after {report.drain} s, empty after {report.empty} s")
    console.print(f"entities back after {report.back_after:.0f} s")
    console.print(f"backlog: {report.backlog} messages, {report.queue_most} in one queue")
    console.print(f"duplicates: {report.duplicates}; busy answers: {report.busy}")
    console.print(f"connections: {report.connections}")
    console.print(f"events: {report.events}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    usual = Plan()
    for field in attrs.fields(Plan):
        option, default = f"--{field.name.replace('_', '-')}", getattr(usual, field.name)
        if isinstance(default, Fault):
            parser.add_argument(option, type=Fault, default=default)
        else:
            kind = float if default is None else type(default)
            parser.add_argument(option, type=kind, default=default)
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args(arguments))
    as_json = options.pop("json")
    print_report(run(Plan(**options)), show, as_json=as_json, width=_WIDTH)


if __name__ == "__main__":
    main(sys.argv[1:])
