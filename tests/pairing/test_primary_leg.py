"""What an answer of the primary means for the send and for its entity."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.errors import (
    Busy,
    EntityNotFound,
    NotAuthorized,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.events import BusyPause, SendFailed
from gateway.domain.failover import State
from gateway.domain.message import Leg
from gateway.pairing.options import (
    EntityRule,
    OnUnreachable,
    WhileSuspect,
)
from gateway.testing.faults import (
    Hang,
    Operation,
    Refuse,
    Reset,
    busy,
)
from tests.pairing.lab import (
    CALLERS_FAULT,
    ORDERS,
    QUEUE,
    Slow,
    Timed,
    message,
    outcome_of,
    refuse,
    send,
    suspect,
    virtual_time,
)

pytestmark = virtual_time

SEND = Operation.SEND
NO_TRIAL = Backoff(first=1000.0, cap=1000.0)


# Busy


async def test_busy_pauses_the_sends_to_that_entity_and_then_goes_on(lab):
    pair = await lab.pair(send_timeout=60.0)
    lab.primary.fail(busy(4.0), SEND, times=1)
    legs = []

    async def one(number):
        legs.append(await send(pair, message(f"{number}"))())

    with Timed() as timed:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(one, number)
                await wait_all_tasks_blocked()

    assert legs == [Leg.PRIMARY] * 3
    assert 10.0 <= timed.seconds <= 12.0
    # The second and the third waited without asking: the pause is shared.
    assert lab.primary.sends() == 4
    assert len({round(at, 6) for at in lab.primary.times(SEND)[-3:]}) == 3
    assert lab.events.of(BusyPause) == [BusyPause(entity=ORDERS, seconds=10.0)]


async def test_the_server_may_ask_for_a_longer_pause(lab):
    pair = await lab.pair(send_timeout=60.0)
    lab.primary.fail(busy(15.0), SEND, times=1)

    with Timed() as timed:
        await send(pair)()

    assert timed.seconds >= 15.0


async def test_busy_is_not_an_outage(lab):
    pair = await lab.pair(failover_interval=0.0, send_timeout=300.0)
    lab.primary.fail(busy(10.0), SEND, times=10)

    leg = await send(pair)()

    assert leg is Leg.PRIMARY
    assert await lab.secondary.ids(QUEUE) == []
    assert pair.standings.troubled() == []


async def test_busy_until_the_deadline_is_busy_with_the_time_to_wait(lab):
    pair = await lab.pair(send_timeout=30.0)
    lab.primary.fail(busy(25.0), SEND)

    with Timed() as timed:
        error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert error.retry_after == pytest.approx(25.0)
    assert timed.seconds == 0  # there is nothing to wait for


async def test_the_attempt_after_a_pause_has_its_whole_share_of_the_time(lab):
    pair = await lab.pair(failover_interval=0.0, send_timeout=10.5, busy_pause=10.0)
    lab.primary.fail(busy(1.0), SEND, times=1)
    lab.primary.fail(Hang(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert pair.standings.troubled() == []


async def test_slow_busy_answers_dont_eat_the_share_of_the_attempt_that_counts(lab):
    pair = await lab.pair(failover_interval=0.0, send_timeout=60.0)

    class SlowlyBusy:
        async def strike(self, work, nursery):
            await trio.sleep(9.0)
            raise Busy(retry_after=1.0)

    lab.primary.fail(SlowlyBusy(), SEND, times=1)
    lab.primary.fail(Slow(5.0), SEND)

    leg = await send(pair)()

    assert leg is Leg.PRIMARY
    assert pair.standings.troubled() == []


async def test_a_busy_trial_is_diverted_and_doesnt_count(lab):
    pair = await lab.pair(failover_interval=5.0)
    await suspect(lab, pair)
    await trio.sleep(4.9)
    lab.primary.fail(busy(1.0), SEND)

    leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert pair.standings.state_of(ORDERS) is State.SUSPECT


async def test_long_throttling_counts_where_that_is_wanted(lab):
    pair = await lab.pair(
        failover_interval=0.0, send_timeout=60.0, throttle_failover_after=15.0, busy_pause=5.0
    )
    lab.primary.fail(busy(1.0), SEND)

    with Timed() as timed:
        leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert timed.seconds >= 15.0
    assert pair.standings.state_of(ORDERS) in {State.SECONDARY, State.HALF_OPEN}


async def test_long_throttling_diverts_also_where_a_suspect_entitys_errors_go_to_the_caller(lab):
    pair = await lab.pair(
        send_timeout=60.0,
        throttle_failover_after=15.0,
        busy_pause=5.0,
        while_suspect=WhileSuspect.RAISE,
    )
    lab.primary.fail(busy(1.0), SEND)

    with Timed() as timed:
        leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert timed.seconds < 20.0


# The caller's fault, quota


@pytest.mark.parametrize("error", CALLERS_FAULT)
async def test_the_callers_fault_goes_straight_to_the_caller(lab, error):
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(refuse(error, "no"), SEND)

    found = await outcome_of(send(pair))

    assert type(found) is error
    assert pair.standings.troubled() == []
    assert await lab.secondary.ids(QUEUE) == []
    assert [event.outcome for event in lab.events.of(SendFailed)] == ["not-sent"]


async def test_quota_is_diverted_where_that_is_wanted(lab):
    pair = await lab.pair(failover_interval=0.0, divert_on_quota=True)
    lab.primary.fail(refuse(QuotaExceeded, "full"), SEND)

    leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert pair.standings.troubled() == []


async def test_the_callers_fault_in_a_trial_ends_the_trial(lab):
    pair = await lab.pair()
    await suspect(lab, pair)
    await trio.sleep(1.0)
    lab.primary.fail(refuse(NotAuthorized, "no"), SEND, times=1)

    error = await outcome_of(send(pair))
    leg = await send(pair)()

    assert isinstance(error, NotAuthorized)
    assert leg is Leg.PRIMARY


async def test_who_is_only_refused_is_not_suspect_for_ever(lab):
    pair = await lab.pair(failover_interval=60.0)
    await suspect(lab, pair)
    lab.primary.fail(refuse(NotAuthorized, "no"), SEND)

    early, late = [], []
    for found in (early, late):
        await trio.sleep(31.0)
        found += [type(await outcome_of(send(pair))), pair.standings.state_of(ORDERS)]

    assert early == [NotAuthorized, State.SUSPECT]
    assert late == [NotAuthorized, State.PRIMARY]


async def test_a_cancelled_trial_lets_the_next_one_try(lab):
    pair = await lab.pair()
    await suspect(lab, pair)
    await trio.sleep(1.0)
    lab.primary.fail(Hang(), SEND, times=1)
    with trio.move_on_after(1.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send(pair))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    leg = await send(pair)()

    assert leg is Leg.PRIMARY


# Rules and unreachable entities


async def test_an_entity_that_must_not_be_diverted_never_leaves_the_primary(lab):
    pair = await lab.pair(
        failover_interval=0.0, entities=(EntityRule(match="orders", divert=False),)
    )
    lab.primary.fail(Refuse(), SEND)

    errors = [await outcome_of(send(pair)) for _ in range(3)]

    assert [type(error) for error in errors] == [Unavailable] * 3
    assert lab.primary.sends() == 3
    assert lab.secondary.sends(QUEUE) == 0
    assert pair.standings.troubled() == []


async def test_an_entity_gone_on_the_primary_is_diverted_while_failed_over(lab):
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(Refuse(), SEND)
    lab.primary.fail(refuse(EntityNotFound, "gone"), Operation.PROBE)
    await send(pair)()
    await wait_all_tasks_blocked()

    leg = await send(pair)()

    assert leg is Leg.BACKLOG


async def test_an_entity_gone_on_the_primary_may_be_an_error(lab):
    pair = await lab.pair(failover_interval=0.0, on_unreachable=OnUnreachable.RAISE)
    lab.primary.fail(Refuse(), SEND)
    lab.primary.fail(refuse(EntityNotFound, "gone"), Operation.PROBE)
    await send(pair)()
    await trio.sleep(0.1)

    error = await outcome_of(send(pair))

    assert isinstance(error, EntityNotFound)


async def test_a_trial_that_finds_the_entity_gone_is_diverted(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=9)
    lab.primary.fail(Refuse(), SEND, times=1)
    lab.primary.fail(refuse(EntityNotFound, "gone"), SEND)
    await send(pair)()
    await trio.sleep(0.5)
    assert pair.standings.state_of(ORDERS) is State.HALF_OPEN

    leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert lab.primary.sends() == 2


# What each answer says


async def test_an_unknown_outcome_of_the_last_resort_taints_too(lab):
    pair = await lab.pair(failover_interval=0.0, ping_interval=1800.0)
    lab.primary.fail(Refuse(), SEND, times=1)
    await send(pair)()
    lab.primary.fail(Reset(), SEND)
    lab.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)


async def test_a_primary_that_was_asked_isnt_asked_again_while_there_are_backlog_queues(lab):
    await lab.secondary.store.create_queue(lab.queues(2)[1], backlog.QUEUE_PROPERTIES)
    pair = await lab.pair(queues=2)
    lab.primary.fail(Refuse(), SEND)
    lab.secondary.fail(Hang(), SEND, times=1)

    leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert lab.primary.sends() == 1


async def test_an_entity_that_is_never_diverted_is_sent_to_whatever_its_standing(lab):
    pair = await lab.pair(entities=(EntityRule(match="orders", divert=False),))
    pair.standings.force_over(ORDERS)

    assert await send(pair)() is Leg.PRIMARY


async def test_an_entity_that_is_gone_isnt_known_any_more(lab):
    pair = await lab.pair()
    await send(pair)()
    lab.primary.fail(refuse(EntityNotFound, "gone"), SEND)

    await outcome_of(send(pair))

    assert pair.knowledge.of(ORDERS) is None


@pytest.mark.parametrize("seconds", [20.0, 0.5])
async def test_a_busy_primary_isnt_asked_as_a_last_resort(lab, seconds):
    pair = await lab.pair(busy_pause=0.5)
    await suspect(lab, pair)
    await trio.sleep(5.0)  # the next trial is due
    pair.broker.to_primary.pauses.begin(ORDERS, Busy(retry_after=seconds))
    lab.secondary.fail(Refuse(), SEND)
    before = lab.primary.sends()

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert lab.primary.sends() == before


@pytest.mark.parametrize(
    ("attempt_timeout", "seconds", "counts"),
    [(100.0, 1.0, True), (100.0, 0.75, False), (5.0, 0.625, True), (5.0, 0.375, False)],
)
async def test_a_time_out_counts_after_a_second_or_a_tenth_of_an_attempt(
    lab, attempt_timeout, seconds, counts
):
    pair = await lab.pair(
        failover_interval=0.0, attempt_timeout=attempt_timeout, send_timeout=seconds / 0.4
    )
    lab.primary.fail(Hang(), SEND)

    leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert bool(pair.standings.troubled()) is counts


@pytest.mark.parametrize(("pause", "counts"), [(10.0, True), (1.0, False)])
async def test_an_attempt_that_the_callers_deadline_ends_counts_if_it_was_fair(lab, pause, counts):
    """After a pause it may have just what is left, so that both deadlines are one."""
    pair = await lab.pair(failover_interval=0.0, busy_pause=pause)
    lab.primary.fail(busy(pause), SEND, times=1)
    lab.primary.fail(Hang(), SEND)

    with trio.move_on_after(1.67 * pause) as scope:
        await send(pair)()

    assert scope.cancelled_caught
    assert lab.primary.sends() == 2
    assert bool(pair.standings.troubled()) is counts


async def test_a_time_out_that_doesnt_count_is_the_callers_too_as_the_legacy_client_had_it(lab):
    pair = await lab.pair(while_suspect=WhileSuspect.RAISE, send_timeout=0.02)
    lab.primary.fail(Hang(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert await lab.secondary.ids(QUEUE) == []
    assert pair.standings.troubled() == []


async def test_an_attempt_that_its_caller_gives_up_before_its_time_doesnt_count(lab):
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(Hang(), SEND)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send(pair))
            await trio.sleep(5.0)
            scope.cancel()

    assert scope.cancelled_caught
    assert pair.standings.troubled() == []


async def test_a_send_from_before_the_failover_that_finds_the_entity_gone_is_told(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=9)

    class SlowlyGone:
        async def strike(self, work, nursery):
            await trio.sleep(1.0)
            raise EntityNotFound("gone")

    lab.primary.fail(SlowlyGone(), SEND, times=1)
    lab.primary.fail(Refuse(), SEND, times=1)
    errors = []

    async def one():
        errors.append(await outcome_of(send(pair)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        await wait_all_tasks_blocked()
        await send(pair, message("second"))()
        await trio.sleep(0.5)
        assert pair.standings.state_of(ORDERS) is State.HALF_OPEN

    assert [type(error) for error in errors] == [EntityNotFound]


async def test_a_suspect_entity_that_is_gone_is_told_to_the_caller(lab):
    pair = await lab.pair()
    await suspect(lab, pair)
    await trio.sleep(5.0)
    lab.primary.fail(refuse(EntityNotFound, "gone"), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, EntityNotFound)


async def test_a_success_ends_the_pause_and_what_came_before_it(lab):
    pair = await lab.pair(
        failover_interval=0.0, send_timeout=60.0, throttle_failover_after=15.0, busy_pause=5.0
    )
    for number in range(5):
        lab.primary.fail(busy(1.0), SEND, times=1)
        assert await send(pair, message(f"{number}"))() is Leg.PRIMARY


async def test_throttling_of_an_entity_that_is_never_diverted_never_counts(lab):
    pair = await lab.pair(
        send_timeout=30.0,
        throttle_failover_after=1.0,
        busy_pause=5.0,
        entities=(EntityRule(match="orders", divert=False),),
    )
    lab.primary.fail(busy(1.0), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert pair.standings.troubled() == []
