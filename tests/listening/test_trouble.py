"""Poison, outages, locks that are too short, and drains."""

from datetime import timedelta
from itertools import pairwise

import pytest
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, LockLost, NotSupported, Unavailable
from gateway.domain.events.gateway import (
    ListenerFailed,
    ListenerPaused,
    LockTooShort,
    Poisoned,
    SettledTooLate,
)
from gateway.domain.message import DeadLetter
from gateway.listening.concurrency_limiter import ConcurrencyLimiter
from gateway.listening.consumer_stats import Operation as Billed
from gateway.listening.errors import EndpointDown
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse
from tests.listening.harness import ORDERS, ids, nothing, state_of, until, virtual_time

pytestmark = virtual_time

POISON = EntityPath("orders-poison")


# Poison


async def test_a_message_is_tried_as_often_as_the_threshold_says_and_then_dead(harness):
    attempts = []

    async def handle(item):
        attempts.append(item.attempt)
        raise KeyError("what it was")

    await harness.send("bad")
    await harness.listen(handle, options={"poison_threshold": 3})
    await until(lambda: bool(harness.of(Poisoned)))
    (dead,) = await harness.dead_letters()
    why = dead.properties["DeadLetterErrorDescription"]

    assert attempts == [1, 2, 3]
    assert dead.properties["DeadLetterReason"] == "PoisonMessage"
    assert why == "attempts: 3; last error: KeyError: 'what it was'"


async def test_a_message_that_kills_its_listener_each_time_is_dead_without_another_try(harness):
    async def handle(item):
        raise AssertionError("it would be tried again")

    await harness.send("bad")
    for _ in range(4):  # as many processes died
        async with harness.store.open_receiver(ORDERS) as receiver:
            await receiver.receive(1)
    await harness.listen(handle, options={"poison_threshold": 3})
    await until(lambda: bool(harness.of(Poisoned)))

    assert len(await harness.dead_letters()) == 1
    assert harness.errors == []


async def test_without_dead_letters_poison_goes_to_a_queue_of_its_own(harness):
    async def handle(item):
        raise ValueError("no")

    await harness.create(POISON)
    harness.poll(has_dead_letters=False)
    await harness.send("bad")
    await harness.listen(handle, options={"poison_threshold": 2})
    await until(lambda: bool(harness.of(Poisoned)))
    (dead,) = await harness.store.peek(POISON)

    assert dead.message.properties["DeadLetterReason"] == "PoisonMessage"
    assert dead.message.body == b"body"
    assert await harness.waiting() == []


async def test_poison_is_copied_once_however_often_its_completion_fails(harness):
    async def handle(item):
        raise ValueError("no")

    await harness.create(POISON)
    faulty = await harness.make_faulty()
    harness.poll(has_dead_letters=False)
    faults = [Refuse() for _ in range(10)]
    faulty.fault = lambda operation, _: (
        faults.pop() if operation is Operation.SETTLE and faults else None
    )
    await harness.send("bad")
    await harness.listen(handle, options={"poison_threshold": 1})
    await until(lambda: bool(harness.of(Poisoned)))

    assert len(await harness.store.peek(POISON, limit=100)) == 1
    assert await harness.waiting() == []


async def test_without_any_place_for_poison_the_message_stays(harness):
    async def handle(item):
        raise ValueError("no")

    harness.poll(has_dead_letters=False)
    await harness.send("bad")
    await harness.listen(handle, options={"poison_threshold": 2})
    await trio.sleep(3600.0)

    assert await harness.waiting() == ["bad"]
    assert any("EntityNotFound" in event.reason for event in harness.of(ListenerFailed))


async def test_a_failed_message_rests_before_it_is_tried_again(harness):
    tried = []

    async def handle(item):
        tried.append(trio.current_time())
        if item.attempt < 4:
            raise ValueError

    await harness.send("m1")
    await harness.listen(handle, options={"retry": Backoff(first=2.0, cap=60.0, jitter=0.0)})
    await until(lambda: bool(harness.items))
    pauses = [round(after - before) for before, after in pairwise(tried)]

    assert pauses == [2, 4, 8]


# The endpoint


