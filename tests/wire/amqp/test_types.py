"""AMQP 1.0's type system: byte vectors, round trips, and hostile bytes."""

import sys
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.domain.message import Described, Kind, Typed, symbol
from gateway.wire.amqp.types import MAX_DEPTH, MAX_ZERO_WIDTH, decode, decode_at, encode
from tests.strategies import amqp_values

TIMESPAN = symbol("com.microsoft:timespan")
BERLIN = timezone(timedelta(hours=1))
SOME_UUID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def array(*values: Any) -> Typed:
    return Typed(Kind.ARRAY, values)


VECTORS: list[tuple[Any, str]] = [
    # Service Bus, paired namespaces, 7.1: a time to live of 90 s
    (
        Described(TIMESPAN, 900_000_000),
        "00 a3 16 63 6f 6d 2e 6d 69 63 72 6f 73 6f 66 74 3a 74 69 6d 65 73 70 61 6e"
        "81 00 00 00 00 35 a4 e9 00",
    ),
    (
        Described(TIMESPAN, 100),
        "00 a3 16 63 6f 6d 2e 6d 69 63 72 6f 73 6f 66 74 3a 74 69 6d 65 73 70 61 6e 55 64",
    ),
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (Typed(Kind.UBYTE, 255), "50 ff"),
    (Typed(Kind.USHORT, 258), "60 01 02"),
    (Typed(Kind.UINT, 0), "43"),
    (Typed(Kind.UINT, 255), "52 ff"),
    (Typed(Kind.UINT, 256), "70 00 00 01 00"),
    (Typed(Kind.ULONG, 0), "44"),
    (Typed(Kind.ULONG, 255), "53 ff"),
    (Typed(Kind.ULONG, 256), "80 00 00 00 00 00 00 01 00"),
    (Typed(Kind.BYTE, -1), "51 ff"),
    (Typed(Kind.SHORT, -2), "61 ff fe"),
    (Typed(Kind.INT, -128), "54 80"),
    (Typed(Kind.INT, 128), "71 00 00 00 80"),
    (0, "55 00"),
    (127, "55 7f"),
    (-128, "55 80"),
    (128, "81 00 00 00 00 00 00 00 80"),
    (-129, "81 ff ff ff ff ff ff ff 7f"),
    (Typed(Kind.FLOAT, 1.5), "72 3f c0 00 00"),
    (1.5, "82 3f f8 00 00 00 00 00 00"),
    (Typed(Kind.DECIMAL32, b"abcd"), "74 61 62 63 64"),
    (Typed(Kind.DECIMAL64, b"abcdefgh"), "84 61 62 63 64 65 66 67 68"),
    (Typed(Kind.DECIMAL128, bytes(16)), "94" + "00" * 16),
    (Typed(Kind.CHAR, "€"), "73 00 00 20 ac"),
    (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "83 00 00 00 00 00 00 03 e8"),
    (datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC), "83 ff ff ff ff ff ff ff ff"),
    (Typed(Kind.TIMESTAMP, 2**63 - 1), "83 7f ff ff ff ff ff ff ff"),
    (SOME_UUID, "98 00112233445566778899aabbccddeeff"),
    (b"ab", "a0 02 61 62"),
    (b"x" * 255, "a0 ff" + "78" * 255),
    (b"x" * 256, "b0 00 00 01 00" + "78" * 256),
    ("ü", "a1 02 c3 bc"),
    ("x" * 256, "b1 00 00 01 00" + "78" * 256),
    (symbol("ab"), "a3 02 61 62"),
    (symbol("x" * 256), "b3 00 00 01 00" + "78" * 256),
    ([], "45"),
    ([1, None], "c0 04 02 55 01 40"),
    ([None] * 254, "c0 ff fe" + "40" * 254),
    ([None] * 255, "d0 00 00 01 03 00 00 00 ff" + "40" * 255),
    ({}, "c1 01 00"),
    ({"k": 1}, "c1 06 02 a1 01 6b 55 01"),
    (array(), "e0 02 00 40"),
    (array(1, 256), "e0 12 02 81 0000000000000001 0000000000000100"),
    (array(True, False), "e0 04 02 56 01 00"),
    (array(Typed(Kind.UINT, 0), Typed(Kind.UINT, 5)), "e0 0a 02 70 00000000 00000005"),
    (array(Typed(Kind.INT, -1)), "e0 06 01 71 ff ff ff ff"),
    (array(symbol("a"), symbol("bc")), "e0 07 02 a3 01 61 02 62 63"),
    (array([], [1]), "e0 08 02 c0 01 00 03 01 55 01"),
    (array(Described(symbol("d"), 1)), "e0 0e 01 00 a3 01 64 81 0000000000000001"),
    (array(None, None), "e0 02 02 40"),
]


