"""A plan names what the new side can't do; a start refuses it, unless it is forced."""

from datetime import timedelta

import attrs
import pytest

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, InvalidRequest, NotSupported
from gateway.domain.message import DeadLetter, Defer
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.extensions.move.order import PlannedMove, PlanOrder
from gateway.extensions.move.plan import TRIAL, Planning
from gateway.forwarding_broker import ReceiveWrapper
from gateway.ports import Broker
from tests.extensions.move.stand import OPERATOR, MoveStand, Unable, Uncounted
from tests.pairing.harness import BILLS, ORDERS, Harness, message, virtual_time

pytestmark = virtual_time
JOBS = EntityPath("jobs")
PROPERTIES = QueueProperties(requires_session=True, max_delivery_count=3)


class WithoutSessions(ReceiveWrapper):
    """A namespace whose queues can't require sessions, nor have a limit of deliveries."""

    forwards = frozenset()

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    @property
    def inner(self) -> Broker:
        return self.broker

    async def create_queue(self, entity: EntityPath, properties: QueueProperties):
        for name in ("requires_session", "max_delivery_count"):
            if getattr(properties, name) != getattr(QueueProperties(), name):
                raise NotSupported(f"no {name} here")
        return await self.broker.create_queue(entity, properties)


@pytest.fixture
async def stand(harness: Harness) -> MoveStand:
    stand = await MoveStand.make(harness)
    await harness.primary.store.create_queue(JOBS, PROPERTIES)
    return stand


async def planned(stand: MoveStand, *targets: str) -> list[PlannedMove]:
    gateway = await stand.gateway(moves=False)
    plan = await gateway.moving.plan(PlanOrder(targets=targets or ("*",)), OPERATOR)
    return list(plan.entities)


async def test_all_queues_that_match_are_compared(stand: MoveStand) -> None:
    await stand.new.store.create_queue(ORDERS, QueueProperties(lock_duration=timedelta(seconds=9)))

    found = {each.entity: each for each in await planned(stand)}

    assert found.keys() == {"Bills", "jobs", "orders"}
    assert [each.exists for each in found.values()] == [False, False, True]
    assert found["orders"].problems == (
        "lock_duration: 0:01:00 there, 0:00:09 at the new namespace",
    )


async def test_a_plan_leaves_nothing_behind(stand: MoveStand) -> None:
    await planned(stand)

    for path in (TRIAL, BILLS, JOBS):
        with pytest.raises(EntityNotFound):
            await stand.new.store.inspect(path)


async def test_each_property_that_would_be_lost_is_named(stand: MoveStand) -> None:
    planning = Planning(old=stand.harness.primary.store, new=WithoutSessions(stand.new.store))

    [found] = await planning.plan(["jobs"], ["*"])

    assert found.lost == ("max_delivery_count", "requires_session")
    assert {
        "max_delivery_count: no max_delivery_count here",
        "requires_session: no requires_session here",
    } <= set(found.problems)
    assert any("session" in text for text in found.problems if text not in found.lost)


async def test_a_start_with_problems_is_refused_unless_it_is_forced(stand: MoveStand) -> None:
    await stand.new.store.create_queue(ORDERS, QueueProperties(max_delivery_count=3))
    gateway = await stand.gateway(moves=False)

    with pytest.raises(InvalidRequest, match="orders: max_delivery_count: 10 there, 3 at the new"):
        await gateway.order("start")
    refused = gateway.broker.book.moves
    await gateway.order("start", force=True)

    assert refused == ()
    assert (await gateway.state()).stage.value == "to-new"


@pytest.mark.parametrize("keeps_order", [True, False])
async def test_an_ordered_entity_that_would_lose_its_order_or_never_move_is_named(
    stand: MoveStand, keeps_order: bool
) -> None:
    gateway = await stand.gateway(moves=False, keeps_order=keeps_order)
    old, new = gateway.broker.sides
    broker = attrs.evolve(gateway.broker, sides=(Uncounted(old, "active"), new))
    moving = attrs.evolve(gateway.moving, broker=broker, loses_order=True)

    plan = await moving.plan(PlanOrder(targets=("orders",)), OPERATOR)

    told = (
        "its order is kept, and nobody counts its messages: its move would never end",
        "its order is kept, and a Storage Queue doesn't keep the order of its messages",
    )
    assert plan.entities[0].problems == (told if keeps_order else ())


async def test_an_entity_that_move_does_not_name_is_refused(stand: MoveStand) -> None:
    planning = Planning(old=stand.harness.primary.store, new=stand.new.store)

    with pytest.raises(InvalidRequest, match="jobs isn't among the entities of"):
        await planning.plan(["jobs"], ["orders"])


async def test_the_messages_that_stay_are_named(stand: MoveStand) -> None:
    old = stand.harness.primary.store
    await old.send(ORDERS, [message("dead"), message("deferred")])
    async with old.open_receiver(ORDERS) as receiver:
        dead, deferred = await receiver.receive(2)
        await receiver.settle(dead, DeadLetter(reason="case 7"))
        await receiver.settle(deferred, Defer())

    [able] = await Planning(old=old, new=stand.new.store).plan(["orders"], ["*"])
    [unable] = await Planning(old=old, new=Unable(stand.new.store)).plan(["orders"], ["*"])
    [back] = await Planning(old=Unable(old), new=stand.new.store).plan(["orders"], ["*"])

    later = "1 deferred messages stay until they are received by their numbers; the move ends after"
    assert able.notes == (f"{later} that",)
    assert unable.notes == (
        "1 dead letters stay, and are received from both sides: the new namespace gets them from"
        " receivers alone",
        f"{later} that",
    )
    assert back.notes[0] == "1 dead letters are moved; a roll back leaves them at the new namespace"


async def test_subscriptions_that_nobody_can_send_to_are_named(stand: MoveStand) -> None:
    old, news = stand.harness.primary.store, EntityPath("news")
    await old.create_topic(news, TopicProperties())
    await old.create_subscription(news, "all", SubscriptionProperties())

    [able] = await Planning(old=old, new=stand.new.store).plan(["news"], ["*"])
    [unable] = await Planning(old=old, new=Unable(stand.new.store)).plan(["news"], ["*"])

    assert able.notes == ()
    assert unable.notes == (
        "messages of its subscriptions stay, and are received from both sides: the new namespace"
        " takes none for a subscription alone",
        "dead letters of its subscriptions stay, and are received from both sides: the new"
        " namespace gets them from receivers alone",
    )
