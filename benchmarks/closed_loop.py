"""
A closed loop, the same for every broker: each client has one operation on its way, no more.

Senders send for some seconds, then receivers take and complete all messages: each acknowledged
message must come back.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final, Protocol

import attrs
import trio

from benchmarks.stopwatch import processor_time

# The ways that are measured.
IN_PROCESS: Final = "in process"
HTTP: Final = "over HTTP"
FLOOR: Final = "the floor of HTTP"
RABBITMQ: Final = "RabbitMQ"
AZURITE: Final = "Azurite"

BODY: Final = b"x" * 1024
DRAIN_LIMIT: Final = 120.0  # seconds


class MessagesMissing(Exception):
    """Not everything that was acknowledged came back."""


class Client(Protocol):
    """A user of a broker, with a connection of its own where there are connections."""

    async def send(self, number: int) -> None:
        """Return once the broker has acknowledged a message of 1 KiB."""
        ...

    async def receive_and_complete(self) -> int:
        """Wait for messages, complete them; return how many. 0: none came, ask again."""
        ...


OpenClient = Callable[[], AbstractAsyncContextManager[Client]]


@attrs.frozen(kw_only=True)
class Way:
    """A broker, and how it's reached. It holds `most` messages or so: then they are received."""

    name: str
    open_client: OpenClient
    most: int
    version: str = ""
    server: int | None = None  # the id of the process that it is reached in


@attrs.frozen(kw_only=True)
class Measured:
    """
    A measurement. `busy` is the share of one core that this process took for it, `server` the
    seconds of processor time that the server's process took.
    """

    messages: int
    seconds: float
    busy: float
    server: float = 0.0

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def processor(self) -> float:
        """Seconds of this process's processor time for a message."""
        return self.busy * self.seconds / self.messages

    @property
    def server_processor(self) -> float:
        """The same of the server's process."""
        return self.server / self.messages


def total(parts: Sequence[Measured]) -> Measured:
    """The sum of several measurements."""
    seconds = sum(part.seconds for part in parts)
    return Measured(
        messages=sum(part.messages for part in parts),
        seconds=seconds,
        busy=sum(part.busy * part.seconds for part in parts) / seconds,
        server=sum(part.server for part in parts),
    )


@attrs.define(eq=False)
class _Watch:
    """Wall and processor time since it was made, of this process and of the server's."""

    _way: Way
    _began: float = attrs.field(factory=time.perf_counter)
    _processor: float = attrs.field(factory=time.process_time)
    _server: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._server = _processor_time(self._way)

    def read(self, messages: int) -> Measured:
        seconds = time.perf_counter() - self._began
        busy = (time.process_time() - self._processor) / seconds
        server = _processor_time(self._way) - self._server
        return Measured(messages=messages, seconds=seconds, busy=busy, server=server)


def _processor_time(way: Way) -> float:
    return 0.0 if way.server is None else processor_time(way.server)


async def send_for(way: Way, clients: int, seconds: float) -> Measured:
    """Send with all clients for `seconds`; return when all sends are answered."""
    sent = 0

    async def loop(client: Client) -> None:
        nonlocal sent
        end = trio.current_time() + seconds
        while trio.current_time() < end and sent < way.most:
            sent += 1
            await client.send(sent)

    async with AsyncExitStack() as stack:
        senders = await _open(stack, way, clients)
        watch = _Watch(way)
        async with trio.open_nursery() as nursery:
            for client in senders:
                nursery.start_soon(loop, client)
        return watch.read(sent)


async def drain(way: Way, clients: int, messages: int) -> Measured:
    """
    Take and complete `messages` messages, which must be all that the queue has.

    Raises:
        MessagesMissing: there were fewer, or more.
    """
    done = 0

    async def loop(client: Client, scope: trio.CancelScope) -> None:
        nonlocal done
        while done < messages:
            completed = await client.receive_and_complete()
            done += completed  # not in one statement: others count meanwhile
        scope.cancel()  # the others wait for messages that don't exist

    async with AsyncExitStack() as stack:
        receivers = await _open(stack, way, clients)
        watch = _Watch(way)
        with trio.move_on_after(DRAIN_LIMIT):
            async with trio.open_nursery() as nursery:
                for client in receivers:
                    nursery.start_soon(loop, client, nursery.cancel_scope)
        measured = watch.read(done)
    if done != messages:
        raise MessagesMissing(f"{way.name}: {messages} acknowledged, {done} received")
    return measured


async def _open(stack: AsyncExitStack, way: Way, clients: int) -> Sequence[Client]:
    return [await stack.enter_async_context(way.open_client()) for _ in range(clients)]
