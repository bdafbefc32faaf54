"""What becomes of messages that a listener takes."""

from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.events import Poisoned
from gateway.domain.message import Abandon, DeadLetter, Defer
from gateway.listener.items import Json
from gateway.listener.ledger import Operation
from gateway.testing.clocks import VirtualClock
from tests.listener.hall import ORDERS, ids, nothing, state_of, until, virtual_time

pytestmark = virtual_time


async def test_a_message_is_completed_after_its_handler_has_returned(hall):
    seen = []

    async def handle(item):
        seen.append(await hall.waiting())
        await trio.sleep(5.0)
        seen.append(await hall.waiting())

    await hall.send("m1")
    await hall.listen(handle)
    await until(lambda: bool(hall.items))

    assert seen == [["m1"], ["m1"]]
    assert await hall.waiting() == []


async def test_items_are_handled_in_parallel_and_never_more_than_the_bound(hall):
    running = most = 0

    async def handle(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1.0)
        running -= 1

    await hall.send(*map(str, range(20)))
    await hall.listen(handle, options={"parallel": 4})
    await until(lambda: len(hall.items) == 20)

    assert most == 4


async def test_operations_are_told_without_a_request(hall):
    await hall.send("1", "2")
    listener = await hall.listen(nothing)
    await until(lambda: len(hall.items) == 2)
    (first,) = listener.states().values()
    (again,) = listener.states().values()

    assert first.operations == again.operations
    assert first.operations[Operation.SETTLE] == 2
    assert first.operations[Operation.RECEIVE] == 1


async def test_a_batch_has_at_most_as_many_as_the_options_say(hall):
    polled = hall.poll()
    await hall.send(*map(str, range(70)))
    listener = await hall.listen(nothing, options={"max_tasks": 1})
    await until(lambda: len(hall.items) == 70)

    assert (await state_of(listener)).operations[Operation.RECEIVE] == 3
    assert polled.polls[ORDERS] >= 3


async def test_a_failed_message_comes_again_and_doesnt_hold_up_others(hall):
    tried = []

    async def handle(item):
        tried.append(item.message.message_id)
        if item.message.message_id == "bad" and item.attempt < 3:
            raise ValueError("no")

    await hall.send("bad", "good")
    await hall.listen(handle, options={"parallel": 1})
    await until(lambda: len(hall.items) == 2)

    assert ids(hall.items) == ["good", "bad"]
    assert tried.count("bad") == 3
    assert len(hall.errors) == 2


@pytest.mark.parametrize("settlement", [Abandon(), DeadLetter(reason="no"), Defer()])
async def test_a_handler_may_say_what_becomes_of_the_message(hall, settlement):
    async def handle(item):
        return settlement if item.attempt == 1 else None

    await hall.send("m1")
    await hall.listen(handle)
    await until(lambda: bool(hall.items))

    assert len(await hall.dead_letters()) == isinstance(settlement, DeadLetter)
    assert len(await hall.waiting()) == isinstance(settlement, Defer)


async def test_the_lock_of_a_long_work_is_renewed_at_about_half_its_time(hall):
    async def handle(item):
        await trio.sleep(300.0)

    await hall.send("m1")
    listener = await hall.listen(handle)
    await until(lambda: bool(hall.items))

    assert hall.items[0].attempt == 1
    assert (await state_of(listener)).operations[Operation.RENEW] in {19, 20, 21}


@pytest.mark.parametrize(
    ("ahead", "renewals"),
    [(-7200.0, 10), (7200.0, 20), (59.2, 20), (59.05, 500), (30.0, 20)],
    ids=["behind", "the lock is over", "it is nearly over", "it ends soon", "half of it is over"],
)
async def test_the_lock_of_a_long_work_is_renewed_whatever_the_clock_says(hall, ahead, renewals):
    async def handle(item):
        await trio.sleep(300.0)

    orders = EntityPath("long-orders")
    await hall.create(orders, lock_duration=timedelta(seconds=60))
    await hall.send("m1", queue=orders)
    clock = VirtualClock(timedelta(seconds=ahead))
    listener = await hall.listen(handle, str(orders), clock=clock)
    await until(lambda: bool(hall.items))

    assert hall.items[0].attempt == 1
    made = (await state_of(listener, orders)).operations[Operation.RENEW]
    assert made == pytest.approx(renewals, abs=1)


async def test_a_handler_is_cancelled_before_its_lock_ends_where_nothing_is_renewed(hall):
    began, ended = [], []

    async def handle(item):
        began.append(trio.current_time())
        try:
            await trio.sleep(3600.0 if item.attempt == 1 else 0.0)
        finally:
            ended.append(trio.current_time())

    await hall.send("m1")
    listener = await hall.listen(handle, options={"renew": False})
    await until(lambda: bool(hall.items))

    assert 20.0 < ended[0] - began[0] < 30.0
    assert (await state_of(listener)).too_late == 1


