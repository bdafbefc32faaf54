"""A drill cuts the pair's way to a namespace, and the namespace itself is never touched."""

from typing import Any

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    InvalidRequest,
    NotSupported,
    Unavailable,
    Unreachable,
)
from gateway.domain.events.control import ControlCalled
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy, Complete, ReceiveMode
from gateway.domain.operators.control import Operator
from gateway.extensions.drill.drills import DrillReplica, Drills
from gateway.extensions.drill.events import DrillBegan, DrillEnded
from gateway.extensions.drill.feature import Drilling
from gateway.extensions.drill.interceptor import Cut
from gateway.extensions.drill.order import DrillAnswer, DrillFault, DrillOrder
from gateway.interception.broker import InterceptedBroker
from gateway.pairing.pair import Pair
from tests.pairing.harness import (
    BILLS,
    ORDERS,
    QUEUE,
    Harness,
    message,
    outcome_of,
    reaches,
    send,
    virtual_time,
)

pytestmark = virtual_time

ANN = Operator(name="ann", peer="127.0.0.1:5000")
EAST, WEST = "east", "west"


@attrs.frozen(kw_only=True)
class Stage:
    harness: Harness
    drills: Drills
    primary: InterceptedBroker
    pair: Pair

    def begin(self, fault: DrillFault, seconds: float = 30.0, **fields: Any) -> DrillAnswer:
        return self.drills.begin(DrillOrder(fault=fault, seconds=seconds, **fields), ANN)


async def staged(harness: Harness, *, runs: bool = True, **options: Any) -> Stage:
    """A pair whose primary is behind a cut; with `runs` the drills' service runs."""
    cuts = {EAST: Cut(), WEST: Cut()}
    drills = Drills(clock=harness.clock, observer=harness.events, cuts=cuts, longest=900.0)
    primary = InterceptedBroker(harness.primary.broker, [cuts[EAST]])
    pair = attrs.evolve(harness.parts(**options), primary=primary).assemble()
    await harness.nursery.start(pair.run)
    if runs:
        await harness.nursery.start(drills.run)
    return Stage(harness=harness, drills=drills, primary=primary, pair=pair)


@pytest.mark.parametrize("fault", [DrillFault.REFUSE, DrillFault.HANG])
async def test_sends_of_an_outage_are_diverted_and_entities_return(
    harness: Harness, fault: DrillFault
) -> None:
    stage = await staged(harness, failover_interval=5.0, attempt_timeout=1.0)
    stage.begin(fault, seconds=60.0)
    harness.primary.asked.clear()

    during = [await send(stage.pair, message(f"m{number}"))() for number in range(3)]
    await reaches(stage.pair.states, State.SECONDARY)
    asked = list(harness.primary.asked)
    await reaches(stage.pair.states, State.HALF_OPEN)
    after = await send(stage.pair, message("later"))()

    assert during == [AcceptedBy.BACKLOG] * 3
    assert asked == []  # nothing reached the namespace meanwhile
    assert after is AcceptedBy.PRIMARY
    assert len(harness.events.of(DrillEnded)) == 1


async def test_a_slow_way_delays_a_send_and_it_arrives_once(harness: Harness) -> None:
    stage = await staged(harness)
    stage.begin(DrillFault.SLOW, delay=1.5)

    began = trio.current_time()
    accepted_by = await send(stage.pair)()

    assert (accepted_by, trio.current_time() - began) == (AcceptedBy.PRIMARY, 1.5)
    assert len(await harness.primary.store.peek(ORDERS, limit=10)) == 1


async def test_a_send_that_is_given_up_on_a_slow_way_never_arrives(harness: Harness) -> None:
    stage = await staged(harness, attempt_timeout=2.0)
    stage.begin(DrillFault.SLOW, delay=10.0, seconds=60.0)

    accepted_by = await send(stage.pair)()
    await trio.sleep(60.0)

    assert accepted_by is AcceptedBy.BACKLOG
    assert not await harness.primary.store.peek(ORDERS, limit=10)


async def test_a_busy_way_asks_to_wait(harness: Harness) -> None:
    stage = await staged(harness)
    stage.begin(DrillFault.BUSY, delay=3.0)

    error = await outcome_of(lambda: stage.primary.send(ORDERS, [message()]))

    assert isinstance(error, Busy)
    assert error.retry_after == 3.0
    assert stage.pair.states.state_of(ORDERS) is State.PRIMARY


