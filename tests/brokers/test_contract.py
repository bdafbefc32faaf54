"""The contract of every broker. A new adapter is finished when it passes this file."""

import random
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from xml.etree import ElementTree

import attrs
import pytest
import trio

from gateway.capabilities import Peeks, SettlesMany, described, send_accepted_by
from gateway.domain import backlog
from gateway.domain.entity import (
    AuthorizationRule,
    EntityPath,
    EntityStatus,
    QueueProperties,
    shown,
)
from gateway.domain.errors import (
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    LockLost,
    MessageTooLarge,
    NotSupported,
    OutcomeUnknown,
    QuotaExceeded,
)
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.domain.health.process_records import CountByName, ProcessRecord, SyphonRecord
from gateway.domain.message import (
    MAX_REASON_LENGTH,
    Abandon,
    AcceptedBy,
    Complete,
    DataBody,
    DeadLetter,
    Delivery,
    Kind,
    Message,
    ReceiveMode,
    SequenceBody,
    Typed,
    ValueBody,
    symbol,
)
from gateway.domain.storage_queue import UNLIMITED
from gateway.frontends.leases import Leases
from gateway.offering import required
from gateway.pairing.records.reader import RecordReader, no_keys
from gateway.pairing.records.writer import RecordWriter
from gateway.ports import Broker, Receiver
from gateway.wire.http.messages import Response
from gateway.wire.servicebus import queue_description
from gateway.wire.servicebus.description import NAMESPACE, NestedElement, PropertyElement
from tests.brokers.contract import (
    LOCKED,
    SECOND,
    SHORTLY,
    SOON,
    held_longer,
    ids,
    is_empty,
    make,
    numbered,
    take,
    take_all,
    take_one,
)
from tests.brokers.kinds import Capability, needs, real_date, waits
from tests.frontends.rest_client import Client, frontend_of
from tests.harness.patience import PATIENCE
from tests.pairing.harness import Events


async def stays_empty(broker: Broker, queue: EntityPath) -> bool:
    async with broker.open_receiver(queue) as receiver:
        with trio.move_on_after(SHORTLY):
            await receiver.receive(1)
            return False
    return True


def settings_in(response: Response) -> dict[str, str]:
    """The elements of a queue's description that a client can set."""
    [description] = ElementTree.fromstring(response.body).iter(f"{{{NAMESPACE}}}QueueDescription")
    elements = {element.tag.partition("}")[2]: element for element in description}
    return {
        field.element: ElementTree.tostring(elements[field.element], "unicode")
        for field in queue_description.TABLE.items
        if isinstance(field, PropertyElement | NestedElement) and field.element in elements
        if not getattr(field, "is_fact", False)
    }


# --- sending and receiving


async def test_a_send_says_that_the_messages_are_accepted_and_no_more(broker, orders):
    """A pair returns no more, either: `Diverts` returns which namespace accepted a message."""
    assert await broker.send(orders, numbered(1)) is None


async def test_a_message_comes_out_as_it_went_in(broker, orders):
    message = Message(
        message_id="1",
        body=b"\x00\xff",
        properties={"color": "blue"},
        correlation_id="c",
        subject="s",
        content_type="text/plain",
        reply_to="r",
        time_to_live=timedelta(hours=1),
    )
    await broker.send(orders, [message])
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)

        assert delivery.message == message


async def test_the_first_delivery_counts_one(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)

        assert delivery.delivery_count == 1
        assert delivery.lock_token


@needs(Capability.DATES)
async def test_a_delivery_says_when_it_came_and_until_when_it_is_locked(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)

        assert delivery.locked_until - delivery.enqueued > timedelta(seconds=30)


async def test_the_age_of_a_delivery_is_told_by_one_clock_if_at_all(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)

        if delivery.received is not None:
            age = (delivery.received - delivery.enqueued).total_seconds()
            assert -1 <= age < 30  # whole seconds


async def test_a_caller_that_asks_is_told_where_a_send_was_accepted(broker, orders):
    accepted_by = await send_accepted_by(broker, orders, numbered(1))

    assert accepted_by is AcceptedBy.PRIMARY


async def test_messages_come_out_in_the_order_of_their_sends(broker, orders):
    for first in range(0, 30, 3):
        await broker.send(orders, numbered(*range(first, first + 3)))
    async with broker.open_receiver(orders) as receiver:
        taken = await take_all(receiver, 30)

        assert ids(taken) == [str(number) for number in range(30)]
        sequence = [delivery.sequence_number for delivery in taken]
        assert sequence == sorted(set(sequence))


