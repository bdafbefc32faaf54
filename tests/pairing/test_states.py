"""Every change of an entity's state: which answers count for it, and when."""

import random

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound, Unavailable
from gateway.domain.events.gateway import EntityStateChanged, LoopPaused
from gateway.domain.failover import State
from gateway.pairing.entity_record import MAX_TROUBLED, EntityState
from gateway.pairing.options import EntityRule, PairOptions, entity_rule, rule_for
from gateway.pairing.states import HEARTBEAT, EntityStates
from tests.harness.clocks import START, VirtualClock
from tests.harness.retained import entries
from tests.pairing.harness import BILLS, LABEL, ORDERS, virtual_time

pytestmark = virtual_time

OUT = Unavailable("out")


@pytest.fixture
def make(events):
    def make(max_troubled=MAX_TROUBLED, **options):
        return EntityStates(
            max_troubled=max_troubled,
            options=PairOptions(label=LABEL, **options),
            clock=VirtualClock(),
            observer=events,
            rng=random.Random(1),
        )

    return make


@pytest.fixture
def is_pause(make, events):
    """
    A function that returns True if states with these options count a heartbeat that is so late as a
    pause.
    """

    async def is_pause(late, **options):
        states = make(**options)
        async with trio.open_nursery() as nursery:
            await nursery.start(states.run)
            trio.lowlevel.current_clock().jump(HEARTBEAT + late)
            fail(states)
            nursery.cancel_scope.cancel()
        return bool(events.of(LoopPaused))

    return is_pause


def fail(states, entity=ORDERS):
    states.failed(states.begin(entity), OUT)


def answer(states):
    """A probe is answered, after which a suspect entity may be tried."""
    states.probed(ORDERS)


def open_half(states):
    fail(states)
    states.probed(ORDERS)
    assert states.state_of(ORDERS) is State.HALF_OPEN


# Late answers


async def test_a_failure_that_began_before_the_recovery_starts_no_new_outage(make):
    states = make(failover_interval=0.0, successes_to_return=1)
    old = states.begin(ORDERS)
    fail(states)
    states.probed(ORDERS)

    states.failed(old, OUT)

    assert states.state_of(ORDERS) is State.PRIMARY


async def test_a_success_that_began_before_the_failover_brings_nothing_back(make):
    states = make(failover_interval=0.0)
    old = states.begin(ORDERS)
    fail(states)

    states.sent(old)
    states.probed(ORDERS)
    states.sent(old)

    assert states.state_of(ORDERS) is State.HALF_OPEN


async def test_a_success_that_began_before_the_failover_ends_no_other_outage(make):
    states = make(failover_interval=60.0)
    old = states.begin(ORDERS)
    states.force_over(ORDERS)
    states.force_back(ORDERS)
    fail(states)

    states.sent(old)

    assert states.state_of(ORDERS) is State.SUSPECT


async def test_any_success_ends_a_streak(make):
    states = make(failover_interval=60.0)
    slow = states.begin(ORDERS)
    fail(states)

    states.sent(slow)

    assert states.state_of(ORDERS) is State.PRIMARY


async def test_a_refusal_ends_a_streak_if_its_send_began_an_interval_after_the_last_failure(make):
    states = make(failover_interval=60.0)
    fail(states)
    await trio.sleep(59.0)
    early = states.begin(ORDERS)
    await trio.sleep(2.0)
    late = states.begin(ORDERS)
    seen = []
    for attempt in (early, late):
        states.refused(attempt)
        seen.append(states.state_of(ORDERS))

    assert seen == [State.SUSPECT, State.PRIMARY]


async def test_a_trial_of_the_streak_doesnt_count_for_the_half_open_entity(make):
    states = make(failover_interval=60.0, successes_to_return=2)
    fail(states)
    await trio.sleep(1.0)
    answer(states)
    trial = states.begin_trial(ORDERS)
    for _ in range(2):
        await trio.sleep(30.0)
        fail(states)
    states.probed(ORDERS)

    states.sent(trial)

    assert states.state_of(ORDERS) is State.HALF_OPEN


# Trials


async def test_one_trial_at_a_time(make):
    states = make(failover_interval=0.0)
    open_half(states)

    first, second = states.begin_trial(ORDERS), states.begin_trial(ORDERS)
    states.release(first)
    third = states.begin_trial(ORDERS)

    assert first is not None
    assert second is None
    assert third is not None


