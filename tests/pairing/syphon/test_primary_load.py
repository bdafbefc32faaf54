"""The load of a syphon on the primary: few sends at first, none while it can't be reached."""

import itertools
import math
import random

import pytest
import trio

from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import Busy, InvalidRequest, NoAnswer, Unavailable, Unreachable
from gateway.domain.events.gateway import SyphonBackedOff
from gateway.domain.failover import State
from gateway.domain.message import Message
from gateway.pairing.syphon.primary_load import (
    FIRST,
    LEAST,
    MOST,
    PATIENCE,
    PROBES,
    PrimaryLoad,
)
from gateway.pairing.syphon.slow_start import EACH, SLOW
from tests.harness.faults import Hang, Operation
from tests.harness.retained import entries
from tests.pairing.harness import (
    BILLS,
    LABEL,
    ORDERS,
    QUEUE,
    Slow,
    load_of,
    message,
    refuse,
    virtual_time,
)

pytestmark = virtual_time

RETRY = Backoff(first=1.0, cap=30.0, jitter=0.0)
ENTITIES = tuple(EntityPath(f"queue-{number}") for number in range(3))
DOWN = Unavailable("503")


@pytest.fixture
async def load(harness):
    made = load_of(harness.primary.broker)
    await harness.nursery.start(made.run)
    return made


async def rounds(load, number, seconds):
    """Send rounds of as many sends as may be in flight, each answered after the given time."""
    for _ in range(number):
        async with trio.open_nursery() as nursery:
            for _ in range(load.limit):
                nursery.start_soon(one_send, load, seconds)


async def one_send(load, seconds):
    async with load.room(ORDERS):
        began = trio.current_time()
        await trio.sleep(seconds)
        load.answered(ORDERS, began)


def fail(load, *entities, error=DOWN):
    for entity in entities:
        load.failed(entity, trio.current_time(), error)


async def test_a_busy_backlog_halves_the_sends_once_for_all_that_asked_before(load):
    await rounds(load, 20, 0.01)
    began = trio.current_time()
    await trio.sleep(0.1)

    for _ in range(5):
        load.backlog_busy(began)

    assert load.limit == MOST // 2


async def test_more_sends_are_in_flight_while_answers_are_quick(load):
    first = load.limit
    await rounds(load, 1, 0.01)
    second = load.limit
    await rounds(load, 20, 0.01)

    assert first == FIRST
    assert FIRST < second <= 2 * FIRST
    assert load.limit == MOST


async def test_no_more_than_the_limit_are_in_flight(load):
    entered = []

    async def enter():
        async with load.room(ORDERS):
            entered.append(trio.current_time())
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(FIRST + 5):
            nursery.start_soon(enter)
        await trio.sleep(100.0)
        nursery.cancel_scope.cancel()

    assert len(entered) == FIRST


async def test_a_send_that_leaves_its_room_early_lets_one_other_begin(load):
    async def enter():
        async with load.room(ORDERS):
            entered.append(1)
            await trio.sleep_forever()

    entered = []
    async with trio.open_nursery() as nursery:
        async with load.room(ORDERS) as room:
            for _ in range(FIRST):
                nursery.start_soon(enter)
            await trio.sleep(1.0)
            before = len(entered)
            room.leave()
            await trio.sleep(1.0)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()

    assert (before, len(entered)) == (FIRST - 1, FIRST)


async def test_slow_answers_halve_the_limit_once_for_the_sends_in_flight(load):
    await rounds(load, 20, 0.01)
    await rounds(load, 1, 2 * SLOW)

    assert load.limit == MOST // 2
    await rounds(load, 20, 2 * SLOW)
    assert load.limit == LEAST


async def test_after_a_slow_answer_the_limit_grows_by_one_in_a_round(load):
    await rounds(load, 20, 0.01)
    await rounds(load, 1, 2 * SLOW)
    before = load.limit
    await rounds(load, 4, 0.01)

    assert before < load.limit <= before + 4


async def test_a_busy_primary_gets_half_as_many_sends(load):
    await rounds(load, 20, 0.01)
    began = trio.current_time()
    await trio.sleep(0.01)
    load.failed(ORDERS, began, Busy())

    assert load.limit == MOST // 2
    assert not load.is_lost


