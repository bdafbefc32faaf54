"""A send does the right thing at each state of its entity."""

import math
from functools import partial

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.capabilities import BoundsSends, Diverts, Peeks, longest_send_of
from gateway.capabilities.sending import continued
from gateway.deadlines import client_gives
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)
from gateway.domain.events.gateway import BusyPause, Diverted, LoopPaused, SendFailed
from gateway.domain.failover import State
from gateway.domain.identity import Identity
from gateway.domain.message import AcceptedBy, Message
from gateway.offering import offered, required
from gateway.pairing.options import WhileSuspect
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse, Reset, SwallowAnswer, busy
from tests.pairing.harness import (
    BILLS,
    CALLERS_FAULT,
    ORDERS,
    QUEUE,
    Slow,
    Timed,
    message,
    outcome_of,
    reaches,
    refuse,
    send,
    suspect,
    virtual_time,
)

pytestmark = virtual_time

SEND = Operation.SEND
NO_TRIAL = Backoff(first=1000.0, cap=1000.0)


# PRIMARY


async def test_a_healthy_entity_is_sent_to_on_the_primary(harness):
    pair = await harness.pair()

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert await harness.primary.ids() == ["m1"]
    assert await harness.secondary.ids(QUEUE) == []


@pytest.mark.parametrize("error", [Unavailable, StorageFull, OutcomeUnknown])
async def test_an_outage_diverts_in_the_same_call(harness, error):
    pair = await harness.pair()
    harness.primary.fail(refuse(error, "out"), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert await harness.secondary.ids(QUEUE) == ["m1"]
    assert harness.primary.sends() == 1
    assert pair.states.state_of(ORDERS) is State.SUSPECT
    assert harness.events.of(Diverted) == [
        Diverted(
            entity=ORDERS,
            accepted_by=AcceptedBy.BACKLOG,
            queue=QUEUE,
            messages=1,
            in_doubt=error is OutcomeUnknown,
        )
    ]


async def test_the_send_that_fails_an_entity_over_is_diverted_in_the_same_call(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Refuse())

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert pair.states.state_of(ORDERS) is State.SECONDARY


async def test_a_hanging_primary_gets_its_share_of_the_time_and_no_more(harness):
    pair = await harness.pair(send_timeout=20.0, attempt_timeout=10.0)
    harness.primary.fail(Hang(), SEND)

    with Timed() as timed:
        await send(pair)()

    assert timed.seconds == pytest.approx(8.0)  # 40 % of 20 s


async def test_an_attempt_never_takes_longer_than_its_limit(harness):
    pair = await harness.pair(send_timeout=60.0, attempt_timeout=10.0)
    harness.primary.fail(Hang(), SEND)

    with Timed() as timed:
        await send(pair)()

    assert timed.seconds == pytest.approx(10.0)


async def test_the_clients_own_deadline_is_shared_out(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang(), SEND)

    with trio.fail_after(5.0), Timed() as timed:
        accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert timed.seconds == pytest.approx(2.0)


@pytest.mark.parametrize("seconds", [5.0, 100.0])
async def test_the_time_that_a_client_gives_counts_also_beyond_the_pairs_own(harness, seconds):
    pair = await harness.pair(send_timeout=30.0, busy_pause=1.0)
    harness.primary.fail(busy(1.0), SEND)
    harness.secondary.fail(Hang(), SEND)

    with client_gives(seconds), Timed() as timed:
        error = await outcome_of(send(pair))

    assert isinstance(error, BrokerError)
    assert timed.seconds <= seconds
    assert (timed.seconds > 30.0) is (seconds > 30.0)


async def test_a_guard_that_is_later_than_the_pairs_time_changes_nothing(harness):
    pair = await harness.pair(send_timeout=30.0, busy_pause=1.0)
    harness.primary.fail(busy(1.0), SEND)
    harness.secondary.fail(Hang(), SEND)

    with trio.fail_after(100.0), Timed() as timed:
        await outcome_of(send(pair))

    assert timed.seconds <= 30.0


async def test_a_backlog_attempt_gets_half_of_what_is_left(harness):
    pair = await harness.pair(send_timeout=10.0, queues=2)
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(Hang(), SEND, times=1)
    await harness.secondary.store.create_queue(harness.queues(2)[1], QueueProperties())

    with Timed() as timed:
        accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert timed.seconds == pytest.approx(5.0)


async def test_one_entitys_outage_leaves_others_alone(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Refuse(), entity=ORDERS)
    await send(pair)()

    accepted_by = await send(pair, entity=BILLS)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert pair.states.state_of(BILLS) is State.PRIMARY


async def test_a_batch_stays_together_and_in_order(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), SEND)

    await send(pair, message("1"), message("2"), message("3"))()

    assert await harness.secondary.ids(QUEUE) == ["1", "2", "3"]
    assert harness.secondary.sends(QUEUE) == 1


