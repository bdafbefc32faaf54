"""An unreachable namespace counts for all its entities."""

import itertools
import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityDisabled, EntityNotFound, QuotaExceeded, Unreachable
from gateway.domain.events.gateway import EntityStateChanged, LoopPaused
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.pairing.options import EntityRule, WhileSuspect
from tests.harness.faults import Hang, Operation, Refuse, busy
from tests.pairing.harness import (
    BILLS,
    ORDERS,
    Asked,
    Timed,
    message,
    outcome_of,
    refuse,
    send,
    virtual_time,
)

pytestmark = [virtual_time, pytest.mark.slow]

SEND, PROBE = Operation.SEND, Operation.PROBE


async def queues(harness, number):
    """Create a number of queues on the primary."""
    made = [EntityPath(f"queue-{index}") for index in range(number)]
    for queue in made:
        await harness.primary.store.create_queue(queue, QueueProperties())
    return made


def unconnected():
    return refuse(Unreachable, "connection refused")


async def test_an_entity_not_used_before_is_suspect_while_no_connection_can_be_made(harness):
    pair = await harness.pair()
    harness.primary.fail(unconnected(), SEND)
    harness.primary.fail(Hang(), PROBE)
    await send(pair)()

    with Timed() as timed:
        accepted_by = await send(pair, entity=BILLS)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert timed.seconds == pytest.approx(pair.broker.options.suspect_wait)
    assert harness.primary.sends(BILLS) == 0
    assert pair.states.state_of(BILLS) is State.SUSPECT
    reasons = {each.entity: each.reason for each in pair.states.troubled()}
    assert reasons[BILLS] == "the namespace: connection refused"


async def test_one_silent_entity_is_enough_for_the_first_sends_of_others_to_wait_a_moment(harness):
    pair = await harness.pair()
    made = await queues(harness, 4)
    harness.primary.fail(Hang())

    seconds = []
    for entity in made:
        with Timed() as timed:
            assert await send(pair, entity=entity)() is AcceptedBy.BACKLOG
        seconds.append(round(timed.seconds, 2))

    assert seconds == [2.25, 0.25, 0.25, 0.25]
    assert [harness.primary.sends(entity) for entity in made] == [1, 0, 0, 0]


async def test_an_entity_beside_a_silent_one_is_asked_and_goes_on(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang(), entity=ORDERS)
    await send(pair)()

    with Timed() as timed:
        accepted_by = await send(pair, entity=BILLS)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert timed.seconds == 0.0
    assert Asked(PROBE, BILLS, trio.current_time()) in harness.primary.asked
    assert pair.states.state_of(BILLS) is State.PRIMARY
    assert [e.after for e in harness.events.of(EntityStateChanged) if e.entity == BILLS] == [
        "suspect",
        "primary",
    ]


async def test_a_silent_entity_makes_none_suspect_once_the_namespace_has_answered(harness):
    pair = await harness.pair()
    made = await queues(harness, 3)
    harness.primary.fail(Hang(), entity=ORDERS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send(pair))
        await trio.sleep(1.0)
        await send(pair, entity=BILLS)()

    for entity in made:
        assert await send(pair, entity=entity)() is AcceptedBy.PRIMARY

    moved = {each.entity for each in harness.events.of(EntityStateChanged)}
    assert moved == {ORDERS}


async def test_one_answer_lets_all_entities_beside_a_silent_one_go_on(harness):
    pair = await harness.pair()
    made = await queues(harness, 3)
    harness.primary.fail(Hang())
    for entity in (ORDERS, *made):
        await send(pair, entity=entity)()
    harness.primary.heal()
    harness.primary.fail(Hang(), PROBE)

    assert await send(pair, entity=BILLS)() is AcceptedBy.BACKLOG
    pair.states.probed(BILLS, pair.states.begin(BILLS))

    for entity in made:
        assert await send(pair, entity=entity)() is AcceptedBy.PRIMARY


async def test_the_silence_of_probes_shows_that_the_namespace_is_lost(harness):
    pair = await harness.pair()
    first, second, third = await queues(harness, 3)
    harness.primary.fail(Hang())
    for entity in (first, second, third):
        await send(pair, entity=entity)()
    early = pair.states.evidence.namespace.is_lost

    await trio.sleep(2.0)

    assert not early
    assert pair.states.evidence.namespace.is_lost


async def test_no_entity_waits_for_a_namespace_that_was_silent_for_as_long(harness):
    pair = await harness.pair()
    first, second, third = await queues(harness, 3)
    harness.primary.fail(unconnected(), SEND)
    harness.primary.fail(Hang(), PROBE)
    await send(pair, entity=first)()

    seconds = []
    for entity, pause in ((second, 0.15), (third, 1.0)):
        await trio.sleep(pause)
        with Timed() as timed:
            assert await send(pair, entity=entity)() is AcceptedBy.BACKLOG
        seconds.append(round(timed.seconds, 2))

    assert seconds == [0.1, 0.0]


