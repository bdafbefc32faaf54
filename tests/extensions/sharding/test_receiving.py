"""Receiving from a sharded queue: all shards, fairly, and each settlement back to its shard."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.brokers.joined.receiver import LINGER
from gateway.brokers.joined.sequence import place_of
from gateway.capabilities import ReceivesAvailable, ReceivesDeferred, Sessions
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    LockLost,
    MessageNotFound,
    Unavailable,
)
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Message,
    ReceiveMode,
)
from gateway.extensions.sharding.broker import ShardedBroker
from gateway.extensions.sharding.queues import summed
from gateway.extensions.sharding.table import ShardingRule
from gateway.offering import required
from gateway.ports import Receiver
from gateway.store.local.memory import MemoryBroker
from tests.extensions.sharding.harness import ORDERS, Altered, sharded
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker, Operation, Refuse

FOUR = ShardingRule(queue="orders", shards=4)
LOCK = timedelta(seconds=30)


@attrs.frozen
class Stand:
    broker: ShardedBroker
    faulty: FaultyBroker
    memory: MemoryBroker

    async def fill(self, each: int) -> None:
        """Put as many messages into each shard."""
        for shard in range(4):
            for number in range(each):
                message = Message(body=b"%d.%d" % (shard, number))
                await self.memory.send(ORDERS.shard(shard), [message])


@asynccontextmanager
async def stand(properties: QueueProperties | None = None) -> AsyncIterator[Stand]:
    clock = VirtualClock()
    async with (
        MemoryBroker(clock, random.Random(0)) as memory,
        trio.open_nursery() as nursery,
    ):
        faulty = FaultyBroker(inner=memory)
        await nursery.start(faulty.run)
        broker = sharded(faulty, FOUR, clock)
        await broker.create_queue(ORDERS, properties or QueueProperties(lock_duration=LOCK))
        yield Stand(broker, faulty, memory)
        nursery.cancel_scope.cancel()


async def test_every_shard_gets_its_share_of_the_receives(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        await here.fill(10)
        async with here.broker.open_receiver(ORDERS) as receiver:
            found = Counter[int]()
            for _ in range(20):
                [delivery] = await receiver.receive(1)
                await receiver.settle(delivery, Complete())
                found[place_of(delivery)] += 1

        assert sorted(found) == [0, 1, 2, 3]
        assert all(4 <= each <= 6 for each in found.values())


@pytest.mark.parametrize("mode", list(ReceiveMode))
async def test_each_message_comes_once_and_those_of_a_shard_in_their_order(
    mode: ReceiveMode, autojump_clock: trio.abc.Clock
) -> None:
    async with stand() as here:
        await here.fill(10)
        found: list[bytes] = []
        async with here.broker.open_receiver(ORDERS, mode) as receiver:
            while len(found) < 40:
                for delivery in await receiver.receive(3):
                    if mode is ReceiveMode.PEEK_LOCK:
                        await receiver.settle(delivery, Complete())
                    assert isinstance(delivery.message.body, bytes)
                    found.append(delivery.message.body)

        for shard in range(4):
            mine = [body for body in found if body.startswith(b"%d." % shard)]
            assert mine == [b"%d.%d" % (shard, number) for number in range(10)]
        assert (await here.broker.inspect(ORDERS)).active == 0


async def test_a_message_wakes_a_waiting_receive_whatever_its_shard(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here, here.broker.open_receiver(ORDERS) as receiver:
        for shard in (3, 1, 0, 2):
            async with trio.open_nursery() as nursery:
                found: list[Any] = []

                async def receive(into: list[Any] = found) -> None:
                    into.extend(await receiver.receive(1))

                nursery.start_soon(receive)
                await wait_all_tasks_blocked()
                await here.memory.send(ORDERS.shard(shard), [Message()])
            assert place_of(found[0]) == shard
            await receiver.settle(found[0], Complete())


async def test_an_idle_receive_asks_each_shard_once(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here, here.broker.open_receiver(ORDERS) as receiver:
        asked: list[EntityPath] = []

        def note(operation: Operation, entity: EntityPath) -> None:
            if operation is Operation.RECEIVE:
                asked.append(entity)

        here.faulty.fault = note
        with trio.move_on_after(3600):
            await receiver.receive(1)

        assert len(asked) == 4


async def test_a_delivery_kept_for_the_next_receive_is_given_back_uncounted(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        await here.fill(1)
        broker = sharded(here.memory, FOUR, here.broker.clock)
        async with (
            broker.open_receiver(ORDERS) as receiver,
            broker.open_receiver(ORDERS) as other,
        ):
            [mine] = await receiver.receive(1)
            began = trio.current_time()
            found = []
            while len(found) < 3:
                found += await other.receive(3)

            assert trio.current_time() - began <= LINGER
            assert {each.delivery_count for each in found} == {1}
            assert mine.sequence_number not in {each.sequence_number for each in found}


async def test_kept_and_unsettled_deliveries_are_released_at_the_end(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        await here.fill(1)
        async with here.broker.open_receiver(ORDERS) as receiver:
            await receiver.receive(1)
        async with here.broker.open_receiver(ORDERS) as receiver:
            began, found = trio.current_time(), []
            while len(found) < 4:
                found += await receiver.receive(1)

        assert trio.current_time() == began


@pytest.mark.parametrize("days", [-3650, 3650])
async def test_a_clock_that_is_wrong_by_years_keeps_no_delivery_back(
    days: int, autojump_clock: trio.abc.Clock
) -> None:
    """The dates of locks are the namespace's."""
    async with stand() as here:
        wrong = sharded(here.memory, FOUR, VirtualClock(timedelta(days=days)))
        await here.fill(2)
        found = 0
        with trio.move_on_after(LOCK.total_seconds()):
            async with wrong.open_receiver(ORDERS) as receiver:
                while found < 8:
                    for delivery in await receiver.receive(1):
                        await receiver.settle(delivery, Complete())
                        found += 1

    assert found == 8