async def test_a_trial_ended_twice_ends_no_other(make):
    states = make(failover_interval=0.0, successes_to_return=9)
    open_half(states)
    first = states.begin_trial(ORDERS)
    states.sent(first)
    second = states.begin_trial(ORDERS)

    states.release(first)

    assert second is not None
    assert states.begin_trial(ORDERS) is None


@pytest.mark.parametrize("state", ["healthy", "failed over", "pinned"])
async def test_only_suspect_and_half_open_entities_have_trials(make, state):
    states = make(failover_interval=0.0)
    if state == "failed over":
        fail(states)
    elif state == "pinned":
        states.force_over(ORDERS)

    assert states.begin_trial(ORDERS) is None


async def test_after_a_failed_trial_the_next_one_waits(make):
    states = make(failover_interval=60.0)
    fail(states)
    answer(states)
    states.failed(states.begin_trial(ORDERS), OUT)

    answer(states)
    at_once = states.begin_trial(ORDERS)
    await trio.sleep(2.0)

    assert at_once is None
    assert states.begin_trial(ORDERS) is not None


async def test_the_pause_before_a_trial_doubles_with_each_that_failed(make):
    states = make(failover_interval=60.0, trial_pause=Backoff(first=1.0, cap=64.0, jitter=0.0))
    fail(states)

    answer(states)
    states.failed(states.begin_trial(ORDERS), OUT)

    for pause in (1.0, 2.0, 4.0):
        answer(states)
        await trio.sleep(pause - 0.1)
        assert states.begin_trial(ORDERS) is None
        await trio.sleep(0.2)
        trial = states.begin_trial(ORDERS)
        assert trial is not None
        states.failed(trial, OUT)


async def test_sends_that_fail_together_dont_put_the_first_trial_off(make):
    states = make(failover_interval=60.0)
    attempts = [states.begin(ORDERS) for _ in range(100)]
    for attempt in attempts:
        states.failed(attempt, OUT)

    answer(states)

    assert states.begin_trial(ORDERS) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda states, trial: states.release(trial),
        lambda states, _trial: states.force_over(ORDERS),
    ],
    ids=["the trial ends", "the entity changes its state"],
)
async def test_a_waiting_caller_hears_what_decides(make, nursery, change):
    states = make(failover_interval=60.0)
    fail(states)
    answer(states)
    trial = states.begin_trial(ORDERS)
    heard = []

    async def wait():
        await states.wait_verdict(ORDERS, trio.current_time() + 100.0)
        heard.append(trio.current_time())

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    now = trio.current_time()

    change(states, trial)
    await wait_all_tasks_blocked()

    assert heard == [now]


async def test_trials_are_closer_together_than_half_of_a_short_interval(make):
    states = make(failover_interval=0.4)
    fail(states)
    answer(states)
    states.failed(states.begin_trial(ORDERS), OUT)
    answer(states)

    await trio.sleep(0.19)
    early = states.begin_trial(ORDERS)
    await trio.sleep(0.02)

    assert early is None
    assert states.begin_trial(ORDERS) is not None


async def test_a_half_open_entity_may_be_tried_at_once(make):
    states = make(failover_interval=0.0)
    states.options = attrs.evolve(
        states.options, failover_interval=60.0, trial_pause=Backoff(first=20.0, cap=20.0)
    )
    for _ in range(5):
        fail(states)
        await trio.sleep(15.0)
    assert states.state_of(ORDERS) is State.SECONDARY

    states.probed(ORDERS)

    assert states.begin_trial(ORDERS) is not None


async def test_a_new_outage_is_tried_as_soon_as_the_first(make):
    states = make(failover_interval=60.0, trial_pause=Backoff(first=1.0, cap=64.0, jitter=0.0))
    for _ in range(2):
        fail(states)
        for _ in range(3):
            await trio.sleep(10.0)
            answer(states)
            trial = states.begin_trial(ORDERS)
            states.failed(trial, OUT)
        states.sent(states.begin(ORDERS))
    fail(states)
    answer(states)
    states.failed(states.begin_trial(ORDERS), OUT)
    answer(states)

    await trio.sleep(1.1)

    assert states.begin_trial(ORDERS) is not None


async def test_a_trial_that_fails_after_the_recovery_is_the_first_failure_of_a_new_outage(make):
    states = make(failover_interval=60.0, trial_pause=Backoff(first=1.0, cap=64.0, jitter=0.0))
    fail(states)
    answer(states)
    slow = states.begin_trial(ORDERS)
    states.sent(states.begin(ORDERS))
    states.failed(slow, OUT)
    answer(states)

    await trio.sleep(1.1)

    assert states.state_of(ORDERS) is State.SUSPECT
    assert states.begin_trial(ORDERS) is not None


