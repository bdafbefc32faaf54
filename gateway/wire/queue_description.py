"""
QueueDescription: the XML that says what a queue was created with, and what it holds.

    <QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">
      <LockDuration>PT1M</LockDuration> ...

Elements stand in the order of Service Bus's own serializer, which its clients rely on. In a request
only what is set has to be there; the rest takes its default.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

import attrs

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest
from gateway.wire.hardened_xml import is_legal, text_of
from gateway.wire.management_values import (
    MAX_INT,
    bounded_duration,
    count_text,
    date_text,
    duration_text,
    flag_text,
    kilobytes_text,
    optional_text,
    parse_count,
    parse_date,
    parse_flag,
    parse_kilobytes,
    parse_number,
    parse_status,
    positive_duration,
    short_text,
)

NAMESPACE: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNT_NAMESPACE: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"


@attrs.frozen
class _Field:
    """An element that is a field of QueueProperties, or, only in an answer, of EntityInfo."""

    element: str
    name: str
    render: Callable[[Any], str]
    parse: Callable[[str], Any]
    is_fact: bool = False


@attrs.frozen
class _Constant:
    """An element that says the same for each queue, since clients want to see it."""

    element: str
    text: str


def _text_field(element: str, name: str) -> _Field:
    return _Field(element, name, optional_text, short_text)


def _flag_field(element: str, name: str) -> _Field:
    return _Field(element, name, flag_text, parse_flag)


def _span_field(element: str, name: str, most: timedelta | None = None) -> _Field:
    parse = positive_duration if most is None else partial(bounded_duration, most)
    return _Field(element, name, duration_text, parse)


def _number_field(element: str, name: str) -> _Field:
    return _Field(element, name, str, partial(parse_number, 1, MAX_INT))


_COUNTS: Final = "CountDetails"
_MESSAGE_COUNT: Final = "MessageCount"
_ELEMENTS: Final = (
    _span_field("LockDuration", "lock_duration", timedelta(minutes=5)),
    _number_field("MaxSizeInMegabytes", "max_size_in_megabytes"),
    _flag_field("RequiresDuplicateDetection", "requires_duplicate_detection"),
    _flag_field("RequiresSession", "requires_session"),
    _span_field("DefaultMessageTimeToLive", "default_time_to_live"),
    _flag_field("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration"),
    _span_field(
        "DuplicateDetectionHistoryTimeWindow", "duplicate_detection_window", timedelta(days=7)
    ),
    _number_field("MaxDeliveryCount", "max_delivery_count"),
    _flag_field("EnableBatchedOperations", "enable_batched_operations"),
    _Field("SizeInBytes", "size", count_text, parse_count, is_fact=True),
    _Constant(_MESSAGE_COUNT, ""),
    _Constant("IsAnonymousAccessible", "false"),
    _Constant("AuthorizationRules", ""),
    _Field("Status", "status", lambda status: str(status.value), parse_status),
    _Field("CreatedAt", "created", date_text, parse_date, is_fact=True),
    _Field("UpdatedAt", "updated", date_text, parse_date, is_fact=True),
    _Field("AccessedAt", "accessed", date_text, parse_date, is_fact=True),
    _Constant("SupportOrdering", "true"),
    _Constant(_COUNTS, ""),
    _span_field("AutoDeleteOnIdle", "auto_delete_on_idle"),
    _Constant("EnablePartitioning", "false"),
    _Constant("EntityAvailabilityStatus", "Available"),
    _Constant("EnableExpress", "false"),
    _text_field("ForwardTo", "forward_to"),
    _text_field("UserMetadata", "user_metadata"),
    _text_field("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to"),
    _Field("MaxMessageSizeInKilobytes", "max_message_size", kilobytes_text, parse_kilobytes),
)
_COUNT_FIELDS: Final = {
    "ActiveMessageCount": "active",
    "DeadLetterMessageCount": "dead_lettered",
    "ScheduledMessageCount": "scheduled",
}
_NO_COUNTS: Final = ("TransferMessageCount", "TransferDeadLetterMessageCount")
_SPACE_KEPT: Final = frozenset({"UserMetadata"})


def build_properties(properties: QueueProperties) -> str:
    """
    Build the element for a request.

    Raises:
        InvalidRequest: a text that XML can't hold; the text names the element.
    """
    parts = []
    for item in _ELEMENTS:
        if isinstance(item, _Field) and not item.is_fact:
            text = item.render(getattr(properties, item.name))
            if text:
                parts.append(_element(item.element, text))
    return _description("".join(parts))


def build_info(info: EntityInfo) -> str:
    """
    Build the element for an answer: every known element, as the clients of Service Bus want it.

    Raises:
        InvalidRequest: a text that XML can't hold; the text names the element.
    """
    size = info.properties.max_message_size or info.max_message_size
    properties = attrs.evolve(info.properties, max_message_size=size)
    return _description("".join(_of_info(item, info, properties) for item in _ELEMENTS))


def _of_info(item: _Field | _Constant, info: EntityInfo, properties: QueueProperties) -> str:
    match item:
        case _Field(element, name, render):
            return _element(element, render(getattr(info if item.is_fact else properties, name)))
        case _Constant(element) if element == _MESSAGE_COUNT:
            return _element(element, str(sum(_counts(info))))
        case _Constant(element) if element == _COUNTS:
            return _count_details(info)
        case _Constant(element, text):
            return _element(element, text)


def _counts(info: EntityInfo) -> list[int]:
    return [getattr(info, field) or 0 for field in _COUNT_FIELDS.values()]


def _count_details(info: EntityInfo) -> str:
    known = dict(zip(_COUNT_FIELDS, _counts(info), strict=True)) | dict.fromkeys(_NO_COUNTS, 0)
    parts = "".join(f"<d2p1:{name}>{count}</d2p1:{name}>" for name, count in known.items())
    return f'<{_COUNTS} xmlns:d2p1="{COUNT_NAMESPACE}">{parts}</{_COUNTS}>'


def _element(name: str, text: str) -> str:
    if not is_legal(text):
        raise InvalidRequest(f"{name}: a character that XML can't hold")
    # A bare carriage return would be read as a line feed (XML 1.0, 2.11).
    content = escape(text, {"\r": "&#13;"})
    return f"<{name}>{content}</{name}>" if content else f"<{name}/>"


def _description(content: str) -> str:
    return (
        f'<QueueDescription xmlns="{NAMESPACE}"'
        f' xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{content}</QueueDescription>'
    )


def parse_properties(description: Element) -> QueueProperties:
    """
    Read what is there; what isn't, or is empty, takes its default.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    return QueueProperties(**_fields(description, facts=False))


