"""Links on which clients receive: their deliveries, and the settlements of these."""

from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from uuid import UUID

import attrs
import pytest
import trio

from gateway.domain.backlog import LEGACY_PROPERTIES, queue_name
from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import LockLost
from gateway.domain.message import Message, MessageState, ReceiveMode
from gateway.frontends.amqp.outgoing import OutgoingLink
from gateway.frontends.amqp.receivers import LeasedReceiver, OpenedReceiver
from gateway.ports import Receiver
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.events import ACCEPTED
from gateway.wire.amqp.message import decode_message
from gateway.wire.amqp.servicebus.deliveries import decode_delivery, encode_delivery, token_of
from gateway.wire.servicebus.broker_properties import delivery_properties
from tests.frontends.amqp.sdk import HOST
from tests.frontends.rest_client import ORDERS, wall_clock
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse
from tests.harness.steps import steps_of_tasks

MORTAL = EntityPath.parse("mortal")
DEAD_LETTER = amqp.AmqpError(
    condition="com.microsoft:dead-letter",
    info={"DeadLetterReason": "why", "DeadLetterErrorDescription": "what"},
)
FAILED = amqp.Modified(delivery_failed=True)
DEFERRED = amqp.Modified(delivery_failed=True, undeliverable_here=True)


class Held:
    """Does the operation a second later."""

    async def strike(self, work, nursery):
        await trio.sleep(1)
        return await work()


async def fill(house, count, entity=ORDERS, **fields):
    messages = [Message(message_id=str(number), **fields) for number in range(count)]
    await house.broker.send(entity, messages)


async def ids(sdk, link, count):
    return [read(await sdk.delivery(link)).message.message_id for _ in range(count)]


def read(transfer):
    return decode_delivery(transfer.payload, lock_token=token_of(transfer.tag))


def transfers(sdk, link):
    return [e for e in sdk.told if isinstance(e, amqp.TransferReceived) and e.link == link]


async def left(house, entity=ORDERS):
    return len(await house.broker.peek(entity, limit=100))


async def test_a_delivery_has_its_lock_token_as_tag(house, sdk, autojump_clock):
    await fill(house, 1)
    link = await sdk.receiver(credit=1)

    transfer = await sdk.delivery(link)

    delivery = read(transfer)
    assert not transfer.settled
    assert delivery.message.message_id == "0"
    assert (delivery.delivery_count, delivery.sequence_number) == (1, 1)
    assert UUID(bytes_le=transfer.tag).version == 4


async def test_a_namespace_says_alike_on_each_protocol_when_a_message_expires(
    house, sdk, autojump_clock
):
    minute = timedelta(seconds=60)
    await house.broker.create_queue(MORTAL, QueueProperties(default_time_to_live=minute))
    old = wall_clock() - timedelta(hours=1)
    due = wall_clock() + timedelta(seconds=300)
    for name, life, scheduled in (
        ("shorter", timedelta(seconds=20), None),
        ("longer", timedelta(seconds=100), None),
        ("without", None, None),
        ("scheduled", timedelta(seconds=30), due),
    ):
        guess = None if life is None else old
        message = Message(
            message_id=name, time_to_live=life, absolute_expiry=guess, scheduled=scheduled
        )
        assert await sdk.send(await sdk.sender(MORTAL.name), message) == ACCEPTED
    lives = {}
    for delivery in await house.broker.peek(MORTAL, limit=9):
        told = decode_message(encode_delivery(delivery, peeked=True))
        life = told.absolute_expiry - delivery.enqueued
        name = told.message_id
        assert (told.time_to_live, delivery.expires) == (life, told.absolute_expiry), name
        assert delivery_properties(delivery)["TimeToLive"] == life.total_seconds(), name
        lives[name] = life.total_seconds()
        if name == "scheduled":
            assert delivery.enqueued == due

    transfer = await sdk.delivery(await sdk.receiver(MORTAL.name, credit=1))

    assert lives == {"shorter": 20, "longer": 60, "without": 60, "scheduled": 30}
    shown = decode_message(transfer.payload)
    assert shown.absolute_expiry == read(transfer).enqueued + timedelta(seconds=20)


