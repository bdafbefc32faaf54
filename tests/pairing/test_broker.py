"""What a send does at each standing of its entity."""

import math
from functools import partial

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    Busy,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)
from gateway.domain.events import BusyPause, Diverted
from gateway.domain.failover import State
from gateway.domain.message import Leg, Message
from gateway.pairing.options import (
    WhileSuspect,
)
from gateway.testing.faults import (
    Hang,
    LoseAnswer,
    Operation,
    Refuse,
    Reset,
    SwallowAnswer,
    busy,
)
from tests.pairing.lab import (
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


async def test_a_healthy_entity_is_sent_to_on_the_primary(lab):
    pair = await lab.pair()

    leg = await send(pair)()

    assert leg is Leg.PRIMARY
    assert await lab.primary.ids() == ["m1"]
    assert await lab.secondary.ids(QUEUE) == []


@pytest.mark.parametrize("error", [Unavailable, StorageFull, OutcomeUnknown])
async def test_an_outage_diverts_in_the_same_call(lab, error):
    pair = await lab.pair()
    lab.primary.fail(refuse(error, "out"), SEND)

    leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert await lab.secondary.ids(QUEUE) == ["m1"]
    assert lab.primary.sends() == 1
    assert pair.standings.state_of(ORDERS) is State.SUSPECT
    assert lab.events.of(Diverted) == [
        Diverted(entity=ORDERS, leg=Leg.BACKLOG, queue=QUEUE, messages=1)
    ]


async def test_the_send_that_fails_an_entity_over_is_diverted_in_the_same_call(lab):
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(Refuse())

    leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert pair.standings.state_of(ORDERS) is State.SECONDARY


async def test_a_hanging_primary_gets_its_share_of_the_time_and_no_more(lab):
    pair = await lab.pair(send_timeout=20.0, attempt_timeout=10.0)
    lab.primary.fail(Hang(), SEND)

    with Timed() as timed:
        await send(pair)()

    assert timed.seconds == pytest.approx(8.0)  # 40 % of 20 s


async def test_an_attempt_never_takes_longer_than_its_limit(lab):
    pair = await lab.pair(send_timeout=60.0, attempt_timeout=10.0)
    lab.primary.fail(Hang(), SEND)

    with Timed() as timed:
        await send(pair)()

    assert timed.seconds == pytest.approx(10.0)


async def test_the_clients_own_deadline_is_shared_out(lab):
    pair = await lab.pair()
    lab.primary.fail(Hang(), SEND)

    with trio.fail_after(5.0), Timed() as timed:
        leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert timed.seconds == pytest.approx(2.0)


async def test_a_backlog_attempt_gets_half_of_what_is_left(lab):
    pair = await lab.pair(send_timeout=10.0, queues=2)
    lab.primary.fail(Refuse(), SEND)
    lab.secondary.fail(Hang(), SEND, times=1)
    await lab.secondary.store.create_queue(lab.queues(2)[1], QueueProperties())

    with Timed() as timed:
        leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert timed.seconds == pytest.approx(5.0)


async def test_one_entitys_outage_leaves_others_alone(lab):
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(Refuse(), entity=ORDERS)
    await send(pair)()

    leg = await send(pair, entity=BILLS)()

    assert leg is Leg.PRIMARY
    assert pair.standings.state_of(BILLS) is State.PRIMARY


async def test_a_batch_stays_together_and_in_order(lab):
    pair = await lab.pair()
    lab.primary.fail(Refuse(), SEND)

    await send(pair, message("1"), message("2"), message("3"))()

    assert await lab.secondary.ids(QUEUE) == ["1", "2", "3"]
    assert lab.secondary.sends(QUEUE) == 1


# SUSPECT


async def test_while_suspect_one_send_tries_and_the_others_are_diverted_soon(lab):
    pair = await lab.pair(suspect_wait=0.25)
    await suspect(lab, pair)
    lab.primary.fail(Hang(), SEND)
    await trio.sleep(1.0)  # the pause between two trials
    ended = []

    async def one(number):
        started = trio.current_time()
        leg = await send(pair, message(f"{number}"))()
        ended.append((leg, round(trio.current_time() - started, 3)))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(one, number)

    assert sorted(ended, key=lambda end: end[1]) == [(Leg.BACKLOG, 0.25)] * 4 + [
        (Leg.BACKLOG, 10.0)
    ]
    assert lab.primary.sends() == 2


async def test_a_trial_that_succeeds_lets_the_waiting_ones_through(lab):
    pair = await lab.pair(suspect_wait=0.25)
    await suspect(lab, pair)
    lab.primary.fail(Slow(0.1), SEND, times=1)
    await trio.sleep(1.0)
    legs = []

    async def one(number):
        legs.append(await send(pair, message(f"{number}"))())

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(one, number)

    assert legs == [Leg.PRIMARY] * 3
    assert pair.standings.state_of(ORDERS) is State.PRIMARY


async def test_between_two_trials_sends_are_diverted_at_once(lab):
    pair = await lab.pair(trial_pause=NO_TRIAL)
    await suspect(lab, pair)

    with Timed() as timed:
        leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert timed.seconds == 0
    assert lab.primary.sends() == 1


async def test_failures_for_the_interval_fail_the_entity_over(lab):
    pair = await lab.pair(failover_interval=20.0)
    lab.primary.fail(Refuse())
    started = trio.current_time()

    while pair.standings.state_of(ORDERS) is not State.SECONDARY:
        assert await send(pair)() is Leg.BACKLOG
        await trio.sleep(0.5)

    assert 20.0 <= trio.current_time() - started < 30.0


async def test_suspect_as_the_legacy_client_did_gives_the_error_to_the_caller(lab):
    pair = await lab.pair(while_suspect=WhileSuspect.RAISE, failover_interval=20.0)
    lab.primary.fail(Refuse(), SEND)

    first = await outcome_of(send(pair))
    second = await outcome_of(send(pair))
    await trio.sleep(19.0)
    third = await outcome_of(send(pair))
    await trio.sleep(1.0)
    leg = await send(pair)()

    assert [type(error) for error in (first, second, third)] == [Unavailable] * 3
    assert leg is Leg.BACKLOG
    assert lab.primary.sends() == 4


# SECONDARY, PINNED


async def test_a_failed_over_entity_goes_to_the_backlog_at_once(lab):
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(Hang())
    await send(pair)()

    with Timed() as timed:
        leg = await send(pair, message("m2"))()

    assert leg is Leg.BACKLOG
    assert timed.seconds == 0
    assert lab.primary.sends() == 1


async def test_a_pinned_entity_never_asks_the_primary(lab):
    pair = await lab.pair(send_timeout=1.0)
    pair.standings.force_over(ORDERS)
    lab.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Unavailable)
    assert lab.primary.sends() == 0