async def test_receive_returns_no_more_than_its_limit(broker, orders):
    await broker.send(orders, numbered(1, 2, 3))
    async with broker.open_receiver(orders) as receiver:
        assert len(await take(receiver, 2)) <= 2


@needs(Capability.MANAGEMENT | Capability.SIZES)
async def test_a_batch_with_one_message_too_large_is_refused_whole(broker):
    queue = await make(broker, max_message_size=2000)
    with pytest.raises(MessageTooLarge):
        await broker.send(queue, [*numbered(1), Message(message_id="2", body=b"x" * 3000)])

    assert await is_empty(broker, queue)


# One of each AMQP type.
VALUES = (
    None,
    True,
    -(2**63),
    1.5,
    "text",
    b"\x00",
    uuid.UUID(int=7),
    datetime(2026, 1, 1, tzinfo=UTC),
    Typed(Kind.UINT, 7),
    Typed(Kind.ULONG, 2**64 - 1),
    symbol("s"),
    Typed(Kind.CHAR, "x"),
    Typed(Kind.DECIMAL64, b"12345678"),
    ["list", 1],
    {"map": 1},
    Typed(Kind.ARRAY, (1, 2)),
)
BODIES = (b"", DataBody((b"one", b"two")), SequenceBody(((1, "two"), ())))


@needs(Capability.ALL_TYPES)
async def test_every_amqp_type_and_kind_of_body_survives(broker, orders):
    sent = [
        *(
            Message(message_id=repr(value), properties={"value": value}, body=ValueBody(value))
            for value in VALUES
        ),
        *(Message(message_id=repr(body), body=body) for body in BODIES),
    ]
    for message in sent:
        await broker.send(orders, [message])
    async with broker.open_receiver(orders) as receiver:
        came = [(await take_one(receiver)).message for _ in sent]

    assert {message.message_id: message for message in came} == {
        message.message_id: message for message in sent
    }


# --- locks


async def test_a_locked_message_is_hidden_from_others(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        await take_one(receiver)

        assert await is_empty(broker, orders)


async def test_a_completed_message_is_gone(broker, orders):
    await broker.send(orders, numbered(1, 2))
    async with broker.open_receiver(orders) as receiver:
        await receiver.settle(await take_one(receiver), Complete())
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)

        assert delivery.message.message_id == "2"


async def test_messages_may_be_settled_in_any_order(broker, orders):
    await broker.send(orders, numbered(1, 2, 3))
    async with broker.open_receiver(orders) as receiver:
        one, two, three = await take_all(receiver, 3)
        for delivery in (three, one, two):
            await receiver.settle(delivery, Complete())

    assert await is_empty(broker, orders)


async def test_an_abandoned_message_comes_again_and_counts(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        await receiver.settle(await take_one(receiver), Abandon())
        again = await take_one(receiver)

        assert (again.message.message_id, again.delivery_count) == ("1", 2)


@needs(Capability.PROMPT_ABANDON)
async def test_an_abandoned_message_comes_before_what_is_behind_it(broker, orders):
    await broker.send(orders, numbered(1, 2))
    async with broker.open_receiver(orders) as receiver:
        await receiver.settle(await take_one(receiver), Abandon())
        again = await take_one(receiver)

        assert (again.message.message_id, again.delivery_count) == ("1", 2)


@needs(Capability.PROMPT_RETURN)
async def test_leaving_the_receiver_gives_back_what_is_unsettled(broker, orders):
    await broker.send(orders, numbered(1, 2))
    async with broker.open_receiver(orders) as receiver:
        await take_all(receiver, 2)
    async with broker.open_receiver(orders) as receiver:
        taken = await take_all(receiver, 2)

        assert sorted(ids(taken)) == ["1", "2"]
        assert [delivery.delivery_count for delivery in taken] == [2, 2]


@needs(Capability.ORDERLY_RETURN)
async def test_leaving_the_receiver_keeps_the_order_of_what_is_unsettled(broker, orders):
    await broker.send(orders, numbered(1, 2, 3))
    async with broker.open_receiver(orders) as receiver:
        await take_all(receiver, 3)
    async with broker.open_receiver(orders) as receiver:
        assert ids(await take_all(receiver, 3)) == ["1", "2", "3"]


@needs(Capability.SHORT_LOCKS)
@waits
async def test_a_lock_that_runs_out_gives_the_message_back(broker):
    queue = await make(broker, lock_duration=SECOND)
    await broker.send(queue, numbered(1))
    async with broker.open_receiver(queue) as receiver:
        first = await take_one(receiver)
        second = await take_one(receiver)

        assert (second.message.message_id, second.delivery_count) == ("1", 2)
        assert second.lock_token != first.lock_token


@needs(Capability.SHORT_LOCKS | Capability.STRICT_LOCKS)
@waits
async def test_settling_after_the_lock_ran_out_is_too_late(broker):
    queue = await make(broker, lock_duration=SECOND)
    await broker.send(queue, numbered(1))
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        await trio.sleep(1.2)

        with pytest.raises(LockLost):
            await receiver.settle(delivery, Complete())
        assert (await take_one(receiver)).delivery_count == 2


@needs(Capability.SHORT_LOCKS)
@waits
async def test_a_renewed_lock_holds_longer(broker):
    queue = await make(broker, lock_duration=LOCKED * SECOND)
    await broker.send(queue, numbered(1))
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        until = await held_longer(partial(receiver.renew, delivery))
        await receiver.settle(delivery, Complete())

        assert until > delivery.locked_until
    assert await is_empty(broker, queue)


async def test_a_message_is_completed_while_its_lock_is_being_renewed(broker, orders):
    async def renew(delivery):
        with suppress(LockLost, OutcomeUnknown):  # the completion was faster
            await receiver.renew(delivery)

    await broker.send(orders, numbered(*range(20)))
    async with broker.open_receiver(orders) as receiver, trio.open_nursery() as nursery:
        for _ in range(20):
            delivery = await take_one(receiver)
            nursery.start_soon(renew, delivery)
            nursery.start_soon(receiver.settle, delivery, Complete())

    assert await is_empty(broker, orders)


@needs(Capability.SHORT_LOCKS | Capability.STRICT_LOCKS)
@waits
async def test_renewing_after_the_lock_ran_out_is_too_late(broker):
    queue = await make(broker, lock_duration=SECOND)
    await broker.send(queue, numbered(1))
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        await trio.sleep(1.2)

        with pytest.raises(LockLost):
            await receiver.renew(delivery)


@pytest.mark.parametrize("settlement", [Complete(), Abandon()], ids=repr)
async def test_a_message_is_settled_once_only(broker, orders, settlement):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, settlement)

        with pytest.raises(LockLost):
            await receiver.settle(delivery, Complete())


