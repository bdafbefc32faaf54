"""A receiver of RabbitMQ bounds, settles and renews the deliveries that it holds."""

import attrs
import pytest
import trio
from pamqp import base, commands
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.brokers.meter import Meter
from gateway.brokers.rabbitmq.deliveries import Consumer, Held, lock_token, token_prefix
from gateway.brokers.rabbitmq.unsettled import UnsettledDeliveries
from gateway.domain.billing import Operation
from gateway.domain.errors import NotSupported, OutcomeUnknown, Unavailable
from gateway.domain.message import Delivery, Message
from gateway.net.rabbitmq.channel import Channel
from gateway.wire.rabbitmq.frames import MethodArrived

WEIGHT = 100
LIMIT = 6 * WEIGHT


@attrs.define(eq=False)
class Line:
    """A connection that remembers the written frames."""

    written: list[base.Frame] = attrs.field(factory=list)

    def write(self, channel: int, *methods: base.Frame) -> None:
        self.written += methods

    def forget(self, number: int) -> None:
        pass

    @property
    def asks_for_channels(self) -> bool:
        return False

    async def wait_for_channels(self) -> None:
        pass

    def settled(self) -> list[tuple[str, int | None, bool]]:
        return [
            (type(each).__name__, each.delivery_tag, each.multiple)
            for each in self.written
            if isinstance(each, commands.Basic.Ack | commands.Basic.Nack)
        ]


def unread() -> Meter:
    return Meter(clock=lambda: 0.0)


@attrs.define(eq=False)
class Bench:
    """Held deliveries of the tags from 1 on."""

    line: Line = attrs.field(factory=Line)
    deliveries: UnsettledDeliveries = attrs.field(
        factory=lambda: UnsettledDeliveries(LIMIT, 1, longest_lock=10.0, meter=unread())
    )
    consumer: Consumer = attrs.field(factory=lambda: Consumer("c1", 100))
    channel: Channel = attrs.field(init=False)
    held: list[Held] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.channel = Channel(1, self.line)

    def deliver(self, count: int) -> None:
        for tag in range(1, count + 1):
            delivery = Delivery(
                message=Message(), sequence_number=tag, lock_token=lock_token(token_prefix(1), tag)
            )
            held = Held(
                delivery,
                self.channel,
                tag,
                self.consumer,
                taken=0.0,
                ends=float(tag),
                weight=WEIGHT,
            )
            self.deliveries.add(held)
            self.held.append(held)

    def take(self, *tags: int) -> list[Held]:
        return self.deliveries.claim_all([self.held[tag - 1].delivery for tag in tags])


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.deliver(5)
    return made


def test_the_oldest_are_acknowledged_with_one_word(bench: Bench) -> None:
    bench.deliveries.acknowledge(bench.take(3, 1, 2))

    assert bench.line.settled() == [("Ack", 3, True)]
    assert bench.consumer.unsettled == 2


def test_a_delivery_with_an_older_one_before_it_is_acknowledged_by_itself(bench: Bench) -> None:
    bench.deliveries.acknowledge(bench.take(1, 3, 5))

    assert bench.line.settled() == [("Ack", 1, True), ("Ack", 3, False), ("Ack", 5, False)]


def test_a_delivery_that_somebody_else_settles_is_not_acknowledged_with_younger_ones(
    bench: Bench,
) -> None:
    [burying] = bench.take(1)

    bench.deliveries.acknowledge(bench.take(2, 3))
    bench.deliveries.put_back(burying)

    assert bench.line.settled() == [("Ack", 2, False), ("Ack", 3, False)]
    assert bench.take(1) == [burying]


def test_a_delivery_that_is_given_back_is_not_in_the_way_of_one_word(bench: Bench) -> None:
    bench.deliveries.give_back(bench.take(1))
    bench.deliveries.acknowledge(bench.take(2, 3))

    assert bench.line.settled() == [("Nack", 1, False), ("Ack", 3, True)]


def test_nobody_takes_what_is_taken(bench: Bench) -> None:
    bench.take(2)

    assert bench.take(2) == []


def test_of_a_channel_that_is_lost_nothing_is_settled_on_the_next(bench: Bench) -> None:
    taken = bench.take(1, 2)
    bench.deliveries.lose()
    bench.held.clear()
    bench.deliver(5)  # the next channel counts from 1 again

    bench.deliveries.acknowledge(taken)
    bench.deliveries.put_back(taken[0])

    assert bench.line.settled() == []
    assert bench.take(1) == [bench.held[0]]


