"""
What idle AMQP connections cost one gateway: its resident memory before and after they were opened.

Each has one session with one link: a sender, or a receiver with credit on an empty queue. The
clients are our own engine in the other role, since all of them are in the benchmark's process.
"""

import resource
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.amqp_figures import Idle
from benchmarks.fleet import open_fleet
from benchmarks.memory import resident
from gateway.demo.machines import KEY, KEY_NAME, broker_config
from gateway.net.amqp.connection import AmqpConnection
from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import (
    ConnectionOpened,
    Event,
    LinkAttached,
    LinkFlow,
    NewLink,
    SessionId,
    Terminus,
)
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import Credentials, SaslClient

QUEUE: Final = "idle"
CREDIT: Final = 100
SENDERS: Final = "senders"
RECEIVERS: Final = "receivers"
SETTLE: Final = 2.0  # seconds for the gateway to end what it does at the opening
_WARM_UP: Final = 100  # connections
_AT_ONCE: Final = 32  # that are being opened
_OTHER_FILES: Final = 100  # of a process
_CREDENTIALS: Final = Credentials(mechanism="PLAIN", user=KEY_NAME, password=KEY)


def service_bus(queue: str, *, connections: int = 1000) -> str:
    """The configuration of a broker behind one port for all protocols."""
    config = broker_config(queue).replace('"service-bus-http"', '"service-bus"')
    limits = f"max_connections = {connections}\nmax_connections_per_peer = 0\n"
    return f"{config}\n[limits]\n{limits}"


async def idle_memory(folder: Path, kind: str, connections: int, *, settle: float = SETTLE) -> Idle:
    """Open so many in a fresh gateway, and look what that has cost."""
    _allow_files(connections + _WARM_UP + _OTHER_FILES)
    async with open_fleet(folder) as fleet:
        machine = await fleet.start(
            "gateway", service_bus(QUEUE, connections=connections + _WARM_UP)
        )
        async with trio.open_nursery() as clients:
            await _open(clients, machine.port, kind, _WARM_UP)
            await trio.sleep(settle)
            before = resident(machine.pid)
            await _open(clients, machine.port, kind, connections)
            await trio.sleep(settle)
            after = resident(machine.pid)
            clients.cancel_scope.cancel()
    return Idle(kind=kind, connections=connections, each=(after - before) / connections)


async def _open(clients: trio.Nursery, port: int, kind: str, number: int) -> None:
    """Return when all of them are open; they stay open in the nursery."""
    limit = trio.CapacityLimiter(_AT_ONCE)

    async def open_one() -> None:
        async with limit:
            await clients.start(_Client(kind).run, port)

    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(open_one)


def _allow_files(number: int) -> None:
    """For this process and those that it starts, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        most = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@attrs.define(eq=False)
class _Client:
    _kind: str
    _opened: trio.Event = attrs.field(factory=trio.Event)
    _engine: Engine = attrs.field(init=False)
    _session: SessionId = attrs.field(init=False)

    async def run(self, port: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Started when its link is attached, and credit given."""
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        connection = AmqpConnection(
            stream,
            engine=EngineOptions(container_id="idle"),
            sasl=SaslClient(_CREDENTIALS),
        )
        self._engine = connection.engine
        self._engine.open(hostname="localhost")
        self._session = self._engine.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run, self._handle)
            await self._opened.wait()
            task_status.started()

    def _handle(self, event: Event) -> None:
        match event:
            case ConnectionOpened():
                here, queue = Terminus(address="here"), Terminus(address=QUEUE)
                if self._kind == SENDERS:
                    new = NewLink(name="link", we_send=True, source=here, target=queue)
                else:
                    new = NewLink(name="link", we_send=False, source=queue, target=here)
                self._engine.attach(self._session, new)
            case LinkAttached(link=link) if self._kind == RECEIVERS:
                self._engine.grant(link, CREDIT)
                self._opened.set()
            case LinkFlow() if self._kind == SENDERS:
                self._opened.set()
