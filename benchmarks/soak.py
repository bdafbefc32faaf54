"""
A pair under mixed load for as long as asked, with a fault every 20 s: does anything grow?

    REST, AMQP 1.0,    ──▶ gateway ──▶ (proxy) ──▶ primary   ◀── syphon 1, syphon 2
    Storage Queue          │   ▲
    receive and complete ◀─┘   └─────▶ (proxy) ──▶ secondary

Each protocol sends to a queue of its own, at a constant rate, and receives from it through the
gateway. The faults hit both namespaces, the ways there, and syphon 2. The gateway and syphon 1 live
from begin to end: their memory, descriptors, tasks and loop lag are sampled. A figure is flat if
its robust slope (the median of all slopes, by Theil and Sen) after the warm-up is small. At the end
every acknowledged message must have been received.
"""

import argparse
import itertools
import os
import random
import re
import signal
import sys
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.chaos.faults import HARM, WITH_HOLES
from benchmarks.chaos.scenario import Kind
from benchmarks.fleet import (
    BACKLOG_QUEUES,
    LABEL,
    Fleet,
    client_of,
    gateway_config,
    now,
    open_fleet,
)
from benchmarks.machine import facts_of_processor
from benchmarks.memory import MIB, resident
from benchmarks.report import report_of, show_facts
from benchmarks.soak_plot import Panel, draw
from benchmarks.stopwatch import processor_time
from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.amqp.servicebus import open_namespace as open_amqp
from gateway.brokers.storage_queue.broker import open_namespace as open_storage_queue
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.demo.machines import KEY, KEY_NAME, DemoMachine, broker_config
from gateway.demo.ports import free_port
from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import Complete, Message
from gateway.ports import Broker, Receiver
from tests.harness.azurite import ACCOUNT
from tests.harness.azurite import KEY as ACCOUNT_KEY
from tests.harness.chaos_proxy import ChaosProxy, Pass
from tests.harness.secret_files import write_secret

MINUTES: Final = 60.0
RATE: Final = 10.0  # sends a second, of each protocol
EVERY: Final = 20.0  # seconds from fault to fault
LASTS: Final = 8.0
SAMPLE: Final = 5.0
WARM_UP: Final = 0.2  # of the time, unless another share is chosen
PATIENCE: Final = 15.0  # seconds for a send
QUIET: Final = 180.0  # seconds without another message, after which the missing ones are lost
PAGE: Final = 20
REST: Final = 0.2
BODY: Final = 1024
WIDTH: Final = 110
SLOPES: Final = 300  # points, at most, of which the slopes are compared
PLOT: Final = Path("build/soak.svg")
NONE: Final = "none"  # instead of a fault
_DIGITS: Final = re.compile(r"\d+")
_LAG: Final = re.compile(r"^pairgate_event_loop_lag_seconds_(sum|count) (\S+)", re.MULTILINE)
_TASKS: Final = re.compile(r"^pairgate_event_loop_tasks (\S+)", re.MULTILINE)

# The growth of a figure that is allowed from the warm-up to the end: a share of its median, or an
# amount.
MEMORY, FILES, TASKS, LAG = FIGURES = ("memory MiB", "descriptors", "tasks", "loop lag ms")
ALLOWED: Final[Mapping[str, tuple[float, float]]] = {
    MEMORY: (0.03, 2.0),
    FILES: (0.05, 3.0),
    TASKS: (0.05, 5.0),
    LAG: (0.5, 2.0),
}

# Each process that is harmed, and how, in turn.
FAULTS: Final = (
    ("primary", Kind.KILLED),
    ("primary", Kind.REFUSED),
    ("secondary", Kind.KILLED),
    ("primary", Kind.FROZEN),
    ("syphon-2", Kind.KILLED),
    ("primary", Kind.RESET_AFTER),
    ("primary", Kind.BLACK_HOLE),
    ("secondary", Kind.FROZEN),
    ("primary", Kind.SLOW),
    ("primary", Kind.SWALLOWED),
    ("secondary", Kind.RESET_DURING),
    ("primary", Kind.HELD),
)
_ADMIN: Final = '\n[[endpoints]]\nprotocol = "admin"\nbind = "localhost:{}"\nprocess = "{}"\n'
_STORAGE: Final = '\n[[endpoints]]\nprotocol = "storage-queue"\nbind = "localhost:{}"\n'
_PAIR: Final = {
    "failover_interval": "1s",
    "send_timeout": "10s",
    "attempt_timeout": "3s",
    "ping_interval": "1s",
    "backlog_queues": BACKLOG_QUEUES,
    "enable_syphon": False,
}