async def test_a_waiting_caller_waits_no_longer_than_they_said(make):
    states = make(failover_interval=60.0)
    fail(states)
    answer(states)
    states.begin_trial(ORDERS)
    started = trio.current_time()

    await states.wait_verdict(ORDERS, started + 0.2)

    assert trio.current_time() - started == pytest.approx(0.2)


async def test_nobody_waits_longer_than_suspect_wait_for_one_verdict(make):
    states = make(failover_interval=60.0, suspect_wait=0.25)
    fail(states)
    await trio.sleep(0.2)
    started = trio.current_time()

    waited = []
    for _ in range(2):
        assert not await states.wait_verdict(ORDERS, started + 100.0)
        waited.append(round(trio.current_time() - started, 3))

    assert waited == [0.05, 0.05]


@pytest.mark.parametrize("what", ["a probe", "a trial"])
async def test_when_it_was_asked_and_failed_there_is_nothing_to_wait_for(make, what):
    states = make(failover_interval=60.0)
    fail(states)
    if what == "a probe":
        states.probe_failed(ORDERS, OUT)
    else:
        answer(states)
        states.failed(states.begin_trial(ORDERS), OUT)
    started = trio.current_time()

    await states.wait_verdict(ORDERS, started + 100.0)

    assert trio.current_time() == started


# A pause of the gateway


async def test_a_paused_gateway_throws_the_streak_away(make, nursery, events):
    states = make(failover_interval=60.0)
    await nursery.start(states.run)
    fail(states)
    during = states.begin(ORDERS)

    trio.lowlevel.current_clock().jump(100.0)
    states.failed(during, OUT)

    assert states.state_of(ORDERS) is State.PRIMARY
    assert len(events.of(LoopPaused)) == 1
    nursery.cancel_scope.cancel()


async def test_a_pause_matters_to_the_most_impatient_entity(make, nursery):
    rule = EntityRule(match="orders", failover_interval=0.0)
    states = make(failover_interval=3600.0, entities=(rule,))
    await nursery.start(states.run)
    during = states.begin(ORDERS)

    trio.lowlevel.current_clock().jump(20.0)
    states.failed(during, OUT)

    assert states.state_of(ORDERS) is State.PRIMARY
    nursery.cancel_scope.cancel()


async def test_pauses_that_end_attempts_dont_add_up_to_an_outage(make, nursery):
    states = make(failover_interval=30.0, attempt_timeout=10.0)
    await nursery.start(states.run)

    for _ in range(2):
        during = states.begin(ORDERS)
        trio.lowlevel.current_clock().jump(12.0)
        states.failed(during, OUT)
        await trio.sleep(20.0)

    assert states.state_of(ORDERS) is State.PRIMARY
    nursery.cancel_scope.cancel()


async def test_a_pause_is_noticed_without_a_failure_too(make, nursery, events):
    states = make(failover_interval=10.0)
    await nursery.start(states.run)
    fail(states)

    trio.lowlevel.current_clock().jump(100.0)
    await wait_all_tasks_blocked()

    assert states.state_of(ORDERS) is State.PRIMARY
    assert [round(event.seconds) for event in events.of(LoopPaused)] == [98]
    nursery.cancel_scope.cancel()


async def test_pauses_that_let_attempts_fail_are_no_outage_however_long_the_interval(make, nursery):
    states = make(failover_interval=30.0, attempt_timeout=3.0)
    await nursery.start(states.run)

    for _ in range(5):
        during = states.begin(ORDERS)
        trio.lowlevel.current_clock().jump(10.0)
        states.failed(during, OUT)

    assert states.state_of(ORDERS) is State.PRIMARY
    nursery.cancel_scope.cancel()


async def test_a_pulse_that_is_a_little_late_is_no_pause(make, nursery, events):
    states = make(failover_interval=60.0)
    await nursery.start(states.run)
    fail(states)

    trio.lowlevel.current_clock().jump(5.0)
    fail(states)

    assert states.state_of(ORDERS) is State.SUSPECT
    assert events.of(LoopPaused) == []
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("interval", "late", "paused"),
    [(8.0, 3.9, False), (8.0, 4.1, True), (60.0, 4.9, False), (60.0, 5.1, True)],
)
async def test_a_pause_is_half_of_the_interval_or_of_an_attempt_late(
    is_pause, interval, late, paused
):
    assert await is_pause(late, failover_interval=interval, attempt_timeout=10.0) is paused