async def is_cut_off(receiver: Receiver, delivery: Delivery, turns: int) -> bool:
    """Complete the delivery, cancelled after so many turns of the scheduler; False: it was done."""
    done = False

    async def complete() -> None:
        nonlocal done
        await receiver.settle(delivery, Complete())
        done = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(complete)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return not done


async def test_a_settlement_without_an_answer_is_never_said_to_be_lost(broker, orders):
    ids_of = {turns: f"after {turns}" for turns in (1, 2, 3, 5, 8, 20, 100)}
    await broker.send(orders, numbered(*ids_of.values()))
    done = set()
    async with broker.open_receiver(orders) as receiver:
        for delivery in await take_all(receiver, len(ids_of)):
            name = delivery.message.message_id
            turns = next(turns for turns, each in ids_of.items() if each == name)
            if not await is_cut_off(receiver, delivery, turns):
                done.add(name)
                continue
            with suppress(OutcomeUnknown):
                await receiver.settle(delivery, Complete())
                done.add(name)
            with suppress(OutcomeUnknown, NotSupported):
                if name not in done:
                    await receiver.renew(delivery)

    assert await left_of(broker, orders) & done == set()


async def left_of(broker: Broker, queue: EntityPath) -> set[object]:
    """The ids of the messages that a queue still delivers."""
    left = set()
    async with broker.open_receiver(queue) as receiver:
        with trio.move_on_after(SHORTLY):
            while True:
                for delivery in await receiver.receive(1):
                    left.add(delivery.message.message_id)
                    with trio.CancelScope(shield=True):
                        await receiver.settle(delivery, Complete())
    return left


async def test_an_unknown_lock_token_is_a_lost_lock(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)
        forged = attrs.evolve(delivery, lock_token=str(uuid.UUID(int=1)))

        with pytest.raises(LockLost):
            await receiver.settle(forged, Complete())


@needs(Capability.SETTLES_MANY)
async def test_several_are_settled_at_once_and_each_has_its_verdict(broker, orders):
    await broker.send(orders, numbered(1, 2, 3, 4))
    async with broker.open_receiver(orders) as receiver:
        one, two, three, four = [await take_one(receiver) for _ in range(4)]
        await receiver.settle(two, Complete())

        verdicts = await required(receiver, SettlesMany).settle_many(
            [
                (one, Complete()),
                (two, Complete()),
                (three, Abandon()),
                (attrs.evolve(four, lock_token=str(uuid.UUID(int=1))), Complete()),
                (four, Complete()),
            ]
        )

        assert [type(verdict) for verdict in verdicts] == [
            type(None),
            LockLost,
            type(None),
            LockLost,
            type(None),
        ]
        again = await take_one(receiver)
        assert again.message.message_id == "3"
        await receiver.settle(again, Complete())
    assert await is_empty(broker, orders)


