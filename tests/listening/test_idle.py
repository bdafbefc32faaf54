"""An idle queue costs few requests, and its tasks come and go."""

from collections import Counter

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import TasksEnded, WorkDetected
from gateway.domain.status.listening import Wake
from gateway.listening.consumer_stats import Operation
from gateway.listening.job import Idle
from gateway.listening.triggers import Trigger, Triggers
from tests.harness.faults import Operation as Asked
from tests.listening.harness import ORDERS, ids, nothing, state_of, until, virtual_time

pytestmark = virtual_time

HOUR = 3600.0


async def test_22_idle_hours_cost_at_most_100_requests_an_hour(harness):
    polled = harness.poll()
    listener = await harness.listen(nothing)
    await trio.sleep(HOUR)
    first = polled.polls[ORDERS]
    await trio.sleep(21 * HOUR)

    assert first <= 100
    assert polled.polls[ORDERS] <= 22 * 61 + 20
    assert (await state_of(listener)).operations[Operation.EMPTY] == polled.polls[ORDERS]


async def test_22_idle_hours_cost_nothing_with_triggers(harness):
    polled = harness.poll()
    listener = await harness.listen(nothing, triggers=Triggers(hears_all_senders=True))
    await trio.sleep(HOUR)
    first = polled.polls[ORDERS]
    await trio.sleep(21 * HOUR)

    assert first < 20  # until the last task ended
    assert polled.polls[ORDERS] == first
    assert (await state_of(listener)).total_tasks == 0


async def test_22_idle_hours_cost_nothing_where_the_namespace_pushes(harness):
    listener = await harness.listen(nothing)
    await trio.sleep(22 * HOUR)
    state = await state_of(listener)

    assert state.operations == {Operation.INSPECT: 1}  # the question itself
    assert state.total_tasks == 1


async def test_with_triggers_a_message_doesnt_wait_for_the_next_look(harness):
    triggers = Triggers()
    harness.poll()
    await harness.listen(nothing, triggers=triggers)
    await trio.sleep(5 * HOUR)
    await harness.send("m1")
    began = trio.current_time()
    triggers.publish(Trigger(queue=ORDERS))
    await until(lambda: bool(harness.items))

    assert trio.current_time() - began < 0.1


async def test_a_trigger_before_its_message_is_enqueued_is_as_good(harness):
    triggers = Triggers()
    harness.poll()
    await harness.listen(nothing, triggers=triggers)
    await trio.sleep(5 * HOUR)
    triggers.publish(Trigger(queue=ORDERS))
    await trio.sleep(10.0)
    await harness.send("m1")
    began = trio.current_time()
    await until(lambda: bool(harness.items))

    assert trio.current_time() - began < 15.0


async def test_a_trigger_wakes_a_task_out_of_its_pause(harness):
    triggers = Triggers()
    harness.poll()
    await harness.listen(nothing, triggers=triggers, options={"idle_min": 50.0})
    await trio.sleep(10.0)
    await harness.send("m1")
    triggers.publish(Trigger(queue=ORDERS))
    await until(lambda: bool(harness.items), seconds=1.0)


async def test_a_trigger_wakes_the_listeners_of_its_queue_and_account_only(harness):
    triggers = Triggers(hears_all_senders=True)
    bills = EntityPath("bills")
    await harness.create(bills)
    polled = harness.poll()
    await harness.listen(nothing, "orders bills", triggers=triggers, account="contoso")
    await trio.sleep(HOUR)
    before = polled.polls.copy()
    triggers.publish(Trigger(account="contoso", queue=bills))
    triggers.publish(Trigger(account="fabrikam", queue=ORDERS))
    await trio.sleep(1.0)

    assert polled.polls[bills] > before[bills]
    assert polled.polls[ORDERS] == before[ORDERS]


async def test_a_lost_channel_of_triggers_falls_back_to_polling(harness):
    triggers = Triggers()
    polled = harness.poll()
    await harness.listen(nothing, triggers=triggers)
    await trio.sleep(HOUR)
    before = polled.polls[ORDERS]
    triggers.lose()
    await trio.sleep(HOUR)
    await harness.send("m1")
    await until(lambda: bool(harness.items), seconds=61.0)

    assert 60 <= polled.polls[ORDERS] - before <= 100


async def test_a_channel_that_is_back_ends_the_polling(harness):
    triggers = Triggers(hears_all_senders=True)
    polled = harness.poll()
    await harness.listen(nothing, triggers=triggers)
    await trio.sleep(HOUR)
    triggers.lose()
    await trio.sleep(HOUR)
    await harness.send("m1")
    triggers.regain()
    await until(lambda: bool(harness.items), seconds=1.0)
    await trio.sleep(HOUR)
    before = polled.polls[ORDERS]
    await trio.sleep(20 * HOUR)

    assert polled.polls[ORDERS] == before


async def test_a_failed_message_is_tried_again_where_only_triggers_wake(harness):
    harness.poll()

    async def handle(item):
        if item.attempt < 4:
            await trio.sleep(2 * HOUR)  # by then no task is left
            raise ValueError

    await harness.send("m1")
    await harness.listen(handle, triggers=Triggers())
    await until(lambda: bool(harness.items), seconds=8 * HOUR)


