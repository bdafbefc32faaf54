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
    x-pairgate-order              string      only of ordered entities: key.epoch.number
    x-pairgate-partition          string      only of ordered entities: the partition key
    x-pairgate-content-header     binary      only of RabbitMQ's clients: their content header
    x-pairgate-publish            binary      only of those to an exchange: their `basic.publish`

The MAC covers the last five, `x-pairgate-primary` included, among the application's own
properties. Older syphons, which don't know them, can therefore verify the MAC;
older envelopes don't have them.

A message with `x-pairgate-order` is in the session of its key, in a backlog queue that requires
sessions: its session id and partition key are therefore not its client's. Older syphons can't
receive from such a queue.

In version "2" the message is encrypted: all its sections, with the session, the time to live and
the schedule, are in the body (`wire.pairgate.encryption`). Around it there is our own part of the
envelope only, and

    x-pairgate-entity             string      the entity on the primary

instead of `x-ms-path`, so that the legacy syphon, which can't decrypt, dead-letters the message
instead of moving it.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Final, Protocol

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.envelope_fields import (
    ATTEMPT,
    CONTENT_HEADER,
    COVERED,
    ENTITY,
    EXPIRES,
    KEY_ID,
    MAC,
    ORDER,
    ORIGIN,
    OURS,
    PAIR,
    PARTITION,
    PATH,
    PRIMARY,
    PUBLISH,
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
    order_of,
    primary_of,
    scheduled_of,
    text_of_id,
    ticks_of,
    time_to_live_of,
    without_envelope,
)
from gateway.domain.errors import InvalidRequest, MessageError
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
ENCRYPTED_VERSION: Final = "2"
RESERVE: Final = 1024  # bytes of an envelope, without path and session

_BLOCK: Final = 64  # bytes of a block of SHA-256

_entity_of: Final = lru_cache(maxsize=1024)(EntityPath.parse)  # a backlog is for few entities

EncodeValue = Callable[[Value], bytes]
"""Encodes a value of a section; of a map, with sorted keys. `wire.amqp` has it."""


class Encryption(Protocol):
    """Encrypts and decrypts whole messages. `wire.pairgate.encryption` has it."""

    def seal(self, secret: bytes, message: Message, associated: bytes) -> tuple[str, bytes]:
        """
        An id of this encrypted message, and the encrypted message itself, which only the same
        secret and `associated` data open.
        """
        ...

    def open(self, secret: bytes, sealed: bytes, associated: bytes) -> Message:
        """
        The message that was encrypted.

        Raises:
            MessageError: the secret or the `associated` data is another one, or the message was
                changed.
        """
        ...


@attrs.frozen(kw_only=True)
class EnvelopeKey:
    """A key of the envelope's MAC and encryption; `id` travels with each message."""

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
    key = message.session_id or message.partition_key or ""
    given = len(message.content_header or b"") + len(message.publish_method or b"")
    return RESERVE + len(entity.name.encode()) + len(key.encode()) + given


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