@attrs.frozen(kw_only=True)
class Sample:
    """The figures of a process at a moment, `at` seconds after the begin."""

    at: float
    figures: Mapping[str, float]


@attrs.frozen(kw_only=True)
class Trend:
    """The trend of a process's figure after the warm-up."""

    process: str
    figure: str
    median: float
    growth: float  # from the warm-up to the end, by the median of slopes
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.allowed


@attrs.frozen(kw_only=True)
class Flow:
    """The messages of one protocol."""

    protocol: str
    acknowledged: int
    failed: int  # sends with an error, or without an answer
    received: int
    repeated: int  # received once more
    lost: int


@attrs.frozen(kw_only=True)
class Failure:
    """A send with an error, or without an answer (`error` is empty)."""

    began: float  # seconds after the begin
    took: float
    error: str


@attrs.frozen(kw_only=True)
class Cause:
    """The failed sends of one protocol with one error, which began in one kind of fault."""

    fault: str  # NONE: long after the last one
    protocol: str
    error: str
    times: int
    soonest: float  # of them, in seconds after the fault's begin
    longest: float  # seconds of a send


@attrs.frozen(kw_only=True)
class Report:
    facts: dict[str, str]
    minutes: float
    faults: int
    flows: Sequence[Flow]
    causes: Sequence[Cause]
    trends: Sequence[Trend]
    cpu: Mapping[str, float]  # seconds of each process for an acknowledged message
    samples: Mapping[str, Sequence[Sample]]

    @property
    def is_reached(self) -> bool:
        return all(each.is_flat for each in self.trends) and not any(
            each.lost for each in self.flows
        )


@attrs.define(eq=False)
class Traffic:
    """Sends and receives by one protocol."""

    protocol: str
    open_client: Callable[[], AbstractAsyncContextManager[Broker]]
    acknowledged: set[bytes] = attrs.field(factory=set)
    received: Counter[bytes] = attrs.field(factory=Counter)
    failures: list[Failure] = attrs.field(factory=list)

    @property
    def queue(self) -> EntityPath:
        return EntityPath(self.protocol)

    @property
    def missing(self) -> int:
        return len(self.acknowledged - self.received.keys())

    async def send(self, rate: float, stopping: trio.Event) -> None:
        """Send until told to stop; return when the last send has ended."""
        began = trio.current_time()
        async with self.open_client() as broker, trio.open_nursery() as nursery:
            for number in itertools.count():
                await trio.sleep_until(began + number / rate)
                if stopping.is_set():
                    return
                head = f"{self.protocol} {number} ".encode()
                nursery.start_soon(self._send, broker, head, began)

    async def _send(self, broker: Broker, head: bytes, began: float) -> None:
        message = Message(message_id=head.decode().strip(), body=head.ljust(BODY, b"x"))
        start, error = trio.current_time(), ""
        with trio.move_on_after(PATIENCE):
            try:
                await broker.send(self.queue, [message])
            except BrokerError as failure:
                error = f"{type(failure).__name__}: {failure}"
            else:
                self.acknowledged.add(head)
                return
        took = trio.current_time() - start
        self.failures.append(Failure(began=start - began, took=took, error=error))

    async def receive(self) -> None:
        """Receive and complete until cancelled."""
        async with self.open_client() as broker:
            while True:
                try:
                    async with broker.open_receiver(self.queue) as receiver:
                        await self._receive(receiver)
                except BrokerError:
                    await trio.sleep(REST)

    async def _receive(self, receiver: Receiver) -> None:
        while True:
            for delivery in await receiver.receive(PAGE):
                self.received[bytes(delivery.message.body).rstrip(b"x")] += 1
                await receiver.settle(delivery, Complete())

    def flow(self) -> Flow:
        return Flow(
            protocol=self.protocol,
            acknowledged=len(self.acknowledged),
            failed=len(self.failures),
            received=len(self.received),
            repeated=self.received.total() - len(self.received),
            lost=self.missing,
        )


