"""Requests and replies, intents, and settlements by the holder of the item."""

import random
from contextlib import suppress
from itertools import count
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    Busy,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    LockLost,
    PreconditionFailed,
)
from gateway.domain.message import Abandon, Message
from gateway.listening.exchange import Requester, replying
from gateway.listening.intents import steps, update
from gateway.listening.items import Json
from gateway.listening.settling import settle
from gateway.listening.submit import Submitter
from tests.harness.clocks import VirtualClock
from tests.harness.memory_values import MemoryValues
from tests.listening.harness import ORDERS, Harness, until, virtual_time

pytestmark = virtual_time

REPLIES = EntityPath("replies")


@attrs.frozen
class Sum:
    numbers: list[int]


@attrs.frozen
class Total:
    value: int


async def asking(harness: Harness, **fields: Any) -> Requester[Sum, Total]:
    """A requester that runs."""
    with suppress(EntityExists):
        await harness.create(REPLIES)
    numbers = count(1)
    requests = Submitter(
        broker=harness.broker, queue=ORDERS, format=Json(Sum), new_id=lambda: f"r{next(numbers)}"
    )
    requester = Requester(
        requests=requests,
        replies=REPLIES,
        broker=harness.broker,
        format=Json(Total),
        clock=VirtualClock(),
        rng=random.Random(3),
        **fields,
    )
    await harness.nursery.start(requester.run)
    return requester


async def answering(harness: Harness, work: Any) -> None:
    """A worker that replies."""
    handle = replying(work, broker=harness.broker, format=Json(Total), new_id=lambda: "x")
    await harness.listen(handle, format=Json(Sum))


async def total(request):
    await trio.sleep(random.Random(request.value.numbers[0]).uniform(0.0, 5.0))
    return Total(sum(request.value.numbers))


async def test_a_request_gets_its_reply(harness):
    requester = await asking(harness)
    await answering(harness, total)

    assert await requester.ask(Sum([1, 2, 3])) == Total(6)
    await until(lambda: bool(harness.items))
    assert await harness.waiting() == await harness.waiting(REPLIES) == []


async def test_slices_fan_out_and_their_replies_come_in_order(harness):
    requester = await asking(harness)
    await answering(harness, total)
    totals = await requester.scatter([Sum([number]) for number in range(50)])

    assert [each.value for each in totals] == list(range(50))
    assert await requester.scatter([]) == []


async def gather(requester: Requester[Sum, Total], values: list[Sum]) -> list[int]:
    async with requester.kept("report-7", values) as totals:
        return [each.value for each in totals]


async def test_a_kept_request_finds_the_replies_that_came_before_a_restart(harness):
    store, asked = MemoryValues(), list[int]()

    async def work(request):
        [number] = request.value.numbers
        asked.append(number)
        if number >= 3 and asked.count(number) == 1:
            await trio.sleep(50.0)  # these replies come after the restart
        return Total(number)

    values = [Sum([number]) for number in range(5)]
    await answering(harness, work)
    async with trio.open_nursery() as nursery:
        harness.nursery, outer = nursery, harness.nursery
        before = await asking(harness, store=store)
        with trio.move_on_after(20.0) as waiting:
            await gather(before, values)
        nursery.cancel_scope.cancel()
    harness.nursery = outer
    kept = len(store.values)
    after = await asking(harness, store=store)

    assert waiting.cancelled_caught
    assert kept == 4  # the request, and three replies
    assert await gather(after, values) == list(range(5))
    assert {number for number in range(5) if asked.count(number) > 1} <= {3, 4}
    assert store.values == {}


async def test_a_block_that_fails_keeps_the_replies(harness):
    store, asked = MemoryValues(), list[int]()

    async def work(request):
        await trio.lowlevel.checkpoint()
        asked.append(request.value.numbers[0])
        return Total(request.value.numbers[0])

    requester = await asking(harness, store=store)
    await answering(harness, work)
    with pytest.raises(ValueError, match="the report"):
        async with requester.kept("report-7", [Sum([1]), Sum([2])]):
            raise ValueError("the report can't be written")

    assert await gather(requester, [Sum([1]), Sum([2])]) == [1, 2]
    assert sorted(asked) == [1, 2]


async def test_a_kept_request_must_be_the_same_when_it_is_asked_again(harness):
    requester = await asking(harness, store=MemoryValues())
    with trio.move_on_after(1.0):
        await gather(requester, [Sum([1])])

    with pytest.raises(InvalidRequest, match="report-7 has 1 slices, got 2 values"):
        await gather(requester, [Sum([1]), Sum([2])])
    for name in ("", "a/b"):
        with pytest.raises(InvalidRequest, match="without '/' expected"):
            async with requester.kept(name, []):
                pytest.fail("it began")


@attrs.define(eq=False)
class SlowStore(MemoryValues):
    """A store whose writes of replies take a second."""

    async def write(self, key: str, value: bytes | None, *, if_match: str) -> str:
        if value is not None and key.endswith("/0"):
            await trio.sleep(1.0)
        return await super().write(key, value, if_match=if_match)


