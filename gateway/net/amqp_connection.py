"""
An AMQP connection on a stream: one task reads, one writes, one keeps time. Both roles.

What the peer does reaches one function, in order; it answers through the engine's methods, at once
or later. Reading stops while too much is unsettled: back-pressure reaches the peer's socket.
"""

from collections.abc import Callable

import attrs
import trio

from gateway.wire.amqp.engine import Engine, EngineOptions
from gateway.wire.amqp.events import AmqpError, Event
from gateway.wire.amqp.sasl import SaslClient, SaslServer


@attrs.frozen(kw_only=True)
class AmqpConnectionOptions:
    """Limits of one connection besides those of the engine."""

    open_timeout: float = 30.0  # seconds until both sides have opened
    close_timeout: float = 5.0  # seconds for the peer to answer our close
    max_unsettled: int = 16 * 1024 * 1024  # bytes of unsettled messages; above, reading pauses
    high_water: int = 1024 * 1024  # bytes not written yet; above, `wait_for_room` waits


class AmqpConnection:
    """One connection; `engine` is free to use from the run loop's thread while `run` runs."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        engine: EngineOptions,
        sasl: SaslServer | SaslClient | None,
        options: AmqpConnectionOptions | None = None,
    ) -> None:
        self.engine: Engine

    async def run(self, handle: Callable[[Event], None]) -> None:
        """
        Return when the connection has ended, in whichever way; `stream` is closed then.

        `handle` gets each event and must not raise; the last one is always `ConnectionClosed`,
        unless `run` is cancelled. A cancellation ends the connection at once.
        """

    async def wait_for_room(self) -> None:
        """Wait until what was sent has been written, but for `high_water`, or all has ended."""

    async def close(self, error: AmqpError | None = None) -> None:
        """Close politely: `run` has ended when it returns, at most `close_timeout` later."""
