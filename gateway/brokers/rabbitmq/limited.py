"""
Connections with room for a limited number of channels.

The broker allows `channel_max` channels on a connection, and a user may have a limit over all of
its connections, which no client can ask for. At the user's limit, the broker ends the connection
that asks, with all of its channels: what receivers hold there is delivered again. So a connection
is asked for channels only while no receiver holds a message on it, and receivers hand out none
until the answer is there. A new connection opens some channels ahead, else each busy receiver would
need a connection of its own.

A connection that was refused is never asked for more channels than it had then. While the limit is
believed, nothing is opened ahead, and each further channel has a connection of its own.
"""

import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from gateway.domain.errors import Unavailable
from gateway.net.rabbitmq.channel import Channel
from gateway.net.rabbitmq.connection import RabbitmqConnection
from gateway.net.reconnecting import ANY_TIME, Failures, Reconnecting, recently
from gateway.wire.rabbitmq.errors import is_user_limit

_BELIEVED: Final = 60.0  # seconds after the last refusal; operators change limits rarely


@attrs.define(eq=False)
class UserLimit:
    """
    The evidence of a limit of the user's channels. `ahead` has open channels that nobody uses yet.
    """

    _refusals: Failures
    ahead: list[Channel] = attrs.field(factory=list, init=False)
    _until: float = attrs.field(default=-math.inf, init=False)  # by Trio's clock
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @property
    def is_believed(self) -> bool:
        """True if the user had as many channels as it may a short time ago."""
        return trio.current_time() < self._until

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """
        A context in which to ask for a channel; while the limit is believed, one after the other.

        Raises:
            Unavailable: the last refusal, while the pause after it lasts.
        """
        if not self.is_believed:
            yield
            return
        async with self._turn:
            await self._refusals.begin(ANY_TIME)
            yield

    def believe(self) -> None:
        """Note a refusal. Closes the channels that were opened ahead, so that others have them."""
        self._until = trio.current_time() + _BELIEVED
        while self.ahead:
            self.ahead.pop().close()

    def met(self, error: Unavailable) -> None:
        """Note the refusal of a single channel: there is a pause, longer each time."""
        self.believe()
        self._refusals.add(error)

    def allowed(self) -> None:
        """Note that a channel was opened."""
        self._refusals.connected()
        self._refusals.clear()


@attrs.define(eq=False, kw_only=True)
class LimitedConnection:
    """A connection that is dialled again when it has ended, with what is known of its limits."""

    _connections: Reconnecting[RabbitmqConnection]
    _limit: UserLimit
    _most: int = attrs.field(init=False)  # channels
    _ended: RabbitmqConnection | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._most = 1 if self._limit.is_believed else sys.maxsize

    @property
    def channels(self) -> int:
        """The channels in use."""
        connection = self._connections.current
        return 0 if connection is None or connection.is_over else connection.channels

    async def get(self, since: float = ANY_TIME) -> RabbitmqConnection:
        """As `Reconnecting.get`."""
        return await self._connections.get(since)

    def replace(self, connection: RabbitmqConnection) -> None:
        """As `Reconnecting.replace`."""
        self._connections.replace(connection)

    def leave(self) -> None:
        """Dial again for the next channel; those that are open stay where they are."""
        connection = self._connections.current
        if connection is not None:
            self._connections.replace(connection)
            connection.replaced()

    async def open(self, number: int = 1) -> list[Channel]:
        """
        Open up to so many channels; none if the connection has no room, or a receiver holds a
        message there.

        Raises:
            BrokerError: as `get`.
            Unavailable: the user has as many channels as it may.
        """
        connection = await self._connections.get(recently())
        if not self._room(connection):
            return []
        async with self._limit.asking():
            asked = min(number, self._room(connection))
            if not asked:
                return []
            used = connection.channels
            try:
                channels = await connection.open_channels(asked)
            except Unavailable as error:
                self._record_end(connection, used, asked, error)
                raise
            self._limit.allowed()
            return channels

    def _room(self, connection: RabbitmqConnection) -> int:
        most = 0 if connection.holds else min(self._most, connection.max_channels)
        return max(0, most - connection.channels)

    def _record_end(
        self, connection: RabbitmqConnection, used: int, asked: int, error: Unavailable
    ) -> None:
        # Of several requests, the first that failed had the room that there was.
        if is_user_limit(str(error)) and self._ended is not connection:
            self._ended = connection
            if asked == 1:
                self._limit.met(error)
            else:
                self._limit.believe()
            if used:
                self._most = min(self._most, used)
