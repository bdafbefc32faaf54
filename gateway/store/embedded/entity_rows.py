"""The rows of entities and rules: read when a namespace opens, and written at each change."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import cattrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import MessageError
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import Properties
from gateway.store.embedded.checksums import fitting, row_checksum
from gateway.store.embedded.counters import LOST
from gateway.store.embedded.entities import (
    kind_of,
    read_properties,
    read_rule,
    write_properties,
    write_rule,
)
from gateway.store.embedded.files import StoreDamaged
from gateway.store.embedded.opening import SALVAGE
from gateway.store.engine.entity_store import StoredEntity

# Includes deleted entities: an entity that only a flipped bit has marked as deleted must not lose
# its messages.
_LOAD: Final = (
    f"SELECT checksum = {fitting('queue')}, key, id, name, kind, properties, created, updated,"
    " version FROM queue ORDER BY id"
)
_LOAD_RULES: Final = (
    f"SELECT checksum = {fitting('rule')}, queue, key, rule, filter_values, action_values FROM rule"
    " ORDER BY queue, key"
)
# A number is never used again, as with AUTOINCREMENT.
_NEXT: Final = (
    "SELECT 1 + max(coalesce((SELECT max(id) FROM queue), 0),"
    " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'queue'), 0))"
)
_NUMBER: Final = "SELECT id FROM queue WHERE key = ?"
_PUT: Final = (
    "INSERT INTO queue (id, key, name, kind, properties, created, updated, version, checksum)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET properties = excluded.properties, updated = excluded.updated,"
    " version = excluded.version, checksum = excluded.checksum"
)
_REMOVE: Final = (
    "UPDATE queue SET key = NULL, checksum ="
    " row_checksum(id, NULL, name, kind, properties, created, updated, version) WHERE key = ?"
)
_PUT_RULE: Final = (
    "INSERT OR REPLACE INTO rule (queue, key, rule, filter_values, action_values, checksum)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_REMOVE_RULE: Final = "DELETE FROM rule WHERE queue = ? AND key = ?"
_NONSENSE: Final = (ValueError, LookupError, MessageError, cattrs.BaseValidationError)


@attrs.define(eq=False)
class EntityRows:
    """The entities of a whole store. Runs inside the caller's transaction."""

    _path: Path
    _connection: apsw.Connection

    def load(self) -> Iterator[tuple[int, StoredEntity]]:
        """
        Yield every entity that isn't deleted, with the number under which its messages are stored.

        Raises:
            StoreDamaged: the checksum of a row is wrong, or its content is invalid.
        """
        try:
            for (name,) in self._connection.execute(LOST):
                self._check(False, f"counter of {name!r}")
            rules = _OrderedRules(self._load_rules())
            # Entities with equal properties share one value.
            read: dict[tuple[str, str], Properties] = {}
            # Row by row: all rows at once would take more memory than the entities made of them.
            found: Iterable[Any] = self._connection.execute(_LOAD)
            for sound, key, number, name, kind, text, created, updated, version in found:
                self._check(sound, f"entity {name!r}")
                if key is None:
                    continue
                properties = read.get((kind, text))
                if properties is None:
                    properties = read[kind, text] = read_properties(kind, text)
                yield (
                    number,
                    StoredEntity(
                        path=EntityPath(name),
                        properties=properties,
                        created=created,
                        # One object for equal dates.
                        updated=created if updated == created else updated,
                        version=version,
                        rules=rules.of(number),
                    ),
                )
            rules.skip()
        except _NONSENSE as error:
            raise StoreDamaged(f"{self._path}: an entity can't be read: {error!r}") from error

    def add(self, entity: StoredEntity) -> int:
        """Store a new entity; return the number for its messages."""
        number: int = self._connection.execute(_NEXT).get
        self._put(number, entity)
        return number

    def update(self, entity: StoredEntity) -> None:
        self._put(self.number(entity.path), entity)

    def remove(self, path: EntityPath) -> None:
        """Mark an entity as deleted."""
        self._connection.execute(_REMOVE, (path.key,))

    def put_rule(self, subscription: EntityPath, rule: Rule) -> None:
        values = (self.number(subscription), rule.name.lower(), *write_rule(rule))
        self._connection.execute(_PUT_RULE, (*values, row_checksum(*values)))

    def remove_rule(self, subscription: EntityPath, name: str) -> None:
        self._connection.execute(_REMOVE_RULE, (self.number(subscription), name.lower()))

    def _load_rules(self) -> Iterator[tuple[int, Rule]]:
        for sound, number, key, *rule in self._connection.execute(_LOAD_RULES):
            self._check(sound, f"rule {key!r}")
            yield number, read_rule(*rule)

    def _check(self, sound: int, what: str) -> None:
        if not sound:
            raise StoreDamaged(f"{self._path}: the row of the {what} is damaged; {SALVAGE}")

    def number(self, path: EntityPath) -> int:
        """The number under which the messages of an existing entity are stored."""
        number: int = self._connection.execute(_NUMBER, (path.key,)).get
        return number

    def _put(self, number: int, entity: StoredEntity) -> None:
        values = (
            number,
            entity.path.key,
            entity.path.name,
            kind_of(entity.properties),
            write_properties(entity.properties),
            entity.created,
            entity.updated,
            entity.version,
        )
        self._connection.execute(_PUT, (*values, row_checksum(*values)))


@attrs.define(eq=False)
class _OrderedRules:
    """
    Rules with the numbers of their subscriptions, in the order of the numbers, read separately.
    """

    _rules: Iterator[tuple[int, Rule]]
    _next: tuple[int, Rule] | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = next(self._rules, None)

    def of(self, number: int) -> tuple[Rule, ...]:
        """The rules of that subscription. Each call has a higher number than the one before."""
        found = []
        while self._next is not None and self._next[0] <= number:
            if self._next[0] == number:  # a lower number is that of a deleted subscription
                found.append(self._next[1])
            self._next = next(self._rules, None)
        return tuple(found)

    def skip(self) -> None:
        """Read the rules that are left."""
        for _ in self._rules:
            pass
