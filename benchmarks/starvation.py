"""
Measures the starvation of a client: a well-behaved client alone, and beside an aggressor.

    well-behaved ──one connection, one send in flight──▶ gateway, with an embedded store
    aggressor ─────another credential and queue────────▶

    connections   the aggressor sends over 200 connections, one message in flight on each
    batches       batches of 1,000 messages over 16 connections (AMQP: 1,000 messages in flight on
                  each); Storage Queue: the largest messages that it allows
    huge          bodies of 1 MiB over 64 connections
    slow          200 connections that ask and never read the answers
    trickle       500 connections that send a byte a second: of the body of a request, or of a frame
    peeks         300 connections that ask for all large messages, and read the answers
    receives      200 connections that ask for a message of an empty queue (Service Bus REST, Queue
                  service)
    receivers     8 connections that attach 50 links, ask for a message of an empty queue over each,
                  and detach them, again and again (AMQP)
    unfinished    300 connections that send a large message but for its end (AMQP)
    attaches      8 connections that attach links and detach them (AMQP)
    transactions  10 connections, each with 100 transactions that have a large message (AMQP and
                  the store's RabbitMQ)
    transfers     a connection that sends 4,000 messages in each transfer (AMQP)
    channels      8 connections that open 200 channels and close them, again and again (RabbitMQ)
    strangers     300 connections that begin a login with 14 KB of properties, again and again
                  (RabbitMQ)
    tables        8 connections that ask for a queue with a table of 17,000 fields (RabbitMQ)
    consumers     8 connections that begin 1,000 consumers and end them, again and again (RabbitMQ)
    gets          8 connections that ask for a message, 100 times at once, and read (RabbitMQ)

RabbitMQ's own clients are there twice: `rabbitmq-embedded` is one more endpoint of that gateway,
and `rabbitmq` another gateway, before a real RabbitMQ. Their `batches` has 1,000 publishes that
aren't confirmed on each connection, and `unfinished` is there, too. What passes through to RabbitMQ
harms others at RabbitMQ itself, too, so the same clients are measured there without a gateway
(`RabbitMQ`), and the goals are for what the gateway adds to that.

Memory is the anonymous memory of the gateway or of RabbitMQ: files that are mapped, such as
modules, don't count. It is measured before the first aggressor, at most beside each, and when that
has left. The first figure includes what the well-behaved client leaves behind when it is alone,
above all the store's cache of pages: 32 MiB at most, which its first messages fill.

Both clients are processes of their own and have access policies (or accounts) of their own. Each
round measures the well-behaved client alone and then beside each aggressor; a ratio is the median
of the rounds' ratios to alone.
"""

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import attrs
import trio
from pamqp import commands
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import rabbitmq_aggressors as hostile
from benchmarks.aggressors import (
    ALMOST_ALL,
    attach_without_end,
    fill_transactions,
    leave_unfinished,
    peek_without_end,
    receive_without_end,
    send_large_batches,
)
from benchmarks.fleet import Fleet, now, open_fleet
from benchmarks.machine import facts_of_processor
from benchmarks.rabbitmq_aggressors import RabbitClient, publish_of, rabbit_client
from benchmarks.report import report_of, show_medians
from benchmarks.stopwatch import processor_time
from benchmarks.targets import Target, show_targets
from gateway.demo.machines import DemoMachine
from gateway.demo.ports import free_port
from gateway.domain.errors import BrokerError
from gateway.domain.message import Message
from gateway.net.amqp.client import AmqpClient
from gateway.net.amqp.links import LinkVoid, ReceivingLink, SendingLink
from gateway.net.clients import ClientOptions
from gateway.net.dialing import dial
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.server_address import ServerAddress
from gateway.wire.amqp.events import NewLink, Terminus
from gateway.wire.amqp.message import encode_message
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.http.date import format_http_date
from gateway.wire.http.messages import Headers, Request
from gateway.wire.servicebus.sas import sign_sas
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.rest import build_request
from gateway.wire.storage_queue.signing import signed
from tests.harness.rabbitmq import control, rabbitmq
from tests.harness.secret_files import write_secret