@attrs.define(eq=False, kw_only=True)
class Envelope:
    """
    Wraps diverted messages and unwraps them again, for one pair.

    The first key signs and, with `encrypts`, encrypts; all keys verify and decrypt, even several
    with the same id. `encode` encodes the value of a section.
    """

    pair: str
    origin: str
    keys: tuple[EnvelopeKey, ...]
    encode: EncodeValue = attrs.field(repr=False)
    encryption: Encryption = attrs.field(repr=False)
    encrypts: bool = False
    accept_legacy: bool = False
    # The properties' digest of a message that has no others than the envelope's.
    _digest_of_primary: Callable[[str | None], bytes] = attrs.field(init=False, repr=False)
    _keys_by_id: Mapping[str, list[EnvelopeKey]] = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.renew(self.keys, encrypts=self.encrypts)

        @lru_cache(maxsize=64)
        def digest_of_primary(primary: str | None) -> bytes:
            covered = {} if primary is None else {PRIMARY: primary}
            return hashlib.sha256(self.encode(covered)).digest()

        self._digest_of_primary = digest_of_primary

    def renew(self, keys: tuple[EnvelopeKey, ...], *, encrypts: bool) -> None:
        """Use these keys from the next message on, and encrypt it or not."""
        by_id: dict[str, list[EnvelopeKey]] = {}
        for key in keys:
            by_id.setdefault(key.id, []).append(key)
        self.keys, self.encrypts, self._keys_by_id = keys, encrypts, by_id

    def wrap(
        self,
        message: Message,
        entity: EntityPath,
        *,
        attempt: str,
        now: datetime,
        primary: str = "",
        place: str = "",
    ) -> Message:
        """
        The message for a backlog queue: in its envelope, without expiry and schedule of its own.

        `primary` is the fingerprint of the primary that the message is meant for; empty: unknown.
        `place` is the message's place in an order: it is put into the session of its key; empty:
        the message has no order.

        Raises:
            MessageError: the message can't be encoded.
        """
        legacy: dict[str, Value] = {}
        if message.session_id is not None:
            legacy[SESSION] = message.session_id
        if message.time_to_live is not None:
            legacy[TIME_TO_LIVE] = Described(TIMESPAN, ticks_of(message.time_to_live))
        if message.scheduled is not None:
            legacy[SCHEDULED] = message.scheduled
        if message.content_header is not None:
            legacy |= _of_rabbitmq(message)
        ours: dict[str, Value] = {
            VERSION: ENCRYPTED_VERSION if self.encrypts else ENVELOPE_VERSION,
            PAIR: self.pair,
            ORIGIN: self.origin,
            ATTEMPT: attempt,
            EXPIRES: expiry_of(message, now),
            KEY_ID: self.keys[0].id,
        }
        if primary:
            ours[PRIMARY] = primary
        if place:
            ours[ORDER] = place
        if self.encrypts:
            ours[ENTITY] = entity.name
            # An unchanged message was encoded already, when its size was measured.
            changes = legacy or message.absolute_expiry is not None
            inner = _rewritten(message, legacy) if changes else message
            wrapped, own = self._sealed(inner, ours), {}
        else:
            wrapped = _rewritten(message, {PATH: entity.name, **legacy, **ours})
            own = without_envelope(message.properties)
        return self._signed(_in_session(wrapped, place) if place else wrapped, own)

    def sign(self, wrapped: Message) -> Message:
        """
        The wrapped message with the MAC of the first key.

        Raises:
            MessageError: the MAC covers a value that can't be encoded.
        """
        return self._signed(wrapped, without_envelope(wrapped.properties))

    def _signed(self, wrapped: Message, own: Properties) -> Message:
        mac = self._mac(self.keys[0], wrapped, own)
        return derive_message(wrapped, properties={**wrapped.properties, MAC: mac})

    def _sealed(self, inner: Message, envelope: Properties) -> Message:
        """A message with this envelope and, encrypted as its body, the inner one."""
        sealed_id, sealed = self.encryption.seal(self.keys[0].key, inner, _associated(envelope))
        return Message(
            message_id=sealed_id, body=sealed, properties=envelope, durable=inner.durable
        )

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
        inner, own = message, without_envelope(found)
        named_in = PATH
        if authentic:
            key = self._authenticate(message, own)
            if found[VERSION] == ENCRYPTED_VERSION:
                named_in, inner = ENTITY, self._opened(key, message)
                own = without_envelope(inner.properties)
        path = found.get(named_in)
        if not isinstance(path, str):
            raise Malformed(f"{named_in}: a string expected, found {type(path).__name__}")
        if not authentic and not self.accept_legacy:
            raise NotOurs("the message has no MAC, and accept_legacy_backlog is false")
        try:
            entity = _entity_of(path)
        except InvalidRequest as error:
            raise Malformed(f"{named_in}: {error}") from error
        session, time_to_live, scheduled = _optional_of(inner, text_allowed=authentic)
        restored = derive_message(
            inner,
            properties=own,
            session_id=inner.session_id if session is None else session,
            scheduled=scheduled,
            content_header=_bytes_in(inner, CONTENT_HEADER) if authentic else None,
            publish_method=_bytes_in(inner, PUBLISH) if authentic else None,
        )
        if ORDER in found and authentic and order_of(message) and inner is message:
            # The message is in the session of its order.
            partition = _partition_of(found)
            restored = derive_message(restored, session_id=session, partition_key=partition)
        return Unwrapped(
            entity=entity,
            message=restored,
            time_to_live=time_to_live,
            expires=expires_of(message),
            attempt=str(found.get(ATTEMPT, "")),
            origin=str(found.get(ORIGIN, "")),
            primary=primary_of(message) if authentic else "",
        )

    def _opened(self, key: EnvelopeKey, message: Message) -> Message:
        """The message inside of an authentic, encrypted one."""
        match message.body:
            case bytes() as sealed:
                pass
            case DataBody(parts):
                sealed = b"".join(parts)
            case other:
                raise Malformed(f"encrypted bytes expected, found {type(other).__name__}")
        try:
            return self.encryption.open(key.key, sealed, _associated(message.properties))
        except MessageError as error:
            raise Malformed(str(error)) from error

    def _authenticate(self, message: Message, own: Properties) -> EnvelopeKey:
        """The key whose MAC the message has."""
        found = message.properties
        keys = self._candidates(found)
        mac = found[MAC].encode("utf-8", "surrogatepass")
        try:
            for key in keys:
                if hmac.compare_digest(self._mac(key, message, own).encode(), mac):
                    return key
        except MessageError as error:  # of a value that no gateway can have signed
            raise Malformed(str(error)) from error
        raise WrongMac(found[KEY_ID])

    def _candidates(self, found: Properties) -> Sequence[EnvelopeKey]:
        """The keys, at least one, with which that envelope may be signed."""
        for name in () if _has_ours(found) else OURS:
            if not isinstance(found.get(name), str):
                kind = type(found.get(name)).__name__
                raise Malformed(f"{name}: a string expected, found {kind}")
        if found[VERSION] not in {ENVELOPE_VERSION, ENCRYPTED_VERSION}:
            supported = f"{ENVELOPE_VERSION!r} and {ENCRYPTED_VERSION!r}"
            raise NotOurs(f"{VERSION} is {found[VERSION]!r}, supported are {supported}")
        if found[PAIR] != self.pair:
            raise NotOurs(f"the message belongs to the pair {found[PAIR]!r}")
        keys = self._keys_by_id.get(found[KEY_ID])
        if keys is None:
            raise NotOurs(f"the key {found[KEY_ID]!r} is not known")
        return keys

    def _mac(self, key: EnvelopeKey, message: Message, own: Properties) -> str:
        """The MAC of a wrapped message. `own`: its properties without those of the envelope."""
        found, body = message.properties, message.body
        version, identity = found[VERSION], message.message_id
        named_in = ENTITY if version == ENCRYPTED_VERSION else PATH
        parts = (
            _shared(
                str(version), str(found[PAIR]), str(found[ORIGIN]), str(found.get(named_in, ""))
            ),
            _sized(identity if type(identity) is str else text_of_id(identity)),
            _sized(str(found[EXPIRES])),
            _sized(str(found[ATTEMPT])),
            _signed_optional(message),
            self._properties_digest(own, found),
            hashlib.sha256(body).digest() if type(body) is bytes else self._body_digest(body),
        )
        return key.mac(b"".join(parts))

    def _properties_digest(self, own: Properties, found: Properties) -> bytes:
        """The digest of all properties that have no field of their own in the MAC."""
        primary = found.get(PRIMARY)
        is_plain = not (ORDER in found or CONTENT_HEADER in found or PUBLISH in found)
        if not own and is_plain and (type(primary) is str or PRIMARY not in found):
            return self._digest_of_primary(primary)
        covered = {**own, **{name: found[name] for name in COVERED if name in found}}
        return hashlib.sha256(self.encode(covered)).digest()

    def _body_digest(self, body: Body) -> bytes:
        match body:
            case bytes():
                return hashlib.sha256(body).digest()
            case DataBody(parts):
                return hashlib.sha256(b"".join(parts)).digest()
            case SequenceBody(sequences):
                # Each sequence separately: a list of sequences could exceed the limit of nesting.
                encoded = b"".join(self.encode(list(sequence)) for sequence in sequences)
                return hashlib.sha256(encoded).digest()
            case ValueBody(value):
                return hashlib.sha256(self.encode(value)).digest()