async def test_an_endpoint_that_is_down_poisons_nothing_and_is_asked_by_one_message(harness):
    is_down, calls = True, []

    async def handle(item):
        calls.append((trio.current_time(), item.message.message_id))
        if is_down:
            raise EndpointDown

    await harness.send(*map(str, range(100)))
    await harness.listen(handle)
    await trio.sleep(3600.0)
    in_outage = len(calls)
    is_down = False
    await until(lambda: len(harness.items) == 100)

    assert in_outage < 32 + 80  # the messages in progress, and about one each minute
    assert len({message_id for at, message_id in calls[40:in_outage]}) == 1
    assert max(item.attempt for item in harness.items) <= 2
    assert await harness.dead_letters() == []


@pytest.mark.parametrize("counts_returns", [False, True])
async def test_an_endpoint_that_comes_and_goes_brings_no_message_nearer_to_poison(
    harness, counts_returns
):
    attempts, rest = [], 0.0

    async def handle(item):
        nonlocal rest
        attempts.append(item.attempt)
        if trio.current_time() < rest:
            raise EndpointDown(retry_after=10.0)
        rest = trio.current_time() + 10.0  # as a message that takes no longer
        await trio.sleep(0.1)

    harness.poll(counts_returns=counts_returns)
    await harness.send(*map(str, range(40)))
    await harness.listen(handle, options={"poison_threshold": 1})
    await until(lambda: len(harness.items) == 40)

    assert set(attempts) == {1}
    assert await harness.dead_letters() == []


async def test_messages_that_wait_for_their_endpoint_keep_their_locks_and_go_with_a_drain(harness):
    async def handle(item):
        raise EndpointDown

    harness.poll(counts_returns=True)
    await harness.send(*map(str, range(40)))
    listener = await harness.listen(handle, options={"poison_threshold": 1})
    await trio.sleep(600.0)
    held = (await state_of(listener)).locked
    began = trio.current_time()
    await listener.drain()

    assert held >= 32
    assert trio.current_time() - began < 2.0
    assert len(await harness.waiting()) == 40
    assert await harness.dead_letters() == []


async def test_an_endpoint_may_say_how_long_it_is_down(harness):
    calls = []

    async def handle(item):
        calls.append(trio.current_time())
        if len(calls) == 1:
            raise EndpointDown(retry_after=500.0)

    await harness.send("m1")
    await harness.listen(handle)
    await until(lambda: bool(harness.items))

    assert calls[1] - calls[0] >= 500.0
    assert harness.of(ListenerPaused)[0].seconds == 500.0


async def test_when_the_trial_is_lost_another_message_tries(harness):
    is_down = True

    async def handle(item):
        if is_down:
            raise EndpointDown(retry_after=100.0)

    await harness.send("m1", "m2")
    await harness.listen(handle, options={"renew": False})
    await trio.sleep(1000.0)
    is_down = False
    await until(lambda: len(harness.items) == 2)

    assert await harness.dead_letters() == []


async def test_an_error_of_a_message_says_that_the_endpoint_is_up(harness):
    calls = 0

    async def handle(item):
        nonlocal calls
        calls += 1
        if calls == 1:
            raise EndpointDown
        if calls == 2:
            raise ValueError("this message is wrong")

    await harness.send("m1", "m2")
    await harness.listen(handle, options={"parallel": 1})
    await until(lambda: len(harness.items) == 2, seconds=10.0)


# The namespace


async def test_a_namespace_that_fails_is_tried_again_until_it_is_back(harness):
    faulty = await harness.make_faulty()
    faulty.fault = lambda operation, _: Refuse() if operation is Operation.RECEIVE else None
    await harness.send("m1")
    await harness.listen(nothing)
    await trio.sleep(600.0)
    reports = len(harness.of(ListenerFailed))
    faulty.fault = lambda operation, _: None
    await until(lambda: bool(harness.items), seconds=61.0)

    assert 15 < reports < 60


async def test_a_namespace_that_restarts_is_read_again(harness):
    faulty = await harness.make_faulty()
    await harness.listen(nothing)
    faulty.crash()
    await trio.sleep(100.0)
    faulty.restart()
    await harness.send("m1")
    await until(lambda: bool(harness.items), seconds=61.0)

    assert ids(harness.items) == ["m1"]


async def test_a_listener_starts_while_its_queue_is_missing(harness):
    await harness.listen(nothing, "later")
    await trio.sleep(100.0)
    await harness.create(EntityPath("later"))
    await harness.send("m1", queue=EntityPath("later"))
    await until(lambda: bool(harness.items), seconds=61.0)

    [item] = harness.items
    assert (item.queue, item.message.message_id) == (EntityPath("later"), "m1")


