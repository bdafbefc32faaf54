"""
Measures how fast consumers work through what is sent in an outage, beside good health.

    senders ──▶ gateway ──▶ primary                               consumers: healthy
                   └──────▶ secondary, the queue's own backlog    consumers: in the outage

The primary is killed before each other turn. In each turn a queue is filled, and the consumers,
whose links stay open throughout, receive and complete all of it: those with work for each message,
as consumers have, then those that do nothing else. The namespaces are of one kind.
"""

import argparse
import json
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.chaos.servers import AmqpServer
from benchmarks.closed_loop import BODY
from benchmarks.fleet import BACKLOG_QUEUES, LABEL, open_fleet
from benchmarks.machine import facts
from benchmarks.report import report_of, show_medians
from benchmarks.targets import Target, show_targets
from gateway.capabilities import Diverts
from gateway.capabilities.settling import settle_or_raise
from gateway.demo.machines import broker_config
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import AcceptedBy, Complete, Message
from gateway.offering import required
from gateway.ports import Broker

ORDERS: Final = EntityPath("orders")
HEALTHY: Final = "healthy"
OUTAGE: Final = "in the outage"
WORK: Final = 0.02  # seconds for a message
LEAST: Final = 0.95  # of the healthy rate
CONSUMERS: Final = 4
WIDTH: Final = 110  # characters of the table
_CHUNK: Final = 100  # messages of a send
_PAGE: Final = 20
_AGAIN: Final = 0.2  # seconds
_LIMIT: Final = 120.0  # seconds for a turn
_ENDPOINT: Final = """
[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"
"""


@attrs.frozen(kw_only=True)
class Consuming:
    """The consumers of one kind. Rates are messages/s, medians of the rounds."""

    work: float  # seconds for a message
    messages: int
    healthy: float
    outage: float
    ratio: float  # the median of the rounds'


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    rounds: int
    ways: Sequence[Consuming]
    targets: Sequence[Target]


async def measure(folder: Path, messages: int, rounds: int) -> Report:
    """Raises `trio.TooSlowError` if a turn lasts two minutes."""
    about = facts(folder)
    ways: list[Consuming] = []
    async with open_pair(folder) as (primary, gateway):
        for work in (WORK, 0.0):
            number = messages if work else 3 * messages
            rates: list[tuple[float, float]] = []
            for _ in range(rounds):
                healthy = await _turn(gateway, number, work, AcceptedBy.PRIMARY)
                await primary.kill()
                outage = await _turn(gateway, number, work, AcceptedBy.BACKLOG)
                await primary.start()
                rates.append((healthy, outage))
            ways.append(consuming(work, number, rates))
    return Report(facts=about, rounds=rounds, ways=ways, targets=targets_of(ways))


def consuming(work: float, messages: int, rates: Sequence[tuple[float, float]]) -> Consuming:
    """The medians of the rounds, each of which has a healthy rate and that of the outage."""
    return Consuming(
        work=work,
        messages=messages,
        healthy=statistics.median(healthy for healthy, _ in rates),
        outage=statistics.median(outage for _, outage in rates),
        ratio=statistics.median(outage / healthy for healthy, outage in rates),
    )


def targets_of(ways: Sequence[Consuming]) -> Sequence[Target]:
    """The goal is that of consumers with work: the others measure what a message costs us."""
    return [
        Target(
            text=f"in the outage at least {LEAST:g} of the healthy rate, with work",
            reached=each.ratio >= LEAST,
            found=f"{each.ratio:.3f}",
        )
        for each in ways
        if each.work
    ]


@attrs.frozen
class _Gateway:
    """The gateway's clients: a sender, and consumers whose receivers stay open."""

    sender: Broker
    consumers: "_Consumers"


@attrs.define(eq=False)
class _Consumers:
    """Receive while there is something left to be done, and wait otherwise."""

    left: int = 0
    work: float = 0.0
    last: float = 0.0  # when the last message was completed
    started: trio.Event = attrs.field(factory=trio.Event)
    done: trio.Event = attrs.field(factory=trio.Event)

    async def consume(self, gateway: AmqpServer) -> None:
        async with (
            gateway.producer(gateway.machine.port) as broker,
            broker.open_receiver(ORDERS) as receiver,
        ):
            while True:
                await self.started.wait()
                for delivery in await receiver.receive(_PAGE):
                    await self.started.wait()  # it may have come while the queue was filled
                    await trio.sleep(self.work)
                    await settle_or_raise(receiver, [(delivery, Complete())])
                    self.left -= 1
                    self.last = trio.current_time()
                    if not self.left:
                        self.started, done = trio.Event(), self.done
                        self.done = trio.Event()
                        done.set()


