"""Parts of the tests of namespace that other tests need, too."""

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import attrs

from gateway.brokers.lock_tokens import lock_tokens
from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    StorageFull,
)
from gateway.domain.message import Message
from gateway.domain.topics.filters import Rule
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.entity_store import StoredEntity
from gateway.store.engine.journal import Journal
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import Incoming, Storage, Totals
from gateway.store.local.memory import MemoryEntityStore

NEWS = EntityPath("news")
HOUR = 3600.0


def at(seconds: float) -> Now:
    return Now(round(seconds * 1e6), seconds)


def message(due: float | None = None) -> Incoming:
    scheduled = None if due is None else to_date(round(due * 1e6))
    return Incoming(content=Message(), size=10, scheduled=scheduled)


def make(**options: Any) -> Namespace:
    return Namespace(
        **{
            "max_message_size": 1000,
            "max_queues": 10_000,
            "create_missing": False,
            "store": MemoryEntityStore(),
            "packing": Packing(lambda message: (message, 10), lambda content: content),
            "compile_action": lambda _action: lambda message: message,
            **options,
        },
        new_token=lock_tokens(random.Random(0)),
        compile_sql=lambda _filter: lambda _message: False,
    )


@attrs.define
class Disk:
    """`EntityStore` that keeps its entities, so that another namespace can load them."""

    kept: dict[str, tuple[StoredEntity, Storage]] = attrs.field(factory=dict)
    numbers: Iterator[int] = attrs.field(factory=lambda: count(1))
    is_full: bool = False
    opened: list[str] = attrs.field(factory=list)  # the requested storages, by key
    journal: Journal = attrs.field(factory=Journal)

    def load(self) -> Sequence[tuple[StoredEntity, Totals]]:
        return [(entity, storage.rows.totals()) for entity, storage in self.kept.values()]

    def storage(self, path: EntityPath) -> Storage:
        self.opened.append(path.key)
        return self.kept[path.key][1]

    def add(self, entity: StoredEntity) -> Storage:
        storage = MemoryEntityStore().add(entity)
        self.kept[entity.path.key] = entity, storage
        return storage

    def update(self, entity: StoredEntity) -> None:
        old, storage = self.kept[entity.path.key]
        self.kept[entity.path.key] = attrs.evolve(entity, rules=old.rules), storage

    def put_rule(self, subscription: EntityPath, rule: Rule) -> None:
        self._set_rules(subscription, rule.name, (rule,))

    def remove_rule(self, subscription: EntityPath, name: str) -> None:
        self._set_rules(subscription, name, ())

    def _set_rules(self, path: EntityPath, name: str, new: tuple[Rule, ...]) -> None:
        old, storage = self.kept[path.key]
        others = tuple(rule for rule in old.rules if rule.name.lower() != name.lower())
        self.kept[path.key] = attrs.evolve(old, rules=(*others, *new)), storage

    def remove(self, path: EntityPath) -> None:
        del self.kept[path.key]

    def check_room(self) -> None:
        if self.is_full:
            raise StorageFull("the disk is full")

    def next_sequence(self) -> int:
        return next(self.numbers)


def pass_time(space: Namespace, seconds: float, watched: bool = False) -> None:
    """Do all work that is due until then, each at its moment, as the timer does."""
    while (due := space.next_due_work()) is not None and due <= seconds:
        space.run_due_work(at(max(due, 0)), lambda _key: watched)
        space.report(at(max(due, 0)))


def create(space: Namespace, name: str, **properties: Any) -> None:
    space.create(EntityPath(name), QueueProperties(**properties), at(0))


def names(space: Namespace, prefix: str = "", skip: int = 0, top: int = 99) -> list[str]:
    return [info.path.name for info in space.page(prefix, skip, top)]


def restarted(space: Namespace, disk: Disk) -> None:
    """Restart the namespace: afterwards no queue was used."""
    space.reload()
    disk.opened.clear()