async def test_a_busy_way_asks_nobody_to_wait_longer_than_the_drill(harness: Harness) -> None:
    stage = await staged(harness)
    stage.begin(DrillFault.BUSY, delay=1e9, seconds=60.0)

    during = await outcome_of(lambda: stage.primary.send(ORDERS, [message()]))
    asked = await outcome_of(send(stage.pair))
    await trio.sleep(60.0)
    after = await send(stage.pair)()

    assert isinstance(asked, Busy)
    assert isinstance(during, Busy)
    assert during.retry_after == 60.0
    assert after is AcceptedBy.PRIMARY


async def test_only_the_named_entities_are_cut(harness: Harness) -> None:
    stage = await staged(harness)
    stage.begin(DrillFault.REFUSE, targets=("orders",))

    cut = await outcome_of(lambda: stage.primary.send(ORDERS, [message()]))
    dead_letters = await outcome_of(lambda: stage.primary.inspect(ORDERS.dead_letter))
    await stage.primary.send(BILLS, [message()])
    queues = await stage.primary.list_queues()

    assert type(cut) is Unavailable  # not Unreachable, which concerns all entities
    assert isinstance(dead_letters, Unavailable)
    assert len(queues) == 2


async def test_a_whole_namespace_is_unreachable_with_all_that_it_can_do(harness: Harness) -> None:
    stage = await staged(harness)
    stage.begin(DrillFault.REFUSE)
    way = stage.primary

    async def open_receiver() -> None:
        async with way.open_receiver(ORDERS):
            pass

    calls = [
        lambda: way.send(ORDERS, [message()]),
        lambda: way.probe(ORDERS),
        lambda: way.inspect(ORDERS),
        lambda: way.list_queues(),
        lambda: way.delete_queue(ORDERS),
        lambda: way.peek(ORDERS),
        lambda: way.schedule(ORDERS, [message()]),
        lambda: way.cancel_scheduled(ORDERS, [1]),
        lambda: way.list_sessions(ORDERS),
        lambda: way.delete_messages(ORDERS, 1),
        open_receiver,
    ]
    errors = [await outcome_of(call) for call in calls]

    assert {type(error) for error in errors} == {Unreachable}
    assert "a drill" in str(errors[0])


