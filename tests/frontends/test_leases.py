import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.domain.clocks.lock_ends import OVER
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityNotFound,
    LockLost,
    MessageNotFound,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import Abandon, Complete, Delivery, Message, ReceiveMode, Settlement
from gateway.frontends.leases import Leases
from gateway.frontends.shared_receivers import LeaseOptions
from gateway.net.visits import Visits
from gateway.ports import WallClock

ORDERS = EntityPath("orders")
LOCK = timedelta(seconds=60)


def wall_clock() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=trio.current_time())


@attrs.define(eq=False)
class ScriptedBroker:
    """A broker that delivers the test's messages, and fails when the test says so."""

    opened: int = 0
    closed: int = 0
    settled: list[tuple[int, Settlement]] = attrs.field(factory=list)
    on_open: BrokerError | None = None
    on_receive: BrokerError | None = None
    on_settle: BrokerError | None = None
    hangs: bool = False
    tells_locks: bool = True
    waiting: list[int] = attrs.field(factory=list)
    _arrived: trio.Event = attrs.field(factory=trio.Event)

    def put(self, *numbers: int) -> None:
        self.waiting += numbers
        self.wake()

    def wake(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> "AsyncIterator[ScriptedBroker]":
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if self.on_open:
            raise self.on_open
        self.opened += 1
        try:
            yield self
        finally:
            self.closed += 1

    async def receive(self, limit: int) -> Sequence[Delivery]:
        await trio.lowlevel.checkpoint()
        while not self.waiting and not self.on_receive:
            await self._arrived.wait()
        if self.on_receive:
            raise self.on_receive
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        until = wall_clock() + LOCK if self.tells_locks else None
        return [
            Delivery(message=Message(), sequence_number=n, lock_token=f"T{n}", locked_until=until)
            for n in taken
        ]

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        await trio.lowlevel.checkpoint()
        missing = [number for number in sequence_numbers if number not in self.waiting]
        if missing:
            raise MessageNotFound(f"there is no deferred message {missing[0]}")
        return await self.receive(len(sequence_numbers))

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await trio.lowlevel.checkpoint()
        if self.on_settle:
            raise self.on_settle
        self.settled.append((delivery.sequence_number, settlement))

    async def renew(self, delivery: Delivery) -> datetime:
        await trio.lowlevel.checkpoint()
        if self.on_settle:
            raise self.on_settle
        return wall_clock() + LOCK


@attrs.define(eq=False)
class ManyBroker(ScriptedBroker):
    """Settles several deliveries in one step."""

    verdicts: dict[int, BrokerError] = attrs.field(factory=dict)
    steps: list[list[int]] = attrs.field(factory=list)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        await trio.lowlevel.checkpoint()
        if self.on_settle:
            raise self.on_settle
        self.steps.append([delivery.sequence_number for delivery, _ in settlements])
        return [self.verdicts.get(delivery.sequence_number) for delivery, _ in settlements]


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
async def leases(broker: ScriptedBroker, nursery: trio.Nursery) -> Leases:
    return await started(broker, nursery)


async def started(
    broker: ScriptedBroker,
    nursery: trio.Nursery,
    options: LeaseOptions | None = None,
    clock: WallClock = wall_clock,
) -> Leases:
    leases = Leases(broker, clock, options or LeaseOptions())  # type: ignore[arg-type]
    await nursery.start(leases.run)
    return leases


async def test_delivery_is_settled_by_its_token_once(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    (delivery,) = await leases.receive(ORDERS, 1)

    await leases.settle(EntityPath("ORDERS"), "t1", Complete())

    assert delivery.sequence_number == 1
    assert broker.settled == [(1, Complete())]
    with pytest.raises(LockLost):
        await leases.settle(ORDERS, "T1", Complete())


async def test_token_of_another_queue_is_not_known(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)

    with pytest.raises(LockLost):
        await leases.settle(EntityPath("payments"), "T1", Complete())


async def test_lease_ends_with_its_lock(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)

    await trio.sleep(60)

    with pytest.raises(LockLost):
        await leases.settle(ORDERS, "T1", Complete())
    assert broker.settled == []


async def test_renewed_lease_goes_on(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)
    await trio.sleep(50)

    renewed = await leases.renew(ORDERS, "T1")

    assert renewed.locked_until == wall_clock() + LOCK
    await trio.sleep(50)
    await leases.settle(ORDERS, "T1", Abandon())
    assert broker.settled == [(1, Abandon())]


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
async def test_a_lease_holds_as_long_as_a_usual_lock_whatever_the_clock_says(
    ahead: float, autojump_clock: MockClock, broker: ScriptedBroker, nursery: trio.Nursery
) -> None:
    skew = timedelta(seconds=ahead)
    leases = await started(broker, nursery, clock=lambda: wall_clock() + skew)
    broker.put(1)
    await leases.receive(ORDERS, 1)
    await trio.sleep(50)
    await leases.renew(ORDERS, "T1")
    await trio.sleep(50)

    await leases.settle(ORDERS, "T1", Complete())

    assert broker.settled == [(1, Complete())]


async def test_settlement_that_failed_can_be_repeated(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)
    broker.on_settle = Unavailable("gone")
    with pytest.raises(Unavailable):
        await leases.settle(ORDERS, "T1", Complete())

    broker.on_settle = None
    await leases.settle(ORDERS, "T1", Complete())

    assert broker.settled == [(1, Complete())]


async def test_several_deliveries_are_settled_in_one_step_each_with_its_verdict(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    broker = ManyBroker()
    leases = await started(broker, nursery)
    broker.put(1, 2, 3, 4)
    await leases.receive(ORDERS, 4)
    broker.verdicts = {2: LockLost("too late"), 3: OutcomeUnknown("no answer")}

    verdicts = await leases.settle_many(
        ORDERS, [(f"T{number}", Complete()) for number in (1, 2, 3, 9, 4)]
    )

    assert [type(verdict) for verdict in verdicts] == [
        type(None),
        LockLost,
        OutcomeUnknown,
        LockLost,
        type(None),
    ]
    assert broker.steps == [[1, 2, 3, 4]]
    # A lease with an unknown outcome may be settled again; the settled and lost leases are gone.
    broker.verdicts = {}
    again = await leases.settle_many(
        ORDERS, [(f"T{number}", Complete()) for number in (1, 2, 3, 4)]
    )
    assert [type(verdict) for verdict in again] == [LockLost, LockLost, type(None), LockLost]


async def test_the_answer_of_a_namespace_to_a_step_is_the_verdict_on_each_delivery(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    broker = ManyBroker()
    leases = await started(broker, nursery)
    broker.put(1, 2)
    await leases.receive(ORDERS, 2)
    broker.on_settle = Unavailable("gone")

    verdicts = await leases.settle_many(ORDERS, [("T1", Complete()), ("T2", Complete())])

    assert verdicts == [broker.on_settle, broker.on_settle]


async def test_leases_of_two_receivers_are_settled_at_their_own(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    broker = ManyBroker()
    leases = await started(broker, nursery)
    broker.put(1)
    await leases.receive(ORDERS, 1)
    broker.on_receive = Unavailable("gone")
    with pytest.raises(Unavailable):
        await leases.receive(ORDERS, 1)
    broker.on_receive = None
    broker.put(2)
    await leases.receive(ORDERS, 1)

    verdicts = await leases.settle_many(ORDERS, [("T2", Complete()), ("T1", Complete())])

    assert verdicts == [None, None]
    assert broker.steps == [[2], [1]]


async def test_a_namespace_that_settles_one_at_a_time_says_so(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)

    [verdict] = await leases.settle_many(ORDERS, [("T1", Complete())])

    assert isinstance(verdict, NotSupported)
    assert broker.settled == []


@pytest.mark.parametrize("operation", ["settle", "renew"])
async def test_lock_that_the_namespace_lost_is_no_lease(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases, operation: str
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)
    broker.on_settle = LockLost("too late")
    with pytest.raises(LockLost, match="too late"):
        await (
            leases.renew(ORDERS, "T1")
            if operation == "renew"
            else leases.settle(ORDERS, "T1", Complete())
        )

    with pytest.raises(LockLost, match="is unknown"):
        await leases.renew(ORDERS, "T1")


async def test_requests_share_one_receiver(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    got: list[int] = []

    async def take() -> None:
        (delivery,) = await leases.receive(ORDERS, 1)
        got.append(delivery.sequence_number)

    async with trio.open_nursery() as requests:
        for _ in range(3):
            requests.start_soon(take)
        await wait_all_tasks_blocked()
        broker.put(1, 2, 3)

    assert sorted(got) == [1, 2, 3]
    assert broker.opened == 1


async def test_request_that_is_given_up_takes_nothing(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    with trio.move_on_after(5) as scope:
        await leases.receive(ORDERS, 1)
    broker.put(1)

    (delivery,) = await leases.receive(ORDERS, 1)

    assert scope.cancelled_caught
    assert delivery.sequence_number == 1


async def test_idle_receiver_is_closed(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)
    await leases.settle(ORDERS, "T1", Complete())

    await trio.sleep(29)
    before = broker.closed
    await trio.sleep(2)

    assert (before, broker.closed) == (0, 1)


async def test_receiver_stays_open_for_a_lease(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)

    await trio.sleep(59)
    await leases.settle(ORDERS, "T1", Complete())

    assert (broker.closed, broker.settled) == (0, [(1, Complete())])


async def test_receiver_of_an_ended_lease_is_closed(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)

    await trio.sleep(100)

    assert broker.closed == 1


async def test_receiver_stays_open_for_a_waiting_request(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases, nursery: trio.Nursery
) -> None:
    nursery.start_soon(leases.receive, ORDERS, 1)

    await trio.sleep(300)

    assert (broker.opened, broker.closed) == (1, 0)


async def test_failed_receiver_is_replaced_and_its_leases_live_on(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)
    broker.on_receive = Unavailable("cut off")
    with pytest.raises(Unavailable):
        await leases.receive(ORDERS, 1)
    broker.on_receive = None
    broker.put(2)

    (delivery,) = await leases.receive(ORDERS, 1)
    opened, closed = broker.opened, broker.closed
    await leases.settle(ORDERS, "T1", Complete())
    await wait_all_tasks_blocked()

    assert delivery.sequence_number == 2
    assert (opened, closed) == (2, 0)
    assert broker.closed == 1  # the failed one, as soon as nothing needs it


async def test_failing_receivers_dont_pile_up(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.on_receive = Unavailable("cut off")

    for _ in range(5):
        with pytest.raises(Unavailable):
            await leases.receive(ORDERS, 1)
        await wait_all_tasks_blocked()

    assert broker.opened == broker.closed == 5


async def test_missing_queue_is_told_to_all_and_asked_for_again(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.on_open = EntityNotFound("no queue 'orders'")
    told: list[str] = []

    async def ask() -> None:
        try:
            await leases.receive(ORDERS, 1)
        except EntityNotFound as error:
            told.append(str(error))

    async with trio.open_nursery() as requests:
        requests.start_soon(ask)
        requests.start_soon(ask)
    broker.on_open = None
    broker.put(1)

    assert told == ["no queue 'orders'"] * 2
    assert len(await leases.receive(ORDERS, 1)) == 1


async def test_receiver_that_never_opens_is_unavailable(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.hangs = True

    start = trio.current_time()
    with pytest.raises(Unavailable):
        await leases.receive(ORDERS, 1)

    assert trio.current_time() - start == pytest.approx(10)


async def test_too_many_leases_are_busy_until_one_ends(
    autojump_clock: MockClock, broker: ScriptedBroker, nursery: trio.Nursery
) -> None:
    leases = await started(broker, nursery, LeaseOptions(max_leases=2))
    broker.put(1, 2, 3)
    await leases.receive(ORDERS, 2)
    with pytest.raises(Busy):
        await leases.receive(ORDERS, 1)

    await trio.sleep(61)

    assert len(await leases.receive(ORDERS, 1)) == 1


async def test_a_client_leaves_leases_for_others(
    autojump_clock: MockClock, broker: ScriptedBroker, nursery: trio.Nursery
) -> None:
    leases = await started(broker, nursery, LeaseOptions(max_leases=8))
    broker.put(*range(1, 20))
    taken = {"greedy": 0, "late": 0, "later": 0}
    for client in taken:
        with Visits(math.inf).begin(client):
            while True:
                try:
                    (delivery,) = await leases.receive(ORDERS, 1)
                except Busy:
                    break
                taken[client] += 1

    assert taken == {"greedy": 4, "late": 2, "later": 1}
    assert delivery.lock_token is not None
    with Visits(math.inf).begin("later"):
        await leases.settle(ORDERS, delivery.lock_token, Complete())
        await leases.receive(ORDERS, 1)


async def test_a_lock_token_that_comes_again_is_one_lease(
    autojump_clock: MockClock, broker: ScriptedBroker, nursery: trio.Nursery
) -> None:
    leases = await started(broker, nursery, LeaseOptions(max_leases=3))
    for _ in range(5):
        broker.put(1)
        await leases.receive(ORDERS, 1)

    await leases.settle(ORDERS, "T1", Complete())

    with pytest.raises(LockLost):
        await leases.settle(ORDERS, "T1", Complete())


async def test_waiting_requests_count_as_leases(
    autojump_clock: MockClock, broker: ScriptedBroker, nursery: trio.Nursery
) -> None:
    leases = await started(broker, nursery, LeaseOptions(max_leases=2))
    with trio.move_on_after(5):
        async with trio.open_nursery() as requests:
            requests.start_soon(leases.receive, ORDERS, 2)
            await wait_all_tasks_blocked()
            with pytest.raises(Busy):
                await leases.receive(ORDERS, 1)
    broker.put(1)

    assert len(await leases.receive(ORDERS, 1)) == 1


async def test_too_many_receivers_are_busy(
    autojump_clock: MockClock, broker: ScriptedBroker, nursery: trio.Nursery
) -> None:
    leases = await started(broker, nursery, LeaseOptions(max_receivers=1))
    broker.put(1)
    await leases.receive(ORDERS, 1)

    with pytest.raises(Busy):
        await leases.receive(EntityPath("payments"), 1)


async def test_a_client_leaves_receivers_for_others(
    autojump_clock: MockClock, broker: ScriptedBroker, nursery: trio.Nursery
) -> None:
    leases = await started(broker, nursery, LeaseOptions(max_receivers=4, idle_timeout=30.0))

    async def asks(client: str, queue: str) -> None:
        with Visits(math.inf).begin(client), trio.move_on_after(1):
            await leases.receive(EntityPath(queue), 1)

    await asks("first", "a")
    await asks("first", "b")
    with pytest.raises(Busy, match="of at most 4 open receivers this client has 2: wait until"):
        await asks("first", "c")
    await asks("later", "d")
    await asks("later", "a")  # that all share

    await trio.sleep(60)
    await asks("first", "c")


async def test_delivery_without_lock_time_is_given_back(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases, nursery: trio.Nursery
) -> None:
    broker.tells_locks = False
    broker.put(1)
    await leases.receive(ORDERS, 1)
    nursery.start_soon(leases.receive, ORDERS, 1)  # so that the receiver stays open

    await trio.sleep(59)
    before = list(broker.settled)
    await trio.sleep(35)

    assert before == []
    assert broker.settled == [(1, Abandon())]


async def test_end_of_run_closes_receivers(
    autojump_clock: MockClock, broker: ScriptedBroker, nursery: trio.Nursery
) -> None:
    async with trio.open_nursery() as services:
        leases = await started(broker, services)
        broker.put(1)
        await leases.receive(ORDERS, 1)
        services.cancel_scope.cancel()

    assert broker.closed == 1
    with pytest.raises(LockLost):
        await leases.settle(ORDERS, "T1", Complete())
    with pytest.raises(Unavailable):
        await leases.receive(ORDERS, 1)


async def test_receiver_that_cannot_be_left_is_cut_off(
    autojump_clock: MockClock,
    broker: ScriptedBroker,
    leases: Leases,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = []

    @asynccontextmanager
    async def stubborn(entity: EntityPath) -> AsyncIterator[ScriptedBroker]:
        yield broker
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())

    monkeypatch.setattr(ScriptedBroker, "open_receiver", lambda self, entity: stubborn(entity))
    broker.put(1)
    await leases.receive(ORDERS, 1)
    await leases.settle(ORDERS, "T1", Complete())
    start = trio.current_time()

    await trio.sleep(60)

    assert [end - start for end in ended] == [pytest.approx(35)]


async def test_opening_tells_what_the_namespace_says(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    await leases.open(ORDERS)
    broker.on_open = EntityNotFound("there is no such queue")

    with pytest.raises(EntityNotFound):
        await leases.open(EntityPath("nothing"))
    assert broker.opened == 1


async def test_deferred_messages_are_leased_too(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(7)

    await leases.receive_deferred(ORDERS, [7])
    await leases.settle(ORDERS, "T7", Complete())

    assert broker.settled == [(7, Complete())]


async def test_a_deferred_message_that_is_missing_costs_nobody_the_receiver(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    with pytest.raises(MessageNotFound):
        await leases.receive_deferred(ORDERS, [7])
    broker.put(1)
    await leases.receive(ORDERS, 1)

    assert broker.opened == 1


async def test_a_lease_says_when_it_ends(
    autojump_clock: MockClock, broker: ScriptedBroker, leases: Leases
) -> None:
    broker.put(1)
    await leases.receive(ORDERS, 1)
    began = trio.current_time()
    await trio.sleep(30)

    first = leases.lock_of("t1")
    await leases.renew(ORDERS, "T1")
    second = leases.lock_of("T1")
    await leases.settle(ORDERS, "T1", Complete())

    assert first.latest - began == pytest.approx(60)
    assert second.latest - began == pytest.approx(90)
    assert leases.lock_of("T1") == OVER
