"""
Typed values in rules: parameters of SQL, and properties of a correlation filter.

    <Parameters>
      <KeyValueOfstringanyType><Key>@p</Key>
        <Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">5</Value>
      </KeyValueOfstringanyType>
    </Parameters>
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from xml.etree.ElementTree import Element

import attrs

from gateway.domain.envelope_fields import TICKS_PER_MICROSECOND, TIMESPAN
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Described, Kind, Typed, Value
from gateway.wire.servicebus.description import INSTANCE, leaf, parsed
from gateway.wire.servicebus.management_values import (
    MAX_INT,
    date_text,
    duration_text,
    flag_text,
    parse_duration,
    parse_flag,
)

MAX_VALUES: Final = 1000  # of one filter or action
_XSD: Final = "http://www.w3.org/2001/XMLSchema"
_MAX_LONG: Final = 2**63 - 1  # of a signed 64-bit number, .NET's long
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def build_values(element: str, values: Mapping[str, Value]) -> str:
    """
    Build the element with the values; empty without values.

    Raises:
        InvalidRequest: XML can't express a text, or a value has a type that rules don't support.
    """
    if not values:
        return ""
    return f"<{element}>{''.join(map(_build_value, values, values.values()))}</{element}>"


def _build_value(key: str, value: Value) -> str:
    kind = _type_for(key, value)
    # Clients rely on exactly this prefix.
    attributes = f' i:type="d6p1:{kind.name}" xmlns:d6p1="{_XSD}"'
    return (
        f"<KeyValueOfstringanyType>{leaf('Key', key)}"
        f"{leaf('Value', kind.render(value), attributes)}</KeyValueOfstringanyType>"
    )


def parse_values(parent: Element, element: str) -> dict[str, Value]:
    """
    Parse the values of that child.

    Raises:
        InvalidRequest: the text names the key, and what is expected.
    """
    found = parent.find(f"{{*}}{element}")
    pairs = [] if found is None else found.findall("{*}KeyValueOfstringanyType")
    if len(pairs) > MAX_VALUES:
        raise InvalidRequest(f"{element}: up to {MAX_VALUES} expected, got {len(pairs)}")
    return dict(map(_parse_value, pairs))


def _parse_value(pair: Element) -> tuple[str, Value]:
    key, value = pair.find("{*}Key"), pair.find("{*}Value")
    if key is None or not key.text or value is None:
        raise InvalidRequest("KeyValueOfstringanyType: a Key and a Value expected")
    name = value.get(f"{{{INSTANCE}}}type", "string").rpartition(":")[2]
    kind = _TYPES.get(name)
    if kind is None:
        raise InvalidRequest(
            f"{key.text:.60}: a type of {', '.join(_TYPES)} expected, got {name!r:.60}"
        )
    return key.text, parsed(key.text, kind.parse, value.text or "")


# Types


@attrs.frozen
class _ValueType:
    """A type of XML Schema: how its values are written and read."""

    name: str
    render: Callable[[Any], str]
    parse: Callable[[str], Value]


def _parse_integer(most: int, text: str) -> int:
    stripped = text.strip()
    if not _INTEGER.fullmatch(stripped) or not -most - 1 <= int(stripped) <= most:
        raise ValueError(f"a number from {-most - 1} to {most} expected")
    return int(stripped)


def _parse_int(text: str) -> Value:
    """Numbers beyond 32 bits are long: 7.15 calls every number below 2^31 an int."""
    number = _parse_integer(_MAX_LONG, text)
    return Typed(Kind.INT, number) if -MAX_INT - 1 <= number <= MAX_INT else number


def _parse_double(text: str) -> float:
    if "_" in text:  # Python accepts underscores
        raise ValueError("a number expected")
    return float(text)


def _double_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}INF"


def _parse_span(text: str) -> Described:
    sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
    span = parse_duration(text.strip())
    if span is None:
        raise ValueError("a shorter duration expected")
    return Described(TIMESPAN, sign * (span // timedelta(microseconds=1)) * TICKS_PER_MICROSECOND)


def _span_text(value: Described) -> str:
    span = timedelta(microseconds=abs(value.value) // TICKS_PER_MICROSECOND)
    return f"{'-' if value.value < 0 else ''}{duration_text(span)}"


def _moment_text(value: datetime) -> str:
    """A date without a time zone stays so: clients expect the text that they wrote."""
    return value.isoformat() if value.tzinfo is None else date_text(value)


def _parse_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text.strip())
    return moment if moment.tzinfo is None else moment.astimezone(UTC)


_STRING: Final = _ValueType("string", str, str)
_INT: Final = _ValueType("int", lambda value: str(value.value), _parse_int)
_LONG: Final = _ValueType("long", str, partial(_parse_integer, _MAX_LONG))
_BOOLEAN: Final = _ValueType("boolean", flag_text, lambda text: parse_flag(text.strip()))
_DOUBLE: Final = _ValueType("double", _double_text, _parse_double)
_DATE: Final = _ValueType("dateTime", _moment_text, _parse_moment)
_DURATION: Final = _ValueType("duration", _span_text, _parse_span)
_TYPES: Final = {
    kind.name: kind for kind in (_STRING, _INT, _LONG, _BOOLEAN, _DOUBLE, _DATE, _DURATION)
}


_BY_TYPE: Final = {str: _STRING, bool: _BOOLEAN, int: _LONG, float: _DOUBLE, datetime: _DATE}


def _type_for(key: str, value: Value) -> _ValueType:
    match value:
        case Typed(Kind.INT, int()):
            return _INT
        case Described(descriptor, int()) if descriptor == TIMESPAN:
            return _DURATION
    kind = _BY_TYPE.get(type(value))
    if kind is None:
        raise InvalidRequest(f"{key:.60}: a value of one of {', '.join(_TYPES)} expected")
    return kind
