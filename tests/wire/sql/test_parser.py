import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest
from gateway.wire.sql.parser import MAX_STATEMENTS, parse_action, parse_filter
from gateway.wire.sql.tree import (
    SYSTEM_PROPERTIES,
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    Lookup,
    NewId,
    Not,
    Or,
    Property,
    Remove,
    RuleAction,
    Scope,
    Set,
    Sign,
)

A, B, C = (Property(Scope.USER, name) for name in "abc")
ONE = Constant(1)
A1, B1, C1 = (Comparison("=", each, ONE) for each in (A, B, C))


# A printer, with parentheses wherever one could doubt


def printed(node: Any) -> str:
    match node:
        case Constant(None):
            return "NULL"
        case Constant(bool(value)):
            return str(value).upper()
        case Constant(str(value)):
            return "'" + value.replace("'", "''") + "'"
        case Constant(float(value)):
            return repr(value) if "." in repr(value) or "e" in repr(value) else f"{value!r}.0"
        case Constant(value):
            return str(value)
        case Property(scope, name):
            return f"{scope.value}.[{name.replace(']', ']]')}]"
        case Lookup(name):
            return f"property({printed(name)})"
        case NewId():
            return "newid()"
        case Sign(operator, operand):
            return f"({operator} {printed(operand)})"
        case Arithmetic(first, steps):
            return "(" + printed(first) + "".join(f" {o} {printed(v)}" for o, v in steps) + ")"
        case _:
            return printed_condition(node)


def printed_condition(node: Any) -> str:
    match node:
        case Comparison(operator, left, right):
            return f"({printed(left)} {operator} {printed(right)})"
        case IsNull(each):
            return f"({printed(each)} IS NULL)"
        case Exists(each):
            return f"EXISTS({printed(each)})"
        case In(value, choices):
            return f"({printed(value)} IN ({', '.join(map(printed, choices))}))"
        case Like(value, pattern, escape):
            tail = "" if escape is None else f" ESCAPE {printed(escape)}"
            return f"({printed(value)} LIKE {printed(pattern)}{tail})"
        case Not(operand):
            return f"(NOT {printed(operand)})"
        case And(operands):
            return "(" + " AND ".join(map(printed, operands)) + ")"
        case Or(operands):
            return "(" + " OR ".join(map(printed, operands)) + ")"
    raise AssertionError(node)


constants = st.builds(
    Constant,
    st.none()
    | st.booleans()
    | st.integers(0, 2**63 - 1)
    | st.floats(0, allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
)
user_properties = st.builds(Property, st.just(Scope.USER), st.text(min_size=1, max_size=6))
system_properties = st.builds(
    Property, st.just(Scope.SYSTEM), st.sampled_from(sorted(SYSTEM_PROPERTIES))
)
properties = user_properties | system_properties
texts = user_properties | st.text("ab_%'", max_size=4).map(Constant)


def steps(operators: str, operand: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    step = st.tuples(st.sampled_from(operators), operand)
    return st.builds(Arithmetic, operand, st.lists(step, min_size=1, max_size=3).map(tuple))


functions = st.builds(Lookup, texts) | st.builds(NewId)
expressions = st.recursive(
    constants | properties | functions,
    lambda inner: (
        st.builds(Sign, st.sampled_from("+-"), inner) | steps("+-", inner) | steps("*/%", inner)
    ),
    max_leaves=4,
)
tests_of_values = st.one_of(
    st.builds(
        Comparison, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), expressions, expressions
    ),
    st.builds(IsNull, properties | functions),
    st.builds(Exists, properties),
    st.builds(In, expressions, st.lists(expressions, min_size=1, max_size=3).map(tuple)),
    st.builds(Like, expressions, texts, st.none() | st.just(Constant("!"))),
)


def some(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, min_size=2, max_size=3).map(tuple)


conditions = st.recursive(
    tests_of_values,
    lambda inner: st.builds(Not, inner) | st.builds(And, some(inner)) | st.builds(Or, some(inner)),
    max_leaves=4,
).filter(lambda condition: len(printed(condition)) <= 1024)


@given(conditions)
def test_a_printed_filter_is_parsed(condition: Any) -> None:
    assert parse_filter(printed(condition), {}) == condition


targets = properties.filter(lambda target: target.name.lower() != "scheduledenqueuetimeutc")


@given(targets, expressions, targets)
def test_printed_actions_are_parsed(target: Property, value: Any, removed: Property) -> None:
    text = f"SET {printed(target)} = {printed(value)}; REMOVE {printed(removed)}"

    assert parse_action(text, {}) == RuleAction((Set(target, value), Remove(removed)))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a=1 OR b=1 AND c=1", Or((A1, And((B1, C1))))),
        ("(a=1 OR b=1) AND c=1", And((Or((A1, B1)), C1))),
        ("NOT a=1 AND b=1", And((Not(A1), B1))),
        ("NOT (a=1 AND b=1)", Not(And((A1, B1)))),
        ("a=1 AND b=1 AND c=1", And((A1, B1, C1))),
        ("NOT NOT a=1", Not(Not(A1))),
        (
            "a+b*c-1=1",
            Comparison("=", Arithmetic(A, (("+", Arithmetic(B, (("*", C),))), ("-", ONE))), ONE),
        ),
        ("a-b-c=1", Comparison("=", Arithmetic(A, (("-", B), ("-", C))), ONE)),
        ("-a*b=1", Comparison("=", Arithmetic(Sign("-", A), (("*", B),)), ONE)),
        ("((a))=((1))", A1),
        ("a IS NOT NULL", Not(IsNull(A))),
        ("(a) IS NULL", IsNull(A)),
        ("a NOT IN (1, b)", Not(In(A, (ONE, B)))),
        ("a NOT LIKE 'x%'", Not(Like(A, Constant("x%"), None))),
        ("a != 1", Comparison("<>", A, ONE)),
        ("EXISTS(a) OR exists (b)", Or((Exists(A), Exists(B)))),
        ("p('a') = property(b)", Comparison("=", Lookup(Constant("a")), Lookup(B))),
        ("p = property", Comparison("=", *(Property(Scope.USER, n) for n in ("p", "property")))),
        ("sys = user", Comparison("=", *(Property(Scope.USER, n) for n in ("sys", "user")))),
        ('SYS.label = [user]."a"', Comparison("=", Property(Scope.SYSTEM, "label"), A)),
        ("[in] = 'it''s'", Comparison("=", Property(Scope.USER, "in"), Constant("it's"))),
        (
            '[HR-Id]]] = "a""b"',
            Comparison("=", *(Property(Scope.USER, n) for n in ("HR-Id]", 'a"b'))),
        ),
        ("größe_1 = .5", Comparison("=", Property(Scope.USER, "größe_1"), Constant(0.5))),
        (
            "a IN (1894, 1894.1204, 2.0, 101.5E5, 0.5E-2)",
            In(A, tuple(map(Constant, (1894, 1894.1204, 2.0, 101.5e5, 0.5e-2)))),
        ),
        (
            "a = true\tAND\n b <> NULL",
            And((Comparison("=", A, Constant(True)), Comparison("<>", B, Constant(None)))),
        ),
    ],
)
def test_text_means_tree(text: str, tree: Any) -> None:
    assert parse_filter(text, {}) == tree


