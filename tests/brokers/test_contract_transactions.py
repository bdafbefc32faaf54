"""The contract of a broker with transactions: all of a commit's work is done, or nothing of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.capabilities import (
    Enlists,
    EnlistsSchedules,
    EnlistsState,
    Peeks,
    ReceivesDeferred,
    Schedules,
    Sessions,
    Topology,
    TransactedSend,
    TransactedWork,
    Transacts,
)
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    Outcome,
    TransactionRolledBack,
)
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, Message, MessageState
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.offering import required
from tests.brokers.contract import SECOND, make, numbered, take_one
from tests.brokers.kinds import Capability, needs, waits

INVOICES = EntityPath("invoices")


async def ids_in(broker: Any, entity: EntityPath) -> list[str]:
    """All messages that are there, locked ones too."""
    peeked = await required(broker, Peeks).peek(entity, limit=100)
    return [str(each.message.message_id) for each in peeked]


async def commit(broker: Any, *work: TransactedWork) -> None:
    await required(broker, Transacts).commit(work)


def sends(entity: EntityPath, *names: str) -> TransactedSend:
    return TransactedSend(entity, [Message(message_id=name) for name in names])


async def fails(broker: Any, *work: TransactedWork) -> BrokerError:
    """The error of a commit, which must be certain."""
    with pytest.raises(BrokerError) as caught:
        await commit(broker, *work)
    assert caught.value.outcome is Outcome.NOT_SENT
    return caught.value


@pytest.fixture
async def invoices(broker: Any) -> EntityPath:
    await broker.create_queue(INVOICES, QueueProperties())
    return INVOICES


@needs(Capability.TRANSACTIONS)
async def test_the_work_of_a_transaction_is_done_together(broker, orders, invoices):
    await required(broker, Transacts).check_transactions()
    await broker.send(orders, numbered("old"))
    async with broker.open_receiver(orders) as receiver:
        old = await take_one(receiver)
        settlement = required(receiver, Enlists).enlist(old, Complete())
        await commit(broker, sends(invoices, "a", "b"), settlement, sends(orders, "c"))

        with pytest.raises(LockLost):
            await receiver.settle(old, Complete())
    assert await ids_in(broker, orders) == ["c"]
    assert await ids_in(broker, invoices) == ["a", "b"]


@needs(Capability.TRANSACTIONS)
async def test_enlisting_alone_settles_nothing(broker, orders):
    await broker.send(orders, numbered("1"))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)
        required(receiver, Enlists).enlist(delivery, Complete())

        await receiver.settle(delivery, Abandon())
    assert await ids_in(broker, orders) == ["1"]


@needs(Capability.TRANSACTIONS)
async def test_a_missing_queue_undoes_what_came_before_it(broker, orders):
    await broker.send(orders, numbered("old"))
    async with broker.open_receiver(orders) as receiver:
        old = await take_one(receiver)
        settlement = required(receiver, Enlists).enlist(old, Complete())

        error = await fails(
            broker, sends(orders, "new"), settlement, sends(EntityPath("nowhere"), "lost")
        )

        assert isinstance(error, EntityNotFound)
        assert await ids_in(broker, orders) == ["old"]
        await receiver.settle(old, Complete())  # the message stayed locked, and the client's
    assert await ids_in(broker, orders) == []


@needs(Capability.TRANSACTIONS)
async def test_a_lost_lock_undoes_everything(broker, orders, invoices):
    await broker.send(orders, numbered("old"))
    async with broker.open_receiver(orders) as receiver:
        old = await take_one(receiver)
        settlement = required(receiver, Enlists).enlist(old, Complete())
        await receiver.settle(old, Abandon())

        error = await fails(broker, sends(invoices, "new"), settlement)

    assert isinstance(error, LockLost)
    assert await ids_in(broker, orders) == ["old"]
    assert await ids_in(broker, invoices) == []


@needs(Capability.TRANSACTIONS | Capability.SHORT_LOCKS)
@waits
async def test_a_lock_that_has_expired_undoes_everything(broker):
    orders = await make(broker, "orders", lock_duration=SECOND)
    await broker.create_queue(INVOICES, QueueProperties())
    await broker.send(orders, numbered("old"))
    async with broker.open_receiver(orders) as receiver:
        old = await take_one(receiver)
        settlement = required(receiver, Enlists).enlist(old, Complete())
        await trio.sleep(1.5)

        error = await fails(broker, sends(INVOICES, "new"), settlement)

    assert isinstance(error, LockLost | TransactionRolledBack)
    assert await ids_in(broker, orders) == ["old"]
    assert await ids_in(broker, INVOICES) == []


@needs(Capability.TRANSACTIONS | Capability.DEAD_LETTER | Capability.DEFERRAL)
async def test_each_settlement_can_be_part_of_a_transaction(broker, orders, invoices):
    await broker.send(orders, numbered("1", "2", "3", "4"))
    async with broker.open_receiver(orders) as receiver:
        taken = [await take_one(receiver) for _ in range(4)]
        settlements = (Complete(), Abandon(), Defer(), DeadLetter(reason="why"))
        enlists = required(receiver, Enlists)
        work = [enlists.enlist(each, how) for each, how in zip(taken, settlements, strict=True)]
        await commit(broker, *work, sends(invoices, "a"))

    assert sorted(await ids_in(broker, orders)) == ["2", "3"]
    assert await ids_in(broker, orders.dead_letter) == ["4"]
    assert await ids_in(broker, invoices) == ["a"]


@needs(Capability.TRANSACTIONS | Capability.SESSIONS)
async def test_a_session_takes_part_in_a_transaction(broker, orders):
    queue = await make(broker, "sessions", requires_session=True)
    await broker.send(queue, [Message(message_id="1", session_id="a")])
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        [delivery] = await receiver.receive(1)
        settlement = required(receiver, Enlists).enlist(delivery, Complete())
        await commit(broker, settlement, sends(orders, "new"))

    assert await ids_in(broker, queue) == []
    assert await ids_in(broker, orders) == ["new"]


@needs(Capability.TRANSACTIONS | Capability.SESSIONS)
async def test_the_state_of_a_session_is_set_in_a_transaction(broker, orders):
    queue = await make(broker, "sessions", requires_session=True)
    await broker.send(queue, [Message(message_id="1", session_id="a")])
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        [delivery] = await receiver.receive(1)
        settlement = required(receiver, Enlists).enlist(delivery, Complete())
        enlists = required(receiver, EnlistsState)
        await receiver.set_state(b"old")

        undone = [settlement, enlists.enlist_state(b"undone"), sends(EntityPath("nowhere"), "lost")]
        error = await fails(broker, *undone)
        kept = await receiver.get_state()
        await commit(broker, settlement, enlists.enlist_state(b"new"), sends(orders, "2"))
        new = await receiver.get_state()
        await commit(broker, enlists.enlist_state(None))
        removed = await receiver.get_state()

    assert isinstance(error, EntityNotFound)
    assert (kept, new, removed) == (b"old", b"new", None)
    assert await ids_in(broker, queue) == []
    assert await ids_in(broker, orders) == ["2"]


@needs(Capability.TRANSACTIONS | Capability.SESSIONS)
async def test_a_state_that_is_too_large_undoes_everything(broker, orders):
    queue = await make(broker, "sessions", requires_session=True)
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        work = required(receiver, EnlistsState).enlist_state(b"x" * 300_000)

        error = await fails(broker, sends(orders, "new"), work)

        assert isinstance(error, InvalidRequest | TransactionRolledBack)
        assert await receiver.get_state() is None
    assert await ids_in(broker, orders) == []


@needs(Capability.TRANSACTIONS | Capability.DEFERRAL)
async def test_a_deferred_message_takes_part_in_a_transaction(broker, orders, invoices):
    await broker.send(orders, numbered("1"))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Defer())
        deferred = required(receiver, ReceivesDeferred)
        [again] = await deferred.receive_deferred([delivery.sequence_number])
        settlement = required(receiver, Enlists).enlist(again, Complete())

        await fails(broker, settlement, sends(EntityPath("nowhere"), "lost"))
        kept = await ids_in(broker, orders)
        await commit(broker, settlement, sends(invoices, "new"))

    assert kept == ["1"]
    assert await ids_in(broker, orders) == []
    assert await ids_in(broker, invoices) == ["new"]


@needs(Capability.TRANSACTIONS | Capability.TOPICS)
async def test_a_topic_takes_part_in_a_transaction(broker, orders):
    topic = EntityPath("news")
    topology = required(broker, Topology)
    await topology.create_topic(topic, TopicProperties())
    await topology.create_subscription(topic, "all", SubscriptionProperties())
    subscription = EntityPath.parse("news/Subscriptions/all")

    await fails(broker, sends(topic, "1"), sends(EntityPath("nowhere"), "lost"))
    before = await ids_in(broker, subscription)
    await commit(broker, sends(topic, "2"), sends(orders, "3"))

    assert before == []
    assert await ids_in(broker, subscription) == ["2"]
    assert await ids_in(broker, orders) == ["3"]


@needs(Capability.TRANSACTIONS | Capability.SCHEDULE)
async def test_a_message_with_a_date_takes_part_in_a_transaction(broker, orders):
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    later = Message(message_id="later", scheduled=tomorrow)

    await fails(broker, TransactedSend(orders, [later]), sends(EntityPath("nowhere"), "lost"))
    before = await ids_in(broker, orders)
    await commit(broker, TransactedSend(orders, [later]))

    assert before == []
    [there] = await required(broker, Peeks).peek(orders, limit=100)
    assert there.state is MessageState.SCHEDULED


def due(name: str, **later: float) -> Message:
    """A message that is scheduled for so much later."""
    return Message(message_id=name, scheduled=datetime.now(UTC) + timedelta(**later))


@needs(Capability.TRANSACTED_SCHEDULE)
async def test_a_schedule_of_a_transaction_has_the_number_that_was_told_before(broker, orders):
    enlists = required(broker, EnlistsSchedules)
    work = await enlists.enlist_schedule(orders, [due("1", days=1), due("2", days=1)])
    await broker.send(orders, numbered("between"))
    before = await ids_in(broker, orders)

    await commit(broker, work)

    there = await required(broker, Peeks).peek(orders, limit=100)
    assert before == ["between"]
    assert {
        each.sequence_number: each.message.message_id
        for each in there
        if each.state is MessageState.SCHEDULED
    } == dict(zip(work.reservation.numbers, ["1", "2"], strict=True))
    assert len({each.sequence_number for each in there}) == 3


@needs(Capability.TRANSACTED_SCHEDULE)
async def test_the_numbers_of_a_schedule_that_is_rolled_back_are_never_used(broker, orders):
    enlists = required(broker, EnlistsSchedules)
    work = await enlists.enlist_schedule(orders, [due("undone", days=1)])
    await fails(broker, work, sends(EntityPath("nowhere"), "lost"))

    numbers = await required(broker, Schedules).schedule(orders, [due("other", days=1)])

    assert await ids_in(broker, orders) == ["other"]
    assert not {*numbers} & {*work.reservation.numbers}


@needs(Capability.TRANSACTED_SCHEDULE)
async def test_scheduled_messages_are_cancelled_in_a_transaction_together_or_not_at_all(
    broker, orders
):
    schedules, enlists = required(broker, Schedules), required(broker, EnlistsSchedules)
    old = await schedules.schedule(orders, [due("old", days=1)])
    cancels = enlists.enlist_cancellation(orders, old)

    await fails(broker, cancels, sends(EntityPath("nowhere"), "lost"))
    kept = await ids_in(broker, orders)
    new = await enlists.enlist_schedule(orders, [due("new", days=1)])
    await commit(broker, new, cancels, enlists.enlist_cancellation(orders, new.reservation.numbers))
    error = await fails(broker, sends(orders, "1"), cancels)

    assert kept == ["old"]
    assert isinstance(error, MessageNotFound)
    assert await ids_in(broker, orders) == []


@needs(Capability.TRANSACTED_SCHEDULE)
async def test_a_message_that_is_due_at_the_commit_can_be_received_at_once(broker, orders):
    enlists = required(broker, EnlistsSchedules)
    late = attrs.evolve(due("late"), scheduled=datetime(2000, 1, 1, tzinfo=UTC))
    work = await enlists.enlist_schedule(orders, [late])
    await broker.send(orders, numbered("earlier"))
    async with broker.open_receiver(orders) as receiver:
        earlier = await take_one(receiver)
        await commit(broker, work)
        taken = await take_one(receiver)

    assert taken.message.message_id == "late"
    assert taken.sequence_number > earlier.sequence_number
    assert taken.enqueued_sequence_number == work.reservation.numbers[0]


@needs(Capability.TRANSACTED_SCHEDULE)
async def test_a_queue_that_is_made_anew_takes_no_schedule_of_the_old_one(broker, orders):
    enlists = required(broker, EnlistsSchedules)
    work = await enlists.enlist_schedule(orders, [due("1", days=1)])
    await broker.delete_queue(orders)
    await trio.sleep(0.01)
    await make(broker, orders.name)

    error = await fails(broker, work)

    assert isinstance(error, EntityNotFound)
    assert await ids_in(broker, orders) == []


@needs(Capability.TRANSACTIONS)
async def test_a_waiting_receiver_is_told_of_a_commit(broker, orders):
    async with broker.open_receiver(orders) as receiver, trio.open_nursery() as nursery:
        taken = []

        async def receive() -> None:
            taken.append(await take_one(receiver))

        nursery.start_soon(receive)
        await trio.sleep(0.05)
        await commit(broker, sends(orders, "new"))

    assert [each.message.message_id for each in taken] == ["new"]


@needs(Capability.TRANSACTIONS)
async def test_an_aborted_commit_leaves_the_order_and_the_counts_as_they_were(broker, orders):
    await broker.send(orders, numbered("1", "2"))
    nowhere = sends(EntityPath("nowhere"), "lost")
    for _ in range(3):
        await fails(broker, sends(orders, "x"), nowhere)
    await broker.send(orders, numbered("3"))

    assert await ids_in(broker, orders) == ["1", "2", "3"]
    async with broker.open_receiver(orders) as receiver:
        taken = [await take_one(receiver) for _ in range(3)]
    assert [each.message.message_id for each in taken] == ["1", "2", "3"]
    assert [each.delivery_count for each in taken] == [1, 1, 1]


@needs(Capability.TRANSACTIONS)
async def test_many_commits_at_once_are_each_whole(broker, orders, invoices):
    async def one(number: int) -> None:
        work = [sends(orders, f"{number}"), sends(invoices, f"{number}")]
        if number % 3 == 0:
            await fails(broker, *work, sends(EntityPath("nowhere"), "lost"))
        else:
            await commit(broker, *work)

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(one, number)

    expected = sorted(str(number) for number in range(12) if number % 3)
    assert sorted(await ids_in(broker, orders)) == expected
    assert sorted(await ids_in(broker, invoices)) == expected
