"""Several batches in one call of the pair: each has its verdict, and the order is kept."""

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    Busy,
    InvalidRequest,
    MessageTooLarge,
    Outcome,
    OutcomeUnknown,
    QuotaExceeded,
    SessionRequired,
    Unavailable,
)
from gateway.domain.events.gateway import Diverted, SendFailed, SentTwice
from gateway.domain.failover import State
from gateway.pairing.entity_cache import KnownEntity
from gateway.pairing.options import EntityRule, OnUnknown
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse, Reset, busy
from tests.pairing.harness import (
    ORDERS,
    QUEUE,
    Slow,
    Timed,
    message,
    reaches,
    refuse,
    suspect,
    virtual_time,
)

pytestmark = virtual_time

SEND = Operation.SEND
TAKEN = type(None)


def batches(*ids):
    return [[message(each)] for each in ids]


def strikes(namespace, *faults):
    """Each of these faults strikes one batch, in their order; None: it is accepted."""
    for fault in faults:
        namespace.fail(fault, SEND, times=1)


async def kinds(pair, *ids, entity=ORDERS):
    return [type(error) for error in await pair.broker.send_many(entity, batches(*ids))]


# The primary


async def test_each_batch_of_a_call_reaches_the_primary_in_its_order(harness):
    pair = await harness.pair()

    found = await kinds(pair, "1", "2", "3")

    assert found == [TAKEN] * 3
    assert await harness.primary.ids() == ["1", "2", "3"]
    assert [(each.accepted_by, each.messages) for each in pair.broker.sends.all()] == [
        ("primary", 3)
    ]


async def test_batches_behind_one_that_is_refused_keep_their_places(harness):
    pair = await harness.pair()
    strikes(harness.primary, None, refuse(QuotaExceeded, "full"), None)

    found = await kinds(pair, "1", "2", "3")

    assert found == [TAKEN, QuotaExceeded, TAKEN]
    assert await harness.primary.ids() == ["1", "3"]
    assert pair.states.state_of(ORDERS) is State.PRIMARY
    assert [each.reason for each in harness.events.of(SendFailed)] == ["full"]


async def test_a_batch_that_is_not_admitted_does_not_stop_the_others(harness):
    pair = await harness.pair(limit=20_000)
    reserved = message("1", properties={"x-ms-path": "elsewhere"})
    large = attrs.evolve(message("2"), body=bytes(20_000))

    found = await pair.broker.send_many(ORDERS, [[reserved], [large], [message("3")]])

    assert [type(error) for error in found] == [InvalidRequest, MessageTooLarge, TAKEN]
    assert await harness.primary.ids() == ["3"]


async def test_if_no_batch_is_admitted_no_namespace_is_asked(harness):
    pair = await harness.pair()

    found = await kinds(pair, "1", "2", entity=ORDERS.dead_letter)

    assert found == [InvalidRequest] * 2
    assert harness.primary.sends(ORDERS.dead_letter) == 0


async def test_a_call_without_batches_is_done(harness):
    pair = await harness.pair()

    assert await pair.broker.send_many(ORDERS, []) == []


# Diversion


@pytest.mark.parametrize(
    ("fault", "in_doubt"), [(Refuse(), False), (Reset(), True), (LoseAnswer(), True)]
)
async def test_only_the_batches_that_the_primary_fails_are_diverted(harness, fault, in_doubt):
    pair = await harness.pair()
    strikes(harness.primary, None, fault, fault)

    found = await kinds(pair, "1", "2", "3", "4")

    assert found == [TAKEN] * 4
    assert [each for each in await harness.primary.ids() if each in {"1", "4"}] == ["1", "4"]
    assert await harness.secondary.ids(QUEUE) == ["2", "3"]
    [diverted] = harness.events.of(Diverted)
    assert (diverted.messages, diverted.in_doubt) == (2, in_doubt)
    assert pair.states.state_of(ORDERS) is State.SUSPECT


async def test_each_diverted_batch_is_in_doubt_by_its_own_attempt(harness):
    pair = await harness.pair()
    strikes(harness.primary, Refuse(), Reset())

    await kinds(pair, "1", "2")

    told = {each.in_doubt: each.messages for each in harness.events.of(Diverted)}
    assert told == {False: 1, True: 1}


async def test_all_batches_of_a_call_go_to_one_backlog_queue_in_their_order(harness):
    await harness.open(queues=5)
    pair = await harness.pair(queues=5)
    harness.primary.fail(Refuse())

    await kinds(pair, *"123456")

    held = [await harness.secondary.ids(queue) for queue in harness.queues(5)]
    assert [ids for ids in held if ids] == [list("123456")]


