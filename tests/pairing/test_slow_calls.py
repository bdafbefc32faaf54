"""
Late is down: the effect of a send that isn't answered soon, or is answered late, on its entity.
"""

import random
import statistics

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.events.gateway import EntityStateChanged
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.pairing.options import EntityRule, OnUnknown, WhileSuspect
from tests.harness.faults import Hang, Operation, Refuse
from tests.harness.retained import entries
from tests.pairing.harness import (
    ORDERS,
    QUEUE,
    Slow,
    Timed,
    message,
    outcome_of,
    send,
    virtual_time,
)

pytestmark = [virtual_time, pytest.mark.slow]

SEND, PROBE = Operation.SEND, Operation.PROBE
MINUTE = 60.0


@attrs.define
class Between:
    """Does the operation at once, and answers after a random time."""

    low: float
    high: float
    rng: random.Random = attrs.field(factory=lambda: random.Random(5))

    async def strike(self, work, nursery):
        return await Slow(self.rng.uniform(self.low, self.high)).strike(work, nursery)


async def produce(harness, pair, seconds, *, producers=1, pause=0.1):
    """(When each send began, how long it took.) All of them are accepted."""
    taken, end = [], trio.current_time() + seconds

    async def one(name):
        number = 0
        while trio.current_time() < end:
            number += 1
            began = trio.current_time()
            await send(pair, message(f"{name}-{number}"))()
            taken.append((began, trio.current_time() - began))
            await trio.sleep(pause)

    async with trio.open_nursery() as nursery:
        for name in range(producers):
            nursery.start_soon(one, name)
    return taken


def moves(harness):
    return [event.after for event in harness.events.of(EntityStateChanged)]


# slow_call_duration


async def test_a_send_without_an_answer_makes_its_entity_suspect_at_once(harness):
    pair = await harness.pair(slow_call_duration=1.5)
    harness.primary.fail(Hang())
    harness.nursery.start_soon(send(pair))

    await trio.sleep(1.4)
    before = pair.states.state_of(ORDERS)
    await trio.sleep(0.2)

    assert before is State.PRIMARY
    [state] = pair.states.troubled()
    assert state.state is State.SUSPECT
    assert state.reason == "no answer within 1.5 s"


async def test_a_frozen_primary_stalls_no_send_longer_than_two_and_a_half_seconds(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang())

    taken = await produce(harness, pair, 100.0, producers=10, pause=0.5)

    assert max(took for _, took in taken) <= 2.5
    late = [took for began, took in taken if began >= taken[0][0] + 3.0]
    assert statistics.median(late) == 0
    assert moves(harness)[:2] == ["suspect", "secondary"]


async def test_sends_that_begin_after_it_divert_after_suspect_wait(harness):
    pair = await harness.pair(suspect_wait=0.25)
    harness.primary.fail(Hang())
    harness.nursery.start_soon(send(pair))
    await trio.sleep(2.1)

    with Timed() as timed:
        accepted_by = await send(pair, message("m2"))()

    assert accepted_by is AcceptedBy.BACKLOG
    assert timed.seconds <= 0.25
    assert harness.primary.sends() == 1


async def test_a_slow_send_goes_on_while_probes_show_that_its_entity_lives(harness):
    pair = await harness.pair()
    harness.primary.fail(Slow(6.0), SEND, times=1)

    with Timed() as timed:
        accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert timed.seconds == pytest.approx(6.0)
    assert await harness.primary.ids() == ["m1"]
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_slow_send_waits_no_longer_when_its_entity_dies(harness):
    pair = await harness.pair(successes_to_return=9)
    harness.primary.fail(Hang(), SEND)
    with Timed() as timed:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send(pair))
            await trio.sleep(3.5)
            harness.primary.fail(Hang())

    assert timed.seconds <= 7.0


async def test_a_diverted_send_keeps_its_id(harness):
    pair = await harness.pair()
    harness.primary.fail(Slow(9.0))

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    [copy] = await harness.secondary.messages(QUEUE)
    assert copy.message_id == "m1"
    # The message may have arrived: its outcome was unknown.
    assert await harness.primary.ids() == ["m1"]


async def test_a_slow_send_is_an_exception_when_a_later_one_was_accepted(harness):
    pair = await harness.pair()
    harness.primary.fail(Slow(8.0), SEND, times=1)
    accepted_by = []

    async def slow():
        accepted_by.append(await send(pair)())

    harness.nursery.start_soon(slow)
    await trio.sleep(1.0)
    await send(pair, message("m2"))()
    await trio.sleep(8.0)

    assert accepted_by == [AcceptedBy.PRIMARY]
    assert harness.events.of(EntityStateChanged) == []


