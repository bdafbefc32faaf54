"""
Connections with room for a limited number of channels.

The broker allows `channel_max` channels on a connection, and a user may have a limit over all of
its connections. At the user's limit, the broker ends the connection that asks, with all of its
channels: what receivers hold there is delivered again. So that connection is never asked for more
channels than it had then. While the limit is believed, each further channel has a connection of its
own, where a refusal disturbs no other receiver.
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
from gateway.net.reconnecting import ANY_TIME, Failures, Reconnecting
from gateway.wire.rabbitmq.errors import is_user_limit

_BELIEVED: Final = 60.0  # seconds after the last refusal; operators change limits rarely


@attrs.define(eq=False)
class UserLimit:
    """The evidence of a limit of the user's channels."""

    _refusals: Failures
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

    def met(self, error: Unavailable) -> None:
        """Note a refusal: there is a pause, longer each time."""
        self._until = trio.current_time() + _BELIEVED
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
    def is_limited(self) -> bool:
        """As `UserLimit.is_believed`."""
        return self._limit.is_believed

    async def get(self, since: float = ANY_TIME) -> RabbitmqConnection:
        """As `Reconnecting.get`."""
        return await self._connections.get(since)

    def replace(self, connection: RabbitmqConnection) -> None:
        """As `Reconnecting.replace`."""
        self._connections.replace(connection)

    async def open(self, *, left: int = 0) -> Channel | None:
        """
        Open a channel; return None if the connection would have room for fewer than `left` then.

        Raises:
            BrokerError: as `get`.
            Unavailable: the user has as many channels as it may.
        """
        connection = await self._connections.get()
        if not self._has_room(connection, left):
            return None
        async with self._limit.asking():
            if not self._has_room(connection, left):
                return None
            used = connection.channels
            try:
                channel = await connection.open_channel()
            except Unavailable as error:
                self._note_end(connection, used, error)
                raise
            self._limit.allowed()
            return channel

    def _has_room(self, connection: RabbitmqConnection, left: int) -> bool:
        return connection.channels + left < min(self._most, connection.max_channels)

    def _note_end(self, connection: RabbitmqConnection, used: int, error: Unavailable) -> None:
        # Of several requests, the first that failed had the room that there was.
        if is_user_limit(str(error)) and self._ended is not connection:
            self._ended = connection
            self._limit.met(error)
            if used:
                self._most = min(self._most, used)