async def test_a_sweep_finds_what_came_back_without_a_trigger(harness):
    harness.poll()
    await harness.listen(nothing, triggers=Triggers(), options={"sweep": 900.0})
    await trio.sleep(HOUR)
    await harness.send("m1")
    await until(lambda: bool(harness.items), seconds=901.0)


async def test_an_unannounced_message_is_found_within_a_minute_where_a_sender_may_not_announce(
    harness,
):
    polled = harness.poll()
    listener = await harness.listen(nothing, triggers=Triggers())
    await trio.sleep(5 * HOUR)
    before = polled.polls[ORDERS]
    await harness.send("m1")  # as moved home by a syphon of its own, which doesn't announce it
    await until(lambda: bool(harness.items), seconds=61.0)

    assert before <= 5 * 61 + 20
    assert listener.wake == Wake(announced=False, poll_every=60.0)


async def test_a_listener_tells_whether_every_message_is_announced_to_it(harness):
    harness.poll()
    triggers = Triggers(hears_all_senders=True)
    listener = await harness.listen(nothing, triggers=triggers, options={"idle_max": 20.0})
    while_connected = listener.wake
    triggers.lose()

    assert while_connected == Wake(announced=True, poll_every=None)
    assert listener.wake == Wake(announced=False, poll_every=20.0)
    assert harness.listener(nothing).wake == Wake(announced=False, poll_every=60.0)


@pytest.mark.parametrize(("depth", "tasks"), [(50, 10), (500, 50), (5000, 100)])
async def test_work_detected_starts_as_many_tasks_as_its_depth_asks_for(harness, depth, tasks):
    async def handle(item):
        await trio.sleep(1.0)

    harness.poll()
    await harness.send(*map(str, range(depth)))
    listener = await harness.listen(handle, options={"parallel": 200, "max_locked": 10_000})
    await trio.sleep(0.02)
    operations = Counter((await state_of(listener)).operations)

    assert harness.of(WorkDetected)[0].tasks == tasks
    assert operations[Operation.RECEIVE] + operations[Operation.EMPTY] >= tasks


async def test_idle_tasks_end_and_the_last_one_stays(harness):
    polled = harness.poll()
    await harness.send(*map(str, range(500)))
    listener = await harness.listen(nothing)
    await until(lambda: len(harness.items) == 500)
    await trio.sleep(600.0)
    before = polled.polls[ORDERS]
    await trio.sleep(HOUR)

    assert (await state_of(listener)).total_tasks == 1
    assert polled.polls[ORDERS] - before <= 61
    assert harness.of(TasksEnded)[-1].tasks == 1


async def test_tasks_started_at_first_end_down_to_one_where_the_namespace_pushes(harness):
    listener = await harness.listen(nothing, options={"tasks": 7})
    await trio.sleep(0.1)
    before = await state_of(listener)
    await trio.sleep(100.0)

    assert before.total_tasks == before.active_tasks == 7
    assert (await state_of(listener)).total_tasks == 1


async def test_no_task_is_started_while_every_handler_is_busy_or_the_processor_is(harness):
    async def handle(item):
        await trio.sleep(100.0)

    await harness.send(*map(str, range(500)))
    busy = await harness.listen(handle, options={"parallel": 5})
    loaded = await harness.listen(handle, options={"parallel": 500}, load=lambda: 0.95)
    await trio.sleep(30.0)

    assert (await state_of(busy)).total_tasks == 1
    assert (await state_of(loaded)).total_tasks == 1


async def test_both_handlers_of_events_can_be_replaced(harness):
    empties, samples = [], []

    def on_empty(empty):
        empties.append(empty)
        return Idle(delay=7.0, end=False)

    def on_work(sample):
        samples.append(sample)
        return 3

    polled = harness.poll()
    await harness.send("m1", "m2")
    listener = await harness.listen(nothing, on_empty=on_empty, on_work=on_work)
    await trio.sleep(700.0)

    assert samples[0].oldest_age is not None
    assert (await state_of(listener)).total_tasks == 3
    assert 300 <= polled.polls[ORDERS] <= 304
    assert [each.idle_count for each in empties][-1] == 100


async def test_a_message_that_comes_resets_the_back_off(harness):
    harness.poll()
    await harness.listen(nothing)
    await trio.sleep(HOUR)
    await harness.send("m1")
    await until(lambda: len(harness.items) == 1)
    await trio.sleep(0.2)
    await harness.send("m2")
    await until(lambda: len(harness.items) == 2, seconds=1.0)

    assert ids(harness.items) == ["m1", "m2"]


async def test_a_trigger_in_the_middle_of_the_last_look_isnt_lost(harness):
    triggers = Triggers()
    faulty = await harness.make_faulty()
    looks = []

    def fault(operation, _):
        if operation is Asked.RECEIVE and len(looks) < 2:
            looks.append(trio.current_time())
            if len(looks) == 1:
                triggers.publish(Trigger(queue=ORDERS))

    faulty.fault = fault
    harness.poll()
    await harness.listen(nothing, triggers=triggers, on_empty=lambda _: Idle(delay=0.0, end=True))
    await trio.sleep(10.0)

    assert len(looks) == 2