@needs(Capability.SETTLES_MANY)
async def test_settling_nothing_at_once_is_done(broker, orders):
    async with broker.open_receiver(orders) as receiver:
        assert list(await required(receiver, SettlesMany).settle_many([])) == []


@needs(Capability.RECEIVE_AND_DELETE)
async def test_receive_and_delete_deletes(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        delivery = await take_one(receiver)

        assert delivery.lock_token is None
    assert await is_empty(broker, orders)


# --- dead letters


@needs(Capability.DEAD_LETTER)
async def test_a_dead_letter_says_why(broker, orders):
    await broker.send(orders, [Message(message_id="1", properties={"mine": 1})])
    async with broker.open_receiver(orders) as receiver:
        await receiver.settle(
            await take_one(receiver), DeadLetter(reason="bad", description="very bad")
        )
    async with broker.open_receiver(orders.dead_letter) as receiver:
        dead = await take_one(receiver)

        assert dead.message.properties == {
            "mine": 1,
            "DeadLetterReason": "bad",
            "DeadLetterErrorDescription": "very bad",
        }
        assert dead.delivery_count == 1  # the delivery that ended here hasn't failed
    assert await is_empty(broker, orders)


@needs(Capability.DEAD_LETTER)
async def test_a_message_is_dead_lettered_once_only(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, DeadLetter(reason="bad"))

        with pytest.raises(LockLost):
            await receiver.settle(delivery, Complete())


@needs(Capability.DEAD_LETTER)
async def test_a_dead_letter_can_be_completed(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        await receiver.settle(await take_one(receiver), DeadLetter(reason="bad"))
    async with broker.open_receiver(orders.dead_letter) as receiver:
        await receiver.settle(await take_one(receiver), Complete())

    assert await stays_empty(broker, orders.dead_letter)


@needs(Capability.DEAD_LETTER)
async def test_a_reason_above_the_limit_is_refused_and_the_lock_holds(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)
        with pytest.raises(InvalidRequest):
            await receiver.settle(delivery, DeadLetter(reason="x" * (MAX_REASON_LENGTH + 1)))
        await receiver.settle(delivery, Complete())

    assert await is_empty(broker, orders)


@needs(Capability.DEAD_LETTER | Capability.MANAGEMENT)
async def test_a_message_delivered_too_often_is_dead_lettered(broker):
    queue = await make(broker, max_delivery_count=2)
    await broker.send(queue, numbered(1))
    async with broker.open_receiver(queue) as receiver:
        for _ in range(2):
            await receiver.settle(await take_one(receiver), Abandon())
    async with broker.open_receiver(queue.dead_letter) as receiver:
        dead = await take_one(receiver)

        assert dead.message.properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert await is_empty(broker, queue)


@needs(Capability.DEAD_LETTER | Capability.MANAGEMENT)
async def test_a_dead_letter_is_never_dead_lettered_again(broker):
    queue = await make(broker, max_delivery_count=1)
    await broker.send(queue, numbered(1))
    async with broker.open_receiver(queue) as receiver:
        await receiver.settle(await take_one(receiver), Abandon())
    async with broker.open_receiver(queue.dead_letter) as receiver:
        for _ in range(3):
            await receiver.settle(await take_one(receiver), Abandon())
        dead = await take_one(receiver)

        assert dead.message.message_id == "1"


@needs(Capability.DEAD_LETTER)
async def test_nobody_sends_to_a_dead_letter_queue(broker, orders):
    with pytest.raises(InvalidRequest):
        await broker.send(orders.dead_letter, numbered(1))


# --- time


@needs(Capability.TIME_TO_LIVE)
@waits
async def test_a_message_past_its_time_to_live_is_gone(broker):
    orders = await make(broker, "orders")
    short = Message(message_id="short", time_to_live=timedelta(seconds=0.5))
    await broker.send(orders, [short, *numbered("long")])
    await trio.sleep(2.0)  # a server on a busy machine is late by tenths
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)

        assert delivery.message.message_id == "long"


@needs(Capability.TIME_TO_LIVE | Capability.DEAD_LETTER | Capability.MANAGEMENT)
@waits
async def test_an_expired_message_is_dead_lettered_where_the_queue_says_so(broker):
    queue = await make(
        broker,
        dead_lettering_on_expiration=True,
        default_time_to_live=timedelta(seconds=0.5),
    )
    await broker.send(queue, numbered(1))
    async with broker.open_receiver(queue.dead_letter) as receiver:
        dead = await take_one(receiver)

        assert dead.message.properties["DeadLetterReason"] == "TTLExpiredException"


@needs(Capability.TIME_TO_LIVE | Capability.MANAGEMENT | Capability.EXPIRY)
async def test_the_shorter_time_to_live_counts(broker):
    queue = await make(broker, default_time_to_live=timedelta(hours=1))
    long = Message(message_id="1", time_to_live=timedelta(days=1))
    short = Message(message_id="2", time_to_live=timedelta(minutes=1))
    await broker.send(queue, [long, short])
    async with broker.open_receiver(queue) as receiver:
        taken = await take_all(receiver, 2)

        lives = [delivery.expires - delivery.enqueued for delivery in taken]
        assert lives == [timedelta(hours=1), timedelta(minutes=1)]


@needs(Capability.SCHEDULE)
@waits
async def test_a_scheduled_message_comes_when_it_is_due_and_after_what_was_there(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered("now"))
    async with broker.open_receiver(orders) as receiver:
        first = await take_one(receiver)
        # A whole second: an HTTP date has no fractions. On a busy machine the sends take a while.
        due = (first.enqueued + SOON).replace(microsecond=0)
        await broker.send(orders, [Message(message_id="later", scheduled=due)])
        await broker.send(orders, numbered("next"))
        second, third = await take_one(receiver), await take_one(receiver)

        assert ids([second, third]) == ["next", "later"]
        assert third.enqueued >= due
        assert third.sequence_number > second.sequence_number


# --- waiting


@waits
async def test_a_waiting_receiver_is_woken_by_a_send(broker):
    orders = await make(broker, "orders")
    taken: list[Delivery] = []

    async def wait_for_one() -> None:
        async with broker.open_receiver(orders) as receiver:
            taken.append(await take_one(receiver))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_one)
        await trio.sleep(SHORTLY)
        await broker.send(orders, numbered(1))

    assert ids(taken) == ["1"]


