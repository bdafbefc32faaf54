"""
Values of properties as rules compare them: numbers of every type are numbers, symbols are text.

A rule has `5` and `'red'`, while the sender's library chooses among ten integer types, and between
string and symbol. Rules work whatever it chooses.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import attrs

from gateway.domain.envelope_fields import TICKS_PER_MICROSECOND, TIMESPAN
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Described, Kind, Message, Typed, Value, symbol

_NUMBERS: Final = frozenset({int, float})
ORDERED: Final = frozenset(
    {str, int, float, datetime, timedelta}
)  # plain values that have an order
EQUATABLE: Final = ORDERED | {bool, UUID, bytes}
_AS_IT_IS: Final = EQUATABLE - {datetime} | {type(None)}
# Steps of all LIKEs of one evaluation, some 10 ms at most: a filter has a hundred of them.
MOST_STEPS: Final = 2**22
# Of all filters of a topic on one message, some 40 ms at most: a topic has 2,000 filters.
MOST_STEPS_OF_ALL: Final = 4 * MOST_STEPS
_LONGEST_ID: Final = 128  # characters
_MISSING: Final = object()
_PLAIN_KINDS: Final = frozenset(
    {Kind.UBYTE, Kind.USHORT, Kind.UINT, Kind.ULONG, Kind.BYTE, Kind.SHORT, Kind.INT}
    | {Kind.FLOAT, Kind.CHAR, Kind.SYMBOL}
)


def plain(value: Value) -> Any:
    """
    Convert a value to str, int, float, bool, UTC datetime, timedelta, UUID or bytes.

    None: the value is None or can't be compared (lists, maps, decimals, unknown described types).
    The described types of .NET (timespan, date with offset, URI) are known.
    """
    kind = value.__class__
    if kind in _AS_IT_IS:
        return value
    if kind is Typed:
        return value.value if value.kind in _PLAIN_KINDS else None
    if kind is datetime:
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if kind is Described:
        return _described(value)
    return None


def id_text(value: Value) -> str | None:
    """A message or correlation id as the text that Service Bus shows; None: it shows none."""
    if isinstance(value, str):
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Typed) and value.kind is Kind.ULONG:
        return str(value.value)
    return None


def check_message_id(value: Value) -> None:
    """
    Raises:
        InvalidRequest: the id is too long for Service Bus.
    """
    text = id_text(value)
    if text is not None and len(text) > _LONGEST_ID:
        raise InvalidRequest(
            f"message id: at most {_LONGEST_ID} characters expected, got {len(text)}"
        )


def check_sent(message: Message) -> None:
    """
    Check a client's message as Service Bus does: its id, and its time to live
    (`BrokeredMessage.TimeToLive` throws for zero or less).

    Raises:
        InvalidRequest: the text says the field and the limit.
    """
    if message.message_id is not None:
        check_message_id(message.message_id)
    life = message.time_to_live
    if life is not None and life <= timedelta(0):
        raise InvalidRequest(
            f"time to live: more than zero expected, got {life.total_seconds():g} seconds"
        )


def equatable(left: Any, right: Any) -> bool:
    """True if two plain values can be equal at all."""
    return alike(left, right, EQUATABLE)


def alike(left: Any, right: Any, kinds: frozenset[type]) -> bool:
    """True if two plain values have the same type, one of `kinds`; all numbers are one type."""
    kind = left.__class__
    return kind in kinds if kind is right.__class__ else numeric(left, right)


def numeric(left: Any, right: Any) -> bool:
    """True if both plain values are numbers. Booleans aren't numbers, as in C#."""
    return left.__class__ in _NUMBERS and right.__class__ in _NUMBERS


@attrs.define(eq=False)
class MessageReader:
    """
    A message's application properties by name, without regard to case, as in Service Bus.

    Among names that differ in case only, an exact match wins, else the last one.

    All filters of a topic read a message by one reader: a message may have 100,000 properties.
    """

    message: Message
    _folded: Mapping[str, Value] | None = None
    _steps: int = MOST_STEPS
    _steps_of_all: int = MOST_STEPS_OF_ALL

    def begin(self) -> None:
        """Begin the evaluation of another filter, which has `MOST_STEPS` of its own."""
        self._steps = MOST_STEPS

    def spend(self, steps: int) -> bool:
        """Take so many steps of a search in a text; False: the evaluation has no more."""
        self._steps -= steps
        if self._steps >= 0:
            self._steps_of_all -= steps
        return self._steps >= 0 and self._steps_of_all >= 0

    @property
    def is_exhausted(self) -> bool:
        """True if all filters together had too few steps: some of them may have no result."""
        return self._steps_of_all < 0

    def get(self, name: str, absent: Any = None) -> Value:
        """The property as received, or `absent`."""
        properties = self.message.properties
        value = properties.get(name, _MISSING)
        if value is not _MISSING:
            return value
        if self._folded is None:  # built once, however many names are missing
            self._folded = {key.lower(): value for key, value in properties.items()}
        return self._folded.get(name.lower(), absent)


def _described(value: Described) -> Any:
    reader = next((r for descriptor, r in _READERS if descriptor == value.descriptor), None)
    try:
        return None if reader is None else reader(value.value)
    except (TypeError, ValueError, OverflowError):  # malformed, NaN, or a date before the year 1
        return None


def _span(ticks: int) -> timedelta:
    return timedelta(microseconds=ticks // TICKS_PER_MICROSECOND)


def _moment(ticks: int) -> datetime:
    return datetime.min.replace(tzinfo=UTC) + _span(ticks)


# The described types of .NET's client; ticks are 100 nanoseconds.
_READERS: Final[tuple[tuple[Typed, Callable[[Any], Any]], ...]] = (
    (TIMESPAN, _span),
    (symbol("com.microsoft:datetime-offset"), _moment),  # since the year 1, UTC
    (symbol("com.microsoft:uri"), lambda text: text if isinstance(text, str) else None),
)
