"""
The envelope of a diverted message.

A diverted message carries the properties of the legacy client (reference: Microsoft's
SendAvailabilityPairedNamespace; types included, so that its syphon and ours understand each
other) and ours, which say where it came from, when it expires, and prove that a gateway with
the key wrote it: whoever can write to a backlog queue could otherwise write to any entity.

    x-ms-path                     string      the entity on the primary
    x-ms-sessionid                string      only where the message has a session
    x-ms-timetolive               described   com.microsoft:timespan, long ticks of 100 ns
    x-ms-scheduledenqueuetimeutc  timestamp
    x-pairgate-v                  string      "1"
    x-pairgate-pair               string      label of the pair that diverted it
    x-pairgate-origin             string      the gateway
    x-pairgate-attempt            string      one id for each physical send
    x-pairgate-expires            string      absolute expiry, ISO 8601, empty: never
    x-pairgate-kid                string      id of the key
    x-pairgate-mac                string      HMAC-SHA256, hexadecimal
"""

import hashlib
import hmac
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import (
    Body,
    DataBody,
    Described,
    Message,
    Properties,
    Value,
    symbol,
)

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
OURS: Final = (VERSION, PAIR, ORIGIN, ATTEMPT, EXPIRES, KEY_ID, MAC)
RESERVED: Final = frozenset((*LEGACY, *OURS))

ENVELOPE_VERSION: Final = "1"
TIMESPAN: Final = symbol("com.microsoft:timespan")
TICKS_PER_MICROSECOND: Final = 10
RESERVE: Final = 1024  # bytes of envelope, beside path and session

EncodeValue = Callable[[Value], bytes]
"""Encodes a value of a section; of a map, with sorted keys. `wire.amqp` has it."""


class Malformed(MessageError):
    """A backlog message that can never be moved: it belongs into the dead-letter sub-queue."""


class NotOurs(MessageError):
    """A backlog message that this pair must not touch: somebody else may know what it is."""


@attrs.frozen(kw_only=True)
class EnvelopeKey:
    """A key of the envelope's MAC; `id` travels with each message."""

    id: str
    key: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Unwrapped:
    """What an envelope held. `message` has its session and schedule back, its time to live not yet."""

    entity: EntityPath
    message: Message
    time_to_live: timedelta | None
    expires: datetime | None
    attempt: str = ""  # empty: written by the legacy client
    origin: str = ""


def reserve(entity: EntityPath, message: Message) -> int:
    """How many bytes a diversion may add to that message."""
    return RESERVE + len(entity.name.encode()) + len((message.session_id or "").encode())


def refuse_reserved(message: Message) -> None:
    """
    Refuse a message that already carries a property of the envelope, in good times too.

    Raises:
        InvalidRequest: the text names the property.
    """
    taken = RESERVED.intersection(message.properties)
    if taken:
        raise InvalidRequest(
            f"application property {min(taken)!r} is reserved for the backlog's envelope"
        )