# HALF_OPEN


async def test_half_open_lets_one_send_try_and_the_others_are_diverted_at_once(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=3)
    lab.primary.fail(Refuse())
    await send(pair, message("0"))()
    lab.primary.heal()
    lab.primary.fail(Slow(0.1), SEND)
    await reaches(pair.standings, State.HALF_OPEN)
    legs = []

    async def one(number):
        legs.append(await send(pair, message(f"{number}"))())

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(one, number)

    assert legs == [Leg.BACKLOG, Leg.BACKLOG, Leg.PRIMARY]


async def test_a_failed_trial_closes_a_half_open_entity_and_is_diverted(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=9)
    lab.primary.fail(Refuse(), SEND)
    await send(pair, message("0"))()
    await trio.sleep(0.5)  # a probe is answered
    assert pair.standings.state_of(ORDERS) is State.HALF_OPEN

    leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert pair.standings.state_of(ORDERS) is State.SECONDARY


# Nobody takes it


async def test_when_no_backlog_queue_takes_it_the_primary_is_asked_once_more(lab):
    pair = await lab.pair()
    lab.primary.fail(Refuse(), SEND, times=1)
    lab.secondary.fail(Refuse(), SEND)

    leg = await send(pair)()

    assert leg is Leg.PRIMARY
    assert lab.primary.sends() == 2
    assert pair.standings.state_of(ORDERS) is State.PRIMARY