async def test_a_limit_that_isnt_used_doesnt_grow(load):
    for _ in range(100):
        await one_send(load, 0.01)

    assert load.limit == FIRST


async def test_several_entities_that_fail_are_a_lost_primary_and_one_isnt(load):
    fail(load, *[ENTITIES[0]] * 10)
    alone = load.is_lost
    fail(load, *ENTITIES)

    assert not alone
    assert load.is_lost


async def test_an_answer_between_failures_shows_that_the_primary_lives(load):
    fail(load, *ENTITIES[:2])
    await trio.sleep(0.01)
    load.answered(ORDERS, trio.current_time())
    fail(load, ENTITIES[2])

    assert not load.is_lost


async def test_a_refused_connection_is_a_lost_primary_at_once(load):
    fail(load, ORDERS, error=Unreachable("refused"))

    assert load.is_lost


async def test_a_lost_primary_is_probed_less_and_less_often_until_it_answers(harness, load):
    harness.primary.fail(refuse(Unavailable, "down"), Operation.PROBE)
    began = trio.current_time()
    fail(load, ORDERS, error=Unreachable("refused"))
    await trio.sleep(100.0)
    at = [round(moment - began, 3) for moment in harness.primary.times(Operation.PROBE)]
    harness.primary.heal()
    await trio.sleep(31.0)

    assert at == [1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0]
    assert not load.is_lost
    assert load.limit == FIRST


async def test_any_entity_that_was_seen_may_show_that_the_primary_lives(harness, load):
    harness.primary.fail(refuse(Unavailable, "down"), Operation.PROBE, entity=ORDERS)
    async with load.room(BILLS):
        pass
    fail(load, ORDERS, error=Unreachable("refused"))
    await trio.sleep(200.0)

    assert not load.is_lost


async def test_a_probe_that_hangs_is_a_failed_one(harness, load):
    harness.primary.fail(Hang(), Operation.PROBE)
    fail(load, ORDERS, error=NoAnswer("late"))
    fail(load, ORDERS, error=Unreachable("refused"))
    await trio.sleep(12.0)

    assert load.is_lost


async def test_a_syphon_in_a_gateway_leaves_it_to_the_gateway_to_find_the_primary(harness):
    load = load_of(harness.primary.broker, probes=False)
    fail(load, ORDERS, error=Unreachable("refused"))
    await trio.lowlevel.checkpoint()

    assert not load.is_lost


async def test_a_syphon_receives_nothing_while_the_primary_cant_be_reached(harness):
    await harness.divert(message("m1"))
    harness.primary.fail(refuse(Unreachable, "refused"))
    await harness.syphon(retry=RETRY)
    await trio.sleep(5.0)
    before = len(harness.secondary.times(Operation.RECEIVE))
    await trio.sleep(600.0)

    assert len(harness.secondary.times(Operation.RECEIVE)) == before
    assert len(harness.primary.times(Operation.SEND)) <= 2


async def test_the_backlog_moves_soon_after_the_primary_is_back(harness):
    await harness.divert(*[message(f"m{number}") for number in range(50)])
    harness.primary.fail(refuse(Unreachable, "refused"))
    await harness.syphon(retry=RETRY)
    await trio.sleep(600.0)
    harness.primary.heal()
    await trio.sleep(80.0)  # a probe, the entity's own backoff, and a lock

    assert len(await harness.primary.ids()) == 50
    assert await harness.secondary.store.peek(QUEUE) == []


async def test_sends_without_an_answer_hold_up_other_entities_for_a_moment_only(harness):
    for index in range(2 * FIRST):
        queue = backlog.queue_name(LABEL, index)
        if index:
            await harness.secondary.store.create_queue(queue, backlog.QUEUE_PROPERTIES)
        await harness.divert(message(f"o{index}"), entity=ORDERS, queue=queue)
        await harness.divert(message(f"b{index}"), entity=BILLS, queue=queue)
    harness.primary.fail(Hang(), Operation.SEND, entity=ORDERS)
    await harness.syphon()
    await trio.sleep(5 * PATIENCE)

    assert len(await harness.primary.ids(BILLS)) == 2 * FIRST