async def test_batches_that_a_backlog_queue_fails_go_to_the_next_one(harness):
    await harness.open(queues=2)
    pair = await harness.pair(queues=2)
    harness.primary.fail(Refuse())
    strikes(harness.secondary, None, Refuse(), Reset())

    found = await kinds(pair, *"1234")

    held = [await harness.secondary.ids(queue) for queue in harness.queues(2)]
    assert found == [TAKEN] * 4
    assert sorted(held) == [["1", "4"], ["2", "3"]]


async def test_a_failed_over_entity_has_its_batches_on_the_backlog_at_once(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Refuse())
    await kinds(pair, "0")
    asked = harness.primary.sends()

    await kinds(pair, "1", "2")

    assert pair.states.state_of(ORDERS) is State.SECONDARY
    assert harness.primary.sends() == asked
    assert await harness.secondary.ids(QUEUE) == ["0", "1", "2"]


async def test_a_call_in_an_outage_does_not_wait_for_an_earlier_call(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Refuse())
    await kinds(pair, "0")
    strikes(harness.secondary, Slow(5.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kinds, pair, "1")
        await wait_all_tasks_blocked()
        with Timed() as timed:
            await kinds(pair, "2")

    assert timed.seconds == 0.0


async def test_a_primary_that_hangs_in_the_middle_leaves_all_batches_unknown(harness):
    pair = await harness.pair()
    strikes(harness.primary, None, Hang())

    found = await kinds(pair, "1", "2", "3")

    assert found == [TAKEN] * 3
    assert await harness.secondary.ids(QUEUE) == ["1", "2", "3"]
    assert all(each.in_doubt for each in harness.events.of(Diverted))


async def test_a_session_is_required_of_each_diverted_batch(harness):
    queue = EntityPath("sessions")
    await harness.primary.store.create_queue(queue, QueueProperties(requires_session=True))
    pair = await harness.pair()
    pair.entity_cache.store(KnownEntity(entity=queue, requires_session=True))
    harness.primary.fail(Refuse(), SEND)

    sent = [[message("1", session_id="s")], [message("2")], [message("3", session_id="s")]]
    found = await pair.broker.send_many(queue, sent)

    assert [type(error) for error in found] == [TAKEN, SessionRequired, TAKEN]
    assert await harness.secondary.ids(QUEUE) == ["1", "3"]


# Outcomes


async def test_each_batch_has_its_own_outcome_when_both_namespaces_fail(harness):
    pair = await harness.pair()
    strikes(harness.primary, None, Refuse(), Reset())
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(Refuse(), SEND)

    found = await pair.broker.send_many(ORDERS, batches("1", "2", "3"))

    assert [error and error.outcome for error in found] == [
        None,
        Outcome.NOT_SENT,
        Outcome.UNKNOWN,
    ]
    counts = {(each.accepted_by, each.outcome): each.messages for each in pair.broker.sends.all()}
    assert counts == {("primary", "accepted"): 1, ("", "not-sent"): 1, ("", "unknown"): 1}


async def test_with_on_unknown_raise_only_the_unknown_batch_is_not_diverted(harness):
    pair = await harness.pair(on_unknown=OnUnknown.RAISE)
    strikes(harness.primary, Refuse(), Reset(), None)

    found = await kinds(pair, "1", "2", "3")

    assert found == [TAKEN, OutcomeUnknown, TAKEN]
    assert await harness.secondary.ids(QUEUE) == ["1"]


async def test_an_entity_that_never_leaves_the_primary_has_a_verdict_for_each_batch(harness):
    pair = await harness.pair(entities=(EntityRule(match="orders", divert=False),))
    strikes(harness.primary, None, Refuse(), None)

    found = await kinds(pair, "1", "2", "3")

    assert found == [TAKEN, Unavailable, TAKEN]
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_a_call_that_is_cancelled_counts_as_unknown(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang(), SEND)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kinds, pair, "1", "2")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    [count] = pair.broker.sends.all()
    assert (count.outcome, count.messages) == ("unknown", 2)
    assert pair.broker.inflight.total == 0


# Entity states


async def test_a_failure_counts_after_a_success_of_the_same_call(harness):
    pair = await harness.pair()
    strikes(harness.primary, Refuse(), None)

    await kinds(pair, "1", "2")

    assert pair.states.state_of(ORDERS) is State.SUSPECT


async def test_a_trial_with_a_failure_has_failed(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=2)
    harness.primary.fail(Refuse())
    await kinds(pair, "0")
    harness.primary.heal()
    await reaches(pair.states, State.HALF_OPEN)
    strikes(harness.primary, None, Refuse())

    await kinds(pair, "1", "2")

    assert pair.states.state_of(ORDERS) is State.SECONDARY
    assert "2" in await harness.secondary.ids(QUEUE)


async def test_a_call_is_one_trial(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=3)
    harness.primary.fail(Refuse())
    await kinds(pair, "0")
    harness.primary.heal()
    await reaches(pair.states, State.HALF_OPEN)

    await kinds(pair, "1", "2", "3", "4")

    assert await harness.primary.ids() == ["1", "2", "3", "4"]
    assert pair.states.state_of(ORDERS) is State.HALF_OPEN


