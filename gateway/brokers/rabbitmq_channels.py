"""The connection for all but sending: channels for receivers, short questions, names of queues."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

import attrs
import trio
from pamqp import base, commands

from gateway.brokers.rabbitmq_names import candidates
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.message import Message
from gateway.net.rabbitmq_channel import Channel
from gateway.net.rabbitmq_connection import RabbitmqConnection
from gateway.net.reconnecting import ANY_TIME, Reconnecting

_MAX_NAMES: Final = 10_000  # that are remembered
_MAX_QUESTIONS: Final = 32  # asked at the same time


class DeadLetters(Protocol):
    """Where what a receiver gives up goes."""

    async def bury(self, entity: EntityPath, message: Message) -> None:
        """Return once it is among the dead letters of that queue. Raises BrokerError."""
        ...


@attrs.define(eq=False)
class Channels:
    """Channels for receivers and questions. The broker never blocks this connection."""

    _connections: Reconnecting[RabbitmqConnection]
    _spare: list[Channel] = attrs.field(factory=list, init=False)
    _turns: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(_MAX_QUESTIONS), init=False)
    _names: dict[str, str] = attrs.field(factory=dict, init=False)  # as typed -> as it is

    async def open(self) -> Channel:
        """
        Return a new channel.

        Raises:
            BrokerError: there is no connection, or it has no room.
        """
        return await (await self._connections.get()).open_channel()

    async def server(self) -> tuple[str, str]:
        """Product and version of the broker. Raises as `open`."""
        opened = (await self._connections.get()).opened
        return (opened.product, opened.version) if opened is not None else ("", "")

    async def ask(self, method: base.Frame) -> base.Frame:
        """
        Return the answer to one question, which ends its channel if it is refused.

        Raises:
            BrokerError: as `open`, or the broker's refusal.
        """
        async with self._channel() as channel:
            return await channel.call(method)

    async def refusal(self, method: base.Frame) -> tuple[int, str] | None:
        """Code and text by which the broker refuses; None: it doesn't. Raises as `open`."""
        async with self._channel() as channel:
            [answer] = channel.ask(method)
            try:
                await answer.wait()
            except BrokerError:
                if channel.closed_by is None:
                    raise
            return channel.closed_by

    async def look(self, queue: str) -> commands.Queue.DeclareOk:
        """
        What the broker tells of a queue without any right.

        Raises:
            EntityNotFound: there is none.
        """
        answer = await self.ask(commands.Queue.Declare(queue=queue, passive=True))
        assert isinstance(answer, commands.Queue.DeclareOk)
        return answer

    async def name_of(self, entity: EntityPath, since: float = ANY_TIME) -> str:
        """
        What the queue is called there.

        A name in lower case is taken as it is; else it is asked for, and kept as long as it serves.
        `since` is that of `Reconnecting.get`.

        Raises:
            EntityNotFound: the broker has been asked, and there is none.
        """
        names = candidates(entity)
        if len(names) == 1:
            return names[0]  # noqa: ASYNC910 who asks for it asks the broker next
        known = self._names.get(names[0])
        if known is None:
            await self._connections.get(since)
            known = await self._find(names)
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[names[0]] = known
        return known  # noqa: ASYNC910 as above

    def forget(self, entity: EntityPath) -> None:
        """The name didn't serve: the queue may have gone."""
        self._names.pop(candidates(entity)[0], None)

    async def _find(self, names: list[str]) -> str:
        for name in names[:-1]:
            try:
                await self.look(name)
            except EntityNotFound:
                continue
            return name  # noqa: ASYNC910 the look has waited
        await self.look(names[-1])
        return names[-1]

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[Channel]:
        """A channel that nobody else uses meanwhile."""
        async with self._turns:
            connection = await self._connections.get()
            self._spare = [each for each in self._spare if not each.is_over]
            channel = self._spare.pop() if self._spare else await connection.open_channel()
            try:
                yield channel
            except BaseException:
                channel.close()
                raise
            if not channel.is_over:
                self._spare.append(channel)
