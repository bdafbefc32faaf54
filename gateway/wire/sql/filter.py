"""
SQL filters of subscription rules: a text is compiled once to a function that tests messages.

Logic is three-valued, True, False and None for unknown, as in SQL. A missing property is unknown,
and so is every comparison or computation with it, or with values of incompatible types: such a
message doesn't match; its sender gets no error.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final
from uuid import uuid4

from gateway.domain.message import Message, Value
from gateway.domain.topics.filters import MAX_EXPRESSION_LENGTH
from gateway.domain.topics.property_values import MessageReader, id_text, plain
from gateway.wire.sql.operators import Spend, calculate, compare, compile_like, signed
from gateway.wire.sql.parser import parse_filter
from gateway.wire.sql.tree import (
    SYSTEM_PROPERTIES,
    And,
    Arithmetic,
    Comparison,
    Condition,
    Constant,
    Exists,
    Expression,
    In,
    IsNull,
    Like,
    Lookup,
    NewId,
    Not,
    Nullable,
    Or,
    Property,
    Scope,
    Sign,
)

_IDS: Final = frozenset({"message_id", "correlation_id"})
_FIELDS: Final = {name.lower(): field for name, field in SYSTEM_PROPERTIES.items()}
_ABSENT: Final = object()

_STEPS_TO_COMPILE: Final = 1000  # for each character of a pattern

_Evaluate = Callable[[MessageReader], Any]
_LikeTest = Callable[[str, Spend], bool | None]


def compile_filter(
    expression: str, parameters: Mapping[str, Any]
) -> Callable[[MessageReader], bool]:
    """
    Compile the test whether a message matches. The test never raises, and keeps nothing of the
    message.

    Raises:
        InvalidRequest: the text has the position in the expression and what is expected there.
    """
    evaluate = _compiled(parse_filter(expression, parameters))

    def matches(subject: MessageReader) -> bool:
        subject.begin()
        return evaluate(subject) is True

    return matches


def compile_expression(node: Expression) -> Callable[[MessageReader], Any]:
    """The function that computes the value of an expression: a plain value, None if unknown."""
    return _compiled(node)


def system_field(name: str) -> str:
    """The field of `Message` behind a system property."""
    return _FIELDS[name.lower()]


def _compiled(node: Condition | Expression) -> _Evaluate:
    compiler = _COMPILERS[type(node)]
    return compiler(node)


# Values


def _constant(node: Constant) -> _Evaluate:
    value = node.value
    return lambda subject: value


def _property(node: Property) -> _Evaluate:
    if node.scope is Scope.USER:
        name = node.name
        return lambda subject: plain(subject.get(name))
    raw = _raw_property(node)
    return lambda subject: plain(raw(subject))


def _raw_property(node: Property) -> Callable[[MessageReader], Value]:
    """The property's value as received; _ABSENT if it is missing."""
    name = node.name
    if node.scope is Scope.USER:
        return lambda subject: subject.get(name, _ABSENT)
    field = system_field(name)
    read = attrgetter(field)
    if field in _IDS:
        return lambda subject: _present(id_text(read(subject.message)))
    return lambda subject: _present(read(subject.message))


def _raw(node: Nullable) -> Callable[[MessageReader], Value]:
    """As `_raw_property`, also for a function."""
    if isinstance(node, Property):
        return _raw_property(node)
    if isinstance(node, NewId):
        return _new_id(node)
    name = _compiled(node.name)

    def raw(subject: MessageReader) -> Value:
        computed = name(subject)
        return subject.get(computed, _ABSENT) if isinstance(computed, str) else _ABSENT

    return raw


def _present(value: Value) -> Value:
    return _ABSENT if value is None else value


def _lookup(node: Lookup) -> _Evaluate:
    name = _compiled(node.name)

    def look_up(subject: MessageReader) -> Any:
        computed = name(subject)
        return plain(subject.get(computed)) if isinstance(computed, str) else None

    return look_up


def _sign(node: Sign) -> _Evaluate:
    operand, operator = _compiled(node.operand), node.operator
    return lambda subject: signed(operator, operand(subject))


def _arithmetic(node: Arithmetic) -> _Evaluate:
    first = _compiled(node.first)
    steps = [(calculate(operator), _compiled(operand)) for operator, operand in node.steps]

    def compute(subject: MessageReader) -> Any:
        value = first(subject)
        for step, operand in steps:
            value = step(value, operand(subject))
        return value

    return compute