@pytest.mark.parametrize(
    "options",
    [
        {"slow_call_duration": None},
        {"entities": (EntityRule(match="orders", divert=False),)},
    ],
    ids=["off", "the entity is never diverted"],
)
async def test_where_nothing_is_slow_a_send_waits_as_long_as_ever(harness, options):
    pair = await harness.pair(**options)
    harness.primary.fail(Hang())

    with Timed() as timed:
        await outcome_of(send(pair))

    assert timed.seconds == pytest.approx(10.0)


@pytest.mark.parametrize(
    "options", [{"while_suspect": WhileSuspect.RAISE}, {"on_unknown": OnUnknown.RAISE}]
)
async def test_a_send_whose_unknown_outcome_would_be_told_waits_its_whole_share(harness, options):
    pair = await harness.pair(**options)
    harness.primary.fail(Hang())

    with Timed() as timed:
        await outcome_of(send(pair))

    assert timed.seconds == pytest.approx(10.0)


async def test_sends_under_way_while_the_gateway_stood_still_arent_slow(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang())
    harness.nursery.start_soon(send(pair))
    await trio.sleep(0.5)

    trio.lowlevel.current_clock().jump(3.0)
    await wait_all_tasks_blocked()

    assert pair.states.troubled() == []


# slow_call_rate


async def test_a_slow_success_is_a_success_for_its_message(harness):
    pair = await harness.pair()
    harness.primary.fail(Slow(3.0), SEND)

    assert await send(pair)() is AcceptedBy.PRIMARY


@pytest.mark.parametrize(("low", "high"), [(3.0, 9.0), (8.0, 14.0)])
@pytest.mark.parametrize("operations", [(), (SEND,)], ids=["everything", "sends"])
@pytest.mark.parametrize("producers", [1, 8])
async def test_late_answers_fail_an_entity_over_after_the_interval_and_it_doesnt_flap(
    harness, low, high, operations, producers
):
    pair = await harness.pair()
    harness.primary.fail(Between(low, high), *operations)
    started = trio.current_time()

    taken = await produce(harness, pair, 10 * MINUTE, producers=producers, pause=0.5 * producers)

    over = moves(harness).count("secondary")
    after = [took for began, took in taken if began >= started + MINUTE + 20.0]
    assert statistics.median(after) < 0.5
    assert max(took for _, took in taken) <= (14.0 if operations else 2.5)
    assert over >= 1
    returns = [
        move for move in moves(harness)[moves(harness).index("secondary") :] if move == "primary"
    ]
    assert returns == []


async def test_few_slow_answers_among_many_are_no_failure(harness):
    pair = await harness.pair(failover_interval=0.0)
    rng = random.Random(8)

    class Sometimes:
        async def strike(self, work, nursery):
            return await Slow(3.0 if rng.random() < 0.05 else 0.01).strike(work, nursery)

    harness.primary.fail(Sometimes(), SEND)

    await produce(harness, pair, 5 * MINUTE, producers=5, pause=0.3)

    assert "secondary" not in moves(harness)


@pytest.mark.parametrize("rate", [0.5, None])
async def test_too_many_slow_answers_count_unless_that_is_off(harness, rate):
    pair = await harness.pair(failover_interval=0.0, slow_call_rate=rate)
    harness.primary.fail(Slow(3.0), SEND)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(send(pair, message(f"{number}")))

    assert ("secondary" in moves(harness)) is (rate is not None)
    assert len(await harness.primary.ids()) == 5


async def test_fewer_than_five_slow_answers_say_nothing(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Slow(3.0), SEND)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(send(pair, message(f"{number}")))

    assert "secondary" not in moves(harness)


async def test_a_late_answer_to_the_syphon_ends_no_suspicion(harness):
    pair = await harness.pair(failover_interval=MINUTE)
    harness.primary.fail(Refuse(), times=1)
    await harness.syphon(states=pair.states)
    harness.primary.fail(Slow(4.0))
    await send(pair)()

    await trio.sleep(2 * MINUTE)

    assert moves(harness)[:2] == ["suspect", "secondary"]


async def test_entities_without_slow_sends_take_no_memory(harness):
    pair = await harness.pair()
    fresh = entries(pair.states.evidence)
    await produce(harness, pair, 5.0)
    used = entries(pair.watch)  # the pair knows the limit of a send now
    assert entries(pair.states.evidence) == fresh

    harness.primary.fail(Slow(3.0), SEND, times=1)
    await send(pair)()
    assert entries(pair.states.evidence) > fresh
    await trio.sleep(5 * MINUTE + 10.0)

    assert (entries(pair.states.evidence), entries(pair.watch)) == (fresh, used)
