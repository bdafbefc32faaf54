"""
The documents of the Queue service, both directions: messages, access control lists, properties.

    <QueueMessage><MessageText>hello</MessageText></QueueMessage>

Elements are in the service's order, on which some clients rely. A text that XML can't express is
sent as Base64.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape, quoteattr

from gateway.domain.message import MAX_REASON_LENGTH
from gateway.wire.http.date import format_http_date, parse_http_date
from gateway.wire.http.hardened_xml import (
    MAX_BYTES,
    XmlError,
    is_legal,
    parse_xml,
    text_of,
    without_illegal,
)
from gateway.wire.storage_queue.errors import DECLARATION, StorageRefusal
from gateway.wire.storage_queue.operations import (
    MAX_MESSAGE,
    MAX_MESSAGES,
    MAX_POLICIES,
    Messages,
    QueueItem,
    QueueList,
    QueueMessage,
    Stats,
    StoredPolicy,
)
from gateway.wire.storage_queue.sas import parse_time

T = TypeVar("T")

# A message as nearly all clients write it, with nothing that a parser would change or refuse:
# parsing it this way takes a tenth of the time.
_PLAIN: Final = re.compile(
    rb"(?:<\?xml version=[\"']1\.0[\"'] encoding=[\"'](?:utf|UTF)-8[\"'] ?\?>)?"
    rb"[ \t\n]*<QueueMessage>[ \t\n]*<MessageText>([^<>&\r]*)</MessageText>"
    rb"[ \t\n]*</QueueMessage>[ \t\n]*"
)
# Elements of our own, named as in Service Bus; the SDKs ignore them.
_REASON: Final = "DeadLetterReason"
_DESCRIPTION: Final = "DeadLetterErrorDescription"
_ELEMENTS: Final = (
    *("MessageId", "InsertionTime", "ExpirationTime", "PopReceipt", "TimeNextVisible"),
    *("DequeueCount", "MessageText"),
)
# A list of messages as the service and Azurite write it, if nothing in it is escaped.
_LIST: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?"
    rb'(?:<\?xml version="1\.0" encoding="(?:utf|UTF)-8"(?: standalone="yes")? ?\?>)?'
    rb"<QueueMessagesList>"
)
_ITEM: Final = re.compile(
    b"<QueueMessage>"
    + b"".join(
        rb"(?:<%b>(?P<%b>[^<]*)</%b>)?" % (name, name, name)
        for name in (each.encode() for each in _ELEMENTS)
    )
    + b"</QueueMessage>"
)
_TO_HEED: Final = (b"&", b"\r", b"]]>")  # the parser changes or refuses them
_LIST_NAME: Final = "QueueMessagesList"
_LIST_END: Final = f"</{_LIST_NAME}>".encode()
# the expiry of a message that doesn't expire
END_OF_TIME: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_COUNT: Final = re.compile("[0-9]{1,18}", re.ASCII)
MAX_POLICY_ID: Final = 64  # characters
PERMISSIONS: Final = "raup"
_LONGEST_ITEM: Final = 6 * (MAX_MESSAGE + 2 * MAX_REASON_LENGTH) + 1024
"""Bytes of a message in a list: texts with each character escaped (&quot;), and other fields."""


def root_of(body: bytes, name: str, *, max_bytes: int = MAX_BYTES) -> Element:
    """
    The root of a document, which has that name in any namespace.

    Raises:
        StorageRefusal: InvalidXmlDocument.
    """
    try:
        root = parse_xml(body, max_bytes=max_bytes)
    except XmlError as error:
        raise StorageRefusal("InvalidXmlDocument", f"{error}.") from error
    if root.tag.rpartition("}")[2] != name:
        raise StorageRefusal("InvalidXmlDocument", f"{name} is expected.")
    return root


def leaf(name: str, text: str) -> str:
    if not text:
        return f"<{name} />"
    # Seldom true, and four searches of one character each take a hundredth of a pattern's time.
    if "&" in text or "<" in text or ">" in text or "\r" in text:
        # XML parsers would read a bare carriage return as a line feed (XML 1.0, 2.11).
        text = escape(text, {"\r": "&#13;"})
    return f"<{name}>{text}</{name}>"


def document(name: str, content: str, attributes: str = "") -> bytes:
    if not content:
        return f"{DECLARATION}<{name}{attributes} />".encode()
    return f"{DECLARATION}<{name}{attributes}>{content}</{name}>".encode()


# --- messages in requests


def build_text(body: bytes) -> bytes:
    """The document around a message's text."""
    return document("QueueMessage", leaf("MessageText", as_text(body)))


