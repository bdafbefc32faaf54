"""Formats: values of bodies, and bodies of values."""

from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.message import DataBody, Message, SequenceBody, ValueBody
from gateway.listening.errors import FormatError
from gateway.listening.items import RAW, Json


@attrs.frozen
class Line:
    product: str
    count: int


@attrs.frozen
class Order:
    id: int
    price: float
    lines: list[Line]
    due: datetime | None = None
    note: bytes = b""
    urgent: bool = False


numbers = st.integers(-(2**53), 2**53)
orders = st.builds(
    Order,
    id=numbers,
    price=st.floats(allow_nan=False, allow_infinity=False),
    lines=st.lists(st.builds(Line, product=st.text(), count=numbers)),
    due=st.none() | st.datetimes(timezones=st.just(UTC)),
    note=st.binary(),
    urgent=st.booleans(),
)
ORDER = Json(Order)


@given(orders)
def test_a_value_survives_its_way_through_json(order):
    assert ORDER.parse(ORDER.build(order)) == order


def test_json_is_read_from_each_body_that_can_hold_it():
    text = '{"product": "ä", "count": 1}'
    bodies = [
        text.encode(),
        DataBody(parts=(text.encode()[:5], text.encode()[5:])),
        ValueBody(value=text),
    ]

    assert {Json(Line).parse(Message(body=body)) for body in bodies} == {Line("ä", 1)}


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"", "isn't JSON"),
        (b"\xff", "isn't JSON"),
        (b"[" * 100_000, "isn't JSON"),
        (b"[]", "isn't a Line"),
        (b'{"count": 1}', r"required field missing.*product"),
        (b'{"product": "p", "count": "secret"}', r"int expected.*count"),
        (b'{"product": "p", "count": true}', r"int expected.*count"),
        (b'{"product": 3, "count": 1}', r"str expected.*product"),
        (SequenceBody(sequences=((1,),)), "SequenceBody"),
        (ValueBody(value=1), "ValueBody"),
    ],
)
def test_an_item_that_doesnt_parse_is_a_format_error_that_names_the_field_and_no_value(body, wrong):
    with pytest.raises(FormatError, match=wrong) as caught:
        Json(Line).parse(Message(body=body))

    assert "secret" not in str(caught.value)


@given(st.binary() | st.text().map(str.encode))
def test_no_body_breaks_the_parser(body):
    try:
        ORDER.parse(Message(body=body))
    except FormatError:
        return


def test_raw_messages_are_as_they_are():
    message = Message(body=ValueBody(value=3))

    assert RAW.parse(RAW.build(message)) is message
