"""
A pack: many small messages of one queue that travel as one message.

    x-pairgate-pack          "1"
    x-pairgate-pack-size     bytes of the decompressed body
    body                     zstd of: for each message 4 bytes of its size, then its AMQP encoding

Only messages without properties that matter to the queue are packed: no session, schedule,
partition key or time to live. Compression and AMQP encoding are the caller's.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import Message, Properties

PACK: Final = "x-pairgate-pack"
SIZE: Final = f"{PACK}-size"
RESERVED: Final = frozenset({PACK, SIZE})
VERSION: Final = "1"
MAX_PACK: Final = 16 * 1024 * 1024  # bytes, decompressed
MAX_MEMBERS: Final = 10_000  # messages: four million empty ones compress to some hundred bytes
_LENGTH: Final = struct.Struct(">I")
OVERHEAD: Final = _LENGTH.size  # bytes of each message


def refuse_reserved(properties: Properties) -> None:
    """
    Raises:
        InvalidRequest: the text names the property.
    """
    taken = RESERVED.intersection(properties)
    if taken:
        raise InvalidRequest(f"application property {min(taken)!r} is reserved for packing")


def may_be_packed(message: Message) -> bool:
    needs = (message.session_id, message.scheduled, message.partition_key, message.time_to_live)
    return all(need is None for need in needs)


def joined(messages: Iterable[bytes]) -> bytes:
    return b"".join(piece for each in messages for piece in (_LENGTH.pack(len(each)), each))


def split(data: bytes) -> Sequence[bytes]:
    """
    Raises:
        MessageError: the data isn't a result of `joined`, or has more than `MAX_MEMBERS` messages.
    """
    found: list[bytes] = []
    start = 0
    while start < len(data):
        if len(found) == MAX_MEMBERS:
            raise MessageError(f"a pack has more than {MAX_MEMBERS} messages")
        if start + OVERHEAD > len(data):
            raise MessageError("a pack ends within the size of a message")
        (length,) = _LENGTH.unpack_from(data, start)
        start += OVERHEAD
        if start + length > len(data):
            raise MessageError(f"a pack ends within a message of {length} bytes")
        found.append(data[start : start + length])
        start += length
    if not found:
        raise MessageError("a pack has no message")
    return found


def is_pack(message: Message) -> bool:
    return message.properties.get(PACK) == VERSION


def pack_of(body: bytes, size: int, message_id: str) -> Message:
    """The message that carries the compressed `body`, of `size` bytes when decompressed."""
    return Message(message_id=message_id, body=body, properties={PACK: VERSION, SIZE: str(size)})


def size_of(message: Message) -> int:
    """
    The size of the decompressed body in bytes, as the pack states it.

    Raises:
        MessageError: the size is missing, malformed, or above `MAX_PACK`.
    """
    text = message.properties.get(SIZE)
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise MessageError(f"property {SIZE}: a number of bytes expected")
    if int(text) > MAX_PACK:
        raise MessageError(f"property {SIZE}: up to {MAX_PACK} bytes expected, found {text}")
    return int(text)