def parse_text(document: bytes) -> bytes:
    """
    The text of a message.

    Raises:
        StorageRefusal: InvalidXmlDocument.
    """
    plain = _PLAIN.fullmatch(document)
    if plain is not None and (text := _legal(plain[1])) is not None:
        return text
    child = root_of(document, "QueueMessage").find("{*}MessageText")
    if child is None or len(child):
        raise StorageRefusal("InvalidXmlDocument", "MessageText with a text is expected.")
    return (child.text or "").encode()


def _legal(text: bytes) -> bytes | None:
    """The text, if a document can express it."""
    try:
        return text if is_legal(text.decode()) else None
    except UnicodeDecodeError:
        return None


def as_text(body: bytes) -> str:
    """The body for XML: as it is, or in Base64."""
    text = _expressible(body)
    return base64.b64encode(body).decode() if text is None else text


def _expressible(body: bytes) -> str | None:
    """The body as a text; None if XML can't express it."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if is_legal(text) else None


# --- messages in answers


def build_messages(messages: Messages, *, encoded: bool) -> Iterator[bytes]:
    """
    The list of messages, in pieces, each built when it is asked for. `encoded`: each body in
    Base64, as the first version of the service.
    """
    if not messages.items:
        yield document(_LIST_NAME, "")
        return
    yield f"{DECLARATION}<{_LIST_NAME}>".encode()
    for message in messages.items:
        yield from _message(message, encoded=encoded)
    yield _LIST_END


def parse_messages(body: bytes) -> Messages:
    """
    Raises:
        StorageRefusal: InvalidXmlDocument.
    """
    plain = _plain_messages(body)
    if plain is not None:
        return plain
    root = root_of(body, _LIST_NAME, max_bytes=longest_list(MAX_MESSAGES))
    return Messages(tuple(_parsed_message(each) for each in root.findall("{*}QueueMessage")))


def longest_list(messages: int) -> int:
    """The bytes of the longest list with that number of messages."""
    return messages * _LONGEST_ITEM


def _plain_messages(body: bytes) -> Messages | None:
    """
    The messages of a list that an XML parser would neither change nor refuse; None for any other
    list. Messages of 1 KiB take a sixth of the XML parser's time, the largest ones the same time.
    """
    begin = _LIST.match(body)
    if begin is None or any(each in body for each in _TO_HEED):
        return None
    items: list[QueueMessage] = []
    place = begin.end()
    while len(items) <= MAX_MESSAGES and (found := _ITEM.match(body, place)) is not None:
        if found.end() - place > _LONGEST_ITEM or _legal(found[0]) is None:
            return None
        fields = found.groupdict()
        text = fields.pop("MessageText")
        items.append(_message_of({name: (fields[name] or b"").decode() for name in fields}, text))
        place = found.end()
    return Messages(tuple(items)) if body[place:] == _LIST_END else None


def _message(message: QueueMessage, *, encoded: bool) -> Iterator[bytes]:
    parts = [
        "<QueueMessage>",
        leaf("MessageId", message.message_id),
        leaf("InsertionTime", format_http_date(message.inserted)),
        leaf("ExpirationTime", format_http_date(message.expires or END_OF_TIME)),
    ]
    if message.pop_receipt is not None:
        parts.append(leaf("PopReceipt", message.pop_receipt))
    if message.visible is not None:
        parts.append(leaf("TimeNextVisible", format_http_date(message.visible)))
    if message.dequeues is not None:
        parts.append(leaf("DequeueCount", str(message.dequeues)))
    yield "".join(parts).encode()
    if message.body is not None:
        yield _text(message.body, encoded=encoded)
    reasons = ((_REASON, message.reason), (_DESCRIPTION, message.description))
    parts = [leaf(name, without_illegal(why)) for name, why in reasons if why is not None]
    yield f"{''.join(parts)}</QueueMessage>".encode()


def _text(body: bytes, *, encoded: bool) -> bytes:
    """The element with the body."""
    text = None if encoded else _expressible(body)
    if text is not None or not body:
        return leaf("MessageText", text or "").encode()
    return b"<MessageText>%b</MessageText>" % base64.b64encode(body)


def _parsed_message(element: Element) -> QueueMessage:
    text = element.find("{*}MessageText")
    texts: dict[str, str | None] = {
        name: text_of(element, name) for name in (*_ELEMENTS, _REASON, _DESCRIPTION)
    }
    return _message_of(texts, None if text is None else (text.text or "").encode())


def _message_of(texts: Mapping[str, str | None], body: bytes | None) -> QueueMessage:
    """The message with these texts of its elements. Only the body may be empty, or have spaces."""

    def text_in(name: str) -> str:
        return (texts.get(name) or "").strip()

    expires = _date("ExpirationTime", text_in("ExpirationTime"))
    return QueueMessage(
        message_id=text_in("MessageId"),
        inserted=_date("InsertionTime", text_in("InsertionTime")) or END_OF_TIME,
        expires=None if expires == END_OF_TIME else expires,
        pop_receipt=text_in("PopReceipt") or None,
        visible=_date("TimeNextVisible", text_in("TimeNextVisible")),
        dequeues=parse_count(text_in("DequeueCount")),
        body=body,
        reason=text_in(_REASON) or None,
        description=text_in(_DESCRIPTION) or None,
    )


def parse_count(text: str) -> int | None:
    """A number of messages or of their deliveries; None if the text isn't a number."""
    return int(text) if _COUNT.fullmatch(text) else None


