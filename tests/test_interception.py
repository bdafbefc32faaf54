"""Interceptors are told each call of a namespace and of its receivers, in the order of the list."""

import random
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gateway.capabilities import SendsMany, Sessions, SettlesMany, address_of
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, Busy, EntityNotFound, LockLost, Unavailable
from gateway.domain.message import Complete, Message, ReceiveMode
from gateway.interception import Call, CallKind, Interceptor, SplittingInterceptor
from gateway.interception.broker import InterceptedBroker
from gateway.offering import required
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker, Hang

ORDERS = EntityPath("orders")
SESSIONS = EntityPath("sessions")


@attrs.define(eq=False)
class Recorder(Interceptor):
    """Writes what it is told into a list that several share."""

    name: str
    told: list[str]

    kinds: ClassVar[frozenset[CallKind]] = frozenset(CallKind)

    def before(self, call: Call) -> Awaitable[None] | None:
        self.told.append(f"{self.name} before {call.kind.name}")
        return None

    def after(self, call: Call, result: Any) -> None:
        self.told.append(f"{self.name} after {call.kind.name} {result}")

    def error(self, call: Call, error: BaseException) -> None:
        self.told.append(f"{self.name} {type(error).__name__} {call.kind.name}")


class SendRecorder(Recorder):
    kinds = frozenset((CallKind.SEND,))


@attrs.define(eq=False)
class Gate(Interceptor):
    """Refuses the call, or makes it wait."""

    refuses: BrokerError | None = None
    opened: trio.Event | None = None
    seen: list[Call] = attrs.field(factory=list)

    kinds: ClassVar[frozenset[CallKind]] = frozenset((CallKind.SEND, CallKind.PROBE))

    def before(self, call: Call) -> Awaitable[None] | None:
        self.seen.append(call)
        if self.refuses is not None:
            raise self.refuses
        return None if self.opened is None else self.opened.wait()


@pytest.fixture
async def store() -> MemoryBroker:
    broker = MemoryBroker(VirtualClock(), random.Random(0))
    await broker.create_queue(ORDERS, QueueProperties())
    await broker.create_queue(SESSIONS, QueueProperties(requires_session=True))
    return broker


async def waiting_in(broker: Broker) -> int:
    return (await broker.inspect(ORDERS)).active or 0


async def test_interceptors_begin_in_the_order_of_the_list_and_end_in_the_opposite_one(
    store: MemoryBroker,
) -> None:
    told: list[str] = []
    broker = InterceptedBroker(store, [Recorder("outer", told), Recorder("inner", told)])

    await broker.probe(ORDERS)

    assert told == [
        "outer before PROBE",
        "inner before PROBE",
        "inner after PROBE None",
        "outer after PROBE None",
    ]


async def test_an_error_of_a_read_is_told_and_raised(store: MemoryBroker) -> None:
    told: list[str] = []
    broker = InterceptedBroker(store, [Recorder("it", told)])

    with pytest.raises(EntityNotFound):
        await broker.probe(EntityPath("nowhere"))

    assert told == ["it before PROBE", "it EntityNotFound PROBE"]


async def test_an_interceptor_is_told_only_its_kinds_of_calls(store: MemoryBroker) -> None:
    told: list[str] = []
    broker = InterceptedBroker(store, [SendRecorder("it", told)])

    await broker.probe(ORDERS)
    await broker.send(ORDERS, [Message()])

    assert told == ["it before SEND", "it after SEND [None]"]


async def test_a_refusal_fails_that_call_only_and_is_told_to_the_outer_ones(
    store: MemoryBroker,
) -> None:
    told: list[str] = []
    gate = Gate(refuses=Busy("wait"))
    broker = InterceptedBroker(store, [Recorder("outer", told), gate, Recorder("inner", told)])

    with pytest.raises(Busy):
        await broker.probe(ORDERS)
    gate.refuses = None
    await broker.probe(ORDERS)

    assert told == [
        "outer before PROBE",
        "outer Busy PROBE",
        "outer before PROBE",
        "inner before PROBE",
        "inner after PROBE None",
        "outer after PROBE None",
    ]


async def test_a_refused_call_stops_no_other_one_that_is_under_way(
    store: MemoryBroker, autojump_clock: MockClock
) -> None:
    gate = Gate(opened=trio.Event())
    broker = InterceptedBroker(store, [gate])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.send, ORDERS, [Message()])
        await trio.sleep(1)
        opened, gate.opened, gate.refuses = gate.opened, None, Busy("wait")
        with pytest.raises(Busy):
            await broker.send(ORDERS, [Message()])
        assert opened is not None
        opened.set()

    assert await waiting_in(store) == 1


async def test_a_refused_send_is_the_verdict_of_each_batch(store: MemoryBroker) -> None:
    told: list[str] = []
    error = Unavailable("refused")
    broker = InterceptedBroker(store, [Recorder("outer", told), Gate(refuses=error)])

    verdicts = await required(broker, SendsMany).send_many(ORDERS, [[Message()], [Message()]])

    assert verdicts == [error, error]
    assert told == ["outer before SEND", f"outer after SEND {[error, error]}"]
    assert await waiting_in(store) == 0


async def test_a_failed_send_of_one_batch_is_told_as_its_verdict(store: MemoryBroker) -> None:
    told: list[str] = []
    broker = InterceptedBroker(store, [Recorder("it", told)])

    with pytest.raises(EntityNotFound) as raised:
        await broker.send(EntityPath("nowhere"), [Message()])

    assert told == ["it before SEND", f"it after SEND {[raised.value]}"]


