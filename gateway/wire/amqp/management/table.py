"""All operations of $management: their names, and the entries of their requests and replies."""

from collections.abc import Callable
from typing import Any, Final

import attrs

from gateway.domain.message import Value
from gateway.wire.amqp.exchange import text_of
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.fields import (
    BINARY,
    COUNT,
    FLAG,
    LONG,
    LONGS,
    MAP,
    MODE,
    MOMENT,
    MOMENTS,
    SCHEDULED,
    TEXT,
    TEXTS,
    UUIDS,
    Field,
    Fields,
    TypeCodec,
    fields_of,
    items_of,
)
from gateway.wire.amqp.management.rules import RULES, read_rule, write_rule


@attrs.frozen
class Shape:
    """The functions that read a value from the entries of a map, and write it to them."""

    read: Callable[[Fields], Any]
    write: Callable[[Any], Fields]


def _shape(kind: type, *fields: Field) -> Shape:
    def read(entries: Fields) -> Any:
        return kind(**{field.attribute: field.read(entries) for field in fields})

    def write(value: Any) -> Fields:
        said = ((field, getattr(value, field.attribute)) for field in fields)
        return {
            field.name: None if value is None else field.codec.write(value)
            for field, value in said
            if field.null or value is not None
        }

    return Shape(read, write)


def _read_status(value: Value) -> ops.Disposition | None:
    text = text_of(value)
    found = (each for each in ops.Disposition if each.value == (text or "").lower())
    return next(found, None)


def _read_handed(value: Value) -> tuple[ops.Handed, ...] | None:
    items = items_of(value)
    return None if items is None else tuple(_HANDED.read(fields_of(item)) for item in items)


def _read_token(value: Value) -> str | None:
    tokens: tuple[str, ...] | None = UUIDS.read([value])
    return tokens[0] if tokens else None


_SESSION: Final = Field("session-id", "session_id", TEXT)
_OF_SESSION: Final = Field("session-id", "session_id", TEXT, required=False)
_SKIP: Final = Field("skip", "skip", COUNT)
_TOP: Final = Field("top", "top", COUNT)
_TOKENS: Final = Field("lock-tokens", "tokens", UUIDS)
_NUMBERS: Final = Field("sequence-numbers", "sequence_numbers", LONGS)
_STATE: Final = Field("session-state", "state", BINARY, required=False, null=True)
_STATUS: Final = TypeCodec(
    "completed, abandoned, defered or suspended", _read_status, lambda status: status.value
)
_HANDED: Final = _shape(
    ops.Handed,
    Field("message", "payload", BINARY),
    Field(
        "lock-token",
        "lock_token",
        TypeCodec("a uuid", _read_token, lambda token: UUIDS.write((token,)).value[0]),
        required=False,
    ),
)
_MESSAGES: Final = TypeCodec(
    "a list of messages", _read_handed, lambda items: [dict(_HANDED.write(each)) for each in items]
)


@attrs.frozen
class Exchange:
    """An operation: its name on the wire, its request and its answer."""

    name: str
    asked: type[ops.Operation]
    request: Shape
    answer: Shape


_DONE: Final = Shape(lambda _: ops.Done(), lambda _: {})
HANDS_OUT: Final = _shape(ops.Messages, Field("messages", "messages", _MESSAGES))
SESSIONS: Final = _shape(ops.SessionNames, Field("sessions-ids", "names", TEXTS), _SKIP)
DELETES: Final = _shape(ops.Deleted, Field("message-count", "count", COUNT))
LISTS_RULES: Final = _shape(ops.Rules, Field("rules", "rules", RULES))
EXCHANGES: Final = (
    Exchange(
        "renew-lock",
        ops.RenewLocks,
        _shape(ops.RenewLocks, _TOKENS),
        _shape(ops.LocksRenewed, Field("expirations", "until", MOMENTS)),
    ),
    Exchange(
        "renew-session-lock",
        ops.RenewSession,
        _shape(ops.RenewSession, _SESSION),
        _shape(ops.SessionRenewed, Field("expiration", "until", MOMENT)),
    ),
    Exchange(
        "schedule-message",
        ops.Schedule,
        _shape(ops.Schedule, Field("messages", "messages", SCHEDULED)),
        _shape(ops.Scheduled, _NUMBERS),
    ),
    Exchange(
        "cancel-scheduled-message",
        ops.CancelScheduled,
        _shape(ops.CancelScheduled, _NUMBERS),
        _DONE,
    ),
    Exchange(
        "peek-message",
        ops.Peek,
        _shape(
            ops.Peek,
            Field("from-sequence-number", "from_sequence", LONG),
            Field("message-count", "limit", COUNT),
            _OF_SESSION,
            Field("omit-message-body", "omit_body", FLAG, required=False),
        ),
        HANDS_OUT,
    ),
    Exchange(
        "receive-by-sequence-number",
        ops.ReceiveDeferred,
        _shape(
            ops.ReceiveDeferred, _NUMBERS, Field("receiver-settle-mode", "mode", MODE), _OF_SESSION
        ),
        HANDS_OUT,
    ),
    Exchange(
        "update-disposition",
        ops.UpdateDisposition,
        _shape(
            ops.UpdateDisposition,
            Field("disposition-status", "status", _STATUS),
            _TOKENS,
            Field("deadletter-reason", "reason", TEXT, required=False),
            Field("deadletter-description", "description", TEXT, required=False),
            Field("properties-to-modify", "properties", MAP, required=False),
            _OF_SESSION,
        ),
        _DONE,
    ),
    Exchange(
        "get-session-state",
        ops.GetSessionState,
        _shape(ops.GetSessionState, _SESSION),
        _shape(ops.SessionState, _STATE),
    ),
    Exchange(
        "set-session-state",
        ops.SetSessionState,
        _shape(ops.SetSessionState, _SESSION, _STATE),
        _DONE,
    ),
    Exchange(
        "get-message-sessions",
        ops.ListSessions,
        _shape(ops.ListSessions, Field("last-updated-time", "last_updated", MOMENT), _SKIP, _TOP),
        SESSIONS,
    ),
    Exchange(
        "batch-delete-messages",
        ops.DeleteMessages,
        _shape(
            ops.DeleteMessages,
            Field("message-count", "limit", COUNT),
            Field("enqueued-time-utc", "before", MOMENT, required=False),
            _OF_SESSION,
        ),
        DELETES,
    ),
    Exchange(
        "add-rule",
        ops.AddRule,
        Shape(lambda fields: ops.AddRule(rule=read_rule(fields)), lambda op: write_rule(op.rule)),
        _DONE,
    ),
    Exchange(
        "remove-rule",
        ops.RemoveRule,
        _shape(ops.RemoveRule, Field("rule-name", "name", TEXT)),
        _DONE,
    ),
    Exchange(
        "enumerate-rules",
        ops.ListRules,
        _shape(ops.ListRules, _SKIP, _TOP),
        LISTS_RULES,
    ),
)
