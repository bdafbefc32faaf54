"""
The claim check: a large body is in a store, and its message carries a reference to the body.

    x-pairgate-claim          ID, the body's name in the store: 32 hex digits, a dot, and the
                              message's expiry in seconds since 1970 (0: never)
    x-pairgate-claim-store    the name of the store, as configured
    x-pairgate-claim-entity   where the message was sent to
    x-pairgate-claim-codec    "zstd" or "none": the compression of the stored bytes
    x-pairgate-claim-size     bytes of the body: its AMQP sections as encoded
    x-pairgate-claim-stored   bytes that are in the store
    x-pairgate-claim-sha256   of the bytes in the store, in hex
    x-pairgate-claim-key      of the bytes in the store, in hex, where they are encrypted

All values are text, which every protocol can carry. The store has two kinds of names: ID is a body,
and ID.done marks that its message was completed.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs
from attrs import validators

from gateway.domain.clocks.clock_note import BUILT
from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityPath
from gateway.domain.errors import GatewayError, InvalidRequest
from gateway.domain.message import Message, Properties, Value

ID: Final = "x-pairgate-claim"
STORE: Final = f"{ID}-store"
ENTITY: Final = f"{ID}-entity"
CODEC: Final = f"{ID}-codec"
SIZE: Final = f"{ID}-size"
STORED: Final = f"{ID}-stored"
SHA256: Final = f"{ID}-sha256"
KEY: Final = f"{ID}-key"
RESERVED: Final = frozenset({ID, STORE, ENTITY, CODEC, SIZE, STORED, SHA256, KEY})

DONE: Final = ".done"
CODECS: Final = ("zstd", "none")
PREFIXES: Final = tuple(f"{number:02x}" for number in range(256))  # how a store's names begin
_NAME: Final = re.compile(r"[0-9a-f]{32}\.[0-9]{1,12}(\.done)?", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_KEY: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ID_LENGTH: Final = 32  # hexadecimal digits: 128 bits, so that no two ids are the same
_BUILT: Final = to_date(BUILT)


class ClaimMissing(GatewayError):
    """The store answers, and doesn't have the body."""


class ClaimCorrupt(GatewayError):
    """The stored bytes aren't those that were written, or the reference can't be read."""


@attrs.frozen(kw_only=True)
class Claim:
    """A reference to a body in a store."""

    id: str = attrs.field(validator=validators.matches_re(_NAME))
    store: str
    entity: str
    codec: str = attrs.field(validator=validators.in_(CODECS))
    size: int
    stored: int
    sha256: str = attrs.field(validator=validators.matches_re(_DIGEST))
    key: bytes | None = attrs.field(default=None, repr=False)  # None: the body isn't encrypted

    @property
    def done(self) -> str:
        """The name in the store that marks the message as completed."""
        return f"{self.id}{DONE}"

    def check(self, data: bytes) -> None:
        """
        Check that these are the bytes that were stored.

        Raises:
            ClaimCorrupt: the size or the hash differs.
        """
        if len(data) != self.stored:
            raise ClaimCorrupt(
                f"the body in the store has {len(data)} bytes, {self.stored} were stored"
            )
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ClaimCorrupt("the body in the store has another SHA-256 than when it was stored")


@attrs.frozen(kw_only=True)
class Keeping:
    """The times for which the contents of a store are kept. None: for ever."""

    after_completion: timedelta  # a body
    after_expiry: timedelta | None  # a body whose message may be a dead letter now
    at_most: timedelta | None  # a body whose message never expires
    done: timedelta  # the note that a message was completed


@attrs.frozen
class Entry:
    """An entry of a store: its name, and when it was written."""

    name: str
    written: datetime


def new_id(unique: str, message: Message, now: datetime) -> str:
    """A new id for the body of a message. `unique` must never be used twice."""
    return f"{hashlib.sha256(unique.encode()).hexdigest()[:_ID_LENGTH]}.{_expiry(message, now)}"


def is_name(name: str) -> bool:
    """True if the text is a name that a store may have."""
    return _NAME.fullmatch(name) is not None


def refuse_reserved(properties: Properties) -> None:
    """
    Refuse a client's message that already carries a property of a reference.

    Raises:
        InvalidRequest: the text names the property.
    """
    taken = RESERVED.intersection(properties)
    if taken:
        raise InvalidRequest(f"application property {min(taken)!r} is reserved for the claim check")