async def test_nothing_more_is_received_while_sends_wait_for_room(harness):
    busy, other = harness.queues(2)
    await harness.secondary.store.create_queue(other, backlog.QUEUE_PROPERTIES)
    for number in range(5 * FIRST):
        entity = EntityPath(f"entity-{number}")
        await harness.primary.store.create_queue(entity, QueueProperties())
        await harness.divert(message(f"m{number}"), entity=entity, queue=busy)
    harness.primary.fail(Slow(0.4), Operation.SEND)
    harness.secondary.fail(Slow(0.1), Operation.SETTLE)
    await harness.syphon()
    await trio.sleep(0.1)
    at = trio.current_time()
    await harness.secondary.store.send(other, [Message(body=b"no envelope")])
    await trio.sleep(100.0)

    sends = harness.primary.times(Operation.SEND)
    receives = [each for each in harness.secondary.times(Operation.RECEIVE) if each > at]
    assert len(sends) == 5 * FIRST
    assert sum(each < at for each in sends) == FIRST
    assert min(receives) >= max(sends)
    assert await harness.secondary.ids(other) == []


async def test_after_a_return_messages_wait_where_they_need_no_lock(harness):
    """Messages that wait keep their locks, and each renewal is a request."""
    for index in range(4):
        queue = backlog.queue_name(LABEL, index)
        if index:
            await harness.secondary.store.create_queue(queue, backlog.QUEUE_PROPERTIES)
        for number in range(80):
            entity = EntityPath(f"entity-{number}")
            if not index:
                await harness.primary.store.create_queue(entity, QueueProperties())
            await harness.divert(message(f"{index}-{number}"), entity=entity, queue=queue)
    harness.primary.fail(refuse(Unreachable, "refused"))
    await harness.syphon(retry=RETRY)
    await trio.sleep(100.0)
    harness.primary.heal()
    harness.primary.fail(Slow(0.4), Operation.SEND)
    await trio.sleep(100.0)

    assert len(harness.secondary.times(Operation.RENEW)) == 0
    assert [await harness.secondary.ids(q) for q in harness.queues(4)] == [[]] * 4


async def test_a_frozen_primary_gets_the_sends_that_were_under_way_and_no_other(harness):
    await harness.divert(message("m1"))
    harness.primary.fail(Hang())
    await harness.syphon()
    await trio.sleep(2 * PATIENCE)
    await harness.divert(message("m2"))
    await harness.divert(message("b1"), entity=BILLS)
    await trio.sleep(25.0)

    assert (harness.primary.sends(ORDERS), harness.primary.sends(BILLS)) == (1, 0)


async def test_an_entity_without_answers_holds_up_none_that_the_syphon_has_not_met(harness):
    await harness.divert(message("o1"))
    harness.primary.fail(Hang(), Operation.SEND, Operation.PROBE, entity=ORDERS)
    await harness.syphon()
    await trio.sleep(2 * PATIENCE)
    await harness.divert(message("b1"), entity=BILLS)
    await trio.sleep(25.0)

    assert await harness.primary.ids(BILLS) == ["b1"]
    assert harness.primary.sends(ORDERS) == 1


@pytest.mark.parametrize("seconds", [2.0, 10.0])
async def test_the_backlog_moves_soon_after_a_freeze_although_a_send_still_waits(harness, seconds):
    await harness.divert(message("m1"))
    harness.primary.fail(Hang())
    await harness.syphon()
    await trio.sleep(2 * PATIENCE)
    await harness.divert(message("m2"))
    await trio.sleep(seconds)
    harness.primary.heal()
    await trio.sleep((1.0 + PROBES.jitter) * PROBES.cap + 1.0)

    assert await harness.primary.ids() == ["m2"]


async def test_a_primary_that_is_slow_and_answers_probes_isnt_lost(harness):
    await harness.divert(*[message(f"m{number}") for number in range(8)])
    harness.primary.fail(Slow(0.9), Operation.SEND)
    await harness.syphon(batch=2)
    await trio.sleep(10.0)

    assert len(await harness.primary.ids()) == 8
    assert harness.events.of(SyphonBackedOff) == []


