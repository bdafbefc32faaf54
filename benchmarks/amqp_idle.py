"""
Memory of idle AMQP connections: a process's resident memory before and after they were opened.

    python -m benchmarks.amqp_idle [--connections 5000] [--only senders receivers rabbitmq]

Each has one session with one link: a sender, or a receiver with credit on an empty queue. The
clients are our own engine in the other role until the link is attached, and afterwards only sockets
on which a heartbeat is sent now and then. RabbitMQ's AMQP 1.0 gets the same clients.
"""

import argparse
import os
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console

from benchmarks import quorum_queue
from benchmarks.amqp_figures import Idle, idle_target
from benchmarks.fleet import open_fleet
from benchmarks.machine import facts_of_processor
from benchmarks.memory import resident
from benchmarks.report import report_of, show_facts
from benchmarks.stopwatch import processor_time
from benchmarks.targets import show_targets
from gateway.demo.machines import KEY, KEY_NAME, broker_config
from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import ConnectionOpened, LinkAttached, LinkFlow, NewLink, Terminus
from gateway.wire.amqp.frames import HEARTBEAT
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import Credentials, SaslClient
from tests.harness.rabbitmq import USER, rabbitmq

QUEUE: Final = "idle"
CREDIT: Final = 100
SENDERS: Final = "senders"
RECEIVERS: Final = "receivers"
RABBITMQ: Final = "rabbitmq"
SETTLE: Final = 2.0  # seconds for the server to end its work of the opening
_WARM_UP: Final = 100  # connections
_AT_ONCE: Final = 32  # that are being opened
_OTHER_FILES: Final = 100  # of a process
_RECEIVE_SIZE: Final = 64 * 1024
_HEARTBEATS: Final = 15.0  # seconds between two of a connection: servers wait for a minute
# A client's address has some 28,000 ports, so that many clients need several addresses.
_PER_ADDRESS: Final = 20_000
_WIDTH: Final = 120


class ClientRefused(Exception):
    """A server ended a connection before its link was open."""


@attrs.frozen
class Server:
    """The process that is measured."""

    port: int
    pid: int
    user: str
    password: str
    address: str  # of the queue


@attrs.frozen
class Report:
    facts: dict[str, str]
    idle: list[Idle]


def service_bus(queue: str, *, connections: int = 1000) -> str:
    """The configuration of a broker behind one port for all protocols."""
    config = broker_config(queue).replace('"service-bus-http"', '"service-bus"')
    limits = f"max_connections = {connections}\nmax_connections_per_peer = 0\n"
    return f"{config}\n[limits]\n{limits}"


async def idle_memory(folder: Path, kind: str, connections: int, *, settle: float = SETTLE) -> Idle:
    """Open the connections to a fresh gateway, and return their cost."""
    async with open_fleet(folder) as fleet:
        machine = await fleet.start(
            "gateway", service_bus(QUEUE, connections=connections + _WARM_UP)
        )
        server = Server(machine.port, machine.pid, KEY_NAME, KEY, QUEUE)
        return await _measure(server, kind, connections, settle)


async def idle_memory_of_rabbitmq(folder: Path, connections: int) -> Idle:
    """The same of RabbitMQ, with receivers of a quorum queue."""
    async with rabbitmq(folder, plugins=["rabbitmq_amqp1_0"]) as (node, port):
        await quorum_queue.declare(port)
        server = Server(port, node.pid, USER, USER, f"/amq/queue/{quorum_queue.QUEUE}")
        found = await _measure(server, RECEIVERS, connections, SETTLE)
        return attrs.evolve(found, kind=f"{RABBITMQ}, {RECEIVERS}")


async def _measure(server: Server, kind: str, connections: int, settle: float) -> Idle:
    _allow_files(connections + _WARM_UP + _OTHER_FILES)
    async with _clients(server, kind) as clients:
        await clients.open(_WARM_UP)
        await trio.sleep(settle)
        before, began = resident(server.pid), processor_time(server.pid)
        await clients.open(connections)
        await trio.sleep(settle)
        after, ended = resident(server.pid), processor_time(server.pid)
    return Idle(
        kind=kind,
        connections=connections,
        each=(after - before) / connections,
        opening=(ended - began) / connections,
    )