def _of_rabbitmq(message: Message) -> Properties:
    """The properties of the envelope that messages of RabbitMQ's clients have."""
    given = {CONTENT_HEADER: message.content_header, PUBLISH: message.publish_method}
    return {name: value for name, value in given.items() if value is not None}


def _in_session(wrapped: Message, place: str) -> Message:
    """The message in the session of the key of its place."""
    properties, partition = wrapped.properties, wrapped.partition_key
    if partition is not None:  # Service Bus wants it to be the session id
        properties = {**properties, PARTITION: partition}
    session = place.partition(".")[0]
    return derive_message(wrapped, properties=properties, session_id=session, partition_key=None)


def _partition_of(found: Properties) -> str | None:
    partition = found.get(PARTITION)
    if partition is not None and not isinstance(partition, str):
        raise Malformed(f"{PARTITION}: a string expected, found {type(partition).__name__}")
    return partition


def _rewritten(message: Message, added: Properties) -> Message:
    """The message with these properties, and without what makes it expire or wait."""
    return derive_message(
        message,
        properties={**message.properties, **added},
        session_id=None,
        partition_key=message.partition_key if message.session_id is None else None,
        time_to_live=None,
        absolute_expiry=None,
        scheduled=None,
        content_header=None,
        publish_method=None,
    )