async def test_a_cancelled_listener_loses_nothing(hall):
    async def handle(item):
        if int(item.message.message_id) % 2:
            await trio.sleep_forever()

    await hall.send(*map(str, range(20)))
    listener = hall.listener(handle)
    with trio.move_on_after(2.0):
        await listener.run()

    assert sorted(map(int, ids(hall.items))) == list(range(0, 20, 2))
    assert sorted(map(int, await hall.waiting())) == list(range(1, 20, 2))
    assert hall.is_completed


async def test_work_that_is_done_when_the_listener_is_cancelled_is_settled(hall):
    scope = trio.CancelScope()

    async def handle(item):
        scope.cancel()  # done, and nobody was told yet

    await hall.send("m1")
    listener = hall.listener(handle)
    with scope:
        await listener.run()

    assert await hall.waiting() == []


async def test_queues_share_the_handlers_by_their_weights(hall):
    urgent, bulk = EntityPath("urgent"), EntityPath("bulk")
    order = []

    async def handle(item):
        order.append(item.queue)
        await trio.sleep(1.0)

    for queue in (urgent, bulk):
        await hall.create(queue)
        await hall.send(*map(str, range(200)), queue=queue)
    await hall.listen(handle, "urgent:8 bulk:2", options={"parallel": 1})
    await until(lambda: len(order) == 100)

    assert 75 <= order.count(urgent) <= 85
    assert 15 <= order.count(bulk) <= 25


async def test_a_queue_alone_has_all_handlers_whatever_its_weight(hall):
    await hall.create(EntityPath("bulk"))
    await hall.send(*map(str, range(50)), queue=EntityPath("bulk"))

    async def handle(item):
        await trio.sleep(1.0)

    began = trio.current_time()
    await hall.listen(handle, "orders:99 bulk:1", options={"parallel": 10})
    await until(lambda: len(hall.items) == 50)

    assert trio.current_time() - began < 6.5


async def test_bytes_in_flight_are_bounded(hall):
    most = 0

    async def handle(item):
        nonlocal most
        state = await state_of(listener)
        most = max(most, state.held)
        await trio.sleep(1.0)

    await hall.send(*map(str, range(40)), body=bytes(1000))
    listener = await hall.listen(
        handle, options={"batch": 1, "max_inflight": 5000, "max_tasks": 1, "parallel": 100}
    )
    await until(lambda: len(hall.items) == 40)

    assert most == 5


async def test_a_handler_that_returns_something_else_has_failed(hall):
    async def handle(item):
        return "done" if item.attempt == 1 else None

    await hall.send("m1")
    await hall.listen(handle)
    await until(lambda: bool(hall.items))

    assert hall.items[0].attempt == 2
    assert "got a str" in str(hall.errors[0])


async def test_a_format_that_breaks_is_the_fault_of_its_message(hall):
    class Broken:
        def parse(self, message):
            return message.properties["missing"]

    await hall.send("m1", "m2")
    await hall.listen(nothing, format=Broken())
    await until(lambda: len(hall.of(Poisoned)) == 2)

    assert len(await hall.dead_letters()) == 2


async def test_handlers_may_raise_groups_of_errors(hall):
    async def handle(item):
        async def fail():
            raise ValueError

        if item.attempt == 1:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                nursery.start_soon(trio.sleep_forever)

    await hall.send("m1")
    await hall.listen(handle)
    await until(lambda: bool(hall.items))

    assert [type(error) for error in hall.errors] == [ValueError]


@pytest.mark.parametrize(
    ("queues", "wrong"),
    [
        ("orders Orders", "named twice"),
        ({}, "at least one"),
        ({"orders": 0}, "a weight of 1 to 1000"),
        ("or//ders", "entity name"),
    ],
)
async def test_queues_that_make_no_sense_are_refused_at_once(hall, queues, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        hall.listener(nothing, queues)


@attrs.frozen
class Order:
    id: int


async def test_what_doesnt_parse_is_poison_with_its_reason_and_holds_up_nothing(hall):
    await hall.send("bad", body=b'{"id": "x"}')
    await hall.send("good", body=b'{"id": 7}')
    await hall.listen(nothing, format=Json(Order))
    await until(lambda: bool(hall.items))
    (dead,) = await hall.dead_letters()

    assert hall.items[0].value == Order(7)
    assert dead.message_id == "bad"
    assert dead.properties["DeadLetterReason"] == "MalformedMessage"
    assert "id" in dead.properties["DeadLetterErrorDescription"]
