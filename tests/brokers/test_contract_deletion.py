"""The contract of a broker that deletes messages without receiving them."""

from datetime import timedelta
from typing import Any

import pytest
import trio

from gateway.capabilities import DeletesMessages, Peeks, Schedules, Sessions
from gateway.domain.entity import EntityPath, EntityStatus
from gateway.domain.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    SessionLockLost,
    SessionRequired,
)
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, Message
from gateway.offering import required
from tests.brokers.contract import ids, make, numbered, take, take_all, take_one
from tests.brokers.contract_sessions import make_sessions, of_session
from tests.brokers.kinds import Capability, needs
from tests.harness.patience import PATIENCE

DELETES = Capability.BATCH_DELETE | Capability.PEEK


async def delete(broker: Any, entity: EntityPath, limit: int, **options: Any) -> int:
    return await required(broker, DeletesMessages).delete_messages(entity, limit, **options)


async def shown(broker: Any, entity: EntityPath) -> list[str]:
    return ids(await required(broker, Peeks).peek(entity, limit=100))


@needs(DELETES)
async def test_the_oldest_messages_are_deleted(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered(*range(1, 101)))
    deleted = await delete(broker, orders, 97)

    assert deleted == 97
    assert await shown(broker, orders) == ["98", "99", "100"]
    assert [await delete(broker, orders, 97) for _ in range(2)] == [3, 0]


@needs(DELETES | Capability.DEFERRAL | Capability.NUMBERED_SCHEDULE)
async def test_locked_deferred_and_scheduled_messages_stay(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered(1, 2, 3, 4))
    async with broker.open_receiver(orders) as receiver:
        first = await take_one(receiver)
        await receiver.settle(first, Defer())
        locked = await take_one(receiver)
        later = Message(message_id="5", scheduled=locked.enqueued + timedelta(hours=1))
        await required(broker, Schedules).schedule(orders, [later])
        deleted = await delete(broker, orders, 100)
        left = await shown(broker, orders)
        await receiver.settle(locked, Abandon())
        [again] = await take(receiver)
        await receiver.settle(again, Complete())

    assert deleted == 2
    assert left == ["1", "2", "5"]
    assert again.message.message_id == "2"


@needs(DELETES)
async def test_given_back_messages_are_deleted_and_never_come_again(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered(1, 2))
    async with broker.open_receiver(orders) as receiver:
        for delivery in await take_all(receiver, 2):
            await receiver.settle(delivery, Abandon())
    deleted = await delete(broker, orders, 100)
    await broker.send(orders, numbered(3))
    async with broker.open_receiver(orders) as receiver:
        [left] = await take(receiver)

    assert (deleted, left.message.message_id) == (2, "3")


@needs(DELETES | Capability.DATES)
async def test_messages_from_the_date_on_stay(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered(1, 2))
    [first, _] = await required(broker, Peeks).peek(orders, limit=2)
    second = timedelta(seconds=1)

    assert await delete(broker, orders, 100, before=first.enqueued) == 0
    assert await delete(broker, orders, 100, before=first.enqueued - second) == 0
    assert await delete(broker, orders, 100, before=first.enqueued + second) == 2


@needs(DELETES | Capability.DEAD_LETTER)
async def test_dead_letters_are_deleted_by_their_own_path(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered(1, 2))
    async with broker.open_receiver(orders) as receiver:
        await receiver.settle(await take_one(receiver), DeadLetter(reason="bad"))
    deleted = await delete(broker, orders.dead_letter, 100)

    assert deleted == 1
    assert await shown(broker, orders.dead_letter) == []
    assert await shown(broker, orders) == ["2"]


@needs(DELETES | Capability.DEAD_LETTER | Capability.DATES)
async def test_old_dead_letters_are_deleted_although_a_newer_one_died_before_them(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered(1))
    await trio.sleep(0.02)
    await broker.send(orders, numbered(2))
    async with broker.open_receiver(orders) as receiver:
        old, new = await take_all(receiver, 2)
        await receiver.settle(new, DeadLetter(reason="first"))
        await receiver.settle(old, DeadLetter(reason="second"))
    deleted = await delete(broker, orders.dead_letter, 100, before=new.enqueued)

    assert deleted == 1
    assert await shown(broker, orders.dead_letter) == ["2"]


@needs(DELETES | Capability.SESSIONS)
async def test_messages_of_a_session_are_deleted_by_the_holder_of_its_lock(broker):
    chats = await make_sessions(broker)
    await broker.send(chats, [*of_session("a", 1, 2, 3), *of_session("b", 1)])
    with pytest.raises(SessionRequired):
        await delete(broker, chats, 100)
    with pytest.raises(SessionLockLost):
        await delete(broker, chats, 100, session_id="a")
    async with required(broker, Sessions).open_session(chats, "a") as session:
        locked = await take_one(session)
        deleted = await delete(broker, chats, 100, session_id="a")
        await session.settle(locked, Complete())
    left = await required(broker, Sessions).list_sessions(chats)

    assert deleted == 2
    assert await shown(broker, chats) == ["b1"]
    assert left == ["b"]


@needs(DELETES | Capability.SESSIONS)
async def test_a_session_without_its_deleted_messages_is_given_to_nobody(broker):
    chats = await make_sessions(broker)
    await broker.send(chats, of_session("a", 1, 2))
    async with required(broker, Sessions).open_session(chats, None) as session:
        assert await delete(broker, chats, 100, session_id="a") == 2
        await broker.send(chats, of_session("a", 3))
        [after] = await take(session)
        await session.settle(after, Complete())
    await broker.send(chats, of_session("b", 1))
    async with required(broker, Sessions).open_session(chats, None) as session:
        accepted = session.session_id

    assert (after.message.message_id, accepted) == ("a3", "b")


@needs(DELETES | Capability.UPDATE)
async def test_a_deletion_that_cannot_be_is_refused(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered(1))
    for limit in (0, -1, 4001):
        with pytest.raises(InvalidRequest, match="message-count: a number from"):
            await delete(broker, orders, limit)
    with pytest.raises((InvalidRequest, SessionLockLost)):
        await delete(broker, orders, 1, session_id="a")
    with pytest.raises(EntityNotFound):
        await delete(broker, EntityPath("nowhere"), 1)
    disabled = await make(broker, "disabled", status=EntityStatus.RECEIVE_DISABLED)
    with pytest.raises(EntityDisabled):
        await delete(broker, disabled, 1)

    assert await shown(broker, orders) == ["1"]


@needs(DELETES)
async def test_a_receiver_beside_a_deletion_gets_each_message_at_most_once(broker):
    orders = await make(broker, "orders")
    await broker.send(orders, numbered(*range(200)))
    received: list[str] = []
    deleted, is_empty = 0, trio.Event()

    async def receive() -> None:
        async with broker.open_receiver(orders) as receiver:
            while len(received) + deleted < 200:
                for delivery in await receiver.receive(5):
                    await receiver.settle(delivery, Complete())
                    received.append(delivery.message.message_id)
        is_empty.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        while count := await delete(broker, orders, 7):
            deleted += count
        if len(received) + deleted < 200:
            with trio.fail_after(PATIENCE):
                await is_empty.wait()
        nursery.cancel_scope.cancel()

    assert len(received) + deleted == 200
    assert len(set(received)) == len(received)
