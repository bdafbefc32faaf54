"""
Requests and replies as messages, as for $cbs and $management (AMQP Management 1.0, working draft
11, 3): one message with `operation` and `reply-to`, and one back with a status as in HTTP.
"""

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from gateway.domain.errors import MessageError
from gateway.domain.message import Kind, Message, Typed, Value, ValueBody, symbol
from gateway.wire.amqp.message import decode_message, encode_message

_OPERATION: Final = "operation"


@attrs.frozen(kw_only=True)
class NodeRequest:
    """
    A request to a node.

    The reply has the same `id`, in the same type; some clients find the reply by it. `reply_to` is
    the target of the link for the reply.
    """

    operation: str
    id: Value = None  # str, UUID, bytes, or Typed ULONG
    reply_to: str | None = None
    properties: Mapping[str, Value] = attrs.field(factory=dict)  # besides the operation
    body: Value = None
    txn_id: bytes | None = None  # of the transaction that the request is part of


class ReplyDialect(enum.Enum):
    """The names of the parts of a node's replies: status code, description, error condition."""

    MANAGEMENT = ("statusCode", "statusDescription", "errorCondition")
    CBS = ("status-code", "status-description", "error-condition")


@attrs.frozen(kw_only=True)
class Reply:
    """The reply to the request with that id."""

    id: Value
    status: int  # as in HTTP
    description: str = ""
    condition: str | None = None  # of an error
    body: Value = None


def parse_request(payload: bytes) -> NodeRequest:
    """
    Parse a request.

    Raises:
        MessageError: the payload isn't a message, or has no operation.
    """
    message = decode_message(payload)
    properties = dict(message.properties)
    operation = text_of(properties.pop(_OPERATION, None))
    if operation is None:
        raise MessageError(f"application-properties: {_OPERATION}: a string expected")
    return NodeRequest(
        operation=operation,
        id=message.message_id,
        reply_to=message.reply_to,
        properties=properties,
        body=_value_of(message),
    )


def build_request(request: NodeRequest) -> bytes:
    """
    The payload of a request.

    Raises:
        MessageError: AMQP can't express a value.
    """
    return encode_message(
        Message(
            message_id=request.id,
            reply_to=request.reply_to,
            properties={_OPERATION: request.operation, **request.properties},
            body=ValueBody(request.body),
        )
    )


def parse_reply(payload: bytes) -> Reply:
    """
    Parse a reply in either dialect.

    Raises:
        MessageError: the payload isn't a message, or has no status.
    """
    message = decode_message(payload)
    for dialect in ReplyDialect:
        code, description, condition = dialect.value
        status = number_of(message.properties.get(code))
        if status is not None:
            return Reply(
                id=message.correlation_id,
                status=status,
                description=text_of(message.properties.get(description)) or "",
                condition=text_of(message.properties.get(condition)),
                body=_value_of(message),
            )
    raise MessageError("application-properties: a status code expected")


def build_reply(reply: Reply, dialect: ReplyDialect = ReplyDialect.MANAGEMENT) -> bytes:
    """
    The payload of a reply.

    Raises:
        MessageError: AMQP can't express a value.
    """
    code, description, condition = dialect.value
    properties: dict[str, Value] = {
        code: Typed(Kind.INT, reply.status),
        description: reply.description,
    }
    if reply.condition is not None:
        properties[condition] = symbol(reply.condition)
    return encode_message(
        Message(correlation_id=reply.id, properties=properties, body=ValueBody(reply.body))
    )


def text_of(value: Value) -> str | None:
    """A string or a symbol, which clients confuse; None for all other values."""
    if isinstance(value, Typed) and value.kind is Kind.SYMBOL:
        value = value.value
    return value if isinstance(value, str) else None


_INTEGERS: Final = frozenset(
    (Kind.UBYTE, Kind.USHORT, Kind.UINT, Kind.ULONG, Kind.BYTE, Kind.SHORT, Kind.INT)
)


def number_of(value: Value) -> int | None:
    """An integer of any width, which clients confuse too; None for all other values."""
    if isinstance(value, Typed) and value.kind in _INTEGERS:
        number: int = value.value
        return number
    return value if type(value) is int else None


def _value_of(message: Message) -> Value:
    return message.body.value if isinstance(message.body, ValueBody) else None