def _bytes_in(message: Message, name: str) -> bytes | None:
    """A value that RabbitMQ's client has given, as the envelope has it."""
    found = message.properties.get(name)
    if found is not None and not isinstance(found, bytes):
        raise Malformed(f"{name}: bytes expected, found {type(found).__name__}")
    return found


_ASSOCIATED: Final = (VERSION, PAIR, ORIGIN, ENTITY, KEY_ID, PRIMARY)


def _associated(envelope: Properties) -> bytes:
    """The part of the envelope that the encryption binds to its message."""
    shared = _shared(*[str(envelope.get(name, "")) for name in _ASSOCIATED])
    return b"".join((shared, _sized(str(envelope[ATTEMPT])), _sized(str(envelope[EXPIRES]))))


def _sized(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(4) + data


_NO_OPTIONAL: Final = _sized("") * 3
_ours_of: Final = itemgetter(*OURS)
_TEXTS: Final = (str,) * len(OURS)


def _has_ours(found: Properties) -> bool:
    """True if all that is required of an envelope is there, as plain texts: the usual case."""
    try:
        return (*map(type, _ours_of(found)),) == _TEXTS
    except KeyError:
        return False


def _has_optional(found: Properties) -> bool:
    """True if there is a session, a time to live or a schedule; most messages have none."""
    return SESSION in found or TIME_TO_LIVE in found or SCHEDULED in found


def _optional_of(
    message: Message, *, text_allowed: bool
) -> tuple[str | None, timedelta | None, datetime | None]:
    """The session, the time to live and the schedule in an envelope."""
    if not _has_optional(message.properties):
        return None, None, None
    session = message.properties.get(SESSION)
    if session is not None and not isinstance(session, str):
        raise Malformed(f"{SESSION}: a string expected, found {type(session).__name__}")
    return (
        session,
        time_to_live_of(message, text_allowed=text_allowed),
        scheduled_of(message, text_allowed=text_allowed),
    )


def _signed_optional(message: Message) -> bytes:
    """The session, the time to live and the scheduled date, as the MAC covers them."""
    if not _has_optional(message.properties):
        return _NO_OPTIONAL
    ticks = time_to_live_of(message, text_allowed=True)
    scheduled = scheduled_of(message, text_allowed=True)
    texts = (
        str(message.properties.get(SESSION, "")),
        "" if ticks is None else str(ticks_of(ticks)),
        # Whole seconds, since a date in an HTTP header has no more.
        "" if scheduled is None else str(int(scheduled.timestamp())),
    )
    return b"".join(map(_sized, texts))


@lru_cache(maxsize=64)
def _shared(*texts: str) -> bytes:
    """The fields that many messages have in common."""
    return b"".join([_sized(text) for text in texts])
