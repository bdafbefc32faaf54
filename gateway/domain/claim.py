"""
The claim check: a large body lies in a store, and the message carries a reference to it.

    x-pairgate-claim          ID, under which the store has it: 32 hex digits, a dot, and when the
                              message expires in seconds since 1970 (0: never)
    x-pairgate-claim-store    the name of the store, as configured
    x-pairgate-claim-entity   where the message was sent to
    x-pairgate-claim-codec    "zstd", or "none": how the stored bytes were made of the body's
    x-pairgate-claim-size     bytes of the body: its AMQP sections as encoded
    x-pairgate-claim-stored   bytes that are in the store
    x-pairgate-claim-sha256   of the bytes in the store, in hex

All values are text, which every protocol carries. In the store there are two kinds of names: ID is
a body, ID.done says that its message was completed.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs
from attrs import validators

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
RESERVED: Final = frozenset({ID, STORE, ENTITY, CODEC, SIZE, STORED, SHA256})

DONE: Final = ".done"
CODECS: Final = ("zstd", "none")
SHELVES: Final = tuple(f"{number:02x}" for number in range(256))  # how a store's names begin
_NAME: Final = re.compile(r"[0-9a-f]{32}\.[0-9]{1,12}(\.done)?", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ID_LENGTH: Final = 32


class ClaimMissing(GatewayError):
    """The store works, and has no such body."""


class ClaimCorrupt(GatewayError):
    """What the store has isn't the body that was stored, or the reference is none."""


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

    @property
    def done(self) -> str:
        """The name in the store which says that the message was completed."""
        return f"{self.id}{DONE}"

    def check(self, data: bytes) -> None:
        """
        Raises:
            ClaimCorrupt: these aren't the bytes that were stored.
        """
        if len(data) != self.stored:
            raise ClaimCorrupt(f"{len(data)} bytes, and {self.stored} were stored")
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ClaimCorrupt("the bytes in the store aren't those that were stored")


@attrs.frozen(kw_only=True)
class Keeping:
    """How long what is in a store is kept. None: for ever."""

    after_completion: timedelta  # a body
    after_expiry: timedelta | None  # a body whose message may be a dead letter now
    at_most: timedelta | None  # a body whose message never expires
    done: timedelta  # the note that a message was completed


@attrs.frozen
class Entry:
    """What a store has under one name, and when it was written."""

    name: str
    written: datetime


def new_id(unique: str, message: Message, now: datetime) -> str:
    """The id for the body of a message, made of a text that was never given before."""
    return f"{hashlib.sha256(unique.encode()).hexdigest()[:_ID_LENGTH]}.{_expiry(message, now)}"


def is_name(name: str) -> bool:
    """Whether a store may have that name."""
    return _NAME.fullmatch(name) is not None


def refuse_reserved(properties: Properties) -> None:
    """
    Refuse properties of a reference that somebody else has written.

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
    return attrs.evolve(message, body=b"", properties={**message.properties, **reference})


def is_reference(message: Message) -> bool:
    """
    Whether the body lies in a store.

    One that has a body again isn't: somebody gave it another one since.
    """
    return ID in message.properties and message.body == b""


def claim_of(message: Message) -> Claim:
    """
    The reference that a message carries.

    Raises:
        ClaimCorrupt: it can't be read; the text names the property.
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
    )


def without_reference(properties: Properties) -> dict[str, Value]:
    return {name: value for name, value in properties.items() if name not in RESERVED}


def belongs_to(claim: Claim, entity: EntityPath) -> bool:
    """
    Whether who completes the message there has the only copy, but for those of unknown sends.

    Subscriptions, and queues that messages were forwarded to, may share a body with others.
    """
    return EntityPath(claim.entity) == entity.parent


def waste(entries: Sequence[Entry], keeping: Keeping, now: datetime) -> Iterator[str]:
    """The names among all of one shelf that may go: no message needs them any more."""
    written = {entry.name: entry.written for entry in entries if is_name(entry.name)}
    for name, since in written.items():
        if name.endswith(DONE):
            if name.removesuffix(DONE) not in written and since + keeping.done <= now:
                yield name
        elif _is_over(name, since, written.get(f"{name}{DONE}"), keeping, now):
            yield name


def _is_over(
    name: str, since: datetime, completed: datetime | None, keeping: Keeping, now: datetime
) -> bool:
    if completed is not None:
        return completed + keeping.after_completion <= now
    expires = int(name.partition(".")[2])
    if not expires:
        return keeping.at_most is not None and since + keeping.at_most <= now
    if keeping.after_expiry is None:
        return False
    return expires + keeping.after_expiry.total_seconds() <= now.timestamp()


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