@pytest.mark.parametrize(("value", "octets"), VECTORS)
def test_a_value_has_these_bytes(value: Any, octets: str) -> None:
    encoded = encode(value)

    assert encoded.hex() == bytes.fromhex(octets).hex()


@pytest.mark.parametrize(("value", "octets"), VECTORS)
def test_these_bytes_have_a_value(value: Any, octets: str) -> None:
    decoded = decode(bytes.fromhex(octets))

    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        ("56 00", False),
        ("56 01", True),
        ("70 00 00 00 05", Typed(Kind.UINT, 5)),
        ("80 00 00 00 00 00 00 00 05", Typed(Kind.ULONG, 5)),
        ("71 00 00 00 05", Typed(Kind.INT, 5)),
        ("81 00 00 00 00 00 00 00 05", 5),
        ("b1 00 00 00 01 61", "a"),
        ("d0 00 00 00 04 00 00 00 00", []),
        ("d1 00 00 00 08 00 00 00 02 55 01 55 02", {1: 2}),
        ("f0 00 00 00 06 00 00 00 01 56 01", array(True)),
        ("e0 02 03 41", array(True, True, True)),
        ("e0 01 00", array()),
    ],
)
def test_longer_encodings_are_read_too(octets: str, value: Any) -> None:
    decoded = decode(bytes.fromhex(octets))

    assert strict(decoded) == strict(value)


def strict(value: Any) -> Any:
    """Something that equals only what has the same types all the way down."""
    match value:
        case list():
            return ["list", *map(strict, value)]
        case dict():
            return ["map", *[(strict(key), strict(each)) for key, each in value.items()]]
        case Typed(kind, tuple() as items):
            return [kind, *map(strict, items)]
        case Typed(kind, content):
            return [kind, content]
        case Described(descriptor, content):
            return ["described", strict(descriptor), strict(content)]
    return [type(value), repr(value)]


@given(amqp_values())
def test_every_value_comes_back_with_its_type(value: Any) -> None:
    decoded = decode(encode(value))

    assert strict(decoded) == strict(value)


@given(amqp_values(), st.binary(max_size=5), st.binary(max_size=5))
def test_a_value_ends_where_the_next_one_starts(value: Any, before: bytes, after: bytes) -> None:
    encoded = encode(value)

    decoded, end = decode_at(before + encoded + after, len(before))

    assert decoded == value
    assert end == len(before) + len(encoded)


def test_not_a_number_stays_none() -> None:
    octets = bytes.fromhex("82 7f f8 00 00 00 00 00 00")

    assert encode(decode(octets)) == octets


def test_a_timestamp_is_cut_off_to_milliseconds() -> None:
    moment = datetime(2026, 11, 21, 12, 0, 0, 123_999, tzinfo=BERLIN)

    assert decode(encode(moment)) == datetime(2026, 11, 21, 11, 0, 0, 123_000, tzinfo=UTC)


def test_a_subclass_is_written_as_its_base() -> None:
    class Colour(IntEnum):
        RED = 5

    assert encode(Colour.RED) == b"\x55\x05"


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        1j,
        (1, 2),
        datetime(2026, 1, 1),  # without a time zone
        "\ud800",
        symbol("ü"),
        Typed(Kind.UBYTE, 256),
        Typed(Kind.UINT, -1),
        Typed(Kind.UINT, "1"),
        Typed(Kind.UINT, 2**32),
        Typed(Kind.CHAR, "ab"),
        Typed(Kind.CHAR, ""),
        Typed(Kind.CHAR, "\ud800"),
        Typed(Kind.FLOAT, 1e300),
        Typed(Kind.DECIMAL32, b"abc"),
        Typed(Kind.SYMBOL, 1),
        array(1, "a"),
        array(1, 1.0, True),
        array(Described(symbol("a"), 1), Described(symbol("b"), 1)),
        array(*[None] * (MAX_ZERO_WIDTH + 1)),
    ],
    ids=repr,
)
def test_a_value_that_amqp_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(MessageError):
        encode(value)


