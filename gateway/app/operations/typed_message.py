"""A message from the words of a command line: its typed body, its properties, its schedule."""

import enum
import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.json_schema import Schema
from gateway.config.values import seconds
from gateway.domain.errors import InvalidRequest
from gateway.wire.http import strict_json

EVENT_VERSION: Final = "1.0"
_REQUIRED: Final = ("id", "source", "specversion", "type")  # of a CloudEvent
_MOST_BYTES: Final = 256 * 1024 * 1024  # the namespace has its own limit
_LARGEST: Final = 2**63  # of the integers that a property can have


class BodyType(enum.Enum):
    """
    The type of a body. Bodies of all types except `BYTES` are checked before the message is sent.
    """

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"
    CLOUD_EVENT = "cloudevents"


CONTENT_TYPES: Final = {
    BodyType.BYTES: None,
    BodyType.TEXT: "text/plain; charset=utf-8",
    BodyType.JSON: "application/json",
    BodyType.CLOUD_EVENT: "application/cloudevents+json",  # structured mode
}


@attrs.frozen(kw_only=True)
class TypedBody:
    """A body that was checked, with its content type."""

    body: bytes
    content_type: str | None
    event_id: str | None = None  # of a CloudEvent


def typed_body(body: bytes, kind: BodyType, schema: Schema | None = None) -> TypedBody:
    """
    Check and return the body, which must be of that type. The schema is checked for JSON and
    CloudEvents only. Raises: Failure: the body is of another type, or doesn't fit the schema.
    """
    content_type, event_id = CONTENT_TYPES[kind], None
    try:
        if kind is BodyType.TEXT:
            body.decode()
        elif kind is not BodyType.BYTES:
            tree = strict_json.load(body, "the body", max_bytes=_MOST_BYTES)
            if kind is BodyType.CLOUD_EVENT:
                event_id = _checked_event(tree)
            if schema is not None:
                schema.check(tree)
    except UnicodeDecodeError as error:
        raise _wrong("the body isn't UTF-8 text") from error
    except InvalidRequest as error:
        raise _wrong(str(error)) from error
    return TypedBody(body=body, content_type=content_type, event_id=event_id)


@attrs.frozen(kw_only=True)
class EventAttributes:
    """The attributes of a CloudEvent that is made around a body."""

    type: str
    source: str
    id: str
    time: datetime
    subject: str | None = None


def event_around(body: bytes, attributes: EventAttributes) -> bytes:
    """A CloudEvent in JSON, with the body as its data: as JSON if it is that, else as a text."""
    event: dict[str, Any] = {
        "specversion": EVENT_VERSION,
        "id": attributes.id,
        "source": attributes.source,
        "type": attributes.type,
        "time": attributes.time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }
    if attributes.subject is not None:
        event["subject"] = attributes.subject
    try:
        data = strict_json.load(body, "the body", max_bytes=_MOST_BYTES)
        event |= {"datacontenttype": "application/json", "data": data}
    except InvalidRequest:
        try:
            event |= {"datacontenttype": "text/plain", "data": body.decode()}
        except UnicodeDecodeError as error:
            raise _wrong("the data of an event: UTF-8 text or JSON expected") from error
    return json.dumps(event, ensure_ascii=False).encode()


def _checked_event(tree: Any) -> str:
    """The id of the event. Raises Failure: the text isn't a CloudEvent."""
    if not isinstance(tree, dict):
        raise _wrong("a CloudEvent is a JSON object")
    lacking = [name for name in _REQUIRED if not isinstance(tree.get(name), str) or not tree[name]]
    if lacking:
        names = ", ".join(lacking)
        raise _wrong(f"a CloudEvent needs a text for {names}")
    if tree["specversion"] != EVENT_VERSION:
        raise _wrong(f"specversion {EVENT_VERSION!r} expected, found {tree['specversion']!r}")
    event_id: str = tree["id"]
    return event_id


def kind_of(name: str, schema: Path | None) -> BodyType:
    """
    The type of that name. With a schema, JSON instead of `bytes`.

    Raises:
        Failure: a body of that type can't have a schema.
    """
    kind = BodyType(name)
    if schema is None:
        return kind
    if kind is BodyType.TEXT:
        raise _wrong("--schema: --type json or cloudevents expected, not text")
    return BodyType.JSON if kind is BodyType.BYTES else kind


def parse_properties(texts: Iterable[str]) -> dict[str, Any]:
    """
    Parse `NAME=TEXT` and `NAME:=JSON`: a number, true, false, or a quoted text.

    Raises:
        Failure: a text has another form.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise _wrong(f"--property: NAME=VALUE or NAME:=JSON expected, found {text!r}")
        if name in found:
            raise _wrong(f"--property: {name!r} is given twice")
        found[name] = _plain_value(name, value) if is_json else value
    return found


def _plain_value(name: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"--property {name}: JSON expected after ':=', found {text!r}") from error
    is_number = isinstance(value, int) and -_LARGEST <= value < _LARGEST
    is_number = is_number or (isinstance(value, float) and math.isfinite(value))
    if not (is_number or isinstance(value, bool | str)):
        raise _wrong(f"--property {name}: a number, true, false or a text expected, found {text}")
    return value


def parse_schedule(text: str, now: datetime) -> datetime:
    """
    The date: a duration from now such as `10m`, or a date of ISO 8601 with its offset.

    Raises:
        Failure: the text is neither, or the date has passed.
    """
    try:
        return now + timedelta(seconds=seconds(text))
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise _wrong(
            "--schedule: a duration such as '10m', or a date such as '2026-11-25T06:00:00Z'"
            f" expected, found {text!r}"
        ) from error
    if date.tzinfo is None:
        raise _wrong(f"--schedule: an offset expected after the date, such as {text}Z")
    if date <= now:
        raise _wrong(f"--schedule: {text} has passed")
    return date.astimezone(UTC)


def _wrong(text: str) -> Failure:
    return Failure(text, ExitCode.WRONG)
