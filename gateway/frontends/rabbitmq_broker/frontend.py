"""The front end of RabbitMQ's own clients before a namespace of another kind."""

import attrs
import trio

from gateway.frontends.rabbitmq_broker.connection import BrokerTarget, ServedConnection


@attrs.define(eq=False)
class RabbitmqBrokerFrontend:
    """Serves any number of connections. The caller runs `upkeep.QueueUpkeep` beside it."""

    _target: BrokerTarget
    _connections: set[ServedConnection] = attrs.field(factory=set, init=False)

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """Serve a client until one of the two ends the connection."""
        async with trio.open_nursery() as nursery:
            connection = ServedConnection(stream, self._target, nursery)
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
