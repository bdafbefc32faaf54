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
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.envelope_fields import (
    ATTEMPT,
    EXPIRES,
    KEY_ID,
    MAC,
    ORIGIN,
    OURS,
    PAIR,
    PATH,
    RESERVED,
    SCHEDULED,
    SESSION,
    TIME_TO_LIVE,
    TIMESPAN,
    VERSION,
    Malformed,
    NotOurs,
    WrongMac,
    expires_of,
    expiry_of,
    scheduled_of,
    text_of_id,
    ticks_of,
    time_to_live_of,
    without_envelope,
)
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import (
    Body,
    DataBody,
    Described,
    Message,
    Properties,
    SequenceBody,
    Value,
    ValueBody,
)
from gateway.domain.values import value

ENVELOPE_VERSION: Final = "1"
RESERVE: Final = 1024  # bytes of envelope, beside path and session

_entity_of: Final = lru_cache(maxsize=1024)(EntityPath.parse)  # a backlog is of few entities

EncodeValue = Callable[[Value], bytes]
"""Encodes a value of a section; of a map, with sorted keys. `wire.amqp` has it."""


@attrs.frozen(kw_only=True)
class EnvelopeKey:
    """A key of the envelope's MAC; `id` travels with each message."""

    id: str
    key: bytes = attrs.field(repr=False)