async def test_a_second_reply_that_is_late_stays_nowhere(harness):
    store = SlowStore()
    requester = await asking(harness, store=store)
    reply = Message(body=b'{"value":1}', correlation_id="report-7/0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gather, requester, [Sum([1])])
        await trio.sleep(1.5)
        await harness.broker.send(REPLIES, [reply])
        await trio.sleep(0.5)
        await harness.broker.send(REPLIES, [reply])
    await trio.sleep(5.0)

    assert store.values == {}


async def test_a_requester_without_a_store_keeps_nothing(harness):
    requester = await asking(harness)

    with pytest.raises(InvalidRequest, match="no store"):
        await gather(requester, [Sum([1])])


async def test_a_worker_that_fails_before_its_reply_is_asked_again(harness):
    async def work(request):
        if request.attempt == 1:
            raise ValueError
        return Total(request.attempt)

    requester = await asking(harness)
    await answering(harness, work)

    assert await requester.ask(Sum([1])) == Total(2)


async def test_a_reply_that_nobody_awaits_any_more_is_done(harness):
    requester = await asking(harness)
    with trio.move_on_after(1.0) as scope:
        await requester.ask(Sum([1]))
    await answering(harness, total)
    await trio.sleep(60.0)

    assert scope.cancelled_caught
    assert await harness.waiting() == await harness.waiting(REPLIES) == []


async def test_no_more_requests_wait_than_the_bound(harness):
    requester = await asking(harness, max_pending=3)

    with pytest.raises(Busy, match="3 requests already wait"):
        await requester.scatter([Sum([1])] * 4)


async def test_replies_to_requests_without_an_id_are_no_duplicates_of_each_other(harness):
    await harness.create(REPLIES, requires_duplicate_detection=True)
    numbers = count(1)
    handle = replying(
        total, broker=harness.broker, format=Json(Total), new_id=lambda: f"a{next(numbers)}"
    )
    await harness.listen(handle, format=Json(Sum))
    body = b'{"numbers": [1]}'
    for _ in range(2):
        await harness.store.send(ORDERS, [Message(body=body, reply_to=REPLIES.name)])
    await until(lambda: len(harness.items) == 2)
    replies = [each.message for each in await harness.store.peek(REPLIES, limit=10)]

    assert [reply.correlation_id for reply in replies] == [None, None]


async def test_a_request_without_a_reply_queue_is_dead(harness):
    await answering(harness, total)
    await harness.send("m1", body=b'{"numbers": [1]}')
    await until(lambda: bool(harness.items))
    (dead,) = await harness.dead_letters()

    assert dead.properties["DeadLetterReason"] == "NoReplyQueue"


@attrs.define
class SharedStore:
    """A `Versioned` store in which others write too."""

    value: int = 0
    version: int = 0
    intruders: int = 0

    async def read(self, key):
        read = self.value, str(self.version)
        if self.intruders:
            self.intruders -= 1
            await self.write(key, self.value + 100, if_match="*")
        return read

    async def write(self, key, value, *, if_match):
        await trio.lowlevel.checkpoint()
        if if_match not in {"*", str(self.version)}:
            raise PreconditionFailed(key)
        self.value, self.version = value, self.version + 1
        return str(self.version)


async def test_a_change_that_others_overtook_is_made_to_what_they_left():
    store = SharedStore(intruders=3)

    assert await update(store, "k", lambda value: value + 1) == 301
    assert store.value == 301


async def test_a_change_that_is_there_already_writes_nothing():
    store = SharedStore(value=5)
    await update(store, "k", lambda value: max(value, 5))

    assert store.version == 0


async def test_a_change_that_others_always_overtake_is_given_up():
    with pytest.raises(PreconditionFailed, match="4 times"):
        await update(SharedStore(intruders=100), "k", lambda value: value + 1, attempts=4)


async def test_an_intent_whose_worker_failed_midway_is_resumed(harness):
    done = set()
    store = SharedStore()

    async def first(item):
        if "first" not in done:
            await update(store, "k", lambda value: value + 1)
            done.add("first")

    async def second(item):
        if item.attempt == 1:
            raise ConnectionError
        done.add("second")

    await harness.send("m1")
    await harness.listen(steps(first, second))
    await until(lambda: bool(harness.items))

    assert (done, store.value) == ({"first", "second"}, 1)


async def test_an_item_is_settled_by_its_uri(harness):
    await harness.send("m1")
    async with harness.store.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        await settle({"contoso": harness.store}, "queue://contoso/orders", delivery)

        with pytest.raises(LockLost):
            await settle({"contoso": harness.store}, "queue://contoso/orders", delivery, Abandon())
        with pytest.raises(EntityNotFound, match="account 'fabrikam' isn't among the namespaces"):
            await settle({"contoso": harness.store}, "queue://fabrikam/orders", delivery)
    assert await harness.waiting() == []