REST, AMQP, STORAGE, SERVED, RABBIT = PROTOCOLS = (
    "service-bus-http",
    "amqp",
    "storage-queue",
    "rabbitmq-embedded",
    "rabbitmq",
)
OF_RABBITMQ: Final = frozenset({SERVED, RABBIT})  # the protocol of these is AMQP 0-9-1
DIRECTLY: Final = "RabbitMQ"  # the same clients without a gateway
CONNECTIONS, BATCHES, HUGE, SLOW, TRICKLE = FLOODS = (
    "connections",
    "batches",
    "huge",
    "slow",
    "trickle",
)
BY_RABBITMQ = CHANNELS, STRANGERS, TABLES, CONSUMERS, GETS = (
    "channels",
    "strangers",
    "tables",
    "consumers",
    "gets",
)
PEEKS, RECEIVERS, UNFINISHED, ATTACHES, TRANSACTIONS, TRANSFERS, *_ = FILLERS = (
    "peeks",
    "receivers",
    "unfinished",
    "attaches",
    "transactions",
    "transfers",
    *BY_RABBITMQ,
)
RECEIVES: Final = "receives"
AGGRESSORS = (*FLOODS, RECEIVES, *FILLERS)
NUMBER: Final = {  # of connections
    CONNECTIONS: 200,
    BATCHES: 16,
    HUGE: 64,
    SLOW: 200,
    TRICKLE: 500,
    PEEKS: 300,
    RECEIVES: 200,
    RECEIVERS: 8,
    UNFINISHED: 300,
    ATTACHES: 8,
    TRANSACTIONS: 10,
    TRANSFERS: 1,
    CHANNELS: 8,
    STRANGERS: 300,
    TABLES: 8,
    CONSUMERS: 8,
    GETS: 8,
}
ALONE: Final = "alone"
GOOD, BAD = "good", "bad"
KEYS: Final = {
    GOOD: base64.b64encode(b"g" * 32).decode(),
    BAD: base64.b64encode(b"b" * 32).decode(),
}
SMALL: Final = bytes(1024)
MEBIBYTE: Final = 1024 * 1024
ROUNDS: Final = 3
SHARE: Final = ClientOptions().share
SECONDS: Final = 3.0
WARM_UP: Final = 2.0
PATIENCE: Final = 60.0  # seconds, for one answer
WIDTH: Final = 120
LEAST_RATE: Final = 0.25  # of the rate alone
MOST_MEMORY: Final = 400.0  # MiB
MOST_KEPT: Final = 1.5  # of the memory before the first aggressor
CACHE: Final = 48 * MEBIBYTE  # bytes of messages; the store's cache of pages has 32 MiB
FEW: Final = 100
# Seconds after an aggressor, in which its requests end and free memory is returned.
SETTLED: Final = 16.0
MOST_P99: Final = 1.0  # seconds
MOST_P50_RATIO: Final = 3.0  # to alone
MOST_P99_RATIO: Final = 10.0
CONFIG: Final = """
[namespaces.here]
url = "embedded:{folder}/store.db"
queues = ["good", {queues}]

[limits.clients]
share = {share}

{endpoints}
{credentials}
"""


BEFORE_RABBITMQ: Final = """
[namespaces.primary]
url = "rabbitmq://good@127.0.0.1:{port}"
password = {{ file = "{folder}/good.key" }}

[namespaces.secondary]
url = "embedded:{folder}/backlog.db"

[pairing]
primary = "primary"
secondary = "secondary"
label = "starvation"

[limits.clients]
share = {share}

[[endpoints]]
protocol = "rabbitmq"
bind="127.0.0.1:{bind}"
"""


@attrs.frozen
class Way:
    """The port that clients of a protocol connect to, and the process behind it."""

    protocol: str
    port: int
    pid: int


@attrs.frozen(kw_only=True)
class Measured:
    """A measurement of the well-behaved client. Times are seconds."""

    rate: float  # sends/s
    p50: float
    p99: float
    processor: float  # the process's processor time in a second, aggressor included
    memory: float  # MiB of the process, at most
    left: float  # MiB, when the aggressor has left