def _date(name: str, text: str) -> datetime | None:
    date = parse_http_date(text)
    if text and date is None:
        raise StorageRefusal("InvalidXmlDocument", f"{name}: a date is expected.")
    return date


# --- lists of queues


def build_queue_list(
    answer: QueueList, *, endpoint: str, asked: Iterable[tuple[str, str]], metadata: bool
) -> bytes:
    """`asked`: the elements that repeat the client's parameters."""
    parts = [leaf(name, text) for name, text in asked]
    items = "".join(_queue(item, metadata=metadata) for item in answer.items)
    parts.append(f"<Queues>{items}</Queues>" if items else "<Queues />")
    parts.append(leaf("NextMarker", answer.next_marker))
    attributes = f" ServiceEndpoint={quoteattr(f'{endpoint}/')}"
    return document("EnumerationResults", "".join(parts), attributes)


def build_old_queue_list(
    answer: QueueList, *, endpoint: str, asked: Iterable[tuple[str, str]]
) -> bytes:
    """In the format of the service's first version."""
    parts = [leaf(name, text) for name, text in asked]
    items = "".join(
        f"<Queue>{leaf('QueueName', each.name)}{leaf('Url', f'{endpoint}/{each.name}')}</Queue>"
        for each in answer.items
    )
    parts.append(f"<Queues>{items}</Queues>{leaf('NextMarker', answer.next_marker)}")
    return document("EnumerationResults", "".join(parts), f" AccountName={quoteattr(endpoint)}")


def parse_queue_list(body: bytes) -> QueueList:
    """
    Raises:
        StorageRefusal: InvalidXmlDocument.
    """
    root = root_of(body, "EnumerationResults")
    items = tuple(_parsed_queue(each) for each in root.findall("{*}Queues/{*}Queue"))
    return QueueList(items=items, next_marker=text_of(root, "NextMarker"))


def _queue(item: QueueItem, *, metadata: bool) -> str:
    more = ""
    if metadata:
        values = "".join(leaf(name, value) for name, value in item.metadata.items())
        more = f"<Metadata>{values}</Metadata>" if values else "<Metadata />"
    return f"<Queue>{leaf('Name', item.name)}{more}</Queue>"


def _parsed_queue(element: Element) -> QueueItem:
    found = element.find("{*}Metadata")
    values = [] if found is None else list(found)
    metadata = {each.tag.rpartition("}")[2]: each.text or "" for each in values}
    return QueueItem(name=text_of(element, "Name"), metadata=metadata)


# --- access control lists


