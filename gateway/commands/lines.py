"""Output of commands for people: findings and messages."""

import base64
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.findings import CheckFinding, Grade
from gateway.commands.terminal import printable
from gateway.domain.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, DataBody, Delivery

STYLES: Final = {Grade.GOOD: "green", Grade.NOTE: "", Grade.WARNING: "yellow", Grade.BAD: "red"}


def finding_line(finding: CheckFinding) -> Text:
    text = printable(f"{finding.subject}: {finding.text}")
    return Text.assemble((f"{finding.grade.value:8}", STYLES[finding.grade]), text)


def delivery_value(delivery: Delivery, *, with_body: bool = True) -> dict[str, Any]:
    """A delivery as JSON. A body that isn't UTF-8 is `body_base64`."""
    message = delivery.message
    reason = message.properties.get(DEAD_LETTER_REASON)
    description = message.properties.get(DEAD_LETTER_DESCRIPTION)
    value = {
        "sequence_number": delivery.sequence_number,
        "message_id": _text(message.message_id),
        "session_id": message.session_id,
        "subject": message.subject,
        "correlation_id": _text(message.correlation_id),
        "reply_to": message.reply_to,
        "content_type": message.content_type,
        "delivery_count": delivery.delivery_count,
        "enqueued": _date(delivery.enqueued),
        "expires": _date(delivery.expires),
        "scheduled": _date(message.scheduled),
        "dead_letter_reason": _text(reason),
        "dead_letter_description": _text(description),
        "dead_letter_source": delivery.dead_letter_source,
        "properties": {name: _plain(found) for name, found in message.properties.items()},
    }
    if not with_body:
        return value
    body = _body(delivery)
    try:
        return {**value, "body": body.decode()}
    except UnicodeDecodeError:
        return {**value, "body_base64": base64.b64encode(body).decode()}


def delivery_head(delivery: Delivery) -> list[Text]:
    """The first lines of a delivery for people: its numbers, and its properties."""
    value = delivery_value(delivery, with_body=False)
    properties = " ".join(f"{name}={found}" for name, found in value["properties"].items())
    head = f"#{value['sequence_number']} {value['message_id'] or ''} {properties}".rstrip()
    told = {
        "session": value["session_id"],
        "subject": value["subject"],
        "delivery": value["delivery_count"],
        "enqueued": value["enqueued"],
        "expires": value["expires"],
        "scheduled": value["scheduled"],
        "content type": value["content_type"],
        "dead-lettered": ": ".join(
            filter(None, (value["dead_letter_reason"], value["dead_letter_description"]))
        ),
        "from": value["dead_letter_source"],
    }
    about = ", ".join(f"{name} {found}" for name, found in told.items() if found)
    return [Text(printable(head), style="dim"), Text(printable(f"  {about}"), style="dim")]


def delivery_lines(delivery: Delivery) -> list[Text]:
    """A delivery for people: its head, and the body."""
    value = delivery_value(delivery)
    body = value.get("body")
    text = f"base64: {value['body_base64']}" if body is None else body
    return [*delivery_head(delivery), Text(printable(text))]


def write_body(output: Path, delivery: Delivery) -> Path:
    """
    Write the body to a new file of that name or, in a folder, of the message's sequence number;
    return when it is durable.

    Raises:
        Failure: the file exists already, or can't be written.
    """
    folder = output.is_dir()
    file = output / f"{delivery.sequence_number}.body" if folder else output
    try:
        with file.open("xb") as opened:
            opened.write(_body(delivery))
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        text = f"--output: {file}: {error.strerror}; the message was abandoned"
        raise Failure(text, ExitCode.WRONG) from error
    return file


def _date(date: datetime | None) -> str | None:
    return None if date is None else date.isoformat()


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
