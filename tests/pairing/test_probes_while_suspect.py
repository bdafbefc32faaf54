"""Silence is no health, and no illness: probes count while an entity is suspect."""

import itertools

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.errors import Busy, NotAuthorized, NotSupported
from gateway.domain.events.gateway import EntityStateChanged
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.pairing.options import WhileSuspect
from tests.harness.faults import Hang, Operation, Refuse
from tests.pairing.harness import (
    ORDERS,
    Slow,
    Timed,
    message,
    reaches,
    refuse,
    send,
    suspect,
    virtual_time,
)

pytestmark = virtual_time

SEND, PROBE = Operation.SEND, Operation.PROBE


@attrs.define
class _Producer:
    """Sends one message every `period` seconds; how long each send took."""

    pair: object
    period: float
    took: list = attrs.field(factory=list)

    async def run(self):
        for number in itertools.count():
            started = trio.current_time()
            await send(self.pair, message(f"{number}"))()
            self.took.append(trio.current_time() - started)
            await trio.sleep(self.period)


@pytest.mark.parametrize("fault", [Refuse(), Hang()])
@pytest.mark.parametrize("interval", [1.0, 10.0, 60.0])
async def test_failing_probes_let_the_interval_run_out_without_a_send(harness, fault, interval):
    pair = await harness.pair(failover_interval=interval)
    harness.primary.fail(fault)
    await send(pair)()
    failed = trio.current_time()
    assert pair.states.state_of(ORDERS) is State.SUSPECT

    await reaches(pair.states, State.SECONDARY)

    took = trio.current_time() - failed
    assert interval <= took <= interval + pair.broker.options.attempt_timeout + 1.5
    assert harness.primary.sends() == 1


@pytest.mark.parametrize("successes", [1, 2, 5])
async def test_succeeding_probes_bring_a_suspect_entity_back_without_a_send(harness, successes):
    pair = await harness.pair(successes_to_return=successes)
    await suspect(harness, pair)

    with Timed() as timed:
        await reaches(pair.states, State.PRIMARY)

    assert (successes - 1) * 0.8 <= timed.seconds <= (successes - 1) * 1.2
    assert harness.primary.sends() == 1


async def test_after_a_recovery_nothing_stays_suspect_because_nobody_sends(harness):
    pair = await harness.pair(failover_interval=600.0)
    harness.primary.fail(Refuse())
    await send(pair)()
    await trio.sleep(300.0)
    assert pair.states.state_of(ORDERS) is State.SUSPECT
    harness.primary.heal()

    with Timed() as timed:
        await reaches(pair.states, State.PRIMARY)

    assert timed.seconds <= 80.0  # a pause between two probes, and two of them
    assert harness.primary.sends() == 1


async def test_several_probes_fall_into_the_interval_and_one_at_its_end(harness):
    pair = await harness.pair(failover_interval=8.0)
    harness.primary.fail(Refuse())
    await send(pair)()
    started = trio.current_time()

    await reaches(pair.states, State.SECONDARY)

    at = [moment - started for moment in harness.primary.times(PROBE) if moment - started <= 8.0]
    assert len(at) >= 5
    assert at[-1] == pytest.approx(8.0)
    assert trio.current_time() - started == pytest.approx(8.0)


@pytest.mark.parametrize("period", [0.5, 5.0, 30.0])
async def test_an_entity_pays_for_silence_once_in_an_outage_however_seldom_it_is_sent_to(
    harness, period
):
    pair = await harness.pair(slow_call_duration=None)
    producer = _Producer(pair, period)
    harness.primary.fail(Hang())
    harness.nursery.start_soon(producer.run)

    await trio.sleep(200.0)

    assert [round(took, 1) for took in producer.took if took > 0.3] == [10.0]
    assert pair.states.state_of(ORDERS) is State.SECONDARY
    assert harness.primary.sends() == 1


@pytest.mark.parametrize("error", [NotAuthorized, NotSupported, Busy])
async def test_a_probe_that_is_refused_is_no_success_and_no_failure(harness, error):
    pair = await harness.pair(failover_interval=20.0)
    harness.primary.fail(refuse(error), PROBE)
    await suspect(harness, pair)
    harness.primary.fail(refuse(error), PROBE)

    await trio.sleep(19.0)
    in_doubt = pair.states.state_of(ORDERS)
    # The primary is reachable, so that a send may try.
    accepted_by = await send(pair, message("m2"))()

    assert in_doubt is State.SUSPECT
    assert accepted_by is AcceptedBy.PRIMARY
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_a_probe_that_is_answered_late_is_a_failure(harness):
    pair = await harness.pair(failover_interval=20.0)
    harness.primary.fail(Slow(3.0), PROBE)
    harness.primary.fail(Refuse(), SEND)

    await send(pair)()
    await trio.sleep(30.0)

    assert pair.states.state_of(ORDERS) is State.SECONDARY


