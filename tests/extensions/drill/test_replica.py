"""A worker cuts its own way at the parent's message."""

import json
from datetime import timedelta

import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unreachable
from gateway.domain.operators.control import Operator
from gateway.extensions.drill.drills import DrillReplica, Drills, drill_message
from gateway.extensions.drill.interceptor import Cut
from gateway.extensions.drill.order import Drill, DrillFault, DrillOrder
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import Events

ORDERS = EntityPath("orders")


@pytest.fixture
async def both() -> tuple[Drills, DrillReplica]:
    """The parent's drills, and those of a worker that hears of them."""
    drills = Drills(
        clock=VirtualClock(),
        observer=Events(),
        cuts={"east": Cut(), "west": Cut()},
        longest=60.0,
    )
    replica = DrillReplica({"east": Cut(), "west": Cut()})

    def tell(drill: Drill | None, seconds: float) -> None:
        replica.apply(json.loads(json.dumps(drill_message(drill, seconds))))

    drills.followers.append(tell)
    return drills, replica


def begin(drills: Drills, **order: object) -> None:
    drills.begin(DrillOrder(seconds=30.0, **order), Operator(name="op", peer="here"))  # type: ignore[arg-type]


async def test_the_worker_cuts_what_the_parent_cuts_until_the_order_is_taken_back(
    both: tuple[Drills, DrillReplica], autojump_clock: MockClock
) -> None:
    drills, replica = both
    begin(drills, namespace="west", targets=("orders",), fault=DrillFault.REFUSE)

    with pytest.raises(Exception, match="a drill"):
        await replica.cuts["west"].cross(ORDERS)
    await replica.cuts["west"].cross(EntityPath("bills"))
    await replica.cuts["east"].cross(ORDERS)
    drills.end(Operator(name="op", peer="here"))

    await replica.cuts["west"].cross(ORDERS)


async def test_the_way_is_restored_in_time_even_if_the_parent_tells_nothing_more(
    both: tuple[Drills, DrillReplica], autojump_clock: MockClock
) -> None:
    drills, replica = both
    drills.followers.append(lambda *_: drills.followers.clear())
    begin(drills)

    await trio.sleep(29)
    with pytest.raises(Unreachable):
        await replica.cuts["east"].cross(ORDERS)
    await trio.sleep(1)

    await replica.cuts["east"].cross(ORDERS)


async def test_a_worker_that_starts_during_a_drill_joins_it_for_the_rest(
    both: tuple[Drills, DrillReplica], autojump_clock: MockClock
) -> None:
    drills, _ = both
    begin(drills)
    await trio.sleep(20)
    late = DrillReplica({"east": Cut(), "west": Cut()})

    late.apply({"worker": 2, **drill_message(drills.drill, drills.left)})

    assert drills.left == pytest.approx(10.0)
    with pytest.raises(Unreachable):
        await late.cuts["east"].cross(ORDERS)
    await trio.sleep(10)
    await late.cuts["east"].cross(ORDERS)


async def test_the_next_drill_replaces_one_whose_end_was_not_told(
    both: tuple[Drills, DrillReplica], autojump_clock: MockClock
) -> None:
    drills, replica = both
    begin(drills)
    first = drills.drill
    assert first is not None
    replica.apply({"reload": "text"})
    second = Drill(
        namespace="west",
        targets=first.targets,
        fault=first.fault,
        delay=first.delay,
        reason="",
        operator="op",
        since=first.since,
        until=first.until + timedelta(seconds=30),
    )

    replica.apply(drill_message(second, 30.0))

    await replica.cuts["east"].cross(ORDERS)
    with pytest.raises(Unreachable):
        await replica.cuts["west"].cross(ORDERS)
