"""Announces new messages in the queues of this gateway to clients that subscribed."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import attrs

from gateway.changes import Changes
from gateway.domain.entity import EntityPath

EVERYTHING: Final = EntityPath("*")  # no queue has this name
MOST: Final = 100  # queues that are announced to one reader by name


@attrs.define(eq=False)
class Stream:
    """
    The announcements that one reader hasn't read yet: at most one per queue, however slow the
    reader is.

    A stream keeps announcements only of the queues that it subscribed to; None subscribes to all
    queues. It then keeps at most a hundred, and beyond that a single `EVERYTHING`.
    """

    _queues: frozenset[EntityPath] | None
    _waiting: dict[EntityPath, int] = attrs.field(factory=dict, init=False)
    _arrivals: Changes = attrs.field(factory=Changes, init=False)

    def publish(self, queue: EntityPath, size: int) -> None:
        if self._queues is not None and queue not in self._queues:
            return
        if self._queues is None and (len(self._waiting) >= MOST or EVERYTHING in self._waiting):
            self._waiting, queue, size = {}, EVERYTHING, 0
        self._waiting[queue] = self._waiting.get(queue, 0) + size
        self._arrivals.notify()

    async def next(self) -> Mapping[EntityPath, int]:
        """
        Wait for an announcement; return the queues, each with the known size of its new messages in
        bytes.
        """
        while not self._waiting:
            await self._arrivals.wait_next()
        return self.pop_all()

    def pop_all(self) -> Mapping[EntityPath, int]:
        """As `next`, but return at once: empty if nothing was announced."""
        came, self._waiting = self._waiting, {}
        return came


@attrs.define(eq=False)
class Announcements:
    """Publishes new messages to every open stream."""

    _streams: set[Stream] = attrs.field(factory=set, init=False)

    def publish(self, queue: EntityPath, size: int = 0) -> None:
        """
        Announce that a message is in `queue`, or soon will be; `size` in bytes, 0 if unknown. A
        shard's message is in its whole queue.
        """
        queue = queue.whole
        for stream in self._streams:
            stream.publish(queue, size)

    @contextmanager
    def subscribe(self, queues: Iterable[EntityPath] | None = None) -> Iterator[Stream]:
        """
        Open a stream of these queues' announcements, from now on; without `queues`, of all queues,
        with `EVERYTHING` among them.

        A subscription is also announced when its topic is, because senders name the topic.
        """
        stream = Stream(None if queues is None else with_topics(queues))
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)


def with_topics(queues: Iterable[EntityPath]) -> frozenset[EntityPath]:
    """
    Return the queues, and the topics of those that are subscriptions: a message to a topic is
    announced by the topic's name if its subscriptions aren't known.
    """
    return frozenset(path for queue in queues for path in (queue, queue.topic))
