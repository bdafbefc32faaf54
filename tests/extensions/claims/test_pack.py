"""Many small messages as one message: joined, split, and distinguished from others."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import Message
from gateway.extensions.claims.pack import (
    MAX_MEMBERS,
    MAX_PACK,
    OVERHEAD,
    PACK,
    SIZE,
    is_pack,
    joined,
    may_be_packed,
    pack_of,
    refuse_reserved,
    size_of,
    split,
)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20))
def test_a_joined_pack_is_split_again(messages: list[bytes]) -> None:
    data = joined(messages)

    assert split(data) == messages
    assert len(data) == sum(map(len, messages)) + OVERHEAD * len(messages)


def test_each_message_has_four_bytes_of_its_size_before_it() -> None:
    assert joined([b"ab", b""]) == b"\0\0\0\2ab\0\0\0\0"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no message"),
        (b"\0\0\0", "a pack ends within the size of a message"),
        (b"\0\0\0\0\0", "a pack ends within the size of a message"),
        (b"\0\0\0\2a", "a pack ends within a message of 2 bytes"),
        (b"\0\0\0\1a\0\0\0\1", "a pack ends within a message of 1 bytes"),
    ],
)
def test_an_invalid_pack_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        split(data)


def test_a_pack_has_a_bounded_number_of_messages() -> None:
    assert len(split(joined([b""] * MAX_MEMBERS))) == MAX_MEMBERS
    with pytest.raises(MessageError, match="more than 10000"):
        split(joined([b""] * (MAX_MEMBERS + 1)))


def test_a_pack_says_what_it_is() -> None:
    pack = pack_of(b"compressed", 1234, "id")

    assert (pack.message_id, pack.body) == ("id", b"compressed")
    assert pack.properties == {"x-pairgate-pack": "1", "x-pairgate-pack-size": "1234"}
    assert is_pack(pack)
    assert size_of(pack) == 1234


@pytest.mark.parametrize("version", [None, "2", 1])
def test_another_version_is_no_pack_of_ours(version: Any) -> None:
    assert not is_pack(Message(properties={PACK: version}))
    assert not is_pack(Message())


@pytest.mark.parametrize(
    "size", [None, 5, "", "-1", "1.0", "²", "٣", "0" * 9 + "1", str(MAX_PACK + 1)]
)
def test_a_pack_that_doesnt_say_its_size_is_refused(size: Any) -> None:
    with pytest.raises(MessageError, match=f"property {SIZE}"):
        size_of(Message(properties={SIZE: size}))


def test_a_size_is_bounded() -> None:
    assert size_of(Message(properties={SIZE: "000000001"})) == 1
    assert size_of(Message(properties={SIZE: str(MAX_PACK)})) == MAX_PACK == 2**24


@pytest.mark.parametrize("name", [PACK, SIZE])
def test_nobody_forges_a_pack(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' is reserved"):
        refuse_reserved({name: "1"})
    refuse_reserved({"own": 1})


def test_of_several_reserved_names_the_first_is_named() -> None:
    with pytest.raises(InvalidRequest, match=f"'{PACK}' is"):
        refuse_reserved({SIZE: "1", PACK: "1"})


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": "s"},
        {"scheduled": datetime(2026, 1, 1, tzinfo=UTC)},
        {"partition_key": "p"},
        {"time_to_live": timedelta(0)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_message_that_the_queue_must_know_of_is_not_packed(fields: dict[str, Any]) -> None:
    assert may_be_packed(Message(body=b"a", properties={"own": 1}))
    assert not may_be_packed(Message(**fields))
