"""
Descriptions of entities: XML with the properties that an entity was created with, and its figures.

    <QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">
      <LockDuration>PT1M</LockDuration> ...

Each kind of entity has a table of its elements, in the order of Service Bus's own serializer, on
which its clients rely. A request needs to have only the elements that it sets; the others take
their defaults.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.wire.http.hardened_xml import is_legal, text_of
from gateway.wire.servicebus.management_values import (
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
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
LONGEST_LOCK: Final = timedelta(minutes=5)
LONGEST_WINDOW: Final = timedelta(days=7)
_COUNT_DETAILS: Final = "CountDetails"
_COUNTS: Final = (
    "ActiveMessageCount",
    "DeadLetterMessageCount",
    "ScheduledMessageCount",
    "TransferMessageCount",
    "TransferDeadLetterMessageCount",
)
# An attribute of CountDetails, between Pairgates: the elements whose number means "not known". SDKs
# expect a number in each element, and ignore attributes.
_UNKNOWN: Final = "unknown"
_SIZE: Final = "SizeInBytes"  # beside CountDetails
_NOTHING: Final[Mapping[str, str]] = {}
_SPACE_KEPT: Final = frozenset({"UserMetadata"})
_FORWARDS: Final = {
    "forward_to": "ForwardTo",
    "forward_dead_lettered_messages_to": "ForwardDeadLetteredMessagesTo",
}


@attrs.frozen
class PropertyElement:
    """
    An element for a property of an entity; a fact is only in answers, never in requests. An answer
    has no element for the value None of a property with `optional`.
    """

    element: str
    name: str
    render: Callable[[Any], str]
    parse: Callable[[str], Any]
    is_fact: bool = False
    optional: bool = False


@attrs.frozen
class ConstantElement:
    """An element with the same value for each entity, which clients expect."""

    element: str
    text: str


@attrs.frozen
class MessageTotal:
    """The element with the number of all messages: the sum of these fields."""

    names: tuple[str, ...]
    element: str = "MessageCount"


@attrs.frozen
class CountDetails:
    """
    The element CountDetails: `fields` maps its elements to attributes; its other elements are 0.

    A count that is None, or that other consumers make uncertain, is named as unknown.
    """

    fields: Mapping[str, str]
    element: str = _COUNT_DETAILS


@attrs.frozen
class NestedElement:
    """
    An element with elements in it. `build` makes the whole element; `parse` gets the description.
    """

    element: str
    name: str
    build: Callable[[Any], str]
    parse: Callable[[Element], Any]


@attrs.frozen
class Slot:
    """The place of an element that `build_properties` is given; answers don't have it."""

    element: str


Item = PropertyElement | ConstantElement | MessageTotal | CountDetails | NestedElement | Slot


@attrs.frozen(kw_only=True)
class Table:
    """The elements of one kind of description, in their order."""

    element: str
    items: tuple[Item, ...]

    def build_properties(self, properties: object, slots: Mapping[str, str] = _NOTHING) -> str:
        """
        Build the element for a request; `slots` are whole elements by their names.

        Raises:
            InvalidRequest: a text that XML can't hold; the text names the element.
        """
        parts = []
        for item in self.items:
            if isinstance(item, PropertyElement) and not item.is_fact:
                text = item.render(getattr(properties, item.name))
                parts.append(leaf(item.element, text) if text else "")
            elif isinstance(item, NestedElement) and (value := getattr(properties, item.name)):
                parts.append(item.build(value))
            elif isinstance(item, Slot):
                parts.append(slots.get(item.element, ""))
        return enclosed(self.element, "".join(parts))

    def build_info(self, info: object, properties: object) -> str:
        """
        Build the element for an answer, with every known element, as the clients expect.

        Raises:
            InvalidRequest: XML can't express a text; the text names the element.
        """
        return enclosed(self.element, "".join(_rendered(i, info, properties) for i in self.items))

    def parse_properties(self, description: Element) -> dict[str, Any]:
        """
        Parse the properties that are present and not empty.

        Raises:
            InvalidRequest: the text names the element and what is expected.
        """
        parts = {
            item.name: value
            for item in self.items
            if isinstance(item, NestedElement) and (value := item.parse(description))
        }
        return self._fields(description, facts=False) | parts

    def parse_facts(self, description: Element) -> dict[str, Any]:
        """As `parse_properties`, for facts."""
        facts = self._fields(description, facts=True)
        details = description.find(f"{{*}}{_COUNT_DETAILS}")
        for item in self.items:
            if isinstance(item, CountDetails) and details is not None:
                unknown = details.get(_UNKNOWN, "").split()
                for element, name in item.fields.items():
                    if element in unknown:
                        facts[name] = None
                    elif text := text_of(details, element):
                        facts[name] = parsed(element, parse_count, text)
                if _SIZE in unknown:
                    facts.pop("size", None)
        return facts

    def _fields(self, description: Element, *, facts: bool) -> dict[str, Any]:
        return {
            item.name: parsed(item.element, item.parse, text)
            for item in self.items
            if isinstance(item, PropertyElement)
            and item.is_fact == facts
            and (text := _text(description, item.element))
        }