# Busy


async def test_batches_that_the_primary_is_too_busy_for_are_sent_again_after_the_pause(harness):
    pair = await harness.pair(busy_pause=1.0)
    strikes(harness.primary, None, busy(2.0), busy(1.0), None)

    with Timed() as timed:
        found = await kinds(pair, "1", "2", "3", "4")

    assert found == [TAKEN] * 4
    assert timed.seconds >= 2.0
    assert await harness.primary.ids() == ["1", "4", "2", "3"]
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_a_later_call_does_not_overtake_the_batches_that_wait_for_a_pause(harness):
    pair = await harness.pair(busy_pause=1.0)
    strikes(harness.primary, busy(2.0))

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(kinds, pair, str(number))
            await wait_all_tasks_blocked()

    assert await harness.primary.ids() == [str(number) for number in range(10)]


async def test_a_pause_that_is_too_long_is_the_verdict_for_each_batch(harness):
    pair = await harness.pair()
    harness.primary.fail(busy(100.0), SEND)

    found = await kinds(pair, "1", "2")

    assert found == [Busy, Busy]
    assert await harness.secondary.ids(QUEUE) == []


async def test_busy_batches_are_diverted_with_those_that_the_primary_fails(harness):
    pair = await harness.pair()
    strikes(harness.primary, busy(5.0), Refuse(), None)

    with Timed() as timed:
        found = await kinds(pair, "1", "2", "3")

    assert (found, timed.seconds) == ([TAKEN] * 3, 0.0)
    assert await harness.secondary.ids(QUEUE) == ["1", "2"]


# Order of several calls


async def test_calls_that_wait_for_room_go_on_in_their_order(harness):
    pair = await harness.pair(max_inflight=400)
    large = attrs.evolve(message("large"), body=bytes(600))
    strikes(harness.primary, Slow(1.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.broker.send_many, ORDERS, [[large]])
        await wait_all_tasks_blocked()
        for number in range(10):
            size = 300 if number % 3 == 0 else 10
            one = attrs.evolve(message(str(number)), body=bytes(size))
            nursery.start_soon(pair.broker.send_many, ORDERS, [[one]])
            await wait_all_tasks_blocked()

    assert await harness.primary.ids() == ["large", *map(str, range(10))]


async def test_calls_that_wait_for_a_suspect_entity_go_on_in_their_order(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang(), Operation.PROBE)
    await suspect(harness, pair)

    async with trio.open_nursery() as nursery:
        with Timed() as timed:
            async with trio.open_nursery() as calls:
                for number in range(10):
                    calls.start_soon(kinds, pair, str(number))
                    await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    found = [*await harness.primary.ids(), *await harness.secondary.ids(QUEUE)]
    assert [each for each in found if each != "first"] == [str(n) for n in range(10)]
    assert timed.seconds <= 0.25


# Hedging


async def test_a_hedge_has_all_batches_of_a_call(harness):
    pair = await harness.pair(hedge_after=0.3)
    harness.primary.fail(Slow(1.0), SEND)

    with Timed() as timed:
        found = await kinds(pair, "1", "2")

    assert (found, timed.seconds) == ([TAKEN] * 2, pytest.approx(0.3))
    assert await harness.secondary.ids(QUEUE) == ["1", "2"]
    [count] = pair.broker.sends.all()
    assert (count.accepted_by, count.messages) == ("backlog", 2)


async def test_a_hedge_that_comes_too_late_says_which_messages_were_sent_twice(harness):
    pair = await harness.pair(hedge_after=0.3)
    strikes(harness.primary, Slow(0.4), Slow(0.4), refuse(QuotaExceeded, "full"))
    strikes(harness.secondary, Slow(0.2))

    found = await kinds(pair, "1", "2", "3")

    assert found == [TAKEN] * 3
    assert sorted(await harness.secondary.ids(QUEUE)) == ["1", "2", "3"]
    assert [(each.messages, each.certain) for each in harness.events.of(SentTwice)] == [(2, True)]
    counts = {each.accepted_by: each.messages for each in pair.broker.sends.all()}
    assert counts == {"primary": 2, "backlog": 1}


async def test_a_batch_is_not_called_unsent_if_a_part_of_the_hedge_has_arrived(harness):
    pair = await harness.pair(hedge_after=0.3, attempt_timeout=1.0, send_timeout=5.0)
    strikes(harness.primary, Slow(0.4), refuse(QuotaExceeded, "full"))
    # Of the copies, the second one is accepted and the first one never.
    strikes(harness.secondary, Refuse(), None)
    harness.secondary.fail(Refuse(), SEND)

    found = await kinds(pair, "1", "2")

    assert found == [TAKEN, OutcomeUnknown]
    assert await harness.secondary.ids(QUEUE) == ["2"]
