"""
The operators of a rule's SQL on two values, with C#'s semantics ("Operator binding semantics").

Values are plain (`domain.property_values.plain`). None is unknown: so is every result computed from
None, every operation that C# has no operator for, and every result out of range.
"""

import math
import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from gateway.domain.topics.property_values import EQUATABLE, ORDERED, alike, numeric

Operator = Callable[[Any, Any], Any]

# Of a signed 64-bit number, as Service Bus computes with.
_MIN: Final = -(2**63)
_MAX: Final = 2**63 - 1
LONGEST: Final = 2**16 - 1  # characters; no property of Service Bus is longer


def compare(symbol: str) -> Operator:
    """The comparison `=`, `<>`, `<`, `<=`, `>` or `>=`: true, false or None."""
    function, kinds = _COMPARISONS[symbol]

    def compared(left: Any, right: Any) -> bool | None:
        return function(left, right) if alike(left, right, kinds) else None

    return compared


def calculate(symbol: str) -> Operator:
    """The operation `+`, `-`, `*`, `/` or `%`."""
    function = _NUMERIC[symbol]

    def calculated(left: Any, right: Any) -> Any:
        others = (symbol, left.__class__, right.__class__)
        if not numeric(left, right) and others not in _OTHERS:
            return None
        try:
            return _bounded(function(left, right))
        except (ZeroDivisionError, OverflowError):
            return None

    return calculated


def signed(symbol: str, value: Any) -> Any:
    if value.__class__ not in (int, float, timedelta):
        return None
    try:
        return _bounded(-value) if symbol == "-" else value
    except OverflowError:  # a timedelta's range below zero is smaller than above
        return None


def _bounded(result: Any) -> Any:
    if result.__class__ is int:
        return result if _MIN <= result <= _MAX else None
    return None if result.__class__ is str and len(result) > LONGEST else result


def _divide(left: float, right: float) -> float:
    """Rounds towards zero between integers, unlike Python."""
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


def _remainder(left: float, right: float) -> float:
    """Has the sign of the left operand, unlike Python."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right * int(_divide(left, right))
    try:
        return math.fmod(left, right)
    except ValueError:  # of infinity, or by zero
        return math.nan


_COMPARISONS: Final[dict[str, tuple[Operator, frozenset[type]]]] = {
    "=": (operator.eq, EQUATABLE),
    "<>": (operator.ne, EQUATABLE),
    "<": (operator.lt, ORDERED),
    "<=": (operator.le, ORDERED),
    ">": (operator.gt, ORDERED),
    ">=": (operator.ge, ORDERED),
}
_NUMERIC: Final[dict[str, Operator]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": _remainder,
}
_OTHERS: Final = frozenset(
    {
        ("+", str, str),
        ("-", datetime, datetime),
        ("+", datetime, timedelta),
        ("-", datetime, timedelta),
        ("+", timedelta, timedelta),
        ("-", timedelta, timedelta),
    }
)
