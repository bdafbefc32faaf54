"""What an answer of the primary means for the send and for its entity."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.errors import (
    Busy,
    EntityNotFound,
    NotAuthorized,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.events import BusyPause, SendFailed
from gateway.domain.failover import State
from gateway.domain.message import Leg
from gateway.pairing.options import (
    EntityRule,
    OnUnreachable,
)
from gateway.testing.faults import (
    Hang,
    Operation,
    Refuse,
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
