"""
Measures the gateway in front of RabbitMQ, beside plain clients that talk to it directly.

    pika ──────AMQP 0-9-1──────────────────────▶ RabbitMQ      direct
    adapter ───AMQP 0-9-1──────────────────────▶ RabbitMQ      the gateway's own client, alone
    Proton ────AMQP 1.0────────────────────────▶ RabbitMQ      direct, by RabbitMQ's plugin
    Proton ────AMQP 1.0──▶ pairgate ──0-9-1────▶ RabbitMQ      a pair's primary

One durable quorum queue, messages of 1 KiB. Each client is a process of its own with one
connection, stops its own time, and takes back what it has sent: a message that is missing is an
error. Each round visits every cell once.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs

from benchmarks import quorum_queue
from benchmarks.amqp import (
    Effort,
    Job,
    Measure,
    client,
    visit,
)
from benchmarks.amqp_figures import Rounds, cells_of
from benchmarks.comparisons import Comparison, Report, compare, run
from benchmarks.fleet import BACKLOG_QUEUES, LABEL, Fleet, open_fleet
from benchmarks.machine import facts
from benchmarks.targets import Target
from gateway.demo.machines import KEY, KEY_NAME, DemoMachine
from gateway.domain import backlog
from tests.harness.rabbitmq import USER, rabbitmq
from tests.harness.secret_files import write_secret

PIKA: Final = "pika, direct"
ADAPTER: Final = "adapter, direct"
DIRECT: Final = "Proton, direct"
GATEWAY: Final = "Proton, gateway"
WAYS: Final = (PIKA, ADAPTER, DIRECT, GATEWAY)

# The same protocol on both sides; and the figures of a producer that leaves pika for the gateway.
COMPARED: Final = ((GATEWAY, DIRECT), (ADAPTER, PIKA), (GATEWAY, PIKA))
JUDGED: Final = COMPARED[:2]
LEAST: Final = 0.9  # of the direct rate

QUEUE: Final = quorum_queue.QUEUE


async def measure(
    folder: Path, ways: Sequence[str], windows: Sequence[int], effort: Effort
) -> Report:
    """
    Raises:
        ClientFailed: a message is missing, or a client got an error.
    """
    about = {**facts(folder), "RabbitMQ": quorum_queue.version()}
    async with _open_ways(folder) as measures:
        rounds = await visit({way: measures[way] for way in ways}, windows, effort)
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return report(about, rounds)


def report(about: Mapping[str, str], rounds: Rounds) -> Report:
    comparisons = compare(rounds, COMPARED)
    targets = [_target(each) for each in comparisons if (each.ours, each.theirs) in JUDGED]
    return Report(facts=about, cells=cells_of(rounds), comparisons=comparisons, targets=targets)


def _target(found: Comparison) -> Target:
    """pika doesn't wait until its acknowledgements are handled: only the sends are compared."""
    ratio = found.ratio
    sends_only = found.theirs == PIKA
    what = "sends" if sends_only else "sends and receives"
    return Target(
        text=f"{found.ours}: {what} at least {LEAST} of {found.theirs}, {ratio.window} in flight",
        reached=min(ratio.send, ratio.send if sends_only else ratio.receive) >= LEAST,
        found=f"{ratio.send:.2f}" if sends_only else f"{ratio.send:.2f} and {ratio.receive:.2f}",
    )


@asynccontextmanager
async def _open_ways(folder: Path) -> AsyncIterator[Mapping[str, Measure]]:
    """All servers run side by side; only one client has work at a time."""
    async with (
        rabbitmq(folder / "rabbitmq", plugins=["rabbitmq_amqp1_0"]) as (node, port),
        open_fleet(folder) as fleet,
    ):
        await quorum_queue.declare(port)
        gateway = await start_gateway(fleet, port)
        direct = Job(port, {"RabbitMQ": node.pid}, USER, USER, QUEUE, False)
        # By another name the plugin would make a queue, one that isn't replicated.
        plugin = attrs.evolve(direct, address=f"/amq/queue/{QUEUE}")
        servers = {"gateway": gateway.pid, "RabbitMQ": node.pid}
        ours = Job(gateway.port, servers, KEY_NAME, KEY, QUEUE, True)
        yield {
            PIKA: client(direct, sys.executable, "benchmarks.rabbitmq_pika"),
            ADAPTER: client(direct, sys.executable, "benchmarks.rabbitmq_adapter"),
            DIRECT: client(plugin, sys.executable, "benchmarks.amqp_proton"),
            GATEWAY: client(ours, sys.executable, "benchmarks.amqp_proton"),
        }


async def start_gateway(fleet: Fleet, port: int, protocol: str = "service-bus") -> DemoMachine:
    """A pair whose secondary is embedded: it costs nothing while the primary is well."""
    password = fleet.folder / "password"
    write_secret(password, USER)
    backlog_queues = [backlog.queue_name(LABEL, index).name for index in range(BACKLOG_QUEUES)]
    return await fleet.start(
        "gateway",
        f"""
[namespaces.primary]
url = "rabbitmq://{USER}@127.0.0.1:{port}/"
password = {{ file = "{password}" }}
queues = ["{QUEUE}"]

[namespaces.secondary]
url = "embedded:secondary.db"
queues = {json.dumps(backlog_queues)}

[pairing]
primary = "primary"
secondary = "secondary"
label = "{LABEL}"

[[endpoints]]
protocol = "{protocol}"
bind = "127.0.0.1:0"
""",
    )


def main() -> int:
    return run("The costs of the gateway before RabbitMQ.", WAYS, measure)


if __name__ == "__main__":
    sys.exit(main())
