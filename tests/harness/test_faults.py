import random
from contextlib import suppress

import pytest
import trio

from gateway.capabilities import send_accepted_by
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import Busy, LockLost, Outcome, OutcomeUnknown, Unavailable
from gateway.domain.message import AcceptedBy, Complete, Message
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.harness.faults import (
    FaultyBroker,
    Hang,
    Late,
    LoseAnswer,
    Operation,
    Refuse,
    Reset,
    SwallowAnswer,
    busy,
)

ORDERS = EntityPath("orders")
INVOICES = EntityPath("invoices")
ONE = [Message(message_id="1")]


@pytest.fixture
async def broker(nursery):
    store = MemoryBroker(VirtualClock(), random.Random(1))
    for entity in (ORDERS, INVOICES):
        await store.create_queue(entity, QueueProperties())
    broker = FaultyBroker(inner=store)
    await nursery.start(broker.run)
    return broker


async def stored(broker):
    return len(await broker.inner.peek(ORDERS, limit=10))


def only(fault, *operations):
    return lambda operation, entity: fault if operation in operations else None


async def test_without_a_fault_it_is_its_inner_broker(autojump_clock, broker):
    assert await send_accepted_by(broker, ORDERS, ONE) is AcceptedBy.PRIMARY
    assert await stored(broker) == 1


@pytest.mark.parametrize(
    ("fault", "error", "arrived"),
    [
        (Refuse(), Unavailable, 0),
        (busy(5.0), Busy, 0),
        (Reset(), OutcomeUnknown, 0),
        (LoseAnswer(), OutcomeUnknown, 1),
        (Hang(), trio.TooSlowError, 0),
        (SwallowAnswer(), trio.TooSlowError, 1),
    ],
)
async def test_a_fault_says_what_arrived_and_what_is_answered(
    autojump_clock, broker, fault, error, arrived
):
    broker.fault = only(fault, Operation.SEND)

    with pytest.raises(error), trio.fail_after(10):
        await broker.send(ORDERS, ONE)
    assert await stored(broker) == arrived


async def test_a_late_success_comes_when_nobody_awaits_it(autojump_clock, broker):
    calls = []
    broker.watch = calls.append
    broker.fault = only(Late(30.0), Operation.SEND)
    with pytest.raises(trio.TooSlowError), trio.fail_after(10):
        await broker.send(ORDERS, ONE)
    before = await stored(broker)
    await trio.sleep(21)

    assert (before, await stored(broker)) == (0, 1)
    assert [(call.outcome, call.late) for call in calls] == [(Outcome.UNKNOWN, False), (None, True)]


@pytest.mark.parametrize(
    ("fault", "answered"), [(Hang(), False), (Reset(), False), (SwallowAnswer(), True)]
)
async def test_an_observer_learns_whether_there_was_an_answer_that_nobody_heard(
    autojump_clock, broker, fault, answered
):
    calls = []
    broker.watch = calls.append
    broker.fault = only(fault, Operation.SEND)

    with suppress(OutcomeUnknown), trio.move_on_after(10):
        await broker.send(ORDERS, ONE)

    [call] = calls
    assert call.outcome is Outcome.UNKNOWN
    assert call.answered is answered


async def test_an_answer_that_comes_with_the_end_of_the_waiting_is_told_at_both_ends(
    autojump_clock, broker, nursery
):
    at_namespace, at_client = [], []
    with trio.CancelScope() as waiting:
        broker.watch = lambda call: (at_namespace.append(call), waiting.cancel())
        client = FaultyBroker(inner=broker, watch=at_client.append)
        await nursery.start(client.run)
        await client.send(ORDERS, ONE)

    assert [call.outcome for call in at_namespace] == [None]
    assert [(call.outcome, call.answered) for call in at_client] == [(Outcome.UNKNOWN, True)]


async def test_a_fault_is_for_the_operations_and_entities_that_it_names(autojump_clock, broker):
    hit = {(Operation.SEND, ORDERS), (Operation.PROBE, INVOICES)}
    broker.fault = lambda operation, entity: Refuse() if (operation, entity) in hit else None

    with pytest.raises(Unavailable):
        await broker.send(ORDERS, ONE)
    with pytest.raises(Unavailable):
        await broker.probe(INVOICES)
    await broker.probe(ORDERS)
    await broker.send(INVOICES, ONE)


async def test_a_crash_ends_what_is_under_way_and_refuses_what_comes(
    autojump_clock, broker, nursery
):
    outcomes = []

    async def send():
        try:
            await broker.send(ORDERS, ONE)
        except OutcomeUnknown as error:
            outcomes.append(str(error))

    broker.latency = lambda: 5.0
    nursery.start_soon(send)
    await trio.sleep(1)
    broker.crash()
    await trio.sleep(1)

    assert outcomes == ["it crashed"]
    with pytest.raises(Unavailable):
        await broker.send(ORDERS, ONE)


async def test_a_crash_before_the_answer_may_leave_the_message_there(
    autojump_clock, broker, nursery
):
    broker.latency = lambda: 5.0
    nursery.start_soon(_ignore_unknown, broker)
    await trio.sleep(7)
    broker.crash()
    broker.restart()
    broker.latency = lambda: 0.0

    assert await stored(broker) == 1


async def _ignore_unknown(broker):
    with pytest.raises(OutcomeUnknown):
        await broker.send(ORDERS, ONE)


async def test_a_restart_of_a_namespace_that_is_up_changes_nothing(autojump_clock, broker):
    await broker.send(ORDERS, ONE)
    async with broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        broker.restart()
        await receiver.settle(delivery, Complete())

    assert await stored(broker) == 0


async def test_locks_do_not_survive_a_restart(autojump_clock, broker):
    await broker.send(ORDERS, ONE)
    async with broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        broker.crash()
        with pytest.raises(Unavailable):
            await receiver.settle(delivery, Complete())
        broker.restart()
        with pytest.raises(LockLost):
            await receiver.settle(delivery, Complete())
    async with broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(1):
            [again] = await receiver.receive(1)

    assert again.delivery_count == 2


async def test_a_killed_client_keeps_its_locks_until_they_run_out(autojump_clock, broker, nursery):
    client = FaultyBroker(inner=broker)
    await nursery.start(client.run)
    await broker.send(ORDERS, ONE)
    async with client.open_receiver(ORDERS) as receiver:
        await receiver.receive(1)
        client.crash()
    started = trio.current_time()
    async with broker.open_receiver(ORDERS) as receiver:
        await receiver.receive(1)

    assert trio.current_time() - started == pytest.approx(60, abs=1)


async def test_a_receiver_that_ends_names_what_nobody_confirmed(autojump_clock, broker):
    calls = []
    broker.watch = calls.append
    await broker.send(ORDERS, [Message(message_id="1"), Message(message_id="2")])
    async with broker.open_receiver(ORDERS) as receiver:
        first, _ = await receiver.receive(2)
        await receiver.settle(first, Complete())

    [left] = [call for call in calls if call.operation is Operation.LEAVE]
    assert [message.message_id for message in left.messages] == ["2"]


async def test_a_wait_for_messages_ends_when_the_namespace_fails_meanwhile(
    autojump_clock, broker, nursery
):
    async def fail_and_send():
        await trio.sleep(10)
        broker.fault = only(Refuse(), Operation.RECEIVE)
        await broker.inner.send(ORDERS, ONE)

    nursery.start_soon(fail_and_send)
    async with broker.open_receiver(ORDERS) as receiver:
        with pytest.raises(Unavailable):
            await receiver.receive(1)
