"""
Links as the SDKs of Service Bus attach them: the address, and the session that a receiver asks for.

    [scheme://host[:port]/] path                       an entity, or one of its sub-queues
    [scheme://host[:port]/] path/$management           requests about that entity
    $cbs                                               tokens

Session ids and locks are written and read, for both directions (AMQP protocol guide, sessions).
"""

import enum
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Described, Value

_CBS: Final = "$cbs"
_MANAGEMENT: Final = "$management"
_MAX_LENGTH: Final = 1024  # characters: several times the longest path, for an address with a host


class NodeKind(enum.Enum):
    ENTITY = "entity"
    MANAGEMENT = "management"
    TOKENS = "tokens"


@attrs.frozen(kw_only=True)
class Node:
    """
    The node that an address names; `entity` is None for `$cbs` and for the namespace's management.
    """

    kind: NodeKind
    entity: EntityPath | None = None


def parse_address(address: str | None) -> Node:
    """
    The node that an address names.

    Raises:
        InvalidRequest: there is no address, or it names no entity.
    """
    if not address or len(address) > _MAX_LENGTH:
        raise InvalidRequest(f"address: 1 to {_MAX_LENGTH} characters expected")
    _, scheme_end, location = address.partition("://")
    path = location.partition("/")[2] if scheme_end else address
    path = unquote(path).strip("/")
    if path.lower() == _CBS:
        return Node(kind=NodeKind.TOKENS)
    entity, _, last = path.rpartition("/")
    if last.lower() != _MANAGEMENT:
        return Node(kind=NodeKind.ENTITY, entity=EntityPath.parse(path))
    return Node(kind=NodeKind.MANAGEMENT, entity=EntityPath.parse(entity) if entity else None)


# Of the source: a session's name, or null: any. Bare, as .NET, Java, Node and Python ask; or
# described, as Go asks, and the standard has it (part 3, 3.5.8).
FILTER: Final = "com.microsoft:session-filter"
# A property of the attach, a boolean: the link looks at the session, and takes no lock.
PEEK_MODE: Final = "com.microsoft:peek-mode"
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
