"""The entities of the broker's own namespace: found by path, listed by name."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs

from gateway.domain.backlog import largest
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    PreconditionFailed,
    QuotaExceeded,
)
from gateway.domain.topics.topology import (
    Properties,
    SubscriptionProperties,
    TopicProperties,
    as_queue,
    kind_of,
)
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.deliveries import News, StepReport
from gateway.store.engine.dormant import DormantQueue, DormantSubscription, DormantTopic
from gateway.store.engine.due_work import DueWork, idle_end
from gateway.store.engine.entity_names import Names
from gateway.store.engine.entity_store import EntityStore, StoredEntity
from gateway.store.engine.forwarding import Forward, leads_to
from gateway.store.engine.journal import Journal, put_entry
from gateway.store.engine.message_index import QuotaUsage
from gateway.store.engine.queue import Queue, QueueDependencies
from gateway.store.engine.queue_checks import check_properties, check_update
from gateway.store.engine.queue_content import Entity, Onward, quota_of
from gateway.store.engine.records import Storage, Totals
from gateway.store.engine.topic_routing import (
    CompileAction,
    CompileSql,
    RoutedSubscription,
    TopicRouting,
)

PAUSE: Final = 1.0  # seconds that due work waits after a failure
_USUAL: Final = QueueProperties()


def always_watched(key: str) -> bool:
    """True for every entity: for callers that don't know the receivers."""
    return True