@needs(Capability.PROMPT_RETURN)
@waits
async def test_a_waiting_receiver_is_woken_by_an_abandon(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered(1))
    taken: list[Delivery] = []

    async def wait_for_one() -> None:
        async with broker.open_receiver(orders) as receiver:
            taken.append(await take_one(receiver))

    async with broker.open_receiver(orders) as receiver, trio.open_nursery() as nursery:
        delivery = await take_one(receiver)
        nursery.start_soon(wait_for_one)
        await trio.sleep(SHORTLY)
        assert not taken
        await receiver.settle(delivery, Abandon())

    assert ids(taken) == ["1"]


@needs(Capability.PROMPT_CANCEL)
async def test_a_cancelled_receive_loses_nothing(broker, orders):
    async with broker.open_receiver(orders) as receiver:
        for number in range(20):
            with trio.move_on_after(0.001 * (number % 5)):
                await receiver.receive(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await receiver.receive(1)
        async with trio.open_nursery() as nursery:
            # Beside a receive: what comes while none waits is given back, which may count.
            nursery.start_soon(broker.send, orders, numbered(1))
            delivery = await take_one(receiver)

        assert (delivery.message.message_id, delivery.delivery_count) == ("1", 1)


@needs(Capability.PROMPT_CANCEL)
async def test_messages_of_a_receive_that_is_cancelled_on_the_way_are_visible_at_once(
    broker, orders
):
    for steps in (1, 2, 3) * 5:
        await broker.send(orders, numbered(*range(10)))
        async with broker.open_receiver(orders) as impatient, trio.open_nursery() as nursery:
            nursery.start_soon(impatient.receive, 10)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        async with broker.open_receiver(orders) as receiver:
            taken = await take_all(receiver, 10)
            for delivery in taken:
                await receiver.settle(delivery, Complete())

            assert ids(taken) == [str(number) for number in range(10)]


@waits
async def test_receivers_compete_without_double_deliveries(broker):
    orders = await make(broker, "orders")
    taken: list[str] = []
    total = 60
    done = trio.Event()

    async def consume() -> None:
        async with broker.open_receiver(orders) as receiver:
            while True:
                for delivery in await receiver.receive(3):
                    taken.append(delivery.message.message_id)
                    await receiver.settle(delivery, Complete())
                if len(taken) >= total:
                    done.set()

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(consume)
        for first in range(0, total, 5):
            await broker.send(orders, numbered(*range(first, first + 5)))
        with trio.fail_after(PATIENCE):
            await done.wait()
        await trio.sleep(SHORTLY)
        nursery.cancel_scope.cancel()

    assert sorted(taken, key=int) == [str(number) for number in range(total)]


# --- entities


async def test_sending_to_an_unknown_entity_is_refused(broker):
    with pytest.raises(EntityNotFound):
        await broker.send(EntityPath.parse("nowhere"), numbered(1))


async def test_a_receiver_of_an_unknown_entity_fails_when_entered_or_at_its_first_receive(broker):
    with pytest.raises(EntityNotFound):
        async with broker.open_receiver(EntityPath.parse("nowhere")) as receiver:
            await take(receiver)


async def test_sending_no_messages_to_a_queue_is_done(broker, orders):
    await broker.send(orders, [])

    assert await is_empty(broker, orders)


async def test_probing_an_unknown_entity_fails(broker):
    with pytest.raises(EntityNotFound):
        await broker.probe(EntityPath.parse("nowhere"))


async def test_probing_a_healthy_entity_leaves_no_message(broker, orders):
    await broker.probe(orders)

    assert await is_empty(broker, orders)


async def test_inspecting_an_unknown_entity_fails(broker):
    with pytest.raises(EntityNotFound):
        await broker.inspect(EntityPath.parse("nowhere"))


@needs(Capability.ANY_CASE)
async def test_the_case_of_a_path_is_ignored(broker, orders):
    await broker.send(EntityPath.parse("ORDERS"), numbered(1))
    async with broker.open_receiver(EntityPath.parse("Orders")) as receiver:
        delivery = await take_one(receiver)

        assert delivery.message.message_id == "1"


async def test_a_name_may_have_a_tilde_as_mass_transit_makes_them(broker):
    queue = await make(broker, "shop.messages~placed")
    await broker.send(queue, numbered(1))
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Complete())

    assert ids([delivery]) == ["1"]
    assert (await broker.inspect(queue)).path == queue


