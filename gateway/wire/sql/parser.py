"""
The SQL of Service Bus's rules, read once into a tree ("Subscription Rule SQL Filter Syntax" and
"Subscription Rule SQL Action Syntax" of Microsoft's documentation).

    condition   := conjunction (OR conjunction)*
    conjunction := negation (AND negation)*
    negation    := NOT negation | test
    test        := sum [= <> != < <= > >=] sum
                 | sum [NOT] IN ( sum, ... ) | sum [NOT] LIKE sum [ESCAPE sum]
                 | property IS [NOT] NULL | function IS [NOT] NULL
                 | EXISTS ( property ) | ( condition )
    sum         := product ([+ -] product)*
    product     := sign ([* / %] sign)*
    sign        := [+ -] sign | constant | @parameter | property | function | ( sum )
    function    := property ( sum ) | p ( sum ) | newid ( )
    property    := [ (sys | user) . ] name

Both kinds of parentheses look alike from the left, so the same functions read both, and each
operator then checks whether its operand is a condition or a value.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from gateway.domain.topics.filters import check_expression
from gateway.domain.topics.property_values import plain
from gateway.wire.sql.operators import compile_like
from gateway.wire.sql.tokens import Cursor, Sort, refusal, tokenize
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
    Remove,
    RuleAction,
    Scope,
    Set,
    Sign,
)

MAX_STATEMENTS: Final = 32  # of an action; Service Bus's limit
_FILTER: Final = "SQL filter"
_ACTION: Final = "SQL action"
_COMPARISONS: Final = ("=", "<>", "!=", "<", "<=", ">", ">=")
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_FUNCTIONS: Final = ("newid", "p", "property")
_SCOPES: Final = {scope.value: scope for scope in Scope}
# An action can't change this date: it has passed when the rule matches.
_FIXED: Final = frozenset({"scheduledenqueuetimeutc"})
_SYSTEM: Final = frozenset(name.lower() for name in SYSTEM_PROPERTIES)

_Node = Condition | Expression


def parse_filter(expression: str, parameters: Mapping[str, Any]) -> Condition:
    """
    Parse a filter. Parameters, named with or without their @, become constants of the tree.

    Raises:
        InvalidRequest: the text has the position and what is expected there.
    """
    parser = _parser(_FILTER, expression, parameters)
    condition = parser.condition()
    if parser.cursor.token.sort is not Sort.END:
        raise parser.cursor.unexpected("AND, OR or the end")
    return condition


def parse_action(expression: str, parameters: Mapping[str, Any]) -> RuleAction:
    """
    Parse an action: `SET property = expression` and `REMOVE property`, 1 to 32 of them.

    Raises:
        InvalidRequest: the text has the position and what is expected there.
    """
    parser = _parser(_ACTION, expression, parameters)
    statements = [parser.statement()]
    while parser.cursor.token.sort is not Sort.END:
        if len(statements) == MAX_STATEMENTS:
            raise parser.cursor.unexpected(f"up to {MAX_STATEMENTS} statements")
        statements.append(parser.statement())
    return RuleAction(tuple(statements))


def _parser(what: str, expression: str, parameters: Mapping[str, Any]) -> "_Parser":
    check_expression(what, expression)
    named = {name.removeprefix("@").lower(): plain(value) for name, value in parameters.items()}
    return _Parser(Cursor(what, tokenize(what, expression)), named)


@attrs.define(eq=False)
class _Parser:
    cursor: Cursor
    _parameters: Mapping[str, Any]  # without their @, in lower case

    def condition(self) -> Condition:
        return self._condition_from(self._disjunction)

    def statement(self) -> Set | Remove:
        token = self.cursor.token
        verb = token.value.upper() if token.sort is Sort.NAME else None
        if verb not in {"SET", "REMOVE"}:
            raise self.cursor.unexpected("SET or REMOVE")
        self.cursor.advance()
        position, target = self.cursor.position, self._property()
        if target.scope is Scope.SYSTEM and target.name.lower() in _FIXED:
            changed = "a property that an action can change"
            raise refusal(self.cursor.what, position, changed, f"sys.{target.name}")
        statement: Set | Remove = Remove(target)
        if verb == "SET":
            self.cursor.expect(Sort.SYMBOL, "=")
            statement = Set(target, self._value())
        self.cursor.accept(Sort.SYMBOL, ";", ",")
        return statement

    # The parsed node as a condition, or as a value.

    def _condition_from(self, parse: Callable[[], _Node]) -> Condition:
        position = self.cursor.position
        return self._as_condition(parse(), position)

    def _value_from(self, parse: Callable[[], _Node]) -> Expression:
        position = self.cursor.position
        return self._as_value(parse(), position)

    def _as_condition(self, node: _Node, position: int) -> Condition:
        if not isinstance(node, Condition):
            raise refusal(self.cursor.what, position, "a condition", "a value")
        return node

    def _as_value(self, node: _Node, position: int) -> Expression:
        if not isinstance(node, Expression):
            raise refusal(self.cursor.what, position, "a value", "a condition")
        return node

    # Conditions

    def _disjunction(self) -> _Node:
        return self._chain("OR", Or, self._conjunction)

    def _conjunction(self) -> _Node:
        return self._chain("AND", And, self._negation)

    def _chain(
        self, keyword: str, node: type[Or] | type[And], operand: Callable[[], _Node]
    ) -> _Node:
        position = self.cursor.position
        first = operand()
        if not self.cursor.sees(Sort.KEYWORD, keyword):
            return first
        operands = [self._as_condition(first, position)]
        while self.cursor.accept(Sort.KEYWORD, keyword):
            operands.append(self._condition_from(operand))
        return node(tuple(operands))

    def _negation(self) -> _Node:
        if self.cursor.accept(Sort.KEYWORD, "NOT"):
            return Not(self._condition_from(lambda: self.cursor.nested(self._negation)))
        if self.cursor.accept(Sort.KEYWORD, "EXISTS"):
            self.cursor.expect(Sort.SYMBOL, "(")
            exists = Exists(self._property())
            self.cursor.expect(Sort.SYMBOL, ")")
            return exists
        return self._test()

    def _test(self) -> _Node:
        position = self.cursor.position
        left = self._sum()
        if self.cursor.sees(Sort.SYMBOL, *_COMPARISONS):
            operator = self.cursor.advance().value
            value = self._as_value(left, position)
            return Comparison("<>" if operator == "!=" else operator, value, self._value())
        if self.cursor.accept(Sort.KEYWORD, "IS"):
            return self._is_null(left, position)
        if self.cursor.sees(Sort.KEYWORD, "NOT", "IN", "LIKE"):
            return self._in_or_like(self._as_value(left, position))
        return left

    def _is_null(self, left: _Node, position: int) -> Condition:
        if not isinstance(left, Nullable):
            raise refusal(self.cursor.what, position, "a property before IS", "something else")
        negated = self.cursor.accept(Sort.KEYWORD, "NOT")
        self.cursor.expect(Sort.KEYWORD, "NULL")
        return Not(IsNull(left)) if negated else IsNull(left)

    def _in_or_like(self, left: Expression) -> Condition:
        negated = self.cursor.accept(Sort.KEYWORD, "NOT")
        if self.cursor.accept(Sort.KEYWORD, "IN"):
            test: Condition = In(left, self._choices())
        elif self.cursor.accept(Sort.KEYWORD, "LIKE"):
            test = self._like(left)
        else:
            raise self.cursor.unexpected("IN or LIKE")
        return Not(test) if negated else test

    def _choices(self) -> tuple[Expression, ...]:
        self.cursor.expect(Sort.SYMBOL, "(")
        choices = [self._value()]
        while self.cursor.accept(Sort.SYMBOL, ","):
            choices.append(self._value())
        self.cursor.expect(Sort.SYMBOL, ")")
        return tuple(choices)

    def _like(self, value: Expression) -> Like:
        token = self.cursor.token
        pattern = self._text()
        escape = self._text() if self.cursor.accept(Sort.KEYWORD, "ESCAPE") else None
        try:
            compile_like(_constant(pattern) or "", _constant(escape))
        except ValueError as error:
            raise refusal(self.cursor.what, token.position, str(error), token) from error
        return Like(value, pattern, escape)

    # Values

    def _value(self) -> Expression:
        return self._value_from(self._sum)

    def _text(self) -> Expression:
        """An operand that may be text: LIKE and property() accept no other values."""
        token = self.cursor.token
        value = self._value()
        if not isinstance(_constant(value), str | None):
            raise refusal(self.cursor.what, token.position, "text", token)
        return value

    def _sum(self) -> _Node:
        return self._arithmetic(("+", "-"), self._product)

    def _product(self) -> _Node:
        return self._arithmetic(("*", "/", "%"), self._sign)

    def _arithmetic(self, operators: tuple[str, ...], operand: Callable[[], _Node]) -> _Node:
        position = self.cursor.position
        first = operand()
        if not self.cursor.sees(Sort.SYMBOL, *operators):
            return first
        steps: list[tuple[str, Expression]] = []
        while self.cursor.sees(Sort.SYMBOL, *operators):
            operator = self.cursor.advance().value
            steps.append((operator, self._value_from(operand)))
        return Arithmetic(self._as_value(first, position), tuple(steps))

    def _sign(self) -> _Node:
        if not self.cursor.sees(Sort.SYMBOL, "+", "-"):
            return self._primary()
        operator = self.cursor.advance().value
        return Sign(operator, self._value_from(lambda: self.cursor.nested(self._sign)))

    def _primary(self) -> _Node:
        token = self.cursor.token
        if token.sort is Sort.CONSTANT:
            return Constant(self.cursor.advance().value)
        if token.sort is Sort.KEYWORD and token.value in _CONSTANTS:
            return Constant(_CONSTANTS[self.cursor.advance().value])
        if token.sort is Sort.PARAMETER:
            return self._parameter()
        if self.cursor.sees_call():
            return self._function()
        if token.sort is Sort.NAME:
            return self._property()
        if self.cursor.accept(Sort.SYMBOL, "("):
            node = self.cursor.nested(self._disjunction)
            self.cursor.expect(Sort.SYMBOL, ")")
            return node
        raise self.cursor.unexpected("a value")

    def _parameter(self) -> Constant:
        name = self.cursor.token.value.removeprefix("@").lower()
        if name not in self._parameters:
            raise self.cursor.unexpected("a parameter that has a value")
        self.cursor.advance()
        return Constant(self._parameters[name])

    def _function(self) -> Expression:
        name = self.cursor.token.value.lower()
        if name not in _FUNCTIONS:
            raise self.cursor.unexpected(f"the function {' or '.join(_FUNCTIONS)}")
        self.cursor.advance()
        self.cursor.expect(Sort.SYMBOL, "(")
        function = NewId() if name == "newid" else Lookup(self.cursor.nested(self._text))
        self.cursor.expect(Sort.SYMBOL, ")")
        return function

    def _property(self) -> Property:
        position, first = self.cursor.position, self._name()
        if not self.cursor.accept(Sort.SYMBOL, "."):
            return Property(Scope.USER, first)
        scope = _SCOPES.get(first.lower())
        if scope is None:
            raise refusal(self.cursor.what, position, "sys or user before '.'", repr(first))
        position, second = self.cursor.position, self._name()
        if scope is Scope.SYSTEM and second.lower() not in _SYSTEM:
            known = ", ".join(SYSTEM_PROPERTIES)
            raise refusal(self.cursor.what, position, f"one of {known}", repr(second))
        return Property(scope, second)

    def _name(self) -> str:
        if self.cursor.token.sort is not Sort.NAME:
            raise self.cursor.unexpected("the name of a property")
        return str(self.cursor.advance().value)


def _constant(value: Expression | None) -> Any:
    return value.value if isinstance(value, Constant) else None
