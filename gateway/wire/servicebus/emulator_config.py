"""
The `Config.json` of Service Bus's official emulator: the entities that a namespace is to have.

    {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns",
      "Queues": [{"Name": "queue.1", "Properties": {"LockDuration": "PT1M", ...}}],
      "Topics": [{"Name": "topic.1", "Properties": {...}, "Subscriptions": [
        {"Name": "s.1", "Properties": {...}, "Rules": [
          {"Name": "r", "Properties": {"FilterType": "Sql",
            "SqlFilter": {"SqlExpression": "a = 1"}, "Action": {"SqlExpression": "SET b = 2"}}},
          {"Name": "q", "Properties": {"FilterType": "Correlation",
            "CorrelationFilter": {"Label": "x", "Properties": {"a": "b"}}}}]}]}]}],
      "Logging": {"Type": "File"}}}

Properties have the names and texts of the management's XML, so all of those are known here. A
property that is left out has Service Bus's default, not the emulator's, whose messages live for an
hour. Comments, and a comma after the last item, are skipped as .NET's reader of configurations
skips them: the file that comes with the emulator has some.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import attrs

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Value
from gateway.domain.plan import Plan, PlannedQueue, PlannedSubscription, PlannedTopic
from gateway.domain.topics.filters import (
    CorrelationFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    check_rule,
)
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.wire.http import strict_json
from gateway.wire.servicebus import (
    queue_description,
    rule_description,
    subscription_description,
    topic_description,
)
from gateway.wire.servicebus.atom import check_subscription_name
from gateway.wire.servicebus.description import PropertyElement, Table, parsed, with_local_targets
from gateway.wire.servicebus.management_values import flag_text
from gateway.wire.sql.filter import compile_filter
from gateway.wire.sql.parser import parse_action

# Bytes: a thousand queues with all properties have less than one MiB.
MAX_BYTES: Final = 16 * 1024 * 1024
_FILE: Final = "file"
_CORRELATION_FIELDS: Final = dict(rule_description.CORRELATION)
# A text, or else a comment; a text, or else a comma after the last item. The comment that isn't
# closed ends with the file, so that none is searched twice.
_TEXT: Final = rb'("(?:[^"\\\n]|\\.)*")'
_COMMENT: Final = re.compile(_TEXT + rb"|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAST_COMMA: Final = re.compile(_TEXT + rb"|,(?=\s*[}\]])")
_SEEN: Final = re.compile(rb"[^\n]")
T = TypeVar("T")


def parse_emulator_config(body: bytes) -> tuple[Plan, list[str]]:
    """
    Read the entities of the file's only namespace.

    The list has one line for each error, which begins with its path in the file; a plan with errors
    is incomplete.
    """
    reader = _ConfigReader()
    plan = Plan()
    with reader.at(""):
        root = strict_json.load(_plain_json(body), _FILE, max_bytes=MAX_BYTES)
        plan = reader.plan(root)
    return plan, reader.problems


def _plain_json(body: bytes) -> bytes:
    """
    Blanks in place of comments and last commas: what an error says of its place stays right.
    """
    for pattern in (_COMMENT, _LAST_COMMA):
        body = pattern.sub(lambda found: found[1] or _SEEN.sub(b" ", found[0]), body)
    return body


@attrs.define
class _ConfigReader:
    """Tracks the path in the file, and the errors so far."""

    problems: list[str] = attrs.field(factory=list)
    _path: list[str] = attrs.field(factory=list)

    @contextmanager
    def at(self, step: str) -> Iterator[None]:
        """Records an error raised inside, and continues after it."""
        self._path.append(step)
        try:
            yield
        except InvalidRequest as error:
            path = "".join(self._path).removeprefix(".")
            self.problems.append(f"{path}: {error}" if path else str(error))
        finally:
            self._path.pop()

    def plan(self, root: Any) -> Plan:
        plans: list[Plan] = []
        config = self._table(root, {"UserConfig"}).get("UserConfig")
        with self.at(".UserConfig"):
            spaces = self._table(config, {"Namespaces", "Logging"}).get("Namespaces")
            with self.at(".Namespaces"):
                if not isinstance(spaces, list) or len(spaces) != 1:
                    raise InvalidRequest("a list of one namespace expected")
                plans += self._each(spaces, self._namespace)
        return plans[0] if plans else Plan()

    def _namespace(self, item: Any) -> Plan:
        space = self._table(item, {"Name", "Queues", "Topics"})
        names: set[str] = set()

        def new_path(table: dict[str, Any]) -> EntityPath:
            path = EntityPath.parse(_name(table))
            self._must_be_new(path.key, names)
            return path

        def queue(item: Any) -> PlannedQueue:
            table = self._table(item, {"Name", "Properties"})
            values = self._properties(table, queue_description.TABLE)
            return PlannedQueue(path=new_path(table), properties=QueueProperties(**values))

        def topic(item: Any) -> PlannedTopic:
            table = self._table(item, {"Name", "Properties", "Subscriptions"})
            return PlannedTopic(
                path=new_path(table),
                properties=TopicProperties(**self._properties(table, topic_description.TABLE)),
                subscriptions=self._subscriptions(table),
            )

        return Plan(
            queues=self._list(space, "Queues", queue), topics=self._list(space, "Topics", topic)
        )

    def _subscriptions(self, topic: dict[str, Any]) -> tuple[PlannedSubscription, ...]:
        names: set[str] = set()

        def subscription(item: Any) -> PlannedSubscription:
            table = self._table(item, {"Name", "Properties", "Rules"})
            name = check_subscription_name(_name(table))
            self._must_be_new(name.lower(), names)
            values = self._properties(table, subscription_description.TABLE)
            return PlannedSubscription(
                name=name,
                properties=SubscriptionProperties(**values),
                rules=self._rules(table),
            )

        return self._list(topic, "Subscriptions", subscription)

    def _rules(self, subscription: dict[str, Any]) -> tuple[Rule, ...]:
        names: set[str] = set()

        def rule(item: Any) -> Rule:
            table = self._table(item, {"Name", "Properties"})
            name = _name(table)
            self._must_be_new(name.lower(), names)
            rule_filter, action = self._rule_properties(table)
            read = Rule(name=name, filter=rule_filter, action=action)
            check_rule(read)
            if isinstance(rule_filter, SqlFilter):
                compile_filter(rule_filter.expression, rule_filter.parameters)
            if action is not None:
                parse_action(action.expression, action.parameters)
            return read

        return self._list(subscription, "Rules", rule)

    def _rule_properties(self, rule: dict[str, Any]) -> tuple[Filter, SqlAction | None]:
        known = {"FilterType", "SqlFilter", "CorrelationFilter", "Action"}
        table = self._required(rule, "Properties", known)
        action = table.get("Action")
        rule_filter = self._filter(table)
        if action is None:
            return rule_filter, None
        return rule_filter, SqlAction(expression=self._expression(table, "Action"))

    def _filter(self, table: dict[str, Any]) -> Filter:
        match table.get("FilterType"):
            case "Sql":
                return SqlFilter(expression=self._expression(table, "SqlFilter"))
            case "Correlation":
                known = {*_CORRELATION_FIELDS, "Properties"}
                wanted = self._required(table, "CorrelationFilter", known)
                fields = {
                    name: _text(wanted[key]) or None
                    for key, name in _CORRELATION_FIELDS.items()
                    if key in wanted
                }
                properties = strict_json.as_object(wanted.get("Properties", {}), "Properties")
                values = {key: _scalar(key, value) for key, value in properties.items()}
                return CorrelationFilter(**fields, properties=values)
            case other:
                raise InvalidRequest(f"FilterType: Sql or Correlation expected, got {other!r:.60}")

    def _expression(self, table: dict[str, Any], key: str) -> str:
        return _text(self._required(table, key, {"SqlExpression"}).get("SqlExpression"))

    def _required(self, table: dict[str, Any], key: str, known: Iterable[str]) -> dict[str, Any]:
        """An object that the object around it requires."""
        try:
            return self._table(table.get(key), known)
        except InvalidRequest as error:
            raise InvalidRequest(f"{key}: {error}") from error

    def _properties(self, entity: dict[str, Any], table: Table) -> dict[str, Any]:
        fields = {
            item.element: item
            for item in table.items
            if isinstance(item, PropertyElement) and not item.is_fact
        }
        found: dict[str, Any] = {}
        with self.at(".Properties"):
            values = self._table(entity.get("Properties", {}), fields)
            for element, value in values.items():
                with self.at(f".{element}"):
                    field = fields[element]
                    if text := _property_text(value):
                        found[field.name] = parsed("value", field.parse, text)
        return with_local_targets(found, "")

    def _table(self, item: Any, known: Iterable[str]) -> dict[str, Any]:
        """The object; unknown keys are errors."""
        if not isinstance(item, dict):
            raise InvalidRequest(f"an object expected, got {_shown(item)}")
        names = sorted(known)
        for key in item.keys() - set(names):
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            with self.at(f".{key:.60}"):
                raise InvalidRequest(f"unknown key; {hint}")
        return {key: value for key, value in item.items() if key in names}

    def _list(self, table: dict[str, Any], key: str, read: Callable[[Any], T]) -> tuple[T, ...]:
        items = table.get(key, [])
        with self.at(f".{key}"):
            if not isinstance(items, list):
                raise InvalidRequest("a list expected")
            return tuple(self._each(items, read))
        return ()

    def _each(self, items: list[Any], read: Callable[[Any], T]) -> list[T]:
        found: list[T] = []
        for index, item in enumerate(items):
            with self.at(f"[{index}]"):
                found.append(read(item))
        return found

    def _must_be_new(self, name: str, names: set[str]) -> None:
        if name in names:
            raise InvalidRequest(f"Name: {name!r} is given twice")
        names.add(name)


def _name(table: dict[str, Any]) -> str:
    name = table.get("Name")
    if not isinstance(name, str):
        raise InvalidRequest(f"Name: a text expected, got {_shown(name)}")
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"a text expected, got {_shown(value)}")
    return value


def _property_text(value: Any) -> str:
    """A property as XML would have it."""
    match value:
        case bool():
            return flag_text(value)
        case int() | str():
            return str(value)
        case _:
            raise InvalidRequest(f"a text, a number, true or false expected, got {value!r:.60}")


def _scalar(key: str, value: Any) -> Value:
    if not isinstance(value, str | bool | int | float):
        raise InvalidRequest(f"{key:.60}: a text, a number, true or false expected")
    return value


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60}"