async def test_every_settlement_leads_back_to_its_shard(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        await here.fill(2)
        async with here.broker.open_receiver(ORDERS) as receiver:
            seen = set[int]()
            while len(seen) < 4:
                [delivery] = await receiver.receive(1)
                shard = place_of(delivery)
                if shard in seen:
                    continue
                seen.add(shard)
                assert await receiver.renew(delivery) > here.broker.clock()
                await receiver.settle(delivery, DeadLetter(reason="why"))
                with pytest.raises(LockLost):
                    await receiver.settle(delivery, Complete())
                info = await here.memory.inspect(ORDERS.shard(shard))
                assert info.dead_lettered == 1
        async with here.broker.open_receiver(ORDERS.dead_letter) as receiver:
            dead = []
            while len(dead) < 4:
                dead += await receiver.receive(4)

        assert {place_of(each) for each in dead} == {0, 1, 2, 3}
        assert (await here.broker.inspect(ORDERS)).dead_lettered == 4


async def test_a_shard_that_fails_does_not_keep_the_messages_of_the_others(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        failing = ORDERS.shard(1)

        def fault(operation: Operation, entity: EntityPath) -> Any:
            is_it = operation is Operation.RECEIVE and entity == failing
            return Refuse() if is_it else None

        here.faulty.fault = fault
        await here.fill(2)
        async with here.broker.open_receiver(ORDERS) as receiver:
            found = []
            for _ in range(6):
                found += await receiver.receive(1)
            assert {place_of(each) for each in found} == {0, 2, 3}

            here.faulty.fault = lambda operation, entity: None
            with trio.fail_after(60):
                while len(found) < 8:
                    found += await receiver.receive(1)


async def test_a_look_at_all_shards_fails_only_if_all_of_them_fail(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        failing = {ORDERS.shard(1)}

        def fault(operation: Operation, entity: EntityPath) -> Any:
            return Refuse() if operation is Operation.RECEIVE and entity in failing else None

        here.faulty.fault = fault
        await here.fill(1)
        async with here.broker.open_receiver(ORDERS) as receiver:
            looks = required(receiver, ReceivesAvailable)
            found = [each for _ in range(4) for each in await looks.receive_available(1)]
            assert {place_of(each) for each in found} == {0, 2, 3}

            failing |= {ORDERS.shard(number) for number in range(4)}
            with pytest.raises(Unavailable):
                await looks.receive_available(1)


async def test_an_error_of_all_shards_is_raised_and_the_next_receive_asks_again(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here, here.broker.open_receiver(ORDERS) as receiver:
        here.faulty.fault = lambda operation, entity: Refuse()
        for _ in range(2):
            with pytest.raises(Unavailable):
                await receiver.receive(1)

        here.faulty.fault = lambda operation, entity: None
        await here.fill(1)
        assert await receiver.receive(1)


async def test_a_queue_that_does_not_exist_is_told_as_it_is() -> None:
    clock = VirtualClock()
    async with MemoryBroker(clock, random.Random(0)) as memory:
        broker = sharded(memory, FOUR, clock)
        with pytest.raises(EntityNotFound):
            async with broker.open_receiver(ORDERS) as receiver:
                await receiver.receive(1)


async def test_an_error_of_the_block_is_not_in_a_group(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        with pytest.raises(ZeroDivisionError):
            async with here.broker.open_receiver(ORDERS):
                raise ZeroDivisionError
        with trio.move_on_after(1) as scope:
            async with here.broker.open_receiver(ORDERS) as receiver:
                await receiver.receive(1)
        assert scope.cancelled_caught


async def test_a_shard_that_is_added_is_received_from_and_one_that_is_removed_is_not(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        table = here.broker.table
        table.replace([attrs.evolve(FOUR, shards=2)])
        await here.fill(1)
        async with here.broker.open_receiver(ORDERS) as receiver:
            found = []
            while len(found) < 2:
                found += await receiver.receive(1)
            assert {place_of(each) for each in found} == {0, 1}
            with trio.move_on_after(10) as scope:
                await receiver.receive(1)
            assert scope.cancelled_caught

            table.replace([FOUR])
            while len(found) < 4:
                found += await receiver.receive(1)
            table.replace([attrs.evolve(FOUR, shards=3)])
            await wait_all_tasks_blocked()
            [last] = [each for each in found if place_of(each) == 3]
            with pytest.raises(LockLost, match="queue 3 isn't received from here any more"):
                await receiver.settle(last, Complete())


async def test_kept_deliveries_of_a_shard_that_is_removed_are_given_back(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        await here.fill(1)
        async with here.broker.open_receiver(ORDERS) as receiver:
            found = list(await receiver.receive(1))
            await wait_all_tasks_blocked()  # the others are kept
            first = place_of(found.pop())
            here.broker.table.replace([attrs.evolve(FOUR, shards=1)])
            await wait_all_tasks_blocked()
            with trio.move_on_after(5):
                while True:
                    found += await receiver.receive(4)

            assert [place_of(each) for each in found] == ([0] if first else [])
            for shard in range(1, 4):
                async with here.memory.open_receiver(ORDERS.shard(shard)) as other:
                    with trio.fail_after(1):  # the lock would be there for longer
                        assert await other.receive(1)


async def test_a_late_delivery_of_a_removed_shard_is_given_back(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:

        async def take_time() -> None:
            with trio.CancelScope(shield=True):  # as for an answer that is there already
                await trio.sleep(1)

        slow = Altered(broker=here.memory, after_receive=take_time)
        broker = sharded(slow, FOUR, here.broker.clock)
        await here.memory.send(ORDERS.shard(3), [Message()])
        async with broker.open_receiver(ORDERS) as receiver, trio.open_nursery() as nursery:
            found: list[Delivery] = []

            async def receive() -> None:
                found.extend(await receiver.receive(1))

            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            broker.table.replace([attrs.evolve(FOUR, shards=3)])
            await trio.sleep(10)
            nursery.cancel_scope.cancel()

        assert found == []
        async with here.memory.open_receiver(ORDERS.shard(3)) as other:
            with trio.fail_after(1):
                assert await other.receive(1)


async def test_a_receive_gets_what_is_just_being_given_back_of_other_shards(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:

        async def take_time() -> None:
            await trio.sleep(1)

        slow = Altered(broker=here.memory, before_settle=take_time)
        broker = sharded(slow, FOUR, here.broker.clock)
        await here.fill(1)
        async with broker.open_receiver(ORDERS) as receiver:
            found = list(await receiver.receive(1))
            await trio.sleep(LINGER + 0.5)  # the first of three is being given back
            with trio.fail_after(5):
                while len(found) < 4:
                    found += await receiver.receive(4)

            assert {place_of(each) for each in found} == {0, 1, 2, 3}


def forwarded(delivery: Delivery) -> Delivery:
    """As a partitioned entity of Service Bus would have forwarded it."""
    return attrs.evolve(delivery, enqueued_sequence_number=5 << 55)


@pytest.mark.parametrize("mode", list(ReceiveMode))
async def test_messages_that_a_partitioned_entity_forwarded_are_received(
    mode: ReceiveMode, autojump_clock: trio.abc.Clock
) -> None:
    async with stand() as here:
        await here.fill(3)
        namespace = Altered(broker=here.memory, alter=forwarded)
        broker = sharded(namespace, FOUR, here.broker.clock)
        assert len(await broker.peek(ORDERS, limit=12)) == 12

        async with broker.open_receiver(ORDERS, mode) as receiver:
            found = []
            with trio.fail_after(5):
                while len(found) < 12:
                    for delivery in await receiver.receive(2):
                        if mode is ReceiveMode.PEEK_LOCK:
                            await receiver.settle(delivery, Complete())
                        found.append(delivery)

        assert {each.enqueued_sequence_number for each in found if place_of(each)} == {None}
        assert (await here.broker.inspect(ORDERS)).active == 0


async def test_a_deferred_message_that_a_partitioned_entity_forwarded_is_received(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        namespace = Altered(broker=here.memory, alter=forwarded)
        broker = sharded(namespace, FOUR, here.broker.clock)
        await here.memory.send(ORDERS.shard(2), [Message(body=b"later")])
        with trio.fail_after(5):
            async with broker.open_receiver(ORDERS) as receiver:
                [delivery] = await receiver.receive(1)
                await receiver.settle(delivery, Defer())
                deferred = required(receiver, ReceivesDeferred)
                [again] = await deferred.receive_deferred([delivery.sequence_number])
                assert again.message.body == b"later"
                await receiver.settle(again, Complete())

        assert (await here.broker.inspect(ORDERS)).deferred == 0


async def test_deferred_messages_with_other_numbers_than_asked_for_are_deferred_again(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        namespace = Altered(broker=here.memory)
        broker = sharded(namespace, FOUR, here.broker.clock)
        await here.memory.send(ORDERS.shard(2), [Message(body=b"later")])
        with trio.fail_after(5):
            async with broker.open_receiver(ORDERS) as receiver:
                [delivery] = await receiver.receive(1)
                await receiver.settle(delivery, Defer())
                deferred = required(receiver, ReceivesDeferred)
                namespace.alter = lambda each: attrs.evolve(each, sequence_number=5 << 55)
                with pytest.raises(MessageNotFound):
                    await deferred.receive_deferred([delivery.sequence_number])
                namespace.alter = forwarded
                assert await deferred.receive_deferred([delivery.sequence_number])


@pytest.mark.parametrize("number", [900 << 53 | 5, 3 << 53 | 5, -1])
async def test_a_number_that_leads_to_no_message_of_any_shard_isnt_found(
    number: int, autojump_clock: trio.abc.Clock
) -> None:
    async with stand() as here, here.broker.open_receiver(ORDERS) as receiver:
        deferred = required(receiver, ReceivesDeferred)
        with pytest.raises(MessageNotFound):
            await deferred.receive_deferred([number])


@attrs.define(eq=False, kw_only=True)
class SlowlyOpened(Altered):
    """Opens the receiver of the queue `slow` late, or not at all."""

    slow: EntityPath
    opens: trio.Event = attrs.field(factory=trio.Event)
    error: BrokerError | None = None

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        if entity == self.slow:
            await self.opens.wait()
            if self.error is not None:
                raise self.error
        async with Altered.open_receiver(self, entity, mode) as receiver:
            yield receiver


@pytest.mark.parametrize("fails", [False, True])
async def test_a_deferred_message_is_received_once_its_shard_is_open(
    fails: bool, autojump_clock: trio.abc.Clock
) -> None:
    async with stand() as here:
        shard = ORDERS.shard(3)
        await here.memory.send(shard, [Message(body=b"later")])
        async with here.memory.open_receiver(shard) as receiver:
            [delivery] = await receiver.receive(1)
            await receiver.settle(delivery, Defer())
        error = Unavailable("down") if fails else None
        namespace = SlowlyOpened(broker=here.memory, slow=shard, error=error)
        broker = sharded(namespace, FOUR, here.broker.clock)
        found: list[object] = []

        async with broker.open_receiver(ORDERS) as receiver, trio.open_nursery() as nursery:
            deferred = required(receiver, ReceivesDeferred)

            async def receive() -> None:
                try:
                    taken = await deferred.receive_deferred([3 << 53 | delivery.sequence_number])
                    found.extend(each.message.body for each in taken)
                except BrokerError as error:
                    found.append(type(error))

            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            assert not found
            namespace.opens.set()

        assert found == [Unavailable if fails else b"later"]


async def test_the_depth_is_that_of_all_shards(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        await here.fill(3)
        info = await here.broker.inspect(ORDERS)

        assert (info.path, info.active, info.properties.lock_duration) == (ORDERS, 12, LOCK)


def test_a_count_is_unknown_if_a_shard_does_not_report_it() -> None:
    infos = [EntityInfo(path=ORDERS, active=3, scheduled=1), EntityInfo(path=ORDERS, scheduled=2)]

    whole = summed(ORDERS, infos)

    assert (whole.active, whole.scheduled, whole.deferred) == (None, 3, None)


async def test_messages_are_peeked_shard_after_shard(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        await here.fill(3)
        sharded_queue = sharded(here.memory, FOUR, here.broker.clock)
        found: list[Any] = []
        start = 0
        while page := await sharded_queue.peek(ORDERS, from_sequence=start, limit=5):
            found += page
            start = page[-1].sequence_number + 1

        numbers = [each.sequence_number for each in found]
        assert len(numbers) == 12
        assert numbers == sorted(set(numbers))


async def test_no_message_is_left_out_where_a_namespace_shows_few_at_a_time(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stand() as here:
        await here.fill(3)
        whole = here.memory.peek

        async def peek(entity: EntityPath, *, from_sequence: int, limit: int) -> Sequence[Delivery]:
            return await whole(entity, from_sequence=from_sequence, limit=min(limit, 2))

        monkeypatch.setattr(here.memory, "peek", peek)
        found = await sharded(here.memory, FOUR, here.broker.clock).peek(ORDERS, limit=20)

        assert len(found) == 12


async def test_a_session_is_in_one_shard_and_any_session_is_found(
    autojump_clock: trio.abc.Clock,
) -> None:
    clock = VirtualClock()
    async with MemoryBroker(clock, random.Random(0)) as memory:
        broker = sharded(memory, FOUR, clock)
        await broker.create_queue(ORDERS, QueueProperties(requires_session=True))
        sessions = required(broker, Sessions)
        names = [f"session {number}" for number in range(8)]
        for name in names:
            for body in (b"1", b"2"):
                await broker.send(ORDERS, [Message(body=body, session_id=name)])
        assert await sessions.list_sessions(ORDERS, top=8) == names
        assert await sessions.list_sessions(ORDERS, skip=3, top=2) == names[3:5]

        async with sessions.open_session(ORDERS, names[0]) as session:
            found = await session.receive(5)
            assert [each.message.body for each in found] == [b"1", b"2"]
            await session.set_state(b"half")
            await session.settle(found[0], Complete())
            await session.settle(found[1], Abandon())
        left = set(names)
        while left:
            async with sessions.open_session(ORDERS, None) as session:
                for delivery in await session.receive(5):
                    await session.settle(delivery, Complete())
                left.discard(session.session_id)
        assert (await broker.inspect(ORDERS)).active == 0


async def test_no_session_is_left_out_if_a_namespace_returns_short_pages(
    autojump_clock: trio.abc.Clock,
) -> None:
    clock = VirtualClock()
    async with MemoryBroker(clock, random.Random(0)) as memory:
        broker = sharded(ShortPages(broker=memory), FOUR, clock)
        await broker.create_queue(ORDERS, QueueProperties(requires_session=True))
        names = [f"session {number:02}" for number in range(20)]
        for name in names:
            await broker.send(ORDERS, [Message(session_id=name)])
        sessions = required(broker, Sessions)

        assert await sessions.list_sessions(ORDERS, skip=7, top=9) == names[7:16]
        assert await sessions.list_sessions(ORDERS, top=100) == names


@attrs.define(eq=False, kw_only=True)
class ShortPages(Altered):
    """Returns at most two sessions at once."""

    def open_session(self, *arguments: Any, **options: Any) -> Any:
        return required(self.broker, Sessions).open_session(*arguments, **options)

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        sessions = required(self.broker, Sessions)
        return await sessions.list_sessions(
            entity, updated_since=updated_since, skip=skip, top=min(top, 2)
        )


async def test_a_wait_for_any_session_locks_one_only(autojump_clock: trio.abc.Clock) -> None:
    clock = VirtualClock()
    async with MemoryBroker(clock, random.Random(0)) as memory:
        broker = sharded(memory, FOUR, clock)
        await broker.create_queue(ORDERS, QueueProperties(requires_session=True))
        sessions = required(broker, Sessions)
        with trio.move_on_after(10) as scope:
            async with sessions.open_session(ORDERS, None):
                pass
        assert scope.cancelled_caught

        for name in map(str, range(8)):
            await broker.send(ORDERS, [Message(session_id=name)])
        async with sessions.open_session(ORDERS, None) as first:
            others = set[str]()
            for name in {*map(str, range(8))} - {first.session_id}:
                async with sessions.open_session(ORDERS, name) as other:
                    others.add(other.session_id)
        assert len(others) == 7


async def test_a_session_is_opened_in_its_draining_shard_while_messages_are_there(
    autojump_clock: trio.abc.Clock,
) -> None:
    clock = VirtualClock()
    async with MemoryBroker(clock, random.Random(0)) as memory:
        broker = sharded(memory, FOUR, clock)
        await broker.create_queue(ORDERS, QueueProperties(requires_session=True))
        sessions = required(broker, Sessions)
        queue = broker.table.find(ORDERS)
        assert queue is not None
        name = next(each for each in map(str, range(100)) if queue.shard_of(each) == 2)
        await broker.send(ORDERS, [Message(body=b"old", session_id=name)])
        broker.table.replace([attrs.evolve(FOUR, drain=(2,))])
        await broker.send(ORDERS, [Message(body=b"new", session_id=name)])

        for expected in (b"old", b"new"):
            async with sessions.open_session(ORDERS, name) as session:
                [delivery] = await session.receive(5)
                assert delivery.message.body == expected
                await session.settle(delivery, Complete())


async def test_a_session_of_a_draining_shard_is_found_behind_a_thousand_others(
    autojump_clock: trio.abc.Clock,
) -> None:
    clock = VirtualClock()
    async with MemoryBroker(clock, random.Random(0)) as memory:
        broker = sharded(memory, FOUR, clock)
        await broker.create_queue(ORDERS, QueueProperties(requires_session=True))
        queue = broker.table.find(ORDERS)
        assert queue is not None
        name = next(each for each in map("z{}".format, range(100)) if queue.shard_of(each) == 2)
        ids = [*map("{:04}".format, range(1000)), name]
        await memory.send(ORDERS.shard(2), [Message(session_id=each) for each in ids])
        broker.table.replace([attrs.evolve(FOUR, drain=(2,))])

        with trio.fail_after(5):
            async with required(broker, Sessions).open_session(ORDERS, name) as session:
                assert len(await session.receive(1)) == 1
