"""
AMQP 0-9-1 for RabbitMQ's own clients, before a primary in RabbitMQ: a wire while the primary is
well, the pair when it isn't.
"""

import attrs
import trio

from gateway.frontends.rabbitmq.relayed_connection import RelayedConnection
from gateway.frontends.rabbitmq.session import RelayTarget


@attrs.define(eq=False)
class RabbitmqFrontend:
    """Serves any number of connections."""

    _target: RelayTarget
    _connections: set[RelayedConnection] = attrs.field(factory=set, init=False)

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """Serve a client until one of the two ends the connection."""
        async with trio.open_nursery() as nursery:
            connection = RelayedConnection(stream, self._target, nursery)
            self._connections.add(connection)
            try:
                await connection.run()
            finally:
                self._connections.discard(connection)
            nursery.cancel_scope.cancel()

    def drain(self) -> None:
        """Close every connection, once its publishes have their verdicts."""
        for connection in self._connections:
            connection.close_soon("the gateway shuts down")
