"""The entities of a namespace that we keep ourselves: found by path, listed by name."""

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from gateway.domain.backlog import ROOM, is_backlog
from gateway.domain.contents import Entity, Onward
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errands import Errands, idle_end
from gateway.domain.errors import (
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    PreconditionFailed,
    QuotaExceeded,
)
from gateway.domain.fanout import CompileSql, Fanout, Subscription
from gateway.domain.forwarding import Forward, leads_to
from gateway.domain.packing import Packing
from gateway.domain.queue import Queue, Surroundings
from gateway.domain.queue_checks import check_properties, check_update
from gateway.domain.queue_values import News, Report
from gateway.domain.shelf import Shelf, StoredEntity
from gateway.domain.stored import Now, Storage
from gateway.domain.topology import (
    Properties,
    SubscriptionProperties,
    TopicProperties,
    as_queue,
)

_PAUSE: Final = 1.0  # seconds


@attrs.define(eq=False, kw_only=True)
class Namespace:
    """
    All entities, by path. Their number is bounded, so all of them are in memory.

    What a topic and its subscriptions have in common with a queue is a `Queue` here too;
    `Topics` has the rest.
    """

    max_message_size: int  # bytes; an entity's own limit wins
    max_queues: int  # topics and subscriptions too
    create_missing: bool
    shelf: Shelf
    _new_token: Callable[[], str]
    _packing: Packing
    _compile_sql: CompileSql
    _queues: dict[str, Queue] = attrs.field(factory=dict)  # by key, with those of topics
    _fanouts: dict[str, Fanout] = attrs.field(factory=dict)  # by key of the topic
    _names: dict[type, list[str]] = attrs.field(factory=dict)  # keys, sorted, by kind of entity
    _touched: dict[str, EntityPath] = attrs.field(factory=dict)  # by steps, by key
    _changed: list[EntityPath] = attrs.field(factory=list)  # who waits there has to look again
    _errands: Errands = attrs.field(factory=Errands)

    def __attrs_post_init__(self) -> None:
        self.reload()

    def reload(self) -> None:
        """Forget what is in memory, all locks too, and begin with what is stored."""
        for index in (self._queues, self._fanouts, self._names, self._touched, self._changed):
            index.clear()
        self._errands.clear()
        for stored, storage in self.shelf.load():
            self.put(stored, storage)

    # --- finding

    def find(self, path: EntityPath) -> Queue:
        """
        The queue or subscription that owns this path, which may name a sub-queue; or a topic's.

        Raises:
            EntityNotFound: there is none.
        """
        queue = self._queues.get(path.parent_key)
        if queue is None:
            raise EntityNotFound(f"there is no entity {path.parent}")
        return queue

    def find_or_create(self, path: EntityPath, now: Now) -> Queue:
        """As `find`, where `create_missing` doesn't make a queue."""
        missing = self.create_missing and path.parent_key not in self._queues
        if missing and not path.is_subscription:
            stored = StoredEntity(
                path=path.parent, properties=QueueProperties(), created=now.wall, updated=now.wall
            )
            return self.add(stored)
        return self.find(path)

    def known(self, path: EntityPath) -> Queue | None:
        return self._queues.get(path.parent_key)

    def inspect(self, path: EntityPath, now: Now) -> EntityInfo:
        """
        Raises:
            EntityNotFound: there is no queue or subscription of that name.
        """
        queue = self.find(path)
        if path.parent_key in self._fanouts:
            raise EntityNotFound(f"there is no queue {path.parent}")
        queue.sweep(now)
        return queue.info()

    def fanout(self, topic: EntityPath) -> Fanout:
        """
        Raises:
            EntityNotFound: there is no such topic.
        """
        fanout = self._fanouts.get(topic.key)
        if fanout is None:
            raise EntityNotFound(f"there is no topic {topic}")
        return fanout

    def page(self, prefix: str, skip: int, top: int) -> Sequence[EntityInfo]:
        """Some of the queues whose path starts with `prefix`, case ignored, by name."""
        keys = self.page_of(QueueProperties, prefix, skip, top)
        return [self._queues[key].info() for key in keys]

    def page_of(self, kind: type[Properties], prefix: str, skip: int, top: int) -> Sequence[str]:
        """The keys of some entities of one kind."""
        keys, low = self._names.get(kind, []), prefix.lower()
        first = bisect.bisect_left(keys, low) + max(skip, 0)
        end = bisect.bisect_right(keys, low + "\U0010ffff")
        return keys[first : min(end, first + max(top, 0))]

    def check_room(self) -> None:
        """
        Raises:
            StorageFull: nothing more may come in.
        """
        self.shelf.check_room()

    # --- queues

    def create(self, path: EntityPath, properties: QueueProperties, now: Now) -> EntityInfo:
        """
        Raises:
            EntityExists, InvalidRequest, QuotaExceeded: nothing was made.
        """
        if path.is_dead_letter or path.is_subscription:
            raise InvalidRequest(f"{path}: a sub-queue or subscription comes with its entity")
        stored = StoredEntity(path=path, properties=properties, created=now.wall, updated=now.wall)
        self.check_new(stored)
        return self.add(stored).info()

    def update(
        self, path: EntityPath, properties: QueueProperties, if_version: int | None, now: Now
    ) -> EntityInfo:
        """
        Give a queue other properties, if it still has that version; None: whatever it has.

        Raises:
            EntityNotFound, PreconditionFailed, InvalidRequest: nothing has changed.
        """
        self._check_queue(path)
        self.change(path, properties, if_version, now)
        return self._queues[path.key].info()

    def delete(self, path: EntityPath) -> None:
        """
        Raises:
            EntityNotFound: there is no queue of that name.
        """
        self._check_queue(path)
        self.remove(path)

    def _check_queue(self, path: EntityPath) -> None:
        if path.key not in self._queues or path.key in self._fanouts or path.is_subscription:
            raise EntityNotFound(f"there is no queue {path}")

    # --- entities of every kind

    def check_new(self, stored: StoredEntity) -> None:
        """
        Raises:
            EntityExists, InvalidRequest, StorageFull: it can't be added.
        """
        if stored.path.key in self._queues:
            raise EntityExists(f"there is an entity {stored.path} already")
        properties = as_queue(stored.properties)
        check_properties(stored.path, properties)
        self._check_no_circle(stored.path, properties)
        self.check_room()

    def add(self, stored: StoredEntity) -> Queue:
        """
        Raises:
            QuotaExceeded: there are as many as there may be.
        """
        if len(self._queues) >= self.max_queues:
            raise QuotaExceeded(f"this namespace has {self.max_queues} entities: no more fit")
        return self.put(stored, self.shelf.add(stored))

    def change(
        self, path: EntityPath, properties: Properties, if_version: int | None, now: Now
    ) -> None:
        """As `update`, for an entity that is there."""
        queue = self._queues[path.key]
        entity, new = queue.entity, as_queue(properties)
        if if_version is not None and if_version != entity.version:
            raise PreconditionFailed(f"{path}: version {entity.version}, not {if_version}")
        check_update(path, entity.properties, new)
        self._check_no_circle(path, new)
        stored = StoredEntity(
            path=entity.path,
            properties=properties,
            created=entity.created,
            updated=now.wall,
            version=entity.version + 1,
        )
        self.shelf.update(stored)
        entity.properties = new
        entity.updated, entity.version = stored.updated, stored.version
        entity.max_message_size = new.max_message_size or self._limit(path)
        entity.touch(now)
        self._lead(queue)
        queue.sweep(now)
        self._changed.append(entity.path)

    def put(self, stored: StoredEntity, storage: Storage) -> Queue:
        """Have an entity that is stored."""
        path, properties = stored.path, as_queue(stored.properties)
        fanout = None
        if isinstance(stored.properties, SubscriptionProperties):
            fanout = self._fanouts[path.topic.key]
        queue = Queue.make(
            Entity(
                path=path,
                properties=properties,
                created=stored.created,
                updated=stored.updated,
                version=stored.version,
                max_message_size=properties.max_message_size or self._limit(path),
            ),
            storage,
            Surroundings(
                next_sequence=self.shelf.next_sequence,
                new_token=self._new_token,
                packing=self._packing,
                concern=self.concern,
            ),
            account=None if fanout is None else self._queues[path.topic.key].account,
        )
        self._queues[path.key] = queue
        if isinstance(stored.properties, TopicProperties):
            self._fanouts[path.key] = Fanout(
                self._packing.unpack, self._compile_sql, stored.properties
            )
        if fanout is not None and isinstance(stored.properties, SubscriptionProperties):
            fanout.add(Subscription(path.subscription, stored.properties, queue), stored.rules)
        bisect.insort(self._names.setdefault(type(stored.properties), []), path.key)
        self._lead(queue)
        self._errands.add(queue)
        return queue

    def remove(self, path: EntityPath) -> None:
        """Forget an entity that is there, and its messages."""
        queue = self._queues.pop(path.key)
        self.shelf.remove(path)
        queue.forsake()
        self._fanouts.pop(path.key, None)
        for names in self._names.values():
            place = bisect.bisect_left(names, path.key)
            if place < len(names) and names[place] == path.key:
                del names[place]
        self._touched.pop(path.key, None)
        self._errands.drop(path.key)
        self._changed.append(path)

    def _limit(self, path: EntityPath) -> int:
        """A backlog queue takes the envelope on top, so that an outage takes what health takes."""
        return self.max_message_size + (ROOM if is_backlog(path) else 0)

    def _lead(self, queue: Queue) -> None:
        properties = queue.properties
        onward: Onward | None = self._fanouts.get(queue.path.key)
        queue.lead(
            onward or self._forward(properties.forward_to),
            self._forward(properties.forward_dead_lettered_messages_to),
        )

    def _forward(self, target: str | None) -> Forward | None:
        return None if target is None else Forward(EntityPath(target), self._queues.get)

    def _check_no_circle(self, path: EntityPath, properties: QueueProperties) -> None:
        """In a circle through a topic messages would multiply."""
        goal = path.topic.key  # it's on the way to each of its subscriptions
        for target in _targets(properties):
            if leads_to(target, goal, self._next_of):
                raise InvalidRequest(f"{path}: what is forwarded to {target} would come back")

    def _next_of(self, key: str) -> Iterable[str]:
        if key in self._fanouts:
            for subscription in self._fanouts[key].subscriptions.values():
                yield subscription.queue.path.key
        elif key in self._queues:
            yield from _targets(self._queues[key].properties)

    # --- whom a step concerns, and what becomes due

    def concern(self, path: EntityPath) -> None:
        """A step was one on `path`: the next report tells those who wait there."""
        self._touched[path.parent_key] = path

    def report(self, now: Now) -> Report:
        """What has changed for others since the last report."""
        news: list[tuple[EntityPath, News | None]] = [(path, None) for path in self._changed]
        self._changed.clear()
        for key, path in self._touched.items():
            queue = self._queues.get(key)
            told = (path.parent, None) if queue is None else (queue.path, self._news_of(queue, now))
            news.append(told)
        self._touched.clear()
        return Report(news, self.next_errand())

    def report_all(self, now: Now) -> Report:
        """Everybody has to look again. Errands wait: a disk that is full stays so for a while."""
        news = [(queue.path, None) for queue in self._queues.values()]
        return Report(news, now.monotonic + _PAUSE)

    def next_errand(self) -> float | None:
        """When (monotonic) `run_errands` has to be called."""
        return self._errands.first()

    def run_errands(self, now: Now, is_watched: Callable[[str], bool]) -> None:
        """
        Do what is due in entities that nobody has to ask for anything.

        `is_watched` tells of an entity's key whether somebody receives from it: then it isn't idle.
        """
        for key in list(self._errands.run_out(now)):
            queue = self._queues.get(key)
            if queue is None:
                continue
            queue.sweep(now)
            if idle_end(queue, now) <= now.monotonic:
                self._note_use(queue, now, is_watched)
            if idle_end(queue, now) > now.monotonic:
                self.concern(queue.path)
            else:
                self.remove_whole(queue.path)

    def _note_use(self, queue: Queue, now: Now, is_watched: Callable[[str], bool]) -> None:
        """Who waits for a message uses an entity, and who uses a subscription uses its topic."""
        users = [queue]
        if (fanout := self._fanouts.get(queue.path.key)) is not None:
            users += [subscription.queue for subscription in fanout.subscriptions.values()]
        dates = [now.monotonic if is_watched(each.path.key) else each.entity.used for each in users]
        queue.entity.used = max(date for date in dates if date is not None)

    def remove_whole(self, path: EntityPath) -> None:
        """Remove an entity with all that belongs to it."""
        fanout = self._fanouts.get(path.key)
        if fanout is not None:
            for subscription in list(fanout.subscriptions.values()):
                self.remove(subscription.queue.path)
        elif path.is_subscription and path.topic.key in self._fanouts:
            self._fanouts[path.topic.key].drop(path.subscription)
        self.remove(path)

    def _news_of(self, queue: Queue, now: Now) -> News:
        news = queue.drain_news(now)
        self._errands.note(queue, news.due, now)
        return news


def _targets(properties: QueueProperties) -> list[str]:
    names = (properties.forward_to, properties.forward_dead_lettered_messages_to)
    return [EntityPath(name).key for name in names if name is not None]