async def test_an_answer_of_any_entity_after_that_ends_it(harness):
    pair = await harness.pair()
    harness.primary.fail(unconnected(), SEND, entity=ORDERS)
    harness.primary.fail(unconnected(), PROBE)
    await send(pair)()
    assert await send(pair, entity=BILLS)() is AcceptedBy.BACKLOG
    harness.primary.heal()
    harness.primary.fail(Hang(), entity=ORDERS)
    await trio.sleep(10.0)

    accepted_by = await send(pair, entity=BILLS)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert pair.states.state_of(BILLS) is State.PRIMARY
    assert pair.states.state_of(ORDERS) is State.SUSPECT


async def test_a_late_answer_to_a_request_from_before_ends_nothing(harness):
    pair = await harness.pair(slow_call_duration=None)
    old = pair.states.begin(BILLS)
    await trio.sleep(0.1)
    harness.primary.fail(unconnected())
    await send(pair)()

    pair.states.sent(old)

    assert pair.states.evidence.namespace.is_lost


@pytest.mark.parametrize("error", [EntityNotFound, EntityDisabled, QuotaExceeded])
async def test_evidence_of_one_entity_is_never_shared(harness, error):
    pair = await harness.pair(failover_interval=0.0)
    made = await queues(harness, 4)
    for entity in made[:3]:
        harness.primary.fail(refuse(error, "no"), entity=entity)
        await outcome_of(send(pair, entity=entity))

    accepted_by = await send(pair, entity=made[3])()

    assert accepted_by is AcceptedBy.PRIMARY
    assert not pair.states.evidence.namespace.is_lost


async def test_an_answer_between_silences_shows_that_the_namespace_lives(harness):
    pair = await harness.pair()
    made = await queues(harness, 5)
    for entity in made[:4]:
        harness.primary.fail(Hang(), entity=entity)
    for entity in made[:4]:
        await send(pair, entity=entity)()
        assert await send(pair, entity=made[4])() is AcceptedBy.PRIMARY

    assert not pair.states.evidence.namespace.is_lost


async def test_each_entity_fails_over_by_its_own_clock(harness):
    pair = await harness.pair(failover_interval=30.0)
    harness.primary.fail(unconnected())
    await send(pair)()
    await trio.sleep(20.0)
    await send(pair, entity=BILLS)()
    began = trio.current_time()

    await trio.sleep(15.0)
    early = [pair.states.state_of(entity) for entity in (ORDERS, BILLS)]
    await trio.sleep(25.0)

    over = [e for e in harness.events.of(EntityStateChanged) if e.entity == BILLS]
    assert early == [State.SECONDARY, State.SUSPECT]
    assert [e.after for e in over] == ["suspect", "secondary"]
    assert harness.primary.sends(BILLS) == 0
    assert trio.current_time() - began <= 41.0


@pytest.mark.parametrize(
    "options",
    [
        {"while_suspect": WhileSuspect.RAISE},
        {"entities": (EntityRule(match="bills", divert=False),)},
    ],
)
async def test_an_entity_whose_errors_go_to_the_caller_is_asked_all_the_same(harness, options):
    pair = await harness.pair(**options)
    harness.primary.fail(unconnected())
    await outcome_of(send(pair))

    await outcome_of(send(pair, entity=BILLS))

    assert harness.primary.sends(BILLS) == 1


async def test_a_paused_gateway_forgets_that_the_namespace_was_lost(harness):
    pair = await harness.pair()
    harness.primary.fail(unconnected())
    await send(pair)()
    harness.primary.heal()

    trio.lowlevel.current_clock().jump(100.0)
    await harness.events.first(LoopPaused)

    assert not pair.states.evidence.namespace.is_lost
    assert await send(pair, entity=BILLS)() is AcceptedBy.PRIMARY


async def test_while_it_is_lost_few_probes_ask_for_all(harness):
    pair = await harness.pair(failover_interval=30.0)
    made = await queues(harness, 100)
    harness.primary.fail(Hang())
    async with trio.open_nursery() as nursery:
        for entity in made:
            nursery.start_soon(send(pair, entity=entity))
    await trio.sleep(12.0)
    before = len(harness.primary.times(PROBE))

    await trio.sleep(30.0)

    assert len(harness.primary.times(PROBE)) - before <= 3 * 4
    assert {pair.states.state_of(entity) for entity in made} == {State.SECONDARY}


