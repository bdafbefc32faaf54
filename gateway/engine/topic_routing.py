"""Decides which subscriptions of a topic get a copy of a message."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.errors import InvalidRequest, MessageError, NotSupported
from gateway.domain.message import Message
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlFilter,
    TrueFilter,
    matches,
)
from gateway.domain.topics.property_values import id_text
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.engine.journal import Journal, put_entry
from gateway.engine.records import Row

if TYPE_CHECKING:
    from gateway.engine.queue import Queue

Test = Callable[[Message], bool]
CompileSql = Callable[[SqlFilter], Test]

# The fields that a correlation filter may name, the most selective first, and how to read each from
# a message.
_FIELDS: Final[dict[str, Callable[[Message], str | None]]] = {
    "message_id": lambda message: id_text(message.message_id),
    "correlation_id": lambda message: id_text(message.correlation_id),
    "session_id": lambda message: message.session_id,
    "reply_to_session_id": lambda message: message.reply_to_session_id,
    "label": lambda message: message.subject,
    "to": lambda message: message.to,
    "reply_to": lambda message: message.reply_to,
    "content_type": lambda message: message.content_type,
}


@attrs.define(eq=False)
class Subscription:
    """
    One subscription: its queue, and its rules and their compiled filters, by the key of the rule's
    name.
    """

    name: str
    properties: SubscriptionProperties
    queue: "Queue"
    rules: dict[str, Rule] = attrs.field(factory=dict)
    tests: dict[str, Test] = attrs.field(factory=dict)


_Entry = tuple[Subscription, Rule, Test]


@attrs.define
class _Index:
    """
    All rules of a topic, arranged so that few rules are tested in vain for a message.

    A correlation filter is indexed by one field that it names and that field's value.
    """

    always: list[_Entry] = attrs.field(factory=list)
    by_field: dict[str, dict[str, list[_Entry]]] = attrs.field(factory=dict)
    others: list[_Entry] = attrs.field(factory=list)

    def put(self, entry: _Entry) -> None:
        rule_filter = entry[1].filter
        if isinstance(rule_filter, TrueFilter):
            self.always.append(entry)
        elif isinstance(rule_filter, CorrelationFilter) and (field := _telling(rule_filter)):
            values = self.by_field.setdefault(field, defaultdict(list))
            values[getattr(rule_filter, field)].append(entry)
        elif not isinstance(rule_filter, FalseFilter):
            self.others.append(entry)

    @property
    def needs_message(self) -> bool:
        return bool(self.by_field or self.others)

    def candidates(self, message: Message) -> Iterator[_Entry]:
        for field, values in self.by_field.items():
            yield from values.get(_FIELDS[field](message) or "", ())
        yield from self.others


@attrs.define(eq=False)
class TopicRouting:
    """
    `Onward` of a topic: one copy for each subscription with a rule that matches the message.

    Actions of rules are not supported: a message that a rule with an action matches is refused.
    """

    _unpack: Callable[[Any], Message]
    _compile_sql: CompileSql
    properties: TopicProperties
    journal: Journal = attrs.field(factory=Journal)
    to_sender: bool = attrs.field(default=True, init=False)
    subscriptions: dict[str, Subscription] = attrs.field(factory=dict)  # by key
    rules: int = 0
    sql_rules: int = 0
    correlation_rules: int = 0
    _index: _Index | None = None

    def add(self, subscription: Subscription, rules: Sequence[Rule]) -> None:
        """Add a subscription with rules that were checked already."""
        self.journal.note(self.subscriptions.pop, subscription.name.lower())
        self.subscriptions[subscription.name.lower()] = subscription
        for rule in rules:
            self.put_rule(subscription, rule)

    def drop(self, name: str) -> None:
        """Remove an existing subscription."""
        subscription = self.subscriptions[name.lower()]
        self.journal.note(self.subscriptions.__setitem__, name.lower(), subscription)
        del self.subscriptions[name.lower()]
        for rule in list(subscription.rules.values()):
            self.drop_rule(subscription, rule.name)

    def put_rule(self, subscription: Subscription, rule: Rule) -> None:
        """Add or replace a rule that was checked already."""
        self.drop_rule(subscription, rule.name)
        self.journal.note(_put_back, subscription, rule.name.lower(), None)
        subscription.rules[rule.name.lower()] = rule
        self._count(rule, 1)

    def drop_rule(self, subscription: Subscription, name: str) -> None:
        """Remove a rule, if it exists."""
        rule = subscription.rules.get(name.lower())
        if rule is not None:
            self.journal.note(_put_back, subscription, name.lower(), rule)
            del subscription.rules[name.lower()]
            subscription.tests.pop(name.lower(), None)
            self._count(rule, -1)

    def _count(self, rule: Rule, change: int) -> None:
        self.journal.keep(self)
        self._index = None
        self.rules += change
        self.sql_rules += change * isinstance(rule.filter, SqlFilter)
        self.correlation_rules += change * isinstance(rule.filter, CorrelationFilter)

    def compiled(self, rule_filter: Filter) -> Test:
        """
        Return the filter as a function.

        Raises:
            InvalidRequest: the SQL expression can't be parsed.
        """
        if isinstance(rule_filter, SqlFilter):
            return self._compile_sql(rule_filter)
        simple = rule_filter
        return lambda message: matches(simple, message)

    def targets(self, row: Row, hops: int, now: Now) -> "Sequence[Queue]":
        """
        The queues of the subscriptions that get the message.

        Raises:
            NotSupported: a rule that matches the message has an action.
            InvalidRequest: the message can't be read, or a stored rule can't be parsed.
        """
        if self._index is None:
            self._index = self._build()
        found = {id(entry[0]): entry[0] for entry in self._index.always if _has_no_action(entry)}
        if self._index.needs_message:
            message = self._read(row)
            for entry in self._index.candidates(message):
                if entry[2](message) and _has_no_action(entry):
                    found[id(entry[0])] = entry[0]
        return [subscription.queue for subscription in found.values()]

    def _build(self) -> _Index:
        index = _Index()
        for subscription in self.subscriptions.values():
            for key, rule in subscription.rules.items():
                if key not in subscription.tests:
                    subscription.tests[key] = self.compiled(rule.filter)
                index.put((subscription, rule, subscription.tests[key]))
        return index

    def _read(self, row: Row) -> Message:
        try:
            return self._unpack(row.content)
        except MessageError as error:
            raise InvalidRequest(str(error)) from error


def _put_back(subscription: Subscription, key: str, rule: Rule | None) -> None:
    put_entry(subscription.rules, key, rule)
    subscription.tests.pop(key, None)


def _telling(rule_filter: CorrelationFilter) -> str | None:
    return next((field for field in _FIELDS if getattr(rule_filter, field)), None)


def _has_no_action(entry: _Entry) -> bool:
    subscription, rule, _ = entry
    if rule.action is not None:
        raise NotSupported(
            f"subscription {subscription.name!r}, rule {rule.name!r}: actions of rules aren't"
            " supported; remove the action"
        )
    return True