async def test_a_primary_that_takes_it_after_all_opens_a_failed_over_entity_half(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=9)
    lab.primary.fail(Refuse())
    await send(pair)()
    await wait_all_tasks_blocked()
    lab.primary.heal()
    lab.secondary.fail(Refuse(), SEND)

    leg = await send(pair)()

    assert leg is Leg.PRIMARY
    assert pair.standings.state_of(ORDERS) is State.HALF_OPEN


async def test_every_backlog_queue_is_tried_before_the_primary_is_asked_again(lab):
    for queue in lab.queues(4)[1:]:
        await lab.secondary.store.create_queue(queue, QueueProperties())
    pair = await lab.pair(queues=4)
    lab.primary.fail(Refuse(), SEND)
    lab.secondary.fail(Refuse(), SEND, times=3)

    leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert sorted(lab.secondary.sends(queue) for queue in lab.queues(4)) == [1, 1, 1, 1]


@pytest.mark.parametrize("fault", [MessageTooLarge, InvalidRequest, NotSupported])
async def test_a_message_that_no_backlog_queue_can_take_tries_one_only(lab, fault):
    pair = await lab.pair(queues=3)
    lab.primary.fail(Refuse(), SEND)
    lab.secondary.fail(refuse(fault, "9 bytes expected"), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Unavailable)
    assert "9 bytes expected" in str(error)  # and not only that the primary can't be reached
    assert sum(lab.secondary.sends(queue) for queue in lab.queues(3)) == 1
    assert pair.rotation.usable == 3


async def test_a_backlog_queue_that_failed_is_left_out_by_the_next_sends(lab):
    await lab.secondary.store.create_queue(lab.queues(2)[1], QueueProperties())
    pair = await lab.pair(queues=2)
    pair.standings.force_over(ORDERS)
    lab.secondary.fail(Refuse(), SEND, entity=lab.queues(2)[0])

    for number in range(20):
        assert await send(pair, message(f"{number}"))() is Leg.BACKLOG

    assert lab.secondary.sends(lab.queues(2)[0]) == 1


async def test_a_backlog_queue_that_takes_a_message_again_is_no_last_resort_any_more(lab):
    await lab.secondary.store.create_queue(lab.queues(2)[1], QueueProperties())
    pair = await lab.pair(queues=2)
    pair.standings.force_over(ORDERS)
    lab.secondary.fail(Refuse(), SEND, times=2)
    await outcome_of(send(pair))

    for number in range(20):
        await send(pair, message(f"{number}"))()

    counts = {len(await lab.secondary.ids(queue)) for queue in lab.queues(2)}
    assert counts == {0, 20}


async def test_a_send_that_all_refuse_asks_each_once(lab):
    pair = await lab.pair(failover_interval=0.0, ping_interval=1800.0)
    lab.primary.fail(Refuse(), SEND)
    await send(pair)()
    lab.secondary.fail(Refuse(), SEND)
    before = lab.primary.sends(), lab.secondary.sends(QUEUE)

    error = await outcome_of(send(pair))

    assert isinstance(error, Unavailable)
    assert (lab.primary.sends(), lab.secondary.sends(QUEUE)) == (before[0] + 1, before[1] + 1)


async def test_a_refusal_says_what_the_last_one_said(lab):
    pair = await lab.pair()
    lab.primary.fail(refuse(Unavailable, "down"), SEND)
    lab.secondary.fail(refuse(Unavailable, "closed for today"), SEND)

    assert "down" in str(await outcome_of(send(pair)))

    pair.standings.force_over(ORDERS)
    assert "closed for today" in str(await outcome_of(send(pair)))


async def test_a_short_pause_is_busy_too(lab):
    pair = await lab.pair(busy_pause=0.5)
    lab.primary.fail(Refuse(), SEND, times=1)
    lab.primary.fail(busy(0.5), SEND)
    lab.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert error.retry_after == pytest.approx(0.5)


