"""A receiver of RabbitMQ limits the messages that it takes of a broker that always has more."""

import itertools
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from pamqp import base, commands
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.brokers.rabbitmq.deliveries import token_prefix
from gateway.brokers.rabbitmq.receiver import LINGER_IF_CUT, RabbitmqReceiver
from gateway.brokers.rabbitmq.unsettled import MAX_DELIVERIES, UnsettledDeliveries
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported
from gateway.domain.message import Abandon, Complete, DeadLetter, Delivery, Message, ReceiveMode
from gateway.net.rabbitmq.channel import Channel
from gateway.wire.rabbitmq.frames import ContentArrived, Deliver, MethodArrived
from gateway.wire.rabbitmq.properties import CopyId, prepare
from tests.harness.clocks import VirtualClock

ORDERS = EntityPath("orders")
BODY = b"x" * 1000
HEADER = 100  # bytes at most that come on top
LOCK = 300.0
DAY = 86400.0


@attrs.define(eq=False)
class Node:
    """
    A queue with messages without end: each consumer gets as many as it may have unsettled, `delay`
    seconds after it was asked for, and `lag` seconds after the answers.
    """

    body: bytes = BODY
    delay: float = 0.0
    lag: float = 0.0
    channel: Channel = attrs.field(init=False)
    unsettled: dict[int, str] = attrs.field(factory=dict)  # tag -> consumer
    prefetch: dict[str, int] = attrs.field(factory=dict)
    returned: int = 0
    most: int = 0  # unsettled at the same time
    answered: trio.Event = attrs.field(factory=trio.Event)  # the connection asks for no channel
    opening: trio.Event | None = None  # the answer to an open channel waits for it
    is_closed: bool = False
    _tag: int = 0
    _asked: int = 0
    _turns: Iterator[int] = attrs.field(factory=itertools.count)

    def __attrs_post_init__(self) -> None:
        self.channel = Channel(1, self)
        self.answered.set()

    async def open(self) -> Channel:
        await trio.lowlevel.checkpoint()
        if self.opening is not None:
            with trio.CancelScope(shield=True):  # a cancellation comes when the answer is there
                await self.opening.wait()
        return self.channel

    async def name_of(self, entity: EntityPath) -> str:
        return entity.key  # at once, as of a name that needs no request

    async def dead_letter(self, entity: EntityPath, message: Message) -> None:
        raise AssertionError("nothing is buried")

    def forget(self, _: Any) -> None:
        pass

    @property
    def asks_for_channels(self) -> bool:
        return not self.answered.is_set()

    async def wait_for_channels(self) -> None:
        await self.answered.wait()

    def write(self, _: int, *methods: base.Frame) -> None:
        if not self.delay:
            self._answer_all(methods)
            return

        async def answer_late(turn: int) -> None:
            await trio.sleep(self.delay + turn * 1e-6)  # in their order
            self._answer_all(methods)

        trio.lowlevel.spawn_system_task(answer_late, next(self._turns))

    def _answer_all(self, methods: Sequence[base.Frame]) -> None:
        for method in methods:
            match method:
                case commands.Basic.Qos(prefetch_count=count):
                    self._asked = count
                    self._answer(commands.Basic.QosOk())
                case commands.Basic.Consume(consumer_tag=tag):
                    self.prefetch[tag] = self._asked
                    self._answer(commands.Basic.ConsumeOk(consumer_tag=tag))
                case commands.Basic.Cancel(consumer_tag=tag):
                    self.prefetch.pop(tag, None)
                    self._answer(commands.Basic.CancelOk(consumer_tag=tag))
                case commands.Channel.Close():
                    self.is_closed = True
                    self.prefetch.clear()
                case commands.Basic.Ack(delivery_tag=tag, multiple=multiple):
                    self._settle(tag, multiple=multiple)
                case commands.Basic.Nack(delivery_tag=tag, multiple=multiple):
                    self.returned += 1
                    self._settle(tag or self._tag, multiple=multiple)
        if self.lag:
            trio.lowlevel.spawn_system_task(self._push_late)
        else:
            trio.lowlevel.current_trio_token().run_sync_soon(self.push)

    async def _push_late(self) -> None:
        await trio.sleep(self.lag)
        self.push()

    def push(self) -> None:
        for consumer, prefetch in list(self.prefetch.items()):
            has = list(self.unsettled.values()).count(consumer)
            for _ in range(prefetch - has):
                self.deliver(consumer)

    def deliver(self, consumer: str) -> None:
        self._tag += 1
        self.unsettled[self._tag] = consumer
        self.most = max(self.most, len(self.unsettled))
        method = Deliver(consumer, self._tag, False)
        outgoing = prepare(Message(message_id="1", body=self.body))
        header = outgoing.header(CopyId(1, self._tag, "a"))
        self.channel.handle(ContentArrived(1, method, header, self.body))

    def _answer(self, method: base.Frame) -> None:
        answer = MethodArrived(1, method)
        trio.lowlevel.current_trio_token().run_sync_soon(self.channel.handle, answer)

    def _settle(self, tag: int, *, multiple: bool) -> None:
        for each in [tag] if not multiple else [one for one in self.unsettled if one <= tag]:
            self.unsettled.pop(each, None)