async def test_a_client_gets_as_much_as_it_has_credit_for_in_order(house, sdk, autojump_clock):
    await fill(house, 300)
    link = await sdk.receiver(credit=3)

    first = await ids(sdk, link, 3)
    await trio.sleep(5)
    surplus = transfers(sdk, link)
    sdk.engine.grant(link, 297)

    assert first == ["0", "1", "2"]
    assert surplus == []
    assert await ids(sdk, link, 297) == [str(number) for number in range(3, 300)]


async def test_a_message_that_goes_back_is_not_overtaken(house, sdk, monkeypatch, autojump_clock):
    receive = LeasedReceiver.receive

    async def receive_late(receiver, limit):
        found = await receive(receiver, limit)
        with trio.CancelScope(shield=True):  # the credit is taken back too late to stop it
            await trio.sleep(1)
        return found

    monkeypatch.setattr(LeasedReceiver, "receive", receive_late)
    house.breaks(Operation.SETTLE, Held())
    await fill(house, 3)
    link = await sdk.receiver(credit=1)
    await trio.sleep(0.5)  # a message is on its way

    sdk.engine.grant(link, -1)
    await trio.sleep(1)  # it goes back
    sdk.engine.grant(link, 3)

    assert await ids(sdk, link, 3) == ["0", "1", "2"]


async def test_a_client_that_waits_gets_what_comes(house, sdk, autojump_clock):
    link = await sdk.receiver(credit=10)

    await trio.sleep(1000)
    await fill(house, 2)

    assert await ids(sdk, link, 2) == ["0", "1"]


async def test_accepted_completes_and_is_confirmed(house, sdk, autojump_clock):
    await fill(house, 1)
    link = await sdk.receiver(credit=1)

    confirmed = await sdk.settle(await sdk.delivery(link), amqp.ACCEPTED)

    assert confirmed == amqp.ACCEPTED
    assert await left(house) == 0


@pytest.mark.parametrize("state", [FAILED, amqp.Modified()])  # the second: Node's SDK abandons
async def test_modified_gives_back_and_counts(house, sdk, state, autojump_clock):
    await fill(house, 1)
    link = await sdk.receiver(credit=2)

    confirmed = await sdk.settle(await sdk.delivery(link), state)

    assert confirmed == state
    assert read(await sdk.delivery(link)).delivery_count == 2


async def test_released_gives_back_and_does_not_count(house, sdk, autojump_clock):
    await fill(house, 1)
    link = await sdk.receiver(credit=2)

    confirmed = await sdk.settle(await sdk.delivery(link), amqp.RELEASED)

    assert confirmed == amqp.RELEASED
    assert read(await sdk.delivery(link)).delivery_count == 1


async def test_undeliverable_here_defers(house, sdk, autojump_clock):
    await fill(house, 1)
    link = await sdk.receiver(credit=2)

    confirmed = await sdk.settle(await sdk.delivery(link), DEFERRED)

    (message,) = await house.broker.peek(ORDERS)
    assert confirmed == DEFERRED
    assert message.state is MessageState.DEFERRED
    assert transfers(sdk, link) == []


async def test_rejected_dead_letters_with_its_reason(house, sdk, autojump_clock):
    await fill(house, 1)
    link = await sdk.receiver(credit=1)

    confirmed = await sdk.settle(await sdk.delivery(link), amqp.Rejected(error=DEAD_LETTER))

    dead = await sdk.receiver("orders/$DeadLetterQueue", credit=1)
    message = read(await sdk.delivery(dead)).message
    assert confirmed == amqp.Rejected()
    assert message.properties == {
        "DeadLetterReason": "why",
        "DeadLetterErrorDescription": "what",
    }


async def test_an_error_of_ones_own_is_a_reason_too(house, sdk, autojump_clock):
    await fill(house, 1)
    link = await sdk.receiver(credit=1)
    error = amqp.AmqpError(condition="my:condition", description="what")

    await sdk.settle(await sdk.delivery(link), amqp.Rejected(error=error))

    dead = await sdk.receiver("orders/$deadletterqueue", credit=1)
    assert read(await sdk.delivery(dead)).message.properties == {
        "DeadLetterReason": "my:condition",
        "DeadLetterErrorDescription": "what",
    }


async def test_a_client_that_settles_by_itself_is_believed(house, sdk, autojump_clock):
    await fill(house, 1)
    link = await sdk.receiver(credit=1)

    sdk.engine.settle((await sdk.delivery(link)).delivery, amqp.ACCEPTED)
    await trio.sleep(1)

    assert await left(house) == 0