@attrs.frozen(kw_only=True)
class Envelope:
    """
    Wraps diverted messages and opens them again, for one pair.

    The first key signs, all verify. `encode` gives the bytes of a section's value.
    """

    pair: str
    origin: str
    keys: tuple[EnvelopeKey, ...]
    encode: EncodeValue = attrs.field(repr=False)
    accept_legacy: bool = False

    def wrap(self, message: Message, entity: EntityPath, *, attempt: str, now: datetime) -> Message:
        """The message as it goes to a backlog queue, where nothing may expire or wait."""
        envelope: dict[str, Value] = {PATH: entity.name}
        if message.session_id is not None:
            envelope[SESSION] = message.session_id
        if message.time_to_live is not None:
            envelope[TIME_TO_LIVE] = Described(TIMESPAN, _ticks(message.time_to_live))
        if message.scheduled is not None:
            envelope[SCHEDULED] = message.scheduled
        envelope[VERSION] = ENVELOPE_VERSION
        envelope[PAIR] = self.pair
        envelope[ORIGIN] = self.origin
        envelope[ATTEMPT] = attempt
        envelope[EXPIRES] = _expiry(message, now)
        envelope[KEY_ID] = self.keys[0].id
        wrapped = attrs.evolve(
            message,
            properties={**message.properties, **envelope},
            session_id=None,
            partition_key=message.partition_key if message.session_id is None else None,
            time_to_live=None,
            absolute_expiry=None,
            scheduled=None,
        )
        mac = self._mac(self.keys[0], wrapped)
        return attrs.evolve(wrapped, properties={**wrapped.properties, MAC: mac})

    def unwrap(self, message: Message) -> Unwrapped:
        """
        What was diverted, and where it belongs.

        Raises:
            Malformed: no path, a wrong type, a wrong MAC under a known key.
            NotOurs: another pair's, an unknown key or version, or not authenticated at all.
        """
        authentic = VERSION in message.properties
        if authentic:
            self._authenticate(message)
        path = message.properties.get(PATH)
        if not isinstance(path, str):
            raise Malformed(f"{PATH}: a string expected, found {type(path).__name__}")
        if not authentic and not self.accept_legacy:
            raise NotOurs("not authenticated, and accept_legacy_backlog is false")
        try:
            entity = EntityPath.parse(path)
        except InvalidRequest as error:
            raise Malformed(f"{PATH}: {error}") from error
        session = message.properties.get(SESSION)
        if session is not None and not isinstance(session, str):
            raise Malformed(f"{SESSION}: a string expected, found {type(session).__name__}")
        restored = attrs.evolve(
            message,
            properties=without_envelope(message.properties),
            session_id=session if session is not None else message.session_id,
            scheduled=_scheduled(message, text_allowed=authentic),
        )
        return Unwrapped(
            entity=entity,
            message=restored,
            time_to_live=_time_to_live(message, text_allowed=authentic),
            expires=_expires(message),
            attempt=str(message.properties.get(ATTEMPT, "")),
            origin=str(message.properties.get(ORIGIN, "")),
        )

    def _authenticate(self, message: Message) -> None:
        found = {name: message.properties.get(name) for name in OURS}
        wrong = next((name for name, value in found.items() if not isinstance(value, str)), None)
        if wrong is not None:
            raise Malformed(f"{wrong}: a string expected, found {type(found[wrong]).__name__}")
        if found[VERSION] != ENVELOPE_VERSION:
            raise NotOurs(f"{VERSION} is {found[VERSION]!r}, known is {ENVELOPE_VERSION!r}")
        if found[PAIR] != self.pair:
            raise NotOurs(f"it belongs to the pair {found[PAIR]!r}")
        key = next((key for key in self.keys if key.id == found[KEY_ID]), None)
        if key is None:
            raise NotOurs(f"the key {found[KEY_ID]!r} is not known")
        if not hmac.compare_digest(self._mac(key, message).encode(), str(found[MAC]).encode()):
            raise Malformed(f"{MAC} is wrong: the message was not written, or was changed")

    def _mac(self, key: EnvelopeKey, message: Message) -> str:
        properties = message.properties
        ticks = _time_to_live(message, text_allowed=True)
        scheduled = _scheduled(message, text_allowed=True)
        fields = (
            str(properties[VERSION]),
            str(properties[PAIR]),
            str(properties[ORIGIN]),
            str(properties.get(PATH, "")),
            _text_of_id(message.message_id),
            str(properties[EXPIRES]),
            str(properties[ATTEMPT]),
            str(properties.get(SESSION, "")),
            "" if ticks is None else str(_ticks(ticks)),
            # Whole seconds, since a date in an HTTP header has no more.
            "" if scheduled is None else str(int(scheduled.timestamp())),
        )
        digest = hmac.new(key.key, digestmod=hashlib.sha256)
        for field in fields:
            data = field.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(4, "big") + data)
        digest.update(hashlib.sha256(self.encode(without_envelope(properties))).digest())
        digest.update(self._body_digest(message.body))
        return digest.hexdigest()

    def _body_digest(self, body: Body) -> bytes:
        match body:
            case bytes():
                return hashlib.sha256(body).digest()
            case DataBody(parts):
                return hashlib.sha256(b"".join(parts)).digest()
            case SequenceBody(sequences):
                content: Value = [list(sequence) for sequence in sequences]
            case ValueBody(content):
                pass
        return hashlib.sha256(self.encode(content)).digest()


def remaining(unwrapped: Unwrapped, now: datetime) -> timedelta | None:
    """
    The time to live that is left: it kept running in the backlog. Zero or less: expired.

    A scheduled message begins to live at its date, as in Service Bus.
    """
    if unwrapped.expires is None:
        return unwrapped.time_to_live
    scheduled = unwrapped.message.scheduled
    begin = now if scheduled is None else max(now, scheduled)
    return unwrapped.expires - begin


def without_envelope(properties: Properties) -> dict[str, Value]:
    return {name: value for name, value in properties.items() if name not in RESERVED}


def _ticks(span: timedelta) -> int:
    return (span // timedelta(microseconds=1)) * TICKS_PER_MICROSECOND


def _expiry(message: Message, now: datetime) -> str:
    if message.time_to_live is None:
        return ""
    begin = now if message.scheduled is None else max(now, message.scheduled)
    try:
        return (begin + message.time_to_live).isoformat()
    except OverflowError:  # past the year 9999
        return ""


def _expires(message: Message) -> datetime | None:
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


def _time_to_live(message: Message, *, text_allowed: bool) -> timedelta | None:
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
    """What REST makes of a timespan, as it has no such type: .NET's `d.hh:mm:ss.fffffff`."""
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


def _scheduled(message: Message, *, text_allowed: bool) -> datetime | None:
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
    except ValueError as error:
        raise Malformed(f"{SCHEDULED}: an HTTP date expected, found {text[:40]!r}") from error
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _text_of_id(message_id: Value) -> str:
    match message_id:
        case None:
            return ""
        case bytes():
            return message_id.hex()
        case str():
            return message_id
        case other:
            return str(getattr(other, "value", other))
