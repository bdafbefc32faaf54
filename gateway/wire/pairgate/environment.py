"""Deliveries as the environment of a command: the standard fields and the properties, as text."""

import json
import re
from collections.abc import Mapping
from typing import Final

from gateway.domain.message import Delivery, Value
from gateway.wire.servicebus.broker_properties import delivery_properties

_PREFIX: Final = "PAIRGATE_"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def build_environment(delivery: Delivery, *, queue: str) -> Mapping[str, str]:
    """
    The variables that a delivery adds to a command's environment.

    `PAIRGATE_PROPERTIES` has all application properties, as JSON. Those with a name that is valid
    for a variable are in `PAIRGATE_PROPERTY_NAME` too, in the message's spelling.
    """
    message = delivery.message
    fields = {
        "QUEUE": queue,
        "ATTEMPT": str(delivery.delivery_count),
        "SEQUENCE_NUMBER": str(delivery.sequence_number),
        "MESSAGE_ID": _plain(message.message_id),
        "CORRELATION_ID": _plain(message.correlation_id),
        "SESSION_ID": message.session_id,
        "SUBJECT": message.subject,
        "REPLY_TO": message.reply_to,
        "CONTENT_TYPE": message.content_type,
        "BROKER_PROPERTIES": json.dumps(delivery_properties(delivery), default=str),
        "PROPERTIES": json.dumps(dict(message.properties), default=_plain),
    }
    for name, value in message.properties.items():
        if _NAME.fullmatch(name):
            fields[f"PROPERTY_{name}"] = _plain(value)
    return {
        f"{_PREFIX}{name}": text
        for name, text in fields.items()
        if text is not None and _is_writable(text)
    }


def _plain(value: Value) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(getattr(value, "value", value))


def _is_writable(text: str) -> bool:
    """True if a variable can have the text: no zero byte, and no half of a surrogate pair."""
    return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text)
