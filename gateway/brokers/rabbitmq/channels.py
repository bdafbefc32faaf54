"""
The connections for everything but sending: channels for receivers, short requests, names of queues.

Requests use the first connection. Receivers use it, too, but leave room for a request; the
receivers for which it has no room have further connections. At a user's limit of channels, one
channel serves all requests.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Protocol

import attrs
import trio
from pamqp import base, commands

from gateway.brokers.rabbitmq.limited import LimitedConnection
from gateway.brokers.rabbitmq.names import candidates
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound, OutcomeUnknown, Unavailable
from gateway.domain.message import Message
from gateway.net.rabbitmq.channel import Channel
from gateway.net.rabbitmq.connection import RabbitmqConnection
from gateway.net.reconnecting import ANY_TIME
from gateway.wire.rabbitmq.queues import DeclareQueue

_MAX_NAMES: Final = 10_000  # remembered names
_MAX_QUESTIONS: Final = 8  # concurrent requests, each with a channel; a broker may allow few
_AGAIN: Final = 0.05  # seconds; the broker says when a closed channel is free, which wakes nobody


class DeadLetterWriter(Protocol):
    """Adds messages to the dead letters of a queue."""

    async def dead_letter(self, entity: EntityPath, message: Message) -> None:
        """
        Return once the broker has confirmed the message in the dead-letter queue. Raises
        BrokerError.
        """
        ...


@attrs.define(eq=False)
class Channels:
    """Channels for receivers and requests. The broker never blocks these connections."""

    _another: Callable[[], LimitedConnection]  # each call makes one; it is dialled on demand
    _connections: list[LimitedConnection] = attrs.field(init=False)
    # For requests, on the first connection.
    _spare: list[Channel] = attrs.field(factory=list, init=False)
    _in_use: int = attrs.field(default=0, init=False)
    _sparing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _returned: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _turns: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(_MAX_QUESTIONS), init=False)
    # The name in the request -> the name in RabbitMQ.
    _names: dict[str, str] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._connections = [self._another()]

    @property
    def _first(self) -> LimitedConnection:
        return self._connections[0]

    async def open(self) -> Channel:
        """
        Open a channel for a receiver, on the first connection that has room.

        Raises:
            BrokerError: there is no connection, or the user can't have more channels now.
        """
        if self._first.is_limited:
            await self._spare_one()
        index = 0
        while True:
            if index == len(self._connections):
                self._connections.append(self._another())
            channel = await self._connections[index].open(left=0 if index else 1)
            if channel is not None:
                return channel
            index += 1

    async def server(self) -> tuple[str, str]:
        """Product and version of the broker. Raises as `open`."""
        opened = (await self._first.get()).opened
        return (opened.product, opened.version) if opened is not None else ("", "")

    async def cluster(self) -> str:
        """The name of the broker's cluster; empty if it has none. Raises as `open`."""
        opened = (await self._first.get()).opened
        return opened.cluster if opened is not None else ""

    async def ask(self, method: base.Frame) -> base.Frame:
        """
        Return the answer to one request. A refusal closes the channel.

        Raises:
            BrokerError: as `open`, or the broker's refusal.
        """
        async with self._channel() as channel:
            return await channel.call(method)

    async def change(self, method: base.Frame) -> None:
        """
        Return once the broker has made a change.

        Raises:
            OutcomeUnknown: the broker gave no answer, or the answer to another request.
            BrokerError: as `ask`.
        """
        async with self._channel() as channel:
            try:
                await channel.call(method)
            except Unavailable as error:
                if channel.closed_by is not None:
                    raise
                raise OutcomeUnknown(f"{method.name}: {error}") from error

    async def refusal(self, method: base.Frame) -> tuple[int, str] | None:
        """Code and text of the broker's refusal; None if it doesn't refuse. Raises as `open`."""
        async with self._channel() as channel:
            [answer] = channel.ask(method)
            try:
                await answer.wait()
            except BrokerError:
                if channel.closed_by is None:
                    raise
            return channel.closed_by

    async def inspect(self, queue: str) -> commands.Queue.DeclareOk:
        """
        The queue's counts, which the broker reports without any right.

        Raises:
            EntityNotFound: the queue doesn't exist.
        """
        answer = await self.ask(DeclareQueue(queue=queue, passive=True))
        assert isinstance(answer, commands.Queue.DeclareOk), "the channel checks it"
        return answer

    async def name_of(self, entity: EntityPath, since: float = ANY_TIME) -> str:
        """
        The queue's name in RabbitMQ.

        A name in lower case is used as it is. Otherwise a request to the broker finds the existing
        spelling, which is remembered until `forget`. `since` is that of `Reconnecting.get`.

        Raises:
            EntityNotFound: the broker was asked, and the queue doesn't exist.
        """
        names = candidates(entity)
        if len(names) == 1:
            return names[0]
        known = self._names.get(names[0])
        if known is None:
            await self._first.get(since)
            known = await self._find(names)
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[names[0]] = known
        return known

    def forget(self, entity: EntityPath) -> None:
        """Forget the remembered name after an error: the queue may have been deleted."""
        self._names.pop(candidates(entity)[0], None)

    async def _find(self, names: list[str]) -> str:
        for name in names[:-1]:
            try:
                await self.inspect(name)
            except EntityNotFound:
                continue
            return name
        await self.inspect(names[-1])
        return names[-1]

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[Channel]:
        """Lend a channel that no other request uses meanwhile."""
        async with self._turns:
            connection, began = await self._first.get(), trio.current_time()
            with self._watched(connection, began):
                channel = await self._lent()
                self._in_use += 1
                try:
                    yield channel
                except BaseException:
                    channel.close()
                    raise
                finally:
                    self._in_use -= 1
            if not channel.is_over:
                self._spare.append(channel)
                self._returned.unpark()

    async def _lent(self) -> Channel:
        """A spare channel, or a new one, or the next that is returned if there is no room."""
        while True:
            if self._has_spare():
                return self._spare.pop()
            is_last = self._first.is_limited and self._in_use
            channel = None if is_last else await self._first.open()
            if channel is not None:
                return channel
            with trio.move_on_after(_AGAIN):
                await self._returned.park()

    async def _spare_one(self) -> None:
        """Have a channel for requests, before receivers have all."""
        async with self._sparing:
            if not self._has_spare() and not self._in_use:
                channel = await self._first.open()
                if channel is not None:
                    self._spare.append(channel)

    def _has_spare(self) -> bool:
        self._spare = [each for each in self._spare if not each.is_over]
        return bool(self._spare)

    @contextmanager
    def _watched(self, connection: RabbitmqConnection, began: float) -> Iterator[None]:
        """A context for a request: without answers, later ones use another connection."""
        try:
            yield
        except trio.Cancelled:
            if connection.trust.given_up(began, trio.current_time()):
                self._first.replace(connection)
                for channel in self._spare:
                    channel.close()
                connection.replaced()
            raise
        except BrokerError as error:
            if not error.counts_as_outage:
                connection.trust.answered(trio.current_time())
            raise
        connection.trust.answered(trio.current_time())