async def test_a_wait_for_messages_is_interrupted_and_loses_none(harness: Harness) -> None:
    stage = await staged(harness)
    errors: list[BrokerError | None] = []

    async def receive() -> None:
        async with stage.primary.open_receiver(ORDERS) as receiver:
            errors.append(await outcome_of(lambda: receiver.receive(1)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.sleep(1.0)
        stage.begin(DrillFault.REFUSE)
    stage.drills.end(ANN)
    await stage.primary.send(ORDERS, [message()])

    async with stage.primary.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Complete())
    assert [type(error) for error in errors] == [Unreachable]


async def test_a_receive_that_deletes_is_never_interrupted(harness: Harness) -> None:
    stage = await staged(harness)
    bodies: list[object] = []

    async def receive() -> None:
        mode = ReceiveMode.RECEIVE_AND_DELETE
        async with stage.primary.open_receiver(ORDERS, mode) as receiver:
            bodies.extend(each.message.message_id for each in await receiver.receive(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.sleep(1.0)
        stage.begin(DrillFault.REFUSE)
        await harness.primary.store.send(ORDERS, [message("m1")])

    assert bodies == ["m1"]


async def test_an_order_that_is_taken_back_lets_hanging_operations_go(harness: Harness) -> None:
    stage = await staged(harness)
    stage.begin(DrillFault.HANG, seconds=600.0)
    errors: list[BrokerError | None] = []

    async def hang() -> None:
        errors.append(await outcome_of(lambda: stage.primary.probe(ORDERS)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang)
        await trio.sleep(5.0)
        answer = stage.drills.end(ANN)
    await stage.primary.probe(ORDERS)

    assert [type(error) for error in errors] == [Unreachable]
    assert (answer.changed, answer.after.drill) == (True, None)
    [ended] = harness.events.of(DrillEnded)
    assert (ended.seconds, ended.ended_by) == (5.0, "ann")


async def test_the_way_is_restored_in_time_even_if_the_service_does_not_run(
    harness: Harness,
) -> None:
    stage = await staged(harness, runs=False)
    stage.begin(DrillFault.REFUSE, seconds=10.0)

    await trio.sleep(10.0)

    await stage.primary.send(ORDERS, [message()])
    assert stage.drills.drill is None


async def test_a_drill_ends_with_the_process(harness: Harness) -> None:
    stage = await staged(harness, runs=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(stage.drills.run)
        stage.begin(DrillFault.REFUSE)
        nursery.cancel_scope.cancel()

    await stage.primary.send(ORDERS, [message()])
    assert [each.ended_by for each in harness.events.of(DrillEnded)] == [""]


async def test_the_same_order_again_changes_nothing_and_another_is_refused(
    harness: Harness,
) -> None:
    stage = await staged(harness)

    first = stage.begin(DrillFault.REFUSE, reason="game day")
    again = stage.begin(DrillFault.REFUSE)
    with pytest.raises(
        InvalidRequest, match="a drill is under way: namespace east, refuse, by ann"
    ):
        stage.begin(DrillFault.HANG)
    ended = stage.drills.end(ANN)
    nothing = stage.drills.end(ANN)

    assert [each.changed for each in (first, again, ended, nothing)] == [True, False, True, False]
    assert again.before == again.after == first.after
    assert first.after.drill is not None
    assert first.after.drill.until == harness.after(30.0)
    called = [(each.action, each.changed) for each in harness.events.of(ControlCalled)]
    assert called == [
        ("drill", True),
        ("drill", False),
        ("end-drill", True),
        ("end-drill", False),
    ]


async def test_each_drill_is_an_event_with_its_operator(harness: Harness) -> None:
    stage = await staged(harness)

    stage.begin(DrillFault.REFUSE, targets=("orders", "bills"), reason="game day")
    await trio.sleep(31.0)

    assert harness.events.of(DrillBegan) == [
        DrillBegan(
            namespace="east",
            target="orders bills",
            fault="refuse",
            seconds=30.0,
            operator="ann",
            reason="game day",
        )
    ]
    assert harness.events.of(DrillEnded) == [
        DrillEnded(
            namespace="east", target="orders bills", fault="refuse", seconds=30.0, ended_by=""
        )
    ]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"seconds": 901.0}, "at most 900 expected"),
        ({"namespace": "north"}, "namespace: east or west expected, got 'north'"),
    ],
)
async def test_an_order_that_cannot_be_executed_is_refused(
    harness: Harness, fields: dict[str, Any], problem: str
) -> None:
    stage = await staged(harness)

    with pytest.raises(InvalidRequest, match=problem):
        stage.begin(DrillFault.REFUSE, **fields)

    assert harness.events.of(ControlCalled) == []


async def test_without_the_configuration_s_permission_there_is_no_drill(harness: Harness) -> None:
    drills = Drills(clock=harness.clock, observer=harness.events, cuts={}, longest=900.0)

    with pytest.raises(NotSupported, match="allowed = true"):
        drills.begin(DrillOrder(seconds=1.0), ANN)

    assert not drills.state().allowed


async def test_the_secondary_can_be_drilled_too(harness: Harness) -> None:
    stage = await staged(harness)
    secondary = InterceptedBroker(harness.secondary.broker, [stage.drills.cuts[WEST]])

    stage.begin(DrillFault.REFUSE, namespace=WEST)

    assert isinstance(await outcome_of(lambda: secondary.send(QUEUE, [message()])), Unreachable)
    assert await send(stage.pair)() is AcceptedBy.PRIMARY


@pytest.mark.parametrize("name", ["t", "t/Subscriptions/s", "t/Subscriptions/s/$DeadLetterQueue"])
async def test_a_topic_is_cut_with_its_subscriptions(harness: Harness, name: str) -> None:
    stage = await staged(harness)
    answer = stage.begin(DrillFault.REFUSE, targets=("T",))

    assert answer.after.drill is not None
    assert answer.after.drill.covers(EntityPath(name))
    assert not answer.after.drill.covers(ORDERS)


async def test_a_drill_that_is_under_way_is_told_to_other_processes(harness: Harness) -> None:
    stage = await staged(harness)
    feature = Drilling(stage.drills, DrillReplica(stage.drills.cuts))
    before = feature.in_force()
    stage.begin(DrillFault.REFUSE, seconds=60.0)
    [during] = feature.in_force()
    await trio.sleep(61)

    assert "refuse, by ann" in during
    assert (*before, *feature.in_force()) == ()