@attrs.frozen(kw_only=True)
class Cell:
    """The medians of all rounds for one protocol and aggressor, and of their ratios to alone."""

    protocol: str  # or `DIRECTLY`
    aggressor: str
    rate: float
    p50: float
    p99: float
    processor: float
    rate_ratio: float
    p50_ratio: float
    p99_ratio: float
    memory: float
    left: float


@attrs.frozen(kw_only=True)
class Report:
    cells: Sequence[Cell]
    # MiB of each way's process before the first aggressor, with a full cache of pages.
    idle: Mapping[str, float]
    rounds: int
    machine: Mapping[str, str]


Send = Callable[[], Awaitable[None]]


@attrs.frozen
class Http:
    """A client of Service Bus REST or of the Queue service, over a number of connections."""

    protocol: str
    who: str
    queue: str
    client: HttpClient

    @classmethod
    def open(cls, protocol: str, port: int, who: str, queue: str) -> "Http":
        options = HttpClientOptions(max_connections=1)
        return cls(protocol, who, queue, HttpClient("127.0.0.1", port, options=options))

    def request(self, body: bytes) -> Request:
        """A send of that body."""
        if self.protocol == STORAGE:
            return self.sign(build_request(storage.PutMessage(queue=self.queue, body=body)))
        return Request(
            method="POST", target=f"/{self.queue}/messages", headers=self.token, body=body
        )

    @property
    def token(self) -> Headers:
        expires = int(now().timestamp()) + 3600
        return Headers.of(
            {"Authorization": sign_sas("http://localhost/", self.who, KEYS[self.who], expires)}
        )

    @property
    def peek(self) -> Request:
        """A request that shows as many messages as the protocol allows."""
        if self.protocol == STORAGE:
            return self.sign(build_request(storage.PeekMessages(queue=self.queue, limit=32)))
        target = f"/{self.queue}/messages?limit=100"
        return Request(method="GET", target=target, headers=self.token)

    @property
    def receive(self) -> Request:
        """A request for a message, which doesn't wait for one."""
        if self.protocol == STORAGE:
            return self.sign(build_request(storage.GetMessages(queue=self.queue, limit=1)))
        target = f"/{self.queue}/messages/head?timeout=0"
        return Request(method="POST", target=target, headers=self.token)

    def sign(self, request: Request) -> Request:
        """The request to the Queue service by the account's key."""
        fields = {"x-ms-date": format_http_date(now()), "x-ms-version": "2026-10-06"}
        request = attrs.evolve(
            request,
            headers=Headers.of([*fields.items(), *request.headers.items]),
            target=f"/{self.who}{request.target}",
        )
        return signed(request, account=self.who, key=base64.b64decode(KEYS[self.who]))

    async def send(self, body: bytes = SMALL) -> None:
        answer = await self.client.request(self.request(body))
        assert answer.status == 201, answer


