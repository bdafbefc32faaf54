"""
Forged envelopes, as long as you like; everything is seeded.

Usage: python -m tests.fuzz envelopes SECONDS
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.envelope_fields import KEY_ID, RESERVED, Malformed, NotOurs
from gateway.domain.errors import MessageError
from gateway.domain.message import (
    DataBody,
    Delivery,
    Described,
    Kind,
    Message,
    SequenceBody,
    Typed,
    ValueBody,
    symbol,
)
from gateway.extensions.redrive.order import open_letter
from gateway.wire.amqp.message import decode_message, encode_message, encode_sorted
from gateway.wire.pairgate.encryption import NONCE, SALT, MessageEncryption

NOW: Final = datetime(2026, 11, 25, 12, tzinfo=UTC)
KEYS: Final = (EnvelopeKey(id="2", key=b"n" * 32), EnvelopeKey(id="1", key=b"o" * 32))
ENTITIES: Final = (EntityPath("orders"), EntityPath("audit/log"))
TEXTS: Final = ("", "1", "2", "3", "orders", "a//b", "é", "\ud800", "\0", "x" * 300, "00:01:30")
VALUES: Final[tuple[Any, ...]] = (
    *TEXTS,
    None,
    True,
    0,
    -1,
    2**63 - 1,
    1.5,
    float("nan"),
    b"",
    b"\xff" * 20,
    UUID(int=7),
    NOW,
    datetime.min.replace(tzinfo=UTC),
    [],
    [[1], "a"],
    {},
    {"a": {"b": 1}},
    symbol("x"),
    Typed(Kind.ULONG, 2**64 - 1),
    Typed(Kind.TIMESTAMP, 2**63 - 1),
    Described(symbol("com.microsoft:timespan"), 10**9),
    Described(symbol("com.microsoft:timespan"), 2**200),
    Described(1, None),
)
BODIES: Final = (
    b"",
    b"body",
    b"b" * 3000,
    DataBody((b"a", b"b")),
    ValueBody([1, {"a": None}]),
    SequenceBody(((1, "a"), ())),
)
CHANGES: Final = 5  # of one message


def envelope(rng: random.Random, *, encrypts: bool) -> Envelope:
    return Envelope(
        pair="east",
        origin="gateway-1",
        keys=KEYS[rng.randrange(2) :],
        encode=encode_sorted,
        encryption=MessageEncryption(rng),
        encrypts=encrypts,
        accept_legacy=rng.random() < 0.3,
    )


def sent(rng: random.Random) -> Message:
    names = rng.sample(["a", "b", "c"], rng.randrange(3))
    harmless = [each for each in VALUES if _can_be_encoded(each)]
    return Message(
        message_id=rng.choice([None, "m", UUID(int=1), Typed(Kind.ULONG, 7)]),
        body=rng.choice(BODIES),
        properties={name: rng.choice(harmless) for name in names},
        session_id=rng.choice([None, "", "s"]),
        time_to_live=rng.choice([None, timedelta(seconds=9), timedelta.max]),
        scheduled=rng.choice([None, NOW + timedelta(hours=1)]),
    )


def _can_be_encoded(value: Any) -> bool:
    try:
        encode_message(Message(properties={"a": value}))
    except MessageError:
        return False
    return True


def diverted(rng: random.Random, *, encrypts: bool) -> Message:
    entity = rng.choice(ENTITIES)
    primary = rng.choice(["", "0123456789abcdef"])
    codec = envelope(rng, encrypts=encrypts)
    wrapped = codec.wrap(sent(rng), entity, attempt="a", now=NOW, primary=primary)
    return decode_message(encode_message(wrapped)) if rng.random() < 0.5 else wrapped


def change(message: Message, other: Message, rng: random.Random) -> Message:
    """The message with one change that its writer didn't make."""
    match rng.randrange(6):
        case 0:
            name = rng.choice([*sorted(RESERVED), "a", "b"])
            properties = {**message.properties, name: rng.choice(VALUES)}
        case 1:
            name = rng.choice(sorted(message.properties))
            properties = {n: v for n, v in message.properties.items() if n != name}
        case 2:  # moved from another message
            name = rng.choice(sorted(other.properties))
            properties = {**message.properties, name: other.properties[name]}
        case 3:
            return attrs.evolve(message, body=other.body)
        case 4:
            return attrs.evolve(message, body=rng.choice(BODIES))
        case _:
            return attrs.evolve(message, body=_broken(message.body, rng))
    return attrs.evolve(message, properties=properties)


