"""
Frozen syntax trees of a rule's SQL.

A condition is true, false or unknown; an expression has a value, which may also be unknown. Chains
of AND, of OR, of + and - and of * and / and % are one node each, so that a tree is only as deep as
its text is nested, and `x NOT IN (y)` is Not(In(...)), which is its meaning.
"""

import enum
from typing import Any, Final

import attrs

# The properties that `sys.` can name, ignoring case, each with its field of `Message`. Properties
# that only a queue assigns, such as SequenceNumber and EnqueuedTimeUtc, aren't known when a rule
# tests a message.
SYSTEM_PROPERTIES: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "MessageId": "message_id",
    "PartitionKey": "partition_key",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "ScheduledEnqueueTimeUtc": "scheduled",
    "SessionId": "session_id",
    "Subject": "subject",
    "TimeToLive": "time_to_live",
    "To": "to",
}


class Scope(enum.Enum):
    SYSTEM = "sys"
    USER = "user"


@attrs.frozen
class Constant:
    """A constant, or the value of a parameter; None is NULL."""

    value: Any


@attrs.frozen
class Property:
    scope: Scope
    name: str


@attrs.frozen
class Lookup:
    """property(name): the application property whose name is computed."""

    name: "Expression"


@attrs.frozen
class NewId:
    """newid(): a new UUID each time."""


@attrs.frozen
class Sign:
    operator: str  # + -
    operand: "Expression"


@attrs.frozen
class Arithmetic:
    """A chain, computed from left to right: either + and -, or * and / and %."""

    first: "Expression"
    steps: tuple[tuple[str, "Expression"], ...]


Expression = Constant | Property | Lookup | NewId | Sign | Arithmetic


Nullable = Property | Lookup | NewId


@attrs.frozen
class Comparison:
    operator: str  # = <> < <= > >=
    left: Expression
    right: Expression


@attrs.frozen
class IsNull:
    value: Nullable


@attrs.frozen
class Exists:
    property: Property


@attrs.frozen
class In:
    value: Expression
    choices: tuple[Expression, ...]


@attrs.frozen
class Like:
    value: Expression
    pattern: Expression
    escape: Expression | None


@attrs.frozen
class Not:
    operand: "Condition"


@attrs.frozen
class And:
    operands: tuple["Condition", ...]


@attrs.frozen
class Or:
    operands: tuple["Condition", ...]


Condition = Comparison | IsNull | Exists | In | Like | Not | And | Or


@attrs.frozen
class Set:
    property: Property
    value: Expression


@attrs.frozen
class Remove:
    property: Property


@attrs.frozen
class RuleAction:
    statements: tuple[Set | Remove, ...]
