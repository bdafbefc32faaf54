"""
The envelope of a diverted message.

A diverted message carries the properties of the legacy client (reference: Microsoft's
SendAvailabilityPairedNamespace; types included, so that its syphon and ours understand each
other) and our own. These name its origin and expiry, and prove that a gateway with the key wrote
it: otherwise, every client that may send to a backlog queue could send to any entity.

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
    x-pairgate-primary            string      fingerprint of the primary, where that is known

The MAC covers `x-pairgate-primary` among the application's own properties. Older syphons, which
don't know that property, can therefore verify the MAC; older envelopes don't have it.
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
    PRIMARY,
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
    primary_of,
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
    derive_message,
)
from gateway.domain.values import value

ENVELOPE_VERSION: Final = "1"
RESERVE: Final = 1024  # bytes of an envelope, without path and session

_BLOCK: Final = 64  # bytes of a block of SHA-256

_entity_of: Final = lru_cache(maxsize=1024)(EntityPath.parse)  # a backlog is for few entities

EncodeValue = Callable[[Value], bytes]
"""Encodes a value of a section; of a map, with sorted keys. `wire.amqp` has it."""


@attrs.frozen(kw_only=True)
class EnvelopeKey:
    """A key of the envelope's MAC; `id` travels with each message."""

    id: str
    key: bytes = attrs.field(repr=False)
    _inner: "hashlib._Hash" = attrs.field(init=False, repr=False, eq=False)
    _outer: "hashlib._Hash" = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        key = self.key if len(self.key) <= _BLOCK else hashlib.sha256(self.key).digest()
        key = key.ljust(_BLOCK, b"\0")
        object.__setattr__(self, "_inner", hashlib.sha256(bytes(byte ^ 0x36 for byte in key)))
        object.__setattr__(self, "_outer", hashlib.sha256(bytes(byte ^ 0x5C for byte in key)))

    def mac(self, data: bytes) -> str:
        """
        HMAC-SHA256 (RFC 2104), hexadecimal. Both hashes begin with the key, which is hashed only
        once: `hmac.digest` takes more than twice as long.
        """
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        return outer.hexdigest()


@value(kw_only=True)
class Unwrapped:
    """An unwrapped message. `message` has its session and schedule again, but no time to live."""

    entity: EntityPath
    message: Message
    time_to_live: timedelta | None
    expires: datetime | None
    attempt: str  # empty: written by the legacy client
    origin: str
    primary: str = ""  # fingerprint of the primary that it was meant for; empty: unknown


def reserve(entity: EntityPath, message: Message) -> int:
    """The maximum number of bytes that an envelope adds to the message."""
    return RESERVE + len(entity.name.encode()) + len((message.session_id or "").encode())