@needs(Capability.MANAGEMENT)
async def test_creating_a_queue_twice_is_refused_and_changes_nothing(broker, orders):
    with pytest.raises(EntityExists):
        await broker.create_queue(EntityPath.parse("Orders"), QueueProperties(max_delivery_count=3))
    info = await broker.inspect(orders)

    assert info.properties.max_delivery_count == QueueProperties().max_delivery_count


@needs(Capability.MANAGEMENT)
async def test_the_properties_of_a_queue_are_kept(broker):
    # The properties that the legacy library gave its backlog queues.
    wanted = QueueProperties(
        lock_duration=timedelta(minutes=1),
        max_delivery_count=2**31 - 1,
        dead_lettering_on_expiration=True,
        max_size_in_megabytes=5120,
        enable_batched_operations=True,
    )
    queue = EntityPath.parse("east/x-servicebus-transfer/0")
    created = await broker.create_queue(queue, wanted)
    info = await broker.inspect(queue)

    assert created.properties == info.properties == wanted


KEPT_OR_REFUSED = {
    "lock_duration": timedelta(seconds=45),
    "max_delivery_count": 7,
    "default_time_to_live": timedelta(hours=1),
    "dead_lettering_on_expiration": True,
    "max_size_in_megabytes": 2048,
    "requires_session": True,
    "requires_duplicate_detection": True,
    "duplicate_detection_window": timedelta(minutes=5),
    "enable_batched_operations": False,
    "auto_delete_on_idle": timedelta(days=1),
    "forward_to": "elsewhere",
    "forward_dead_lettered_messages_to": "elsewhere",
    "user_metadata": "of a user",
    "status": EntityStatus.RECEIVE_DISABLED,
    "max_message_size": 32 * 1024,
    "enable_express": True,
    "enable_partitioning": True,
    "authorization_rules": (AuthorizationRule(key_name="one", rights=("Send",)),),
}


def test_each_property_of_a_queue_has_a_value_to_try() -> None:
    default = QueueProperties()

    assert KEPT_OR_REFUSED.keys() == attrs.fields_dict(QueueProperties).keys()
    assert all(getattr(default, name) != value for name, value in KEPT_OR_REFUSED.items())


@needs(Capability.PROPERTIES)
async def test_each_property_is_kept_or_refused_by_its_name(broker):
    await make(broker, "elsewhere")
    kept = {}
    for number, (name, value) in enumerate(KEPT_OR_REFUSED.items()):
        queue = EntityPath(f"q{number}")
        try:
            created = await broker.create_queue(queue, QueueProperties(**{name: value}))
        except NotSupported as error:
            refusal = str(error)
        else:
            there = shown(await described(broker, queue))
            assert getattr(shown(created), name) == getattr(there, name) == value, name
            kept[name] = refusal = value
        assert name in kept or name in refusal
    together = EntityPath("together")
    await broker.create_queue(together, QueueProperties(**kept))

    there = shown(await described(broker, together))
    assert {name: getattr(there, name) for name in kept} == kept


