"""A queue moves from the primary to another namespace, and back."""

from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    EntityNotFound,
    InvalidRequest,
    MessageNotFound,
    NotSupported,
    Unreachable,
)
from gateway.domain.message import Abandon, Complete, Defer, MessageState
from gateway.extensions.move.events import EntityMoved
from gateway.extensions.move.stages import SWITCH
from tests.extensions.move.stand import MoveStand, Uncounted
from tests.harness.faults import Fault, LoseAnswer, Operation, SwallowAnswer
from tests.pairing.harness import ORDERS, QUEUE, Harness, message, refuse, virtual_time

pytestmark = virtual_time


@pytest.fixture
async def stand(harness: Harness) -> MoveStand:
    return await MoveStand.make(harness)


async def test_a_queue_that_nobody_receives_from_moves_with_its_messages(stand: MoveStand) -> None:
    gateway = await stand.gateway()
    await gateway.send("a", "b", "c")

    await gateway.order("start", reason="to the new region")
    await gateway.until("new")
    await gateway.send("d")

    assert await stand.ids() == ([], ["a", "b", "c", "d"])
    state = await gateway.state()
    assert (state.report.active, state.report.moved) == (3, ("a", "b", "c"))
    assert (state.left, state.report.doubtful, state.reason) == (0, (), "to the new region")
    [event] = stand.harness.events.of(EntityMoved)
    assert (event.to, event.messages, event.left) == ("new", 3, 0)


async def test_a_queue_is_made_with_its_properties(stand: MoveStand) -> None:
    properties = QueueProperties(lock_duration=timedelta(seconds=7), max_delivery_count=3)
    await stand.harness.primary.store.create_queue(EntityPath("bids"), properties)
    gateway = await stand.gateway()

    await gateway.order("start", "bids")

    assert (await stand.new.store.inspect(EntityPath("bids"))).properties == properties


async def test_sends_go_to_the_new_side_at_the_date_of_the_stage_from_all_gateways(
    stand: MoveStand,
) -> None:
    first, second = await stand.gateway(moves=False), await stand.gateway(moves=False)

    await first.order("start")
    await trio.sleep(SWITCH.total_seconds() - 0.1)
    await first.send("a")
    await second.send("b")
    await trio.sleep(0.2)
    await first.send("c")
    await second.send("d")

    assert await stand.ids() == (["a", "b"], ["c", "d"])


async def test_a_send_waits_for_nothing_of_a_move(stand: MoveStand) -> None:
    gateway = await stand.gateway()
    sent, longest = 0, 0.0
    await gateway.order("start")
    while sent < 1000:
        if sent == 400:
            await gateway.order("rollback")
        began = trio.current_time()
        await gateway.send(str(sent))
        longest = max(longest, trio.current_time() - began)
        sent += 1
        await trio.sleep(0.1)
    await gateway.until("old")

    assert longest == 0.0
    assert sorted((await stand.ids())[0], key=int) == [str(each) for each in range(1000)]


async def test_a_receiver_that_is_open_is_served_from_both_sides(stand: MoveStand) -> None:
    gateway = await stand.gateway(moves=False)
    await gateway.send("a", "b")
    found = []
    with trio.fail_after(60):
        async with gateway.pair.broker.open_receiver(ORDERS) as receiver:
            held = (await receiver.receive(1))[0]
            await gateway.order("start")
            await gateway.until("to-new")
            await gateway.send("c")
            while len(found) < 2:
                for each in await receiver.receive(5):
                    await receiver.settle(each, Complete())
                    found.append(each.message.message_id)
            await receiver.settle(held, Complete())

    assert (held.message.message_id, sorted(found)) == ("a", ["b", "c"])
    assert await stand.ids() == ([], [])