async def test_a_send_waits_for_room_for_half_of_its_time(lab):
    pair = await lab.pair(max_inflight=1000, send_timeout=30.0)

    with Timed() as timed:
        async with pair.broker.inflight.room(BILLS, 1000, math.inf):
            error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert timed.seconds == pytest.approx(15.0)


async def test_a_schedule_is_the_primarys(lab):
    pair = await lab.pair()
    broker = attrs.evolve(pair.broker, primary=lab.primary.store)
    unnamed = Message(body=b"body", scheduled=lab.after(60.0))

    [number] = await broker.schedule(ORDERS, [unnamed])

    [there] = await lab.primary.deliveries()
    assert there.sequence_number == number
    assert there.message.message_id is not None


async def test_a_schedule_that_needs_its_number_isnt_diverted(lab):
    pair = await lab.pair()
    pair.standings.force_over(ORDERS)

    error = await outcome_of(
        partial(pair.broker.schedule, ORDERS, [message(scheduled=lab.after(60.0))])
    )

    assert isinstance(error, Unavailable)
    assert error.outcome is Outcome.NOT_SENT
    assert await lab.primary.ids() == []


async def test_a_schedule_with_a_property_of_the_envelope_is_refused(lab):
    pair = await lab.pair()
    forged = message(scheduled=lab.after(60.0), properties={"x-ms-path": "elsewhere"})

    error = await outcome_of(partial(pair.broker.schedule, ORDERS, [forged]))

    assert isinstance(error, InvalidRequest)
    assert "x-ms-path" in str(error)


async def test_hanging_backlog_queues_leave_time_to_ask_the_primary(lab):
    pair = await lab.pair(queues=10, failover_interval=0.0, ping_interval=1800.0)
    lab.primary.fail(Refuse())
    for queue in lab.queues(10)[1:]:
        await lab.secondary.store.create_queue(queue, QueueProperties())
    await send(pair)()
    await wait_all_tasks_blocked()
    lab.primary.heal()
    lab.primary.fail(Slow(1.0), SEND)
    lab.secondary.fail(Hang(), SEND)

    leg = await send(pair)()

    assert leg is Leg.PRIMARY


async def test_one_backlog_queue_that_hangs_is_enough_to_ask_a_primary_that_is_back(lab):
    pair = await lab.pair(queues=10, failover_interval=0.0, ping_interval=1800.0)
    lab.primary.fail(Refuse())
    for queue in lab.queues(10)[1:]:
        await lab.secondary.store.create_queue(queue, QueueProperties())
    await send(pair)()
    await wait_all_tasks_blocked()
    lab.primary.heal()
    lab.secondary.fail(Hang(), SEND)

    with Timed() as timed:
        leg = await send(pair)()

    assert leg is Leg.PRIMARY
    assert timed.seconds == pytest.approx(10.0)  # one attempt on the backlog


async def test_the_other_backlog_queues_get_their_turn_when_one_hangs_and_the_primary_too(lab):
    pair = await lab.pair(queues=2, failover_interval=0.0)
    await lab.secondary.store.create_queue(lab.queues(2)[1], QueueProperties())
    lab.primary.fail(Hang())
    await send(pair)()
    lab.secondary.fail(Hang(), SEND, times=1)

    with Timed() as timed:
        leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert timed.seconds == pytest.approx(11.0)  # one attempt there, one second for the primary


async def test_the_spool_takes_what_both_refuse(lab):
    pair = await lab.pair(spool=True)
    lab.primary.fail(Refuse(), SEND)
    lab.secondary.fail(Refuse(), SEND)

    leg = await send(pair)()

    assert leg is Leg.SPOOL
    assert await lab.spool.ids(QUEUE) == ["m1"]


async def test_the_spool_stays_empty_while_the_secondary_takes_it(lab):
    pair = await lab.pair(spool=True)
    lab.primary.fail(Refuse(), SEND)

    await send(pair)()

    assert await lab.spool.ids(QUEUE) == []


