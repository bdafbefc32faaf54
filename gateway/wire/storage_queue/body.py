"""
Messages as texts, the only form of a message in Storage Queue.

    a text alone       stays one, so that any Storage client reads it
    anything more      {"pairgate":1,"expires":"2026-11-22T10:00:00.5+00:00","amqp":"AFNw..."}

`amqp` is the message as AMQP 1.0 encodes it, in Base64: no field and no type is lost, and no text
is illegal in XML. `expires` is present if the message has a time to live: the service's own dates
have whole seconds, to which the life of a bare text is rounded up. A text that begins like the
second form goes in it too.

The service gives its own id and date of insertion. The id and the date of creation that the
endpoint `storage-queue` gives to a text are replaced by the service's; any other id travels in the
second form.
"""

import base64
import math
import re
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from gateway.domain.clocks.times import moved
from gateway.domain.errors import InvalidRequest, MessageError, MessageTooLarge
from gateway.domain.message import Message
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.http import strict_json
from gateway.wire.http.hardened_xml import is_legal
from gateway.wire.storage_queue.operations import (
    MAX_BODY,
    MAX_MESSAGE,
    MAX_VISIBILITY,
    NEVER,
    PutMessage,
    QueueMessage,
)
from gateway.wire.storage_queue.xml import build_text

_MARK: Final = b'{"pairgate":1,'
_OVERHEAD: Final = 96  # bytes of the form, besides the Base64
_SAFE: Final = (
    MAX_BODY // 8
)  # bytes of a text that fits, however many of its characters are escaped
MAX_ENCODED: Final = (MAX_MESSAGE - _OVERHEAD) // 4 * 3
"""The largest encoded message that the second form can hold, in bytes."""

_GUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)
_LONGEST_LIFE: Final = 2**31 - 1  # seconds; the most of the service's Int32


@attrs.frozen(kw_only=True)
class Read:
    """The message in a text. `expires` is that of the second form; None: not given."""

    message: Message
    expires: datetime | None = None
    is_text: bool = False  # the body is the whole text, which any Storage client may have put


def build_put(queue: str, message: Message, now: datetime, *, keep_ids: bool = True) -> PutMessage:
    """
    The operation that puts a message into a queue of that name.

    The message is hidden until it is due, as far as the service can hide messages, and lives from
    then on. Without `keep_ids`, the id of a message that is otherwise only a text is dropped.

    Raises:
        InvalidRequest: AMQP can't express the message.
        MessageTooLarge: the text says the limit.
    """
    due = now if message.scheduled is None else max(now, message.scheduled)
    hidden = math.ceil((due - now).total_seconds())
    life = NEVER
    if message.time_to_live is not None and message.time_to_live.total_seconds() <= _LONGEST_LIFE:
        life = hidden + max(1, math.ceil(message.time_to_live.total_seconds()))
    return PutMessage(
        queue=queue,
        body=build_body(message, _expiry(message, due), keep_ids=keep_ids),
        visibility=min(hidden, MAX_VISIBILITY),
        time_to_live=life if life <= _LONGEST_LIFE else NEVER,
    )


def build_body(message: Message, expires: datetime | None, *, keep_ids: bool = True) -> bytes:
    """The text for the message. Raises as `build_put`."""
    text = _plain(message, keep_ids=keep_ids)
    return _form(message, expires) if text is None else text


def build_text_body(message_id: str, body: bytes) -> bytes:
    """The text for another body of a message that was a text alone. Raises as `build_put`."""
    return build_body(Message(message_id=message_id, body=body), None, keep_ids=False)


def parse_item(item: QueueMessage) -> Read:
    """The message in a service's message; a text that isn't ours becomes its body."""
    text = item.body or b""
    found = _read_form(text)
    if found is not None:
        return found
    life = None
    if item.expires is not None and item.expires > item.inserted:
        life = item.expires - item.inserted
    message = Message(message_id=item.message_id, body=text, time_to_live=life)
    return Read(message=message, is_text=True)


def _plain(message: Message, *, keep_ids: bool) -> bytes | None:
    """The body alone; None if the message has more, or the body wouldn't be returned unchanged."""
    body = message.body
    if not isinstance(body, bytes) or body.startswith(_MARK):
        return None
    rest = attrs.evolve(message, body=b"", time_to_live=None, message_id=None, creation_time=None)
    if rest != Message() or not _may_lose_id(message, keep_ids=keep_ids):
        return None
    life = message.time_to_live
    if life is not None and life.total_seconds() > _LONGEST_LIFE:
        return None
    return body if _is_safe(body) else None


def _may_lose_id(message: Message, *, keep_ids: bool) -> bool:
    own, made = message.message_id, message.creation_time
    if own is None or not keep_ids:
        return made is None or isinstance(made, datetime)
    return isinstance(own, str) and bool(_GUID.fullmatch(own)) and isinstance(made, datetime)


def _is_safe(body: bytes) -> bool:
    """True if XML can express the text, and a parser returns it unchanged."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    # Servers and clients may trim white space, and XML parsers read a carriage return as a line
    # feed.
    if text != text.strip() or "\r" in text or not is_legal(text):
        return False
    return len(body) <= _SAFE or (len(body) <= MAX_MESSAGE and len(build_text(body)) <= MAX_BODY)


def _form(message: Message, expires: datetime | None) -> bytes:
    try:
        encoded = encode_message(message)
    except MessageError as error:
        raise InvalidRequest(str(error)) from error
    if len(encoded) > MAX_ENCODED:
        raise MessageTooLarge(
            f"message of {len(encoded)} bytes, encoded; {MAX_ENCODED} fit into one of Storage Queue"
        )
    date = "" if expires is None else f'"expires":"{expires.isoformat()}",'
    return b'%s%s"amqp":"%s"}' % (_MARK, date.encode(), base64.b64encode(encoded))


def _read_form(text: bytes) -> Read | None:
    """The content of the second form; None if the text doesn't have that form."""
    if not text.startswith(_MARK):
        return None
    try:
        fields: dict[str, Any] = strict_json.as_object(
            strict_json.load(text, "message", max_bytes=MAX_MESSAGE), "message"
        )
        encoded = base64.b64decode(fields["amqp"], validate=True)
        message = decode_message(encoded)
        expires = _date(fields["expires"]) if "expires" in fields else None
    except (InvalidRequest, MessageError, KeyError, TypeError, ValueError, OverflowError):
        return None
    return Read(message=message, expires=expires)


def _date(text: str) -> datetime:
    """
    The date in UTC, as all dates of deliveries.

    Raises:
        ValueError, OverflowError: the text is no date, has no time zone, or in UTC is beyond year
            9999.
    """
    date = datetime.fromisoformat(text)
    if date.tzinfo is None:
        raise ValueError("a date with its zone expected")
    return date.astimezone(UTC)


def _expiry(message: Message, due: datetime) -> datetime | None:
    return None if message.time_to_live is None else moved(due, message.time_to_live)
