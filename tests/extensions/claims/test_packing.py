"""Many small messages as one message: sent together, received and settled each by itself."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    OutcomeUnknown,
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
from gateway.domain.storage_queue import Terms
from gateway.extensions.claims import pack as packs
from gateway.extensions.claims.compression import compressed
from gateway.extensions.claims.pack import is_pack
from gateway.extensions.claims.packing import PackedBroker
from gateway.extensions.claims.unpacking import as_peeked
from gateway.forwarding_broker import ForwardingBroker
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.ports import Broker
from tests.extensions.claims.harness import (
    A_DAY,
    CODEC,
    LARGE,
    ORDERS,
    Harness,
    open_harness,
    packing,
    virtual_time,
)
from tests.harness.clocks import START, VirtualClock
from tests.harness.faults import LoseAnswer, Operation, Refuse, SwallowAnswer

pytestmark = virtual_time


@attrs.define(eq=False, kw_only=True)
class Picky(ForwardingBroker):
    """A namespace that takes no messages of which that is true."""

    inner: Broker
    refuses: Callable[[Sequence[Message]], bool]

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await trio.lowlevel.checkpoint()
        if self.refuses(messages):
            raise InvalidRequest("not that")
        await self.inner.send(entity, messages)


@asynccontextmanager
async def packed(harness: Harness | Picky, **options: Any) -> AsyncIterator[PackedBroker]:
    broker = packing(harness.broker if isinstance(harness, Harness) else harness, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        yield broker
        nursery.cancel_scope.cancel()


def numbered(count: int, **fields: Any) -> list[Message]:
    return [Message(message_id=str(n), body=b"small %d" % n, **fields) for n in range(count)]


async def taken(broker: PackedBroker, count: int, settlement: Any = None) -> list[Message]:
    found = []
    with trio.fail_after(A_DAY):
        async with broker.open_receiver(ORDERS) as receiver:
            while len(found) < count:
                for delivery in await receiver.receive(count - len(found)):
                    found.append(delivery)
                    await receiver.settle(delivery, settlement or Complete())
    return [each.message for each in found]


# --- sending


async def test_messages_sent_at_about_the_same_time_are_one_message(harness: Harness) -> None:
    messages = numbered(10, properties={"n": 1.5}, correlation_id="c")
    async with packed(harness) as broker:
        async with trio.open_nursery() as nursery:
            for message in messages:
                nursery.start_soon(broker.send, ORDERS, [message])

        (pack,) = await harness.raw()
        assert packs.is_pack(pack)
        found = await taken(broker, 10)
        assert await harness.raw() == []

    assert sorted(found, key=lambda each: each.message_id) == messages


async def test_a_message_that_is_alone_is_no_pack(harness: Harness) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(1))

    assert await harness.raw() == numbered(1)


async def test_a_send_returns_when_its_pack_is_accepted_and_not_before(harness: Harness) -> None:
    async with packed(harness, wait=5.0) as broker:
        await broker.send(ORDERS, numbered(2))
        assert trio.current_time() == 5.0
        assert len(await harness.raw()) == 1


async def test_a_full_pack_waits_for_nobody(harness: Harness) -> None:
    async with packed(harness, wait=60.0, max_messages=2) as broker:
        await broker.send(ORDERS, numbered(2))

    assert trio.current_time() == 0.0


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": "s"},
        {"scheduled": START + timedelta(hours=1)},
        {"time_to_live": timedelta(hours=1)},
        {"partition_key": "p"},
    ],
)
async def test_a_message_that_the_queue_must_know_of_is_not_packed(
    harness: Harness, fields: dict[str, Any]
) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(2, **fields))

    assert not any(packs.is_pack(each) for each in await harness.raw())
    assert len(await harness.raw()) == 2


async def test_large_messages_and_other_queues_are_not_packed(harness: Harness) -> None:
    async with packed(harness, match="telemetry/*") as broker:
        await broker.send(ORDERS, numbered(2))
    async with packed(harness, max_pack=1024) as broker:
        await broker.send(ORDERS, [Message(body=LARGE), Message(body=LARGE)])

    assert not any(packs.is_pack(each) for each in await harness.raw())


@pytest.mark.parametrize(
    ("fault", "error"), [(Refuse(), Unavailable), (LoseAnswer(), OutcomeUnknown)]
)
async def test_all_of_a_pack_have_its_outcome(
    harness: Harness, fault: Any, error: type[BrokerError]
) -> None:
    harness.faulty.fault = lambda operation, entity: fault
    errors = []

    async def send(broker: PackedBroker, message: Message) -> None:
        try:
            await broker.send(ORDERS, [message])
        except BrokerError as found:
            errors.append(type(found))

    async with packed(harness) as broker, trio.open_nursery() as nursery:
        for message in numbered(3):
            nursery.start_soon(send, broker, message)
        nursery.start_soon(trio.sleep, 1)

    assert errors == [error] * 3


async def test_none_is_refused_for_the_message_of_another(harness: Harness) -> None:
    refused = {}

    def of_two(messages: Sequence[Message]) -> bool:
        return any(is_pack(each) or each.message_id == "1" for each in messages)

    async with packed(Picky(inner=harness.broker, refuses=of_two)) as broker:

        async def send(message: Message) -> None:
            try:
                await broker.send(ORDERS, [message])
            except InvalidRequest as error:
                refused[message.message_id] = error

        async with trio.open_nursery() as nursery:
            for message in numbered(3):
                nursery.start_soon(send, message)

    assert [*refused] == ["1"]
    assert sorted(str(each.message_id) for each in await harness.raw()) == ["0", "2"]


async def test_a_pack_that_is_sent_anew_one_by_one_has_its_time_too(harness: Harness) -> None:
    async with packed(Picky(inner=harness.broker, refuses=lambda sent: is_pack(sent[0]))) as broker:
        harness.faulty.fault = lambda operation, entity: SwallowAnswer()
        with pytest.raises(OutcomeUnknown):
            await broker.send(ORDERS, numbered(2))


async def test_a_pack_without_an_answer_is_unknown(harness: Harness) -> None:
    harness.faulty.fault = lambda operation, entity: SwallowAnswer()
    async with packed(harness) as broker:
        with pytest.raises(OutcomeUnknown, match="30 s"):
            await broker.send(ORDERS, numbered(2))


async def test_a_caller_that_gives_up_while_others_are_gathered_sends_nothing(
    harness: Harness,
) -> None:
    async with packed(harness, wait=5.0) as broker, trio.open_nursery() as nursery:
        nursery.start_soon(broker.send, ORDERS, numbered(2))
        with trio.move_on_after(1):
            await broker.send(ORDERS, [Message(message_id="given up")])

        found = await taken(broker, 2)
        assert {each.message_id for each in found} == {"0", "1"}


async def test_a_later_caller_that_gives_up_takes_nothing_from_the_others(harness: Harness) -> None:
    harness.faulty.latency = lambda: 10.0
    async with packed(harness) as broker, trio.open_nursery() as nursery:
        nursery.start_soon(broker.send, ORDERS, numbered(2))
        with trio.move_on_after(5):
            await broker.send(ORDERS, [Message(message_id="unknown")])
        await trio.sleep(30)
        harness.faulty.latency = lambda: 0.0

        assert {each.message_id for each in await taken(broker, 3)} == {"0", "1", "unknown"}


async def test_when_the_gateway_ends_nobody_believes_that_it_was_sent(harness: Harness) -> None:
    broker = packing(harness.broker, wait=60.0)
    errors = []

    async def send() -> None:
        try:
            await broker.send(ORDERS, numbered(2))
        except BrokerError as error:
            errors.append(type(error))

    async with trio.open_nursery() as senders, trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        senders.start_soon(send)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert errors == [Unavailable]
    assert await harness.raw() == []


async def test_nobody_forges_a_pack(harness: Harness) -> None:
    async with packed(harness) as broker:
        with pytest.raises(InvalidRequest, match=packs.PACK):
            await broker.send(ORDERS, [Message(properties={packs.PACK: "1"})])


# --- receiving and settling


async def test_messages_of_a_pack_come_up_to_the_limit_with_tokens_of_their_own(
    harness: Harness,
) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(5))
        async with broker.open_receiver(ORDERS) as receiver:
            together = [await receiver.receive(2) for _ in range(3)]

    assert [[each.message.message_id for each in some] for some in together] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
    ]
    assert len({each.lock_token for some in together for each in some}) == 5


async def test_an_uncompleted_message_comes_again_with_its_pack(harness: Harness) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(3))
        async with broker.open_receiver(ORDERS) as receiver:
            for delivery in (await receiver.receive(3))[:2]:
                await receiver.settle(delivery, Complete())

        again = await taken(broker, 3)

    assert {each.message_id for each in again} == {"0", "1", "2"}


async def test_an_abandoned_message_comes_again_alone(harness: Harness) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(3))
        async with broker.open_receiver(ORDERS) as receiver:
            first, *others = await receiver.receive(3)
            await receiver.settle(first, Abandon(properties={"tried": 1}))
            for delivery in others:
                await receiver.settle(delivery, Complete())

    (left,) = await harness.raw()
    assert left == attrs.evolve(numbered(1)[0], properties={"tried": 1})


async def test_a_poisonous_message_ends_among_the_dead_letters_alone(harness: Harness) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(3))
        for _ in range(2):
            async with broker.open_receiver(ORDERS) as receiver:
                for delivery in await receiver.receive(3):
                    bad = delivery.message.message_id == "1"
                    settlement = DeadLetter(reason="bad") if bad else Complete()
                    await receiver.settle(delivery, settlement)

    assert await harness.raw() == []
    (dead,) = await harness.raw(ORDERS.dead_letter)
    assert dead.message_id == "1"
    assert dead.properties["DeadLetterReason"] == "bad"


async def test_a_message_whose_pack_was_lost_cannot_be_settled(harness: Harness) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(3))
        async with broker.open_receiver(ORDERS) as receiver:
            first, second, _ = await receiver.receive(3)
            await trio.sleep(50)
            await receiver.renew(second)
            await trio.sleep(50)
            await receiver.settle(first, Complete())
            await trio.sleep(50)
            with pytest.raises(LockLost):
                await receiver.settle(second, Complete())
            assert len(await receiver.receive(3)) == 3


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
@pytest.mark.parametrize("is_set", ["before", "while it is held"])
async def test_a_pack_is_settled_whatever_the_clock_says(
    harness: Harness, ahead: float, is_set: str
) -> None:
    clock = VirtualClock()
    skews = {"before": (ahead, ahead), "while it is held": (0.0, ahead)}
    before, after = (timedelta(seconds=each) for each in skews[is_set])
    async with packed(harness, clock=clock) as broker:
        await broker.send(ORDERS, numbered(3))
        async with broker.open_receiver(ORDERS) as receiver:
            clock.skew = before
            found = list(await receiver.receive(1))
            clock.skew = after
            await trio.sleep(50)  # of a lock of 60 s
            found += await receiver.receive(2)
            await trio.sleep(50)
            for delivery in found:
                await receiver.settle(delivery, Complete())

    assert [each.message.message_id for each in found] == ["0", "1", "2"]
    assert await harness.raw() == []


@pytest.mark.parametrize("ahead", [-7200.0, 0.0, 7200.0])
async def test_a_short_lock_that_ran_out_is_seen_when_more_of_its_pack_is_wanted(
    ahead: float,
) -> None:
    async with open_harness(QueueProperties(lock_duration=timedelta(seconds=5))) as harness:
        clock = VirtualClock(timedelta(seconds=ahead))
        async with packed(harness, clock=clock) as broker:
            await broker.send(ORDERS, numbered(2))
            async with broker.open_receiver(ORDERS) as receiver:
                await receiver.receive(1)
                await trio.sleep(40)
                again = await receiver.receive(2)

    assert [each.message.message_id for each in again] == ["0", "1"]


async def test_a_pack_in_the_dead_letters_is_taken_apart_and_goes_when_all_are_done(
    harness: Harness,
) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(2))
        async with harness.plain.open_receiver(ORDERS) as receiver:
            (delivery,) = await receiver.receive(1)
            await receiver.settle(delivery, DeadLetter(reason="bad"))

        async with broker.open_receiver(ORDERS.dead_letter) as receiver:
            first, second = await receiver.receive(5)
            assert first.message.message_id == "0"
            await receiver.settle(first, Abandon())
            await receiver.settle(second, Complete())
            first, second = await receiver.receive(5)
            for delivery in (first, second):
                await receiver.settle(delivery, Complete())

    assert await harness.raw(ORDERS.dead_letter) == []


async def test_a_pack_is_deleted_when_its_last_message_is_taken(harness: Harness) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(3))
        async with broker.open_receiver(ORDERS, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            assert len(await receiver.receive(2)) == 2
            assert len(await harness.raw()) == 1
            (last,) = await receiver.receive(2)

    assert last.lock_token is None
    assert await harness.raw() == []


@pytest.mark.parametrize(
    ("body", "size"),
    [(b"no zstd", "7"), (b"", "x"), (b"", "0"), (b"", str(2**40)), (LARGE, "5")],
)
async def test_a_damaged_pack_is_a_dead_letter(harness: Harness, body: bytes, size: str) -> None:
    message = Message(message_id="p", body=body, properties={packs.PACK: "1", packs.SIZE: size})
    await harness.plain.send(ORDERS, [message, Message(message_id="good")])

    async with packed(harness) as broker:
        found = await taken(broker, 1)

    assert [each.message_id for each in found] == ["good"]
    (dead,) = await harness.raw(ORDERS.dead_letter)
    assert dead.properties["DeadLetterReason"] == "PackCorrupt"


async def test_a_peek_sees_the_messages(harness: Harness) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(3))
        over = packing(attrs.evolve(harness.broker, broker=harness.plain))

        peeked = await over.peek(EntityPath("orders"), limit=10)

    assert [each.message.message_id for each in peeked] == ["0", "1", "2"]


async def test_a_peek_takes_packs_apart_up_to_a_number_of_bytes() -> None:
    bomb = packs.joined([CODEC.encode(Message(message_id="0", body=bytes(10_000)))])
    pack = packs.pack_of(compressed(bomb), len(bomb), "bomb")
    sent = [
        Delivery(message=each, sequence_number=number)
        for number, each in enumerate([pack, pack, Message(message_id="good"), pack])
    ]

    peeked = as_peeked(CODEC, sent, 2 * len(bomb))

    assert [each.message.message_id for each in peeked] == ["0", "0", "good", "bomb"]


@pytest.mark.parametrize("mode", list(ReceiveMode))
async def test_several_tasks_may_receive_at_once(harness: Harness, mode: ReceiveMode) -> None:
    found = []

    async def take(receiver: Any) -> None:
        while True:
            for delivery in await receiver.receive(3):
                found.append(delivery.message.message_id)
                if mode is ReceiveMode.PEEK_LOCK:
                    await receiver.settle(delivery, Complete())

    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(20))
        async with broker.open_receiver(ORDERS, mode) as receiver, trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(take, receiver)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()

    assert sorted(found) == sorted(str(n) for n in range(20))
    assert await harness.raw() == []


@pytest.mark.parametrize("mode", list(ReceiveMode))
async def test_a_message_of_a_pack_that_one_task_leaves_is_for_others_that_wait(
    harness: Harness, mode: ReceiveMode
) -> None:
    found: list[Delivery] = []

    async def take_one(receiver: Any) -> None:
        found.extend(await receiver.receive(1))

    async with (
        packed(harness) as broker,
        broker.open_receiver(ORDERS, mode) as receiver,
        trio.open_nursery() as nursery,
    ):
        for _ in range(4):
            nursery.start_soon(take_one, receiver)
        await trio.sleep(1)
        await broker.send(ORDERS, numbered(3))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert sorted(each.message.message_id for each in found) == ["0", "1", "2"]


async def test_a_client_that_hides_messages_of_one_pack_settles_each_by_itself(
    harness: Harness,
) -> None:
    """As over Storage Queue, where a receipt names a number, and a pack has just one."""
    clock = VirtualClock()
    terms = Terms(hidden=timedelta(seconds=10))
    async with packed(harness) as broker, trio.open_nursery() as nursery:
        leases = Leases(broker, clock)
        visibility = LeasedVisibility(broker, leases, clock)
        await nursery.start(leases.run)
        await nursery.start(visibility.run)
        await broker.send(ORDERS, numbered(4))

        first, second, third, last = await visibility.dequeue(ORDERS, 4, lambda _: terms)
        for peeked in (first, third, last):
            assert peeked.receipt is not None
            await visibility.remove(ORDERS, peeked.receipt)
        await trio.sleep(11)
        (again,) = await visibility.dequeue(ORDERS, 4, lambda _: terms)
        assert second.receipt is not None
        with pytest.raises(MessageNotFound):
            await visibility.remove(ORDERS, second.receipt)
        nursery.cancel_scope.cancel()

    assert again.delivery.message.message_id == "1"


async def test_a_pack_of_too_many_messages_is_damaged(harness: Harness) -> None:
    body = compressed(packs.joined([b""] * (packs.MAX_MEMBERS + 1)))
    size = (packs.MAX_MEMBERS + 1) * packs.OVERHEAD
    await harness.plain.send(
        ORDERS, [packs.pack_of(body, size, "bomb"), Message(message_id="good")]
    )

    async with packed(harness) as broker:
        (good,) = await taken(broker, 1)

    assert good.message_id == "good"
    assert [each.message_id for each in await harness.raw(ORDERS.dead_letter)] == ["bomb"]


async def test_a_message_deleted_for_a_caller_that_gave_up_goes_to_the_next_caller(
    harness: Harness,
) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(3))
        await broker.send(ORDERS, [Message(message_id="3")])
        async with broker.open_receiver(ORDERS, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            harness.faulty.fault = lambda operation, entity: (
                SwallowAnswer() if operation is Operation.SETTLE else None
            )
            with trio.move_on_after(1):
                await receiver.receive(5)
            harness.faulty.fault = lambda operation, entity: None
            found = [each.message.message_id for each in await receiver.receive(5)]

    assert found == ["0", "1"]


async def test_a_slow_receiver_sees_each_message_of_a_pack_once(harness: Harness) -> None:
    found = []
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(20))
        async with broker.open_receiver(ORDERS) as receiver:
            for _ in range(20):
                (delivery,) = await receiver.receive(1)
                await trio.sleep(10)  # of a lock of 60 s
                await receiver.settle(delivery, Complete())
                found.append(delivery.message.message_id)

    assert found == [str(n) for n in range(20)]
    assert await harness.raw() == []


@pytest.mark.parametrize("mode", list(ReceiveMode))
async def test_a_pack_that_was_put_aside_comes_back_as_its_messages(
    harness: Harness, mode: ReceiveMode
) -> None:
    async with packed(harness) as broker:
        await broker.send(ORDERS, numbered(3))
        async with harness.plain.open_receiver(ORDERS) as plain:
            (pack,) = await plain.receive(1)
            await plain.settle(pack, Defer())
        async with broker.open_receiver(ORDERS, mode) as receiver:
            found = await receiver.receive_deferred([pack.sequence_number])
            if mode is ReceiveMode.PEEK_LOCK:
                for each in found:
                    await receiver.settle(each, Complete())

    assert [each.message.message_id for each in found] == ["0", "1", "2"]
    assert await harness.raw() == []
