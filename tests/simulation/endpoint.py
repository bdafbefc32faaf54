"""A gateway's own endpoint, byte by byte: one of its front ends, and the clients of each."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Protocol

import attrs
import trio

from gateway.capabilities import Batches, send_each
from gateway.config.kinds import Adapter
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import AcceptedBy, Message
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.ports import Broker, WallClock
from tests.simulation import rabbitmq, rest, storage_queue
from tests.simulation.network import Network, Serve
from tests.simulation.scenario import Front


class Client(Protocol):
    """A client that sends to a gateway over the network."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections, until cancelled."""

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy | None:
        """As `Broker.send`; return what accepted it, if the answer says so."""
        ...


@attrs.define(eq=False)
class AdapterClient:
    """Sends with an adapter whose protocol doesn't say what accepted a message."""

    _adapter: Adapter

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """As `Client.run`."""
        async with self._adapter:
            task_status.started()
            await trio.sleep_forever()

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `Client.send`."""
        await self._adapter.send(entity, messages)

    async def send_many(self, entity: EntityPath, batches: Batches) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`."""
        return await send_each(self._adapter, entity, batches)


def client_of(front: Front, network: Network, *, clock: WallClock, rng: random.Random) -> Client:
    """Make a client of that front end; nothing connects before its first send."""
    match front:
        case Front.REST:
            return rest.RestClient.over(network, clock)
        case Front.STORAGE_QUEUE:
            return AdapterClient(storage_queue.adapter(network, clock, rng))
        case Front.AMQP:
            return AdapterClient(_amqp().adapter(network, clock, rng))
        case Front.RABBITMQ:
            return rabbitmq.Publisher(network)


def _amqp() -> ModuleType:
    """Imported only where it is used, since its engine may be missing."""
    return import_module("tests.simulation.amqp")


@attrs.define(eq=False, kw_only=True)
class Endpoint:
    """The front end of one life of a gateway, at its port. `run` serves until it is cancelled."""

    front: Front
    broker: Broker
    clock: WallClock
    rng: random.Random
    send_timeout: float
    note_put: storage_queue.NotePut = storage_queue.hear_nothing
    receives: bool = False  # clients receive, too
    _home: trio.Nursery | None = attrs.field(default=None, init=False)
    _serve_connection: Serve = attrs.field(init=False)
    _leases: Leases = attrs.field(init=False)
    _visibility: LeasedVisibility = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._leases = Leases(self.broker, self.clock)
        self._visibility = LeasedVisibility(self.broker, self._leases, self.clock)
        serving: Callable[..., Serve]
        match self.front:
            case Front.REST:
                serving = rest.serving
            case Front.STORAGE_QUEUE:
                serving = partial(
                    storage_queue.serving, note_put=self.note_put, visibility=self._visibility
                )
            case Front.AMQP:
                serving = _amqp().serving
            case Front.RABBITMQ:
                serving = rabbitmq.serving
        self._serve_connection = serving(
            self.broker,
            self._leases,
            clock=self.clock,
            rng=self.rng,
            send_timeout=self.send_timeout,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._home:
            await self._home.start(self._leases.run)
            if self.receives:
                await self._home.start(self._visibility.run)
            task_status.started()
            await trio.sleep_forever()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve a connection as long as both live."""
        await trio.lowlevel.checkpoint()
        if self._home is not None:
            self._home.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        try:
            await self._serve_connection(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            # The client has gone; any other error is a bug, and ends the run.
            await trio.lowlevel.checkpoint()