async def test_a_busy_namespace_is_left_alone_for_as_long_as_it_wants(harness):
    asked = []
    faulty = await harness.make_faulty()

    def fault(operation, _):
        if operation is not Operation.RECEIVE:
            return None
        asked.append(trio.current_time())
        return Refuse(lambda: Busy(retry_after=100.0))

    faulty.fault = fault
    await harness.listen(nothing)
    await trio.sleep(1000.0)

    assert 9 <= len(asked) <= 11


async def test_a_failure_to_receive_doesnt_wait_for_long_work(harness):
    async def handle(item):
        await trio.sleep(10_000.0 if item.message.message_id == "long" else 0.0)

    faulty = await harness.make_faulty()
    harness.poll()
    await harness.send("long")
    await harness.listen(handle)
    await trio.sleep(1.0)
    faults = [Refuse()]
    faulty.fault = lambda operation, _: (
        faults.pop() if operation is Operation.RECEIVE and faults else None
    )
    await trio.sleep(10.0)
    await harness.send("m1")
    await until(lambda: bool(harness.items), seconds=61.0)

    assert faults == []


async def test_a_first_settlement_without_an_answer_is_told(harness):
    faulty = await harness.make_faulty()
    faults = [Hang()]
    faulty.fault = lambda operation, _: (
        faults.pop() if operation is Operation.SETTLE and faults else None
    )

    async def handle(item):
        return DeadLetter(reason="no")

    await harness.send("m1")
    await harness.listen(handle)
    await trio.sleep(25.0)

    assert [event.reason for event in harness.of(ListenerFailed)] == [
        "OutcomeUnknown: no answer to a settlement within 10 s"
    ]
    assert len(await harness.dead_letters()) == 1


@pytest.mark.parametrize("fault", [Refuse(), LoseAnswer(), Hang()])
async def test_a_settlement_is_tried_again_while_the_lock_holds(harness, fault):
    faulty = await harness.make_faulty()
    faults = [fault]
    faulty.fault = lambda operation, _: (
        faults.pop() if operation is Operation.SETTLE and faults else None
    )
    seen = []

    async def handle(item):
        seen.append(item.message.message_id)

    await harness.send("m1")
    await harness.listen(handle)
    await trio.sleep(100.0)

    assert await harness.waiting() == []
    assert seen == ["m1"]


async def test_a_completion_without_an_answer_is_not_told_as_too_late(harness):
    faulty = await harness.make_faulty()
    faulty.fault = lambda operation, _: LoseAnswer() if operation is Operation.SETTLE else None

    async def handle(item):
        await trio.lowlevel.checkpoint()

    await harness.send("m1")
    await harness.listen(handle)
    await trio.sleep(200.0)

    assert harness.of(SettledTooLate) == []
    assert all("OutcomeUnknown" in event.reason for event in harness.of(ListenerFailed))
    assert await harness.waiting() == []


async def test_a_lost_lock_ends_the_handler(harness):
    ended = []

    async def handle(item):
        if item.attempt > 1:
            return
        try:
            await trio.sleep(1000.0)
        finally:
            ended.append(trio.current_time())

    faulty = await harness.make_faulty()
    faulty.fault = lambda operation, _: (
        Refuse(lambda: LockLost("gone")) if operation is Operation.RENEW else None
    )
    await harness.send("m1")
    began = trio.current_time()
    await harness.listen(handle)
    await until(lambda: bool(harness.items))

    assert ended[0] - began < 16.0


@pytest.mark.parametrize("error", [Unavailable, NotSupported])
async def test_a_handler_ends_before_its_lock_when_that_cant_be_renewed(harness, error):
    ended = []

    async def handle(item):
        if item.attempt > 1:
            return
        try:
            await trio.sleep(1000.0)
        finally:
            ended.append(trio.current_time())

    faulty = await harness.make_faulty()
    faulty.fault = lambda operation, _: (
        Refuse(lambda: error("no")) if operation is Operation.RENEW else None
    )
    await harness.send("m1")
    began = trio.current_time()
    await harness.listen(handle)
    await until(lambda: bool(harness.items))

    assert 25.0 < ended[0] - began < 30.0