async def test_a_gateways_own_syphon_waits_for_no_send_from_before_the_return(harness):
    pair = await harness.pair()
    await harness.divert(message("m1"))
    harness.primary.fail(Hang())
    await harness.syphon(states=pair.states)
    await trio.sleep(2 * PATIENCE)
    await harness.divert(message("m2"))
    harness.primary.heal()
    while pair.states.state_of(ORDERS) is not State.PRIMARY:
        await pair.states.changes.wait_next()
    await trio.sleep(1.0)

    assert await harness.primary.ids() == ["m2"]


async def test_a_send_without_an_answer_makes_the_gateway_ask_about_its_entity(harness):
    pair = await harness.pair()
    await harness.divert(message("m1"))
    harness.primary.fail(Hang())
    await harness.syphon(states=pair.states)
    await trio.sleep(2 * PATIENCE)
    suspect = pair.states.state_of(ORDERS)
    await harness.divert(message("m2"))
    await trio.sleep(10.0)
    before = harness.primary.sends(ORDERS)
    harness.primary.heal()
    await trio.sleep(15.0)  # earlier than the first send is given up

    assert (suspect, before) == (State.SUSPECT, 1)
    assert await harness.primary.ids() == ["m2"]


async def test_an_entity_that_alone_was_down_gets_its_backlog_soon_after_its_return(harness):
    await harness.divert(message("m1"))
    harness.primary.fail(refuse(Unavailable, "down"), entity=ORDERS)
    await harness.syphon(retry=Backoff(first=200.0, cap=200.0, jitter=0.0))
    await trio.sleep(30.0)
    harness.primary.heal()
    await trio.sleep((1.0 + PROBES.jitter) * PROBES.cap + 1.0)

    assert await harness.primary.ids() == ["m1"]


async def test_an_entity_whose_probes_are_answered_keeps_its_backoff(harness):
    await harness.divert(message("m1"))
    harness.primary.fail(refuse(Unavailable, "down"), Operation.SEND)
    await harness.syphon(retry=Backoff(first=20.0, cap=20.0, jitter=0.0))
    await trio.sleep(50.0)

    assert harness.primary.sends(ORDERS) == 3


# --- what is known of the primary, by itself


async def test_the_sends_in_flight_are_eight_at_first_and_four_to_256(load):
    first = load.limit
    await rounds(load, 20, 0.01)
    most = load.limit
    for _ in range(10):
        await trio.sleep(0.1)
        load.backlog_busy(trio.current_time())

    assert (first, most, load.limit) == (8, 256, 4)


@pytest.mark.parametrize("lost", ["one refused connection", "three silent entities"])
async def test_a_lost_primary_gets_few_sends_again_and_its_loss_is_a_change(load, lost):
    await rounds(load, 20, 0.01)
    await trio.sleep(1.0)
    seen, before = load.changes.version, load.limit
    fail(load, ORDERS, error=NoAnswer("no answer"))
    alone = load.limit, load.is_lost, load.changes.version

    if lost == "one refused connection":
        fail(load, ORDERS, error=Unreachable("refused"))
    else:
        fail(load, *ENTITIES, error=NoAnswer("no answer"))

    assert alone == (before, False, seen)
    assert (load.is_lost, load.limit) == (True, 8)
    assert load.changes.version > seen


async def test_failures_of_a_primary_that_is_lost_already_are_no_change(load):
    fail(load, *ENTITIES, error=NoAnswer("no answer"))
    await rounds(load, 1, 0.01)
    fail(load, *ENTITIES, error=NoAnswer("no answer"))
    seen, before = load.changes.version, load.limit

    fail(load, *ENTITIES, error=NoAnswer("no answer"))

    assert (load.changes.version, load.limit) == (seen, before)


async def test_a_refusal_of_one_message_shows_that_the_primary_lives(load):
    fail(load, ORDERS, error=Unreachable("refused"))
    seen = load.changes.version
    await trio.sleep(0.1)

    fail(load, ORDERS, error=InvalidRequest("no"))

    assert not load.is_lost
    assert load.returned_at(BILLS) == trio.current_time()
    assert load.changes.version > seen