async def test_too_late_is_a_rejection_that_says_so(house, sdk, autojump_clock):
    await fill(house, 1)
    link = await sdk.receiver(credit=1)
    transfer = await sdk.delivery(link)
    await trio.sleep(61)

    outcome = await sdk.settle(transfer, amqp.ACCEPTED)

    assert outcome.error.condition == "com.microsoft:message-lock-lost"
    assert outcome.error.info
    assert await left(house) == 1


@pytest.mark.parametrize("fault", [LoseAnswer(), Hang()])
async def test_a_settlement_that_nobody_knows_of_is_not_confirmed(
    house, sdk, fault, autojump_clock
):
    await fill(house, 1)
    link = await sdk.receiver(credit=1)
    transfer = await sdk.delivery(link)
    house.breaks(Operation.SETTLE, fault)

    outcome = await sdk.settle(transfer, amqp.ACCEPTED)

    assert outcome.error.condition == "com.microsoft:timeout"


async def test_receive_and_delete_leaves_nothing(house, sdk, autojump_clock):
    await fill(house, 5)
    link = await sdk.receiver(credit=3, sender_settles=amqp.SenderSettles.SETTLED)

    received = [await sdk.delivery(link) for _ in range(3)]
    await trio.sleep(1)

    assert all(transfer.settled for transfer in received)
    assert [decode_delivery(t.payload).message.message_id for t in received] == ["0", "1", "2"]
    assert await left(house) == 2


async def test_receive_and_delete_gives_nothing_that_could_not_be_deleted(
    house, sdk, autojump_clock
):
    await fill(house, 1)
    house.breaks(Operation.SETTLE, Refuse())
    link = await sdk.receiver(credit=1, sender_settles=amqp.SenderSettles.SETTLED)

    await trio.sleep(10)
    before = transfers(sdk, link)
    house.faulty.fault = lambda operation, entity: None
    await trio.sleep(60)

    assert before == []
    assert len(transfers(sdk, link)) == 1


async def test_credit_is_given_back_when_there_is_nothing(house, sdk, autojump_clock):
    link = await sdk.receiver(credit=10)

    await trio.sleep(10)
    sdk.engine.drain(link)
    await sdk.until(amqp.LinkDrained)
    await fill(house, 1)
    await trio.sleep(10)

    assert sdk.engine.credit(link) == 0
    assert transfers(sdk, link) == []


async def test_a_drain_brings_what_is_there_first(house, sdk, autojump_clock):
    await fill(house, 7)
    link = await sdk.receiver()

    sdk.engine.grant(link, 10)
    sdk.engine.drain(link)
    await sdk.until(amqp.LinkDrained)

    assert len(transfers(sdk, link)) == 7


async def test_a_drain_ends_when_nothing_more_is_there(house, sdk, monkeypatch, autojump_clock):
    """A namespace answers with fewer messages than it was asked for: Storage with 32 at most."""
    look = OpenedReceiver.receive_available

    async def look_for_one(receiver, limit):
        return await look(receiver, 1)

    monkeypatch.setattr(OpenedReceiver, "receive_available", look_for_one)
    await fill(house, 7)
    link = await sdk.receiver()

    sdk.engine.grant(link, 10)
    sdk.engine.drain(link)
    await sdk.until(amqp.LinkDrained)

    assert len(transfers(sdk, link)) == 7


async def test_a_link_asks_for_twice_as_many_as_have_come(house, sdk, monkeypatch, autojump_clock):
    """A namespace that may send few returns less than it was asked for: RabbitMQ's prefetch."""
    receive, asked = OpenedReceiver.receive, []

    async def receive_three(receiver, limit):
        asked.append(limit)
        return await receive(receiver, min(limit, 3))

    monkeypatch.setattr(OpenedReceiver, "receive", receive_three)
    await fill(house, 9)
    link = await sdk.receiver(credit=20)
    for _ in range(9):
        await sdk.delivery(link)

    assert asked[:5] == [1, 2, 4, 6, 6]


async def test_a_link_asks_for_as_many_again_when_its_client_has_its_credit_back(
    house, sdk, monkeypatch, autojump_clock
):
    """Clients that receive a batch at a time, as syphons do, take it back after each."""
    receive, asked = OpenedReceiver.receive, []

    async def ask(receiver, limit):
        asked.append(limit)
        return await receive(receiver, limit)

    monkeypatch.setattr(OpenedReceiver, "receive", ask)
    await fill(house, 7)
    link = await sdk.receiver(credit=20)
    await ids(sdk, link, 7)
    for credit in (0, 20):
        sdk.engine.grant(link, credit - sdk.engine.credit(link))
        await trio.testing.wait_all_tasks_blocked()

    assert asked == [1, 2, 4, 8, 8]


