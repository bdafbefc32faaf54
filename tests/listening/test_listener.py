"""A listener receives messages, handles and settles them."""

from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.events.gateway import Poisoned
from gateway.domain.message import Abandon, DeadLetter, Defer
from gateway.listening.consumer_stats import Operation
from gateway.listening.items import Json
from tests.harness.clocks import VirtualClock
from tests.listening.harness import ORDERS, ids, nothing, state_of, until, virtual_time

pytestmark = virtual_time


async def test_a_message_is_completed_after_its_handler_has_returned(harness):
    seen = []

    async def handle(item):
        seen.append(await harness.waiting())
        await trio.sleep(5.0)
        seen.append(await harness.waiting())

    await harness.send("m1")
    await harness.listen(handle)
    await until(lambda: bool(harness.items))

    assert seen == [["m1"], ["m1"]]
    assert await harness.waiting() == []


@pytest.mark.parametrize("days", [-3650, 3650], ids=["behind", "ahead"])
async def test_a_clock_that_is_wrong_by_years_lets_no_lock_end_under_a_handler(harness, days):
    runs = 0

    async def handle(item):
        nonlocal runs
        runs += 1
        await trio.sleep(400.0)

    queue = EntityPath("long")
    await harness.create(queue, lock_duration=timedelta(minutes=1))
    await harness.send("m1", queue=queue)
    await harness.listen(handle, "long", clock=VirtualClock(timedelta(days=days)))
    await trio.sleep(1000.0)

    assert (runs, ids(harness.items)) == (1, ["m1"])
    assert await harness.waiting(queue) == []


async def test_items_are_handled_in_parallel_and_never_more_than_the_bound(harness):
    running = most = 0

    async def handle(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1.0)
        running -= 1

    await harness.send(*map(str, range(20)))
    await harness.listen(handle, options={"parallel": 4})
    await until(lambda: len(harness.items) == 20)

    assert most == 4


async def test_operations_are_told_without_a_request(harness):
    await harness.send("1", "2")
    listener = await harness.listen(nothing)
    await until(lambda: len(harness.items) == 2)
    (first,) = listener.states().values()
    (again,) = listener.states().values()

    assert first.operations == again.operations
    assert first.operations[Operation.SETTLE] == 2
    assert first.operations[Operation.RECEIVE] == 1


async def test_the_time_that_handlers_take_is_told_by_their_error(harness):
    async def handle(item):
        await trio.sleep(0.5)
        if item.message.message_id == "2":
            raise ValueError("two")

    await harness.send("1", "2")
    listener = await harness.listen(handle, options={"poison_threshold": 1})
    await until(lambda: len(next(iter(listener.states().values())).handled) == 2)

    handled = next(iter(listener.states().values())).handled
    assert {name: seconds.count for name, seconds in handled.items()} == {"": 1, "ValueError": 1}
    assert handled[""].total == 0.5


async def test_a_batch_has_at_most_as_many_as_the_options_say(harness):
    polled = harness.poll()
    await harness.send(*map(str, range(70)))
    listener = await harness.listen(nothing, options={"max_tasks": 1})
    await until(lambda: len(harness.items) == 70)

    assert (await state_of(listener)).operations[Operation.RECEIVE] == 3
    assert polled.polls[ORDERS] >= 3


async def test_a_failed_message_comes_again_and_doesnt_hold_up_others(harness):
    tried = []

    async def handle(item):
        tried.append(item.message.message_id)
        if item.message.message_id == "bad" and item.attempt < 3:
            raise ValueError("no")

    await harness.send("bad", "good")
    await harness.listen(handle, options={"parallel": 1})
    await until(lambda: len(harness.items) == 2)

    assert ids(harness.items) == ["good", "bad"]
    assert tried.count("bad") == 3
    assert len(harness.errors) == 2


@pytest.mark.parametrize("settlement", [Abandon(), DeadLetter(reason="no"), Defer()])
async def test_a_handler_may_say_what_becomes_of_the_message(harness, settlement):
    async def handle(item):
        return settlement if item.attempt == 1 else None

    await harness.send("m1")
    await harness.listen(handle)
    await until(lambda: bool(harness.items))

    assert len(await harness.dead_letters()) == isinstance(settlement, DeadLetter)
    assert len(await harness.waiting()) == isinstance(settlement, Defer)


async def test_the_lock_of_a_long_work_is_renewed_at_about_half_its_time(harness):
    async def handle(item):
        await trio.sleep(300.0)

    await harness.send("m1")
    listener = await harness.listen(handle)
    await until(lambda: bool(harness.items))

    assert harness.items[0].attempt == 1
    assert (await state_of(listener)).operations[Operation.RENEW] in {19, 20, 21}


@pytest.mark.parametrize(
    ("ahead", "renewals"),
    [(-7200.0, 10), (7200.0, 20), (59.2, 20), (59.05, 500), (30.0, 20)],
    ids=["behind", "the lock is over", "it is nearly over", "it ends soon", "half of it is over"],
)
async def test_the_lock_of_a_long_work_is_renewed_whatever_the_clock_says(harness, ahead, renewals):
    async def handle(item):
        await trio.sleep(300.0)

    orders = EntityPath("long-orders")
    await harness.create(orders, lock_duration=timedelta(seconds=60))
    await harness.send("m1", queue=orders)
    clock = VirtualClock(timedelta(seconds=ahead))
    listener = await harness.listen(handle, str(orders), clock=clock)
    await until(lambda: bool(harness.items))

    assert harness.items[0].attempt == 1
    made = (await state_of(listener, orders)).operations[Operation.RENEW]
    assert made == pytest.approx(renewals, abs=1)