@pytest.mark.parametrize(("late", "paused"), [(1.9, False), (2.1, True)])
async def test_a_pause_is_two_seconds_late_however_short_an_interval_is(is_pause, late, paused):
    assert await is_pause(late, failover_interval=0.0) is paused


@pytest.mark.parametrize(("late", "paused"), [(2.9, False), (3.1, True)])
async def test_of_several_intervals_the_shortest_says_what_a_pause_is(is_pause, late, paused):
    rules = [EntityRule(match="a", failover_interval=seconds) for seconds in (8.0, 6.0, None)]

    assert await is_pause(late, failover_interval=3600.0, entities=tuple(rules)) is paused


async def test_one_pause_is_noticed_once(make, nursery, events):
    states = make(failover_interval=60.0)
    await nursery.start(states.run)

    trio.lowlevel.current_clock().jump(100.0)
    fail(states)
    fail(states)

    assert len(events.of(LoopPaused)) == 1
    nursery.cancel_scope.cancel()


async def test_states_without_a_pulse_notice_no_pause(make, nursery, events):
    states = make(failover_interval=60.0)
    await nursery.start(states.run)
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True), trio.move_on_after(1.0):
        await trio.sleep_forever()

    trio.lowlevel.current_clock().jump(100.0)
    fail(states)

    assert events.of(LoopPaused) == []


# Operators


async def test_a_pinned_entity_stays_until_an_operator_says_so(make):
    states = make(failover_interval=0.0)
    states.force_over(ORDERS)

    states.probed(ORDERS)
    states.sent(states.begin(ORDERS))
    fail(states)
    pinned = states.state_of(ORDERS)
    states.force_back(ORDERS)

    assert pinned is State.PINNED
    assert states.state_of(ORDERS) is State.PRIMARY


async def test_failback_while_the_primary_fails_starts_a_new_streak(make):
    states = make(failover_interval=60.0)
    fail(states)
    await trio.sleep(59.0)
    states.force_over(ORDERS)
    states.force_back(ORDERS)

    fail(states)
    await trio.sleep(59.0)
    fail(states)

    assert states.state_of(ORDERS) is State.SUSPECT


async def test_failback_of_a_healthy_entity_changes_nothing(make, events):
    states = make()

    states.force_back(ORDERS)

    assert events.all == []


# Probes


async def test_a_probe_that_finds_the_entity_gone_is_shown(make):
    states = make(failover_interval=0.0)
    fail(states)
    version = states.changes.version

    states.record_unreachable(ORDERS, EntityNotFound("no orders here"))

    assert isinstance(states.unreachable(ORDERS), EntityNotFound)
    assert "no orders here" in states.troubled()[0].reason
    assert states.changes.version > version


async def test_a_probe_that_is_answered_forgets_that_the_entity_was_gone(make):
    states = make(failover_interval=0.0)
    fail(states)
    states.record_unreachable(ORDERS, EntityNotFound("gone"))

    states.probed(ORDERS)

    assert states.unreachable(ORDERS) is None


async def test_a_probe_of_an_entity_that_is_well_says_nothing(make, events):
    states = make()

    states.probed(ORDERS)
    states.probe_failed(ORDERS, OUT)
    states.record_unreachable(ORDERS, EntityNotFound("gone"))

    assert states.troubled() == []
    assert states.unreachable(ORDERS) is None


async def test_a_probe_that_finds_it_gone_closes_a_half_open_entity(make):
    states = make(failover_interval=0.0)
    open_half(states)

    states.record_unreachable(ORDERS, EntityNotFound("gone"))

    assert states.state_of(ORDERS) is State.SECONDARY


async def test_a_half_open_entity_is_probed_on(make):
    states = make(failover_interval=0.0)
    open_half(states)

    assert states.to_probe() == [ORDERS]


async def test_an_operator_who_takes_it_back_forgets_that_it_was_gone(make):
    states = make(failover_interval=0.0)
    fail(states)
    states.record_unreachable(ORDERS, EntityNotFound("gone"))

    states.force_back(ORDERS)

    assert states.unreachable(ORDERS) is None


# Restart