async def test_a_failed_settlement_is_told_as_its_verdict(store: MemoryBroker) -> None:
    told: list[str] = []
    broker = InterceptedBroker(store, [Recorder("it", told)])
    await store.send(ORDERS, [Message()])

    async with broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Complete())
        with pytest.raises(LockLost) as raised:
            await receiver.settle(delivery, Complete())
        [verdict] = await required(receiver, SettlesMany).settle_many([(delivery, Complete())])

    assert isinstance(verdict, LockLost)
    assert [each for each in told if " after SETTLE " in each] == [
        "it after SETTLE [None]",
        f"it after SETTLE {[raised.value]}",
        f"it after SETTLE {[verdict]}",
    ]


async def test_a_cancelled_send_is_told_as_cancelled_and_its_outcome_is_unknown(
    store: MemoryBroker, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    told: list[str] = []
    faulty = FaultyBroker(inner=store)
    faulty.fault = lambda *_: Hang()
    await nursery.start(faulty.run)
    broker = InterceptedBroker(faulty, [Recorder("outer", told), Recorder("inner", told)])

    with trio.move_on_after(5) as scope:
        await broker.send(ORDERS, [Message()])

    assert scope.cancelled_caught
    assert told[-2:] == ["inner Cancelled SEND", "outer Cancelled SEND"]


async def test_a_call_that_is_cancelled_in_front_of_an_interceptor_is_not_told_to_it(
    store: MemoryBroker, autojump_clock: MockClock
) -> None:
    told: list[str] = []
    gate = Gate(opened=trio.Event())
    broker = InterceptedBroker(store, [Recorder("outer", told), gate, Recorder("inner", told)])

    with trio.move_on_after(5):
        await broker.send(ORDERS, [Message()])

    assert told == ["outer before SEND", "outer Cancelled SEND"]
    assert await waiting_in(store) == 0


async def test_a_send_has_no_checkpoint_where_no_interceptor_waits(store: MemoryBroker) -> None:
    """Concurrent sends keep their order so (`SendsMany.send_many`)."""
    told: list[str] = []
    handed_over: list[str] = []

    class Fast(MemoryBroker):
        async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
            handed_over.append(entity.name)

    fast = Fast(VirtualClock(), random.Random(0))
    broker = InterceptedBroker(fast, [Gate(), Recorder("it", told)])

    with trio.testing.assert_no_checkpoints():
        await broker.send(ORDERS, [Message()])

    assert handed_over == ["orders"]


async def test_each_way_to_receive_has_its_kind(store: MemoryBroker) -> None:
    told: list[str] = []
    broker = InterceptedBroker(store, [Recorder("it", told)])
    await store.send(ORDERS, [Message(), Message()])

    async with broker.open_receiver(ORDERS) as receiver:
        await receiver.receive(1)
    async with broker.open_receiver(ORDERS, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        await receiver.receive(1)

    assert [each for each in told if each.startswith("it before ")] == [
        "it before OPEN",
        "it before WAIT",
        "it before OPEN",
        "it before RECEIVE",
    ]


async def test_only_interceptors_of_sessions_are_told_the_calls_of_their_receivers(
    store: MemoryBroker,
) -> None:
    told: list[str] = []
    other: list[str] = []

    class WithoutSessions(Recorder):
        kinds = frozenset(CallKind) - {CallKind.OPEN_SESSION}

    broker = InterceptedBroker(store, [Recorder("it", told), WithoutSessions("other", other)])
    async with required(broker, Sessions).open_session(SESSIONS, "s") as session:
        await session.set_state(b"x")
        assert await session.get_state() == b"x"
        await session.renew_session()
        with trio.move_on_after(0):
            await session.receive(1)

    assert [each.split()[-1] for each in told if each.startswith("it before ")] == [
        "OPEN_SESSION",
        "SET_STATE",
        "GET_STATE",
        "RENEW_SESSION",
        "WAIT",
    ]
    assert other == []


async def test_an_intercepted_namespace_has_the_address_of_its_own_or_the_one_that_is_given(
    store: MemoryBroker,
) -> None:
    def seen(inner: Broker, address: str | None = None) -> Broker:
        return InterceptedBroker(inner, (), address=address)

    assert address_of(seen(store)) == ""
    assert address_of(seen(store, "east:5672")) == "east:5672"
    assert address_of(seen(seen(store, "east:5672"))) == "east:5672"


class Splitter(Recorder, SplittingInterceptor):
    """Sees each batch of a send alone, and each settlement."""

    def splits(self, call: Call) -> bool:
        return call.kind in {CallKind.SEND, CallKind.SETTLE}


async def test_a_splitting_interceptor_sees_each_batch_and_settlement_alone(
    store: MemoryBroker,
) -> None:
    told: list[str] = []
    broker = InterceptedBroker(store, [Splitter("it", told)])
    batches = [[Message(body=b"1")], [Message(body=b"2")]]

    sent = await required(broker, SendsMany).send_many(ORDERS, batches)
    async with broker.open_receiver(ORDERS) as receiver:
        deliveries = await receiver.receive(2)
        settled = await required(receiver, SettlesMany).settle_many(
            [(each, Complete()) for each in deliveries]
        )

    assert (list(sent), list(settled)) == ([None, None], [None, None])
    assert [each.message.body for each in deliveries] == [b"1", b"2"]
    assert told.count("it after SEND [None]") == 2
    assert told.count("it after SETTLE [None]") == 2