async def test_a_primary_that_is_busy_after_all_is_busy_with_the_time_to_wait(lab):
    pair = await lab.pair()
    lab.primary.fail(Refuse(), SEND, times=1)
    lab.primary.fail(busy(12.0), SEND)
    lab.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert error.retry_after == pytest.approx(12.0)
    assert lab.events.of(BusyPause) == [BusyPause(entity=ORDERS, seconds=12.0)]


async def test_the_spool_takes_what_a_busy_primary_and_a_dead_secondary_dont(lab):
    pair = await lab.pair(spool=True)
    lab.primary.fail(Refuse(), SEND, times=1)
    lab.primary.fail(busy(12.0), SEND)
    lab.secondary.fail(Refuse(), SEND)

    leg = await send(pair)()

    assert leg is Leg.SPOOL


@pytest.mark.parametrize("error", CALLERS_FAULT)
async def test_the_callers_fault_found_after_all_goes_to_the_caller(lab, error):
    pair = await lab.pair(spool=True)
    lab.primary.fail(Refuse(), SEND, times=1)
    lab.primary.fail(refuse(error, "no"), SEND)
    lab.secondary.fail(Refuse(), SEND)

    found = await outcome_of(send(pair))

    assert type(found) is error
    assert await lab.spool.ids(QUEUE) == []


async def test_no_attempt_begins_after_the_time_is_over(lab):
    pair = await lab.pair(send_timeout=0.0005)

    error = await outcome_of(send(pair))

    assert isinstance(error, Unavailable)
    assert error.outcome is Outcome.NOT_SENT
    assert "no time left" in str(error)
    assert lab.primary.sends() == 0


# The promise


@pytest.mark.parametrize("interval", [0.0, 3.0, 60.0])
@pytest.mark.parametrize("fault", [Refuse(), Hang(), Reset(), LoseAnswer(), SwallowAnswer()])
@pytest.mark.parametrize("down", ["primary", "secondary"])
async def test_no_producer_sees_an_error_while_one_namespace_is_down(lab, interval, fault, down):
    pair = await lab.pair(failover_interval=interval)
    await send(pair)()
    getattr(lab, down).fail(fault)
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


async def test_after_the_first_time_out_only_trials_wait_for_the_primary(lab):
    pair = await lab.pair(suspect_wait=0.25)
    lab.primary.fail(Hang())
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


async def test_receiving_and_management_are_the_primarys(lab):
    pair = await lab.pair()
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
        await lab.primary.store.inspect(new)


async def test_peeking_is_the_primarys(lab):
    pair = await lab.pair()
    await send(pair)()
    pair.broker.primary = lab.primary.store

    peeked = await pair.broker.peek(ORDERS)

    assert [delivery.message.message_id for delivery in peeked] == ["m1"]


async def test_a_primary_that_cant_peek_says_so(lab):
    pair = await lab.pair()

    with pytest.raises(NotSupported):
        await pair.broker.peek(ORDERS)


# What is counted


def counted(pair):
    return {(each.leg, each.outcome): each.messages for each in pair.broker.sends.all()}


async def test_messages_count_for_the_leg_that_took_them(lab):
    pair = await lab.pair()
    await send(pair, message("1"), message("2"))()
    lab.primary.fail(Refuse(), SEND)
    await send(pair, message("3"))()

    assert counted(pair) == {("primary", "accepted"): 2, ("backlog", "accepted"): 1}


@pytest.mark.parametrize(("fault", "outcome"), [(Refuse(), "not-sent"), (Reset(), "unknown")])
async def test_messages_that_no_leg_took_count_for_their_outcome(lab, fault, outcome):
    pair = await lab.pair()
    lab.primary.fail(fault, SEND)
    lab.secondary.fail(Refuse(), SEND)

    await outcome_of(send(pair, message("1"), message("2")))

    assert counted(pair) == {("", outcome): 2}


async def test_messages_of_a_sender_that_went_away_count_as_unknown(lab):
    pair = await lab.pair()
    lab.primary.fail(Hang(), SEND)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send(pair, message("1"), message("2")))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert counted(pair) == {("", "unknown"): 2}


async def test_a_pair_that_runs_feels_its_own_pulse(lab):
    pair = await lab.pair()

    assert pair.standings._last_beat == trio.current_time()