def _allow_files(number: int) -> None:
    """Raise the limit of open files for this process and its children, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        most = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@asynccontextmanager
async def _clients(server: Server, kind: str) -> AsyncIterator["_Clients"]:
    """Connections that stay open until the context ends."""
    async with trio.open_nursery() as nursery:
        clients = _Clients(server, kind)
        nursery.start_soon(clients.keep_alive)
        try:
            yield clients
        finally:
            nursery.cancel_scope.cancel()
            for stream in clients.streams:
                stream.socket.close()


@attrs.define(eq=False)
class _Clients:
    _server: Server
    _kind: str
    streams: list[trio.SocketStream] = attrs.field(factory=list)

    async def open(self, number: int) -> None:
        """
        Return when `number` more connections are open.

        Raises:
            ClientRefused: the server has refused one.
        """
        limit = trio.CapacityLimiter(_AT_ONCE)

        async def open_one(index: int) -> None:
            async with limit:
                address = f"127.0.0.{1 + index // _PER_ADDRESS}"
                self.streams.append(await _open(self._server, self._kind, address))

        async with trio.open_nursery() as nursery:
            for index in range(len(self.streams), len(self.streams) + number):
                nursery.start_soon(open_one, index)

    async def keep_alive(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await trio.sleep(_HEARTBEATS)
            for stream in list(self.streams):
                await stream.send_all(HEARTBEAT)


async def _open(server: Server, kind: str, address: str) -> trio.SocketStream:
    """A connection whose link is attached, and has credit."""
    stream = await trio.open_tcp_stream("127.0.0.1", server.port, local_address=address)
    credentials = Credentials(mechanism="PLAIN", user=server.user, password=server.password)
    # without a timeout of ours, so that the server sends no heartbeats
    options = EngineOptions(container_id="idle", idle_timeout=0)
    engine = Engine(options, sasl=SaslClient(credentials))
    engine.open(hostname="localhost")
    session = engine.begin()
    while True:
        while data := engine.data_to_send(_RECEIVE_SIZE):
            await stream.send_all(data)
        received = await stream.receive_some(_RECEIVE_SIZE)
        if not received:
            raise ClientRefused(f"connection from {address}")
        engine.feed(received)
        for event in engine.events():
            match event:
                case ConnectionOpened():
                    here, queue = Terminus(address="here"), Terminus(address=server.address)
                    we_send = kind == SENDERS
                    source, target = (here, queue) if we_send else (queue, here)
                    new = NewLink(name="link", we_send=we_send, source=source, target=target)
                    engine.attach(session, new)
                case LinkAttached(link=link) if kind == RECEIVERS:
                    engine.grant(link, CREDIT)
                    await stream.send_all(engine.data_to_send(_RECEIVE_SIZE))
                    return stream
                case LinkFlow() if kind == SENDERS:
                    return stream


async def measure(folder: Path, kinds: list[str], connections: int) -> Report:
    about = dict(facts_of_processor())
    idle: list[Idle] = []
    for kind in kinds:
        if kind == RABBITMQ:
            idle.append(await idle_memory_of_rabbitmq(folder / kind, connections))
        else:
            idle.append(await idle_memory(folder / kind, kind, connections))
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return Report(about, idle)


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    for each in found.idle:
        console.print(
            f"{each.connections} idle {each.kind}: {each.each / 1024:.1f} KiB each;"
            f" {1e6 * each.opening:.0f} us of processor time to open one",
            highlight=False,
        )
    ours = [each for each in found.idle if each.kind in {SENDERS, RECEIVERS}]
    show_targets(map(idle_target, ours), console)


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory of idle AMQP connections.")
    kinds = [SENDERS, RECEIVERS, RABBITMQ]
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="parts to measure")
    parser.add_argument("--connections", type=int, default=5000, help="connections of each kind")
    arguments = parser.parse_args()
    report_of(
        lambda folder: measure(folder, arguments.only, arguments.connections),
        _show,
        as_json=arguments.json,
        width=_WIDTH,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