# SUSPECT


async def test_while_suspect_one_send_tries_and_the_others_are_diverted_soon(harness):
    pair = await harness.pair(suspect_wait=0.25)
    await suspect(harness, pair)
    harness.primary.fail(Hang(), SEND)
    await wait_all_tasks_blocked()  # a probe is answered
    ended = []

    async def one(number):
        started = trio.current_time()
        accepted_by = await send(pair, message(f"{number}"))()
        ended.append((accepted_by, round(trio.current_time() - started, 3)))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(one, number)

    assert sorted(ended, key=lambda end: end[1]) == [(AcceptedBy.BACKLOG, 0.25)] * 4 + [
        (AcceptedBy.BACKLOG, 10.0)  # probes are answered, so that the send waits on
    ]
    assert harness.primary.sends() == 2


async def test_a_trial_that_succeeds_lets_the_waiting_ones_through(harness):
    pair = await harness.pair(suspect_wait=0.25)
    await suspect(harness, pair)
    harness.primary.fail(Slow(0.1), SEND, times=1)
    await trio.sleep(1.0)
    accepted_by = []

    async def one(number):
        accepted_by.append(await send(pair, message(f"{number}"))())

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(one, number)

    assert accepted_by == [AcceptedBy.PRIMARY] * 3
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_between_two_trials_sends_are_diverted_at_once(harness):
    pair = await harness.pair(trial_pause=NO_TRIAL)
    harness.primary.fail(Refuse())
    await send(pair, message("first"))()
    await wait_all_tasks_blocked()  # a probe has failed

    with Timed() as timed:
        accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert timed.seconds == 0
    assert harness.primary.sends() == 1


async def test_failures_for_the_interval_fail_the_entity_over(harness):
    pair = await harness.pair(failover_interval=20.0)
    harness.primary.fail(Refuse())
    started = trio.current_time()

    while pair.states.state_of(ORDERS) is not State.SECONDARY:
        assert await send(pair)() is AcceptedBy.BACKLOG
        await trio.sleep(0.5)

    assert 20.0 <= trio.current_time() - started < 30.0


async def test_suspect_as_the_legacy_client_did_gives_the_error_to_the_caller(harness):
    pair = await harness.pair(while_suspect=WhileSuspect.RAISE, failover_interval=20.0)
    harness.primary.fail(Refuse(), SEND)

    first = await outcome_of(send(pair))
    second = await outcome_of(send(pair))
    await trio.sleep(19.0)
    third = await outcome_of(send(pair))
    await trio.sleep(1.0)
    accepted_by = await send(pair)()

    assert [type(error) for error in (first, second, third)] == [Unavailable] * 3
    assert accepted_by is AcceptedBy.BACKLOG
    assert harness.primary.sends() == 4


# SECONDARY, PINNED


async def test_a_failed_over_entity_goes_to_the_backlog_at_once(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Hang())
    await send(pair)()

    with Timed() as timed:
        accepted_by = await send(pair, message("m2"))()

    assert accepted_by is AcceptedBy.BACKLOG
    assert timed.seconds == 0
    assert harness.primary.sends() == 1


async def test_a_pinned_entity_never_asks_the_primary(harness):
    pair = await harness.pair(send_timeout=1.0)
    pair.states.force_over(ORDERS)
    harness.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Unavailable)
    assert harness.primary.sends() == 0