@asynccontextmanager
async def amqp_client(
    port: int, who: str, stream: trio.abc.Stream | None = None
) -> AsyncIterator[AmqpClient]:
    """Open a connection over AMQP, on that stream if it is given."""
    client = AmqpClient(
        stream or await dial(ServerAddress(host="127.0.0.1", port=port)),
        name="gateway",
        hostname="localhost",
        credentials=Credentials(mechanism="PLAIN", user=who, password=KEYS[who]),
        options=EngineOptions(container_id=f"{who}-{id(object())}"),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await client.wait_opened()
        yield client
        nursery.cancel_scope.cancel()


def sending(client: AmqpClient, queue: str, window: int) -> SendingLink:
    new = NewLink(
        name=f"{queue}-sender",
        we_send=True,
        source=Terminus(address="here"),
        target=Terminus(address=queue),
    )
    return SendingLink(client, new, window=window)


@asynccontextmanager
async def well_behaved(protocol: str, port: int) -> AsyncIterator[Send]:
    """Sends one message over one connection."""
    if protocol in OF_RABBITMQ:
        async with rabbit_client(port, GOOD, KEYS[GOOD]) as rabbit:
            frames = publish_of(GOOD, SMALL)
            yield partial(rabbit.publish, frames)
        return
    if protocol != AMQP:
        http = Http.open(protocol, port, GOOD, GOOD)
        yield http.send
        await http.client.aclose()
        return
    async with amqp_client(port, GOOD) as client:
        link = sending(client, GOOD, 1)
        await link.wait_attached()
        payload = encode_message(Message(body=SMALL))

        async def send() -> None:
            await link.send(payload)

        yield send


# The aggressor, a process of its own


async def aggress(protocol: str, port: int, kind: str) -> None:
    """Harm others as far as the gateway allows, until killed."""
    if kind in {SLOW, PEEKS}:
        await _fill(protocol, port, kind)
    print("begun", flush=True)
    own = {AMQP: _over_amqp} | dict.fromkeys(OF_RABBITMQ, _over_rabbitmq)
    attacks = own.get(protocol) or partial(_over_http, protocol)
    async with trio.open_nursery() as nursery:
        for _ in range(NUMBER[kind]):
            nursery.start_soon(_again, partial(attacks, port, kind))


async def _fill(protocol: str, port: int, kind: str) -> None:
    """Send the messages for the answers: small ones that aren't read, or large ones to peek."""
    large = bytes(40_000 if protocol == STORAGE else ALMOST_ALL)
    body, many = (large, 40) if kind == PEEKS else (SMALL, 1000 if protocol == AMQP else 100)
    if protocol in OF_RABBITMQ:
        async with rabbit_client(port, BAD, KEYS[BAD]) as rabbit:
            frames = publish_of(f"{BAD}-{kind}", SMALL)
            for _ in range(many):
                await rabbit.publish(frames)
        return
    if protocol == AMQP:
        async with amqp_client(port, BAD) as client:
            link = sending(client, f"{BAD}-{kind}", 1)
            await link.wait_attached()
            for _ in range(many):
                await link.send(encode_message(Message(body=body)))
        return
    http = Http.open(protocol, port, BAD, f"{BAD}-{kind}")
    for _ in range(many):
        await http.send(body)
    await http.client.aclose()


async def _again(attack: Callable[[], Awaitable[None]]) -> None:
    """A refused or closed connection is opened again, without mercy."""
    while True:
        try:
            await attack()
        except* (BrokerError, LinkVoid, OSError, trio.BrokenResourceError, AssertionError):
            await trio.sleep(0.05)


async def _over_rabbitmq(port: int, kind: str) -> None:
    queue = f"{BAD}-{kind}"
    if kind == STRANGERS:
        await hostile.begin_logins(port)
        return
    attacks: Mapping[str, Callable[[RabbitClient], Awaitable[None]]] = {
        CONNECTIONS: lambda each: hostile.publish_without_end(each, queue, SMALL, 1),
        BATCHES: lambda each: hostile.publish_without_end(each, queue, SMALL, hostile.WINDOW),
        HUGE: lambda each: hostile.publish_without_end(each, queue, bytes(ALMOST_ALL), 1),
        SLOW: lambda each: hostile.never_read(each, queue),
        TRICKLE: lambda each: hostile.trickle(each, queue),
        UNFINISHED: lambda each: hostile.leave_unfinished(each, queue),
        TRANSACTIONS: lambda each: hostile.fill_transactions(each, queue),
        CHANNELS: hostile.flood_channels,
        TABLES: lambda each: hostile.ask_without_end(each, hostile.declaration(queue), 1),
        CONSUMERS: lambda each: hostile.consume_without_end(each, queue),
        GETS: lambda each: hostile.ask_without_end(each, commands.Basic.Get(queue=queue), 100),
    }
    async with rabbit_client(port, BAD, KEYS[BAD]) as client:
        await attacks[kind](client)


async def _over_http(protocol: str, port: int, kind: str) -> None:
    http = Http.open(protocol, port, BAD, f"{BAD}-{kind}")
    if kind == SLOW:
        await _never_reading(http, port)
        return
    if kind == TRICKLE:
        await _trickling(http, port)
        return
    request = {PEEKS: http.peek, RECEIVES: http.receive}.get(kind, http.request(SMALL))
    if kind == BATCHES and protocol == REST:
        batch = json.dumps([{"Body": "x" * 100} for _ in range(1000)]).encode()
        headers = [*http.token.items, ("Content-Type", "application/vnd.microsoft.servicebus.json")]
        request = attrs.evolve(http.request(batch), headers=Headers.of(headers))
    elif kind not in {CONNECTIONS, PEEKS, RECEIVES}:
        largest = 47 * 1024 if protocol == STORAGE else MEBIBYTE - 1024
        request = http.request(bytes(largest))
    try:
        while True:
            await http.client.request(request)
    finally:
        with trio.CancelScope(shield=True):
            await http.client.aclose()


async def _never_reading(http: Http, port: int) -> None:
    """Requests that are sent ahead, as many as the gateway takes."""
    head = _head(http.peek, port)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        while True:
            await stream.send_all(head)


def _head(request: Request, port: int, *more: str) -> bytes:
    fields = (f"{name}: {value}" for name, value in request.headers.items)
    lines = (f"{request.method} {request.target} HTTP/1.1", f"Host: 127.0.0.1:{port}", *fields)
    return "\r\n".join((*lines, *more, "", "")).encode()


async def _trickling(http: Http, port: int) -> None:
    """The head of a send, and its body a byte a second, until the gateway ends the connection."""
    request = http.request(bytes(32 * 1024))
    # The gateway refuses a request with this field twice, and a signed request has it already.
    known = request.headers.get("Content-Length") is not None
    size = () if known else (f"Content-Length: {len(request.body)}",)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(_head(request, port, *size))
        for at in range(len(request.body)):
            await trio.sleep(1)
            await stream.send_all(request.body[at : at + 1])


async def _trickling_frame(port: int) -> None:
    """A link to send on, and the bytes of a frame, one a second."""
    stream = await dial(ServerAddress(host="127.0.0.1", port=port))
    async with amqp_client(port, BAD, stream) as client:
        await sending(client, f"{BAD}-{TRICKLE}", 1).wait_attached()
        await stream.send_all((60_000).to_bytes(4) + b"\x02\0\0\0")
        while True:
            await trio.sleep(1)
            await stream.send_all(b"\0")


async def _filling(port: int, kind: str) -> None:
    """Attack as one of `FILLERS`."""
    stream, queue = await dial(ServerAddress(host="127.0.0.1", port=port)), f"{BAD}-{kind}"
    async with amqp_client(port, BAD, stream) as client:
        match kind:
            case "attaches":
                await attach_without_end(client, queue)
            case "receivers":
                await receive_without_end(client, queue)
            case "peeks":
                await peek_without_end(client, queue)
        link = sending(client, queue, 1)
        await link.wait_attached()
        match kind:
            case "unfinished":
                await leave_unfinished(stream, link)
            case "transactions":
                await fill_transactions(link)
            case _:
                await send_large_batches(link)


async def _over_amqp(port: int, kind: str) -> None:
    if kind == TRICKLE:
        await _trickling_frame(port)
        return
    if kind in FILLERS:
        await _filling(port, kind)
        return
    async with amqp_client(port, BAD) as client:
        if kind == SLOW:
            new = NewLink(
                name="receiver",
                we_send=False,
                source=Terminus(address=f"{BAD}-{kind}"),
                target=Terminus(address="here"),
            )
            link = ReceivingLink(client, new)
            await link.wait_attached()
            link.set_credit(5000)  # and none is ever settled
            await client.wait_ended()
            return
        window = {CONNECTIONS: 1, BATCHES: 1000, HUGE: 100}[kind]
        sender = sending(client, f"{BAD}-{kind}", window)
        await sender.wait_attached()
        body = bytes(MEBIBYTE - 4096) if kind == HUGE else SMALL
        payload = encode_message(Message(body=body))
        async with trio.open_nursery() as nursery:
            for _ in range(min(window, 100)):
                nursery.start_soon(_sends, sender, payload)


async def _sends(link: SendingLink, payload: bytes) -> None:
    while True:
        await link.send(payload)


# The measurement


async def measure(
    folder: Path,
    *,
    rounds: int,
    seconds: float,
    protocols: Sequence[str],
    kinds: Sequence[str],
    share: int,
) -> Report:
    found: dict[tuple[str, str], list[Measured]] = {}
    ports = {protocol: free_port() for protocol in protocols}
    async with open_fleet(folder) as fleet, AsyncExitStack() as stack:
        ways: dict[str, Way] = {}
        own = {each: port for each, port in ports.items() if each != RABBIT}
        if own:
            gateway = await _started(fleet, "gateway", config_of(folder, own, share))
            ways |= {each: Way(each, port, gateway.pid) for each, port in own.items()}
        if RABBIT in ports:
            broker = await _rabbitmq(folder, stack)
            config = BEFORE_RABBITMQ.format(
                folder=folder, port=broker.port, bind=ports[RABBIT], share=share
            )
            gateway = await _started(fleet, "wire", config)
            ways |= {RABBIT: Way(RABBIT, ports[RABBIT], gateway.pid), DIRECTLY: broker}
        await fill_cache(ports)
        idle = {name: memory_of(way.pid) for name, way in ways.items()}
        for number in range(rounds + 1):  # the first one warms up
            for kind, (name, way) in product((ALONE, *kinds), ways.items()):
                if kind != ALONE and not fits(kind, way.protocol):
                    continue
                async with attacked(way.protocol, way.port, kind):
                    each = await _measure(way.protocol, way.port, way.pid, seconds)
                if kind in {HUGE, *FILLERS} and name != DIRECTLY:
                    await trio.sleep(SETTLED)
                each = attrs.evolve(each, left=memory_of(way.pid))
                if number:
                    found.setdefault((name, kind), []).append(each)
    cells = [_cell(*key, found[key], found[key[0], ALONE]) for key in sorted(found, key=_order)]
    return Report(cells=cells, idle=idle, rounds=rounds, machine=dict(facts_of_processor()))


def _order(key: tuple[str, str]) -> tuple[int, int]:
    name, kind = key
    return [*PROTOCOLS, DIRECTLY].index(name), (ALONE, *AGGRESSORS).index(kind)


async def _started(fleet: Fleet, name: str, config: str) -> DemoMachine:
    started = trio.Event()
    fleet.watch = lambda _, line: started.set() if line.get("event") == "started" else None
    machine = await fleet.start(name, config)
    with trio.fail_after(PATIENCE):
        await started.wait()
    return machine


async def _rabbitmq(folder: Path, stack: AsyncExitStack) -> Way:
    """A RabbitMQ with both clients and all queues."""
    home = folder / "rabbitmq"
    home.mkdir()
    node, port = await stack.enter_async_context(rabbitmq(home))
    for who, key in KEYS.items():
        write_secret(folder / f"{who}.key", key)
        await control(node, "add_user", who, key)
        await control(node, "set_permissions", who, ".*", ".*", ".*")
    async with rabbit_client(port, GOOD, KEYS[GOOD]) as client:
        for queue in (GOOD, *(f"{BAD}-{kind}" for kind in AGGRESSORS)):
            await client.ask(1, commands.Queue.Declare(queue=queue, durable=True))
    return Way(RABBIT, port, int((await control(node, "eval", "os:getpid().")).strip().strip('"')))


def fits(kind: str, protocol: str) -> bool:
    """True if a client of that protocol can do this."""
    if protocol in OF_RABBITMQ:
        own = {TRANSACTIONS} if protocol == SERVED else set()
        return kind in {*FLOODS, UNFINISHED, *BY_RABBITMQ, *own}
    if protocol == AMQP:
        return kind not in {*BY_RABBITMQ, RECEIVES}
    return kind in {*FLOODS, RECEIVES, PEEKS}


async def fill_cache(ports: Mapping[str, int]) -> None:
    """Send more than the store's cache of pages holds, and a few messages over each protocol."""
    if REST in ports:
        http = Http.open(REST, ports[REST], GOOD, GOOD)
        for _ in range(CACHE // ALMOST_ALL):
            await http.send(bytes(ALMOST_ALL))
        await http.client.aclose()
    elif SERVED in ports:
        async with rabbit_client(ports[SERVED], GOOD, KEYS[GOOD]) as rabbit:
            for _ in range(CACHE // ALMOST_ALL):
                await rabbit.publish(publish_of(GOOD, bytes(ALMOST_ALL)))
    for protocol, port in ports.items():
        async with well_behaved(protocol, port) as send:
            for _ in range(FEW):
                await send()
    await trio.sleep(SETTLED)


def memory_of(pid: int) -> float:
    """The anonymous memory of a process, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return int(kibibytes) / 1024


def config_of(folder: Path, ports: Mapping[str, int], share: int) -> str:
    endpoints = "\n".join(
        f'[[endpoints]]\nprotocol = "{protocol.removesuffix("-embedded")}"\nbind="127.0.0.1:{port}"'
        for protocol, port in ports.items()
    )
    lines = []
    for who, key in KEYS.items():
        file = folder / f"{who}.key"
        write_secret(file, key)
        secret = f'key = {{ file = "{file}" }}'
        lines.append(
            f'[[access]]\nname = "{who}"\n{secret}\nrights = ["Send", "Listen"]\n'
            f'entities = ["{who}*"]\n[[accounts]]\nname = "{who}"\n{secret}\n'
        )
    credentials = "\n".join(lines)
    queues = ", ".join(f'"{BAD}-{kind}"' for kind in AGGRESSORS)
    return CONFIG.format(
        folder=folder, queues=queues, endpoints=endpoints, credentials=credentials, share=share
    )


@asynccontextmanager
async def attacked(protocol: str, port: int, kind: str) -> AsyncIterator[None]:
    """Beside that aggressor, if it is one."""
    if kind == ALONE:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.starvation", "--aggressor", kind]
    command += ["--protocol", protocol, "--port", str(port)]
    process = await trio.lowlevel.open_process(
        command, env=dict(os.environ), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None, "it is a pipe"
        with trio.fail_after(PATIENCE):
            await process.stdout.receive_some()  # the measurement has begun
        await trio.sleep(WARM_UP)
        assert process.poll() is None, "the aggressor has ended"
        yield
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def _measure(protocol: str, port: int, pid: int, seconds: float) -> Measured:
    latencies, memory = list[float](), memory_of(pid)
    async with well_behaved(protocol, port) as send:
        with trio.fail_after(PATIENCE):
            await send()
        before, began = processor_time(pid), time.perf_counter()
        while (sent := time.perf_counter()) < began + seconds:
            with trio.fail_after(PATIENCE):
                await send()
            latencies.append(time.perf_counter() - sent)
            memory = max(memory, memory_of(pid))
        spent, took = processor_time(pid) - before, time.perf_counter() - began
    ordered = sorted(latencies)
    return Measured(
        rate=len(ordered) / took,
        p50=ordered[len(ordered) // 2],
        p99=ordered[len(ordered) * 99 // 100],
        processor=spent / took,
        memory=memory,
        left=memory,
    )


def _cell(protocol: str, kind: str, rounds: Sequence[Measured], alone: Sequence[Measured]) -> Cell:
    def middle(name: str) -> float:
        return statistics.median(getattr(each, name) for each in rounds)

    def ratio(name: str) -> float:
        pairs = zip(rounds, alone, strict=True)
        return statistics.median(getattr(one, name) / getattr(two, name) for one, two in pairs)

    return Cell(
        protocol=protocol,
        aggressor=kind,
        rate=middle("rate"),
        p50=middle("p50"),
        p99=middle("p99"),
        processor=middle("processor"),
        rate_ratio=ratio("rate"),
        p50_ratio=ratio("p50"),
        p99_ratio=ratio("p99"),
        memory=max(each.memory for each in rounds),
        left=middle("left"),
    )


def _added(wire: Cell, broker: Cell) -> Cell:
    """The cell of the wire, with ratios to what the aggressor does to RabbitMQ's own client."""
    return attrs.evolve(
        wire,
        rate_ratio=wire.rate_ratio / min(broker.rate_ratio, 1.0),
        p50_ratio=wire.p50_ratio / max(broker.p50_ratio, 1.0),
        p99_ratio=wire.p99_ratio / max(broker.p99_ratio, 1.0),
    )


def targets(report: Report) -> Sequence[Target]:
    """The goals, each for the worst of the aggressors."""
    own = {cell.aggressor: cell for cell in report.cells if cell.protocol == DIRECTLY}
    beside = [
        _added(cell, own[cell.aggressor]) if cell.protocol == RABBIT else cell
        for cell in report.cells
        if cell.aggressor != ALONE and cell.protocol != DIRECTLY
    ]
    if not beside:
        return ()
    slowest, latest = (
        min(beside, key=lambda cell: cell.rate_ratio),
        max(beside, key=lambda cell: cell.p99),
    )
    middle, tail = (
        max(beside, key=lambda cell: cell.p50_ratio),
        max(beside, key=lambda cell: cell.p99_ratio),
    )
    largest, keeper = (
        max(beside, key=lambda cell: cell.memory),
        max(beside, key=lambda cell: cell.left / report.idle[cell.protocol]),
    )
    idle = report.idle[keeper.protocol]
    return (
        Target(
            text=f"beside every aggressor at least {LEAST_RATE:.2f} of the rate alone",
            reached=slowest.rate_ratio >= LEAST_RATE,
            found=f"{slowest.rate_ratio:.2f} ({slowest.protocol}, {slowest.aggressor})",
        ),
        Target(
            text=f"p50 of a send at most {MOST_P50_RATIO:.0f} times that alone",
            reached=middle.p50_ratio <= MOST_P50_RATIO,
            found=f"{middle.p50_ratio:.1f} ({middle.protocol}, {middle.aggressor})",
        ),
        Target(
            text=f"p99 of a send at most {MOST_P99_RATIO:.0f} times that alone",
            reached=tail.p99_ratio <= MOST_P99_RATIO,
            found=f"{tail.p99_ratio:.1f} ({tail.protocol}, {tail.aggressor})",
        ),
        Target(
            text=f"p99 of a send at most {MOST_P99:.0f} s",
            reached=latest.p99 <= MOST_P99,
            found=f"{latest.p99 * 1e3:.0f} ms ({latest.protocol}, {latest.aggressor})",
        ),
        Target(
            text=f"the gateway's memory stays below {MOST_MEMORY:.0f} MiB",
            reached=largest.memory < MOST_MEMORY,
            found=f"{largest.memory:.0f} MiB ({largest.protocol}, {largest.aggressor})",
        ),
        Target(
            text=f"its memory returns to {MOST_KEPT} times that before",
            reached=keeper.left <= MOST_KEPT * idle,
            found=f"{keeper.left:.0f} of {idle:.0f} MiB ({keeper.protocol}, {keeper.aggressor})",
        ),
    )


def show(report: Report, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, title="One well-behaved client: sends over one connection")
    for name in ("protocol", "aggressor"):
        table.add_column(name)
    for name in (
        "sends/s",
        "to alone",
        "p50, ms",
        "to alone",
        "p99, ms",
        "to alone",
        "CPU",
        "MiB",
        "left",
    ):
        table.add_column(name, justify="right")
    for each in report.cells:
        table.add_row(
            each.protocol,
            each.aggressor,
            f"{each.rate:.0f}",
            f"{each.rate_ratio:.2f}",
            f"{each.p50 * 1e3:.1f}",
            f"{each.p50_ratio:.1f}",
            f"{each.p99 * 1e3:.1f}",
            f"{each.p99_ratio:.1f}",
            f"{each.processor:.2f}",
            f"{each.memory:.0f}",
            f"{each.left:.0f}",
        )
    console.print(table)
    show_targets(targets(report), console)
    show_medians(
        report.rounds, report.machine, console, "; CPU: cores of the gateway, or of RabbitMQ"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="seconds of each measurement"
    )
    parser.add_argument("--only", nargs="+", choices=PROTOCOLS, default=PROTOCOLS)
    parser.add_argument("--beside", nargs="+", choices=AGGRESSORS, default=AGGRESSORS)
    parser.add_argument("--share", type=int, default=SHARE, help="of [limits.clients]; 0: none")
    parser.add_argument("--aggressor", choices=AGGRESSORS, help=argparse.SUPPRESS)
    parser.add_argument("--protocol", choices=PROTOCOLS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.aggressor is not None:
        trio.run(aggress, given.protocol, given.port, given.aggressor)
    work = partial(
        measure,
        rounds=given.rounds,
        seconds=given.seconds,
        protocols=given.only,
        kinds=given.beside,
        share=given.share,
    )
    report_of(work, show, as_json=given.json, width=WIDTH)


if __name__ == "__main__":
    main()
