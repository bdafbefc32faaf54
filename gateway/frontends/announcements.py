"""What has come to the queues of this gateway, for those who want to be told at once."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.wire.announcements import EVERYTHING, MOST, with_topics


@attrs.define(eq=False)
class Stream:
    """
    What one reader hasn't heard yet: at most one announcement a queue, however slow it is.

    Its queues are all that it keeps anything of; None: all that there are. Of these it keeps a
    hundred, and then that it is everything.
    """

    _queues: frozenset[EntityPath] | None
    _waiting: dict[EntityPath, int] = attrs.field(factory=dict, init=False)
    _came: trio.Event = attrs.field(factory=trio.Event, init=False)

    def note(self, queue: EntityPath, size: int) -> None:
        if self._queues is not None and queue not in self._queues:
            return
        if self._queues is None and (len(self._waiting) >= MOST or EVERYTHING in self._waiting):
            self._waiting, queue, size = {}, EVERYTHING, 0
        self._waiting[queue] = self._waiting.get(queue, 0) + size
        self._came.set()

    async def next(self) -> Mapping[EntityPath, int]:
        """Wait for something new; return the queues, each with the bytes that are known of it."""
        await self._came.wait()
        return self.take()

    def take(self) -> Mapping[EntityPath, int]:
        """As `next`, but at once; nothing where there is nothing new."""
        self._came = trio.Event()
        came, self._waiting = self._waiting, {}
        return came


@attrs.define(eq=False)
class Announcements:
    """Tells every open stream of what has come."""

    _streams: set[Stream] = attrs.field(factory=set, init=False)

    @property
    def has_readers(self) -> bool:
        return bool(self._streams)

    def publish(self, queue: EntityPath, size: int = 0) -> None:
        """A message has come, or will soon; `size` in bytes, 0 where nobody knows."""
        for stream in self._streams:
            stream.note(queue, size)

    @contextmanager
    def subscribe(self, queues: Iterable[EntityPath] | None = None) -> Iterator[Stream]:
        """
        Hear of these queues, from now on; without them of all, with `EVERYTHING` among them. Of a
        subscription its topic is told too, which is what senders name.
        """
        stream = Stream(None if queues is None else with_topics(queues))
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)
