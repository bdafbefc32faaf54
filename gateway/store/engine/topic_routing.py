"""Decides which subscriptions of a topic get a copy of a message, and changes copies by actions."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from gateway.domain.clocks.times import Now, later
from gateway.domain.errors import BrokerError, InvalidRequest, MessageError
from gateway.domain.message import MAX_REASON_LENGTH, DeadLetter, Message, derive_message
from gateway.domain.texts import check_session_id
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
    matches,
)
from gateway.domain.topics.property_values import MOST_STEPS_OF_ALL, MessageReader, id_text
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.journal import Journal, put_entry
from gateway.store.engine.queue_content import Copy, check_changed
from gateway.store.engine.records import Row

if TYPE_CHECKING:
    from gateway.store.engine.queue import Queue

Test = Callable[[MessageReader], bool]
Change = Callable[[Message], Message]
CompileSql = Callable[[SqlFilter], Test]
CompileAction = Callable[[SqlAction], Change]

RULE_NAME: Final = "RuleName"  # the property of a copy that names the rule whose action changed it
ACTION_FAILED: Final = "RuleActionFailed"  # the reason of a dead letter

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
class RoutedSubscription:
    """A subscription: its queue, and its rules, also compiled, by the key of the rule's name."""

    name: str
    properties: SubscriptionProperties
    queue: "Queue"
    rules: dict[str, Rule] = attrs.field(factory=dict)
    compiled: dict[str, "Compiled"] = attrs.field(factory=dict)


Compiled = tuple[Test, Change | None]
_Entry = tuple[RoutedSubscription, Rule, Test, Change | None]


@attrs.define
class _RuleIndex:
    """
    All rules of a topic, arranged so that few rules are tested in vain for a message.

    A correlation filter is indexed by one field that it names and that field's value.
    """

    always: list[_Entry] = attrs.field(factory=list)
    by_field: dict[str, dict[str, list[_Entry]]] = attrs.field(factory=dict)
    others: list[_Entry] = attrs.field(factory=list)
    has_actions: bool = False

    def put(self, entry: _Entry) -> None:
        rule_filter = entry[1].filter
        self.has_actions = self.has_actions or entry[3] is not None
        if isinstance(rule_filter, TrueFilter):
            self.always.append(entry)
        elif isinstance(rule_filter, CorrelationFilter) and (field := _telling(rule_filter)):
            values = self.by_field.setdefault(field, defaultdict(list))
            values[getattr(rule_filter, field)].append(entry)
        elif not isinstance(rule_filter, FalseFilter):
            self.others.append(entry)

    @property
    def needs_message(self) -> bool:
        return bool(self.by_field or self.others or self.has_actions)

    def candidates(self, message: Message) -> Iterator[_Entry]:
        for field, values in self.by_field.items():
            yield from values.get(_FIELDS[field](message) or "", ())
        yield from self.others


@attrs.frozen(eq=False)
class Failed:
    """`Target` of a copy that an action couldn't change: the dead letters of its subscription."""

    queue: "Queue"
    why: DeadLetter

    def arrive(self, row: Row, hops: int, now: Now) -> None:
        """As `Target.arrive`."""
        self.queue.arrive_dead(row, self.why, hops, now)


