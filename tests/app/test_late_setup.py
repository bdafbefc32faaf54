"""The setup of a namespace that answers late: missing queues are made, and events report it."""

import random
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.app.assembly.late_setup import BacklogSetup, LateSetup
from gateway.app.assembly.pairs import find_backlog
from gateway.app.runtime import Runtime
from gateway.config.options import Namespace, Pairing
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized, Unavailable
from gateway.domain.events.gateway import Doubtful, EntitiesMade
from gateway.domain.plan import Plan, PlannedQueue
from gateway.pairing.options import PairOptions
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.harness.faults import Fault, FaultyBroker, Hang, Operation, Refuse
from tests.pairing.harness import Events

ORDERS, BILLS = EntityPath("orders"), EntityPath("bills")
QUEUES = [backlog.queue_name("east", index) for index in range(2)]
NO_MANAGE = Refuse(lambda: NotAuthorized("401"))


@attrs.frozen
class Stand:
    store: MemoryBroker
    faulty: FaultyBroker
    events: Events = attrs.field(factory=Events)

    def forbid_manage(self) -> None:
        self.faulty.fault = lambda asked, _: NO_MANAGE if asked is Operation.MANAGE else None

    def late(self) -> LateSetup:
        plan = Plan(queues=(PlannedQueue(path=ORDERS), PlannedQueue(path=BILLS)))
        return LateSetup(
            broker=self.faulty,
            namespace=Namespace(name="east", url="servicebus:", plan=plan),
            observer=self.events,
            rng=random.Random(0),
        )

    def backlog(self) -> BacklogSetup:
        pairing = Pairing(
            primary="east",
            secondary="west",
            options=PairOptions(label="east", backlog_queues=len(QUEUES)),
            state=Path("state.json"),
        )
        return BacklogSetup(
            secondary=self.faulty,
            pairing=pairing,
            observer=self.events,
            note=trio.lowlevel.checkpoint,
        )

    def doubts(self) -> list[str]:
        return [event.text for event in self.events.of(Doubtful)]


@pytest.fixture
async def stand(nursery: trio.Nursery) -> Stand:
    store = MemoryBroker(VirtualClock(), random.Random(0))
    faulty = FaultyBroker(inner=store)
    await nursery.start(faulty.run)
    return Stand(store, faulty)


async def names(store: MemoryBroker) -> list[str]:
    return [info.path.name for info in await store.list_queues()]


async def test_late_setup_waits_for_the_namespace_and_creates_missing_queues(
    stand: Stand, autojump_clock: MockClock
) -> None:
    await stand.store.create_queue(BILLS, backlog.QUEUE_PROPERTIES)
    stand.faulty.fault = lambda *_: Refuse()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand.late().run)
        await trio.sleep(300.0)
        stand.faulty.fault = lambda *_: None
        back = trio.current_time()

    assert trio.current_time() - back <= 12.0
    assert await names(stand.store) == ["bills", "orders"]
    assert stand.events.of(EntitiesMade) == [EntitiesMade(namespace="east", entities="orders")]


async def test_a_gateway_without_the_right_to_make_queues_is_told_only_where_one_is_missing(
    stand: Stand, autojump_clock: MockClock
) -> None:
    stand.forbid_manage()
    await stand.store.create_queue(ORDERS, backlog.QUEUE_PROPERTIES)
    await stand.late().run()
    lacking = stand.doubts()
    await stand.store.create_queue(BILLS, backlog.QUEUE_PROPERTIES)
    await stand.late().run()

    assert lacking == ["namespace east: bills is missing and can't be created: 401"]
    assert stand.doubts() == lacking


async def test_backlog_queues_are_made_and_doubtful_ones_told(
    stand: Stand, autojump_clock: MockClock
) -> None:
    odd = attrs.evolve(backlog.QUEUE_PROPERTIES, max_delivery_count=7)
    await stand.store.create_queue(QUEUES[0], odd)

    await stand.backlog().run()

    assert await names(stand.store) == [queue.name for queue in QUEUES]
    assert stand.doubts() == [
        f"backlog queue {QUEUES[0]}: it moves messages to its dead letters after 7 deliveries"
    ]


async def test_a_backlog_that_is_there_needs_no_right_to_make_it(
    stand: Stand, autojump_clock: MockClock
) -> None:
    for queue in QUEUES:
        await stand.store.create_queue(queue, backlog.QUEUE_PROPERTIES)
    stand.forbid_manage()

    await stand.backlog().run()

    assert stand.doubts() == []


async def test_a_secondary_that_does_not_answer_is_an_error(
    stand: Stand, autojump_clock: MockClock
) -> None:
    stand.faulty.fault = lambda *_: Refuse()

    with pytest.raises(Unavailable):
        await stand.backlog().run()


@pytest.mark.parametrize("fault", [Hang(), Refuse()], ids=["silent", "down"])
async def test_queues_that_a_start_has_made_are_usable_if_the_secondary_is_gone_then(
    stand: Stand, autojump_clock: MockClock, fault: Fault
) -> None:
    setup = stand.backlog()

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        stand.faulty.fault = lambda *_: fault

    setup.note = fail
    runtime = Runtime()

    found = await find_backlog(stand.faulty, setup.pairing, runtime, setup)

    assert await names(stand.store) == [queue.name for queue in QUEUES]
    assert (list(found.queues), found.asked) == (QUEUES, False)
