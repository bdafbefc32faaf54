"""
The cost of a settlement at another gateway than the receiving one.

    client ──▶ one ◀──▶ two ◀── client        one and two are a cluster
                └──▶ broker ◀──┘

    held     a namespace over AMQP: gateway `one` holds the lock, and `two` asks it
    token a namespace over REST: the client's token is the namespace's, and `two` settles by itself

A client locks messages at `one` and completes them, one after the other, at `one` (the baseline) or
at `two`. A ratio is the median of the rounds' ratios.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import Fleet, open_fleet, token
from benchmarks.keepalive import Connection, connect, request
from benchmarks.machine import facts_of_processor
from benchmarks.over_http import location_of
from benchmarks.report import report_of, show_medians
from benchmarks.stopwatch import processor_time
from gateway.demo.machines import KEY_NAME, KEY_VARIABLE, DemoMachine, broker_config
from gateway.demo.ports import free_port

HELD, TOKEN = KINDS = ("held", "token")
URLS: Final = {
    HELD: "servicebus:Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName={name};"
    "UseDevelopmentEmulator=true",
    TOKEN: "servicebus+http://{name}@127.0.0.1:{port}",
}
ROUNDS: Final = 5
SETTLEMENTS: Final = 300
WIDTH: Final = 100
SECRET: Final = "CLUSTER_SECRET"
CONFIG: Final = """
[namespaces.here]
url = "{url}"
key = {{ env = "{variable}" }}

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"

[cluster]
address = "{address}"
peers = [{peers}]
secrets = [{{ env = "{secret}" }}]
"""


@attrs.frozen(kw_only=True)
class Cost:
    """The medians of all rounds for one kind of namespace."""

    kind: str
    seconds_here: float  # of a completion at the gateway that received
    seconds_there: float
    processor_here: float  # seconds of both gateways, for a completion
    processor_there: float
    seconds_ratio: float
    processor_ratio: float


@attrs.frozen(kw_only=True)
class Report:
    costs: Sequence[Cost]
    rounds: int
    machine: Mapping[str, str]


Figures = tuple[float, float]  # seconds and processor time of a completion


@attrs.frozen
class Cluster:
    """Two gateways, and a client's connections to them."""

    machines: tuple[DemoMachine, DemoMachine]
    one: Connection
    two: Connection
    headers: Mapping[str, str]

    async def settle(self, at: Connection, number: int) -> Figures:
        """
        Send and lock a number of messages at the first gateway; complete them at the given one.
        """
        headers = dict(self.headers)
        locked = []
        for _ in range(number):
            await self.one.ask(request("POST", "/orders/messages", headers, b"x"), 201)
            answer = await self.one.ask(request("POST", "/orders/messages/head", headers), 201)
            locked.append(request("DELETE", location_of(answer), headers))
        seconds, processor = list[float](), self._processor()
        for complete in locked:
            began = trio.current_time()
            await at.ask(complete, 200)
            seconds.append(trio.current_time() - began)
        return statistics.median(seconds), (self._processor() - processor) / number

    def _processor(self) -> float:
        return sum(processor_time(machine.pid) for machine in self.machines)


async def measure(folder: Path, *, rounds: int, settlements: int) -> Report:
    async with open_fleet(folder) as fleet:
        fleet.environment_of = lambda _: {SECRET: "a secret of a cluster, for benchmarks only"}
        config = broker_config("orders").replace('"service-bus-http"', '"service-bus"')
        broker = await fleet.start("broker", config)
        costs = [
            await _measure_kind(fleet, kind, broker.port, rounds, settlements) for kind in KINDS
        ]
    return Report(costs=costs, rounds=rounds, machine=dict(facts_of_processor()))


async def _measure_kind(fleet: Fleet, kind: str, port: int, rounds: int, settlements: int) -> Cost:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    one, two = [
        await fleet.start(
            f"{kind}-{number}",
            CONFIG.format(
                url=URLS[kind].format(port=port, name=KEY_NAME),
                variable=KEY_VARIABLE,
                address=address,
                peers=", ".join(f'"{each}"' for each in addresses),
                secret=SECRET,
            ),
        )
        for number, address in enumerate(addresses)
    ]
    here, there = list[Figures](), list[Figures]()
    async with connect(one.port) as at_one, connect(two.port) as at_two:
        cluster = Cluster((one, two), at_one, at_two, {"Authorization": token()})
        for number in range(rounds + 1):  # the first one warms up
            figures = {at: await cluster.settle(at, settlements) for at in (at_one, at_two)}
            if number:
                here.append(figures[at_one])
                there.append(figures[at_two])
    return cost_of(kind, here, there)


def cost_of(kind: str, here: Sequence[Figures], there: Sequence[Figures]) -> Cost:
    """The medians; only figures of the same round are compared."""

    def ratio(index: int) -> float:
        pairs = zip(here, there, strict=True)
        return statistics.median(other[index] / own[index] for own, other in pairs)

    return Cost(
        kind=kind,
        seconds_here=statistics.median(seconds for seconds, _ in here),
        seconds_there=statistics.median(seconds for seconds, _ in there),
        processor_here=statistics.median(processor for _, processor in here),
        processor_there=statistics.median(processor for _, processor in there),
        seconds_ratio=ratio(0),
        processor_ratio=ratio(1),
    )


def show(report: Report, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, title="A completion at the gateway that received, and elsewhere")
    for name in (
        "lock",
        "here, ms",
        "there, ms",
        "ratio",
        "here, CPU us",
        "there, CPU us",
        "ratio",
    ):
        table.add_column(name, justify="left" if name == "lock" else "right")
    for each in report.costs:
        table.add_row(
            each.kind,
            f"{each.seconds_here * 1e3:.2f}",
            f"{each.seconds_there * 1e3:.2f}",
            f"{each.seconds_ratio:.2f}",
            f"{each.processor_here * 1e6:.0f}",
            f"{each.processor_there * 1e6:.0f}",
            f"{each.processor_ratio:.2f}",
        )
    console.print(table)
    show_medians(report.rounds, report.machine, console)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--settlements", type=int, default=SETTLEMENTS, help="completions of each way and round"
    )
    given = parser.parse_args()
    work = partial(measure, rounds=given.rounds, settlements=given.settlements)
    report_of(work, show, as_json=given.json, width=WIDTH)


if __name__ == "__main__":
    main()