async def test_a_handler_is_cancelled_before_its_lock_ends_where_nothing_is_renewed(harness):
    began, ended = [], []

    async def handle(item):
        began.append(trio.current_time())
        try:
            await trio.sleep(3600.0 if item.attempt == 1 else 0.0)
        finally:
            ended.append(trio.current_time())

    await harness.send("m1")
    listener = await harness.listen(handle, options={"renew": False})
    await until(lambda: bool(harness.items))

    assert 20.0 < ended[0] - began[0] < 30.0
    assert (await state_of(listener)).too_late == 1


async def test_a_cancelled_listener_loses_nothing(harness):
    async def handle(item):
        if int(item.message.message_id) % 2:
            await trio.sleep_forever()

    await harness.send(*map(str, range(20)))
    listener = harness.listener(handle)
    with trio.move_on_after(2.0):
        await listener.run()

    assert sorted(map(int, ids(harness.items))) == list(range(0, 20, 2))
    assert sorted(map(int, await harness.waiting())) == list(range(1, 20, 2))
    assert harness.is_completed


async def test_work_that_is_done_when_the_listener_is_cancelled_is_settled(harness):
    scope = trio.CancelScope()

    async def handle(item):
        scope.cancel()  # handled, and not settled yet

    await harness.send("m1")
    listener = harness.listener(handle)
    with scope:
        await listener.run()

    assert await harness.waiting() == []


async def test_queues_share_the_handlers_by_their_weights(harness):
    urgent, bulk = EntityPath("urgent"), EntityPath("bulk")
    order = []

    async def handle(item):
        order.append(item.queue)
        await trio.sleep(1.0)

    for queue in (urgent, bulk):
        await harness.create(queue)
        await harness.send(*map(str, range(200)), queue=queue)
    await harness.listen(handle, "urgent:8 bulk:2", options={"parallel": 1})
    await until(lambda: len(order) == 100)

    assert 75 <= order.count(urgent) <= 85
    assert 15 <= order.count(bulk) <= 25


async def test_a_queue_alone_has_all_handlers_whatever_its_weight(harness):
    await harness.create(EntityPath("bulk"))
    await harness.send(*map(str, range(50)), queue=EntityPath("bulk"))

    async def handle(item):
        await trio.sleep(1.0)

    began = trio.current_time()
    await harness.listen(handle, "orders:99 bulk:1", options={"parallel": 10})
    await until(lambda: len(harness.items) == 50)

    assert trio.current_time() - began < 6.5


async def test_bytes_in_flight_are_bounded(harness):
    most = 0

    async def handle(item):
        nonlocal most
        state = await state_of(listener)
        most = max(most, state.locked)
        await trio.sleep(1.0)

    await harness.send(*map(str, range(40)), body=bytes(1000))
    listener = await harness.listen(
        handle, options={"batch": 1, "max_inflight": 5000, "max_tasks": 1, "parallel": 100}
    )
    await until(lambda: len(harness.items) == 40)

    assert most == 5


async def test_a_handler_that_returns_something_else_has_failed(harness):
    async def handle(item):
        return "done" if item.attempt == 1 else None

    await harness.send("m1")
    await harness.listen(handle)
    await until(lambda: bool(harness.items))

    assert harness.items[0].attempt == 2
    assert "got a str" in str(harness.errors[0])


async def test_a_format_that_breaks_is_the_fault_of_its_message(harness):
    class Broken:
        def parse(self, message):
            return message.properties["missing"]

    await harness.send("m1", "m2")
    await harness.listen(nothing, format=Broken())
    await until(lambda: len(harness.of(Poisoned)) == 2)

    assert len(await harness.dead_letters()) == 2


async def test_handlers_may_raise_groups_of_errors(harness):
    async def handle(item):
        async def fail():
            raise ValueError

        if item.attempt == 1:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                nursery.start_soon(trio.sleep_forever)

    await harness.send("m1")
    await harness.listen(handle)
    await until(lambda: bool(harness.items))

    assert [type(error) for error in harness.errors] == [ValueError]


@pytest.mark.parametrize(
    ("queues", "wrong"),
    [
        ("orders Orders", "named twice"),
        ({}, "at least one"),
        ({"orders": 0}, "a weight of 1 to 1000"),
        ("or//ders", "entity name"),
    ],
)
async def test_queues_that_make_no_sense_are_refused_at_once(harness, queues, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        harness.listener(nothing, queues)


@attrs.frozen
class Order:
    id: int


async def test_a_message_that_doesnt_parse_is_poison_with_its_reason_and_holds_up_nothing(harness):
    await harness.send("bad", body=b'{"id": "x"}')
    await harness.send("good", body=b'{"id": 7}')
    await harness.listen(nothing, format=Json(Order))
    await until(lambda: bool(harness.items))
    (dead,) = await harness.dead_letters()

    assert harness.items[0].value == Order(7)
    assert dead.message_id == "bad"
    assert dead.properties["DeadLetterReason"] == "MalformedMessage"
    assert "id" in dead.properties["DeadLetterErrorDescription"]
