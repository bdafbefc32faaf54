"""Every change of an entity's state: which answers count for it, and when."""

import random

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    Busy,
    EntityNotFound,
    NotAuthorized,
    Unavailable,
    Unreachable,
)
from gateway.domain.events.gateway import EntityStateChanged, LoopPaused
from gateway.domain.failover import State
from gateway.pairing.entity_record import MAX_TROUBLED, EntityState
from gateway.pairing.options import (
    EntityRule,
    OnRefusedCredentials,
    OnUnreachable,
    PairOptions,
    entity_rule,
    rule_for,
)
from gateway.pairing.states import HEARTBEAT, EntityStates
from tests.harness.clocks import START, VirtualClock
from tests.harness.retained import entries
from tests.pairing.harness import BILLS, LABEL, ORDERS, virtual_time

pytestmark = virtual_time

OUT = Unavailable("out")


@pytest.fixture
def make(events):
    def make(max_troubled=MAX_TROUBLED, address="", **options):
        return EntityStates(
            address=address,
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


# The evidence that an attempt is

LOST = Unreachable("refused")
MISSING = EntityNotFound("none")


async def later(seconds, attempt):
    await trio.sleep(seconds)
    return attempt


def pause(seconds):
    """Let the gateway stand still for so long."""
    trio.lowlevel.current_clock().jump(seconds)


def failing_since(states, entity=ORDERS):
    """When the entity's streak began, by Trio's clock."""
    since = states.shared(entity).failover.failing_since
    return None if since is None else since + trio.current_time()


@pytest.mark.parametrize(
    ("options", "is_known", "counts"),
    [({}, True, True), ({}, False, False), ({"on_unreachable": OnUnreachable.RAISE}, True, False)],
)
async def test_a_missing_entity_that_was_known_is_an_outage_while_one_lasts(
    make, options, is_known, counts
):
    states = make(**options)
    if is_known:
        states.is_known = lambda entity: entity == ORDERS
    before = states.counts(ORDERS, MISSING)
    fail(states, BILLS)
    other = states.counts(ORDERS, MISSING)
    states.failed(states.begin(BILLS), LOST)
    during = states.counts(ORDERS, MISSING)
    await trio.sleep(60.0)

    assert (before, other, during) == (False, False, counts)
    assert not states.counts(ORDERS, MISSING)


async def test_a_suspect_entity_that_a_probe_finds_missing_is_lost_in_an_outage(make):
    states = make()
    states.is_known = lambda _: True
    fail(states)
    states.record_unreachable(ORDERS, MISSING)
    states.is_known = lambda _: False
    suspect = states.counts(ORDERS, MISSING)
    for _ in range(2):
        await trio.sleep(30.0)
        fail(states)

    assert (suspect, states.state_of(ORDERS)) == (True, State.SECONDARY)
    assert not states.counts(ORDERS, MISSING)
    assert states.is_diverted(ORDERS, MISSING)
    assert not states.is_diverted(BILLS, MISSING)


async def test_sends_of_entities_without_diversion_when_missing_get_the_error(make):
    states = make(failover_interval=0.0, on_unreachable=OnUnreachable.RAISE)
    fail(states)
    states.record_unreachable(ORDERS, MISSING)

    assert states.unreachable(ORDERS) is MISSING
    assert not states.is_diverted(ORDERS, MISSING)


async def test_a_trial_is_waited_for_as_long_as_a_probe(make):
    states = make(suspect_wait=2.0)
    fail(states)
    await trio.sleep(5.0)
    answer(states)
    waits = [await states.wait_verdict(ORDERS, trio.current_time() + 9.0)]
    assert states.begin_trial(ORDERS) is not None
    began = trio.current_time()
    waits.append(await states.wait_verdict(ORDERS, began + 9.0))

    assert waits == [False, False]
    assert trio.current_time() - began == 2.0


async def test_a_send_of_before_and_a_probe_are_signs_of_life_by_their_start(make):
    states = make(failover_interval=0.0, successes_to_return=99)
    fail(states)
    began = trio.current_time()
    first = await later(1.0, states.begin(ORDERS))
    second = await later(1.0, states.begin(ORDERS))
    signs = []
    for attempt in (second, first):
        states.sent(attempt)
        signs.append(states.shows_life(ORDERS, began + 0.5))
    probes = [await later(1.0, states.begin(ORDERS)) for _ in range(2)]
    for attempt in reversed(probes):
        states.probed(ORDERS, attempt)
        signs.append(states.shows_life(ORDERS, began + 2.5))
    states.probed(ORDERS)

    assert signs == [True] * 4
    assert states.shows_life(ORDERS, trio.current_time() - 0.1)


async def test_only_a_trial_counts_for_a_half_open_entity(make):
    states = make(failover_interval=0.0, successes_to_return=2)
    open_half(states)
    states.sent(states.begin(ORDERS))
    sent = states.state_of(ORDERS)
    states.sent(states.begin_trial(ORDERS))

    assert (sent, states.state_of(ORDERS)) == (State.HALF_OPEN, State.PRIMARY)


async def test_a_send_that_is_slow_is_a_suspicion_from_its_start(make):
    states = make(address="amqp://east")
    attempt = await later(3.0, states.begin(ORDERS))
    states.slow(attempt)
    [state] = states.troubled()

    assert (state.state, state.reason) == (State.SUSPECT, "amqp://east: no answer within 3 s")
    assert states.evidence.namespace.is_any_silent
    assert states.shared(ORDERS).failover.last_failure == 0.0
    states.slow(states.begin(BILLS), is_silence=False)
    assert not states.evidence.namespace.is_silent("bills")


async def test_a_slow_send_from_before_a_failover_or_a_pause_is_no_suspicion(make, nursery):
    states = make(failover_interval=0.0, successes_to_return=1)
    old = states.begin(ORDERS)
    fail(states)
    states.probed(ORDERS)
    states.slow(old)
    returned = states.state_of(ORDERS)
    await nursery.start(states.run)
    paused = states.begin(BILLS)
    pause(60.0)
    states.slow(paused)

    assert returned is State.PRIMARY
    assert states.state_of(BILLS) is State.PRIMARY
    assert not states.evidence.namespace.is_any_silent


async def test_an_entity_is_doubted_with_its_namespace_and_waits_no_longer_than_its_loss(make):
    states = make(suspect_wait=2.0)
    states.suspect(ORDERS)
    before = states.state_of(ORDERS)
    states.failed(states.begin(BILLS), LOST)
    await trio.sleep(1.5)
    states.suspect(ORDERS)
    [_, doubted] = states.troubled()
    began = trio.current_time()
    await states.wait_verdict(ORDERS, began + 9.0)

    assert before is State.PRIMARY
    assert (doubted.state, doubted.reason) == (State.SUSPECT, "the namespace: refused")
    assert trio.current_time() - began == 0.5


async def test_an_entity_beside_a_silent_one_is_asked_itself(make):
    states = make(suspect_wait=2.0)
    states.slow(await later(3.0, states.begin(BILLS)))
    await trio.sleep(5.0)
    states.suspect(BILLS)
    states.suspect(ORDERS)
    began = trio.current_time()
    await states.wait_verdict(ORDERS, began + 9.0)
    reasons = {each.entity: each.reason for each in states.troubled()}

    assert reasons == {
        BILLS: "no answer within 3 s",
        ORDERS: "another entity had no answer in time",
    }
    assert trio.current_time() - began == 2.0


async def test_of_too_many_entities_none_is_doubted(make):
    states = make(max_troubled=1)
    states.failed(states.begin(BILLS), LOST)
    states.suspect(ORDERS)

    assert [each.entity for each in states.troubled()] == [BILLS]


@pytest.mark.parametrize("own", [None, "failed", "slow"])
async def test_a_doubt_of_the_namespace_ends_with_its_answer_and_evidence_of_the_entity_does_not(
    make, own
):
    states = make(failover_interval=10.0)
    states.failed(states.begin(BILLS), LOST)
    states.suspect(ORDERS)
    if own == "failed":
        fail(states)
    elif own == "slow":
        states.slow(states.begin(ORDERS))
    await trio.sleep(11.0)
    states.sent(states.begin(BILLS))

    assert states.state_of(ORDERS) is (State.SUSPECT if own else State.PRIMARY)


async def test_a_remembered_failure_that_an_answer_has_outdated_only_ends_its_trial(make):
    states = make()
    fail(states)
    answer(states)
    trial = states.begin_trial(ORDERS)
    states.sent(await later(1.0, states.begin(BILLS)))
    remembered = Unavailable("refused a moment ago")
    remembered.since = trio.current_time() - 2.0
    states.failed(trial, remembered)

    assert states.shared(ORDERS).failover.answered
    assert states.begin_trial(ORDERS) is not None


async def test_a_failure_counts_from_the_start_of_its_attempt(make):
    states = make(failover_interval=60.0)
    fail(states)
    began = trio.current_time()
    hung = await later(59.0, states.begin(ORDERS))
    await trio.sleep(11.0)
    states.failed(hung, OUT)

    assert failing_since(states) is None
    assert states.state_of(ORDERS) is State.SECONDARY
    assert trio.current_time() == began + 70.0


async def test_a_failure_from_before_a_pause_is_no_evidence_of_the_namespace(make, nursery):
    states = make()
    await nursery.start(states.run)
    attempt = states.begin(ORDERS)
    pause(60.0)
    states.failed(attempt, LOST)
    probe = states.begin(ORDERS)
    before = states.evidence.namespace.is_lost
    pause(60.0)
    states.probe_failed(ORDERS, LOST, probe)

    assert (before, states.evidence.namespace.is_lost) == (False, False)
    states.failed(states.begin(ORDERS), LOST)
    assert states.evidence.namespace.is_lost


async def test_a_failure_that_says_the_entity_is_gone_is_told(make):
    states = make()
    states.failed(states.begin(ORDERS), MISSING)
    [state] = states.troubled()

    assert (state.missing, state.reason) == (True, "none")
    assert states.unreachable(ORDERS) is MISSING


@pytest.mark.parametrize("ending", ["refused", "failed", "probe"])
async def test_any_answer_is_one_of_the_namespace(make, ending):
    states = make()
    states.failed(states.begin(BILLS), LOST)
    await trio.sleep(1.0)
    attempt = states.begin(ORDERS)
    if ending == "refused":
        states.refused(attempt)
    elif ending == "failed":
        states.failed(attempt, MISSING)
    else:
        states.probe_failed(ORDERS, MISSING, attempt)

    assert not states.evidence.namespace.is_lost


async def test_a_refusal_after_a_quiet_interval_counts_from_its_start(make):
    states = make(failover_interval=10.0)
    fail(states)
    early = await later(11.0, states.begin(ORDERS))
    states.refused(early)
    before = states.state_of(ORDERS)
    states.refused(states.begin(ORDERS))

    assert (before, states.state_of(ORDERS)) == (State.SUSPECT, State.PRIMARY)


# The evidence that a probe is


async def test_credentials_that_a_probe_has_used_are_good_again_soon(make):
    states = make()
    states.probed(ORDERS, states.begin(ORDERS))
    await trio.sleep(1.0)
    states.failed(states.begin(BILLS), LOST)

    assert states.awaits_credentials(BILLS)


async def test_a_probe_without_an_answer_is_a_silence_unless_the_gateway_was_paused(make, nursery):
    states = make(address="amqp://east")
    await nursery.start(states.run)
    probe = states.begin(ORDERS)
    pause(60.0)
    states.probe_unanswered(probe)
    paused = states.evidence.namespace.is_any_silent
    for number in range(3):
        probe = await later(1.0, states.begin(EntityPath(f"queue-{number}")))
        states.probe_unanswered(probe)

    assert not paused
    assert states.evidence.namespace.is_lost


async def test_a_late_answer_to_a_probe_is_a_failure(make):
    states = make(failover_interval=10.0)
    fail(states)
    probe = await later(4.0, states.begin(ORDERS))
    states.probed_late(probe, 4.0)
    for _ in range(2):
        await trio.sleep(3.0)
        states.probed_late(states.begin(ORDERS), 3.0)
    [state] = states.troubled()

    assert (state.state, state.reason) == (State.SECONDARY, "a probe was answered after 3 s")


@pytest.mark.parametrize(("error", "for_all"), [(LOST, True), (OUT, False)])
async def test_a_failed_probe_of_a_lost_namespace_counts_for_all_suspects(make, error, for_all):
    states = make(failover_interval=60.0)
    states.failed(states.begin(BILLS), LOST)
    states.suspect(ORDERS)
    await trio.sleep(1.0)
    before = failing_since(states)
    states.probe_failed(BILLS, error, states.begin(BILLS))

    assert before is None
    assert failing_since(states) == (trio.current_time() if for_all else None)
    assert states.state_of(EntityPath("healthy")) is State.PRIMARY


async def test_a_failed_probe_counts_from_its_start(make):
    states = make(failover_interval=60.0)
    fail(states)
    hung = await later(59.0, states.begin(ORDERS))
    await trio.sleep(11.0)
    states.probe_failed(ORDERS, OUT, hung)

    assert states.state_of(ORDERS) is State.SECONDARY


async def test_a_probe_that_is_refused_is_an_answer_from_its_start(make):
    states = make(failover_interval=10.0)
    fail(states)
    early = await later(11.0, states.begin(ORDERS))
    states.probe_failed(ORDERS, Busy(), early)
    before = states.state_of(ORDERS)
    states.probe_failed(ORDERS, Busy(), states.begin(ORDERS))
    states.probe_failed(BILLS, Busy(), states.begin(BILLS))

    assert (before, states.state_of(ORDERS)) == (State.SUSPECT, State.PRIMARY)
    assert states.state_of(BILLS) is State.PRIMARY


# Late answers to sends


async def late(states, number, *, trial=False):
    """So many sends that are accepted after three seconds."""
    begun = [states.begin_trial(ORDERS) if trial else states.begin(ORDERS) for _ in range(number)]
    await trio.sleep(3.0)
    for attempt in begun:
        states.sent(attempt, late=True)


async def test_too_many_late_answers_are_a_failure_from_the_start_of_the_last(make):
    states = make(failover_interval=60.0)
    await late(states, 4)
    few = states.state_of(ORDERS)
    await late(states, 1)
    [state] = states.troubled()

    assert few is State.PRIMARY
    assert (state.state, state.reason) == (State.SUSPECT, "answers are late, the last by 3 s")
    assert failing_since(states) == trio.current_time()


async def test_a_late_trial_is_a_failure_and_delays_the_next_one(make):
    states = make(failover_interval=60.0, successes_to_return=9)
    fail(states)
    answer(states)
    began = trio.current_time()
    await late(states, 1, trial=True)
    answer(states)
    at_once = states.begin_trial(ORDERS)
    await trio.sleep(30.0)
    answer(states)

    assert failing_since(states) == began
    assert at_once is None
    assert states.begin_trial(ORDERS) is not None


async def test_late_answers_of_no_trial_delay_none(make):
    states = make(failover_interval=60.0)
    await late(states, 5)
    answer(states)

    assert states.state_of(ORDERS) is State.SUSPECT
    assert states.begin_trial(ORDERS) is not None


async def test_late_answers_from_before_a_failover_or_a_pause_are_no_failure(make, nursery):
    states = make(failover_interval=0.0, successes_to_return=1)
    old = [states.begin(ORDERS) for _ in range(6)]
    fail(states)
    states.probed(ORDERS)
    for attempt in old:
        states.sent(attempt, late=True)
    returned = states.state_of(ORDERS)
    await nursery.start(states.run)
    paused = [states.begin(BILLS) for _ in range(6)]
    pause(60.0)
    for attempt in paused:
        states.sent(attempt, late=True)

    assert returned is State.PRIMARY
    assert states.state_of(BILLS) is State.PRIMARY


async def test_evidence_is_forgotten_with_time_and_in_a_pause(make, nursery):
    states = make()
    await nursery.start(states.run)
    fresh = entries(states.evidence)
    await late(states, 1)
    held = entries(states.evidence)
    await trio.sleep(40.0)
    forgotten = entries(states.evidence)
    states.failed(states.begin(ORDERS), LOST)
    pause(60.0)
    states.slow(states.begin(BILLS))

    assert held > fresh == forgotten
    assert not states.evidence.namespace.is_lost


# Advice of other gateways


@pytest.fixture
async def advised(make):
    """States that take advice, and that have had an answer of both entities."""
    states = attrs.evolve(
        make(entities=(EntityRule(match="bills", divert=False),)), answers=Bounded(10)
    )
    for entity in (ORDERS, BILLS):
        states.sent(states.begin(entity))
    return states


async def test_advice_is_a_suspicion_from_the_start_of_the_request(advised):
    await trio.sleep(10.0)
    taken = [advised.advise(ORDERS, age, "advice") for age in (20.0, 10.0, 5.0, 1.0)]

    assert taken == [False, False, True, False]
    assert advised.troubled()[0].reason == "advice"
    advised.sent(advised.begin(ORDERS))
    assert not advised.advise(ORDERS, 5.0, "advice")


async def test_advice_is_ignored_for_what_never_leaves_the_primary_or_was_never_used(advised):
    await trio.sleep(10.0)

    assert not advised.advise(BILLS, 1.0, "advice")
    assert not advised.advise(EntityPath("later"), 1.0, "advice")
    assert advised.troubled() == []


async def test_advice_from_the_future_is_one_of_now(advised):
    await trio.sleep(10.0)

    assert advised.advise(ORDERS, -5.0, "advice")


async def test_advice_is_ignored_if_too_many_entities_are_troubled(make):
    states = attrs.evolve(make(max_troubled=0), answers=Bounded(10))
    states.sent(states.begin(ORDERS))
    await trio.sleep(1.0)

    assert not states.advise(ORDERS, 0.5, "advice")


async def test_an_answer_to_a_probe_outdates_advice_about_an_entity_in_use(advised):
    await trio.sleep(10.0)
    for entity in (ORDERS, EntityPath("later")):
        advised.probed(entity, advised.begin(entity))
    await trio.sleep(1.0)

    assert not advised.advise(ORDERS, 5.0, "advice")
    assert not advised.advise(EntityPath("later"), 0.5, "advice")
    assert advised.advise(ORDERS, 0.5, "advice")


# Credentials


@pytest.mark.parametrize("diverts", [True, False])
async def test_refused_credentials_are_an_outage_if_the_options_say_so(make, diverts):
    chosen = OnRefusedCredentials.DIVERT if diverts else OnRefusedCredentials.RAISE

    assert make(on_refused_credentials=chosen).counts(ORDERS, NotAuthorized("no")) is diverts


async def test_credentials_are_awaited_after_they_worked_until_something_succeeds(make):
    states = make()
    never = states.awaits_credentials(ORDERS)
    states.failed(states.begin(BILLS), LOST)
    unproved = states.awaits_credentials(ORDERS)
    states.sent(await later(1.0, states.begin(BILLS)))
    await trio.sleep(1.0)
    states.sent(states.begin(BILLS))
    await trio.sleep(1.0)
    states.failed(states.begin(BILLS), LOST)
    awaited = states.awaits_credentials(ORDERS)
    await trio.sleep(1.0)
    states.sent(states.begin(BILLS))

    assert (never, unproved, awaited) == (False, False, True)
    assert not states.awaits_credentials(ORDERS)


# The whole namespace


async def test_an_answered_probe_is_an_answer_of_the_namespace(make):
    states = make()
    states.failed(states.begin(BILLS), LOST)
    await trio.sleep(1.0)
    states.probed(ORDERS)
    unknown = states.evidence.namespace.is_lost
    states.probed(ORDERS, states.begin(ORDERS))

    assert (unknown, states.evidence.namespace.is_lost) == (True, False)


async def test_a_late_probe_of_a_lost_namespace_counts_for_all_suspects(make):
    states = make(failover_interval=60.0)
    states.failed(states.begin(BILLS), LOST)
    states.suspect(ORDERS)
    await trio.sleep(1.0)
    states.probed_late(states.begin(BILLS), 3.0)

    assert failing_since(states) == trio.current_time()


async def test_a_doubt_ends_only_by_an_answer_that_began_a_quiet_interval_after_it(make):
    states = make(failover_interval=10.0)
    states.failed(states.begin(BILLS), LOST)
    states.suspect(ORDERS)
    await trio.sleep(9.0)
    early = states.begin(BILLS)
    await trio.sleep(2.0)
    states.sent(early)

    assert not states.evidence.namespace.is_lost
    assert states.state_of(ORDERS) is State.SUSPECT


async def test_a_late_trial_is_evidence_of_the_entity_itself(make):
    states = make(failover_interval=10.0, successes_to_return=9)
    states.failed(states.begin(BILLS), LOST)
    states.suspect(ORDERS)
    await trio.sleep(1.0)
    states.probed(ORDERS, states.begin(ORDERS))
    await late(states, 1, trial=True)
    states.failed(states.begin(BILLS), LOST)
    await trio.sleep(11.0)
    states.sent(states.begin(BILLS))

    assert states.state_of(ORDERS) is State.SUSPECT


async def test_late_answers_count_from_the_start_of_their_sends(make):
    states = make(failover_interval=60.0)
    fail(states)
    await trio.sleep(59.0)
    begun = [states.begin(ORDERS) for _ in range(5)]
    await trio.sleep(11.0)
    for attempt in begun:
        states.sent(attempt, late=True)

    assert states.state_of(ORDERS) is State.SECONDARY


async def test_a_trial_that_is_late_for_a_pause_ends_all_the_same(make, nursery):
    states = make()
    await nursery.start(states.run)
    fail(states)
    answer(states)
    trial = states.begin_trial(ORDERS)
    pause(60.0)
    states.sent(trial, late=True)
    fail(states)
    answer(states)

    assert states.begin_trial(ORDERS) is not None


async def test_advice_goes_on_with_a_streak_if_its_request_began_before_the_streak_was_quiet(
    advised,
):
    fail(advised)
    began = trio.current_time()
    for _ in range(2):
        answer(advised)
    advised.sent(advised.begin(EntityPath("another")))
    await trio.sleep(301.0)
    taken = advised.advise(ORDERS, 2.0, "advice")

    assert taken
    assert failing_since(advised) == began


async def test_answers_are_kept_where_they_were(advised):
    with pytest.raises(attrs.exceptions.FrozenAttributeError):
        advised.answers = Bounded(1)