async def test_questions_without_an_answer_take_a_second_and_the_third_loses_the_primary(
    harness, load
):
    harness.primary.fail(Hang(), Operation.PROBE)
    began = trio.current_time()

    answered = [await load.ask(ORDERS)]
    alone = load.is_silent(ORDERS), load.must_ask(BILLS), load.must_ask(ORDERS), load.is_lost
    answered += [await load.ask(each) for each in (BILLS, ENTITIES[0])]

    assert answered == [False] * 3
    assert trio.current_time() - began == pytest.approx(3.0)
    assert alone == (True, True, False, False)
    assert load.is_lost


@pytest.mark.parametrize(("began", "is_silent"), [(-0.1, True), (0.0, False), (0.1, False)])
async def test_an_answer_to_a_request_not_before_the_question_ends_the_doubt(
    harness, load, began, is_silent
):
    harness.primary.fail(Hang(), Operation.PROBE)
    asked = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.ask, ORDERS)
        await trio.sleep(0.2)
        before = load.is_in_doubt
        load.answered(BILLS, asked + began)
        after = load.is_in_doubt

    assert (before, after, load.is_silent(ORDERS)) == (True, is_silent, is_silent)
    assert not load.is_in_doubt


async def test_an_entity_that_alone_gave_no_answer_is_probed_until_it_returns(harness, load):
    harness.primary.fail(Hang(), Operation.PROBE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.ask, ORDERS)
        await trio.sleep(0.1)
        load.answered(BILLS, trio.current_time())
    before = load.returned_at(ORDERS)
    harness.primary.heal()
    await trio.sleep(2.0)

    assert before == -math.inf
    assert load.returned_at(ORDERS) > 0.0


async def test_a_doubt_ends_for_those_who_wait_with_the_question_or_with_an_answer(harness, load):
    harness.primary.fail(Hang(), Operation.PROBE)
    ended = []

    async def wait():
        await load.wait_judged()
        ended.append(trio.current_time())

    began = trio.current_time()
    for answers in (True, False):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.ask, ORDERS)
            await trio.sleep(0.1)
            nursery.start_soon(wait)
            await trio.sleep(0.1)
            if answers:
                load.answered(BILLS, trio.current_time())
    await wait()

    at = [moment - began for moment in ended]
    assert at == pytest.approx([0.2, 2.0, 2.0])


async def test_no_more_than_four_questions_are_asked_at_once(harness, load):
    harness.primary.fail(Hang(), Operation.PROBE)
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(load.ask, EntityPath(f"queue-{number}"))
        await trio.sleep(0.5)
        asked = len(harness.primary.times(Operation.PROBE))

    assert asked == 4


async def test_an_entity_that_accepts_a_send_is_not_probed_any_more(harness, load):
    harness.primary.fail(refuse(Unavailable, "down"), Operation.PROBE)
    load.probe_until_back(ORDERS)
    await trio.sleep(1.5)
    load.answered(ORDERS, trio.current_time())
    probes = len(harness.primary.times(Operation.PROBE))
    await trio.sleep(100.0)

    assert probes == 1
    assert len(harness.primary.times(Operation.PROBE)) == probes


async def test_a_second_failure_of_an_entity_that_is_probed_forgets_no_failed_probe(harness, load):
    harness.primary.fail(refuse(Unavailable, "down"), Operation.PROBE)
    load.probe_until_back(ORDERS)
    await trio.sleep(1.5)
    load.probe_until_back(ORDERS)
    harness.primary.heal()
    await trio.sleep(5.0)

    assert load.returned_at(ORDERS) > 0.0


async def test_a_probe_that_hangs_and_is_given_up_counts_as_failed(harness):
    load = load_of(harness.primary.broker, probes=True)
    await harness.nursery.start(load.run)
    harness.primary.fail(Hang(), Operation.PROBE, times=4)
    load.probe_until_back(ORDERS)
    await trio.sleep(11.5)  # the first one is given up after ten seconds
    before = load.returned_at(ORDERS)
    await trio.sleep(30.0)

    assert before == -math.inf
    assert load.returned_at(ORDERS) > 0.0


