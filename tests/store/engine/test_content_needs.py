"""Content that only its storage can read: the operations of a queue on it, and their errors."""

from typing import Any

import attrs
import pytest

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import Message
from gateway.store.engine.content_needs import Packing


def packed(message: Message) -> tuple[Any, int]:
    if message.body == b"too deep":
        raise MessageError("too deep")
    return message, len(message.body)


def unpacked(content: Any) -> Message:
    if not isinstance(content, Message):
        raise MessageError("unreadable")
    return content


PACKING = Packing(packed, unpacked)
MESSAGE = Message(message_id="1", body=b"abc", properties={"a": 1, "b": 2})


def test_an_id_is_told_where_there_is_one() -> None:
    assert PACKING.id_of(MESSAGE) == "1"
    assert PACKING.id_of(Message()) is None
    assert PACKING.id_of("damaged") is None


def test_a_body_is_replaced_and_all_else_stays() -> None:
    content, size = PACKING.with_body(MESSAGE, b"longer")

    assert (content, size) == (attrs.evolve(MESSAGE, body=b"longer"), 6)


def test_properties_are_set_among_those_that_are_there() -> None:
    content, size = PACKING.amended(MESSAGE, {"b": 3, "c": 4})

    assert (content.properties, size) == ({"a": 1, "b": 3, "c": 4}, 3)


def test_a_value_that_cannot_be_said_is_the_fault_of_its_sender() -> None:
    with pytest.raises(InvalidRequest, match="body: too deep"):
        PACKING.with_body(MESSAGE, b"too deep")
    with pytest.raises(InvalidRequest, match="properties: unreadable"):
        PACKING.amended("damaged", {"a": 1})