@needs(Capability.PROPERTIES)
async def test_a_queue_as_an_endpoint_for_storage_makes_it_is_accepted(broker):
    created = await broker.create_queue(EntityPath("orders"), UNLIMITED)

    assert shown(created).max_size_in_megabytes == UNLIMITED.max_size_in_megabytes
    assert shown(created).max_delivery_count == UNLIMITED.max_delivery_count


@needs(Capability.PROPERTIES)
@pytest.mark.parametrize("most", [False, True])
async def test_management_takes_back_unchanged_what_it_tells(broker, most):
    await make(broker, "elsewhere")
    properties = {}
    for name, value in KEPT_OR_REFUSED.items() if most else ():
        probe = EntityPath(f"with-{name.replace('_', '-')}")
        with suppress(NotSupported):
            await broker.create_queue(probe, QueueProperties(**{name: value}))
            properties[name] = value
    queue = await make(broker, "orders", **properties)
    client = Client(frontend_of(broker, Leases(broker=broker, wall_clock=real_date)), broker)

    told = await client.ask("GET", f"/{queue}?api-version=2021-05")
    updated = await client.ask("PUT", f"/{queue}?api-version=2021-05", told.body, If_Match="*")
    again = await client.ask("GET", f"/{queue}?api-version=2021-05")
    created = await client.ask("PUT", "/another?api-version=2021-05", told.body)
    copy = await client.ask("GET", "/another?api-version=2021-05")

    assert [each.status for each in (told, updated, again, created, copy)] == [
        *(200, 200, 200),
        *(201, 200),
    ], (updated.body, created.body)
    assert settings_in(told) == settings_in(again) == settings_in(copy)
    assert settings_in(created) == settings_in(told)


@needs(Capability.TIME_TO_LIVE)
async def test_heartbeats_of_a_syphon_are_seen_where_messages_can_be_shown(broker, orders):
    events = Events()
    label = orders.name
    await broker.create_queue(backlog.queue_name(label, 0), QueueProperties())
    ahead, shows = timedelta(), False  # of the broker's clock
    await broker.send(orders, numbered(1))
    with suppress(NotSupported):
        [shown] = await required(broker, Peeks).peek(orders)
        ahead, shows = (shown.enqueued or real_date()) - real_date(), True

    def clock() -> datetime:
        return real_date() + ahead

    reader = RecordReader(secondary=broker, label=label, clock=clock)

    async def describe() -> ProcessRecord:
        await trio.lowlevel.checkpoint()
        return ProcessRecord(
            process="p1",
            host="here",
            kind="syphon",
            pid=7,
            version="1",
            started=clock(),
            at=clock(),
            interval=30.0,
            syphon=SyphonRecord(moved=CountByName(total=3)),
        )

    records = RecordWriter(
        secondary=broker,
        label=label,
        keys=no_keys,
        describe=describe,
        interval=30.0,
        rng=random.Random(1),
        new_id=lambda: "1",
        observer=events,
    )
    seen = SyphonsSeen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(records.run)
        with trio.fail_after(PATIENCE):
            while shows and not seen.alive:
                seen = (await reader.look()).syphons_seen
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    ended = await reader.look()

    assert events.all == []
    meter = getattr(broker, "meter", None)
    if meter is not None:
        assert meter.usage().sent == 1  # a record is no client's message
    if shows:
        [heartbeat] = seen.alive
        assert (heartbeat.host, heartbeat.pid, heartbeat.moved) == ("here", 7, 3)
        assert [each.process for each in ended.ended] == ["p1"]
    else:
        assert ended.syphons_seen.count in {0, None}


@needs(Capability.MANAGEMENT)
async def test_a_deleted_queue_is_gone_with_its_messages(broker, orders):
    await broker.send(orders, numbered(1))
    await broker.delete_queue(orders)
    with pytest.raises(EntityNotFound):
        await broker.inspect(orders)
    await broker.create_queue(orders, QueueProperties())

    assert await is_empty(broker, orders)


@needs(Capability.MANAGEMENT)
async def test_a_delivery_of_a_deleted_queue_is_neither_settled_nor_renewed(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)
        await broker.delete_queue(orders)

        with pytest.raises((EntityNotFound, LockLost)):
            await receiver.settle(delivery, Complete())
        with pytest.raises((EntityNotFound, LockLost)):
            await receiver.renew(delivery)


@needs(Capability.MANAGEMENT)
async def test_a_page_of_no_queues_is_empty(broker, orders):
    assert list(await broker.list_queues(top=0)) == []