@attrs.define(eq=False)
class Site:
    """All that runs."""

    fleet: Fleet
    machines: Mapping[str, DemoMachine]
    proxies: Mapping[str, ChaosProxy]
    admin: Mapping[str, int]  # ports of the sampled processes
    traffic: Sequence[Traffic]
    samples: dict[str, list[Sample]] = attrs.field(factory=lambda: defaultdict(list))
    faults: list[tuple[float, str]] = attrs.field(factory=list)
    _lag: dict[str, tuple[float, float]] = attrs.field(factory=dict)

    async def harm(self, began: float, until: float) -> None:
        """Inject the faults in turn; the last one is over at `until`."""
        for number, (name, kind) in enumerate(itertools.cycle(FAULTS)):
            at = began + EVERY * (number + 0.5)
            if at + LASTS > until:
                return
            await trio.sleep_until(at)
            self.faults.append((at - began, f"{name} {kind.value}"))
            if kind is Kind.KILLED:
                await self.machines[name].kill()
                await trio.sleep(LASTS)
                await self.machines[name].start(self.fleet.nursery)
            elif kind is Kind.FROZEN:
                os.kill(self.machines[name].pid, signal.SIGSTOP)
                await trio.sleep(LASTS)
                os.kill(self.machines[name].pid, signal.SIGCONT)
            else:
                proxy = self.proxies[name]
                proxy.fault = HARM[kind]
                await trio.sleep(LASTS)
                proxy.fault = Pass()
                if kind in WITH_HOLES:
                    proxy.reset_all()

    async def sample(self, began: float) -> None:
        """Look at all sampled processes until cancelled."""
        for number in itertools.count():
            await trio.sleep_until(began + SAMPLE * number)
            for name, port in self.admin.items():
                pid = self.machines[name].pid
                try:
                    text = await trio.to_thread.run_sync(_metrics, port)
                except OSError:
                    continue  # the process has just started
                lag = {key: float(value) for key, value in _LAG.findall(text)}
                total, count = self._lag.get(name, (0.0, 0.0))
                self._lag[name] = (lag["sum"], lag["count"])
                runs = lag["count"] - count
                figures = {
                    MEMORY: resident(pid) / MIB,
                    FILES: float(len(os.listdir(f"/proc/{pid}/fd"))),
                    TASKS: float(_TASKS.findall(text)[0]),
                    LAG: 1e3 * (lag["sum"] - total) / runs if runs else 0.0,
                }
                found = Sample(at=trio.current_time() - began, figures=figures)
                self.samples[name].append(found)

    async def drained(self) -> None:
        """
        Return when all acknowledged messages were received, or none of them for `QUIET` seconds: a
        loaded machine may be late.
        """
        before, since = 0, trio.current_time()
        while missing := sum(each.missing for each in self.traffic):
            if missing != before:
                before, since = missing, trio.current_time()
            elif trio.current_time() > since + QUIET:
                return
            await trio.sleep(REST)


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