async def test_a_settlement_wakes_no_task_that_only_delivers(house, sdk, autojump_clock):
    await fill(house, 2)
    link = await sdk.receiver(credit=2)
    first, _ = [await sdk.delivery(link) for _ in range(2)]
    await trio.testing.wait_all_tasks_blocked()

    with steps_of_tasks() as steps:
        await sdk.settle(first, amqp.ACCEPTED)

    assert steps
    assert steps[f"{OutgoingLink.__module__}.{OutgoingLink.run.__qualname__}"] == 0


async def test_a_drain_that_is_asked_again_is_not_cut(house, sdk, monkeypatch, autojump_clock):
    look = OpenedReceiver.receive_available

    async def look_late(receiver, limit):
        await trio.sleep(0.05)
        return await look(receiver, limit)

    monkeypatch.setattr(OpenedReceiver, "receive_available", look_late)
    await fill(house, 1)
    link = await sdk.receiver()

    sdk.engine.grant(link, 10)
    sdk.engine.drain(link)
    await trio.sleep(0.02)
    sdk.engine.drain(link)
    await sdk.until(amqp.LinkDrained)

    assert len(transfers(sdk, link)) == 1


async def test_a_drain_is_answered_although_nothing_more_may_be_handed_out(house, autojump_clock):
    house.change(max_unsettled=3)
    await fill(house, 5)
    sdk = await house.client()
    link = await sdk.receiver(credit=10)
    await trio.sleep(10)

    sdk.engine.drain(link)
    with trio.fail_after(30):
        await sdk.until(amqp.LinkDrained)

    assert len(transfers(sdk, link)) == 3
    assert sdk.engine.credit(link) == 0


async def test_a_message_that_a_client_has_locked_stays_locked_when_it_detaches(
    house, sdk, autojump_clock
):
    await fill(house, 2)
    link = await sdk.receiver(credit=1)
    await sdk.delivery(link)
    sdk.engine.detach(link)

    other = await sdk.receiver(credit=2)
    first = await ids(sdk, other, 1)
    await trio.sleep(50)
    before = transfers(sdk, other)
    await trio.sleep(20)

    assert first == ["1"]
    assert before == []
    assert await ids(sdk, other, 1) == ["0"]


async def test_the_detach_of_a_queue_is_answered_at_once(house, sdk, autojump_clock):
    await fill(house, 1)
    house.breaks(Operation.SETTLE, Hang())
    link = await sdk.receiver(credit=1)
    sdk.engine.settle((await sdk.delivery(link)).delivery, amqp.ACCEPTED)
    began = trio.current_time()

    sdk.engine.detach(link, awaited=True)
    await sdk.until(amqp.LinkDetached)

    assert trio.current_time() == began


async def test_a_connection_that_is_lost_leaves_its_locks_to_run_out(house, autojump_clock):
    await fill(house, 1)
    lost = await house.client()
    await sdk_delivery(lost)
    await lost.connection.close()

    other = await house.client()
    link = await other.receiver(credit=1)
    before = transfers(other, link)
    await trio.sleep(61)

    assert before == []
    assert await ids(other, link, 1) == ["0"]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_backlog_queue_gets_back_at_once_what_a_syphon_had_when_it_was_killed(
    house, is_lost, autojump_clock
):
    queue = queue_name("east", 0)
    await house.broker.create_queue(queue, LEGACY_PROPERTIES)
    await fill(house, 5, queue)
    killed = await house.client()
    link = await killed.receiver(queue.name, credit=5)
    got = [await killed.delivery(link) for _ in range(5)]
    await killed.settle(got[0], amqp.ACCEPTED)
    if is_lost:
        await killed.connection.close()
    else:
        killed.engine.detach(link)

    began = trio.current_time()
    other = await house.client()
    again = await ids(other, await other.receiver(queue.name, credit=5), 4)

    assert again == ["1", "2", "3", "4"]
    assert trio.current_time() - began < 1.0


async def sdk_delivery(sdk):
    return await sdk.delivery(await sdk.receiver(credit=1))