async def test_locks_that_prove_too_short_are_lengthened_where_the_listener_sets_them(harness):
    async def handle(item):
        await trio.sleep(40.0)

    polled = harness.poll()
    await harness.send(*map(str, range(30)))
    listener = await harness.listen(handle, options={"renew": False, "poison_threshold": None})
    await trio.sleep(100.0)
    advice = (await state_of(listener)).advice

    assert advice is not None
    assert advice.lock >= 54.0
    assert harness.of(LockTooShort)[0].seconds >= 54.0
    assert polled.locks[0] is None
    assert polled.locks[-1] >= timedelta(seconds=54.0)


# Drains


async def test_a_drain_finishes_what_runs_and_gives_back_the_rest_untouched(harness):
    async def handle(item):
        await trio.sleep(5.0)

    await harness.send(*map(str, range(50)))
    listener = await harness.listen(handle, options={"parallel": 10})
    await trio.sleep(1.0)
    began = trio.current_time()
    await listener.drain()

    assert trio.current_time() - began < 5.0
    assert len(harness.items) == 10
    assert len(await harness.waiting()) == 40
    assert harness.is_completed
    async with harness.store.open_receiver(ORDERS) as receiver:
        rest = await receiver.receive(100)
    assert len(rest) == 40
    assert {delivery.delivery_count for delivery in rest} == {1}


async def test_a_message_that_has_just_got_its_place_when_a_drain_begins_isnt_begun(
    harness, monkeypatch
):
    """Else its handler is cut off where it first waits, and the delivery counts."""
    began, done = [], []

    async def handle(item):
        began.append(item.message.message_id)
        await trio.sleep(1.0)
        done.append(item.message.message_id)

    def free_and_drain(limiter):
        free(limiter)
        listener.start_drain()

    free = ConcurrencyLimiter.free
    monkeypatch.setattr(ConcurrencyLimiter, "free", free_and_drain)
    await harness.send("m1", "m2", "m3")
    listener = await harness.listen(handle, options={"parallel": 1})
    await trio.sleep(60.0)

    assert began == done
    assert len(done) == 1
    assert harness.of(SettledTooLate) == []
    assert [each.delivery_count for each in await harness.store.peek(ORDERS, limit=9)] == [0, 0]


async def test_a_drain_takes_no_longer_than_its_grace(harness):
    async def handle(item):
        await trio.sleep_forever()

    await harness.send("m1")
    listener = await harness.listen(handle, options={"grace": 7.0})
    await trio.sleep(1.0)
    began = trio.current_time()
    await listener.drain()

    assert trio.current_time() - began < 8.0
    async with harness.store.open_receiver(ORDERS) as receiver:
        assert len(await receiver.receive(1)) == 1


async def test_a_drain_gives_back_what_rests_at_once(harness):
    async def handle(item):
        raise ValueError

    await harness.send("m1")
    listener = await harness.listen(handle, options={"retry": Backoff(first=20.0)})
    await trio.sleep(1.0)
    began = trio.current_time()
    await listener.drain()

    assert trio.current_time() - began < 1.0


async def test_an_idle_listener_drains_at_once(harness):
    pushed = await harness.listen(nothing)
    harness.poll()
    polled = await harness.listen(nothing)
    await trio.sleep(600.0)
    began = trio.current_time()
    await pushed.drain()
    await polled.drain()

    assert trio.current_time() - began < 1.1


async def test_a_listener_that_is_drained_before_it_runs_takes_nothing(harness):
    await harness.send("m1")
    listener = harness.listener(nothing)
    listener.start_drain()
    await harness.nursery.start(listener.run)

    assert await harness.waiting() == ["m1"]


async def test_a_drain_ends_while_the_endpoint_is_down(harness):
    async def handle(item):
        raise EndpointDown(retry_after=1000.0)

    await harness.send("m1", "m2")
    listener = await harness.listen(handle)
    await trio.sleep(1.0)
    began = trio.current_time()
    await listener.drain()

    assert trio.current_time() - began < 2.0
    assert sorted(await harness.waiting()) == ["m1", "m2"]


async def test_the_work_of_a_listener_is_counted_as_a_cloud_would(harness):
    async def handle(item):
        await trio.sleep(20.0)

    await harness.send("m1")
    listener = await harness.listen(handle)
    await until(lambda: bool(harness.items))
    state = await state_of(listener)

    assert state.operations == {
        Billed.RECEIVE: 1,
        Billed.RENEW: 1,
        Billed.SETTLE: 1,
        Billed.INSPECT: 2,
    }
    assert state.billed == 5
    assert ids(harness.items) == ["m1"]
