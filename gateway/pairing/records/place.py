"""
The place of a pair's records on its secondary, and how this namespace shows them: by peeking, or as
a stream. Both take nothing away, so that all processes read the same records.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, Protocol

import attrs

from gateway.capabilities import DeletesSent, Peeks, Streams
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, NotAuthorized
from gateway.domain.message import Delivery, Message
from gateway.offering import offered
from gateway.ports import Broker

# Twice as long as an order holds without news: a stream drops old records only now and then.
STREAM_KEEPS: Final = timedelta(hours=1)
# A thousand sidecars that divert leave 20 MB in half an hour.
STREAM_BYTES: Final = 32 * 1024 * 1024


class RecordPlace(Protocol):
    """A queue for records."""

    @property
    def queue(self) -> EntityPath: ...

    @property
    def is_stream(self) -> bool:
        """
        True if records whose time to live has ended are shown, too, and the namespace logs each
        refused read as an error.
        """
        ...

    @property
    def piles_up(self) -> bool:
        """
        True if the namespace shows only its first messages, and this process may not delete its
        earlier records: it leaves few, each for a short time.
        """
        ...

    async def create(self) -> None:
        """Return when the queue is there. Raises BrokerError, and EntityExists if it was."""
        ...

    async def leave(self, record: Message) -> None:
        """As `Broker.send`. Where the namespace shows few messages, the earlier one is deleted."""
        ...

    async def read(self, from_sequence: int, limit: int) -> Sequence[Delivery]:
        """As `Peeks.peek`. Raises BrokerError."""
        ...


def place_of(secondary: Broker, label: str) -> RecordPlace | None:
    """The place of the records; None: the secondary can't show messages."""
    queue = backlog.heartbeat_queue(label)
    if (peeks := offered(secondary, Peeks)) is not None:
        return _Peeked(
            secondary=secondary,
            peeks=peeks,
            queue=queue,
            deletes=offered(secondary, DeletesSent),
        )
    if (streams := offered(secondary, Streams)) is not None:
        return _Streamed(secondary=secondary, streams=streams, queue=queue)
    return None


@attrs.define(eq=False, kw_only=True)
class _Peeked:
    secondary: Broker
    peeks: Peeks
    queue: EntityPath
    deletes: DeletesSent | None  # None: all messages are shown
    is_stream: bool = False
    piles_up: bool = attrs.field(default=False, init=False)
    _left: object = attrs.field(default=None, init=False)  # receipt of the last record

    async def create(self) -> None:
        await self.secondary.create_queue(self.queue, QueueProperties())

    async def leave(self, record: Message) -> None:
        if self.deletes is None or self.piles_up:
            await self.secondary.send(self.queue, [record])
            return
        left = await self.deletes.send_deletable(self.queue, record)
        earlier, self._left = self._left, left
        if earlier is None:
            return
        with suppress(BrokerError):  # it expires
            try:
                await self.deletes.delete_sent(self.queue, earlier)
            except NotAuthorized:
                self.piles_up = True

    async def read(self, from_sequence: int, limit: int) -> Sequence[Delivery]:
        return await self.peeks.peek(self.queue, from_sequence=from_sequence, limit=limit)


@attrs.frozen(kw_only=True)
class _Streamed:
    secondary: Broker
    streams: Streams
    queue: EntityPath
    is_stream: bool = True
    piles_up: bool = False

    async def create(self) -> None:
        await self.streams.create_stream(self.queue, keeps=STREAM_KEEPS, most=STREAM_BYTES)

    async def leave(self, record: Message) -> None:
        await self.secondary.send(self.queue, [record])

    async def read(self, from_sequence: int, limit: int) -> Sequence[Delivery]:
        return await self.streams.read_stream(self.queue, from_sequence=from_sequence, limit=limit)