@attrs.define(eq=False)
class TopicRouting:
    """
    `Onward` of a topic: one copy for each subscription with a rule that matches the message and has
    no action, and one copy more for each matching rule with an action, changed by that action.
    """

    _packing: Packing
    _compile_sql: CompileSql
    _compile_action: CompileAction
    properties: TopicProperties
    journal: Journal = attrs.field(factory=Journal)
    to_sender: bool = attrs.field(default=True, init=False)
    subscriptions: dict[str, RoutedSubscription] = attrs.field(factory=dict)  # by key
    rules: int = 0
    sql_rules: int = 0
    sql_length: int = 0  # characters of all SQL expressions
    correlation_rules: int = 0
    _index: _RuleIndex | None = None

    def add(self, subscription: RoutedSubscription, rules: Sequence[Rule]) -> None:
        """Add a subscription with rules that were checked already."""
        self.journal.record(self.subscriptions.pop, subscription.name.lower())
        self.subscriptions[subscription.name.lower()] = subscription
        for rule in rules:
            self.put_rule(subscription, rule)

    def drop(self, name: str) -> None:
        """Remove an existing subscription."""
        subscription = self.subscriptions[name.lower()]
        self.journal.record(self.subscriptions.__setitem__, name.lower(), subscription)
        del self.subscriptions[name.lower()]
        for rule in list(subscription.rules.values()):
            self.drop_rule(subscription, rule.name)

    def put_rule(
        self, subscription: RoutedSubscription, rule: Rule, compiled: Compiled | None = None
    ) -> None:
        """Add or replace a rule that was checked already, and perhaps `compiled`."""
        self.drop_rule(subscription, rule.name)
        self.journal.record(_put_back, subscription, rule.name.lower(), None)
        subscription.rules[rule.name.lower()] = rule
        if compiled is not None:
            subscription.compiled[rule.name.lower()] = compiled
        self._count(rule, 1)

    def drop_rule(self, subscription: RoutedSubscription, name: str) -> None:
        """Remove a rule, if it exists."""
        rule = subscription.rules.get(name.lower())
        if rule is not None:
            self.journal.record(_put_back, subscription, name.lower(), rule)
            del subscription.rules[name.lower()]
            subscription.compiled.pop(name.lower(), None)
            self._count(rule, -1)

    def _count(self, rule: Rule, change: int) -> None:
        self.journal.keep(self)
        self._index = None
        self.rules += change
        self.sql_rules += change * has_sql(rule)
        self.sql_length += change * sql_length(rule)
        self.correlation_rules += change * isinstance(rule.filter, CorrelationFilter)

    def compiled(self, rule: Rule) -> Compiled:
        """
        Return the filter and the action as functions; None: the rule has no action.

        Raises:
            InvalidRequest: a SQL expression can't be parsed.
        """
        action = None if rule.action is None else self._compile_action(rule.action)
        if isinstance(rule.filter, SqlFilter):
            return self._compile_sql(rule.filter), action
        simple = rule.filter
        return lambda subject: matches(simple, subject), action

    def copies(self, row: Row, hops: int, now: Now) -> Sequence[Copy]:
        """
        As `Onward.copies`. A copy whose action fails is for the dead letters of its subscription,
        or dropped if the subscription keeps no such dead letters.

        Raises:
            InvalidRequest: the message can't be read, or the rules take too many steps on it, or a
                stored rule can't be parsed.
            MessageTooLarge: the changed copies together are too large.
        """
        if self._index is None:
            self._index = self._build()
        message = self._read(row) if self._index.needs_message else None
        found, changing = _matching(self._index, message)
        copies: list[Copy] = [(subscription.queue, row) for subscription in found.values()]
        size = 0
        for entry in changing:
            copy = self._changed(entry, message, row, now)
            if copy is not None:
                copies.append(copy)
                size += 0 if copy[1] is row else copy[1].size
                check_changed(size)
        return copies

    def _changed(self, entry: _Entry, message: Message | None, row: Row, now: Now) -> Copy | None:
        subscription, rule, _, change = entry
        assert change is not None, "the rule has an action"
        assert message is not None, "an index with actions needs the message"
        queue = subscription.queue
        try:
            named = {**message.properties, RULE_NAME: rule.name}
            changed = change(derive_message(message, properties=named))
            content, size = self._packing.pack(changed)
            queue.enqueue.check_size(size)
            if queue.properties.requires_session and changed.session_id is not None:
                check_session_id(changed.session_id)
        except (BrokerError, MessageError) as error:
            if not subscription.properties.dead_lettering_on_filter_error:
                return None
            text = f"rule {rule.name!r}: {error}"[:MAX_REASON_LENGTH]
            return Failed(queue, DeadLetter(reason=ACTION_FAILED, description=text)), row
        expires = row.expires
        if changed.time_to_live != message.time_to_live:
            lives = (changed.time_to_live, self.properties.default_time_to_live)
            life = min((each for each in lives if each is not None), default=None)
            expires = None if life is None else later(now.own_latest, life)
        return queue, attrs.evolve(
            row, content=content, size=size, session=changed.session_id, expires=expires
        )

    def free_room(self, now: Now) -> None:
        """As `Onward.free_room`."""
        for subscription in self.subscriptions.values():
            subscription.queue.expire(now)

    def _build(self) -> _RuleIndex:
        index = _RuleIndex()
        for subscription in self.subscriptions.values():
            for key, rule in subscription.rules.items():
                if key not in subscription.compiled:
                    subscription.compiled[key] = self._compiled_stored(rule)
                index.put((subscription, rule, *subscription.compiled[key]))
        return index

    def _compiled_stored(self, rule: Rule) -> Compiled:
        """
        As `compiled`. An action that an earlier version stored without parsing it may be invalid:
        it then fails on each message, instead of stopping the whole topic.
        """
        try:
            return self.compiled(rule)
        except InvalidRequest as error:
            if rule.action is None:
                raise
            text = str(error)

        def fails(_message: Message) -> Message:
            raise InvalidRequest(text)

        return self.compiled(attrs.evolve(rule, action=None))[0], fails

    def _read(self, row: Row) -> Message:
        try:
            return self._packing.unpack(row.content)
        except MessageError as error:
            raise InvalidRequest(str(error)) from error


def _put_back(subscription: RoutedSubscription, key: str, rule: Rule | None) -> None:
    put_entry(subscription.rules, key, rule)
    subscription.compiled.pop(key, None)


def _telling(rule_filter: CorrelationFilter) -> str | None:
    return next((field for field in _FIELDS if getattr(rule_filter, field)), None)


def has_sql(rule: Rule | None) -> bool:
    """True if the rule counts as one with SQL."""
    return rule is not None and (isinstance(rule.filter, SqlFilter) or rule.action is not None)


def sql_length(rule: Rule | None) -> int:
    """The characters of the rule's SQL expressions."""
    if rule is None:
        return 0
    action = 0 if rule.action is None else len(rule.action.expression)
    return action + (len(rule.filter.expression) if isinstance(rule.filter, SqlFilter) else 0)


def _matching(
    index: _RuleIndex, message: Message | None
) -> tuple[dict[int, RoutedSubscription], list[_Entry]]:
    """
    The subscriptions that get the message as it is, by identity, and the entries whose actions
    change a copy of it.

    Raises:
        InvalidRequest: the filters take too many steps. A filter without a result isn't taken for
            one that doesn't match: its subscription would miss the message, and nobody would know.
    """
    found, changing = dict[int, RoutedSubscription](), list[_Entry]()
    for entry in index.always:
        _sort(entry, found, changing)
    if message is None:
        return found, changing
    subject = MessageReader(message)
    for entry in index.candidates(message):
        if entry[2](subject):
            _sort(entry, found, changing)
    if subject.is_exhausted:
        raise InvalidRequest(
            f"the LIKEs of all rules of the topic take more than {MOST_STEPS_OF_ALL} steps on this"
            " message: shorten its texts, or make the patterns simpler"
        )
    return found, changing


def _sort(entry: _Entry, found: dict[int, RoutedSubscription], changing: list[_Entry]) -> None:
    if entry[3] is None:
        found[id(entry[0])] = entry[0]
    else:
        changing.append(entry)