# HALF_OPEN


async def test_half_open_lets_one_send_try_and_the_others_are_diverted_at_once(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=3)
    harness.primary.fail(Refuse())
    await send(pair, message("0"))()
    harness.primary.heal()
    harness.primary.fail(Slow(0.1), SEND)
    await reaches(pair.states, State.HALF_OPEN)
    accepted_by = []

    async def one(number):
        accepted_by.append(await send(pair, message(f"{number}"))())

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(one, number)

    assert accepted_by == [AcceptedBy.BACKLOG, AcceptedBy.BACKLOG, AcceptedBy.PRIMARY]


async def test_a_failed_trial_closes_a_half_open_entity_and_is_diverted(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=9)
    harness.primary.fail(Refuse(), SEND)
    await send(pair, message("0"))()
    await trio.sleep(0.5)  # a probe is answered
    assert pair.states.state_of(ORDERS) is State.HALF_OPEN

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert pair.states.state_of(ORDERS) is State.SECONDARY


# Nobody takes it


async def test_when_no_backlog_queue_takes_it_the_primary_is_asked_once_more(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.secondary.fail(Refuse(), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert harness.primary.sends() == 2
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_a_primary_that_takes_it_after_all_opens_a_failed_over_entity_half(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=9)
    harness.primary.fail(Refuse())
    await send(pair)()
    await wait_all_tasks_blocked()
    harness.primary.heal()
    harness.secondary.fail(Refuse(), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert pair.states.state_of(ORDERS) is State.HALF_OPEN


async def test_every_backlog_queue_is_tried_before_the_primary_is_asked_again(harness):
    for queue in harness.queues(4)[1:]:
        await harness.secondary.store.create_queue(queue, QueueProperties())
    pair = await harness.pair(queues=4)
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(Refuse(), SEND, times=3)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert sorted(harness.secondary.sends(queue) for queue in harness.queues(4)) == [1, 1, 1, 1]


@pytest.mark.parametrize("fault", [MessageTooLarge, InvalidRequest, NotSupported])
async def test_a_message_that_no_backlog_queue_can_take_tries_one_only(harness, fault):
    pair = await harness.pair(queues=3)
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(refuse(fault, "9 bytes expected"), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Unavailable)
    assert "9 bytes expected" in str(error)  # and not only that the primary can't be reached
    assert sum(harness.secondary.sends(queue) for queue in harness.queues(3)) == 1
    assert pair.rotation.usable == 3


async def test_a_backlog_queue_that_failed_is_left_out_by_the_next_sends(harness):
    await harness.secondary.store.create_queue(harness.queues(2)[1], QueueProperties())
    pair = await harness.pair(queues=2)
    pair.states.force_over(ORDERS)
    harness.secondary.fail(Refuse(), SEND, entity=harness.queues(2)[0])

    for number in range(20):
        assert await send(pair, message(f"{number}"))() is AcceptedBy.BACKLOG

    assert harness.secondary.sends(harness.queues(2)[0]) == 1


async def test_a_backlog_queue_that_takes_a_message_again_is_no_last_resort_any_more(harness):
    await harness.secondary.store.create_queue(harness.queues(2)[1], QueueProperties())
    pair = await harness.pair(queues=2)
    pair.states.force_over(ORDERS)
    harness.secondary.fail(Refuse(), SEND, times=2)
    await outcome_of(send(pair))

    for number in range(20):
        await send(pair, message(f"{number}"))()

    counts = {len(await harness.secondary.ids(queue)) for queue in harness.queues(2)}
    assert counts == {0, 20}


async def test_a_send_that_all_refuse_asks_each_once(harness):
    pair = await harness.pair(failover_interval=0.0, ping_interval=1800.0)
    harness.primary.fail(Refuse(), SEND)
    await send(pair)()
    harness.secondary.fail(Refuse(), SEND)
    before = harness.primary.sends(), harness.secondary.sends(QUEUE)

    error = await outcome_of(send(pair))

    assert isinstance(error, Unavailable)
    assert (harness.primary.sends(), harness.secondary.sends(QUEUE)) == (
        before[0] + 1,
        before[1] + 1,
    )


async def test_a_refusal_says_what_the_last_one_said(harness):
    pair = await harness.pair()
    harness.primary.fail(refuse(Unavailable, "down"), SEND)
    harness.secondary.fail(refuse(Unavailable, "closed for today"), SEND)

    assert "down" in str(await outcome_of(send(pair)))

    pair.states.force_over(ORDERS)
    assert "closed for today" in str(await outcome_of(send(pair)))


async def test_a_short_pause_is_busy_too(harness):
    pair = await harness.pair(busy_pause=0.5)
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.primary.fail(busy(0.5), SEND)
    harness.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert error.retry_after == pytest.approx(0.5)


async def test_a_send_waits_for_room_for_half_of_its_time(harness):
    pair = await harness.pair(max_inflight=1000, send_timeout=30.0)

    with Timed() as timed:
        async with pair.broker.inflight.reserve(BILLS, 1000, math.inf):
            error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert timed.seconds == pytest.approx(15.0)


async def test_a_schedule_is_the_primarys(harness):
    pair = await harness.pair()
    broker = attrs.evolve(pair.broker, primary=harness.primary.store)
    unnamed = Message(body=b"body", scheduled=harness.after(60.0))

    [number] = await broker.schedule(ORDERS, [unnamed])

    [there] = await harness.primary.deliveries()
    assert there.sequence_number == number
    assert there.message.message_id is not None


async def test_a_schedule_that_needs_its_number_isnt_diverted(harness):
    pair = await harness.pair()
    pair.states.force_over(ORDERS)

    error = await outcome_of(
        partial(pair.broker.schedule, ORDERS, [message(scheduled=harness.after(60.0))])
    )

    assert isinstance(error, Unavailable)
    assert error.outcome is Outcome.NOT_SENT
    assert await harness.primary.ids() == []


async def test_a_schedule_with_a_property_of_the_envelope_is_refused(harness):
    pair = await harness.pair()
    forged = message(scheduled=harness.after(60.0), properties={"x-ms-path": "elsewhere"})

    error = await outcome_of(partial(pair.broker.schedule, ORDERS, [forged]))

    assert isinstance(error, InvalidRequest)
    assert "x-ms-path" in str(error)


async def test_hanging_backlog_queues_leave_time_to_ask_the_primary(harness):
    pair = await harness.pair(queues=10, failover_interval=0.0, ping_interval=1800.0)
    harness.primary.fail(Refuse())
    for queue in harness.queues(10)[1:]:
        await harness.secondary.store.create_queue(queue, QueueProperties())
    await send(pair)()
    await wait_all_tasks_blocked()
    harness.primary.heal()
    harness.primary.fail(Slow(1.0), SEND)
    harness.secondary.fail(Hang(), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.PRIMARY


async def test_one_backlog_queue_that_hangs_is_enough_to_ask_a_primary_that_is_back(harness):
    pair = await harness.pair(queues=10, failover_interval=0.0, ping_interval=1800.0)
    harness.primary.fail(Refuse())
    for queue in harness.queues(10)[1:]:
        await harness.secondary.store.create_queue(queue, QueueProperties())
    await send(pair)()
    await wait_all_tasks_blocked()
    harness.primary.heal()
    harness.secondary.fail(Hang(), SEND)

    with Timed() as timed:
        accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert timed.seconds == pytest.approx(10.0)  # an attempt on the backlog


async def test_the_other_backlog_queues_get_their_turn_when_one_hangs_and_the_primary_too(harness):
    pair = await harness.pair(queues=2, failover_interval=0.0)
    await harness.secondary.store.create_queue(harness.queues(2)[1], QueueProperties())
    harness.primary.fail(Hang())
    await send(pair)()
    harness.secondary.fail(Hang(), SEND, times=1)

    with Timed() as timed:
        accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert timed.seconds == pytest.approx(11.0)  # an attempt there, and a second for the primary


async def test_the_spool_takes_what_both_refuse(harness):
    pair = await harness.pair(spool=True)
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(Refuse(), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.SPOOL
    assert await harness.spool.ids(QUEUE) == ["m1"]


async def test_the_spool_stays_empty_while_the_secondary_takes_it(harness):
    pair = await harness.pair(spool=True)
    harness.primary.fail(Refuse(), SEND)

    await send(pair)()

    assert await harness.spool.ids(QUEUE) == []


async def test_a_primary_that_is_busy_after_all_is_busy_with_the_time_to_wait(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.primary.fail(busy(12.0), SEND)
    harness.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert error.retry_after == pytest.approx(12.0)
    assert harness.events.of(BusyPause) == [BusyPause(entity=ORDERS, seconds=12.0)]


async def test_the_spool_takes_what_a_busy_primary_and_a_dead_secondary_dont(harness):
    pair = await harness.pair(spool=True)
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.primary.fail(busy(12.0), SEND)
    harness.secondary.fail(Refuse(), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.SPOOL


@pytest.mark.parametrize("error", CALLERS_FAULT)
async def test_the_callers_fault_found_after_all_goes_to_the_caller(harness, error):
    pair = await harness.pair(spool=True)
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.primary.fail(refuse(error, "no"), SEND)
    harness.secondary.fail(Refuse(), SEND)

    found = await outcome_of(send(pair))

    assert type(found) is error
    assert await harness.spool.ids(QUEUE) == []


async def test_no_attempt_begins_after_the_time_is_over(harness):
    pair = await harness.pair(send_timeout=0.0005)

    error = await outcome_of(send(pair))

    assert isinstance(error, Unavailable)
    assert error.outcome is Outcome.NOT_SENT
    assert "no time left" in str(error)
    assert harness.primary.sends() == 0


# The promise


@pytest.mark.parametrize("interval", [0.0, 3.0, 60.0])
@pytest.mark.parametrize("fault", [Refuse(), Hang(), Reset(), LoseAnswer(), SwallowAnswer()])
@pytest.mark.parametrize("down", ["primary", "secondary"])
async def test_no_producer_sees_an_error_while_one_namespace_is_down(
    harness, interval, fault, down
):
    pair = await harness.pair(failover_interval=interval)
    await send(pair)()
    getattr(harness, down).fail(fault)
    bound = 10.0 + 0.25 + 10.0
    took = []

    async def produce(producer):
        for number in range(20):
            with Timed() as timed:
                await send(pair, message(f"{producer}-{number}"))()
            took.append(timed.seconds)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        for producer in range(3):
            nursery.start_soon(produce, producer)

    assert len(took) == 60
    assert max(took) <= bound


async def test_after_the_first_time_out_only_trials_wait_for_the_primary(harness):
    pair = await harness.pair(suspect_wait=0.25)
    harness.primary.fail(Hang())
    await send(pair)()
    took = []

    async def produce(producer):
        for number in range(40):
            with Timed() as timed:
                await send(pair, message(f"{producer}-{number}"))()
            took.append(timed.seconds)
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        for producer in range(4):
            nursery.start_soon(produce, producer)

    stalled = [seconds for seconds in took if seconds > 0.26]
    assert len(stalled) <= 2  # the trials


# Everything else is the primary's


async def test_receiving_and_management_are_the_primarys(harness):
    pair = await harness.pair()
    broker = pair.broker
    await broker.create_queue(new := EntityPath("new"), QueueProperties())

    await broker.probe(new)
    await broker.send(new, [message()])
    async with broker.open_receiver(new) as receiver:
        received = await receiver.receive(1)
    listed = await broker.list_queues("new")
    info = await broker.inspect(new)
    await broker.delete_queue(new)

    assert [delivery.message.message_id for delivery in received] == ["m1"]
    assert [each.path for each in listed] == [info.path] == [new]
    with pytest.raises(EntityNotFound):
        await harness.primary.store.inspect(new)


async def test_peeking_is_the_primarys(harness):
    pair = await harness.pair()
    await send(pair)()
    pair.broker.primary = harness.primary.store

    peeked = await required(pair.broker, Peeks).peek(ORDERS)

    assert [delivery.message.message_id for delivery in peeked] == ["m1"]


async def test_a_primary_that_cant_peek_says_so(harness):
    pair = await harness.pair()

    with pytest.raises(NotSupported):
        required(pair.broker, Peeks)


# Counters


def counted(pair):
    return {(each.accepted_by, each.outcome): each.messages for each in pair.broker.sends.all()}


async def test_messages_count_for_who_accepted_them(harness):
    pair = await harness.pair()
    await send(pair, message("1"), message("2"))()
    harness.primary.fail(Refuse(), SEND)
    await send(pair, message("3"))()

    assert counted(pair) == {("primary", "accepted"): 2, ("backlog", "accepted"): 1}


@pytest.mark.parametrize(("fault", "outcome"), [(Refuse(), "not-sent"), (Reset(), "unknown")])
async def test_messages_that_nobody_accepted_count_for_their_outcome(harness, fault, outcome):
    pair = await harness.pair()
    harness.primary.fail(fault, SEND)
    harness.secondary.fail(Refuse(), SEND)

    await outcome_of(send(pair, message("1"), message("2")))

    assert counted(pair) == {("", outcome): 2}


async def test_messages_of_a_sender_that_went_away_count_as_unknown(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang(), SEND)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send(pair, message("1"), message("2")))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert counted(pair) == {("", "unknown"): 2}


async def test_a_pair_that_runs_notices_its_own_pauses(harness):
    await harness.pair()
    trio.lowlevel.current_clock().jump(100.0)

    assert await harness.events.first(LoopPaused)


async def test_when_both_namespaces_failed_the_error_names_what_each_said(harness):
    pair = await harness.pair()
    harness.primary.fail(refuse(Unavailable, "the primary is down"))
    harness.secondary.fail(refuse(Unavailable, "the secondary is down"))

    error = await outcome_of(send(pair))

    assert "primary: the primary is down" in str(error)
    assert "backlog: the secondary is down" in str(error)


async def test_since_is_the_first_failure_whatever_follows(harness):
    pair = await harness.pair(failover_interval=10.0)
    harness.primary.fail(Refuse())
    began = harness.clock()
    for _ in range(12):
        await send(pair)()
        await trio.sleep(1.0)
    [state] = pair.states.troubled()

    assert state.state is State.SECONDARY
    assert (state.since - began).total_seconds() < 0.5


async def test_a_send_counts_with_the_time_that_it_took(harness):
    pair = await harness.pair()
    harness.primary.fail(Slow(0.5), SEND)
    await send(pair)()
    accepted = pair.broker.sends.slowest_since(0)
    harness.primary.heal()
    harness.primary.fail(Hang(), SEND)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send(pair))
        await trio.sleep(1.5)
        nursery.cancel_scope.cancel()

    assert accepted == pytest.approx(0.5)
    assert pair.broker.sends.slowest_since(1) == pytest.approx(1.5)


async def test_a_send_that_is_refused_on_arrival_is_counted_by_its_error_as_well(harness):
    pair = await harness.pair(max_inflight=1)
    harness.primary.fail(Slow(1.5), SEND)
    dead = ORDERS.dead_letter

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send(pair, message("1")))
        await wait_all_tasks_blocked()
        with client_gives(2.0):
            busy_for = await outcome_of(send(pair, message("2"), message("3")))
    refused = await outcome_of(send(pair, message("4"), entity=dead))

    assert (type(busy_for), type(refused)) == (Busy, InvalidRequest)
    assert pair.broker.sends.refused() == {"Busy": 2, "InvalidRequest": 1}
    assert len(harness.events.of(SendFailed)) == 2


# The order of sends


@attrs.define
class Delivery:
    """Accepts each send, and records whether it keeps its order."""

    keeps: bool
    in_order: list[bool] = attrs.field(factory=list)

    def keeps_order(self, _entity):
        return self.keeps

    async def deliver(self, _entity, batches, _taken, _deadline, *, in_order=None):
        self.in_order.append(in_order)
        for batch in batches:
            batch.accepted_by = AcceptedBy.PRIMARY


@pytest.mark.parametrize(
    ("keeps", "in_order"), [(False, [False, False, True]), (True, [True, True, True])]
)
async def test_sends_keep_their_order_if_the_call_or_the_entity_says_so(harness, keeps, in_order):
    pair = await harness.pair()
    pair.broker.delivery = delivery = Delivery(keeps)

    await pair.broker.send(ORDERS, [message()])
    await pair.broker.send_each_diverting(ORDERS, [[message()]])
    await pair.broker.send_many(ORDERS, [[message()]])

    assert delivery.in_order == in_order
    assert pair.broker.keeps_order(ORDERS) is keeps


async def test_each_batch_tells_who_accepted_it_or_its_error(harness):
    pair = await harness.pair()
    harness.primary.fail(refuse(InvalidRequest, "no"), SEND, times=1)

    first, second = await pair.broker.send_each_diverting(ORDERS, [[message("1")], [message("2")]])

    assert (type(first), second) == (InvalidRequest, AcceptedBy.PRIMARY)


@pytest.mark.parametrize("in_doubt", [True, False])
async def test_a_send_that_goes_on_after_an_unknown_outcome_never_ends_as_not_sent(
    harness, in_doubt
):
    pair = await harness.pair()
    for namespace in (harness.primary, harness.secondary):
        namespace.fail(Refuse(), SEND)

    with continued(in_doubt=in_doubt):
        error = await outcome_of(send(pair))

    assert error.outcome is (Outcome.UNKNOWN if in_doubt else Outcome.NOT_SENT)


# The primary's other operations


@attrs.define
class Named:
    """A primary that says who it is, or why it doesn't."""

    error: BrokerError | None = None

    async def identity(self):
        if self.error is not None:
            raise self.error
        return EAST


EAST = Identity(kind="uuid", name="east")


@pytest.mark.parametrize(
    ("error", "known", "found"),
    [
        (None, None, EAST),
        (Unavailable("out"), EAST, EAST),
        (Unavailable("out"), None, Unavailable),
        (NotSupported("no"), EAST, NotSupported),
    ],
)
async def test_the_identity_is_the_primarys_and_in_an_outage_the_last_that_it_had(
    harness, error, known, found
):
    pair = await harness.pair()
    pair.broker.primary = Named(error)
    pair.broker.destination.identity = known

    if isinstance(found, Identity):
        assert await pair.broker.identity() == found
    else:
        with pytest.raises(found):
            await pair.broker.identity()


async def test_a_sender_may_need_as_long_as_its_pair(harness):
    pair = await harness.pair(send_timeout=7.0)

    assert longest_send_of(pair.broker)() == 7.0


@pytest.mark.parametrize("error", [EntityNotFound, EntityDisabled])
async def test_a_probe_of_a_missing_entity_is_unavailable_only_if_its_sends_are_diverted(
    harness, error
):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(refuse(error, "gone"), Operation.PROBE)

    with pytest.raises(error):
        await pair.broker.probe(ORDERS)
    pair.states.failed(pair.states.begin(ORDERS), Unavailable("out"))
    await trio.sleep(0.1)  # the prober finds it missing
    with pytest.raises(Unavailable, match="gone; its sends go to the backlog"):
        await pair.broker.probe(ORDERS)


async def test_a_schedule_is_cancelled_on_the_primary_at_once_or_in_a_transaction(harness):
    pair = await harness.pair()
    pair.broker.primary = harness.primary.store
    first, second = await pair.broker.schedule(
        ORDERS, [message(each, scheduled=harness.after(60.0)) for each in ("1", "2")]
    )

    await pair.broker.cancel_scheduled(ORDERS, [first])
    left = await harness.primary.ids()
    await pair.broker.commit([pair.broker.enlist_cancellation(ORDERS, [second])])

    assert left == ["2"]
    assert await harness.primary.ids() == []


async def test_a_pair_diverts_and_bounds_its_sends(harness):
    pair = await harness.pair()

    assert offered(pair.broker, Diverts) is not None
    assert offered(pair.broker, BoundsSends) is not None