def build_acl(policies: Iterable[StoredPolicy]) -> bytes:
    return document("SignedIdentifiers", "".join(map(_policy, policies)))


def parse_acl(body: bytes) -> tuple[StoredPolicy, ...]:
    """
    Raises:
        StorageRefusal: InvalidXmlDocument; InvalidXmlNodeValue for a date.
    """
    if not body:
        return ()
    found = root_of(body, "SignedIdentifiers").findall("{*}SignedIdentifier")
    policies = tuple(_parsed_policy(each) for each in found)
    if len(policies) > MAX_POLICIES:
        raise StorageRefusal("InvalidXmlDocument", f"At most {MAX_POLICIES} policies are taken.")
    if len({policy.id for policy in policies}) < len(policies):
        raise StorageRefusal("InvalidXmlDocument", "Each Id may be there once.")
    return policies


def _checked_time(text: str) -> None:
    try:
        parse_time("", text)
    except StorageRefusal as error:
        raise ValueError("a time is expected, as in a shared access signature") from error


def _policy(policy: StoredPolicy) -> str:
    start, expiry = _policy_date(policy.start), _policy_date(policy.expiry)
    values = (("Start", start), ("Expiry", expiry), ("Permission", policy.permission))
    parts = "".join(leaf(name, value) for name, value in values if value is not None)
    access = f"<AccessPolicy>{parts}</AccessPolicy>" if parts else ""
    return f"<SignedIdentifier>{leaf('Id', policy.id)}{access}</SignedIdentifier>"


def _policy_date(text: str | None) -> str | None:
    """
    The date of a policy in the service's own form; clients write it in several. A text that isn't a
    date stays as it is: the reader refuses it.
    """
    try:
        date = parse_time("", text or "")
    except StorageRefusal:
        return text
    return None if date is None else precise(date)


def precise(date: datetime) -> str:
    """The date as the service writes it where it doesn't write HTTP's dates: in 100 ns."""
    return f"{date.strftime('%Y-%m-%dT%H:%M:%S.%f')}0Z"


def _parsed_policy(element: Element) -> StoredPolicy:
    name = text_of(element, "Id")
    if not 0 < len(name) <= MAX_POLICY_ID:
        raise StorageRefusal(
            "InvalidXmlDocument", f"Id: 1 to {MAX_POLICY_ID} characters are expected."
        )
    access = element.find("{*}AccessPolicy")
    values = {
        field: None if access is None else text_of(access, tag) or None
        for field, tag in (("start", "Start"), ("expiry", "Expiry"), ("permission", "Permission"))
    }
    for field in ("start", "expiry"):
        parsed_or_refused(field.capitalize(), _checked_time, values[field] or "")
    permission = values["permission"] or ""
    if set(permission) - set(PERMISSIONS):
        raise StorageRefusal("InvalidXmlDocument", f"Permission: of {PERMISSIONS}.")
    return StoredPolicy(id=name, **values)


# --- statistics


def build_stats(stats: Stats) -> bytes:
    time = leaf("LastSyncTime", format_http_date(stats.last_sync))
    inner = f"<GeoReplication>{leaf('Status', stats.status)}{time}</GeoReplication>"
    return document("StorageServiceStats", inner)


def parse_stats(body: bytes) -> Stats:
    """
    Raises:
        StorageRefusal: InvalidXmlDocument.
    """
    found = root_of(body, "StorageServiceStats").find("{*}GeoReplication")
    if found is None:
        raise StorageRefusal("InvalidXmlDocument", "GeoReplication is expected.")
    return Stats(
        status=text_of(found, "Status"),
        last_sync=_date("LastSyncTime", text_of(found, "LastSyncTime")) or END_OF_TIME,
    )


def parsed_or_refused(element: str, parse: Callable[[str], T], text: str) -> T:
    """
    The result of `parse` on an element's text.

    Raises:
        StorageRefusal: InvalidXmlNodeValue, which names the element.
    """
    try:
        return parse(text)
    except ValueError as error:
        extra = {"XmlNodeName": element, "XmlNodeValue": text[:100], "Reason": str(error)}
        raise StorageRefusal("InvalidXmlNodeValue", extra=extra) from error


def decoded(text: str) -> bytes | None:
    """The bytes of a Base64 text; None if it isn't Base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
