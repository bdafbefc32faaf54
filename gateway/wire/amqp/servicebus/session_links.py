"""Session ids and locks on links, both directions (Service Bus: AMQP protocol guide, sessions)."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gateway.domain.message import Described, Value

# Of the source: a session's name, or null: any. Bare, as .NET, Java, Node and Python ask; or
# described, as Go asks, and the standard has it (part 3, 3.5.8).
FILTER: Final = "com.microsoft:session-filter"
LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"  # a property of the answer, as ticks
TIMEOUT: Final = "com.microsoft:timeout"  # a property of the attach: milliseconds to wait

_YEAR_1: Final = datetime(1, 1, 1, tzinfo=UTC)
_TICK: Final = 10  # in a microsecond


def bare(value: Value) -> Value:
    """The filter's value without a descriptor."""
    return value.value if isinstance(value, Described) else value


def as_asked(asked: Value, session: str) -> Value:
    """
    The filter that answers the one that was asked for, in the same form: .NET reads only a bare
    text, go-amqp only a described one.
    """
    return Described(asked.descriptor, session) if isinstance(asked, Described) else session


def ticks_of(moment: datetime) -> int:
    """The date as .NET counts it."""
    return (moment - _YEAR_1) // timedelta(microseconds=1) * _TICK


def moment_of(ticks: Any) -> datetime | None:
    """The date of these ticks; None if the value isn't a number of ticks."""
    if not isinstance(ticks, int) or isinstance(ticks, bool):
        return None
    try:
        return _YEAR_1 + timedelta(microseconds=ticks // _TICK)
    except OverflowError:
        return None
