"""What commands print for people: findings, and messages."""

import base64
from typing import Any, Final

from rich.text import Text

from gateway.app.findings import Finding, Grade
from gateway.commands.terminal import printable
from gateway.domain.message import DataBody, Delivery

STYLES: Final = {Grade.GOOD: "green", Grade.WARNING: "yellow", Grade.BAD: "red"}


def finding_line(finding: Finding) -> Text:
    text = printable(f"{finding.subject}: {finding.text}")
    return Text.assemble((f"{finding.grade.value:8}", STYLES[finding.grade]), text)


def delivery_value(delivery: Delivery) -> dict[str, Any]:
    """A delivery as JSON. A body that is no UTF-8 is `body_base64`."""
    message = delivery.message
    value = {
        "sequence_number": delivery.sequence_number,
        "message_id": _text(message.message_id),
        "session_id": message.session_id,
        "content_type": message.content_type,
        "delivery_count": delivery.delivery_count,
        "enqueued": delivery.enqueued.isoformat() if delivery.enqueued else None,
        "properties": {name: _plain(found) for name, found in message.properties.items()},
    }
    body = _body(delivery)
    try:
        return {**value, "body": body.decode()}
    except UnicodeDecodeError:
        return {**value, "body_base64": base64.b64encode(body).decode()}


def delivery_lines(delivery: Delivery) -> tuple[Text, Text]:
    """A delivery for people: a head, and the body."""
    value = delivery_value(delivery)
    properties = " ".join(f"{name}={found}" for name, found in value["properties"].items())
    head = f"#{value['sequence_number']} {value['message_id'] or ''} {properties}".rstrip()
    body = value.get("body", f"{len(_body(delivery))} bytes that are no text")
    return Text(printable(head), style="dim"), Text(printable(body))


def _body(delivery: Delivery) -> bytes:
    match delivery.message.body:
        case bytes() as body:
            return body
        case DataBody(parts):
            return b"".join(parts)
        case other:
            return str(other).encode()


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | None) else _text(value)


def _text(value: object) -> str | None:
    return None if value is None else str(getattr(value, "value", value))
