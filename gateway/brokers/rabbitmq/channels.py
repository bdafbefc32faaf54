"""
The connections for everything but sending: channels for receivers, short requests, names of queues.

Requests have a connection of their own, on which a channel is there before receivers can have all.
At a user's limit of channels it serves all requests. Receivers share further connections, see
`limited`.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.brokers.rabbitmq.limited import LimitedConnection, UserLimit
from gateway.brokers.rabbitmq.names import candidates
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound, OutcomeUnknown, Unavailable
from gateway.net.rabbitmq.channel import Channel
from gateway.net.rabbitmq.connection import RabbitmqConnection
from gateway.net.reconnecting import ANY_TIME, recently
from gateway.wire.rabbitmq.errors import is_user_limit
from gateway.wire.rabbitmq.exchanges import asked_for, exchange_in
from gateway.wire.rabbitmq.queues import DeclareQueue

_MAX_NAMES: Final = 10_000  # remembered names
_MAX_QUESTIONS: Final = 8  # concurrent requests, each with a channel; a broker may allow few
_MOST_AHEAD: Final = 31  # channels for further receivers; a small limit is shared with senders
_SPARE_WAIT: Final = 1.0  # seconds; a receiver needs no connection for requests
_AGAIN: Final = 0.05  # seconds; the broker says when a closed channel is free, which wakes nobody


@attrs.define(eq=False)
class Channels:
    """
    Channels for receivers and requests. The broker never blocks these connections. Requests have a
    connection of their own, as one on which receivers hold messages is asked for no channel.
    """

    _another: Callable[[], LimitedConnection]  # each call makes one; it is dialled on demand
    _limit: UserLimit
    _asking: LimitedConnection = attrs.field(init=False)
    _receiving: list[LimitedConnection] = attrs.field(factory=list, init=False)
    # For requests.
    _spare: list[Channel] = attrs.field(factory=list, init=False)
    _in_use: int = attrs.field(default=0, init=False)
    _sparing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _returned: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _turns: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(_MAX_QUESTIONS), init=False)
    # The name in the request -> the name in RabbitMQ.
    _names: dict[str, str] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._asking = self._another()

    async def open(self) -> Channel:
        """
        Open a channel for a receiver, on the first connection that has room, unless one was opened
        ahead.

        Raises:
            BrokerError: there is no connection, or the user can't have more channels now.
        """
        await self._spare_one()
        ahead = self._limit.ahead
        while True:
            while ahead:
                channel = ahead.pop()
                if not channel.is_over:
                    return channel
            more = 0 if self._limit.is_believed else sum(each.channels for each in self._receiving)
            try:
                channel, *others = await self._opened(1 + min(more, _MOST_AHEAD))
            except Unavailable as error:
                if not more or not is_user_limit(str(error)):
                    raise
                continue  # fewer
            ahead += others
            return channel

    async def _opened(self, number: int) -> list[Channel]:
        """Channels on the first connection that has room: several if it has none so far."""
        index = 0
        while True:
            if index == len(self._receiving):
                self._receiving.append(self._another())
            each = self._receiving[index]
            channels = await each.open(1 if each.channels else number)
            if channels:
                return channels
            index += 1

    async def server(self) -> tuple[str, str]:
        """Product and version of the broker. Raises as `open`."""
        opened = (await self._asking.get()).opened
        return (opened.product, opened.version) if opened is not None else ("", "")

    async def cluster(self) -> str:
        """The name of the broker's cluster; empty if it has none. Raises as `open`."""
        opened = (await self._asking.get()).opened
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

    async def check(self, name: str) -> None:
        """Return if the broker has that queue or exchange. Raises as `inspect`."""
        exchange = exchange_in(name)
        if exchange is None:
            await self.inspect(name)
        else:
            await self.ask(asked_for(exchange))

    async def name_of(self, entity: EntityPath, since: float = ANY_TIME) -> str:
        """
        The queue's name in RabbitMQ; of an exchange the entity's name.

        A name in lower case is used as it is. Otherwise a request to the broker finds the existing
        spelling, which is remembered until `forget`. `since` is that of `Reconnecting.get`.

        Raises:
            EntityNotFound: the broker was asked, and the queue doesn't exist.
        """
        if exchange_in(entity.name) is not None:
            return entity.name
        names = candidates(entity)
        if len(names) == 1:
            return names[0]
        known = self._names.get(names[0])
        if known is None:
            await self._asking.get(since)
            known = await self._find(names)
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[names[0]] = known
        return known

    def forget(self, entity: EntityPath) -> None:
        """Forget the remembered name after an error: the queue may have been deleted."""
        if exchange_in(entity.name) is None:
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
            connection, began = await self._asking.get(recently()), trio.current_time()
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
            is_last = self._limit.is_believed and self._in_use
            channels = [] if is_last else await self._asking.open()
            if channels:
                return channels[0]
            with trio.move_on_after(_AGAIN):
                await self._returned.park()

    async def _spare_one(self) -> None:
        """Have a channel for requests before receivers have all, unless that takes long."""
        if self._has_spare() or self._in_use or self._sparing.locked():
            return
        async with self._sparing:
            with trio.move_on_after(_SPARE_WAIT), suppress(BrokerError):
                self._spare += await self._asking.open()

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
                self._asking.replace(connection)
                for channel in self._spare:
                    channel.close()
                connection.replaced()
                for each in self._receiving:
                    each.leave()
            raise
        except BrokerError as error:
            if not error.counts_as_outage:
                connection.trust.answered(trio.current_time())
            raise
        connection.trust.answered(trio.current_time())