@pytest.fixture
def node() -> Node:
    return Node()


@asynccontextmanager
async def receiving(
    node: Node, *, max_bytes: int = 50_000, longest_lock: float = math.inf, heaviest: int = 1000
) -> AsyncIterator[RabbitmqReceiver]:
    receiver = RabbitmqReceiver(
        entity=ORDERS,
        mode=ReceiveMode.PEEK_LOCK,
        channels=node,
        dead_letters=node,
        clock=VirtualClock(),
        lock_duration=LOCK,
        deliveries=UnsettledDeliveries(max_bytes, heaviest, longest_lock=longest_lock),
        token_prefix=token_prefix(1),
        spawn=trio.lowlevel.spawn_system_task,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.tend)
        with trio.fail_after(DAY):
            yield receiver
        nursery.cancel_scope.cancel()


async def hoard(receiver: RabbitmqReceiver, limit: int = 100) -> list[Delivery]:
    """
    All messages that the receiver hands out, in a tenth of a lock, to a consumer that settles
    nothing.
    """
    taken: list[Delivery] = []
    with trio.move_on_after(LOCK / 10):
        while True:
            taken += await receiver.receive(limit)
    return taken


async def test_a_receiver_that_settles_nothing_gets_no_more_than_may_be_held(
    node: Node, autojump_clock: MockClock
) -> None:
    async with receiving(node) as receiver:
        taken = await hoard(receiver)

    assert 50_000 / (len(BODY) + HEADER) < len(taken) <= 50_000 / len(BODY) + 1


async def test_small_messages_are_limited_by_their_number(
    node: Node, autojump_clock: MockClock
) -> None:
    node.body = b""
    async with receiving(node, max_bytes=64 * 1024 * 1024) as receiver:
        taken = await hoard(receiver, 1000)

    assert len(taken) == MAX_DELIVERIES


async def test_one_message_is_handed_over_however_large_it_is(
    node: Node, autojump_clock: MockClock
) -> None:
    node.body = b"x" * 100_000
    async with receiving(node) as receiver:
        taken = await hoard(receiver)

    assert len(taken) == 1


async def test_before_the_first_has_come_few_large_ones_may_be_on_their_way(
    node: Node, autojump_clock: MockClock
) -> None:
    node.body = b"x" * 10_000
    async with receiving(node, heaviest=25_000) as receiver:
        await receiver.receive(100)
        at_first = node.most
        await hoard(receiver)

    assert at_first == 2
    assert node.returned == 0


async def test_a_delivery_heavier_than_expected_is_given_back_and_comes_no_more(
    node: Node, autojump_clock: MockClock
) -> None:
    node.body = b"x" * 10_000
    async with receiving(node, heaviest=1) as receiver:
        taken = await hoard(receiver)
        held = len(node.unsettled)

    assert len(taken) == held == 5
    assert node.returned == 95


@pytest.mark.parametrize("settlement", [Complete(), Abandon()], ids=repr)
async def test_a_settled_delivery_makes_room_at_once(
    node: Node, autojump_clock: MockClock, settlement: Any
) -> None:
    async with receiving(node) as receiver:
        taken = await hoard(receiver)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receiver.receive, 1)
            await wait_all_tasks_blocked()
            await receiver.settle(taken[3], settlement)

        assert trio.current_time() - began < 1


async def test_a_receiver_that_holds_everything_goes_on_when_the_locks_end(
    node: Node, autojump_clock: MockClock
) -> None:
    async with receiving(node) as receiver:
        began = trio.current_time()
        await hoard(receiver)
        await receiver.receive(1)

        assert trio.current_time() - began <= LOCK + 1


async def test_a_forgotten_delivery_makes_room_and_can_be_given_back(
    node: Node, autojump_clock: MockClock
) -> None:
    async with receiving(node) as receiver:
        first = await hoard(receiver)
        for each in first:
            receiver.forget_message(each)
        second = await hoard(receiver)
        await receiver.settle(first[0], Abandon())

        assert len(second) == len(first)


async def test_a_forgotten_delivery_can_not_be_dead_lettered_and_is_held_yet(
    node: Node, autojump_clock: MockClock
) -> None:
    async with receiving(node) as receiver:
        [delivery] = await receiver.receive(1)
        receiver.forget_message(delivery)
        with pytest.raises(NotSupported):
            await receiver.settle(delivery, DeadLetter(reason="bad"))
        await receiver.settle(delivery, Complete())