async def test_a_held_message_is_settled_though_the_move_has_ended(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway()
    await gateway.order("start")
    await gateway.until("new")
    await gateway.order("rollback")
    await gateway.until("to-old")
    with trio.fail_after(60):
        async with gateway.pair.broker.open_receiver(ORDERS) as receiver:
            await stand.new.store.send(ORDERS, [message("a")])
            [held] = await receiver.receive(1)
            await stand.new.store.create_queue(EntityPath("other"), QueueProperties())
            await receiver.settle(held, Complete())
            await gateway.until("old")
            await gateway.send("b")
            [other] = await receiver.receive(1)
            await receiver.settle(other, Complete())

    assert await stand.ids() == ([], [])


async def test_a_roll_back_moves_the_messages_back(stand: MoveStand) -> None:
    gateway = await stand.gateway()
    await gateway.send("a")
    await gateway.order("start")
    await gateway.until("new")
    await gateway.send("b")

    await gateway.order("rollback")
    await gateway.until("old")
    await gateway.send("c")

    assert await stand.ids() == (["a", "b", "c"], [])


async def test_a_move_is_rolled_back_before_it_has_ended_and_started_again(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway(moves=False)
    await stand.put(message("a"))
    await gateway.order("start")
    await gateway.until("to-new")
    await gateway.send("b")

    await gateway.order("rollback")
    await gateway.until("to-old")
    await gateway.send("c")
    again = await gateway.order("start")
    await gateway.until("to-new")
    await gateway.send("d")

    assert await stand.ids() == (["a", "c"], ["b", "d"])
    assert again.changed


async def test_a_paused_move_moves_nothing_until_it_is_resumed(stand: MoveStand) -> None:
    gateway = await stand.gateway()
    await gateway.send("a")
    await gateway.order("start")
    await gateway.order("pause")
    await trio.sleep(60)
    paused = await stand.ids()

    await gateway.order("resume")
    await gateway.until("new")

    assert paused == (["a"], [])
    assert await stand.ids() == ([], ["a"])


async def test_an_order_that_changes_nothing_says_so(stand: MoveStand) -> None:
    gateway = await stand.gateway(moves=False)
    first = await gateway.order("start")
    second = await gateway.order("start")

    assert (first.changed, second.changed) == (True, False)


async def test_an_order_that_does_not_fit_is_refused(stand: MoveStand) -> None:
    gateway = await stand.gateway(moves=False)

    for action, target, text in (
        ("pause", "orders", "no move of orders was started"),
        ("start", "nothing*", r"no queue or topic matches nothing\*"),
    ):
        with pytest.raises(InvalidRequest, match=text):
            await gateway.order(action, target)
    with pytest.raises(EntityNotFound):
        await gateway.order("start", "missing")


async def test_a_restart_finds_the_stage(stand: MoveStand) -> None:
    async with trio.open_nursery() as process:
        gateway = await stand.gateway(process)
        await gateway.order("start")
        await gateway.until("to-new")
        process.cancel_scope.cancel()

    again = await stand.gateway(moves=False)
    await again.send("a")

    assert await stand.ids() == ([], ["a"])


async def test_the_stage_holds_while_the_shared_folder_can_not_be_read(stand: MoveStand) -> None:
    gateway = await stand.gateway(moves=False)
    await gateway.order("start")
    await gateway.until("to-new")

    stand.store.values["moves"] = (b"not JSON", "damaged")
    await trio.sleep(5)
    await gateway.send("a")

    assert await stand.ids() == ([], ["a"])


async def test_another_process_goes_on_when_the_mover_is_killed(stand: MoveStand) -> None:
    async with trio.open_nursery() as process:
        gateway = await stand.gateway(process)
        await gateway.order("start")
        await gateway.until("to-new")
        stand.harness.primary.fail(refuse(Unreachable, "killed"))
        process.cancel_scope.cancel()
    # As a killed process leaves it: nobody has released the lease.
    held = b'{"process":"killed","until":"%s"}' % (
        (stand.harness.clock() + timedelta(seconds=9)).isoformat().encode()
    )
    stand.store.values["mover"] = (held, "killed")
    stand.harness.primary.heal()
    await stand.put(message("a"))

    other = await stand.gateway()
    await trio.sleep(8)
    before = await stand.ids()
    await other.until("new")

    assert before == (["a"], [])
    assert await stand.ids() == ([], ["a"])
    assert (await other.state()).report.interrupted == 1


async def test_only_one_of_several_processes_moves(stand: MoveStand) -> None:
    first, second = await stand.gateway(), await stand.gateway()
    await first.send(*(f"m{number}" for number in range(200)))

    await first.order("start")
    await second.until("new")

    assert sorted((await stand.ids())[1]) == sorted(f"m{number}" for number in range(200))
    assert (await first.state()).report.active == 200


@pytest.mark.parametrize("fault", [LoseAnswer(), SwallowAnswer()], ids=["lost", "never given"])
async def test_a_send_without_an_answer_is_told_and_its_message_stays(
    stand: MoveStand, fault: Fault
) -> None:
    gateway = await stand.gateway()
    await stand.put(message("a"))
    stand.new.fail(fault, Operation.SEND, times=1)

    await gateway.order("start")
    await gateway.until("new", 300)

    assert await stand.ids() == ([], ["a", "a"])
    assert (await gateway.state()).report.doubtful == ("a",)


async def test_an_outage_of_the_new_side_dead_letters_no_message(stand: MoveStand) -> None:
    await stand.new.store.create_queue(ORDERS, QueueProperties())
    gateway = await stand.gateway()
    await stand.put(message("a"))
    await gateway.order("start")
    stand.new.fail(refuse(Unreachable, "refused"), Operation.SEND)
    await trio.sleep(600)  # a probe says nothing of it
    stand.new.fail(refuse(Unreachable, "refused"))
    await trio.sleep(600)
    [waiting] = await stand.harness.primary.deliveries()
    stand.new.heal()
    await gateway.until("new")

    assert (waiting.message.message_id, waiting.delivery_count) == ("a", 0)
    assert await stand.ids() == ([], ["a"])


async def test_a_message_that_the_new_side_refuses_stays_and_pauses_the_move(
    stand: MoveStand,
) -> None:
    await stand.new.store.create_queue(ORDERS, QueueProperties(max_message_size=None))
    gateway = await stand.gateway()
    await stand.put(message("a"))
    stand.new.fail(refuse(NotSupported, "no such type"), Operation.SEND)

    await gateway.order("start")
    await trio.sleep(30)
    state = await gateway.state()

    assert (state.paused, state.report.left) == (True, ("a: no such type",))
    assert "1 messages can't be moved, as a: no such type" in state.problem
    assert await stand.ids() == (["a"], [])


async def test_an_outage_of_the_new_side_is_one_of_the_pair(stand: MoveStand) -> None:
    gateway = await stand.gateway(failover_interval=0.0)
    await gateway.order("start")
    await gateway.until("new")
    stand.new.fail(refuse(Unreachable, "refused"))

    await gateway.send("a")
    diverted = await stand.ids(), len(await stand.harness.secondary.messages(QUEUE))
    stand.new.heal()
    syphon = stand.harness.make_syphon()
    syphon = attrs.evolve(syphon, primary=gateway.broker)
    await stand.harness.nursery.start(syphon.run)
    await trio.sleep(60)

    assert diverted == (([], []), 1)
    assert await stand.ids() == ([], ["a"])


async def test_an_entity_that_is_failed_over_returns_at_the_new_side(stand: MoveStand) -> None:
    gateway = await stand.gateway(failover_interval=0.0)
    await stand.new.store.create_queue(ORDERS, QueueProperties())
    await gateway.order("start")
    stand.harness.primary.fail(refuse(Unreachable, "gone"))
    await gateway.send("a")

    await gateway.until("to-new")
    await trio.sleep(60)
    await gateway.send("b")

    assert await stand.new.ids() == ["b"]


async def test_a_move_from_a_namespace_that_is_gone_is_forced(stand: MoveStand) -> None:
    gateway = await stand.gateway(failover_interval=0.0)
    await stand.new.store.create_queue(ORDERS, QueueProperties())
    stand.harness.primary.fail(refuse(Unreachable, "gone"))
    await gateway.send("a")

    with pytest.raises(InvalidRequest, match="the old namespace doesn't answer: gone"):
        await gateway.order("start")
    await gateway.order("start", force=True)
    await gateway.until("to-new")
    await trio.sleep(60)
    await gateway.send("b")
    waiting = await gateway.state()
    stand.harness.primary.heal()
    await stand.put(message("old"))
    await gateway.until("new")

    assert (waiting.stage.value, waiting.problem) == ("to-new", "gone")
    assert (await stand.ids())[1] == ["b", "old"]


async def test_a_scheduled_message_moves_and_is_cancelled_by_its_first_number(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway(is_plain=True)
    due = stand.harness.clock() + timedelta(hours=2)
    numbers = await gateway.broker.schedule(
        ORDERS, [message("a", scheduled=due), message("b", scheduled=due)]
    )

    await gateway.order("start")
    await gateway.until("new")
    moved = [(each.message.message_id, each.state) for each in await stand.new.deliveries()]
    await gateway.broker.cancel_scheduled(ORDERS, [numbers[0]])
    with pytest.raises(MessageNotFound):
        await gateway.broker.cancel_scheduled(ORDERS, [numbers[0]])

    assert moved == [("a", MessageState.SCHEDULED), ("b", MessageState.SCHEDULED)]
    assert await stand.ids() == ([], ["b"])
    assert (await gateway.state()).report.scheduled == 2


async def test_a_deferred_message_stays_until_it_is_received_by_its_number(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway()
    await gateway.send("a")
    async with gateway.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Defer())
        await gateway.order("start")
        await trio.sleep(60)
        before = await gateway.state()
        [deferred] = await receiver.receive_deferred([delivery.sequence_number])  # type: ignore[attr-defined]
        await receiver.settle(deferred, Complete())
    await gateway.until("new")

    assert (before.stage.value, before.left) == ("to-new", 1)
    assert deferred.message.message_id == "a"


async def test_a_deferred_message_stays_where_its_namespace_does_not_count_it(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway(is_plain=True)
    await gateway.send("a")
    gateway.broker.sides = (Uncounted(gateway.broker.sides[0], "deferred"), gateway.broker.sides[1])
    async with gateway.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Defer())
        await gateway.order("start")
        await trio.sleep(60)
        before = await gateway.state()
        [deferred] = await receiver.receive_deferred([delivery.sequence_number])  # type: ignore[attr-defined]
        await receiver.settle(deferred, Complete())
    await gateway.until("new")

    assert (before.stage.value, before.report.deferred) == ("to-new", 1)
    assert (await gateway.state()).report.deferred == 0


async def test_the_time_to_live_goes_on(stand: MoveStand) -> None:
    gateway = await stand.gateway()
    await gateway.send("a", time_to_live=timedelta(minutes=10))
    await trio.sleep(300)

    await gateway.order("start")
    await gateway.until("new")

    [moved] = await stand.new.messages()
    assert moved.time_to_live is not None
    assert timedelta(minutes=4) < moved.time_to_live < timedelta(minutes=5)


async def test_a_late_message_at_the_side_that_was_left_is_moved_too(stand: MoveStand) -> None:
    gateway = await stand.gateway()
    await gateway.order("start")
    await gateway.until("new")

    await stand.put(message("late"))
    await trio.sleep(60)

    assert await stand.ids() == ([], ["late"])


async def test_counts_are_those_of_both_sides_while_an_entity_moves(stand: MoveStand) -> None:
    gateway = await stand.gateway(moves=False, is_plain=True)
    await gateway.send("a", "b")
    await gateway.order("start")
    await gateway.until("to-new")
    await gateway.send("c")

    info = await gateway.broker.inspect(ORDERS)
    shown = [
        each.message.message_id
        for number in (0, 1 << 53)
        for each in await gateway.broker.peek(ORDERS, from_sequence=number, limit=10)
    ]

    assert (info.active, shown) == (3, ["a", "b", "c"])
    with pytest.raises(NotSupported, match="is being moved"):
        await gateway.broker.clear_queue(ORDERS)


async def test_an_abandoned_message_comes_again_from_its_side(stand: MoveStand) -> None:
    gateway = await stand.gateway(moves=False)
    await gateway.send("a")
    await gateway.order("start")
    await gateway.until("to-new")

    async with gateway.broker.open_receiver(ORDERS) as receiver:
        [first] = await receiver.receive(1)
        await receiver.settle(first, Abandon())
        [again] = await receiver.receive(1)
        await receiver.settle(again, Complete())

    assert (first.delivery_count, again.delivery_count) == (1, 2)
