"""Storage Queue's way to receive, in the namespaces that we keep ourselves."""

import random
import tracemalloc
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import EntityNotFound, LockLost, MessageNotFound
from gateway.domain.events.gateway import MovedToPoison
from gateway.domain.message import Abandon, Complete, Message
from gateway.domain.storage_queue import (
    PopReceipt,
    TakenMessage,
    Terms,
    TermsOf,
    poison_queue,
)
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.local.hooks import LocalHooks
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import CLEAR_STEP, LocalVisibility
from tests.harness.clocks import VirtualClock
from tests.store.embedded.stores import Events

ORDERS: Final = EntityPath("orders")
POISON: Final = poison_queue(ORDERS)
NOW: Final = timedelta()
NEARLY: Final = timedelta(seconds=1)
CROWD: Final = 1000  # messages, more than one step looks at
LARGE: Final = 100_000  # bytes of a body
MOST: Final = 20_000_000  # of memory


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def terms(hidden: float, poison_after: int | None = None) -> TermsOf:
    return lambda _: Terms(hidden=seconds(hidden), poison_after=poison_after)


@attrs.frozen
class Harness:
    clock: VirtualClock
    broker: MemoryBroker
    visibility: LocalVisibility

    async def put(self, *bodies: bytes) -> list[TakenMessage]:
        return [await self.visibility.put(ORDERS, Message(body=body), NOW) for body in bodies]

    async def take(self, limit: int = 32, hidden: float = 30.0) -> list[TakenMessage]:
        return list(await self.visibility.dequeue(ORDERS, limit, terms(hidden)))

    async def bodies(self) -> list[object]:
        return [shown.delivery.message.body for shown in await self.take(hidden=1)]

    async def change(
        self, receipt: PopReceipt | None, hidden: float, body: bytes | None = None
    ) -> TakenMessage:
        assert receipt is not None
        return await self.visibility.change(ORDERS, receipt, seconds(hidden), body)

    async def remove(self, receipt: PopReceipt | None) -> None:
        assert receipt is not None
        await self.visibility.remove(ORDERS, receipt)


@pytest.fixture
async def harness(autojump_clock: MockClock) -> AsyncIterator[Harness]:
    clock = VirtualClock()
    async with MemoryBroker(clock, random.Random(1)) as broker:
        await broker.create_queue(ORDERS, QueueProperties(max_delivery_count=1000))
        yield Harness(clock, broker, LocalVisibility(broker))