async def open_site(fleet: Fleet) -> Site:
    """Start all processes, and the proxies before the namespaces."""
    backlogs = [backlog.queue_name(LABEL, number).name for number in range(BACKLOG_QUEUES)]
    protocols = ("rest", "amqp", "storage")
    primary = await fleet.start("primary", _namespace(*protocols))
    secondary = await fleet.start("secondary", _namespace(*backlogs))
    proxies = {}
    for machine in (primary, secondary):
        proxy = ChaosProxy("127.0.0.1", machine.port, rng=random.Random(1))
        await fleet.nursery.start(proxy.serve)
        proxies[machine.name] = proxy
    pair = _pair(proxies["primary"].port, proxies["secondary"].port, fleet.folder)
    admin, storage = {"gateway": free_port(), "syphon-1": free_port()}, free_port()
    endpoint = '[[endpoints]]\nprotocol = "service-bus"\nbind = "127.0.0.1:0"\n'
    gateway = await fleet.start(
        "gateway",
        pair + endpoint + _STORAGE.format(storage) + _ADMIN.format(admin["gateway"], "serve"),
    )
    syphons = [
        await fleet.start("syphon-1", pair + _ADMIN.format(admin["syphon-1"], "syphon"), "syphon"),
        await fleet.start("syphon-2", pair, "syphon"),
    ]
    machines = {each.name: each for each in (primary, secondary, gateway, *syphons)}

    def amqp() -> AbstractAsyncContextManager[Broker]:
        server = f"Endpoint=sb://127.0.0.1:{gateway.port}/;SharedAccessKeyName={KEY_NAME}"
        target = f"{server};UseDevelopmentEmulator=true"
        return open_amqp(target, ServiceBusOptions(key=KEY), now, random.Random(1))

    def storage_queue() -> AbstractAsyncContextManager[Broker]:
        target = f"AccountName={ACCOUNT};QueueEndpoint=http://localhost:{storage}/{ACCOUNT}"
        options = StorageQueueNamespaceOptions(key=ACCOUNT_KEY, poll=Backoff(first=0.05, cap=0.5))
        return open_storage_queue(target, options, now, random.Random(1))

    traffic = [
        Traffic("rest", lambda: client_of(gateway.port)),
        Traffic("amqp", amqp),
        Traffic("storage", storage_queue),
    ]
    return Site(fleet, machines, proxies, admin, traffic)


def _pair(primary: int, secondary: int, folder: Path) -> str:
    """The pair's part of a configuration, with both namespaces by AMQP."""
    key = folder / "envelope.key"
    write_secret(key, random.Random(1).randbytes(16).hex())
    config, _, _ = gateway_config(primary, secondary, **_PAIR).partition("[[endpoints]]")
    config = re.sub(
        rf'"servicebus\+http://{KEY_NAME}@(.+?)"',
        rf'"servicebus:Endpoint=sb://\1/;SharedAccessKeyName={KEY_NAME};UseDevelopmentEmulator=true"',
        config,
    )
    return f'{config}envelope_keys = [{{ id = "1", key = {{ file = "{key}" }} }}]\n'


def _namespace(*queues: str) -> str:
    return broker_config(*queues).replace('"service-bus-http"', '"service-bus"')


async def measure(folder: Path, *, minutes: float, rate: float, warm_up: float) -> Report:
    """
    Run all parts for `minutes`, and wait until all messages have arrived. The trends leave out the
    first `warm_up` minutes.
    """
    facts = dict(facts_of_processor())
    async with open_fleet(folder) as fleet:
        site = await open_site(fleet)
        began = trio.current_time()
        used = {name: processor_time(site.machines[name].pid) for name in site.admin}
        until, stopping = began + 60 * minutes, trio.Event()
        async with trio.open_nursery() as nursery:
            for each in site.traffic:
                nursery.start_soon(each.receive)
            nursery.start_soon(site.sample, began)
            async with trio.open_nursery() as working:
                for each in site.traffic:
                    working.start_soon(each.send, rate, stopping)
                working.start_soon(site.harm, began, until - EVERY)
                await trio.sleep_until(until)
                stopping.set()
            await site.drained()
            nursery.cancel_scope.cancel()
        sent = sum(len(each.acknowledged) for each in site.traffic)
        cpu = {
            name: (processor_time(site.machines[name].pid) - before) / max(1, sent)
            for name, before in used.items()
        }
    return Report(
        facts=facts,
        minutes=minutes,
        faults=len(site.faults),
        flows=[each.flow() for each in site.traffic],
        causes=causes_of(site.faults, site.traffic),
        trends=_trends(site.samples, 60 * warm_up, 60 * minutes),
        cpu=cpu,
        samples=_plotted(site, 60 * warm_up),
    )