def parse_info(path: EntityPath, description: Element) -> EntityInfo:
    """
    Read what a namespace tells of a queue. Its size limit may be the namespace's own, so it says
    nothing of what the queue was created with.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    properties = parse_properties(description)
    facts = _fields(description, facts=True)
    counts = description.find(f"{{*}}{_COUNTS}")
    if counts is not None:
        for name, field in _COUNT_FIELDS.items():
            if text := text_of(counts, name):
                facts[field] = _parsed(_Field(name, field, count_text, parse_count), text)
    return EntityInfo(
        path=path,
        properties=attrs.evolve(properties, max_message_size=None),
        max_message_size=properties.max_message_size,
        **facts,
    )


def _fields(description: Element, *, facts: bool) -> dict[str, Any]:
    return {
        item.name: _parsed(item, text)
        for item in _ELEMENTS
        if isinstance(item, _Field)
        and item.is_fact == facts
        and (text := _text(description, item.element))
    }


def _text(description: Element, element: str) -> str:
    child = description.find(f"{{{NAMESPACE}}}{element}")
    text = "" if child is None else child.text or ""
    return text if element in _SPACE_KEPT else text.strip()


def _parsed(item: _Field, text: str) -> Any:
    try:
        return item.parse(text)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{item.element}: {error}, got {text!r:.80}") from error
