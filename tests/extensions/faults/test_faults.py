"""Operations of clients meet faults, and the embedded namespace keeps what it has accepted."""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.capabilities import SendsMany, Sessions, SettlesMany
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    InvalidRequest,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.events.control import ControlCalled
from gateway.domain.message import Complete, Message
from gateway.domain.operators.control import Operator
from gateway.domain.storage_queue import Terms
from gateway.extensions.faults.events import FaultAdded, FaultOver
from gateway.extensions.faults.faults import Faults
from gateway.extensions.faults.interceptor import FaultInterceptor
from gateway.extensions.faults.order import (
    MOST,
    FaultAnswer,
    FaultKind,
    FaultOperation,
    FaultOrder,
    FaultsToClear,
)
from gateway.extensions.faults.visibility import FaultyVisibility
from gateway.interception.broker import InterceptedBroker
from gateway.net.visits import Visit, Visits
from gateway.offering import required
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import LocalVisibility
from tests.harness.clocks import VirtualClock

ORDERS, BILLS, SESSIONS = EntityPath("orders"), EntityPath("bills"), EntityPath("sessions")
ANN = Operator(name="ann", peer="127.0.0.1:5000")


@attrs.frozen
class Site:
    """A namespace in memory with its faults, and the events of both."""

    store: MemoryBroker
    faults: Faults
    broker: InterceptedBroker
    told: list[Any]
    hung_up: list[str]  # clients whose connections have ended

    @contextmanager
    def client(self, name: str = "shop") -> Iterator[Visit]:
        with Visits(60.0).begin("127.0.0.1", "127.0.0.1:1") as visit:
            visit.authorize(name)
            visit.hang_up = partial(self.hung_up.append, name)
            yield visit

    def add(self, kind: FaultKind, **fields: Any) -> FaultAnswer:
        return self.faults.add(FaultOrder(kind=kind, **fields), ANN)

    async def active(self, entity: EntityPath = ORDERS) -> int | None:
        return (await self.store.inspect(entity)).active


@attrs.define
class Observer:
    told: list[Any]

    def report(self, event: Any) -> None:
        self.told.append(event)


@pytest.fixture
async def site() -> Site:
    clock, told = VirtualClock(), list[Any]()
    store = MemoryBroker(clock, random.Random(0))
    for queue in (ORDERS, BILLS):
        await store.create_queue(queue, QueueProperties())
    await store.create_queue(SESSIONS, QueueProperties(requires_session=True))
    faults = Faults(allowed=True, clock=clock, observer=Observer(told))
    broker = InterceptedBroker(store, [FaultInterceptor(faults)])
    return Site(store, faults, broker, told, [])


async def error_of(operation: Callable[[], Awaitable[object]]) -> BrokerError | None:
    try:
        await operation()
    except BrokerError as error:
        return error
    return None


async def sending(site: Site, entity: EntityPath = ORDERS) -> BrokerError | None:
    return await error_of(partial(site.broker.send, entity, [Message(body=b"x")]))


@pytest.mark.parametrize(
    ("kind", "error", "hangs_up", "done"),
    [
        (FaultKind.BUSY, Busy, False, 0),
        (FaultKind.FAIL, Unavailable, False, 0),
        (FaultKind.DETACH, OutcomeUnknown, False, 0),
        (FaultKind.DROP, Unavailable, True, 0),
        (FaultKind.LOSE, type(None), True, 1),
        (FaultKind.DELAY, type(None), False, 1),
    ],
)
async def test_a_send_meets_its_fault_once_and_the_next_one_succeeds(
    site: Site,
    autojump_clock: MockClock,
    kind: FaultKind,
    error: type,
    hangs_up: bool,
    done: int,
) -> None:
    site.add(kind, count=1, delay=5.0)
    began = trio.current_time()

    with site.client():
        met = await sending(site)
        seconds, active = trio.current_time() - began, await site.active()
        after = await sending(site)

    assert type(met) is error
    assert met is None or met.is_final  # no front end tries again instead of the client
    assert (seconds, active) == (5.0 if kind is FaultKind.DELAY else 0.0, done)
    assert site.hung_up == (["shop"] if hangs_up else [])
    assert (after, await site.active()) == (None, done + 1)
    assert isinstance(met, Busy) is (kind is FaultKind.BUSY)
    assert getattr(met, "retry_after", 5.0) == 5.0


