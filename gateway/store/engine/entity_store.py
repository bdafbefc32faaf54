"""Stores the entities of a namespace: in memory, or on disk."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Protocol

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import Properties
from gateway.store.engine.journal import Journal
from gateway.store.engine.records import Storage, Totals


@attrs.frozen(kw_only=True)
class StoredEntity:
    """
    A queue, topic or subscription as the storage has it. The class of `properties` says which.

    Dates are microseconds since 1970. Only a subscription has rules. The first version is the date
    of creation, so that an entity that is created again has none of its former versions.
    """

    path: EntityPath
    properties: Properties
    created: int
    updated: int
    version: int = attrs.field(default=attrs.Factory(attrgetter("created"), takes_self=True))
    rules: tuple[Rule, ...] = ()


class EntityStore(Protocol):
    """
    The entities of one namespace. A change is durable once the batch that it belongs to is.

    The journal undoes what a failed step changed in memory. The storage undoes by itself, with the
    batch, what the step changed on disk.
    """

    @property
    def journal(self) -> Journal: ...

    def load(self) -> Iterable[tuple[StoredEntity, Totals]]:
        """
        Yield everything that is stored when the namespace opens, each topic before its
        subscriptions, with a count of the messages in each entity.
        """
        ...

    def storage(self, path: EntityPath) -> Storage:
        """Return the storage of an entity that `load` has yielded."""
        ...

    def add(self, entity: StoredEntity) -> Storage: ...

    def update(self, entity: StoredEntity) -> None:
        """Store changed properties; rules are left as they are."""
        ...

    def remove(self, path: EntityPath) -> None:
        """
        Remove an entity and its messages; the messages may be deleted later, in the background.
        """
        ...

    def put_rule(self, subscription: EntityPath, rule: Rule) -> None: ...

    def remove_rule(self, subscription: EntityPath, name: str) -> None: ...

    def check_room(self) -> None:
        """
        Check that the storage can grow.

        Raises:
            StorageFull: nothing more can be stored; stored messages can still be settled.
        """
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """
        Enter a scope that undoes on disk what was changed within, and nothing else, if it is left
        by an exception. The journal undoes the changes in memory.
        """
        ...

    def next_sequence(self) -> int:
        """Return a sequence that no message of the namespace ever had."""
        ...