async def test_probes_that_hang_end_with_the_return_so_that_the_next_loss_is_probed_soon(
    harness, load
):
    harness.primary.fail(Hang(), Operation.PROBE, times=1)
    fail(load, ORDERS, error=Unreachable("refused"))
    await trio.sleep(8.5)  # the second one is answered after three
    found = not load.is_lost
    fail(load, ORDERS, error=Unreachable("refused"))
    again = trio.current_time()
    await trio.sleep(1.5)

    assert found
    assert harness.primary.times(Operation.PROBE)[-1] == pytest.approx(again + 1.0)


async def test_a_lost_primary_is_probed_after_a_second_and_each_five_seconds_at_most(harness):
    load = PrimaryLoad(primary=harness.primary.broker, rng=random.Random(1), attempt_timeout=10.0)
    await harness.nursery.start(load.run)
    harness.primary.fail(refuse(Unavailable, "down"), Operation.PROBE)
    began = trio.current_time()
    fail(load, ORDERS, error=Unreachable("refused"))
    await trio.sleep(600.0)

    at = harness.primary.times(Operation.PROBE)
    pauses = [after - before for before, after in itertools.pairwise(at)]
    assert 0.8 <= at[0] - began <= 1.2
    assert 5.5 < max(pauses) <= 6.0  # with the jitter


async def test_an_answer_is_that_of_one_message_unless_more_are_told(load):
    await rounds(load, 20, 0.01)
    await trio.sleep(1.0)
    before, late = load.limit, SLOW + 1.5 * EACH
    load.answered(ORDERS, trio.current_time() - late, 2)
    two = load.limit

    load.answered(ORDERS, trio.current_time() - late)

    assert (two, load.limit) == (before, before // 2)


async def test_of_the_entities_that_were_seen_a_thousand_are_remembered(load):
    before = entries(load)
    for number in range(1500):
        async with load.room(EntityPath(f"queue-{number}")):
            pass

    assert entries(load) - before == 1000


async def test_an_entity_whose_send_alone_had_no_answer_is_not_silent(load):
    fail(load, ORDERS, error=NoAnswer("late"))

    assert not load.is_silent(ORDERS)


async def test_an_answered_question_begins_no_probes(harness, load):
    answered = await load.ask(ORDERS)
    await trio.sleep(100.0)

    assert answered
    assert len(harness.primary.times(Operation.PROBE)) == 1
    assert load.returned_at(ORDERS) == -math.inf


async def test_a_syphon_in_a_gateway_calls_no_entity_silent(harness):
    load = load_of(harness.primary.broker, probes=False)
    harness.primary.fail(Hang(), Operation.PROBE)

    assert not await load.ask(ORDERS)
    assert not load.is_silent(ORDERS)


async def test_a_lost_primary_gets_one_probe_at_a_time_and_troubled_entities_four(harness, load):
    harness.primary.fail(refuse(Unavailable, "down"), Operation.PROBE)
    for number in range(6):
        load.probe_until_back(EntityPath(f"queue-{number}"))
    await trio.sleep(1.5)
    troubled = len(harness.primary.times(Operation.PROBE))
    fail(load, *ENTITIES, error=Unreachable("refused"))
    await trio.sleep(2.0)

    assert troubled == 4
    assert len(harness.primary.times(Operation.PROBE)) == troubled + 1


async def test_the_return_of_an_entity_is_a_change_though_another_answer_had_ended_its_silence(
    harness, load
):
    harness.primary.fail(Hang(), Operation.PROBE)
    await load.ask(ORDERS)
    await trio.sleep(0.1)
    load.answered(BILLS, trio.current_time())
    harness.primary.heal()
    seen = load.changes.version
    with trio.fail_after(40.0):
        await load.changes.wait(seen)

    assert load.returned_at(ORDERS) == trio.current_time()


async def test_an_answer_that_ends_a_silence_is_a_change(harness, load):
    harness.primary.fail(Hang(), Operation.PROBE)
    await load.ask(ORDERS)
    seen = load.changes.version
    load.answered(BILLS, trio.current_time())

    assert load.changes.version > seen