async def test_only_the_operations_that_a_fault_is_meant_for_meet_it(site: Site) -> None:
    site.add(FaultKind.BUSY, entities=("ord*",), operations=("send",), clients=("sh*",))

    with site.client("shop"):
        meant, other_entity = await sending(site), await sending(site, BILLS)
        async with site.broker.open_receiver(BILLS) as receiver:
            [delivery] = await receiver.receive(1)
            await receiver.renew(delivery)
            await receiver.settle(delivery, Complete())
    with site.client("warehouse"):
        other_client = await sending(site)
    of_no_client = await sending(site)

    assert isinstance(meant, Busy)
    assert (other_entity, other_client, of_no_client) == (None, None, None)


async def test_each_operation_of_a_receiver_is_refused(site: Site) -> None:
    for operation in ("receive", "settle", "renew"):
        site.add(FaultKind.BUSY, operations=(operation,), count=1)
    await site.store.send(ORDERS, [Message(body=b"x")])

    with site.client():
        async with site.broker.open_receiver(ORDERS) as receiver:
            received = await error_of(partial(receiver.receive, 1))
            [delivery] = await receiver.receive(1)
            renewed = await error_of(partial(receiver.renew, delivery))
            settled = await error_of(partial(receiver.settle, delivery, Complete()))
            await receiver.settle(delivery, Complete())

    assert [type(each) for each in (received, renewed, settled)] == [Busy] * 3
    assert await site.active() == 0


async def test_each_operation_of_a_receiver_is_done_and_its_answer_lost(site: Site) -> None:
    for operation in ("receive", "settle", "renew"):
        site.add(FaultKind.LOSE, operations=(operation,), count=1)
    await site.store.send(ORDERS, [Message(body=b"x")])

    with site.client():
        async with site.broker.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)
            await receiver.renew(delivery)
            await receiver.settle(delivery, Complete())

    assert (site.hung_up, await site.active()) == (["shop"] * 3, 0)
    assert site.faults.state().faults == ()


async def test_a_session_that_is_accepted_meets_a_fault_of_receives(site: Site) -> None:
    site.add(FaultKind.BUSY, operations=("receive",), count=1)
    site.add(FaultKind.FAIL, operations=("renew",), count=1)
    await site.store.send(SESSIONS, [Message(body=b"x", session_id="one")])
    sessions = required(site.broker, Sessions)

    with site.client():
        with pytest.raises(Busy):
            async with sessions.open_session(SESSIONS, "one"):
                pass
        async with sessions.open_session(SESSIONS, "one") as session:
            with pytest.raises(Unavailable):
                await session.renew_session()
            found = await session.receive(1)

    assert len(found) == 1


async def test_the_first_of_several_at_once_fail_and_the_others_succeed(site: Site) -> None:
    site.add(FaultKind.BUSY, operations=("send",), count=2)
    site.add(FaultKind.FAIL, operations=("settle",), count=1)
    batches = [[Message(body=bytes([number]))] for number in range(4)]

    with site.client():
        sent = await required(site.broker, SendsMany).send_many(ORDERS, batches)
        async with site.broker.open_receiver(ORDERS) as receiver:
            deliveries = await receiver.receive(2)
            settled = await required(receiver, SettlesMany).settle_many(
                [(each, Complete()) for each in deliveries]
            )

    assert [type(each) for each in sent] == [Busy, Busy, type(None), type(None)]
    assert [each.message.body for each in deliveries] == [b"\x02", b"\x03"]
    assert [type(each) for each in settled] == [Unavailable, type(None)]


async def test_a_receiver_that_waits_meets_a_fault_as_soon_as_it_is_added(site: Site) -> None:
    found: list[object] = []

    async def wait(name: str) -> None:
        with site.client(name):
            async with site.broker.open_receiver(ORDERS) as receiver:
                found.append((name, type(await error_of(partial(receiver.receive, 1)))))

    async with trio.open_nursery() as nursery:
        for name in ("shop", "warehouse"):
            nursery.start_soon(wait, name)
        await wait_all_tasks_blocked()
        site.add(FaultKind.BUSY, clients=("shop",), count=1)
        await wait_all_tasks_blocked()
        at_once = list(found)
        await site.store.send(ORDERS, [Message(body=b"x")])

    assert at_once == [("shop", Busy)]
    assert found[1:] == [("warehouse", type(None))]