def test_parameters_become_constants_whatever_their_case_and_mark() -> None:
    tree = parse_filter("a = @P1 AND b = @two", {"@p1": 1, "Two": 1})

    assert tree == And((A1, B1))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a", "position 1: a condition expected, found a value"),
        ("a = ", "position 5: a value expected, found the end"),
        ("a = 1 b", "position 7: AND, OR or the end expected, found 'b'"),
        ("a = 'x", "position 5: closing ' expected"),
        ("a = 'x''", "position 5: closing ' expected"),
        ("[x]] = 1", "position 1: a name and closing ] expected"),
        ('"a = 1', 'position 1: a name and closing " expected'),
        ("[] = 1", "position 1: a name and closing ] expected"),
        ("a = ?", "position 5: a name, a constant or an operator expected"),
        ("_a = 1", "position 1: a name"),
        ("a = 9223372036854775808", "position 5: a number of 64 bits expected"),
        ("a = 1e999", "position 5: a number of 64 bits expected"),
        ("a AND b = 1", "position 1: a condition expected, found a value"),
        ("a = 1 AND b", "position 11: a condition expected, found a value"),
        ("NOT a", "position 5: a condition"),
        ("(a = 1) = b", "position 1: a value expected, found a condition"),
        ("a = (b = 1)", "position 5: a value expected, found a condition"),
        ("a = b = 1", "position 7: AND, OR or the end expected, found '='"),
        ("1 + (a = 1) > 2", "position 5: a value expected, found a condition"),
        ("(a = 1", r"position 7: \) expected, found the end"),
        ("a IS 1", "position 6: NULL expected, found '1'"),
        ("1 IS NULL", "position 1: a property before IS expected"),
        ("a NOT = 1", "position 7: IN or LIKE expected, found '='"),
        ("a IN ()", "position 7: a value expected, found"),
        ("a IN 1", r"position 6: \( expected"),
        ("a LIKE 5", "position 8: text expected, found '5'"),
        ("a LIKE 'x' ESCAPE 'ab'", "position 8: one character as escape expected"),
        ("a LIKE 'x!' ESCAPE '!'", "position 8: a character after the escape expected"),
        ("EXISTS(1)", "position 8: the name of a property expected, found '1'"),
        ("property(1) = 1", "position 10: text expected, found '1'"),
        ("sum(a) = 1", r"position 1: the function newid or p or property expected, found 'sum'"),
        ("newid(1) = a", r"position 7: \) expected, found '1'"),
        ("other.a = 1", "position 1: sys or user before '.' expected, found 'other'"),
        ("sys.Colour = 1", "position 5: one of ContentType, .* expected, found 'Colour'"),
        ("user.in = 1", "position 6: the name of a property expected, found 'in'"),
        ("a = @p", "position 5: a parameter that has a value expected, found '@p'"),
        ("a = @ p", "position 5: a name, a constant"),
        ("", "1 to 1024 characters expected, got 0"),
        ("a = '" + "x" * 1019 + "'", "1 to 1024 characters expected, got 1025"),
    ],
)
def test_errors_name_the_position_and_what_is_expected(text: str, error: str) -> None:
    with pytest.raises(InvalidRequest, match=f"SQL filter.*{error}"):
        parse_filter(text, {})


