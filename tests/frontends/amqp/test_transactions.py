"""Transactions of clients: all of their work is done at the commit, or none of it ever."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import NotSupported, OutcomeUnknown, Unavailable
from gateway.domain.message import Defer, Described, Kind, Message, Typed, ValueBody
from gateway.frontends.leases import Leases
from gateway.frontends.shared_receivers import LeaseOptions
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.events import ACCEPTED, TransactionalState, TransferReceived
from gateway.wire.amqp.exchange import Reply, build_request, parse_reply
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.requests import answer_of, request_of
from gateway.wire.amqp.message import encode_message
from gateway.wire.amqp.servicebus.batches import BATCH, encode_batch
from gateway.wire.amqp.servicebus.deliveries import decode_delivery, token_of
from gateway.wire.amqp.servicebus.links import FILTER
from gateway.wire.amqp.transactions import (
    CAPABILITIES,
    Declare,
    Discharge,
)
from tests.frontends.amqp.conftest import House
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.amqp.sessions import SQ, holds
from tests.frontends.amqp.transactions import (
    COORDINATOR,
    LIMIT,
    ROLLBACK,
    Around,
    Controller,
    condition,
    controller_of,
)
from tests.frontends.rest_client import ORDERS, wall_clock
from tests.harness.faults import Operation, Refuse

INVOICES = EntityPath("invoices")
UNKNOWN_ID = "amqp:transaction:unknown-id"
TIMEOUT = "amqp:transaction:timeout"
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
async def controller(house: House, sdk: Sdk) -> Controller:
    await house.broker.create_queue(INVOICES, QueueProperties())
    return await controller_of(sdk)


async def opened(controller: Controller, *bodies: str) -> tuple[amqp.LinkId, bytes]:
    """A link to send orders on, and a transaction in which orders with these bodies were sent."""
    orders = await controller.sdk.sender()
    txn = await controller.declare()
    for body in bodies:
        await controller.send(orders, txn, body)
    return orders, txn


async def taken_by(
    house: House, sdk: Sdk, queue: EntityPath = ORDERS, body: str = "order"
) -> amqp.TransferReceived:
    """The client's delivery of a message that was sent to the queue."""
    await house.broker.send(queue, [Message(body=ValueBody(body))])
    return await sdk.delivery(await sdk.receiver(queue.name, credit=1))


async def bodies(house: House, entity: EntityPath = ORDERS) -> list[str]:
    """The bodies of all messages that can be received, or are locked."""
    peeked = await house.broker.peek(entity, limit=1000)
    return [str(body_of(delivery.message)) for delivery in peeked]


def body_of(message: Message) -> Any:
    return message.body.value if isinstance(message.body, ValueBody) else message.body


async def test_the_coordinator_tells_its_capabilities(house: House, sdk: Sdk) -> None:
    link = sdk.attach(we_send=True, address="", target=COORDINATOR)

    answer = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)

    assert answer.target == amqp.Terminus(coordinator=True, capabilities=CAPABILITIES)


async def test_messages_of_a_transaction_appear_together_when_it_is_committed(
    house: House, controller: Controller
) -> None:
    orders, invoices = await controller.sdk.sender(), await controller.sdk.sender("invoices")
    txn = await controller.declare()

    provisional = await controller.send(orders, txn, "order")
    await controller.send(invoices, txn, "invoice")
    before = await bodies(house), await bodies(house, INVOICES)
    outcome = await controller.discharge(txn)

    assert provisional == TransactionalState(txn_id=txn, outcome=ACCEPTED)
    assert before == ([], [])
    assert outcome == ACCEPTED
    assert (await bodies(house), await bodies(house, INVOICES)) == (["order"], ["invoice"])


async def test_nothing_is_left_of_a_transaction_that_is_rolled_back(
    house: House, controller: Controller
) -> None:
    _, txn = await opened(controller, "order")

    outcome = await controller.discharge(txn, fail=True)

    assert outcome == ACCEPTED
    assert await bodies(house) == []


async def test_a_message_sent_before_the_discharge_counts_without_waiting_for_outcomes(
    house: House, controller: Controller
) -> None:
    orders, txn = await opened(controller)

    for number in range(5):
        controller.post(orders, txn, str(number))
    outcome = await controller.discharge(txn)

    assert outcome == ACCEPTED
    assert await bodies(house) == ["0", "1", "2", "3", "4"]


async def test_a_batch_is_part_of_a_transaction(house: House, controller: Controller) -> None:
    orders, txn = await opened(controller)
    batch = encode_batch([Message(body=ValueBody("1")), Message(body=ValueBody("2"))])

    sent = controller.sdk.engine.send(
        orders, b"b", batch, message_format=BATCH, state=TransactionalState(txn_id=txn)
    )
    assert sent is not None
    await controller.sdk.outcome(sent)
    before = await bodies(house)
    await controller.discharge(txn)

    assert before == []
    assert await bodies(house) == ["1", "2"]


async def test_a_settled_message_is_part_of_a_transaction(
    house: House, controller: Controller
) -> None:
    orders, txn = await opened(controller)

    message = Message(body=ValueBody("settled"))
    controller.sdk.transfer(orders, message, settled=True, state=TransactionalState(txn_id=txn))
    outcome = await controller.discharge(txn)

    assert outcome == ACCEPTED
    assert await bodies(house) == ["settled"]