async def test_a_prefetch_that_was_too_careful_grows(node: Node, autojump_clock: MockClock) -> None:
    async with receiving(node, heaviest=25_000) as receiver:
        sizes = []
        for _ in range(20):
            deliveries = await receiver.receive(20)
            sizes.append(len(deliveries))
            await receiver.settle_many([(each, Complete()) for each in deliveries])

    assert sizes[0] == 2
    assert sizes[-1] > 10  # less than twice as many isn't worth another consumer


async def test_a_receive_does_not_wait_for_more_than_its_consumer_may_get(
    node: Node, autojump_clock: MockClock
) -> None:
    """As one that receives and deletes: all is settled, and the prefetch is that of the first."""
    node.lag = 1e-4
    async with receiving(node) as receiver:
        began, sizes = trio.current_time(), []
        for limit in (1, 2, 4, 8, 16):
            deliveries = await receiver.receive(limit)
            sizes.append(len(deliveries))
            await receiver.settle_many([(each, Complete()) for each in deliveries])

        assert trio.current_time() - began == pytest.approx(5 * node.lag)
        assert sizes == [1, 1, 4, 4, 16]  # a receive may find what the prefetch before it got


async def test_a_lock_is_renewed_until_the_longest_one(
    node: Node, autojump_clock: MockClock
) -> None:
    async with receiving(node, longest_lock=2 * LOCK) as receiver:
        [delivery] = await receiver.receive(1)
        await trio.sleep(0.8 * LOCK)
        until = await receiver.renew(delivery)
        await trio.sleep(0.8 * LOCK)
        with pytest.raises(NotSupported):
            await receiver.renew(delivery)
        await receiver.settle(delivery, Complete())

    assert delivery.locked_until is not None
    assert (until - delivery.locked_until).total_seconds() == pytest.approx(0.8 * LOCK)


async def test_several_that_receive_at_once_all_go_on(
    node: Node, autojump_clock: MockClock
) -> None:
    counts = [0, 0, 0]

    async def work(receiver: RabbitmqReceiver, place: int) -> None:
        while counts[place] < 200:
            deliveries = await receiver.receive(20)
            counts[place] += len(deliveries)
            await trio.sleep(0.1 * place)
            for each in deliveries:
                await receiver.settle(each, Complete())

    async with receiving(node, max_bytes=10_000, heaviest=5_000) as receiver:
        with trio.fail_after(LOCK / 2):
            async with trio.open_nursery() as nursery:
                for place in range(3):
                    nursery.start_soon(work, receiver, place)

    assert min(counts) >= 200


async def test_a_late_delivery_of_a_consumer_that_has_ended_is_not_kept(
    node: Node, autojump_clock: MockClock
) -> None:
    async with receiving(node) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Complete())
        await trio.sleep(2)
        node.returned = 0
        node.deliver("c0")
        await trio.sleep(2)

    assert node.returned == 1


@pytest.mark.parametrize("pause", [0.0, 0.5, 3.0])
async def test_receives_that_end_before_the_broker_has_answered_do_not_begin_from_zero(
    pause: float, node: Node, autojump_clock: MockClock
) -> None:
    node.delay = 1.5
    taken = 0
    async with receiving(node) as receiver:
        for _ in range(20):
            with trio.move_on_after(1.0):
                taken += len(await receiver.receive(1))
            await trio.sleep(pause)

    assert taken >= 3


async def test_messages_for_a_receive_that_ended_early_are_given_back_if_none_follows(
    node: Node, autojump_clock: MockClock
) -> None:
    node.delay = 1.5
    async with receiving(node) as receiver:
        with trio.move_on_after(1.0):
            await receiver.receive(1)
        await trio.sleep(2)
        held = len(node.unsettled)
        await trio.sleep(LINGER_IF_CUT + 10 * node.delay)

        assert (held, len(node.unsettled), node.prefetch) == (1, 0, {})


async def test_no_message_is_handed_out_while_its_connection_asks_for_a_channel(
    node: Node, autojump_clock: MockClock
) -> None:
    node.answered = trio.Event()
    async with receiving(node) as receiver:
        with trio.move_on_after(1) as refused:
            await receiver.receive(1)
        assert refused.cancelled_caught
        assert node.channel.holds()  # what arrived isn't with a client yet

        node.answered.set()
        assert len(await receiver.receive(1)) == 1


async def test_a_receiver_that_ends_as_its_channel_opens_leaves_no_consumer_with_messages(
    node: Node, autojump_clock: MockClock
) -> None:
    node.opening = trio.Event()
    async with receiving(node) as receiver:
        with trio.move_on_after(1):
            await receiver.receive(1)
        await receiver.give_back()
        receiver.close()
        node.opening.set()
        await trio.sleep(1)

    assert (node.is_closed, node.prefetch, node.most) == (True, {}, 0)