def causes_of(faults: Sequence[tuple[float, str]], traffic: Sequence[Traffic]) -> Sequence[Cause]:
    """The failed sends by fault, protocol and error; digits in the errors don't count."""
    found = defaultdict[tuple[str, str, str], list[tuple[float, float]]](list)
    for each in traffic:
        for failure in each.failures:
            at, fault = max(
                (one for one in faults if one[0] <= failure.began + failure.took),
                default=(0.0, NONE),
            )
            error = _DIGITS.sub("#", failure.error) or f"no answer within {PATIENCE:g} s"
            found[fault, each.protocol, error].append((failure.began - at, failure.took))
    return [
        Cause(
            fault=fault,
            protocol=protocol,
            error=error,
            times=len(spans),
            soonest=min(after for after, _ in spans),
            longest=max(took for _, took in spans),
        )
        for (fault, protocol, error), spans in sorted(found.items())
    ]


def _plotted(site: Site, warm_up: float) -> Mapping[str, Sequence[Sample]]:
    panels = [
        Panel(
            name=figure,
            curves={
                name: [(each.at, each.figures[figure]) for each in samples]
                for name, samples in site.samples.items()
            },
        )
        for figure in FIGURES
    ]
    PLOT.parent.mkdir(exist_ok=True)
    PLOT.write_text(draw(panels, site.faults, warm_up=warm_up))
    return dict(site.samples)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points, so that outliers don't count."""
    step = max(1, len(points) // SLOPES)
    slopes = sorted(
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points[::step], 2)
    )
    return slopes[len(slopes) // 2] if slopes else 0.0


def _trends(samples: Mapping[str, Sequence[Sample]], begin: float, end: float) -> Sequence[Trend]:
    found = []
    for name, figure in itertools.product(samples, FIGURES):
        points = [
            (each.at, each.figures[figure]) for each in samples[name] if begin <= each.at <= end
        ]
        values = sorted(value for _, value in points)
        median = values[len(values) // 2]
        share, least = ALLOWED[figure]
        found.append(
            Trend(
                process=name,
                figure=figure,
                median=median,
                growth=slope(points) * (points[-1][0] - points[0][0]),
                allowed=max(share * median, least),
            )
        )
    return found


def _show(report: Report, console: Console) -> None:
    show_facts(report.facts, console)
    console.print(f"{report.minutes:g} minutes, {report.faults} faults", highlight=False)
    flows = Table("protocol", "acknowledged", "failed", "received", "repeated", "lost")
    for flow in report.flows:
        flows.add_row(*map(str, attrs.astuple(flow)))
    console.print(flows)
    if report.causes:
        causes = Table("fault", "protocol", "failed", "after s", "took s", "error")
        for cause in report.causes:
            soonest, longest = f"{cause.soonest:+.1f}", f"{cause.longest:.1f}"
            counts = (str(cause.times), soonest, longest)
            causes.add_row(cause.fault, cause.protocol, *counts, cause.error)
        console.print(causes)
    trends = Table("process", "figure", "median", "growth", "allowed", "")
    for trend in report.trends:
        trends.add_row(
            trend.process,
            trend.figure,
            f"{trend.median:.2f}",
            f"{trend.growth:+.2f}",
            f"{trend.allowed:.2f}",
            "flat" if trend.is_flat else "[yellow]grows[/yellow]",
        )
    console.print(trends)
    for name, cpu in report.cpu.items():
        console.print(f"CPU of {name}: {1e6 * cpu:.0f} us a message", highlight=False)
    mark = "[green]reached[/green]" if report.is_reached else "[yellow]missed[/yellow]"
    console.print(f"{mark}: nothing is lost, and all figures are flat; plots: {PLOT}")


def main() -> int:
    parser = argparse.ArgumentParser(description="A pair under load and faults for long.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--rate", type=float, default=RATE, help="sends a second by each protocol")
    parser.add_argument(
        "--warm-up", type=float, help="minutes at the begin that don't count; a fifth of all"
    )
    given = parser.parse_args()
    warm_up = WARM_UP * given.minutes if given.warm_up is None else given.warm_up
    if not 0 <= warm_up < given.minutes:
        parser.error("--warm-up must be shorter than --minutes, and not negative")
    report = report_of(
        lambda folder: measure(folder, minutes=given.minutes, rate=given.rate, warm_up=warm_up),
        _show,
        as_json=given.json,
        width=WIDTH,
    )
    return 0 if report.is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
