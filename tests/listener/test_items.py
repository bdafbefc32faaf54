"""Typed messages: formats, common fields, and submitting."""

from datetime import UTC, datetime
from itertools import count
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, EntityNotFound, Outcome, OutcomeUnknown
from gateway.domain.message import DataBody, Message, SequenceBody, ValueBody
from gateway.listener.errors import FormatError, SubmitError
from gateway.listener.items import RAW, Json, account_of, queue_of
from gateway.listener.submit import Submitter
from gateway.listener.triggers import Triggers
from gateway.testing.faults import Hang, Operation, Refuse
from tests.listener.hall import ORDERS, until, virtual_time

pytestmark = virtual_time


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
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no Line"),
        (b'{"count": 1}', r"required field missing.*product"),
        (b'{"product": "p", "count": "secret"}', r"int expected.*count"),
        (b'{"product": "p", "count": true}', r"int expected.*count"),
        (b'{"product": 3, "count": 1}', r"str expected.*product"),
        (SequenceBody(sequences=((1,),)), "SequenceBody"),
        (ValueBody(value=1), "ValueBody"),
    ],
)
def test_what_doesnt_parse_is_a_format_error_that_names_the_field_and_no_value(body, wrong):
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


def submitter(hall: Any, **fields: Any) -> Submitter[Any]:
    numbers = count(1)
    made = {"queue": "orders", "format": Json(Line), **fields}
    return Submitter(broker=hall.broker, new_id=lambda: f"id-{next(numbers)}", **made)


async def test_submit_and_listen_are_inverse(hall):
    async def handle(item):
        """Nothing is to be done."""

    await hall.listen(handle, format=Json(Line), account="contoso")
    message_id = await submitter(hall, client_id="shop-1").submit(Line("p", 2), request_id="r1")
    await until(lambda: bool(hall.items))
    (item,) = hall.items

    assert item.value == Line("p", 2)
    assert (item.message.message_id, item.attempt) == (message_id, 1)
    assert (item.client_id, item.request_id) == ("shop-1", "r1")
    assert item.queue_uri == "queue://contoso/orders"
    assert (account_of(item.queue_uri), queue_of(item.queue_uri)) == ("contoso", ORDERS)


async def test_a_request_without_an_id_has_that_of_its_message(hall):
    message = submitter(hall).message(Line("p", 2))

    assert message.properties["request-id"] == message.message_id
    assert "client-id" not in message.properties


@pytest.mark.parametrize("error", [Busy, EntityNotFound, OutcomeUnknown])
async def test_every_error_of_the_transport_is_wrapped_with_its_outcome(hall, error):
    faulty = await hall.make_faulty()
    faulty.fault = lambda operation, _: Refuse(lambda: error("no"))

    with pytest.raises(SubmitError, match=f"orders: {error.__name__}") as caught:
        await submitter(hall).submit(Line("p", 2))
    assert caught.value.outcome is error.outcome
    assert isinstance(caught.value.__cause__, error)


async def test_a_submit_without_an_answer_is_unknown(hall):
    faulty = await hall.make_faulty()
    faulty.fault = lambda operation, _: Hang() if operation is Operation.SEND else None

    with pytest.raises(SubmitError, match="no answer within 30 s") as caught:
        await submitter(hall).submit(Line("p", 2))
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_who_submits_wakes_who_listens(hall):
    triggers = Triggers()
    with triggers.subscribe("contoso", EntityPath("Orders")) as subscription:
        await submitter(hall, triggers=triggers, account="contoso").submit(Line("p", 2))

        assert subscription.rings == 1