def refuse_reserved(message: Message) -> None:
    """
    Refuse a client's message that already carries a property of the envelope.

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
    Wraps diverted messages and unwraps them again, for one pair.

    The first key signs; all keys verify, even several with the same id. `encode` encodes the value
    of a section.
    """

    pair: str
    origin: str
    keys: tuple[EnvelopeKey, ...]
    encode: EncodeValue = attrs.field(repr=False)
    accept_legacy: bool = False
    # The properties' digest of a message that has no others than the envelope's.
    _digest_of_primary: Callable[[str | None], bytes] = attrs.field(
        init=False, repr=False, eq=False
    )
    _keys_by_id: Mapping[str, list[EnvelopeKey]] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        by_id: dict[str, list[EnvelopeKey]] = {}
        for key in self.keys:
            by_id.setdefault(key.id, []).append(key)
        object.__setattr__(self, "_keys_by_id", by_id)

        @lru_cache(maxsize=64)
        def digest_of_primary(primary: str | None) -> bytes:
            covered = {} if primary is None else {PRIMARY: primary}
            return hashlib.sha256(self.encode(covered)).digest()

        object.__setattr__(self, "_digest_of_primary", digest_of_primary)

    def wrap(
        self,
        message: Message,
        entity: EntityPath,
        *,
        attempt: str,
        now: datetime,
        primary: str = "",
    ) -> Message:
        """
        The message for a backlog queue: in its envelope, without expiry and schedule of its own.

        `primary` is the fingerprint of the primary that the message is meant for; empty: unknown.
        """
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
        if primary:
            envelope[PRIMARY] = primary
        wrapped = attrs.evolve(
            message,
            properties={**message.properties, **envelope},
            session_id=None,
            partition_key=message.partition_key if message.session_id is None else None,
            time_to_live=None,
            absolute_expiry=None,
            scheduled=None,
        )
        mac = self._mac(self.keys[0], wrapped, without_envelope(message.properties))
        return attrs.evolve(wrapped, properties={**wrapped.properties, MAC: mac})

    def unwrap(self, message: Message) -> Unwrapped:
        """
        Verify and open the envelope of a message.

        Raises:
            Malformed: a property is missing or has a wrong type.
            WrongMac: the MAC isn't that of the key which the envelope names.
            NotOurs: another pair, an unknown key or version, or no MAC at all.
        """
        found = message.properties
        authentic = VERSION in found
        own = without_envelope(found)
        if authentic:
            self._authenticate(message, own)
        path = found.get(PATH)
        if not isinstance(path, str):
            raise Malformed(f"{PATH}: a string expected, found {type(path).__name__}")
        if not authentic and not self.accept_legacy:
            raise NotOurs("the message has no MAC, and accept_legacy_backlog is false")
        try:
            entity = _entity_of(path)
        except InvalidRequest as error:
            raise Malformed(f"{PATH}: {error}") from error
        session = found.get(SESSION)
        if session is not None and not isinstance(session, str):
            raise Malformed(f"{SESSION}: a string expected, found {type(session).__name__}")
        restored = derive_message(
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
            attempt=str(found.get(ATTEMPT, "")),
            origin=str(found.get(ORIGIN, "")),
            primary=primary_of(message) if authentic else "",
        )

    def _authenticate(self, message: Message, own: Properties) -> None:
        found = message.properties
        for name in OURS:
            if not isinstance(found.get(name), str):
                kind = type(found.get(name)).__name__
                raise Malformed(f"{name}: a string expected, found {kind}")
        if found[VERSION] != ENVELOPE_VERSION:
            raise NotOurs(f"{VERSION} is {found[VERSION]!r}, supported is {ENVELOPE_VERSION!r}")
        if found[PAIR] != self.pair:
            raise NotOurs(f"the message belongs to the pair {found[PAIR]!r}")
        keys = self._keys_by_id.get(found[KEY_ID])
        if keys is None:
            raise NotOurs(f"the key {found[KEY_ID]!r} is not known")
        mac = found[MAC].encode("utf-8", "surrogatepass")
        macs = (self._mac(key, message, own).encode() for key in keys)
        if not any(hmac.compare_digest(each, mac) for each in macs):
            raise WrongMac(found[KEY_ID])

    def _mac(self, key: EnvelopeKey, message: Message, own: Properties) -> str:
        """The MAC of a wrapped message. `own`: its properties without those of the envelope."""
        found = message.properties
        ticks = time_to_live_of(message, text_allowed=True)
        scheduled = scheduled_of(message, text_allowed=True)
        parts = (
            _shared(
                str(found[VERSION]),
                str(found[PAIR]),
                str(found[ORIGIN]),
                str(found.get(PATH, "")),
            ),
            _sized(text_of_id(message.message_id)),
            _sized(str(found[EXPIRES])),
            _sized(str(found[ATTEMPT])),
            _sized(str(found.get(SESSION, ""))),
            _sized("" if ticks is None else str(ticks_of(ticks))),
            # Whole seconds, since a date in an HTTP header has no more.
            _sized("" if scheduled is None else str(int(scheduled.timestamp()))),
            self._properties_digest(own, found),
            self._body_digest(message.body),
        )
        return key.mac(b"".join(parts))

    def _properties_digest(self, own: Properties, found: Properties) -> bytes:
        """The digest of all properties that have no field of their own in the MAC."""
        primary = found.get(PRIMARY)
        if not own and (type(primary) is str or PRIMARY not in found):
            return self._digest_of_primary(primary)
        covered = {**own, PRIMARY: primary} if PRIMARY in found else dict(own)
        return hashlib.sha256(self.encode(covered)).digest()

    def _body_digest(self, body: Body) -> bytes:
        match body:
            case bytes():
                return hashlib.sha256(body).digest()
            case DataBody(parts):
                return hashlib.sha256(b"".join(parts)).digest()
            case SequenceBody(sequences):
                # One by one: a list of sequences could exceed the limit of nesting.
                encoded = b"".join(self.encode(list(sequence)) for sequence in sequences)
                return hashlib.sha256(encoded).digest()
            case ValueBody(value):
                return hashlib.sha256(self.encode(value)).digest()


def _sized(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(4) + data


@lru_cache(maxsize=64)
def _shared(*texts: str) -> bytes:
    """The fields that many messages have in common."""
    return b"".join([_sized(text) for text in texts])