async def _turn(gateway: _Gateway, messages: int, work: float, by: AcceptedBy) -> float:
    """Fill the queue where `by` says, and return how many messages a second were consumed."""
    with trio.fail_after(_LIMIT):
        filled = await _filled(required(gateway.sender, Diverts).send_diverting, messages, by)
        consumers = gateway.consumers
        consumers.left, consumers.work = filled, work
        began = trio.current_time()
        consumers.started.set()
        await consumers.done.wait()
    return filled / (consumers.last - began)


async def _filled(
    send: Callable[[EntityPath, Sequence[Message]], Awaitable[AcceptedBy]],
    messages: int,
    by: AcceptedBy,
) -> int:
    """Return how many messages the queue has: perhaps more, as the state changes after a send."""
    sent = there = 0
    while there < messages:
        chunk = [Message(body=BODY) for _ in range(_CHUNK if there else 1)]
        try:
            accepted_by = await send(ORDERS, chunk)
        except BrokerError:
            await trio.sleep(_AGAIN)
            continue
        sent += len(chunk)
        if accepted_by is by:
            there += len(chunk)
        else:
            await trio.sleep(_AGAIN)
    return sent


@asynccontextmanager
async def open_pair(folder: Path) -> AsyncIterator[tuple[AmqpServer, _Gateway]]:
    """Two namespaces, and a gateway whose consumers have begun to wait."""
    own = backlog.own_queue(LABEL, ORDERS)
    common = [backlog.queue_name(LABEL, index).name for index in range(BACKLOG_QUEUES)]
    queues = {"primary": [ORDERS.name], "secondary": [own.name, *common]}
    async with open_fleet(folder) as fleet:
        servers = {}
        for name, there in queues.items():
            config = broker_config(*there).replace('"service-bus-http"', '"service-bus"')
            servers[name] = AmqpServer(await fleet.start(name, config), fleet.nursery)
        config = _config(servers["primary"], servers["secondary"])
        machine = await fleet.start("gateway", config)
        consumers, gateway = _Consumers(), AmqpServer(machine, fleet.nursery)
        async with gateway.client(machine.port) as sender, trio.open_nursery() as nursery:
            for _ in range(CONSUMERS):
                nursery.start_soon(consumers.consume, gateway)
            yield servers["primary"], _Gateway(sender, consumers)
            nursery.cancel_scope.cancel()


def _config(primary: AmqpServer, secondary: AmqpServer) -> str:
    options = {
        "primary": "primary",
        "secondary": "secondary",
        "label": LABEL,
        "failover_interval": "0s",
        "ping_interval": "1s",
        "backlog_queues": BACKLOG_QUEUES,
        "enable_syphon": False,  # all is received, and nothing left to be moved
        "receive_in_outage": [ORDERS.name],
    }
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    return f"""
[namespaces.primary]
{primary.url(primary.machine.port)}

[namespaces.secondary]
{secondary.url(secondary.machine.port)}

[pairing]
{lines}
{_ENDPOINT}"""


def show(report: Report, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("work for a message", "messages", HEALTHY, OUTAGE, "ratio"):
        table.add_column(heading, justify="right")
    for each in report.ways:
        rates = (f"{rate:,.0f}/s" for rate in (each.healthy, each.outage))
        work = f"{1000 * each.work:g} ms"
        table.add_row(work, f"{each.messages:,}", *rates, f"{each.ratio:.3f}")
    console.print(table)
    show_medians(report.rounds, report.facts, console)
    show_targets(report.targets, console)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.receive_in_outage")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--messages", type=int, default=1000, help="of each turn with work")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    report_of(
        lambda folder: measure(folder, given.messages, given.rounds),
        show,
        as_json=given.json,
        width=WIDTH,
    )


if __name__ == "__main__":
    main()