def _broken(body: Any, rng: random.Random) -> Any:
    if not isinstance(body, bytes) or not body:
        return body
    wrong, place = bytearray(body), rng.randrange(len(body))
    match rng.randrange(4):
        case 0:
            wrong[place] ^= 1 << rng.randrange(8)
        case 1:
            del wrong[place:]
        case 2:
            wrong[place:place] = rng.randbytes(rng.randrange(1, 60))
        case _:
            del wrong[: place + 1]
    return bytes(wrong)


def resigned(message: Message, codec: Envelope) -> Message:
    """The message under a MAC of the right key, where there can be one."""
    properties = {**message.properties, KEY_ID: codec.keys[0].id}
    try:
        return codec.sign(attrs.evolve(message, properties=properties))
    except (MessageError, LookupError):  # no attacker can make that MAC
        return message


@attrs.define(eq=False)
class HostileEncryption(MessageEncryption):
    """Encrypts fixed bytes instead of the given message: its user has the key."""

    plain: bytes = b""

    def seal(self, secret: bytes, message: Message, associated: bytes) -> tuple[str, bytes]:
        salt, nonce = self.rng.randbytes(SALT), self.rng.randbytes(NONCE)
        sealed = self._cipher(secret, salt).encrypt(nonce, self.plain, associated)
        return nonce.hex(), salt + nonce + sealed


def hostile(rng: random.Random) -> Message:
    """A message that is well encrypted, and is no message."""
    plain = _broken(encode_message(sent(rng)), rng)
    codec = envelope(rng, encrypts=True)
    encryption = HostileEncryption(rng, plain=plain)
    return attrs.evolve(codec, encryption=encryption).wrap(
        Message(), ENTITIES[0], attempt="a", now=NOW
    )


def read(message: Message, codec: Envelope) -> tuple[Any, ...] | None:
    """All that a syphon makes of it, comparable; None: it moves nothing. Nothing else is raised."""
    open_letter(Delivery(message=message, sequence_number=1), codec, NOW, deducts=True)
    try:
        found = codec.unwrap(message)
    except (Malformed, NotOurs):
        return None
    # To the MAC of version 1 no session and the empty one are the same.
    message = attrs.evolve(found.message, session_id=found.message.session_id or None)
    try:
        content: object = encode_message(message)
    except MessageError:  # the primary refuses it
        content = repr(message)
    return (
        content,
        found.entity,
        found.time_to_live,
        found.expires,
        found.attempt,
        found.origin,
        found.primary,
    )


def fuzz(seed: int, go_on: Callable[[int], bool]) -> int:
    """
    Messages while `go_on(n)`; return how many there were. A fault raises, with n: an error that
    isn't a message's, or a changed message that is moved.
    """
    done = 0
    while go_on(done):
        rng = random.Random(f"{seed} {done}")
        try:
            _try_one(rng, encrypts=done % 2 == 0)
        except BaseException as error:
            error.add_note(f"seed {seed}, message {done}")
            raise
        done += 1
    return done


def _try_one(rng: random.Random, *, encrypts: bool) -> None:
    right, other = diverted(rng, encrypts=encrypts), diverted(rng, encrypts=rng.random() < 0.5)
    reader = attrs.evolve(envelope(rng, encrypts=False), keys=KEYS)
    strict = attrs.evolve(reader, accept_legacy=False)
    whole = read(right, strict)
    assert whole is not None
    changed = right
    for _ in range(CHANGES):
        changed = change(changed, other, rng)
        # Changes of fields that no MAC covers are ignored.
        assert read(changed, strict) in {None, whole, read(other, strict)}
        read(changed, reader)
        read(resigned(changed, reader), reader)
    read(hostile(rng), reader)
