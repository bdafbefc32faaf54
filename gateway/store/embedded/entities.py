"""
Queues, topics, subscriptions and rules in SQLite: their stored form, and their rows, which are read
when a namespace opens, and written at each change.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import cattrs

from gateway.domain.clocks.times import MICROSECOND, to_date, to_micros
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import MessageError
from gateway.domain.message import Described, Message, Properties, Value, symbol
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from gateway.domain.topics.topology import Properties as EntityProperties
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.embedded.checksums import fitting, row_checksum
from gateway.store.embedded.counters import LOST, LOST_DRAWS
from gateway.store.embedded.files import StoreDamaged
from gateway.store.embedded.opening import SALVAGE
from gateway.store.engine.entity_store import StoredEntity
from gateway.wire.amqp.message import decode_message, encode_message

_KINDS: Final[Mapping[str, type[EntityProperties]]] = {
    "queue": QueueProperties,
    "topic": TopicProperties,
    "subscription": SubscriptionProperties,
}
_FILTERS: Final[Mapping[str, type[Filter]]] = {
    "true": TrueFilter,
    "false": FalseFilter,
    "correlation": CorrelationFilter,
    "sql": SqlFilter,
}

_ALL: Final = TrueFilter()  # of most subscriptions

_LOCAL_DATE: Final = symbol("pairgate:local-date")

_converter: Final = cattrs.Converter()
_converter.register_unstructure_hook(timedelta, lambda span: span // MICROSECOND)
_converter.register_structure_hook(timedelta, lambda micros, _: timedelta(microseconds=micros))


def kind_of(properties: EntityProperties) -> str:
    return next(name for name, kind in _KINDS.items() if isinstance(properties, kind))


def write_properties(properties: EntityProperties) -> str:
    return json.dumps(_converter.unstructure(properties))


def read_properties(kind: str, text: str) -> EntityProperties:
    return _converter.structure(json.loads(text), _KINDS[kind])


def write_rule(rule: Rule) -> tuple[str, bytes, bytes]:
    """The rule as JSON, and the typed values of its filter and its action."""
    texts = {
        name: value
        for name in _texts_of(type(rule.filter))
        if (value := getattr(rule.filter, name)) is not None
    }
    fields = {
        "name": rule.name,
        "created": None if rule.created is None else to_micros(rule.created),
        "kind": next(kind for kind, cls in _FILTERS.items() if isinstance(rule.filter, cls)),
        "filter": texts,
        "action": None if rule.action is None else rule.action.expression,
    }
    action_values = {} if rule.action is None else rule.action.parameters
    return json.dumps(fields), _write_values(_values_of(rule.filter)), _write_values(action_values)


def read_rule(text: str, filter_values: bytes, action_values: bytes) -> Rule:
    fields = json.loads(text)
    kind, action, created = _FILTERS[fields["kind"]], fields["action"], fields["created"]
    filter_fields: dict[str, Any] = fields["filter"]
    if (values := _values_field(kind)) is not None:
        filter_fields[values] = _read_values(filter_values)
    return Rule(
        name=sys.intern(fields["name"]),  # few names differ
        filter=_ALL if kind is TrueFilter else kind(**filter_fields),
        action=None
        if action is None
        else SqlAction(expression=action, parameters=_read_values(action_values)),
        created=None if created is None else to_date(created),
    )


def _texts_of(kind: type[Filter]) -> list[str]:
    return [field.name for field in attrs.fields(kind) if field.name != _values_field(kind)]


def _values_field(kind: type[Filter]) -> str | None:
    return {CorrelationFilter: "properties", SqlFilter: "parameters"}.get(kind)


def _values_of(rule_filter: Filter) -> Properties:
    field = _values_field(type(rule_filter))
    return {} if field is None else getattr(rule_filter, field)


def _write_values(values: Properties) -> bytes:
    """Encode values of all AMQP types as the application properties of a message without a body."""
    written = {name: _written(value) for name, value in values.items()}
    return encode_message(Message(properties=written))


def _read_values(content: bytes) -> Properties:
    found = decode_message(content).properties
    return {name: _read(value) for name, value in found.items()}


def _written(value: Value) -> Value:
    """
    Wrap a date without a time zone: AMQP has no such type, and clients want the date back
    unchanged.
    """
    if isinstance(value, datetime) and value.tzinfo is None:
        return Described(_LOCAL_DATE, value.isoformat())
    return value


def _read(value: Value) -> Value:
    if isinstance(value, Described) and value.descriptor == _LOCAL_DATE:
        return datetime.fromisoformat(value.value)
    return value


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
            for (number,) in self._connection.execute(LOST_DRAWS):
                self._check(False, f"drawn numbers {number}")
            rules = _OrderedRules(self._load_rules())
            # Entities with equal properties share one value.
            read: dict[tuple[str, str], EntityProperties] = {}
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