@value(kw_only=True)
class Unwrapped:
    """What an envelope held. `message` has its session and schedule back, not its time to live."""

    entity: EntityPath
    message: Message
    time_to_live: timedelta | None
    expires: datetime | None
    attempt: str  # empty: written by the legacy client
    origin: str


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

    The first key signs, all verify, also several of one id. `encode` gives the bytes of a section's
    value.
    """

    pair: str
    origin: str
    keys: tuple[EnvelopeKey, ...]
    encode: EncodeValue = attrs.field(repr=False)
    accept_legacy: bool = False
    _no_properties: bytes = attrs.field(init=False, repr=False, eq=False)  # their digest
    _keys_by_id: Mapping[str, list[EnvelopeKey]] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        by_id: dict[str, list[EnvelopeKey]] = {}
        for key in self.keys:
            by_id.setdefault(key.id, []).append(key)
        object.__setattr__(self, "_keys_by_id", by_id)
        object.__setattr__(self, "_no_properties", hashlib.sha256(self.encode({})).digest())

    def wrap(self, message: Message, entity: EntityPath, *, attempt: str, now: datetime) -> Message:
        """The message as it goes to a backlog queue, where nothing may expire or wait."""
        envelope: dict[str, Value] = {PATH: entity.name}
        if message.session_id is not None:
            envelope[SESSION] = message.session_id
        if message.time_to_live is not None:
            envelope[TIME_TO_LIVE] = Described(TIMESPAN, ticks_of(message.time_to_live))
        if message.scheduled is not None:
            envelope[SCHEDULED] = message.scheduled
        envelope[VERSION] = ENVELOPE_VERSION
        envelope[PAIR] = self.pair
        envelope[ORIGIN] = self.origin
        envelope[ATTEMPT] = attempt
        envelope[EXPIRES] = expiry_of(message, now)
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
        mac = self._mac(self.keys[0], wrapped, without_envelope(wrapped.properties))
        return attrs.evolve(wrapped, properties={**wrapped.properties, MAC: mac})

    def unwrap(self, message: Message) -> Unwrapped:
        """
        What was diverted, and where it belongs.

        Raises:
            Malformed: no path, a wrong type.
            WrongMac: a known key gives another MAC.
            NotOurs: another pair's, an unknown key or version, or not authenticated at all.
        """
        authentic = VERSION in message.properties
        own = without_envelope(message.properties)
        if authentic:
            self._authenticate(message, own)
        path = message.properties.get(PATH)
        if not isinstance(path, str):
            raise Malformed(f"{PATH}: a string expected, found {type(path).__name__}")
        if not authentic and not self.accept_legacy:
            raise NotOurs("not authenticated, and accept_legacy_backlog is false")
        try:
            entity = _entity_of(path)
        except InvalidRequest as error:
            raise Malformed(f"{PATH}: {error}") from error
        session = message.properties.get(SESSION)
        if session is not None and not isinstance(session, str):
            raise Malformed(f"{SESSION}: a string expected, found {type(session).__name__}")
        restored = attrs.evolve(
            message,
            properties=own,
            session_id=session if session is not None else message.session_id,
            scheduled=scheduled_of(message, text_allowed=authentic),
        )
        return Unwrapped(
            entity=entity,
            message=restored,
            time_to_live=time_to_live_of(message, text_allowed=authentic),
            expires=expires_of(message),
            attempt=str(message.properties.get(ATTEMPT, "")),
            origin=str(message.properties.get(ORIGIN, "")),
        )

    def _authenticate(self, message: Message, own: Properties) -> None:
        found = message.properties
        for name in OURS:
            if not isinstance(found.get(name), str):
                kind = type(found.get(name)).__name__
                raise Malformed(f"{name}: a string expected, found {kind}")
        if found[VERSION] != ENVELOPE_VERSION:
            raise NotOurs(f"{VERSION} is {found[VERSION]!r}, known is {ENVELOPE_VERSION!r}")
        if found[PAIR] != self.pair:
            raise NotOurs(f"it belongs to the pair {found[PAIR]!r}")
        keys = self._keys_by_id.get(found[KEY_ID])
        if keys is None:
            raise NotOurs(f"the key {found[KEY_ID]!r} is not known")
        mac = found[MAC].encode("utf-8", "surrogatepass")
        if not any(hmac.compare_digest(self._mac(key, message, own).encode(), mac) for key in keys):
            raise WrongMac(found[KEY_ID])

    def _mac(self, key: EnvelopeKey, message: Message, own: Properties) -> str:
        """Of a wrapped message, and what of its properties is the application's."""
        properties = message.properties
        ticks = time_to_live_of(message, text_allowed=True)
        scheduled = scheduled_of(message, text_allowed=True)
        fields = (
            str(properties[VERSION]),
            str(properties[PAIR]),
            str(properties[ORIGIN]),
            str(properties.get(PATH, "")),
            text_of_id(message.message_id),
            str(properties[EXPIRES]),
            str(properties[ATTEMPT]),
            str(properties.get(SESSION, "")),
            "" if ticks is None else str(ticks_of(ticks)),
            # Whole seconds, since a date in an HTTP header has no more.
            "" if scheduled is None else str(int(scheduled.timestamp())),
        )
        encoded = [field.encode("utf-8", "surrogatepass") for field in fields]
        parts = [len(data).to_bytes(4) + data for data in encoded]
        parts += self._properties_digest(own), self._body_digest(message.body)
        return hmac.digest(key.key, b"".join(parts), "sha256").hex()

    def _properties_digest(self, own: Properties) -> bytes:
        return hashlib.sha256(self.encode(own)).digest() if own else self._no_properties

    def _body_digest(self, body: Body) -> bytes:
        match body:
            case bytes():
                return hashlib.sha256(body).digest()
            case DataBody(parts):
                return hashlib.sha256(b"".join(parts)).digest()
            case SequenceBody(sequences):
                # One by one: a list of them would be nested deeper than they came.
                encoded = b"".join(self.encode(list(sequence)) for sequence in sequences)
                return hashlib.sha256(encoded).digest()
            case ValueBody(value):
                return hashlib.sha256(self.encode(value)).digest()


def remaining(unwrapped: Unwrapped, now: datetime) -> timedelta | None:
    """
    The time to live that is left: it kept running in the backlog. Zero or less: expired.

    A scheduled message begins to live at its date, as in Service Bus. None is left more than it
    was sent with: a gateway whose clock was ahead gives it no longer life.
    """
    if unwrapped.expires is None:
        return unwrapped.time_to_live
    scheduled = unwrapped.message.scheduled
    begin = now if scheduled is None else max(now, scheduled)
    left = unwrapped.expires - begin
    return left if unwrapped.time_to_live is None else min(left, unwrapped.time_to_live)