async def test_a_message_of_many_frames_is_part_of_a_transaction(
    house: House, controller: Controller
) -> None:
    orders, txn = await opened(controller)

    await controller.send(orders, txn, "x" * 300_000)
    before = await bodies(house)
    await controller.discharge(txn)

    assert before == []
    assert [len(body) for body in await bodies(house)] == [300_000]


async def test_a_message_without_a_transaction_is_sent_at_once_beside_one(
    house: House, controller: Controller
) -> None:
    orders, txn = await opened(controller, "later")

    await controller.sdk.send(orders, Message(body=ValueBody("now")))
    before = await bodies(house)
    await controller.discharge(txn)

    assert before == ["now"]
    assert await bodies(house) == ["now", "later"]


async def test_a_delivery_is_settled_when_its_transaction_is_committed(
    house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    invoices = await sdk.sender("invoices")
    taken = await taken_by(house, sdk)
    txn = await controller.declare()

    provisional = await controller.settle(taken, txn)
    await controller.send(invoices, txn, "invoice")
    before = await bodies(house)
    outcome = await controller.discharge(txn)

    assert provisional == TransactionalState(txn_id=txn, outcome=ACCEPTED)
    assert before == ["order"]
    assert outcome == ACCEPTED
    assert await sdk.outcome(taken.delivery) == provisional
    assert (await bodies(house), await bodies(house, INVOICES)) == ([], ["invoice"])


@pytest.mark.parametrize(
    ("outcome", "left", "dead"),
    [
        (amqp.Modified(delivery_failed=True), ["order"], []),
        (amqp.Modified(delivery_failed=True, undeliverable_here=True), ["order"], []),
        (amqp.Rejected(error=amqp.AmqpError(condition="my:reason")), [], ["order"]),
        (amqp.RELEASED, ["order"], []),
    ],
)
async def test_each_outcome_can_be_part_of_a_transaction(
    house: House, controller: Controller, outcome: amqp.Outcome, left: list[str], dead: list[str]
) -> None:
    sdk = controller.sdk
    taken = await taken_by(house, sdk)
    txn = await controller.declare()

    provisional = await controller.settle(taken, txn, outcome)
    discharged = await controller.discharge(txn)

    assert discharged == ACCEPTED
    # ReceiverUnsettledDeliveries.onDispositionAck of azure-core-amqp 2.12: a state of another type
    # than the one that it has sent is a failure, and a rejection without an error ends it.
    assert await sdk.outcome(taken.delivery) == provisional
    assert await bodies(house) == left
    assert await bodies(house, ORDERS.dead_letter) == dead


async def test_after_a_rollback_the_client_still_has_the_delivery_with_its_lock(
    autojump_clock: MockClock, house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    await house.broker.send(ORDERS, [Message(body=ValueBody("order"))])
    link = await sdk.receiver(credit=1)
    taken = await sdk.delivery(link)
    txn = await controller.declare()
    await controller.settle(taken, txn)

    await controller.discharge(txn, fail=True)
    sdk.engine.grant(link, 1)
    with trio.move_on_after(5):
        await sdk.delivery(link)
        pytest.fail("the message was delivered again")
    settled = await sdk.settle(taken, ACCEPTED)

    assert settled == ACCEPTED
    assert await bodies(house) == []


Rollback = Callable[[Controller, bytes], Awaitable[object]]


async def discharged(controller: Controller, txn: bytes) -> None:
    await controller.discharge(txn, fail=True)


async def left_open(controller: Controller, txn: bytes) -> None:
    controller.sdk.engine.detach(controller.link)


async def timed_out(controller: Controller, txn: bytes) -> None:
    await trio.sleep(121)


async def refused(controller: Controller, txn: bytes) -> None:
    orders = await controller.sdk.sender()
    state = TransactionalState(txn_id=txn)
    bad = controller.sdk.engine.send(orders, b"t", b"no message", state=state)
    assert bad is not None
    await controller.sdk.outcome(bad)
    await controller.discharge(txn)


@pytest.mark.parametrize("end", [discharged, left_open, timed_out, refused])
async def test_a_delivery_settled_by_its_client_comes_again_first_after_a_rollback(
    autojump_clock: MockClock, house: House, controller: Controller, end: Rollback
) -> None:
    sdk = controller.sdk
    lasting = QueueProperties(lock_duration=timedelta(minutes=5))
    await house.broker.create_queue(entity := EntityPath("lasting"), lasting)
    await house.broker.send(entity, [Message(body=ValueBody(each)) for each in ("1", "2")])
    link = await sdk.receiver("lasting", credit=1)
    taken = await sdk.delivery(link)
    txn = await controller.declare()
    sdk.engine.settle(taken.delivery, TransactionalState(txn_id=txn, outcome=ACCEPTED))

    await end(controller, txn)
    sdk.engine.grant(link, 1)
    again = decode_delivery((await sdk.delivery(link)).payload)

    assert trio.current_time() < 150
    assert body_of(again.message) == "1"
    assert again.delivery_count == 2


async def test_a_delivery_settled_in_a_transaction_that_is_unknown_comes_again(
    autojump_clock: MockClock, house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    await house.broker.send(ORDERS, [Message(body=ValueBody("order"))])
    link = await sdk.receiver(credit=1)
    taken = await sdk.delivery(link)

    sdk.engine.settle(taken.delivery, TransactionalState(txn_id=b"unknown", outcome=ACCEPTED))
    sdk.engine.grant(link, 1)
    await sdk.delivery(link)

    assert trio.current_time() < 10  # long before the lock ends


async def test_a_delivery_settled_twice_stays_in_its_first_transaction(
    house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    taken = await taken_by(house, sdk)
    first, second = await controller.declare(), await controller.declare()
    await controller.settle(taken, first)

    sdk.engine.settle(taken.delivery, TransactionalState(txn_id=second, outcome=ACCEPTED))

    assert await controller.discharge(second, fail=True) == ACCEPTED
    assert await controller.discharge(first) == ACCEPTED
    assert await bodies(house) == []


async def test_a_delivery_settled_by_its_client_is_settled_at_the_commit(
    house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    taken = await taken_by(house, sdk)
    txn = await controller.declare()

    sdk.engine.settle(taken.delivery, TransactionalState(txn_id=txn, outcome=ACCEPTED))
    outcome = await controller.discharge(txn)

    assert outcome == ACCEPTED
    assert await bodies(house) == []


async def test_a_message_of_a_session_is_settled_in_a_transaction(
    house: House, controller: Controller
) -> None:
    sdk, entity = controller.sdk, EntityPath("sessions")
    await house.broker.create_queue(entity, QueueProperties(requires_session=True))
    await house.broker.send(entity, [Message(body=ValueBody("1"), session_id="a")])
    source = amqp.Terminus(address="sessions", filters={FILTER: "a"})
    taken = await sdk.delivery(await sdk.receiver("sessions", credit=1, source=source))
    txn = await controller.declare()

    await controller.settle(taken, txn)
    before = await bodies(house, entity)
    outcome = await controller.discharge(txn)

    assert before == ["1"]
    assert outcome == ACCEPTED
    assert await bodies(house, entity) == []


async def test_later_messages_of_a_session_overtake_none_that_a_commit_gives_back(
    house: House, controller: Controller
) -> None:
    sdk, entity = controller.sdk, EntityPath("sessions")
    await house.broker.create_queue(entity, QueueProperties(requires_session=True))
    messages = [Message(message_id=each, session_id="a") for each in "123"]
    await house.broker.send(entity, messages)
    source = amqp.Terminus(address="sessions", filters={FILTER: "a"})
    link = await sdk.receiver("sessions", credit=1, source=source)
    taken = await sdk.delivery(link)
    txn = await controller.declare()
    await controller.settle(taken, txn, amqp.RELEASED)

    controller.ask(Discharge(txn_id=txn))
    sdk.engine.grant(link, 3)
    found = [decode_delivery((await sdk.delivery(link)).payload) for _ in range(3)]

    assert [each.message.message_id for each in found] == ["1", "2", "3"]


async def test_a_lost_lock_rolls_everything_back(
    autojump_clock: MockClock, house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    orders = await sdk.sender()
    taken = await taken_by(house, sdk)
    txn = await controller.declare()
    await controller.send(orders, txn, "new")
    await controller.settle(taken, txn)

    await trio.sleep(61)  # the lock has expired
    outcome = await controller.discharge(txn)

    assert condition(outcome) == ROLLBACK
    assert await bodies(house) == ["order"]


async def test_a_full_queue_rolls_everything_back(house: House, controller: Controller) -> None:
    sdk, full = controller.sdk, EntityPath("full")
    await house.broker.create_queue(full, QueueProperties(max_size_in_megabytes=1))
    orders, last = await sdk.sender(), await sdk.sender("full")
    await house.broker.send(full, [Message(body=b"x" * 1_000_000)])
    txn = await controller.declare()
    await controller.send(orders, txn, "order")
    await controller.send(last, txn, "x" * 200_000)

    outcome = await controller.discharge(txn)

    assert condition(outcome) == ROLLBACK
    assert LIMIT in str(outcome)
    assert await bodies(house) == []


async def test_an_entity_that_is_deleted_meanwhile_rolls_everything_back(
    house: House, controller: Controller
) -> None:
    orders, invoices = await controller.sdk.sender(), await controller.sdk.sender("invoices")
    txn = await controller.declare()
    await controller.send(orders, txn, "order")
    await controller.send(invoices, txn, "invoice")

    await house.broker.delete_queue(INVOICES)
    outcome = await controller.discharge(txn)

    assert condition(outcome) == ROLLBACK
    assert await bodies(house) == []


async def test_a_transaction_ends_with_its_coordinators_link(
    house: House, controller: Controller
) -> None:
    _, txn = await opened(controller, "order")

    controller.sdk.engine.detach(controller.link)
    other = await controller_of(controller.sdk)
    outcome = await other.discharge(txn)

    assert condition(outcome) == UNKNOWN_ID
    assert await bodies(house) == []


async def test_nothing_is_left_of_a_transaction_whose_connection_ends(
    house: House, controller: Controller
) -> None:
    await opened(controller, "order")

    await controller.sdk.connection.close()

    assert await bodies(house) == []


async def test_a_transaction_belongs_to_its_connection(
    house: House, controller: Controller
) -> None:
    txn = await controller.declare()
    other = await controller_of(await house.client())
    orders = await other.sdk.sender()

    sent = await other.send(orders, txn, "order")
    discharged = await other.discharge(txn)

    assert condition(sent) == UNKNOWN_ID
    assert condition(discharged) == UNKNOWN_ID
    assert await bodies(house) == []


async def test_transactions_of_one_connection_are_independent(
    house: House, controller: Controller
) -> None:
    orders = await controller.sdk.sender()
    first, second = await controller.declare(), await controller.declare()
    await controller.send(orders, first, "first")
    await controller.send(orders, second, "second")

    await controller.discharge(second)
    before = await bodies(house)
    await controller.discharge(first)

    assert before == ["second"]
    assert await bodies(house) == ["second", "first"]


@pytest.mark.parametrize("txn_id", [b"", b"strange", b"x" * 1000])
async def test_a_transaction_that_was_never_declared_is_unknown(
    house: House, controller: Controller, txn_id: bytes
) -> None:
    sdk = controller.sdk
    orders = await sdk.sender()
    taken = await taken_by(house, sdk, INVOICES, "invoice")

    sent = await controller.send(orders, txn_id, "order")
    settled = await controller.settle(taken, txn_id)
    discharged = await controller.discharge(txn_id)
    afterwards = await sdk.settle(taken, ACCEPTED)

    assert [condition(each) for each in (sent, settled, discharged)] == [UNKNOWN_ID] * 3
    assert await bodies(house) == []
    assert afterwards == ACCEPTED


async def test_a_transaction_is_discharged_once(house: House, controller: Controller) -> None:
    orders, txn = await opened(controller, "order")
    await controller.discharge(txn)

    again = await controller.discharge(txn)
    late = await controller.send(orders, txn, "late")

    assert condition(again) == UNKNOWN_ID
    assert condition(late) == UNKNOWN_ID
    assert await bodies(house) == ["order"]


async def test_an_empty_transaction_is_committed(controller: Controller) -> None:
    assert await controller.discharge(await controller.declare()) == ACCEPTED


async def test_a_transaction_times_out_after_its_first_work(
    autojump_clock: MockClock, house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    orders = await sdk.sender()
    txn, undone = await controller.declare(), await controller.declare()
    await trio.sleep(100)
    await controller.send(orders, txn, "order")
    await controller.send(orders, undone, "order")

    await trio.sleep(119)
    in_time = await controller.send(orders, txn, "in time")
    await trio.sleep(2)
    late = await controller.send(orders, txn, "late")
    outcome = await controller.discharge(txn)

    assert in_time == TransactionalState(txn_id=txn, outcome=ACCEPTED)
    assert condition(late) == TIMEOUT
    assert condition(outcome) == TIMEOUT
    assert await controller.discharge(undone, fail=True) == ACCEPTED
    assert await bodies(house) == []


async def test_a_transaction_has_a_limited_number_of_messages_and_settlements(
    house: House, controller: Controller
) -> None:
    orders, txn = await opened(controller)
    sent = [await controller.send(orders, txn, str(number)) for number in range(101)]

    outcome = await controller.discharge(txn)

    assert all(isinstance(state, TransactionalState) for state in sent[:100])
    assert condition(sent[100]) == LIMIT
    assert condition(outcome) == ROLLBACK
    assert await bodies(house) == []


async def test_the_transactions_of_a_connection_have_a_limited_size(
    house: House, controller: Controller
) -> None:
    house.change(max_transaction_bytes=1000)
    limited = await controller_of(await house.client())
    orders = await limited.sdk.sender()
    first, second = await limited.declare(), await limited.declare()

    await limited.send(orders, first, "x" * 600)
    refused = await limited.send(orders, second, "y" * 600)
    of_second = await limited.discharge(second)
    of_first = await limited.discharge(first)
    third = await limited.declare()
    afterwards = await limited.send(orders, third, "y" * 600)

    assert condition(refused) == LIMIT
    assert condition(of_second) == ROLLBACK
    assert of_first == ACCEPTED
    assert isinstance(afterwards, TransactionalState)
    assert [len(body) for body in await bodies(house)] == [600]


async def test_a_transaction_forgets_the_messages_that_it_was_refused(
    house: House, controller: Controller
) -> None:
    house.change(max_transaction_bytes=1000)
    limited = await controller_of(await house.client())
    orders = await limited.sdk.sender()
    txn = await limited.declare()
    refused = [await limited.send(orders, txn, letter * 1001) for letter in "xy"]

    gc.collect()
    kept = [
        each
        for each in gc.get_objects()
        if isinstance(each, TransferReceived) and len(each.payload) > 1000
    ]

    assert [condition(state) for state in refused] == [LIMIT, ROLLBACK]
    assert kept == []


async def test_a_connection_has_a_limited_number_of_transactions(
    house: House, controller: Controller
) -> None:
    house.change(max_transactions=2)
    limited = await controller_of(await house.client())
    first = await limited.declare()
    await limited.declare()

    refused = await limited.sdk.outcome(limited.ask(Declare()))
    await limited.discharge(first, fail=True)
    again = await limited.declare()

    assert condition(refused) == LIMIT
    assert again


async def test_a_transaction_with_a_refused_part_can_only_be_rolled_back(
    house: House, controller: Controller
) -> None:
    orders, txn = await opened(controller, "good")

    bad = controller.sdk.engine.send(
        orders, b"t", b"no message", state=TransactionalState(txn_id=txn)
    )
    assert bad is not None
    refused = await controller.sdk.outcome(bad)
    late = await controller.send(orders, txn, "late")
    outcome = await controller.discharge(txn)

    assert condition(refused) == "amqp:decode-error"
    assert condition(late) == ROLLBACK
    assert condition(outcome) == ROLLBACK
    assert await bodies(house) == []


async def test_a_delivery_is_part_of_one_transaction(house: House, controller: Controller) -> None:
    sdk = controller.sdk
    taken = await taken_by(house, sdk)
    first, second = await controller.declare(), await controller.declare()
    await controller.settle(taken, first)

    refused = await controller.settle(taken, second)

    assert condition(refused) == "amqp:not-allowed"
    assert condition(await controller.discharge(second)) == ROLLBACK
    assert await controller.discharge(first) == ACCEPTED
    assert await bodies(house) == []


async def test_a_settlement_meanwhile_rolls_the_transaction_back(
    house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    orders = await sdk.sender()
    taken = await taken_by(house, sdk, INVOICES, "invoice")
    txn = await controller.declare()
    await controller.send(orders, txn, "order")
    await controller.settle(taken, txn)

    await sdk.settle(taken, ACCEPTED)
    outcome = await controller.discharge(txn)

    assert condition(outcome) == ROLLBACK
    assert await bodies(house) == []


@pytest.mark.parametrize(
    "body", [ValueBody("declare"), ValueBody(None), b"bytes", ValueBody([b"id", True])]
)
async def test_anything_else_is_rejected_by_the_coordinator(
    controller: Controller, body: Any
) -> None:
    asked = controller.sdk.engine.send(controller.link, b"t", encode_message(Message(body=body)))
    assert asked is not None

    outcome = await controller.sdk.outcome(asked)

    assert condition(outcome) == "amqp:decode-error"
    assert await controller.declare()


async def test_a_distributed_transaction_is_not_begun_as_a_local_one(
    controller: Controller,
) -> None:
    body = ValueBody(Described(Typed(Kind.ULONG, 0x31), [b"a global id"]))
    asked = controller.sdk.engine.send(controller.link, b"t", encode_message(Message(body=body)))
    assert asked is not None

    outcome = await controller.sdk.outcome(asked)

    assert condition(outcome) == "amqp:not-implemented"
    assert await controller.declare()


async def request_links(
    controller: Controller, entity: EntityPath = ORDERS
) -> tuple[amqp.LinkId, amqp.LinkId]:
    """Links to `$management`: for requests, and for one reply."""
    sdk, node = controller.sdk, f"{entity}/$management"
    replies = await sdk.attached(
        we_send=False, address=node, target=amqp.Terminus(address="replies")
    )
    sdk.engine.grant(replies, 1)
    return await sdk.attached(we_send=True, address=node), replies


def payload_of(operation: ops.Operation, timeout: float = 60) -> bytes:
    return build_request(
        request_of(operation, request_id="q", reply_to="replies", timeout=timeout, link=None)
    )


def completion(*tokens: str) -> bytes:
    asked = ops.UpdateDisposition(status=ops.Disposition.COMPLETED, tokens=tokens)
    return payload_of(asked)


def request_in(
    controller: Controller, requests: amqp.LinkId, txn_id: bytes, payload: bytes
) -> amqp.DeliveryId:
    """Send a request in a transaction."""
    state = TransactionalState(txn_id=txn_id)
    asked = controller.sdk.engine.send(requests, b"q", payload, state=state)
    assert asked is not None
    return asked


async def ask_in(
    controller: Controller, txn_id: bytes, operation: ops.Operation, entity: EntityPath = ORDERS
) -> Reply:
    """The reply to a management request in a transaction."""
    requests, replies = await request_links(controller, entity)
    asked = request_in(controller, requests, txn_id, payload_of(operation))
    await controller.sdk.outcome(asked)
    reply = parse_reply((await controller.sdk.delivery(replies)).payload)
    controller.sdk.engine.detach(replies)  # the next reply would come there
    return reply


async def test_a_deferred_message_is_settled_in_a_transaction(
    house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    invoices = await sdk.sender("invoices")
    await house.broker.send(ORDERS, [Message(body=ValueBody("order"))])
    async with house.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Defer())
    leased = await house.frontend.leases.receive_deferred(ORDERS, [delivery.sequence_number])
    token = leased[0].lock_token
    assert token is not None
    txn = await controller.declare()

    complete = ops.UpdateDisposition(status=ops.Disposition.COMPLETED, tokens=(token,))
    reply = await ask_in(controller, txn, complete)
    await controller.send(invoices, txn, "invoice")
    before = await bodies(house)
    outcome = await controller.discharge(txn)

    assert reply.status == 200
    assert before == ["order"]
    assert outcome == ACCEPTED
    assert (await bodies(house), await bodies(house, INVOICES)) == ([], ["invoice"])


async def test_the_state_of_a_session_is_set_when_its_transaction_is_committed(
    autojump_clock: MockClock, house: House, controller: Controller
) -> None:
    """Sample 06 of .NET's SDK: a session's message and its state in one TransactionScope."""
    await house.broker.create_queue(SQ, QueueProperties(requires_session=True))
    await house.broker.send(SQ, [Message(session_id="a")])
    link, _ = await holds(controller.sdk, "a")
    controller.sdk.engine.grant(link, 1)
    taken = await controller.sdk.delivery(link)
    undone, done = await controller.declare(), await controller.declare()

    async def set_in(txn: bytes, state: bytes) -> int:
        operation = ops.SetSessionState(session_id="a", state=state)
        return (await ask_in(controller, txn, operation, SQ)).status

    statuses = [await set_in(undone, b"undone"), await set_in(done, b"half done")]
    await controller.discharge(undone, fail=True)
    await controller.settle(taken, done)
    before = await house.broker.list_sessions(SQ, updated_since=LONG_AGO)
    outcome = await controller.discharge(done)

    assert statuses == [200, 200]
    assert before == []
    assert outcome == ACCEPTED
    assert await house.broker.list_sessions(SQ, updated_since=LONG_AGO) == ["a"]
    assert await bodies(house, SQ) == []


async def test_the_state_of_a_session_that_another_connection_holds_rolls_back(
    autojump_clock: MockClock, house: House, controller: Controller
) -> None:
    await house.broker.create_queue(SQ, QueueProperties(requires_session=True))
    await holds(await house.client(), "a")
    txn = await controller.declare()

    operation = ops.SetSessionState(session_id="a", state=b"x")
    reply = await ask_in(controller, txn, operation, SQ)

    assert reply.condition == "com.microsoft:session-lock-lost"
    assert condition(await controller.discharge(txn)) == ROLLBACK


def in_an_hour(body: str) -> Message:
    scheduled = wall_clock() + timedelta(hours=1)
    return Message(message_id=body, body=ValueBody(body), scheduled=scheduled)


async def test_messages_are_scheduled_when_their_transaction_is_committed(
    house: House, controller: Controller
) -> None:
    """
    ScheduleMessagesAsync in a TransactionScope: its answer has the numbers as an array
    (azure-sdk-for-net, AmqpSender.cs, ScheduleMessageInternalAsync).
    """
    undone, done = await controller.declare(), await controller.declare()
    asked = ops.Schedule(messages=(in_an_hour("1"), in_an_hour("2")))

    lost = await ask_in(controller, undone, asked)
    kept = await ask_in(controller, done, asked)
    before = await bodies(house)
    await controller.discharge(undone, fail=True)
    outcome = await controller.discharge(done)

    assert (lost.status, kept.status, outcome) == (200, 200, ACCEPTED)
    assert before == []
    there = await house.broker.peek(ORDERS, limit=100)
    numbers = answer_of(asked, kept).sequence_numbers
    assert [each.sequence_number for each in there] == [*numbers]
    assert not {*numbers} & {*answer_of(asked, lost).sequence_numbers}
    assert await bodies(house) == ["1", "2"]


async def test_a_schedule_is_cancelled_when_its_transaction_is_committed(
    house: House, controller: Controller
) -> None:
    numbers = await house.broker.schedule(ORDERS, [in_an_hour("1")])
    txn = await controller.declare()

    reply = await ask_in(controller, txn, ops.CancelScheduled(sequence_numbers=tuple(numbers)))
    before = await bodies(house)
    outcome = await controller.discharge(txn)

    assert (reply.status, outcome) == (200, ACCEPTED)
    assert (before, await bodies(house)) == (["1"], [])


async def test_a_schedule_that_was_cancelled_meanwhile_rolls_a_transaction_back(
    house: House, controller: Controller
) -> None:
    _, txn = await opened(controller, "new")
    numbers = tuple(await house.broker.schedule(ORDERS, [in_an_hour("1")]))

    reply = await ask_in(controller, txn, ops.CancelScheduled(sequence_numbers=numbers))
    await house.broker.cancel_scheduled(ORDERS, numbers)

    assert reply.status == 200
    assert condition(await controller.discharge(txn)) == ROLLBACK
    assert await bodies(house) == []


class WithoutSchedules(Around):
    """A namespace with transactions in which nothing is scheduled, as one of Azure is here."""

    def __getattr__(self, name: str) -> Any:
        if name == "enlist_schedule":
            raise AttributeError(name)
        return super().__getattr__(name)


async def test_a_namespace_that_schedules_in_no_transaction_says_so(
    house: House, controller: Controller
) -> None:
    house.frontend = attrs.evolve(house.frontend, broker=WithoutSchedules(house.faulty))
    asking = await controller_of(await house.client())
    txn = await asking.declare()

    reply = await ask_in(asking, txn, ops.Schedule(messages=(in_an_hour("1"),)))

    assert (reply.status, reply.condition) == (501, "amqp:not-implemented")
    assert "can't be scheduled or cancelled in a transaction here" in reply.description
    assert condition(await asking.discharge(txn)) == ROLLBACK


async def test_a_lock_is_renewed_at_once_beside_a_transaction(
    house: House, controller: Controller
) -> None:
    sdk = controller.sdk
    taken = await taken_by(house, sdk)
    txn = await controller.declare()
    await controller.settle(taken, txn)

    reply = await ask_in(controller, txn, ops.RenewLocks(tokens=(token_of(taken.tag),)))

    assert reply.status == 200
    assert await controller.discharge(txn) == ACCEPTED
    assert await bodies(house) == []


async def leased_token(house: House) -> str:
    """The lock token of a message that was sent and received."""
    await house.broker.send(ORDERS, [Message(body=ValueBody("order"))])
    [leased] = await house.frontend.leases.receive(ORDERS, 1)
    assert leased.lock_token is not None
    return leased.lock_token


async def test_a_settlement_by_request_right_before_the_discharge_is_committed(
    house: House, controller: Controller
) -> None:
    sdk, token = controller.sdk, await leased_token(house)
    invoices = await sdk.sender("invoices")
    requests, replies = await request_links(controller)
    txn = await controller.declare()
    await controller.send(invoices, txn, "invoice")

    request_in(controller, requests, txn, completion(token))
    outcome = await controller.discharge(txn)

    assert outcome == ACCEPTED
    assert parse_reply((await sdk.delivery(replies)).payload).status == 200
    assert (await bodies(house), await bodies(house, INVOICES)) == ([], ["invoice"])


async def test_a_request_that_is_refused_after_the_discharge_came_rolls_back(
    house: House, controller: Controller
) -> None:
    sdk, invoices = controller.sdk, await controller.sdk.sender("invoices")
    requests, replies = await request_links(controller)
    txn = await controller.declare()
    await controller.send(invoices, txn, "invoice")

    request_in(controller, requests, txn, completion(str(UUID(int=1))))
    outcome = await controller.discharge(txn)

    assert condition(outcome) == ROLLBACK
    assert parse_reply((await sdk.delivery(replies)).payload).status != 200
    assert await bodies(house, INVOICES) == []


async def test_a_request_after_the_discharge_is_of_no_transaction(
    house: House, controller: Controller
) -> None:
    sdk, token = controller.sdk, await leased_token(house)
    requests, replies = await request_links(controller)
    txn = await controller.declare()

    discharge = controller.ask(Discharge(txn_id=txn))
    request_in(controller, requests, txn, completion(token))

    assert await sdk.outcome(discharge) == ACCEPTED
    reply = parse_reply((await sdk.delivery(replies)).payload)
    assert (reply.status, reply.condition) == (404, UNKNOWN_ID)
    assert await bodies(house) == ["order"]


async def test_a_request_whose_link_ends_before_its_turn_rolls_back(
    house: House, controller: Controller
) -> None:
    sdk, token = controller.sdk, await leased_token(house)
    invoices = await sdk.sender("invoices")
    requests, _ = await request_links(controller)
    txn = await controller.declare()
    await controller.send(invoices, txn, "invoice")

    request_in(controller, requests, txn, completion(token))
    sdk.engine.detach(requests)
    outcome = await controller.discharge(txn)

    assert condition(outcome) == ROLLBACK
    assert (await bodies(house), await bodies(house, INVOICES)) == (["order"], [])


@pytest.mark.parametrize(
    "payload", [b"no message", completion().replace(b"lock-tokens", b"lock-tokenz")]
)
async def test_a_request_that_cant_be_read_rolls_back(
    house: House, controller: Controller, payload: bytes
) -> None:
    invoices = await controller.sdk.sender("invoices")
    requests, _ = await request_links(controller)
    txn = await controller.declare()
    await controller.send(invoices, txn, "invoice")

    request_in(controller, requests, txn, payload)
    outcome = await controller.discharge(txn)

    assert condition(outcome) == ROLLBACK
    assert await bodies(house, INVOICES) == []


class Silent(Around):
    """A namespace that doesn't answer a peek."""

    async def peek(self, *_: Any, **_how: Any) -> Any:
        await trio.sleep_forever()


async def test_a_commit_doesnt_wait_for_a_request_for_ever(
    autojump_clock: MockClock, house: House, controller: Controller
) -> None:
    house.frontend = attrs.evolve(house.frontend, broker=Silent(house.faulty))
    waiting = await controller_of(await house.client())
    invoices = await waiting.sdk.sender("invoices")
    requests, _ = await request_links(waiting)
    txn = await waiting.declare()
    await waiting.send(invoices, txn, "invoice")

    asked = payload_of(ops.Peek(from_sequence=0, limit=1), timeout=1000)
    request_in(waiting, requests, txn, asked)
    outcome = await waiting.discharge(txn)

    assert condition(outcome) == ROLLBACK
    assert await bodies(house, INVOICES) == []


async def test_after_a_commit_no_lease_is_left_whatever_failed_in_between(
    house: House, controller: Controller
) -> None:
    leases = Leases(house.faulty, wall_clock, LeaseOptions(max_leases=1))
    await house.nursery.start(leases.run)
    house.frontend = attrs.evolve(house.frontend, leases=leases)
    limited = await controller_of(await house.client())
    sdk = limited.sdk
    taken = await taken_by(house, sdk)
    txn = await limited.declare()
    await limited.settle(taken, txn)

    house.breaks(Operation.SETTLE, Refuse(lambda: Unavailable("it is down")))
    refused = await sdk.settle(taken, ACCEPTED)
    house.faulty.fault = lambda asked, entity: None
    outcome = await limited.discharge(txn)

    assert condition(refused) == "com.microsoft:container-close"
    assert outcome == ACCEPTED
    await house.broker.send(ORDERS, [Message(body=ValueBody("2"))])
    assert len(await leases.receive(ORDERS, 1)) == 1


async def test_a_deletion_is_refused_in_a_transaction(controller: Controller) -> None:
    txn = await controller.declare()

    reply = await ask_in(controller, txn, ops.DeleteMessages(limit=1))

    assert (reply.status, reply.condition) == (501, "amqp:not-implemented")
    assert condition(await controller.discharge(txn)) == ROLLBACK


async def test_a_request_in_an_unknown_transaction_is_refused(controller: Controller) -> None:
    reply = await ask_in(controller, b"strange", ops.Peek(from_sequence=0, limit=1))

    assert (reply.status, reply.condition) == (404, UNKNOWN_ID)


async def test_a_token_isnt_put_in_a_transaction(controller: Controller) -> None:
    sdk = controller.sdk
    requests = await sdk.attached(we_send=True, address="$cbs")
    txn = await controller.declare()

    refused = await sdk.outcome(
        sdk.transfer(requests, Message(), state=TransactionalState(txn_id=txn))
    )

    assert condition(refused) == "amqp:not-implemented"
    assert condition(await controller.discharge(txn)) == ROLLBACK


async def test_many_transactions_follow_one_another_on_one_link(
    house: House, controller: Controller
) -> None:
    orders = await controller.sdk.sender()
    for _ in range(200):
        txn = await controller.declare()
        await controller.send(orders, txn, "order")
        await controller.discharge(txn)

    assert len(await bodies(house)) == 200


# Azure.Messaging.ServiceBus, AmqpSender.SendBatchInternalAsync: EnlistAsync declares, and puts no
# token for the coordinator; the link to send on is opened afterwards, with its token.
async def test_a_transaction_may_be_the_first_act_of_a_client(house: House) -> None:
    controller = await controller_of(await house.connect().open())
    txn = await controller.declare()
    early = await controller.sdk.refusal(we_send=True, address="orders")

    await controller.sdk.put_token("sb://localhost/orders")
    orders = await controller.sdk.sender()
    await controller.send(orders, txn, "order")
    committed = await controller.discharge(txn)

    assert early.condition == "amqp:unauthorized-access"
    assert committed == ACCEPTED
    assert await bodies(house) == ["order"]


async def test_a_stranger_gets_transactions_of_nothing_without_a_call_to_the_namespace(
    house: House,
) -> None:
    broken = Broken(house.faulty, AssertionError("it was asked"), at_declare=True)
    house.frontend = attrs.evolve(house.frontend, broker=broken)
    house.change(max_transactions=1)
    controller = await controller_of(await house.connect().open())

    txn = await controller.declare()
    beyond = await controller.sdk.outcome(controller.ask(Declare()))
    discharged = await controller.discharge(txn)

    assert condition(beyond) == LIMIT
    assert discharged == ACCEPTED


@attrs.define(eq=False)
class Broken(Around):
    """A namespace whose transactions fail."""

    _error: Exception
    _at_declare: bool = attrs.field(default=False, kw_only=True)

    async def check_transactions(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._at_declare:
            raise self._error

    async def commit(self, work: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise self._error


@asynccontextmanager
async def broken(house: House, error: Exception, **how: Any) -> AsyncIterator[Controller]:
    house.frontend = attrs.evolve(house.frontend, broker=Broken(house.faulty, error, **how))
    yield await controller_of(await house.client())


async def test_an_unknown_commit_ends_the_connection_without_a_verdict(house: House) -> None:
    async with broken(house, OutcomeUnknown("no answer")) as controller:
        _, txn = await opened(controller, "order")

        asked = controller.ask(Discharge(txn_id=txn))
        closed = await controller.sdk.until(amqp.ConnectionClosed)

    assert closed.error.condition == "com.microsoft:timeout"
    assert not [
        each
        for each in controller.sdk.told
        if isinstance(each, amqp.DispositionReceived) and each.delivery == asked
    ]


async def test_a_commit_that_a_namespace_refuses_is_a_rollback(house: House) -> None:
    async with broken(house, Unavailable("the primary is down")) as controller:
        _, txn = await opened(controller, "order")

        outcome = await controller.discharge(txn)

    assert condition(outcome) == ROLLBACK
    assert "the primary is down" in str(outcome)


async def test_a_declare_fails_while_the_namespace_is_down(house: House) -> None:
    async with broken(house, Unavailable("it is down"), at_declare=True) as controller:
        outcome = await controller.sdk.outcome(controller.ask(Declare()))

    assert condition(outcome) == "com.microsoft:container-close"
    assert "it is down" in str(outcome)


class Without(Around):
    """A namespace without transactions."""

    def __getattr__(self, name: str) -> Any:
        if name in {"commit", "check_transactions"}:
            raise AttributeError(name)
        return super().__getattr__(name)


async def test_a_namespace_without_transactions_has_no_coordinator(house: House) -> None:
    house.frontend = attrs.evolve(house.frontend, broker=Without(house.faulty))
    sdk = await house.client()

    refusal = await sdk.refusal(we_send=True, address="", target=COORDINATOR)

    assert refusal.condition == "amqp:not-implemented"
    assert "no transactions" in refusal.description


async def test_a_namespace_that_says_that_it_has_no_transactions_has_no_coordinator(
    house: House,
) -> None:
    error = NotSupported("no transactions here")
    house.frontend = attrs.evolve(
        house.frontend, broker=Broken(house.faulty, error, at_declare=True)
    )
    sdk = await house.client()

    refusal = await sdk.refusal(we_send=True, address="", target=COORDINATOR)

    assert refusal.condition == "amqp:not-implemented"
    assert "no transactions here" in refusal.description