def _rendered(item: Item, info: object, properties: object) -> str:
    match item:
        case PropertyElement(element, name, render):
            value = getattr(info if item.is_fact else properties, name)
            return "" if item.optional and value is None else leaf(element, render(value))
        case NestedElement(_, name, build):
            return build(getattr(properties, name))
        case ConstantElement(element, text):
            return leaf(element, text)
        case MessageTotal(names, element):
            return leaf(element, str(sum(getattr(info, name) or 0 for name in names)))
        case CountDetails():
            return _counted(item, info)
        case Slot():
            return ""


def _counted(item: CountDetails, info: object) -> str:
    counts = {
        name: getattr(info, item.fields[name]) if name in item.fields else 0 for name in _COUNTS
    }
    parts = "".join(f"<d2p1:{k}>{count_text(v)}</d2p1:{k}>" for k, v in counts.items())
    unknown = {name for name, count in counts.items() if count is None}
    if getattr(info, "other_consumers", 0):
        unknown.add(_COUNTS[0])
    if getattr(info, "size", 0) is None:
        unknown.add(_SIZE)
    told = f' {_UNKNOWN}="{" ".join(sorted(unknown))}"' if unknown else ""
    return f'<{item.element} xmlns:d2p1="{COUNT_NAMESPACE}"{told}>{parts}</{item.element}>'


# Fields that several tables share


def text_field(element: str, name: str) -> PropertyElement:
    return PropertyElement(element, name, optional_text, short_text, optional=True)


def flag_field(element: str, name: str) -> PropertyElement:
    return PropertyElement(element, name, flag_text, parse_flag)


def span_field(element: str, name: str, most: timedelta | None = None) -> PropertyElement:
    parse = positive_duration if most is None else partial(bounded_duration, most)
    return PropertyElement(element, name, duration_text, parse)


def number_field(element: str, name: str) -> PropertyElement:
    return PropertyElement(element, name, str, partial(parse_number, 1, MAX_INT))


def count_field(element: str, name: str) -> PropertyElement:
    return PropertyElement(element, name, count_text, parse_count, is_fact=True)


def optional_count_field(element: str, name: str) -> PropertyElement:
    return PropertyElement(element, name, count_text, parse_count, is_fact=True, optional=True)


def date_field(element: str, name: str) -> PropertyElement:
    return PropertyElement(element, name, date_text, parse_date, is_fact=True)


STATUS: Final = PropertyElement("Status", "status", lambda status: str(status.value), parse_status)
DATES: Final = (
    date_field("CreatedAt", "created"),
    date_field("UpdatedAt", "updated"),
    date_field("AccessedAt", "accessed"),
)
MAX_MESSAGE_SIZE: Final = PropertyElement(
    "MaxMessageSizeInKilobytes", "max_message_size", kilobytes_text, parse_kilobytes
)
AVAILABLE: Final = ConstantElement("EntityAvailabilityStatus", "Available")


# Forwarding destinations: names for us, URIs for clients


def with_local_targets(values: dict[str, Any], host: str) -> dict[str, Any]:
    """
    The properties with names of entities instead of clients' `sb://host/name`.

    Raises:
        InvalidRequest: a host other than `host` (empty: any host is accepted), to which we can't
            forward.
    """
    return values | {
        name: _local_name(element, values[name], host)
        for name, element in _FORWARDS.items()
        if name in values
    }


def targets_at(properties: Any, host: str) -> dict[str, Any]:
    """The properties with URIs instead of names of entities, as Service Bus stores them."""
    found = {name: getattr(properties, name) for name in _FORWARDS}
    return {name: f"sb://{host}/{target}" for name, target in found.items() if target}


def _local_name(element: str, text: str, host: str) -> str:
    _, scheme_end, rest = text.partition("://")
    if not scheme_end:
        return text.strip("/")
    there, _, path = rest.partition("/")
    if host and _host_name(there) != _host_name(host):
        raise InvalidRequest(
            f"{element}: an entity of this namespace, {host}, expected, got {text!r:.300}"
        )
    return path.strip("/")


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host.lower()


# XML


def leaf(name: str, text: str, attributes: str = "") -> str:
    """
    An element with a text.

    Raises:
        InvalidRequest: XML can't hold the text.
    """
    if not is_legal(text):
        raise InvalidRequest(f"{name} has a character that XML can't express")
    # XML parsers would read a bare carriage return as a line feed (XML 1.0, 2.11).
    content = escape(text, {"\r": "&#13;"})
    return f"<{name}{attributes}>{content}</{name}>" if content else f"<{name}{attributes}/>"


def enclosed(element: str, content: str) -> str:
    """The outermost element of a description."""
    return f'<{element} xmlns="{NAMESPACE}" xmlns:i="{INSTANCE}">{content}</{element}>'


def parsed(what: str, parse: Callable[[str], Any], text: str) -> Any:
    """
    The result of `parse`.

    Raises:
        InvalidRequest: with the error of `parse`, about `what`.
    """
    try:
        return parse(text)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{what:.60}: {error}, got {text!r:.80}") from error


def _text(description: Element, element: str) -> str:
    child = description.find(f"{{{NAMESPACE}}}{element}")
    text = "" if child is None else child.text or ""
    return text if element in _SPACE_KEPT else text.strip()
