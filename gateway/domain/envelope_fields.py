"""The properties of the envelope: their names, types and readers."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from gateway.domain.errors import MessageError
from gateway.domain.message import Described, Message, Properties, Value, symbol

PATH: Final = "x-ms-path"
SESSION: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED: Final = "x-ms-scheduledenqueuetimeutc"
LEGACY: Final = (PATH, SESSION, TIME_TO_LIVE, SCHEDULED)

VERSION: Final = "x-pairgate-v"
PAIR: Final = "x-pairgate-pair"
ORIGIN: Final = "x-pairgate-origin"
ATTEMPT: Final = "x-pairgate-attempt"
EXPIRES: Final = "x-pairgate-expires"
KEY_ID: Final = "x-pairgate-kid"
MAC: Final = "x-pairgate-mac"
PRIMARY: Final = "x-pairgate-primary"
ENTITY: Final = "x-pairgate-entity"  # instead of `PATH`, where the message is encrypted
ORDER: Final = "x-pairgate-order"  # only of ordered entities
PARTITION: Final = "x-pairgate-partition"  # the partition key of such a message
OURS: Final = (VERSION, PAIR, ORIGIN, ATTEMPT, EXPIRES, KEY_ID, MAC)  # all are required
CONTENT_HEADER: Final = "x-pairgate-content-header"  # `Message.content_header`
PUBLISH: Final = "x-pairgate-publish"  # `Message.publish_method`
# By the MAC, among the application's own properties.
COVERED: Final = (PRIMARY, ORDER, PARTITION, CONTENT_HEADER, PUBLISH)
RESERVED: Final = frozenset((*LEGACY, *OURS, ENTITY, *COVERED))

TIMESPAN: Final = symbol("com.microsoft:timespan")
TICKS_PER_MICROSECOND: Final = 10
MOST_TICKS: Final = 2**63 - 1


class Malformed(MessageError):
    """A backlog message that can never be moved, and must be dead-lettered."""


class WrongMac(Malformed):
    """
    A message whose MAC doesn't match the key that it names: the message was changed, or its gateway
    has another secret under that id.
    """

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"{MAC} doesn't match the key {key_id!r}: the message was changed,"
            " or its gateway has another secret under that id"
        )
        self.key_id = key_id


class NotOurs(MessageError):
    """A backlog message that this pair must leave untouched: another pair's syphon may move it."""


def without_envelope(properties: Properties) -> dict[str, Value]:
    if RESERVED.issuperset(properties):
        return {}  # as most messages: that check takes a third of the time
    return {name: value for name, value in properties.items() if name not in RESERVED}


def primary_of(message: Message) -> str:
    """The fingerprint of the primary that the message was meant for; empty: unknown."""
    found = message.properties.get(PRIMARY, "")
    if not isinstance(found, str):
        raise Malformed(f"{PRIMARY}: a string expected, found {type(found).__name__}")
    return found


def place_of(message: Message) -> str:
    """The place of a message in its order; empty: it has none."""
    place = message.properties.get(ORDER)
    if place is None:
        return ""
    if not isinstance(place, str) or _PLACE.fullmatch(place) is None:
        raise Malformed(f"{ORDER}: a place in an order expected, found {str(place)[:80]!r}")
    if place.partition(".")[0] != message.session_id:
        raise Malformed(f"{ORDER}: the message is in the session of another order")
    return place


def order_of(message: Message) -> str:
    """The key's digest in the place of a message in its order; empty: the message has none."""
    return place_of(message).partition(".")[0]


_PLACE: Final = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{1,32}\.\d{1,18}", re.ASCII)


def entity_in(properties: Properties) -> str | None:
    """The entity that an envelope names, whether or not it is authentic; None: none."""
    found = properties.get(PATH, properties.get(ENTITY))
    return found if isinstance(found, str) else None


def ticks_of(span: timedelta) -> int:
    """The ticks of a .NET TimeSpan; the longest TimeSpan for more than 29,000 years."""
    return min(span // timedelta(microseconds=1) * TICKS_PER_MICROSECOND, MOST_TICKS)


def expiry_of(message: Message, now: datetime) -> str:
    if message.time_to_live is None:
        return ""
    begin = now if message.scheduled is None else max(now, message.scheduled)
    try:
        return (begin + message.time_to_live).isoformat()
    except OverflowError:  # past the year 9999
        return ""


def expires_of(message: Message) -> datetime | None:
    text = message.properties.get(EXPIRES)
    if not isinstance(text, str) or not text:
        return None
    try:
        expires = datetime.fromisoformat(text)
    except ValueError as error:
        raise Malformed(f"{EXPIRES}: an ISO date expected, found {text!r}") from error
    if expires.tzinfo is None:
        raise Malformed(f"{EXPIRES}: a date with its offset expected, found {text!r}")
    return expires


def time_to_live_of(message: Message, *, text_allowed: bool) -> timedelta | None:
    match message.properties.get(TIME_TO_LIVE):
        case None:
            return None
        case Described(descriptor, int(ticks)) if descriptor == TIMESPAN:
            return _span(ticks)
        case str(text) if text_allowed:
            return _span_of_text(text)
        case other:
            found = type(other).__name__
            raise Malformed(f"{TIME_TO_LIVE}: com.microsoft:timespan expected, found {found}")


def _span(ticks: int) -> timedelta:
    try:
        return timedelta(microseconds=ticks // TICKS_PER_MICROSECOND)
    except OverflowError as error:
        raise Malformed(f"{TIME_TO_LIVE}: {ticks} ticks are out of range") from error


_SPAN_TEXT: Final = re.compile(
    r"(?:(?P<d>\d{1,8})\.)?(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d{1,7}))?", re.ASCII
)


def _span_of_text(text: str) -> timedelta:
    """Parse .NET's text form `d.hh:mm:ss.fffffff`, in which REST carries a TimeSpan."""
    match = _SPAN_TEXT.fullmatch(text)
    if match is None:
        raise Malformed(f"{TIME_TO_LIVE}: d.hh:mm:ss expected, found {text[:40]!r}")
    ticks = int((match["f"] or "").ljust(7, "0"))
    return timedelta(
        days=int(match["d"] or 0),
        hours=int(match["h"]),
        minutes=int(match["m"]),
        seconds=int(match["s"]),
        microseconds=ticks // TICKS_PER_MICROSECOND,
    )


def scheduled_of(message: Message, *, text_allowed: bool) -> datetime | None:
    match message.properties.get(SCHEDULED):
        case None:
            return None
        case datetime() as date:
            return date
        case str(text) if text_allowed:
            return _date_of_text(text)
        case other:
            raise Malformed(f"{SCHEDULED}: a timestamp expected, found {type(other).__name__}")


def _date_of_text(text: str) -> datetime:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError) as error:  # OverflowError: numbers beyond any date
        raise Malformed(f"{SCHEDULED}: an HTTP date expected, found {text[:40]!r}") from error
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def text_of_id(message_id: Value) -> str:
    match message_id:
        case None:
            return ""
        case bytes():
            return message_id.hex()
        case str():
            return message_id
        case other:
            return str(getattr(other, "value", other))