async def test_a_message_that_waits_for_a_client_that_goes_is_there_for_others(
    house, autojump_clock
):
    lost = await house.client()
    await lost.receiver(credit=100)
    await trio.sleep(1)
    await lost.connection.close()
    await fill(house, 1)

    delivery = read(await sdk_delivery(await house.client()))

    assert delivery.delivery_count == 1


async def test_a_queue_that_is_deleted_ends_the_link(house, sdk, autojump_clock):
    link = await sdk.receiver(credit=1)
    await trio.sleep(1)

    await house.broker.delete_queue(ORDERS)
    detached = await sdk.until(amqp.LinkDetached)

    assert (detached.link, detached.error.condition) == (link, "amqp:not-found")


async def test_a_queue_that_is_switched_off_ends_the_link(house, sdk, autojump_clock):
    link = await sdk.receiver(credit=1)
    await trio.sleep(1)
    info = await house.broker.inspect(ORDERS)

    off = attrs.evolve(info.properties, status=EntityStatus.DISABLED)
    await house.broker.update_queue(ORDERS, off)
    detached = await sdk.until(amqp.LinkDetached)

    assert (detached.link, detached.error.condition) == (link, "com.microsoft:entity-disabled")


async def test_nobody_attaches_to_what_is_not_there(sdk, autojump_clock):
    error = await sdk.refusal(we_send=False, address=HOST + "nothing")

    assert error.condition == "amqp:not-found"


async def test_a_client_that_settles_nothing_gets_only_so_much(house, autojump_clock):
    house.change(max_unsettled=5)
    await fill(house, 20)
    sdk = await house.client()
    link = await sdk.receiver(credit=20)

    await trio.sleep(10)
    first = transfers(sdk, link)
    await sdk.settle(first[0], amqp.ACCEPTED)
    await trio.sleep(10)
    second = transfers(sdk, link)
    await trio.sleep(60)

    assert len(first) == 5
    assert len(second) == 6
    assert len(transfers(sdk, link)) > 6


async def test_a_filter_that_nobody_knows_is_not_confirmed(sdk, autojump_clock):
    source = amqp.Terminus(address="orders", filters={"apache.org:selector-filter:string": "a=1"})
    link = sdk.attach(we_send=False, address="orders", source=source)

    answer = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)

    assert answer.source.filters == {}
    assert answer.source.address == "orders"


@attrs.frozen
class Numbered:
    """A receiver whose lock tokens are no UUIDs."""

    inner: Receiver

    async def receive(self, limit):
        deliveries = await self.inner.receive(limit)
        return [attrs.evolve(each, lock_token=str(n)) for n, each in enumerate(deliveries)]

    async def settle(self, delivery, settlement):
        raise LockLost("no such token")


async def test_a_namespace_with_other_tokens_loses_nothing(house, sdk, autojump_clock):
    await fill(house, 3)
    inner = house.broker

    @asynccontextmanager
    async def open_receiver(entity, mode=ReceiveMode.PEEK_LOCK):
        async with inner.open_receiver(entity, mode) as receiver:
            yield Numbered(receiver)

    house.faulty.inner = SimpleNamespace(open_receiver=open_receiver)
    link = await sdk.receiver(credit=3)
    detached = await sdk.until(amqp.LinkDetached)

    assert (detached.link, detached.error.condition) == (link, "amqp:not-implemented")
    assert (await inner.inspect(ORDERS)).dead_lettered == 0


async def test_a_receiver_outlives_a_change_of_its_queue_and_comes_back_when_it_is_enabled(
    house, sdk, autojump_clock
):
    link = await sdk.receiver(credit=10)
    await house.broker.update_queue(ORDERS, QueueProperties(lock_duration=timedelta(seconds=5)))
    await fill(house, 1)
    first = await sdk.delivery(link)
    await sdk.settle(first, amqp.ACCEPTED)

    disabled = QueueProperties(status=EntityStatus.RECEIVE_DISABLED)
    await house.broker.update_queue(ORDERS, disabled)
    detached = await sdk.until(amqp.LinkDetached, lambda event: event.link == link)
    refused = await sdk.refusal(we_send=False, address="orders")
    await house.broker.update_queue(ORDERS, QueueProperties())
    await fill(house, 2)
    again = await sdk.receiver(credit=10)

    for error in (detached.error, refused):
        assert error.condition == "com.microsoft:entity-disabled"
    assert await ids(sdk, again, 2) == ["0", "1"]