async def test_a_taken_message_is_hidden_for_as_long_as_its_taker_wants(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a", b"b")

    (first,) = await harness.take(limit=1, hidden=10)
    assert first.delivery.message.body == b"a"
    assert first.delivery.delivery_count == 1
    assert await harness.bodies() == [b"b"]
    await trio.sleep(9)
    assert await harness.bodies() == [b"b"]
    await trio.sleep(1.1)

    (again, _) = await harness.take()
    assert again.delivery.message.body == b"a"
    assert again.delivery.delivery_count == 2
    assert again.delivery.sequence_number == first.delivery.sequence_number
    assert again.delivery.enqueued == first.delivery.enqueued


async def test_a_receipt_is_good_until_somebody_else_takes_the_message(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a")
    (first,) = await harness.take(hidden=1)
    await trio.sleep(2)  # visible again, and not taken
    changed = await harness.change(first.receipt, 1)
    with pytest.raises(LockLost):
        await harness.change(first.receipt, 1)
    await trio.sleep(2)
    (second,) = await harness.take()

    with pytest.raises(LockLost):
        await harness.remove(changed.receipt)
    await harness.remove(second.receipt)
    with pytest.raises(MessageNotFound):
        await harness.remove(second.receipt)


async def test_the_receipt_of_a_put_is_good_too(
    harness: Harness, autojump_clock: MockClock
) -> None:
    kept, gone = await harness.put(b"a", b"b")

    await harness.remove(gone.receipt)
    await harness.change(kept.receipt, 0, b"other")

    assert await harness.bodies() == [b"other"]


async def test_a_message_may_be_hidden_from_the_start(
    harness: Harness, autojump_clock: MockClock
) -> None:
    shown = await harness.visibility.put(ORDERS, Message(body=b"a"), seconds(10))
    assert await harness.take() == []
    assert shown.delivery.locked_until is not None

    await trio.sleep(11)
    assert await harness.bodies() == [b"a"]


async def test_a_message_put_for_later_is_passed_on_later(
    harness: Harness, autojump_clock: MockClock
) -> None:
    entry = EntityPath("entry")
    await harness.broker.create_queue(entry, QueueProperties(forward_to=ORDERS.name))
    await harness.visibility.put(entry, Message(body=b"later"), seconds(30))
    await harness.visibility.put(entry, Message(body=b"now"), NOW)
    assert await harness.bodies() == [b"now"]
    await trio.sleep(31)
    assert b"later" in await harness.bodies()


async def test_a_change_to_nothing_shows_the_message_at_once(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a", b"b")
    first, _ = await harness.take()

    await harness.change(first.receipt, 0)

    assert await harness.bodies() == [b"a"]


async def test_a_message_is_handed_out_once_however_often_it_was_shown(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a", b"b", b"c")
    shown = (await harness.take())[0]
    for hidden in (0, 1, 0, 0, 5, 0):
        shown = await harness.change(shown.receipt, hidden)
        await trio.sleep(0.5)

    assert [each.delivery.message.body for each in await harness.take()] == [b"a"]


async def test_look_shows_what_can_be_taken_and_touches_nothing(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a", b"b", b"c")
    await harness.take(limit=1)

    for _ in range(2):
        found = await harness.visibility.peek(ORDERS, 32)
        assert [each.message.body for each in found] == [b"b", b"c"]
        assert [each.delivery_count for each in found] == [0, 0]


async def test_a_hidden_message_expires_and_its_receipt_finds_nothing(
    harness: Harness, autojump_clock: MockClock
) -> None:
    message = Message(body=b"a", time_to_live=seconds(5))
    await harness.visibility.put(ORDERS, message, NOW)
    (shown,) = await harness.take(hidden=100)
    await trio.sleep(6)

    with pytest.raises(MessageNotFound):
        await harness.remove(shown.receipt)
    await trio.sleep(100)
    assert await harness.take() == []
    assert (await harness.broker.inspect(ORDERS)).scheduled == 0


async def test_a_message_that_a_receiver_has_locked_is_not_taken_and_its_receipt_is_stale(
    harness: Harness, autojump_clock: MockClock
) -> None:
    (shown,) = await harness.put(b"a")
    async with harness.broker.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        assert await harness.take() == []
        assert await harness.visibility.peek(ORDERS, 1) == []
        with pytest.raises(LockLost):
            await harness.remove(shown.receipt)
        await receiver.settle(delivery, Complete())
    with pytest.raises(MessageNotFound):
        await harness.remove(shown.receipt)


async def test_a_receiver_gets_what_was_hidden_when_it_is_visible_again(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a")
    await harness.take(hidden=10)
    async with harness.broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(11):
            (delivery,) = await receiver.receive(1)
        assert delivery.message.body == b"a"
        assert delivery.enqueued_sequence_number is None  # it has one number


async def test_clear_removes_all_but_what_a_receiver_has(
    harness: Harness, autojump_clock: MockClock
) -> None:
    for number in range(CLEAR_STEP + 2):
        await harness.broker.send(ORDERS, [Message(body=b"%d" % number)])
    await harness.take(limit=3, hidden=100)
    async with harness.broker.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        await harness.visibility.clear(ORDERS)
        info = await harness.broker.inspect(ORDERS)
        assert (info.active, info.scheduled) == (1, 0)
        await receiver.settle(delivery, Complete())
    assert (await harness.broker.inspect(ORDERS)).active == 0


@pytest.mark.parametrize("years", [-20, 20])
async def test_a_clock_that_is_set_by_years_hides_a_message_no_longer_and_no_shorter(
    harness: Harness, autojump_clock: MockClock, years: int
) -> None:
    await harness.put(b"a")
    (taken,) = await harness.take(hidden=100)
    harness.clock.skew = timedelta(days=365 * years)
    (other,) = await harness.put(b"b")
    changed = await harness.change(other.receipt, 200)
    await trio.sleep(90)
    early = await harness.take()
    await trio.sleep(20)
    (again,) = await harness.take(hidden=1000)
    await trio.sleep(100)
    (last,) = await harness.take()

    assert early == []
    assert again.delivery.message.body == b"a"
    assert again.receipt != taken.receipt
    assert last.delivery.message.body == b"b"
    assert changed.delivery.locked_until is not None
    assert abs((changed.delivery.locked_until - other.delivery.enqueued) - seconds(200)) < NEARLY


async def test_a_missing_queue_is_refused(harness: Harness, autojump_clock: MockClock) -> None:
    nowhere = EntityPath("nowhere")
    with pytest.raises(EntityNotFound):
        await harness.visibility.dequeue(nowhere, 1, terms(0))
    with pytest.raises(EntityNotFound):
        await harness.visibility.clear(nowhere)


async def test_receipts_and_counts_outlive_the_process(tmp_path: Path) -> None:
    def opened() -> EmbeddedBroker:
        return EmbeddedBroker(tmp_path / "store.db", VirtualClock(), random.Random(1))

    async with opened() as broker:
        visibility = LocalVisibility(broker)
        await broker.create_queue(ORDERS, QueueProperties())
        for body in (b"a", b"b"):
            await visibility.put(ORDERS, Message(body=body), NOW)
        hidden, shown = await visibility.dequeue(ORDERS, 2, terms(1000))
        assert hidden.receipt is not None
        assert shown.receipt is not None
        shown = await visibility.change(ORDERS, shown.receipt, NOW, b"other")
    async with opened() as broker:
        visibility = LocalVisibility(broker)
        assert shown.receipt is not None
        (found,) = await visibility.dequeue(ORDERS, 2, terms(10))
        assert (found.delivery.message.body, found.delivery.delivery_count) == (b"other", 2)
        with pytest.raises(LockLost):
            await visibility.remove(ORDERS, shown.receipt)
        await visibility.remove(ORDERS, hidden.receipt)
        info = await broker.inspect(ORDERS)
        assert (info.active, info.scheduled) == (0, 1)


async def test_a_queue_is_cleared_without_all_of_it_in_memory(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with EmbeddedBroker(tmp_path / "store.db", clock, random.Random(1)) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
        for _ in range(4 * CLEAR_STEP):
            await broker.send(ORDERS, [Message(body=bytes(LARGE))])
        tracemalloc.start()
        try:
            await LocalVisibility(broker).clear(ORDERS)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        info = await broker.inspect(ORDERS)

    assert info.active == 0
    assert peak < 2 * CLEAR_STEP * LARGE < MOST


async def test_an_expired_message_hides_no_living_one(
    harness: Harness, autojump_clock: MockClock
) -> None:
    short = Message(body=b"short", time_to_live=seconds(5))
    await harness.broker.send(ORDERS, [short] * CROWD)
    await harness.put(b"long")
    await trio.sleep(6)

    assert [each.message.body for each in await harness.visibility.peek(ORDERS, 3)] == [b"long"]


async def test_a_take_finds_what_stands_behind_what_has_expired(
    harness: Harness, autojump_clock: MockClock
) -> None:
    short = Message(body=b"short", time_to_live=seconds(5))
    await harness.broker.send(ORDERS, [short] * CROWD)
    await harness.put(b"long")
    await trio.sleep(6)

    assert await harness.bodies() == [b"long"]


async def test_a_receipt_is_stale_once_somebody_has_locked_the_message(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a")
    (shown,) = await harness.take(hidden=1)
    await trio.sleep(2)
    async with harness.broker.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        await receiver.settle(delivery, Abandon())

    with pytest.raises(LockLost):
        await harness.remove(shown.receipt)


async def test_a_receipt_stays_good_where_nobody_saw_the_message(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a")
    (shown,) = await harness.take(hidden=1)
    await trio.sleep(2)
    async with harness.broker.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        await receiver.settle(delivery, Abandon(delivered=False))

    await harness.remove(shown.receipt)


async def test_a_hidden_message_is_none_that_was_scheduled(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a")
    (shown,) = await harness.take(hidden=10)

    with pytest.raises(MessageNotFound):
        await harness.broker.cancel_scheduled(ORDERS, [shown.delivery.sequence_number])
    await harness.remove(shown.receipt)


# --- poison


async def test_a_message_that_was_taken_too_often_goes_to_the_queue_for_poison(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.put(b"a", b"b")
    for _ in range(2):
        (shown,) = await harness.visibility.dequeue(ORDERS, 1, terms(1, poison_after=2))
        assert shown.delivery.message.body == b"a"
        await trio.sleep(2)

    (shown,) = await harness.visibility.dequeue(ORDERS, 1, terms(1, poison_after=2))
    (moved,) = await harness.visibility.dequeue(POISON, 9, terms(1))

    assert shown.delivery.message.body == b"b"
    assert moved.delivery.message.body == b"a"
    assert moved.delivery.message.properties == {
        "DeadLetterReason": "PoisonThresholdExceeded",
        "DeadLetterErrorDescription": "orders: dequeued 2 times and not removed; 2 expected.",
    }
    assert moved.delivery.dead_letter_source == "orders"
    assert moved.delivery.delivery_count == 1


async def test_poison_does_not_expire(harness: Harness, autojump_clock: MockClock) -> None:
    short = Message(body=b"a", time_to_live=seconds(60))
    await harness.visibility.put(ORDERS, short, NOW)
    for _ in range(2):
        await harness.visibility.dequeue(ORDERS, 1, terms(1, poison_after=1))
        await trio.sleep(2)
    await trio.sleep(100)

    (moved,) = await harness.visibility.dequeue(POISON, 9, terms(1))
    assert moved.delivery.expires is None


async def test_more_poison_than_a_step_moves_hides_nothing(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.broker.send(ORDERS, [Message(body=b"bad")] * CROWD)
    taken = 0
    while taken < CROWD:
        taken += len(await harness.visibility.dequeue(ORDERS, 32, terms(1)))
    await harness.visibility.put(ORDERS, Message(body=b"good"), seconds(1))
    await trio.sleep(2)

    (shown,) = await harness.visibility.dequeue(ORDERS, 32, terms(9, poison_after=1))
    assert shown.delivery.message.body == b"good"
    assert (await harness.broker.inspect(POISON)).active == CROWD


async def test_a_message_that_the_queue_for_poison_does_not_take_is_served(
    harness: Harness, autojump_clock: MockClock
) -> None:
    disabled = QueueProperties(status=EntityStatus.SEND_DISABLED)
    await harness.broker.create_queue(POISON, disabled)
    await harness.put(b"a")
    for _ in range(3):
        (shown,) = await harness.visibility.dequeue(ORDERS, 1, terms(1, poison_after=1))
        await trio.sleep(2)

    assert shown.delivery.delivery_count == 3


async def test_poison_is_in_one_queue_after_a_restart_and_reported(tmp_path: Path) -> None:
    events = Events()

    def opened() -> EmbeddedBroker:
        path, clock = tmp_path / "store.db", VirtualClock()
        return EmbeddedBroker(path, clock, random.Random(1), hooks=LocalHooks(observer=events))

    async with opened() as broker:
        await broker.create_queue(ORDERS, QueueProperties(max_delivery_count=1000))
        visibility = LocalVisibility(broker)
        await visibility.put(ORDERS, Message(body=b"a"), NOW)
        (shown,) = await visibility.dequeue(ORDERS, 1, terms(1000))
        assert shown.receipt is not None
        await visibility.change(ORDERS, shown.receipt, NOW)
        assert await visibility.dequeue(ORDERS, 1, terms(1000, poison_after=1)) == []
    async with opened() as broker:
        counts = [(await broker.inspect(queue)).active for queue in (ORDERS, POISON)]
        (moved,) = await LocalVisibility(broker).dequeue(POISON, 1, terms(1))

    moved_one = MovedToPoison(queue=ORDERS, to=POISON, sequence_number=1, deliveries=1)
    assert [each for each in events.seen if isinstance(each, MovedToPoison)] == [moved_one]
    assert counts == [0, 1]
    assert moved.delivery.message.properties["DeadLetterReason"] == "PoisonThresholdExceeded"
