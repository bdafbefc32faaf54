"""The audit finds all messages, waits for locked ones, and reports queues that it couldn't read."""

import random
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.checker.operations import AuditBegan, AuditFailed, CopyPlace, Found, QueueRead
from gateway.demo.audit import LIMIT, AuditedNamespace, audit, pending
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import OutcomeUnknown, Unavailable
from gateway.domain.message import DeadLetter, Message
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock

ORDERS = EntityPath("orders")
QUEUE = backlog.queue_name("east", 0)


@pytest.fixture
async def broker(autojump_clock):
    async with MemoryBroker(VirtualClock(), random.Random(1)) as broker:
        await broker.create_queue(ORDERS, QueueProperties(lock_duration=timedelta(seconds=30)))
        yield broker


def found(records):
    return {(r.message_id, r.place, r.queue) for r in records if isinstance(r, Found)}


async def test_every_queue_is_planned_and_read(broker, autojump_clock):
    await broker.create_queue(EntityPath("bills"), QueueProperties())

    records = await audit([AuditedNamespace.primary(broker)])

    began = next(r for r in records if isinstance(r, AuditBegan))
    assert {"orders", "bills"} < began.queues
    assert len(began.queues) == 4  # and their dead letters
    assert {r.queue for r in records if isinstance(r, QueueRead)} == began.queues


async def test_more_messages_than_one_page_are_found(broker, autojump_clock):
    await broker.send(ORDERS, [Message(message_id=f"m{number}") for number in range(250)])

    records = await audit([AuditedNamespace.primary(broker)])

    assert len(found(records)) == 250
    assert await pending(broker) == 0


async def test_heartbeats_of_syphons_are_neither_pending_nor_read(broker, autojump_clock):
    heartbeats = backlog.heartbeat_queue("x")
    await broker.create_queue(heartbeats, QueueProperties())
    await broker.send(heartbeats, [Message(message_id="alive")])

    records = await audit([AuditedNamespace.primary(broker)])

    assert await pending(broker) == 0
    assert not found(records)
    [info] = [each for each in await broker.list_queues() if each.path == heartbeats]
    assert info.active == 1


async def test_dead_letters_are_found_with_their_reason(broker, autojump_clock):
    await broker.send(ORDERS, [Message(message_id="m1")])
    async with broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, DeadLetter(reason="broken"))

    records = await audit([AuditedNamespace.primary(broker)])

    [dead] = [r for r in records if isinstance(r, Found)]
    assert (dead.place, dead.reason) == (CopyPlace.PRIMARY_DEAD_LETTER, "broken")


async def test_a_locked_message_is_waited_for(broker, autojump_clock):
    await broker.send(ORDERS, [Message(message_id="m1")])
    async with broker.open_receiver(ORDERS) as receiver:
        await receiver.receive(1)

        records = await audit([AuditedNamespace.primary(broker)])

    assert found(records) == {("m1", CopyPlace.PRIMARY, "orders")}
    assert trio.current_time() >= 30


async def test_a_message_that_stays_scheduled_is_no_empty_queue(broker, autojump_clock):
    later = VirtualClock(timedelta(days=1))()
    await broker.send(ORDERS, [Message(message_id="m1", scheduled=later)])

    records = await audit([AuditedNamespace.primary(broker)])

    [failed] = [r for r in records if isinstance(r, AuditFailed)]
    assert (failed.queue, str(int(LIMIT)) in failed.reason) == ("orders", True)


async def test_a_backlog_is_named_apart_and_says_nothing_of_the_content(broker, autojump_clock):
    await broker.create_queue(QUEUE, backlog.QUEUE_PROPERTIES)
    await broker.send(QUEUE, [Message(message_id="m1")])

    records = await audit([AuditedNamespace.secondary(broker)])

    [stuck] = [r for r in records if isinstance(r, Found)]
    assert (stuck.place, stuck.queue) == (CopyPlace.BACKLOG, f"secondary:{QUEUE.key}")
    assert stuck.fingerprint is None


@attrs.define
class Broken:
    """A namespace that loses its connections when it is read."""

    inner: MemoryBroker

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open_receiver(self, entity):
        raise Unavailable("gone")


async def test_a_queue_that_cannot_be_read_is_admitted(broker, autojump_clock):
    records = await audit([AuditedNamespace.primary(Broken(broker))])

    assert {r.reason for r in records if isinstance(r, AuditFailed)} == {"gone"}
    assert not any(isinstance(r, QueueRead) for r in records)


async def test_pending_is_unknown_where_a_namespace_does_not_tell(broker, autojump_clock):
    @attrs.define
    class Silent:
        async def list_queues(self, *, top):
            return [attrs.evolve(info, active=None) for info in await broker.list_queues(top=top)]

    with pytest.raises(OutcomeUnknown):
        await pending(Silent())
