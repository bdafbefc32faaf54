"""
AMQP 0-9-1 for RabbitMQ's own clients: before a primary in RabbitMQ a wire while the primary is
well, and the pair when it isn't; before any other namespace a broker.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import attrs
import trio


class ServedClient(Protocol):
    """The connection of one client."""

    async def run(self) -> None:
        """Serve until one side ends the connection."""

    def close_soon(self, text: str) -> None:
        """Close the connection, once what has arrived is done."""


T = TypeVar("T")


@attrs.define(eq=False)
class RabbitmqFrontend(Generic[T]):
    """Serves any number of connections, each in a nursery of its own; `target` is shared by all."""

    _target: T
    _connection: Callable[[trio.abc.Stream, T, trio.Nursery], ServedClient]
    _connections: set[ServedClient] = attrs.field(factory=set, init=False)

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """Serve a client until one of the two ends the connection."""
        async with trio.open_nursery() as nursery:
            connection = self._connection(stream, self._target, nursery)
            self._connections.add(connection)
            try:
                await connection.run()
            finally:
                self._connections.discard(connection)
            nursery.cancel_scope.cancel()

    def drain(self) -> None:
        """Close every connection, once what has arrived is done."""
        for connection in self._connections:
            connection.close_soon("the gateway shuts down")
