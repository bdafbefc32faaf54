"""
A message in Service Bus REST: Content-Type, BrokerProperties, a header for each application
property, and a body of bytes.

With `strict`, which our own client uses, messages that REST can't carry are refused. Only the hints
priority, creation time and absolute expiry are omitted.
"""

import json
import re
from typing import Any, Final
from urllib.parse import unquote

from gateway.domain.errors import NotSupported
from gateway.domain.message import (
    DataBody,
    Delivery,
    Described,
    Message,
    SequenceBody,
    Typed,
    Value,
    ValueBody,
)
from gateway.wire.http import strict_json
from gateway.wire.http.messages import Headers
from gateway.wire.servicebus.broker_properties import (
    BROKER_PROPERTIES,
    broker_properties,
    delivery_of_broker_properties,
    delivery_properties,
    message_of_broker_properties,
)
from gateway.wire.servicebus.custom_properties import properties_of, property_fields

MAX_BYTES: Final = 64 * 1024  # of the JSON in the header
# ASCII only: clients don't agree on an encoding of header texts.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_UNWRITABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NOT_CARRIED: Final = (
    "content_encoding", "user_id", "group_sequence", "annotations", "footer",
)  # fmt: skip


def message_headers(message: Message, *, strict: bool) -> list[tuple[str, str]]:
    """
    Build Content-Type, BrokerProperties and the custom properties.

    Raises:
        NotSupported: with `strict` only: REST can't carry it; the text names the field.
    """
    if strict:
        _refuse_uncarried(message)
    broker = broker_properties(message, strict=strict)
    fields = [(BROKER_PROPERTIES, _json(broker))] if broker else []
    return fields + _own_fields(message, strict=strict)


def delivery_headers(delivery: Delivery) -> list[tuple[str, str]]:
    """Build the headers with which a front end sends a delivery."""
    fields = [(BROKER_PROPERTIES, _json(delivery_properties(delivery)))]
    return fields + _own_fields(delivery.message, strict=False)


def message_of(headers: Headers, body: bytes) -> Message:
    """
    Read a message from a request or a response.

    Raises:
        InvalidRequest: the text names the field.
    """
    return message_of_broker_properties(
        _broker_object(headers),
        body=body,
        content_type=headers.get("Content-Type"),
        properties=properties_of(headers),
    )


def delivery_of(headers: Headers, body: bytes) -> Delivery:
    """
    Read a delivery from a response.

    Raises:
        InvalidRequest: the text names the field.
    """
    location = headers.get("Location") or ""
    return delivery_of_broker_properties(
        _broker_object(headers),
        message_of(headers, body),
        lock_token=unquote(location.rpartition("/")[2]) or None,
    )


def body_bytes(message: Message, *, strict: bool) -> bytes:
    """
    The body as bytes, for REST.

    Without `strict`, other bodies are converted: data sections are joined, a text becomes UTF-8,
    other values become JSON.

    Raises:
        NotSupported: with `strict` only: the body isn't one data section.
    """
    match message.body:
        case bytes() as data:
            return data
        case body if strict:
            kind = type(body).__name__
            raise NotSupported(f"body: Service Bus REST can't carry a {kind}, only bytes")
        case DataBody(parts):
            return b"".join(parts)
        case ValueBody(bytes() as data):
            return data
        case ValueBody(str() as text):
            return text.encode("utf-8", "replace")
        case ValueBody(value):
            return json.dumps(_plain(value), default=str).encode()
        case SequenceBody(sequences):
            return json.dumps(_plain(sequences), default=str).encode()


def _own_fields(message: Message, *, strict: bool) -> list[tuple[str, str]]:
    """Content type and custom properties, which belong to the application."""
    fields: list[tuple[str, str]] = []
    if message.content_type is not None and _is_text(message.content_type, strict, "content type"):
        fields.append(("Content-Type", message.content_type))
    fields += property_fields(message.properties, strict=strict)
    return fields


def _broker_object(headers: Headers) -> dict[str, Any]:
    text = headers.get(BROKER_PROPERTIES)
    if text is None:
        return {}
    value = strict_json.load(text, BROKER_PROPERTIES, max_bytes=MAX_BYTES)
    return strict_json.as_object(value, BROKER_PROPERTIES)


def _json(value: Any) -> str:
    return _ENCODER.encode(value)


def _plain(value: Value) -> Any:
    match value:
        case Typed(_, inner) | Described(_, inner):
            return _plain(inner)
        case dict():
            return {str(_plain(name)): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value


def _refuse_uncarried(message: Message) -> None:
    for field in _NOT_CARRIED:
        if getattr(message, field):
            raise NotSupported(f"{field}: Service Bus REST can't carry it")


def _is_text(text: str, strict: bool, what: str) -> bool:
    legal = not _UNWRITABLE.search(text) and text == text.strip() and text != ""
    if strict and not legal:
        raise NotSupported(f"{what} {text!r:.80}: Service Bus REST can't carry it")
    return legal