# A return by probes alone


async def test_an_entity_whose_probes_succeed_and_whose_sends_fail_fails_over(harness):
    pair = await harness.pair(failover_interval=30.0)
    harness.primary.fail(Refuse(), SEND)
    started = trio.current_time()

    while "secondary" not in [event.after for event in harness.events.of(EntityStateChanged)]:
        assert await send(pair)() is AcceptedBy.BACKLOG
        await trio.sleep(3.0)

    assert 30.0 <= trio.current_time() - started <= 60.0


async def test_a_send_that_succeeds_after_a_return_by_probes_ends_the_streak(harness):
    pair = await harness.pair(failover_interval=30.0)
    await suspect(harness, pair)
    await reaches(pair.states, State.PRIMARY)
    await send(pair, message("m2"))()
    await trio.sleep(29.0)
    harness.primary.fail(Refuse())

    await send(pair, message("m3"))()
    await trio.sleep(29.0)

    assert pair.states.state_of(ORDERS) is State.SUSPECT


# Trials


async def test_a_short_blip_is_over_within_milliseconds(harness):
    pair = await harness.pair()
    await suspect(harness, pair)

    with Timed() as timed:
        accepted_by = [await send(pair, message(f"{number}"))() for number in range(3)]

    assert accepted_by == [AcceptedBy.PRIMARY] * 3
    assert timed.seconds == 0
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_no_send_tries_a_suspect_entity_before_a_probe_was_answered(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), SEND)
    harness.primary.fail(Hang(), PROBE)
    await send(pair)()
    harness.primary.heal()
    harness.primary.fail(Hang(), PROBE)

    with Timed() as timed:
        accepted_by = [await send(pair, message(f"{number}"))() for number in range(20)]

    assert accepted_by == [AcceptedBy.BACKLOG] * 20
    assert timed.seconds <= 0.26  # the first one waits for the probe
    assert harness.primary.sends() == 1


async def test_a_suspect_entity_is_tried_by_every_send_where_errors_go_to_the_caller(harness):
    pair = await harness.pair(while_suspect=WhileSuspect.RAISE)
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.primary.fail(Refuse(), PROBE)
    with pytest.raises(Exception, match="refused"):
        await send(pair)()

    accepted_by = await send(pair, message("m2"))()

    assert accepted_by is AcceptedBy.PRIMARY


# Half-open


async def test_probes_alone_dont_complete_a_return_while_a_trial_is_under_way(harness):
    pair = await harness.pair(failover_interval=0.0, slow_call_duration=None)
    harness.primary.fail(Refuse(), SEND, times=1)
    await send(pair)()
    await reaches(pair.states, State.HALF_OPEN)
    harness.primary.fail(Hang(), SEND)
    accepted_by = []

    async def trial():
        accepted_by.append(await send(pair, message("m2"))())

    harness.nursery.start_soon(trial)
    await trio.sleep(9.0)
    states = [pair.states.state_of(ORDERS)]
    await trio.sleep(1.0)
    await wait_all_tasks_blocked()

    assert states == [State.HALF_OPEN]
    assert accepted_by == [AcceptedBy.BACKLOG]
    assert pair.states.state_of(ORDERS) is not State.PRIMARY


async def test_the_trial_that_brings_an_entity_back_must_be_fast(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=2)
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.primary.fail(Slow(3.0), SEND)
    await send(pair, message("m1"))()
    await reaches(pair.states, State.HALF_OPEN)

    accepted_by = await send(pair, message("m2"))()

    assert accepted_by is AcceptedBy.PRIMARY  # the message is accepted nevertheless
    after = [event.after for event in harness.events.of(EntityStateChanged)]
    assert after == ["secondary", "half-open", "secondary"]


async def test_a_trial_of_the_syphon_without_an_answer_holds_nobody_up(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=5)
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.primary.fail(Hang(), SEND, times=1)
    await send(pair)()
    await harness.syphon(states=pair.states, attempt_timeout=3.0)

    with Timed() as timed:
        await reaches(pair.states, State.PRIMARY)

    assert 3.0 <= timed.seconds <= 12.0  # and not three times as long as an attempt