@pytest.mark.parametrize(
    ("saved", "restored"),
    [
        (State.SECONDARY, State.SECONDARY),
        (State.HALF_OPEN, State.SECONDARY),
        (State.PINNED, State.PINNED),
        (State.SUSPECT, State.PRIMARY),
    ],
)
async def test_an_entity_that_is_failed_over_or_pinned_survives_a_restart(make, saved, restored):
    states = make()

    states.restore([EntityState(entity=ORDERS, state=saved, since=START, reason="it was")])

    assert states.state_of(ORDERS) is restored


async def test_all_that_was_saved_is_restored_and_told(make):
    states = make()
    version = states.changes.version
    saved = [
        EntityState(entity=ORDERS, state=State.SUSPECT, since=START, reason="it was"),
        EntityState(entity=BILLS, state=State.SECONDARY, since=START, reason="it was"),
    ]

    states.restore(saved)

    assert [each.entity for each in states.troubled()] == [BILLS]
    assert states.changes.version > version


async def test_a_restored_state_keeps_its_date_and_reason(make):
    states = make()
    saved = EntityState(entity=ORDERS, state=State.PINNED, since=START, reason="an operator")

    states.restore([saved])

    assert states.troubled() == [saved]


# Memory


async def test_an_entity_in_good_health_takes_no_memory(make, nursery):
    states = make(failover_interval=60.0, send_timeout=30.0)
    healthy = entries(states)
    await nursery.start(states.run)
    fail(states)
    states.sent(states.begin(ORDERS))

    await trio.sleep(65.0)

    assert entries(states) == healthy
    nursery.cancel_scope.cancel()


async def test_an_entity_is_remembered_while_an_attempt_from_before_may_answer(make, nursery):
    states = make(failover_interval=60.0, send_timeout=30.0)
    healthy = entries(states)
    await nursery.start(states.run)
    fail(states)
    states.sent(states.begin(ORDERS))

    await trio.sleep(55.0)

    assert entries(states) > healthy
    nursery.cancel_scope.cancel()


async def test_an_attempt_outlives_what_was_remembered_of_its_entity(make, nursery):
    states = make(failover_interval=0.0, successes_to_return=1)
    healthy = entries(states)
    await nursery.start(states.run)
    fail(states)
    states.probed(ORDERS)
    await trio.sleep(50.0)
    attempt = states.begin(ORDERS)
    with trio.CancelScope(shield=True):
        await trio.sleep(300.0)
    assert entries(states) == healthy

    states.failed(attempt, OUT)

    assert states.state_of(ORDERS) is State.SECONDARY
    nursery.cancel_scope.cancel()


async def test_an_entity_with_a_trial_on_its_way_is_remembered(make, nursery):
    states = make(failover_interval=60.0)
    healthy = entries(states)
    await nursery.start(states.run)
    fail(states)
    answer(states)
    assert states.begin_trial(ORDERS)
    states.sent(states.begin(ORDERS))

    await trio.sleep(100.0)

    assert entries(states) > healthy
    nursery.cancel_scope.cancel()


async def test_the_memory_of_troubled_entities_is_bounded(make):
    states = make(failover_interval=0.0, max_troubled=3)

    for number in range(5):
        fail(states, EntityPath(f"entity-{number}"))

    assert len(states.troubled()) == 3
    assert states.state_of(EntityPath("entity-4")) is State.PRIMARY


# Changes that others see


async def test_each_change_is_told_once(make, events):
    states = make(failover_interval=60.0)
    version = states.changes.version

    fail(states)
    fail(states)

    assert events.all == [
        EntityStateChanged(
            entity=ORDERS, before="primary", after="suspect", reason="out", cause="failed"
        )
    ]
    assert states.changes.version == version + 1


async def test_case_of_a_name_is_ignored(make):
    states = make(failover_interval=0.0)

    fail(states, EntityPath("ORDERS"))

    assert states.state_of(ORDERS) is State.SECONDARY


async def test_a_pinned_entity_is_not_probed(make):
    states = make(failover_interval=0.0)
    fail(states)
    states.force_over(BILLS)

    assert states.to_probe() == [ORDERS]


async def test_the_first_rule_that_matches_counts():
    rules = (
        EntityRule(match="Orders/*", failover_interval=1.0),
        EntityRule(match="orders/new", failover_interval=2.0),
    )
    options = PairOptions(label=LABEL, failover_interval=3.0, entities=rules)

    assert entity_rule(EntityPath("orders/NEW"), rules) is rules[0]
    assert rule_for(EntityPath("orders/new"), options).interval == 1.0
    assert rule_for(ORDERS, options).interval == 3.0