@pytest.mark.parametrize(
    ("before", "after", "most"), [("(", ")", 32), ("NOT ", "", 32), ("NOT (", ")", 16)]
)
def test_nesting_of_conditions_is_bounded(before: str, after: str, most: int) -> None:
    parse_filter(before * most + "a=1" + after * most, {})
    with pytest.raises(InvalidRequest, match="up to 32 levels of nesting"):
        parse_filter(before * (most + 1) + "a=1" + after * (most + 1), {})


@pytest.mark.parametrize(("before", "after"), [("-", ""), ("(", ")"), ("p(", ")")])
def test_nesting_of_values_is_bounded(before: str, after: str) -> None:
    parse_filter(before * 32 + "a" + after * 32 + "=1", {})
    with pytest.raises(InvalidRequest, match="up to 32 levels of nesting"):
        parse_filter(before * 33 + "a" + after * 33 + "=1", {})


def test_chains_are_as_long_as_the_text_allows() -> None:
    parse_filter(" OR ".join(["a=1"] * 140), {})
    parse_filter("a=" + "+".join(["1"] * 500), {})


WORDS = [*"()()[]'\",.;=<+-*/%", "<>", "@p", "@q", "AND", "OR", "NOT", "IN", "LIKE", "ESCAPE"]
WORDS += ["EXISTS", "IS", "NULL", "TRUE", "a", "sys", "user", "Label", "property", "p", "newid"]
WORDS += ["SET", "REMOVE", "1", "2.5", "1E4", "'x'", "'x%'", "[b]", '"c"']
near_sql = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)
CALLS = 100  # of functions, for each character of a text


@contextlib.contextmanager
def at_most(calls: int) -> Iterator[None]:
    """The block fails if it calls more functions: that doesn't depend on the machine's speed."""
    made = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal made
        made += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert made <= calls


@given(st.text(max_size=60) | near_sql)
def test_any_text_is_a_tree_or_an_invalid_request(text: str) -> None:
    with at_most(CALLS * (len(text) + 1)):
        for parse in (parse_filter, parse_action):
            with contextlib.suppress(InvalidRequest):
                parse(text, {"p": 1})


@pytest.mark.parametrize(
    "text", ["'" * 1023, "(" * 1024, "[" + "]]" * 511, "NOT " * 250, "- " * 512]
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    with at_most(CALLS * len(text)), pytest.raises(InvalidRequest):
        parse_filter(text, {})


def test_documented_action_is_parsed() -> None:
    quantity, priority = (Property(Scope.USER, name) for name in ("quantity", "priority"))

    action = parse_action(
        "SET quantity = quantity / 2; REMOVE priority;SET sys.CorrelationId = 'low';", {}
    )

    assert action.statements == (
        Set(quantity, Arithmetic(quantity, (("/", Constant(2)),))),
        Remove(priority),
        Set(Property(Scope.SYSTEM, "CorrelationId"), Constant("low")),
    )


def test_statements_need_no_mark_between_them() -> None:
    action = parse_action("set a = newid() remove set SET b = @v, REMOVE c", {"@v": 1})

    assert action.statements == (
        Set(A, NewId()),
        Remove(Property(Scope.USER, "set")),
        Set(B, ONE),
        Remove(C),
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a = 1", "position 1: SET or REMOVE expected, found 'a'"),
        ("SET a 1", "position 7: = expected, found '1'"),
        ("SET a = ", "position 9: a value expected"),
        ("SET a = (b = 1)", "position 9: a value expected, found a condition"),
        ("REMOVE 1", "position 8: the name of a property expected"),
        ("REMOVE a;;", "position 10: SET or REMOVE expected, found ';'"),
        ("SET sys.Size = 1", "position 9: one of ContentType"),
        ("SET a = now()", "position 9: the function newid or p or property expected"),
        ("REMOVE a " * 33, "position 289: up to 32 statements expected"),
    ],
)
def test_errors_in_actions_name_the_position(text: str, error: str) -> None:
    with pytest.raises(InvalidRequest, match=f"SQL action, {error}"):
        parse_action(text, {})


def test_longest_action_is_taken() -> None:
    assert len(parse_action("REMOVE a;" * MAX_STATEMENTS, {}).statements) == MAX_STATEMENTS