def referring(message: Message, claim: Claim) -> Message:
    """The message with the reference in place of its body."""
    reference = {
        ID: claim.id,
        STORE: claim.store,
        ENTITY: claim.entity,
        CODEC: claim.codec,
        SIZE: str(claim.size),
        STORED: str(claim.stored),
        SHA256: claim.sha256,
    }
    if claim.key is not None:
        reference[KEY] = claim.key.hex()
    return attrs.evolve(message, body=b"", properties={**message.properties, **reference})


def is_reference(message: Message) -> bool:
    """
    True if the message's body is in a store.

    A message with a body isn't a reference: a client has replaced its body since.
    """
    return ID in message.properties and message.body == b""


def claim_of(message: Message) -> Claim:
    """
    The reference that a message carries.

    Raises:
        ClaimCorrupt: the reference can't be read; the text names the property.
    """
    properties = message.properties
    return Claim(
        id=_matching(properties, ID, _NAME),
        store=_text(properties, STORE),
        entity=_text(properties, ENTITY),
        codec=_one_of(properties, CODEC, CODECS),
        size=int(_matching(properties, SIZE, _DIGITS)),
        stored=int(_matching(properties, STORED, _DIGITS)),
        sha256=_matching(properties, SHA256, _DIGEST),
        key=bytes.fromhex(_matching(properties, KEY, _KEY)) if KEY in properties else None,
    )


def without_reference(properties: Properties) -> dict[str, Value]:
    return {name: value for name, value in properties.items() if name not in RESERVED}


def belongs_to(claim: Claim, entity: EntityPath) -> bool:
    """
    True if a message that is completed on `entity` is the only one with that body, apart from
    duplicates of sends with an unknown outcome.

    Subscriptions, and queues that messages are forwarded to, may share a body with others.
    """
    return EntityPath(claim.entity) == entity.parent


def waste(
    entries: Sequence[Entry], keeping: Keeping, now: datetime, least: datetime | None = None
) -> Iterator[str]:
    """
    The names that no message needs any more, among `entries`: all names with one prefix.

    `least` is the date that ages are measured by; it is earlier than `now` if the clock was set
    forward. None: the clock isn't in doubt.
    """
    least = now if least is None else min(now, least)
    written = {entry.name: entry.written for entry in entries if is_name(entry.name)}
    for name, since in written.items():
        if name.endswith(DONE):
            if name.removesuffix(DONE) not in written and since + keeping.done <= least:
                yield name
        elif (completed := written.get(f"{name}{DONE}")) is not None:
            if completed + keeping.after_completion <= now:
                yield name
        elif _is_over(name, since, keeping, least):
            yield name


def _is_over(name: str, since: datetime, keeping: Keeping, least: datetime) -> bool:
    """True if the body's message has expired, by dates that a right clock may have set."""
    if since < _BUILT:
        return False
    expires = int(name.partition(".")[2])
    if expires < _BUILT.timestamp():  # never, or by a clock that was wrong
        return keeping.at_most is not None and since + keeping.at_most <= least
    if keeping.after_expiry is None:
        return False
    last = max(float(expires), since.timestamp())
    return last + keeping.after_expiry.total_seconds() <= least.timestamp()


def _expiry(message: Message, now: datetime) -> int:
    if message.time_to_live is None:
        return 0
    begin = now if message.scheduled is None else max(now, message.scheduled)
    try:
        return int((begin + message.time_to_live).timestamp()) + 1
    except OverflowError:  # past the year 9999
        return 0


def _text(properties: Mapping[str, Value], name: str) -> str:
    value = properties.get(name)
    if not isinstance(value, str):
        raise ClaimCorrupt(f"property {name}: a text expected")
    return value


def _matching(properties: Mapping[str, Value], name: str, pattern: re.Pattern[str]) -> str:
    text = _text(properties, name)
    if not pattern.fullmatch(text) or text.endswith(DONE):
        raise ClaimCorrupt(f"property {name}: {pattern.pattern} expected")
    return text


def _one_of(properties: Mapping[str, Value], name: str, known: Sequence[str]) -> str:
    text = _text(properties, name)
    if text not in known:
        raise ClaimCorrupt(f"property {name}: one of {', '.join(known)} expected")
    return text
