"""
Messages/s to a handler that does nothing, on each kind of namespace, beside a plain receive loop.

The queue is filled off the clock; then a process of its own takes and completes all of it.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks.listener_worker import LOOP, OURS, PIKA, QUEUE, Taken, fill, open_broker
from benchmarks.stopwatch import processor_time
from gateway.domain.entity import QueueProperties
from tests.brokers.storage_queue.azurites import url_of
from tests.e2e.installation import KEY, KEY_NAME
from tests.e2e.processes import broker_config, open_gateways
from tests.harness.azurite import KEY as STORAGE_KEY
from tests.harness.azurite import azurite
from tests.harness.rabbitmq import rabbitmq

ROOT: Final = Path(__file__).parents[1]
OF_SDK: Final = str(ROOT / ".venv-azure" / "bin" / "python")
HERE: Final = sys.executable
LIMIT: Final = 120.0  # seconds of one process
WORKER: Final = "benchmarks.listener_worker"
SDK: Final = "benchmarks.listener_sdk"


@attrs.frozen(kw_only=True)
class Program:
    """A process that takes the messages, and its arguments besides their number."""

    python: str = HERE
    module: str = WORKER
    job: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Contest:
    """Our listener and a plain loop on one namespace, which `url` and `options` lead to."""

    url: str
    options: Mapping[str, Any] = attrs.field(factory=dict)
    ours: Mapping[str, Program]  # by name
    plain: Program
    servers: Mapping[str, int] = attrs.field(factory=dict)  # the ids of the processes, by name


@attrs.frozen(kw_only=True)
class Row:
    """The medians of one kind of namespace and one way of ours."""

    namespace: str
    way: str
    ours: float  # messages/s
    plain: float
    ratio: float  # the median of the rounds' ratios
    requests: float  # of ours, for each message
    # Seconds of processor time for each message, of each process.
    costs: Mapping[str, float] = attrs.field(factory=dict)
    plain_costs: Mapping[str, float] = attrs.field(factory=dict)


Round = Mapping[str, Taken]  # by way; PLAIN is the loop's
PLAIN: Final = "plain"


def rows(namespace: str, count: int, rounds: Sequence[Round]) -> Sequence[Row]:
    """The figures of rounds with a number of messages each."""
    plain = [count / each[PLAIN].seconds for each in rounds]
    found = []
    for way in (name for name in rounds[0] if name != PLAIN):
        ours = [count / each[way].seconds for each in rounds]
        found.append(
            Row(
                namespace=namespace,
                way=way,
                ours=statistics.median(ours),
                plain=statistics.median(plain),
                ratio=statistics.median(a / b for a, b in zip(ours, plain, strict=True)),
                requests=statistics.median(each[way].requests / count for each in rounds),
                costs=_costs(count, [each[way] for each in rounds]),
                plain_costs=_costs(count, [each[PLAIN] for each in rounds]),
            )
        )
    return found


def _costs(count: int, taken: Sequence[Taken]) -> Mapping[str, float]:
    return {
        name: statistics.median(each.costs[name] / count for each in taken)
        for name in taken[0].costs
    }


# --- the namespaces


@asynccontextmanager
async def in_memory(folder: Path) -> AsyncIterator[Contest]:
    await trio.lowlevel.checkpoint()
    yield Contest(
        url="memory:",
        ours={"in process": Program(job={"kind": OURS, "url": "memory:"})},
        plain=Program(job={"kind": LOOP, "url": "memory:"}),
    )


@asynccontextmanager
async def behind_a_gateway(folder: Path) -> AsyncIterator[Contest]:
    config = broker_config().replace("service-bus-http", "service-bus")
    async with open_gateways(folder) as gateways:
        gateway = await gateways.start(config, name="gateway")
        rest = f"servicebus+http://{KEY_NAME}@{gateway.address}"
        amqp = (
            f"Endpoint=sb://{gateway.address};SharedAccessKeyName={KEY_NAME};"
            "UseDevelopmentEmulator=true"
        )
        yield Contest(
            url=rest,
            options={"key": KEY},
            ours={
                "over REST": _ours(rest, key=KEY),
                "over AMQP": _ours(f"servicebus:{amqp}", key=KEY),
            },
            plain=_sdk("azure-servicebus", f"{amqp};SharedAccessKey={KEY}"),
            servers={"gateway": gateway.pid},
        )


@asynccontextmanager
async def on_rabbitmq(folder: Path) -> AsyncIterator[Contest]:
    async with rabbitmq(folder) as (node, port):
        url = f"rabbitmq://guest@127.0.0.1:{port}"
        yield Contest(
            url=url,
            options={"password": "guest"},
            ours={"over AMQP 0-9-1": _ours(url, password="guest")},
            plain=Program(job={"kind": PIKA, "port": port}),
            servers={"RabbitMQ": node.pid},
        )


@asynccontextmanager
async def on_azurite(folder: Path) -> AsyncIterator[Contest]:
    async with azurite(folder) as (process, port):
        url = f"storage-queue:{url_of(port)}"
        connection = f"DefaultEndpointsProtocol=http;{url_of(port)};AccountKey={STORAGE_KEY}"
        yield Contest(
            url=url,
            options={"key": STORAGE_KEY},
            ours={"over REST": _ours(url, key=STORAGE_KEY)},
            plain=_sdk("azure-storage-queue", connection),
            servers={"Azurite": process.pid},
        )


def _ours(url: str, **options: str) -> Program:
    return Program(job={"kind": OURS, "url": url, "options": options})


def _sdk(kind: str, connection: str) -> Program:
    return Program(python=OF_SDK, module=SDK, job={"kind": kind, "connection": connection})


Opening = Callable[[Path], AbstractAsyncContextManager[Contest]]
NAMESPACES: Final[Mapping[str, tuple[Opening, int]]] = {  # and messages of a round
    "memory": (in_memory, 5000),
    "embedded, behind a gateway": (behind_a_gateway, 1000),
    "RabbitMQ": (on_rabbitmq, 5000),
    # A get costs it time for every message that it holds.
    "Azurite": (on_azurite, 256),
}


# --- running


async def measure(folder: Path, name: str, rounds: int) -> Sequence[Row]:
    """Rounds in turn, after one that doesn't count."""
    opening, count = NAMESPACES[name]
    await trio.Path(folder).mkdir(parents=True)
    async with opening(folder) as contest:
        if contest.url != "memory:":
            async with open_broker(contest.url, contest.options) as broker:
                await broker.create_queue(QUEUE, QueueProperties())
        found = [await _round(contest, count) for _ in range(rounds + 1)]
    return rows(name, count, found[1:])


async def _round(contest: Contest, count: int) -> Round:
    programs = {**contest.ours, PLAIN: contest.plain}
    return {way: await _take(contest, program, count) for way, program in programs.items()}


async def _take(contest: Contest, program: Program, count: int) -> Taken:
    """
    Raises:
        ValueError: messages were left over.
    """
    if contest.url == "memory:":
        return await _run(program, count)
    async with open_broker(contest.url, contest.options) as broker:
        await fill(broker, count)
        before = {name: processor_time(pid) for name, pid in contest.servers.items()}
        taken = await _run(program, count)
        costs = {
            name: processor_time(contest.servers[name]) - earlier
            for name, earlier in before.items()
        }
        left = (await broker.inspect(QUEUE)).active
    if left:
        raise ValueError(f"{left} messages are left in {contest.url}")
    return attrs.evolve(taken, costs={**taken.costs, **costs})


async def _run(program: Program, count: int) -> Taken:
    job = json.dumps({**program.job, "count": count})
    with trio.fail_after(LIMIT):
        done = await trio.run_process(
            [program.python, "-m", program.module, job],
            cwd=ROOT,
            capture_stdout=True,
            stdin=subprocess.DEVNULL,
        )
    return Taken(**json.loads(done.stdout))
