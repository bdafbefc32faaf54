"""The queues of a namespace that we keep ourselves: found by path, listed by name."""

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import attrs

from gateway.domain.backlog import ROOM, is_backlog
from gateway.domain.contents import Entity
from gateway.domain.deadlines import Deadlines
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    PreconditionFailed,
    QuotaExceeded,
)
from gateway.domain.queue import News, Queue
from gateway.domain.queue_checks import check_properties, check_update
from gateway.domain.stored import Now, Storage


@attrs.frozen(kw_only=True)
class StoredQueue:
    """A queue as the storage knows it."""

    path: EntityPath
    properties: QueueProperties
    created: int
    updated: int
    version: int = 0


class Shelf(Protocol):
    """Where a namespace keeps its queues: in memory, or on disk."""

    def load(self) -> Iterable[tuple[StoredQueue, Storage]]:
        """Everything that is there when the namespace opens."""
        ...

    def add(self, queue: StoredQueue) -> Storage: ...

    def update(self, queue: StoredQueue) -> None: ...

    def remove(self, path: EntityPath) -> None:
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
    _id_of: Callable[[Any], str | None]  # the message id of stored content
    _queues: dict[str, Queue] = attrs.field(factory=dict)
    _keys: list[str] = attrs.field(factory=list)  # sorted
    _touched: dict[str, Queue] = attrs.field(factory=dict)  # by a step, besides its own
    _errands: Deadlines = attrs.field(factory=Deadlines)

    def __attrs_post_init__(self) -> None:
        self.reload()

    def reload(self) -> None:
        """Forget what is in memory, all locks too, and begin with what is stored."""
        self._queues.clear()
        self._keys.clear()
        self._touched.clear()
        self._errands.clear()
        for stored, storage in self._shelf.load():
            self._put(stored, storage)

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

    # --- whom a step concerns, and what becomes due

    def drain_news(self, path: EntityPath, now: Now) -> Sequence[tuple[EntityPath, News | None]]:
        """Whom the last step concerns, which was one on `path`. None: there's no such queue now."""
        queue = self.known(path)
        if queue is None:
            news: list[tuple[EntityPath, News | None]] = [(path.parent, None)]
        else:
            news = [(path.parent, self._news_of(queue, now))]
        while self._touched:
            _, other = self._touched.popitem()
            if other is not queue:
                news.append((other.path, self._news_of(other, now)))
        return news

    def next_errand(self) -> float | None:
        """When (monotonic) `run_errands` has to be called."""
        return self._errands.first()

    def run_errands(self, now: Now) -> None:
        """Do what is due in queues that nobody has to ask for anything."""
        for key in list(self._errands.run_out(now.monotonic)):
            queue = self._queues.get(key)
            if queue is not None:
                queue.sweep(now)
                self._touched[key] = queue

    def _news_of(self, queue: Queue, now: Now) -> News:
        news = queue.drain_news(now)
        if queue.has_errands:
            key = queue.path.key
            if news.due is None:
                self._errands.drop(key)
            elif news.due != self._errands.get(key):
                self._errands.set(key, news.due)
        return news

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

    def update(
        self, path: EntityPath, properties: QueueProperties, if_version: int | None, now: Now
    ) -> EntityInfo:
        """
        Give a queue other properties, if it still has that version; None: whatever it has.

        Raises:
            EntityNotFound, PreconditionFailed, NotSupported, InvalidRequest: nothing has changed.
        """
        queue = self._exactly(path)
        entity = queue.entity
        if if_version is not None and if_version != entity.version:
            raise PreconditionFailed(f"{path}: version {entity.version}, not {if_version}")
        check_update(entity.properties, properties)
        stored = StoredQueue(
            path=entity.path,
            properties=properties,
            created=entity.created,
            updated=now.wall,
            version=entity.version + 1,
        )
        self._shelf.update(stored)
        entity.properties = properties
        entity.updated, entity.version = stored.updated, stored.version
        entity.max_message_size = properties.max_message_size or self._limit(entity.path)
        return queue.info()

    def delete(self, path: EntityPath) -> None:
        """
        Raises:
            EntityNotFound: there is none.
        """
        self._exactly(path)
        self._shelf.remove(path)
        del self._queues[path.key]
        del self._keys[bisect.bisect_left(self._keys, path.key)]
        self._errands.drop(path.key)

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
        stored = StoredQueue(path=path, properties=properties, created=now.wall, updated=now.wall)
        return self._put(stored, self._shelf.add(stored))

    def _exactly(self, path: EntityPath) -> Queue:
        """The queue of that name; a sub-queue is none."""
        if path.key not in self._queues:
            raise EntityNotFound(f"there is no queue {path}")
        return self._queues[path.key]

    def _limit(self, path: EntityPath) -> int:
        """A backlog queue takes the envelope on top, so that an outage takes what health takes."""
        return self.max_message_size + (ROOM if is_backlog(path) else 0)

    def _put(self, stored: StoredQueue, storage: Storage) -> Queue:
        entity = Entity(
            path=stored.path,
            properties=stored.properties,
            created=stored.created,
            updated=stored.updated,
            version=stored.version,
            max_message_size=stored.properties.max_message_size or self._limit(stored.path),
        )
        queue = Queue.make(
            entity,
            storage,
            next_sequence=self._shelf.next_sequence,
            new_token=self._new_token,
            id_of=self._id_of,
        )
        self._queues[stored.path.key] = queue
        bisect.insort(self._keys, stored.path.key)
        return queue