@needs(Capability.MANAGEMENT)
async def test_deleting_an_unknown_queue_fails(broker):
    with pytest.raises(EntityNotFound):
        await broker.delete_queue(EntityPath.parse("nowhere"))


@needs(Capability.MANAGEMENT)
@waits
async def test_a_receiver_learns_that_its_queue_was_deleted(broker):
    orders = await make(broker, "orders")

    async def wait_in_vain() -> None:
        with pytest.raises(EntityNotFound):
            async with broker.open_receiver(orders) as receiver:
                await take(receiver)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_vain)
        await trio.sleep(SHORTLY)
        await broker.delete_queue(orders)


@needs(Capability.MANAGEMENT)
async def test_queues_are_listed_by_name_in_pages(broker):
    for name in ("b/2", "A/1", "b/1", "c", "b/3", "B/0"):
        await make(broker, name)
    page = await broker.list_queues("B/", skip=1, top=2)
    everything = await broker.list_queues()

    assert [info.path.name for info in page] == ["b/1", "b/2"]
    assert [info.path.key for info in everything] == ["a/1", "b/0", "b/1", "b/2", "b/3", "c"]


@needs(Capability.COUNTS | Capability.DEAD_LETTER)
async def test_inspect_counts(broker, orders):
    later = datetime.now(UTC) + timedelta(days=3650)
    await broker.send(orders, [*numbered(1, 2, 3), Message(message_id="4", scheduled=later)])
    async with broker.open_receiver(orders) as receiver:
        one, two = await take_all(receiver, 2)
        await receiver.settle(one, Complete())
        await receiver.settle(two, DeadLetter(reason="bad"))
        info = await broker.inspect(orders)

    assert (info.active, info.dead_lettered, info.scheduled) == (1, 1, 1)
    assert info.size > 0


@needs(Capability.MANAGEMENT)
@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_a_disabled_queue_takes_nothing(broker, status):
    queue = await make(broker, status=status)
    with pytest.raises(EntityDisabled):
        await broker.send(queue, numbered(1))
    with pytest.raises(EntityDisabled):
        await broker.probe(queue)


@needs(Capability.MANAGEMENT)
@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED])
async def test_a_disabled_queue_gives_nothing(broker, status):
    queue = await make(broker, status=status)
    with pytest.raises(EntityDisabled):
        async with broker.open_receiver(queue) as receiver:
            await take(receiver)


@needs(Capability.QUOTA | Capability.MANAGEMENT)
async def test_a_full_queue_refuses_until_something_is_completed(broker):
    queue = await make(broker, max_size_in_megabytes=1)
    big = Message(message_id="big", body=b"x" * 600_000)
    await broker.send(queue, [big])
    with pytest.raises(QuotaExceeded):
        await broker.send(queue, [big])
    async with broker.open_receiver(queue) as receiver:
        await receiver.settle(await take_one(receiver), Complete())
    await broker.send(queue, [big])

    async with broker.open_receiver(queue) as receiver:
        assert (await take_one(receiver)).delivery_count == 1


# --- peeking


@needs(Capability.PEEK)
async def test_peek_shows_locked_and_scheduled_messages_and_takes_none(broker, orders):
    later = datetime.now(UTC) + timedelta(days=3650)
    await broker.send(orders, [Message(message_id="1", scheduled=later), *numbered(2, 3)])
    async with broker.open_receiver(orders) as receiver:
        await take_one(receiver)
        shown = await required(broker, Peeks).peek(orders, limit=10)
        rest = await required(broker, Peeks).peek(
            orders, from_sequence=shown[0].sequence_number + 1, limit=1
        )

        assert ids(shown) == ["1", "2", "3"]
        assert ids(rest) == ["2"]
        assert all(delivery.lock_token is None for delivery in shown)
        assert (await take_one(receiver)).message.message_id == "3"


@needs(Capability.PEEK | Capability.DEAD_LETTER)
async def test_peeking_past_every_number_finds_nothing_and_breaks_nothing(broker, orders):
    await broker.send(orders, numbered(1))

    assert ids(await required(broker, Peeks).peek(orders, from_sequence=10**19 - 1)) == []
    assert len(await required(broker, Peeks).peek(orders)) == 1


@needs(Capability.PEEK | Capability.DEAD_LETTER)
async def test_dead_letters_can_be_peeked(broker, orders):
    await broker.send(orders, numbered(1))
    async with broker.open_receiver(orders) as receiver:
        await receiver.settle(await take_one(receiver), DeadLetter(reason="bad"))
    [dead] = await required(broker, Peeks).peek(orders.dead_letter)

    assert dead.message.properties["DeadLetterReason"] == "bad"