@pytest.mark.parametrize(
    "octets",
    [
        "",
        "3f",  # no such code
        "57 00",
        "55",  # cut off
        "81 00",
        "98 00",
        "74 00",
        "00",
        "00 55",
        "00 55 01",
        "56 02",  # neither true nor false
        "73 00 11 00 00",  # beyond Unicode
        "73 00 00 d8 00",  # half a pair
        "a1 02 61",
        "a1 01 ff",  # no UTF-8
        "a3 01 80",  # no ASCII
        "b0 ff ff ff ff 00",
        "c0 00 00",  # no room for the count
        "c0 01 01",  # a count beyond the size
        "c0 02 01 55 01",  # the item reaches beyond the list
        "c0 03 01 40 40",  # the list reaches beyond its items
        "d0 7f ff ff ff 7f ff ff ff",
        "d0 00 00 00 04 ff ff ff ff",
        "c1 02 01 40",  # a key without a value
        "c1 05 04 40 40 40 40",  # a key twice
        "c1 09 04 55 01 40 41 40",
        "c1 03 02 45 40",  # a list as key
        "e0 02 ff 40",  # 255 nulls in no bytes
        "f0 00 00 00 05 ff ff ff ff 40",
        "e0 01 01",  # no constructor
        "55 01 55",  # more than one value
    ],
)
def test_an_invalid_value_is_refused(octets: str) -> None:
    with pytest.raises(MessageError):
        decode(bytes.fromhex(octets))


def test_an_error_says_what_and_where() -> None:
    with pytest.raises(MessageError, match="byte 5: not utf-8"):
        decode(bytes.fromhex("c0 05 01 a1 01 ff 40"))


def nested(octets: bytes, depth: int) -> bytes:
    for _ in range(depth):
        octets = b"\xd0" + (len(octets) + 4).to_bytes(4) + b"\0\0\0\1" + octets
    return octets


def test_the_deepest_nesting_is_read_and_written() -> None:
    value = decode(nested(b"\x40", MAX_DEPTH))

    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "octets",
    [
        nested(b"\x40", MAX_DEPTH + 1),
        nested(b"\x40", 100_000 // 9),
        b"\x00\x40" * (MAX_DEPTH + 1) + b"\x40",
        b"\x00" * 1_000_000,
        b"\xf0\x00\x10\x00\x00\x00\x00\x00\x01" + b"\x00\x40" * 524_286,
    ],
    ids=["list", "lists", "value", "descriptor", "constructor"],
)
def test_deeper_nesting_is_refused(octets: bytes) -> None:
    with pytest.raises(MessageError):
        decode(octets)


@pytest.mark.parametrize(
    "wrap",
    [lambda v: [v], lambda v: {"k": v}, array, lambda v: Described(TIMESPAN, v)],
    ids=["list", "map", "array", "described"],
)
def test_deeper_values_are_not_written(wrap: Any) -> None:
    value: Any = None
    for _ in range(2 * sys.getrecursionlimit()):
        value = wrap(value)

    with pytest.raises(MessageError):
        encode(value)


@given(st.binary(max_size=60))
@example(b"\xe0\x04\x02\x00\x45\x40")
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    try:
        value = decode(data)
    except MessageError:
        return

    assert strict(decode(encode(value))) is not None


@given(amqp_values(), st.data())
def test_spoiled_bytes_are_a_value_or_an_error(value: Any, data: st.DataObject) -> None:
    octets = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    spoiled = bytes(octets[: data.draw(st.integers(1, len(octets)))])

    try:
        read = decode(spoiled)
    except MessageError:
        return

    assert encode(read)