# Conditions


def _comparison(node: Comparison) -> _Evaluate:
    left, right, compared = _compiled(node.left), _compiled(node.right), compare(node.operator)
    if isinstance(node.right, Constant):  # nearly always: saves a call
        constant = node.right.value
        return lambda subject: compared(left(subject), constant)
    return lambda subject: compared(left(subject), right(subject))


def _is_null(node: IsNull) -> _Evaluate:
    raw = _raw(node.value)

    def is_null(subject: MessageReader) -> bool:
        value = raw(subject)
        return value is None or value is _ABSENT

    return is_null


def _exists(node: Exists) -> _Evaluate:
    raw = _raw_property(node.property)
    return lambda subject: raw(subject) is not _ABSENT


def _in(node: In) -> _Evaluate:
    value, equal = _compiled(node.value), compare("=")
    choices = [_compiled(choice) for choice in node.choices]
    texts = _texts(node.choices)

    def is_in(subject: MessageReader) -> bool | None:
        looked_for, unknown = value(subject), False
        if texts and looked_for.__class__ is str:
            return looked_for in texts
        for choice in choices:
            found = equal(looked_for, choice(subject))
            if found:
                return True
            unknown = unknown or found is None
        return None if unknown else False

    return is_in


def _texts(choices: tuple[Expression, ...]) -> frozenset[str] | None:
    """The choices if all are text, as they nearly always are: a set is fast for any number."""
    texts = [each.value for each in choices if isinstance(each, Constant)]
    only_texts = len(texts) == len(choices) and all(isinstance(each, str) for each in texts)
    return frozenset(texts) if only_texts else None


def _like(node: Like) -> _Evaluate:
    value = _compiled(node.value)
    like = _pattern(node)

    def is_like(subject: MessageReader) -> bool | None:
        text, test = value(subject), like(subject)
        return test(text, subject.spend) if isinstance(text, str) and test is not None else None

    return is_like


def _pattern(node: Like) -> Callable[[MessageReader], _LikeTest | None]:
    """The pattern's test; None: pattern or escape is invalid, or there are no more steps."""
    pattern, escape = _compiled(node.pattern), _compiled(node.escape or Constant(""))

    def read(subject: MessageReader) -> _LikeTest | None:
        text, mark = pattern(subject), escape(subject)
        if not isinstance(text, str) or not isinstance(mark, str):
            return None
        if len(text) > MAX_EXPRESSION_LENGTH:  # of a property: bounds the cost of the test
            return None
        if not subject.spend(len(text) * _STEPS_TO_COMPILE):
            return None
        try:
            return compile_like(text, mark if node.escape else None)
        except ValueError:
            return None

    if isinstance(node.pattern, Constant) and isinstance(node.escape, Constant | None):
        once = read(MessageReader(Message()))
        return lambda subject: once
    return read


def _not(node: Not) -> _Evaluate:
    operand = _compiled(node.operand)

    def negated(subject: MessageReader) -> bool | None:
        truth = operand(subject)
        return None if truth is None else not truth

    return negated


def _and(node: And) -> _Evaluate:
    return _chain(node.operands, decisive=False)


def _or(node: Or) -> _Evaluate:
    return _chain(node.operands, decisive=True)


def _chain(operands: tuple[Condition, ...], *, decisive: bool) -> _Evaluate:
    """A `decisive` operand decides; otherwise an unknown operand makes the result unknown."""
    parts = [_compiled(operand) for operand in operands]

    def evaluate(subject: MessageReader) -> bool | None:
        unknown = False
        for part in parts:
            truth: bool | None = part(subject)
            if truth is decisive:
                return truth
            unknown = unknown or truth is None
        return None if unknown else not decisive

    return evaluate


def _new_id(_node: NewId) -> _Evaluate:
    # Made once for each place in a text: no filter can tell it from one that is new each time.
    # An action that sets a property makes a new one each time (`action.py`).
    value = uuid4()
    return lambda subject: value


_COMPILERS: Final[dict[type, Callable[[Any], _Evaluate]]] = {
    Constant: _constant,
    Property: _property,
    Lookup: _lookup,
    NewId: _new_id,
    Sign: _sign,
    Arithmetic: _arithmetic,
    Comparison: _comparison,
    IsNull: _is_null,
    Exists: _exists,
    In: _in,
    Like: _like,
    Not: _not,
    And: _and,
    Or: _or,
}