async def test_when_it_is_back_its_entities_are_back_soon_after(harness):
    pair = await harness.pair(failover_interval=30.0, ping_interval=10.0)
    made = await queues(harness, 100)
    harness.primary.fail(Hang())
    async with trio.open_nursery() as nursery:
        for entity in made:
            nursery.start_soon(send(pair, entity=entity))
    await trio.sleep(60.0)
    harness.primary.heal()

    await trio.sleep(25.0)

    assert pair.states.troubled() == []


async def wait_in_outage(harness, period):
    """
    Send to a thousand queues of a frozen primary, one after the other; return the seconds that
    their producers waited after the first `attempt_timeout`, and the longest wait.
    """
    pair = await harness.pair()
    made = await queues(harness, 1000)
    rng = random.Random(3)
    after = trio.current_time() + pair.broker.options.attempt_timeout
    end = trio.current_time() + 50.0
    waits = []

    async def produce(entity):
        await trio.sleep(rng.uniform(0.0, period))
        for number in itertools.takewhile(lambda _: trio.current_time() < end, itertools.count()):
            began = trio.current_time()
            assert await send(pair, message(f"{number}"), entity=entity)() is AcceptedBy.BACKLOG
            waits.append((began, trio.current_time()))
            await trio.sleep(period)

    harness.primary.fail(Hang())
    async with trio.open_nursery() as nursery:
        for entity in made:
            nursery.start_soon(produce, entity)
    beyond = sum(max(0.0, ended - max(began, after)) for began, ended in waits)
    return beyond, max(ended - began for began, ended in waits)


@pytest.mark.parametrize("period", [20.0, 60.0])
async def test_a_thousand_queues_of_a_frozen_primary_wait_less_than_half_a_second_each(
    harness, period
):
    beyond, longest = await wait_in_outage(harness, period)

    assert beyond <= 0.5 * 1000
    assert longest <= 2.5


async def test_queues_that_are_first_used_in_an_outage_wait_for_a_moment(harness):
    pair = await harness.pair()
    made = await queues(harness, 1000)
    harness.primary.fail(Hang())

    with Timed() as timed:
        for entity in made:
            assert await send(pair, entity=entity)() is AcceptedBy.BACKLOG
            await wait_all_tasks_blocked()

    assert timed.seconds - pair.broker.options.attempt_timeout <= 0.5 * 1000
    assert harness.primary.sends(made[-1]) == 0


async def test_a_refused_connection_and_a_primary_that_lives_cost_nobody_a_diversion(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse(lambda: Unreachable("refused")), SEND, times=1)
    await send(pair)()

    accepted_by = [await send(pair, message(f"{n}"), entity=BILLS)() for n in range(3)]

    assert accepted_by == [AcceptedBy.PRIMARY] * 3


async def test_a_send_that_waited_for_a_busy_primary_hears_that_it_cannot_be_reached(harness):
    pair = await harness.pair(send_timeout=60.0, busy_pause=5.0)
    harness.primary.fail(busy(5.0), SEND, entity=BILLS, times=1)
    accepted_by = []

    async def wait():
        accepted_by.append(await send(pair, entity=BILLS)())

    harness.nursery.start_soon(wait)
    await trio.sleep(3.0)
    harness.primary.fail(unconnected())
    await send(pair)()
    await trio.sleep(5.0)

    assert accepted_by == [AcceptedBy.BACKLOG]
    assert harness.primary.sends(BILLS) == 1


async def test_an_entity_is_probed_if_no_other_was_left_to_probe_in_an_outage(harness):
    pair = await harness.pair()
    harness.primary.fail(unconnected())
    await send(pair)()
    pair.states.force_over(ORDERS)
    await trio.sleep(100.0)
    assert await send(pair, entity=BILLS)() is AcceptedBy.BACKLOG

    harness.primary.heal()
    await trio.sleep(100.0)

    assert pair.states.state_of(BILLS) is State.PRIMARY
    assert await send(pair, entity=BILLS)() is AcceptedBy.PRIMARY


@pytest.mark.parametrize(("answered", "is_lost"), [(5.0, False), (3.0, True)])
async def test_a_remembered_failure_from_before_an_answer_says_nothing(harness, answered, is_lost):
    """A dial that failed is remembered for a pause, in which the namespace may have come back."""
    pair = await harness.pair()
    start = trio.current_time()
    error = Unreachable("refused")
    error.since = start + 4.0
    await trio.sleep(answered)
    pair.states.sent(pair.states.begin(ORDERS))
    await trio.sleep(1.0)

    pair.states.failed(pair.states.begin(BILLS), error)

    assert pair.states.evidence.namespace.is_lost is is_lost
    assert (pair.states.state_of(BILLS) is State.SUSPECT) is is_lost