@attrs.define(eq=False, kw_only=True)
class Namespace:
    """
    All entities, by path. Their number is limited, so all of them are kept in memory; an unused
    entity takes little memory.

    A topic or subscription is a `Queue` here too, for all that it has in common with a queue;
    `Topics` has the rest.
    """

    max_message_size: int  # bytes; an entity's own limit takes precedence
    max_queues: int  # topics and subscriptions count, too
    create_missing: bool
    store: EntityStore
    _new_token: Callable[[], str]
    _packing: Packing
    _compile_sql: CompileSql
    _compile_action: CompileAction
    _queues: dict[str, Queue] = attrs.field(factory=dict)  # by key, with those of topics
    _dormant: dict[str, DormantQueue] = attrs.field(factory=dict)  # by key; in no other index
    _routings: dict[str, TopicRouting] = attrs.field(factory=dict)  # by key of the topic
    _names: Names = attrs.field(factory=Names)
    # Entities that steps have used since the last report, by key.
    _touched: dict[str, EntityPath] = attrs.field(factory=dict)
    # Entities whose waiting receivers must look again.
    _changed: list[EntityPath] = attrs.field(factory=list)
    _due_work: DueWork = attrs.field(init=False)
    _dependencies: QueueDependencies = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._due_work = DueWork(self.journal)
        self._dependencies = QueueDependencies(
            next_sequence=self.store.next_sequence,
            new_token=self._new_token,
            packing=self._packing,
            concern=self.concern,
        )
        self.reload()

    @property
    def journal(self) -> Journal:
        """Undoes all steps since the journal's last `forget`."""
        return self.store.journal

    def reload(self) -> None:
        """Forget the state in memory, all locks included, and read it again from the storage."""
        for index in (self._queues, self._dormant, self._routings, self._names, self._touched):
            index.clear()
        self._changed.clear()
        self._due_work.clear()
        keys: dict[type[Properties], list[str]] = {}
        as_queues: dict[int, QueueProperties] = {}  # entities with equal properties share one value
        for stored, totals in self.store.load():
            properties, path = stored.properties, stored.path
            shared = as_queues.get(id(properties))
            if shared is None:
                shared = as_queues[id(properties)] = as_queue(properties)
            dormant: DormantQueue
            if isinstance(properties, TopicProperties):
                dormant = DormantTopic(stored, shared, totals)
            elif isinstance(properties, SubscriptionProperties):
                dormant = DormantSubscription(stored, shared, totals)
                self._topic_of(path).subscriptions.append(dormant)
            else:
                dormant = DormantQueue(stored, shared, totals)
            self._dormant[path.key] = dormant
            keys.setdefault(type(properties), []).append(path.key)
            self._due_work.add(dormant)
            self.journal.forget()  # the journal would hold as much memory as the entities
        for kind, each in keys.items():
            self._names.fill(kind, each)

    # --- finding

    def find(self, path: EntityPath) -> Queue:
        """
        The queue, subscription or topic with this path, which may name a sub-queue of it.

        Raises:
            EntityNotFound: no entity has this path.
        """
        queue = self._get(path.parent_key)
        if queue is None:
            raise EntityNotFound(f"there is no entity {path.parent}")
        return queue

    def find_or_create(self, path: EntityPath, now: Now) -> Queue:
        """As `find`; a missing queue is created if `create_missing` is set."""
        queue = self._get(path.parent_key)
        if queue is not None:
            return queue
        if self.create_missing and not path.is_subscription:
            stored = StoredEntity(
                path=path.parent, properties=QueueProperties(), created=now.wall, updated=now.wall
            )
            return self.add(stored)
        return self.find(path)

    def known(self, path: EntityPath) -> Queue | None:
        return self._get(path.parent_key)

    def _get(self, key: str) -> Queue | None:
        queue = self._queues.get(key)
        return self._wake(key) if queue is None else queue

    def _wake(self, key: str) -> Queue | None:
        """
        Make an entity that is used for the first time: a queue, or a topic with its subscriptions.
        None: there is no such entity.
        """
        dormant = self._dormant.get(key)
        if dormant is None:
            return None
        is_queue = isinstance(dormant.stored.properties, QueueProperties)
        together = [dormant] if is_queue else self._topic_of(dormant.path).family
        self.journal.record(self._put_to_sleep, together)
        for each in together:
            del self._dormant[each.path.key]
        for each in together:
            queue = self._enter(each.stored, self.store.storage(each.path), each.totals)
            queue.entity.used = each.used
        return self._queues[key]

    def _put_to_sleep(self, together: Iterable[DormantQueue]) -> None:
        for dormant in together:
            key = dormant.path.key
            self._queues.pop(key, None)
            self._routings.pop(key, None)
            self._dormant[key] = dormant

    def _topic_of(self, path: EntityPath) -> DormantTopic:
        """The dormant topic of that topic or subscription."""
        topic = self._dormant[path.topic.key]
        assert isinstance(topic, DormantTopic), "each topic is loaded before its subscriptions"
        return topic

    def _has(self, key: str) -> bool:
        return key in self._queues or key in self._dormant

    def inspect(self, path: EntityPath, now: Now) -> EntityInfo:
        """
        The properties and counts of a queue or subscription.

        Raises:
            EntityNotFound: no queue or subscription has this path.
        """
        dormant = self._dormant.get(path.parent_key)
        if dormant is not None and not isinstance(dormant, DormantTopic) and dormant.is_empty:
            return self._info(dormant.path.key)
        if self._is_topic(path.parent_key):
            raise EntityNotFound(f"{path.parent} is a topic, not a queue")
        queue = self.find(path)
        queue.sweep(now)
        return queue.info()

    def is_topic(self, path: EntityPath) -> bool:
        """True if the path is a topic's, used or not."""
        return self._is_topic(path.key)

    def routing(self, topic: EntityPath) -> TopicRouting:
        """
        The routing of a topic.

        Raises:
            EntityNotFound: no topic has this path.
        """
        routing = self._routings.get(topic.key)
        if routing is None and self._is_topic(topic.key):
            self._wake(topic.key)
            routing = self._routings[topic.key]
        if routing is None:
            raise EntityNotFound(f"there is no topic {topic}")
        return routing

    def unused(self, path: EntityPath) -> DormantQueue | None:
        """The entity, if it wasn't used since the start; a topic is used with its subscriptions."""
        return self._dormant.get(path.key)

    def _is_topic(self, key: str) -> bool:
        return key in self._routings or isinstance(self._dormant.get(key), DormantTopic)

    def page(self, prefix: str, skip: int, top: int) -> Sequence[EntityInfo]:
        """
        A page of the queues whose path starts with `prefix`, case ignored, in the order of names.
        """
        keys = self.page_of(QueueProperties, prefix, skip, top)
        return [self._info(key) for key in keys]

    def _info(self, key: str) -> EntityInfo:
        dormant = self._dormant.get(key)
        if dormant is None:
            return self._queues[key].info()
        return dormant.info(self.limit(dormant.path, dormant.properties))

    def page_of(self, kind: type[Properties], prefix: str, skip: int, top: int) -> Sequence[str]:
        """The keys of a page of entities of one kind, in the order of names."""
        return self._names.page(kind, prefix, skip, top)

    def check_room(self) -> None:
        """
        Check that the storage can grow.

        Raises:
            StorageFull: nothing more can be stored.
        """
        self.store.check_room()

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """
        Undo all changes that were made within, in memory and in the storage, if the block raises.
        """
        mark = self.journal.mark()
        try:
            with self.store.savepoint():
                yield
        except Exception:
            self.journal.rewind(mark)
            raise

    # --- queues

    def create(self, path: EntityPath, properties: QueueProperties, now: Now) -> EntityInfo:
        """
        Create a queue.

        Raises:
            EntityExists, InvalidRequest, QuotaExceeded: the queue wasn't created.
        """
        if path.is_dead_letter or path.is_subscription:
            raise InvalidRequest(
                f"{path}: a queue expected, not the path of a sub-queue or subscription"
            )
        stored = StoredEntity(path=path, properties=properties, created=now.wall, updated=now.wall)
        self.check_new(stored)
        return self.add(stored).info()

    def update(
        self, path: EntityPath, properties: QueueProperties, if_version: int | None, now: Now
    ) -> EntityInfo:
        """
        Replace a queue's properties. With `if_version`, only if the queue still has that version.

        Raises:
            EntityNotFound, PreconditionFailed, InvalidRequest: nothing was changed.
        """
        self._check_queue(path)
        self.change(path, properties, if_version, now)
        return self._queues[path.key].info()

    def delete(self, path: EntityPath) -> None:
        """
        Delete a queue and its messages.

        Raises:
            EntityNotFound: no queue has this path.
        """
        self._check_queue(path)
        self.remove(path)

    def _check_queue(self, path: EntityPath) -> None:
        if not self._has(path.key) or self._is_topic(path.key) or path.is_subscription:
            raise EntityNotFound(f"there is no queue {path}")

    # --- entities of every kind

    def check_new(self, stored: StoredEntity) -> None:
        """
        Check that an entity can be created.

        Raises:
            EntityExists, InvalidRequest, StorageFull: the entity can't be created.
        """
        if self._has(stored.path.key):
            raise EntityExists(f"{stored.path}: an entity of this name exists already")
        properties = as_queue(stored.properties)
        check_properties(properties)
        self._check_no_circle(stored.path, properties)
        self.check_room()

    def add(self, stored: StoredEntity) -> Queue:
        """
        Store and add an entity.

        Raises:
            QuotaExceeded: the namespace has `max_queues` entities already.
        """
        if len(self._queues) + len(self._dormant) >= self.max_queues:
            raise QuotaExceeded(
                f"this namespace has {self.max_queues} entities, the most allowed; delete"
                " unused ones"
            )
        return self.put(stored, self.store.add(stored))

    def check_version(self, path: EntityPath, version: int) -> None:
        """
        Check that an entity wasn't changed since it had that version.

        Raises:
            EntityNotFound: no entity has this path.
            PreconditionFailed: the entity has another version.
        """
        entity = self.find(path).entity
        if version != entity.version:
            raise PreconditionFailed(
                f"{path}: version {version} expected, the entity has {entity.version}"
            )

    def change(
        self, path: EntityPath, properties: Properties, if_version: int | None, now: Now
    ) -> None:
        """As `update`, for an entity that exists."""
        queue = self.find(path)
        entity, new = queue.entity, as_queue(properties)
        if if_version is not None:
            self.check_version(path, if_version)
        check_update(path, kind_of(properties), entity.properties, new)
        self._check_no_circle(path, new)
        queue.sweep(now)  # the old properties decide about the messages that have expired
        stored = StoredEntity(
            path=entity.path,
            properties=properties,
            created=entity.created,
            updated=now.wall,
            version=entity.version + 1,
        )
        self.store.update(stored)
        self.journal.keep(entity)
        entity.properties = new
        if isinstance(properties, TopicProperties) and (usage := queue.shared_usage) is not None:
            self.journal.keep(usage)
            usage.quota = quota_of(new)
        entity.updated, entity.version = stored.updated, stored.version
        entity.max_message_size = self.limit(path, new)
        entity.touch(now)
        self._lead(queue)
        queue.sweep(now)
        self._changed.append(entity.path)

    def put(self, stored: StoredEntity, storage: Storage, totals: Totals | None = None) -> Queue:
        """Add an entity that is stored already; None: `totals` must be counted."""
        self.journal.record(self._forget, stored.path, type(stored.properties))
        queue = self._enter(stored, storage, totals)
        self._names.add(type(stored.properties), stored.path.key)
        self._due_work.add(queue)
        return queue

    def _enter(self, stored: StoredEntity, storage: Storage, totals: Totals | None) -> Queue:
        """Make an entity, whose name is known; the caller has noted how to undo it."""
        path = stored.path
        routing: TopicRouting | None = None
        usage: QuotaUsage | None = None
        if isinstance(stored.properties, SubscriptionProperties):
            routing = self._routings[path.topic.key]
            usage = self._queues[path.topic.key].shared_usage
        elif isinstance(stored.properties, TopicProperties):
            usage = QuotaUsage(quota_of(as_queue(stored.properties)))
        queue = self._make(stored, storage, usage, totals)
        self._queues[path.key] = queue
        if isinstance(stored.properties, TopicProperties):
            self._routings[path.key] = TopicRouting(
                self._packing,
                self._compile_sql,
                self._compile_action,
                stored.properties,
                self.journal,
            )
        if routing is not None and isinstance(stored.properties, SubscriptionProperties):
            routing.add(
                RoutedSubscription(path.subscription, stored.properties, queue), stored.rules
            )
        self._lead(queue)
        return queue

    def _make(
        self,
        stored: StoredEntity,
        storage: Storage,
        usage: QuotaUsage | None,
        totals: Totals | None,
    ) -> Queue:
        properties = as_queue(stored.properties)
        if properties == _USUAL:
            properties = _USUAL  # one object for most queues, which is in the processor's cache
        entity = Entity(
            path=stored.path,
            properties=properties,
            created=stored.created,
            updated=stored.updated,
            version=stored.version,
            max_message_size=self.limit(stored.path, properties),
            journal=self.journal,
        )
        return Queue.make(entity, storage, self._dependencies, usage, totals)

    def remove(self, path: EntityPath) -> None:
        """Remove an existing entity and its messages."""
        queue, routing = self.find(path), self._routings.get(path.key)
        kind: type[Properties] = QueueProperties
        if path.is_subscription:
            kind = SubscriptionProperties
        elif routing is not None:
            kind = TopicProperties
        self.store.remove(path)
        self.journal.record(self._put_back, queue, routing, kind)
        self._forget(path, kind)
        queue.forsake()
        self._touched.pop(path.key, None)
        self._due_work.drop(path.key)
        self._changed.append(path)

    def _forget(self, path: EntityPath, kind: type[Properties]) -> None:
        self._queues.pop(path.key, None)
        self._routings.pop(path.key, None)
        self._names.drop(kind, path.key)

    def _put_back(self, queue: Queue, routing: TopicRouting | None, kind: type[Properties]) -> None:
        key = queue.path.key
        self._queues[key] = queue
        put_entry(self._routings, key, routing)
        self._names.add(kind, key)

    def limit(self, path: EntityPath, properties: QueueProperties) -> int:
        """The largest message of an entity, in bytes."""
        return properties.max_message_size or largest(path, self.max_message_size)

    def _lead(self, queue: Queue) -> None:
        properties = queue.properties
        onward: Onward | None = self._routings.get(queue.path.key)
        queue.lead(
            onward or self._forward(queue.path, properties.forward_to),
            self._forward(queue.path, properties.forward_dead_lettered_messages_to),
        )

    def _forward(self, path: EntityPath, name: str | None) -> Forward | None:
        if name is None:
            return None
        target = EntityPath(name)
        return Forward(target, self._get, target == path.topic)

    def _check_no_circle(self, path: EntityPath, properties: QueueProperties) -> None:
        """
        Refuse a circle of forwarding. Through a topic, messages would multiply in a circle. An
        entity that forwards to itself is no circle: `Forward` refuses its messages.
        """
        goal = path.topic.key  # a topic forwards to each of its subscriptions
        for target in _targets(properties):
            if target != goal and leads_to(target, goal, self._next_of):
                raise InvalidRequest(f"{path}: messages forwarded to {target} would come back")

    def _next_of(self, key: str) -> Iterable[str]:
        if key in self._routings:
            for subscription in self._routings[key].subscriptions.values():
                yield subscription.queue.path.key
        elif key in self._queues:
            yield from _targets(self._queues[key].properties)
        elif (dormant := self._dormant.get(key)) is not None:
            if isinstance(dormant, DormantTopic):
                yield from (each.path.key for each in dormant.subscriptions)
            yield from _targets(dormant.properties)

    # --- reports, and due work

    def concern(self, path: EntityPath) -> None:
        """Note that a step used `path`: the next report wakes the receivers that wait there."""
        self._touched[path.parent_key] = path

    def report(self, now: Now, is_watched: Callable[[str], bool] = always_watched) -> StepReport:
        """
        The changes since the last report. `is_watched` says whether somebody waits for changes of
        the entity with this key. Otherwise its changes are left out, unless they concern more than
        its receivers: no receiver waits at most queues.
        """
        news: list[tuple[EntityPath, News | None]] = [(path, None) for path in self._changed]
        self._changed.clear()
        for key, path in self._touched.items():
            queue = self._queues.get(key)
            if queue is None:
                if key not in self._dormant:  # no receiver waits at a dormant queue
                    news.append((path.parent, None))
                continue
            if not (is_watched(key) or queue.concerns_more):
                continue
            told = queue.drain_news(now)
            self._due_work.schedule(queue, told.due, now)
            news.append((queue.entity.path, told))
        self._touched.clear()
        return StepReport(news, self.next_due_work())

    def report_all(self, now: Now) -> StepReport:
        """
        Wake all receivers, after a failure. Due work is put off: a full disk stays full for a
        while.
        """
        news = [(queue.path, None) for queue in self._queues.values()]
        return StepReport(news, now.monotonic + PAUSE)

    def next_due_work(self) -> float | None:
        """The monotonic time at which `run_due_work` must be called."""
        return self._due_work.first()

    def run_due_work(self, now: Now, is_watched: Callable[[str], bool]) -> None:
        """
        Do the work that is due in entities, without a client's request.

        `is_watched` says whether a receiver waits on the entity with this key: such an entity isn't
        idle.
        """
        for key in list(self._due_work.run_out(now)):
            dormant = self._dormant.get(key)
            if dormant is not None and dormant.is_empty and dormant.used is None:
                self._due_work.wait_until_idle(dormant, now)
                continue
            queue = self._get(key)
            if queue is None:
                continue
            queue.sweep(now)
            if idle_end(queue, now) <= now.monotonic:
                self._record_use(queue, now, is_watched)
            if idle_end(queue, now) > now.monotonic:
                self.concern(queue.path)
            else:
                self.remove_whole(queue.path)

    def _record_use(self, queue: Queue, now: Now, is_watched: Callable[[str], bool]) -> None:
        """
        Note that the entity is used: by a waiting receiver, or, of a topic, by the use of a
        subscription.
        """
        users = [queue]
        if (routing := self._routings.get(queue.path.key)) is not None:
            users += [subscription.queue for subscription in routing.subscriptions.values()]
        dates = [now.monotonic if is_watched(each.path.key) else each.entity.used for each in users]
        queue.entity.use(max(date for date in dates if date is not None))

    def remove_whole(self, path: EntityPath) -> None:
        """
        Remove an entity and all that belongs to it: a topic's subscriptions, a subscription's
        routing.
        """
        routing = self._routings.get(path.key)
        if routing is not None:
            for subscription in list(routing.subscriptions.values()):
                self.remove(subscription.queue.path)
        elif path.is_subscription and path.topic.key in self._routings:
            self._routings[path.topic.key].drop(path.subscription)
        self.remove(path)


def _targets(properties: QueueProperties) -> list[str]:
    names = (properties.forward_to, properties.forward_dead_lettered_messages_to)
    return [EntityPath(name).key for name in names if name is not None]
