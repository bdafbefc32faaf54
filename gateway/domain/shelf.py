"""Where a namespace keeps its entities: in memory, or on disk."""

from collections.abc import Iterable
from typing import Protocol

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.rules import Rule
from gateway.domain.stored import Storage
from gateway.domain.topology import Properties


@attrs.frozen(kw_only=True)
class StoredEntity:
    """
    A queue, topic or subscription as the storage knows it; which one its properties tell.

    Dates are microseconds since 1970. Only a subscription has rules.
    """

    path: EntityPath
    properties: Properties
    created: int
    updated: int
    version: int = 0
    rules: tuple[Rule, ...] = ()


class Shelf(Protocol):
    """The entities of one namespace. What a method changes is durable when its batch is."""

    def load(self) -> Iterable[tuple[StoredEntity, Storage]]:
        """Everything that is there when the namespace opens, a topic before its subscriptions."""
        ...

    def add(self, entity: StoredEntity) -> Storage: ...

    def update(self, entity: StoredEntity) -> None:
        """Store other properties, and none of its rules."""
        ...

    def remove(self, path: EntityPath) -> None:
        """Forget an entity and its messages, now or soon."""
        ...

    def put_rule(self, subscription: EntityPath, rule: Rule) -> None: ...

    def remove_rule(self, subscription: EntityPath, name: str) -> None: ...

    def check_room(self) -> None:
        """
        Raises:
            StorageFull: nothing more may come in; what is there can still be settled.
        """
        ...

    def next_sequence(self) -> int:
        """A sequence number that no message had, in the whole namespace, ever."""
        ...
