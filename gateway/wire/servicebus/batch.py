"""
Service Bus REST's own batch: several messages with text bodies in one JSON array.

    Content-Type: application/vnd.microsoft.servicebus.json
    [{"Body": "text", "BrokerProperties": {"Label": "new"}, "UserProperties": {"colour": "red"}}]
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Message, Value
from gateway.wire.http import strict_json
from gateway.wire.servicebus.broker_properties import (
    broker_properties,
    message_of_broker_properties,
)

CONTENT_TYPE: Final = "application/vnd.microsoft.servicebus.json"
MAX_MESSAGES: Final = 4500  # the most that Service Bus took in a batch for years
_MAX_BYTES: Final = 16 * 1024 * 1024  # the server's own limit applies first


def loses_nothing(messages: Sequence[Message]) -> bool:
    """
    True if this batch format preserves the messages.

    A batch has no content types, and its clients write all properties as text: the effect of a
    number on Service Bus isn't documented.
    """
    return all(
        message.content_type is None
        and isinstance(message.body, bytes)
        and _text(message.body) is not None
        and all(isinstance(value, str) for value in message.properties.values())
        for message in messages
    )


def build_batch(messages: Sequence[Message]) -> bytes:
    """
    Build the body from messages for which `loses_nothing` holds.

    Raises:
        NotSupported: an id isn't text.
    """
    return json.dumps(
        [
            {
                "Body": _text(message.body) or "",
                "BrokerProperties": broker_properties(message, strict=True),
                "UserProperties": dict(message.properties),
            }
            for message in messages
        ],
        separators=(",", ":"),
    ).encode()


def parse_batch(body: bytes) -> Iterator[Message]:
    """
    Parse a batch; each message is parsed when it is asked for.

    Raises:
        InvalidRequest: the batch is malformed; the text has the message's index, from 0, and the
            field.
    """
    entries = strict_json.load(body, "batch", max_bytes=_MAX_BYTES)
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_MESSAGES:
        raise InvalidRequest(f"batch: an array of 1 to {MAX_MESSAGES} messages expected")
    for index, entry in enumerate(entries):
        yield _message(entry, f"message {index}")


def _message(entry: Any, what: str) -> Message:
    fields = strict_json.as_object(entry, what)
    text = fields.get("Body", "")
    broker, properties = (
        strict_json.as_object({} if fields.get(name) is None else fields[name], f"{what}: {name}")
        for name in ("BrokerProperties", "UserProperties")
    )
    for name, value in properties.items():
        _check(name, value, what)
    try:
        return message_of_broker_properties(broker, body=text.encode(), properties=properties)
    except InvalidRequest as error:
        raise InvalidRequest(f"{what}: {error}") from error
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"{what}: Body: a string expected") from error


def _check(name: str, value: Value, what: str) -> None:
    legal = isinstance(value, bool | float | str) or (
        isinstance(value, int) and -(2**63) <= value < 2**63
    )
    if not legal:
        raise InvalidRequest(
            f"{what}: UserProperties: {name:.80}: a string, a number or true or false expected"
        )


def _text(body: Any) -> str | None:
    try:
        return bytes(body).decode()
    except UnicodeDecodeError:
        return None
