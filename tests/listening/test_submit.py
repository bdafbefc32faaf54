"""Values that are submitted, and the items of a listener."""

from itertools import count
from typing import Any

import attrs
import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, EntityNotFound, Outcome, OutcomeUnknown
from gateway.listening.errors import SubmitError
from gateway.listening.items import Json, account_of, queue_of
from gateway.listening.submit import Submitter
from gateway.listening.triggers import Triggers
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse
from tests.listening.harness import ORDERS, until, virtual_time

pytestmark = virtual_time


@attrs.frozen
class Line:
    product: str
    count: int


def submitter(harness: Any, **fields: Any) -> Submitter[Any]:
    numbers = count(1)
    made = {"queue": "orders", "format": Json(Line), **fields}
    return Submitter(broker=harness.broker, new_id=lambda: f"id-{next(numbers)}", **made)


async def test_submit_and_listen_are_inverse(harness):
    async def handle(item):
        """Nothing to do."""

    await harness.listen(handle, format=Json(Line), account="contoso")
    message_id = await submitter(harness, client_id="shop-1").submit(Line("p", 2), request_id="r1")
    await until(lambda: bool(harness.items))
    (item,) = harness.items

    assert item.value == Line("p", 2)
    assert (item.message.message_id, item.attempt) == (message_id, 1)
    assert (item.client_id, item.request_id) == ("shop-1", "r1")
    assert item.queue_uri == "queue://contoso/orders"
    assert (account_of(item.queue_uri), queue_of(item.queue_uri)) == ("contoso", ORDERS)


async def test_a_request_without_an_id_has_that_of_its_message(harness):
    message = submitter(harness).message(Line("p", 2))

    assert message.properties["request-id"] == message.message_id
    assert "client-id" not in message.properties


@pytest.mark.parametrize("error", [Busy, EntityNotFound, OutcomeUnknown])
async def test_every_error_of_the_transport_is_wrapped_with_its_outcome(harness, error):
    faulty = await harness.make_faulty()
    faulty.fault = lambda operation, _: Refuse(lambda: error("no"))

    with pytest.raises(SubmitError, match=f"orders: {error.__name__}") as caught:
        await submitter(harness).submit(Line("p", 2))
    assert caught.value.outcome is error.outcome
    assert isinstance(caught.value.__cause__, error)


async def test_a_submit_without_an_answer_is_unknown(harness):
    faulty = await harness.make_faulty()
    faulty.fault = lambda operation, _: Hang() if operation is Operation.SEND else None

    with pytest.raises(SubmitError, match="no answer from the namespace within 30 s") as caught:
        await submitter(harness).submit(Line("p", 2))
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_submission_with_an_unknown_outcome_wakes_listeners(harness):
    faulty = await harness.make_faulty()
    faulty.fault = lambda operation, _: LoseAnswer()
    triggers = Triggers()
    with triggers.subscribe("contoso", EntityPath("Orders")) as subscription:
        with pytest.raises(SubmitError):
            await submitter(harness, triggers=triggers, account="contoso").submit(Line("p", 2))

        assert subscription.notifications == 1


async def test_a_submission_wakes_listeners(harness):
    triggers = Triggers()
    with triggers.subscribe("contoso", EntityPath("Orders")) as subscription:
        await submitter(harness, triggers=triggers, account="contoso").submit(Line("p", 2))

        assert subscription.notifications == 1