async def test_a_fault_ends_when_its_time_is_up_or_it_is_cleared(
    site: Site, autojump_clock: MockClock
) -> None:
    brief = site.add(FaultKind.FAIL, seconds=10.0, reason="why").faults[0]
    lasting = site.add(FaultKind.BUSY).faults[0]

    with site.client():
        first = await sending(site)
        await trio.sleep(10.0)
        second = await sending(site)
        cleared = site.faults.clear(FaultsToClear(ids=(lasting.id,)), ANN)
        third = await sending(site)
    again = site.faults.clear(FaultsToClear(), ANN)

    assert (type(first), type(second), third) == (Unavailable, Busy, None)
    assert brief.until == brief.since + timedelta(seconds=10)
    assert [(each.id, each.times) for each in cleared.faults] == [(lasting.id, 1)]
    assert (cleared.changed, again.changed, again.after.faults) == (True, False, ())
    assert [each for each in site.told if isinstance(each, FaultAdded | FaultOver)] == [
        FaultAdded(fault="1", kind="fail", target="*", operator="ann", reason="why"),
        FaultAdded(fault="2", kind="busy", target="*", operator="ann", reason=""),
        FaultOver(fault="1", kind="fail", times=1, ended_by=""),
        FaultOver(fault="2", kind="busy", times=1, ended_by="ann"),
    ]
    calls = [each.action for each in site.told if isinstance(each, ControlCalled)]
    assert calls == ["add-fault", "add-fault", "clear-faults", "clear-faults"]


async def test_an_operation_that_a_cleared_fault_delays_goes_on_at_once(
    site: Site, autojump_clock: MockClock
) -> None:
    site.add(FaultKind.DELAY, delay=3600.0)
    began = trio.current_time()

    async with trio.open_nursery() as nursery:
        with site.client():
            nursery.start_soon(sending, site)
        await trio.sleep(1.0)
        site.faults.clear(FaultsToClear(), ANN)

    assert (trio.current_time() - began, await site.active()) == (1.0, 1)


async def test_clients_of_the_queue_service_meet_the_same_faults(site: Site) -> None:
    queues = FaultyVisibility(LocalVisibility(site.store), site.faults)
    hidden, terms = timedelta(0), Terms(hidden=timedelta(seconds=30))
    for operation in FaultOperation:
        site.add(FaultKind.BUSY, operations=(operation.value,), count=1)

    with site.client("devstoreaccount1"):
        put = partial(queues.put, ORDERS, Message(body=b"x"), hidden)
        dequeue = partial(queues.dequeue, ORDERS, 1, lambda _: terms)
        refused = [await error_of(put), await error_of(dequeue)]
        await put()
        [taken] = await dequeue()
        assert taken.receipt is not None
        change = partial(queues.change, ORDERS, taken.receipt, timedelta(seconds=60))
        refused.append(await error_of(change))
        remove = partial(queues.remove, ORDERS, (await change()).receipt)
        refused.append(await error_of(remove))
        await remove()
        site.add(FaultKind.LOSE)
        await put()

    assert [type(each) for each in refused] == [Busy] * 4
    assert (await site.active(), site.hung_up) == (1, ["devstoreaccount1"])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"count": 0}, "count: 1 or more expected, got 0"),
        ({"seconds": 0.0}, "seconds: a number above 0 expected, got 0"),
        ({"delay": float("inf")}, "delay: a number above 0 expected, got inf"),
        ({"operations": ("peek",)}, "operations: send or receive or settle or renew expected"),
        ({"clients": ()}, "clients: names of policies, or patterns, expected"),
        ({"entities": ()}, "targets: 1 to 100 expected, got 0"),
    ],
)
async def test_a_malformed_order_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        FaultOrder(kind=FaultKind.BUSY, **fields)
    with pytest.raises(InvalidRequest, match="send or receive expected for detach, got 'settle'"):
        FaultOrder(kind=FaultKind.DETACH, operations=("settle",))


async def test_faults_are_refused_where_they_are_not_allowed_or_too_many(site: Site) -> None:
    elsewhere = Faults(allowed=False, clock=VirtualClock(), observer=Observer([]))
    for _ in range(MOST):
        site.add(FaultKind.DETACH, operations=("receive",))

    with pytest.raises(NotSupported, match="allowed = true"):
        elsewhere.add(FaultOrder(kind=FaultKind.BUSY), ANN)
    with pytest.raises(InvalidRequest, match="the most allowed"):
        site.add(FaultKind.BUSY)
    with pytest.raises(InvalidRequest, match="no fault 'x' is in force"):
        site.faults.clear(FaultsToClear(ids=("1", "x")), ANN)
    assert len(site.faults.in_force) == MOST