def test_the_first_whose_locks_have_run_out_are_taken(bench: Bench) -> None:
    assert [held.tag for held in bench.deliveries.ended(2.0)] == [1, 2]
    assert bench.deliveries.next_end == 3.0


async def test_one_answer_is_asked_for_what_several_have_written(bench: Bench) -> None:
    async with trio.open_nursery() as nursery:
        for tag in (1, 2):
            bench.deliveries.acknowledge(bench.take(tag))
            nursery.start_soon(bench.deliveries.flush, bench.channel)
        await wait_all_tasks_blocked()
        bench.channel.handle(MethodArrived(1, commands.Basic.QosOk()))

    assert [type(each) for each in bench.line.written].count(commands.Basic.Qos) == 1


async def test_without_an_answer_nobody_knows(bench: Bench) -> None:
    bench.deliveries.acknowledge(bench.take(1))

    async def lose() -> None:
        await wait_all_tasks_blocked()
        bench.channel.fail(Unavailable("the connection was lost"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose)
        with pytest.raises(OutcomeUnknown):
            await bench.deliveries.flush(bench.channel)


def test_the_table_is_full_at_so_many_bytes_and_a_settlement_makes_room(bench: Bench) -> None:
    bench.held.clear()
    bench.deliveries.lose()
    bench.deliver(6)
    was_full = bench.deliveries.is_full
    bench.deliveries.give_back(bench.take(3))

    assert was_full
    assert not bench.deliveries.is_full


def test_the_table_is_full_at_so_many_deliveries() -> None:
    bench = Bench(deliveries=UnsettledDeliveries(LIMIT, 1, max_deliveries=3, meter=unread()))
    bench.deliver(3)

    assert bench.deliveries.is_full


def test_a_forgotten_delivery_weighs_nothing_and_is_still_locked(bench: Bench) -> None:
    bench.deliver(1)  # the sixth
    for each in bench.held:
        bench.deliveries.forget_message(each.delivery)

    assert not bench.deliveries.is_full
    assert bench.take(2)[0].delivery.message == Message()


def test_a_channel_that_is_lost_makes_room() -> None:
    bench = Bench()
    bench.deliver(6)
    bench.deliveries.lose()

    assert not bench.deliveries.is_full


def test_room_is_judged_by_the_heaviest_of_late() -> None:
    bench = Bench(deliveries=UnsettledDeliveries(LIMIT, LIMIT // 2, meter=unread()))
    at_first = bench.deliveries.room_for(100)
    bench.deliver(1)

    assert at_first == 2
    assert bench.deliveries.room_for(100) == 1  # 500 bytes, of which the next one may take some 260
    bench.deliveries.give_back(bench.take(1))
    for _ in range(20):
        bench.held.clear()
        bench.deliver(1)
        bench.deliveries.give_back(bench.take(1))
    assert bench.deliveries.room_for(100) == 6


async def test_a_receiver_that_waits_for_room_goes_on_when_there_is_some(
    autojump_clock: MockClock,
) -> None:
    bench = Bench()
    bench.deliver(6)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.deliveries.wait_for_room)
            await wait_all_tasks_blocked()
            bench.deliveries.acknowledge(bench.take(1))


async def test_a_renewed_lock_ends_last(bench: Bench) -> None:
    for each in bench.held:
        each.taken = trio.current_time()
    bench.deliveries.renew(bench.held[0].delivery, 9.0)

    assert bench.deliveries.next_end == 2.0
    assert [held.tag for held in bench.deliveries.ended(5.0)] == [2, 3, 4, 5]


async def test_no_lock_is_renewed_past_the_longest_one(bench: Bench) -> None:
    bench.held[0].taken = trio.current_time()
    with pytest.raises(NotSupported, match="longest_lock"):
        bench.deliveries.renew(bench.held[0].delivery, 10.5)

    assert bench.deliveries.next_end == 1.0


def test_a_handed_out_message_counts_as_received_and_each_settlement_as_one(bench: Bench) -> None:
    bench.deliveries.hand_out(bench.held[:3])
    bench.deliveries.acknowledge(bench.take(1, 3))
    bench.deliveries.give_back(bench.take(2))
    usage = bench.deliveries.meter.usage()

    assert (usage.received, usage.operations[Operation.SETTLE]) == (3, 3)
