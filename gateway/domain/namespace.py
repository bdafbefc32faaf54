"""The queues of a namespace that we keep ourselves: found by path, listed by name."""

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import attrs

from gateway.domain.backlog import ROOM, is_backlog
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import EntityExists, EntityNotFound, InvalidRequest, QuotaExceeded
from gateway.domain.queue import Queue
from gateway.domain.queue_checks import check_properties
from gateway.domain.stored import Now, Rows


@attrs.frozen(kw_only=True)
class StoredQueue:
    """A queue as the storage knows it."""

    path: EntityPath
    properties: QueueProperties
    created: int
    rows: Rows


class Shelf(Protocol):
    """Where a namespace keeps its queues: in memory, or on disk."""

    def load(self) -> Iterable[StoredQueue]:
        """Everything that is there when the namespace opens."""
        ...

    def add_queue(self, path: EntityPath, properties: QueueProperties, created: int) -> Rows: ...

    def remove_queue(self, path: EntityPath) -> None:
        """Forget a queue and its messages, now or soon."""
        ...

    def check_room(self) -> None:
        """
        Raises:
            StorageFull: nothing more may come in; what is there can still be settled.
        """
        ...

    def next_sequence(self) -> int:
        """A sequence number that no message had, in the whole namespace, ever."""
        ...


@attrs.define(eq=False, kw_only=True)
class Namespace:
    """All queues, by path. The number of queues is bounded, so all of them are in memory."""

    max_message_size: int  # bytes; a queue's own limit wins
    max_queues: int
    create_missing: bool
    _shelf: Shelf
    _new_token: Callable[[], str]
    _queues: dict[str, Queue] = attrs.field(factory=dict)
    _keys: list[str] = attrs.field(factory=list)  # sorted

    def __attrs_post_init__(self) -> None:
        self.reload()

    def reload(self) -> None:
        """Forget what is in memory, all locks too, and begin with what is stored."""
        self._queues.clear()
        self._keys.clear()
        for stored in self._shelf.load():
            self._put(stored)

    def find(self, path: EntityPath) -> Queue:
        """
        The queue that owns this path, which may name its dead-letter sub-queue.

        Raises:
            EntityNotFound: there is none.
        """
        queue = self._queues.get(path.parent.key)
        if queue is None:
            raise EntityNotFound(f"there is no queue {path.parent}")
        return queue

    def find_or_create(self, path: EntityPath, now: Now) -> Queue:
        """As `find`, where `create_missing` doesn't make it."""
        if self.create_missing and path.parent.key not in self._queues:
            return self._create(path.parent, QueueProperties(), now)
        return self.find(path)

    def check_room(self) -> None:
        """
        Raises:
            StorageFull: nothing more may come in.
        """
        self._shelf.check_room()

    def known(self, path: EntityPath) -> Queue | None:
        return self._queues.get(path.parent.key)

    def create(self, path: EntityPath, properties: QueueProperties, now: Now) -> EntityInfo:
        """
        Raises:
            EntityExists, NotSupported, InvalidRequest, QuotaExceeded: nothing was made.
        """
        if path.is_dead_letter:
            raise InvalidRequest(f"{path}: a dead-letter sub-queue comes with its queue")
        if path.key in self._queues:
            raise EntityExists(f"there is a queue {path} already")
        check_properties(properties)
        self.check_room()
        return self._create(path, properties, now).info()

    def delete(self, path: EntityPath) -> None:
        """
        Raises:
            EntityNotFound: there is none.
        """
        if path.key not in self._queues:
            raise EntityNotFound(f"there is no queue {path}")
        self._shelf.remove_queue(path)
        del self._queues[path.key]
        del self._keys[bisect.bisect_left(self._keys, path.key)]

    def page(self, prefix: str, skip: int, top: int) -> Sequence[EntityInfo]:
        """Some of the queues whose path starts with `prefix`, case ignored, by name."""
        low = prefix.lower()
        first = bisect.bisect_left(self._keys, low) + max(skip, 0)
        end = bisect.bisect_right(self._keys, low + "\U0010ffff")
        keys = self._keys[first : min(end, first + max(top, 0))]
        return [self._queues[key].info() for key in keys]

    def _create(self, path: EntityPath, properties: QueueProperties, now: Now) -> Queue:
        if len(self._queues) >= self.max_queues:
            raise QuotaExceeded(f"this namespace has {self.max_queues} queues: no more fit")
        rows = self._shelf.add_queue(path, properties, now.wall)
        return self._put(StoredQueue(path=path, properties=properties, created=now.wall, rows=rows))

    def _limit(self, path: EntityPath) -> int:
        """A backlog queue takes the envelope on top, so that an outage takes what health takes."""
        return self.max_message_size + (ROOM if is_backlog(path) else 0)

    def _put(self, stored: StoredQueue) -> Queue:
        queue = Queue(
            path=stored.path,
            properties=stored.properties,
            created=stored.created,
            max_message_size=stored.properties.max_message_size or self._limit(stored.path),
            rows=stored.rows,
            next_sequence=self._shelf.next_sequence,
            new_token=self._new_token,
        )
        self._queues[stored.path.key] = queue
        bisect.insort(self._keys, stored.path.key)
        return queue
