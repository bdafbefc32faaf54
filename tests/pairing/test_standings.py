"""Whose answer counts, and when: every change of an entity's standing."""

import random

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound, Unavailable
from gateway.domain.events import LoopPaused, StandingChanged
from gateway.domain.failover import State
from gateway.pairing import standings as module
from gateway.pairing.options import EntityRule, PairOptions
from gateway.pairing.standings import BEAT, Standing, Standings, entity_rule, rule_for
from gateway.testing.clocks import START, VirtualClock
from tests.pairing.lab import BILLS, LABEL, ORDERS, virtual_time

pytestmark = virtual_time

OUT = Unavailable("out")


@pytest.fixture
def make(events):
    def make(**options):
        return Standings(
            options=PairOptions(label=LABEL, **options),
            clock=VirtualClock(),
            observer=events,
            rng=random.Random(1),
        )

    return make


@pytest.fixture
def is_pause(make, events):
    """Whether standings with these options, whose pulse comes so late, take that for a pause."""

    async def is_pause(late, **options):
        standings = make(**options)
        async with trio.open_nursery() as nursery:
            await nursery.start(standings.run)
            trio.lowlevel.current_clock().jump(BEAT + late)
            fail(standings)
            nursery.cancel_scope.cancel()
        return bool(events.of(LoopPaused))

    return is_pause


def fail(standings, entity=ORDERS):
    standings.failed(standings.begin(entity), OUT)


def open_half(standings):
    fail(standings)
    standings.probed(ORDERS)
    assert standings.state_of(ORDERS) is State.HALF_OPEN


# Late answers


async def test_a_failure_that_began_before_the_recovery_starts_no_new_outage(make):
    standings = make(failover_interval=0.0, successes_to_return=1)
    old = standings.begin(ORDERS)
    fail(standings)
    standings.probed(ORDERS)

    standings.failed(old, OUT)

    assert standings.state_of(ORDERS) is State.PRIMARY


async def test_a_success_that_began_before_the_failover_brings_nothing_back(make):
    standings = make(failover_interval=0.0)
    old = standings.begin(ORDERS)
    fail(standings)

    standings.sent(old)
    standings.probed(ORDERS)
    standings.sent(old)

    assert standings.state_of(ORDERS) is State.HALF_OPEN


async def test_a_success_that_began_before_the_failover_ends_no_other_outage(make):
    standings = make(failover_interval=60.0)
    old = standings.begin(ORDERS)
    standings.force_over(ORDERS)
    standings.force_back(ORDERS)
    fail(standings)

    standings.sent(old)

    assert standings.state_of(ORDERS) is State.SUSPECT


async def test_any_success_ends_a_streak(make):
    standings = make(failover_interval=60.0)
    slow = standings.begin(ORDERS)
    fail(standings)

    standings.sent(slow)

    assert standings.state_of(ORDERS) is State.PRIMARY


async def test_a_refusal_ends_a_streak_if_its_send_began_an_interval_after_the_last_failure(make):
    standings = make(failover_interval=60.0)
    fail(standings)
    await trio.sleep(59.0)
    early = standings.begin(ORDERS)
    await trio.sleep(2.0)
    late = standings.begin(ORDERS)
    states = []
    for attempt in (early, late):
        standings.refused(attempt)
        states.append(standings.state_of(ORDERS))

    assert states == [State.SUSPECT, State.PRIMARY]


async def test_a_trial_of_the_streak_doesnt_count_for_the_half_open_entity(make):
    standings = make(failover_interval=60.0, successes_to_return=2)
    fail(standings)
    await trio.sleep(1.0)
    trial = standings.begin_trial(ORDERS)
    for _ in range(2):
        await trio.sleep(30.0)
        fail(standings)
    standings.probed(ORDERS)

    standings.sent(trial)

    assert standings.state_of(ORDERS) is State.HALF_OPEN


# Trials


async def test_one_trial_at_a_time(make):
    standings = make(failover_interval=0.0)
    open_half(standings)

    first, second = standings.begin_trial(ORDERS), standings.begin_trial(ORDERS)
    standings.release(first)
    third = standings.begin_trial(ORDERS)

    assert first is not None
    assert second is None
    assert third is not None


async def test_a_trial_ended_twice_ends_no_other(make):
    standings = make(failover_interval=0.0, successes_to_return=9)
    open_half(standings)
    first = standings.begin_trial(ORDERS)
    standings.sent(first)
    second = standings.begin_trial(ORDERS)

    standings.release(first)

    assert second is not None
    assert standings.begin_trial(ORDERS) is None


@pytest.mark.parametrize("state", ["healthy", "failed over", "pinned"])
async def test_there_are_trials_only_while_suspect_or_half_open(make, state):
    standings = make(failover_interval=0.0)
    if state == "failed over":
        fail(standings)
    elif state == "pinned":
        standings.force_over(ORDERS)

    assert standings.begin_trial(ORDERS) is None


async def test_after_a_failed_trial_the_next_one_waits(make):
    standings = make(failover_interval=60.0)
    fail(standings)
    await trio.sleep(1.0)
    standings.failed(standings.begin_trial(ORDERS), OUT)

    at_once = standings.begin_trial(ORDERS)
    await trio.sleep(2.0)

    assert at_once is None
    assert standings.begin_trial(ORDERS) is not None


async def test_the_pause_before_a_trial_doubles_with_each_that_failed(make):
    standings = make(failover_interval=60.0, trial_pause=Backoff(first=1.0, cap=64.0, jitter=0.0))
    fail(standings)

    for pause in (1.0, 2.0, 4.0):
        await trio.sleep(pause - 0.1)
        assert standings.begin_trial(ORDERS) is None
        await trio.sleep(0.2)
        trial = standings.begin_trial(ORDERS)
        assert trial is not None
        standings.failed(trial, OUT)


async def test_sends_that_fail_together_dont_put_the_first_trial_off(make):
    standings = make(failover_interval=60.0)
    attempts = [standings.begin(ORDERS) for _ in range(100)]
    for attempt in attempts:
        standings.failed(attempt, OUT)

    await trio.sleep(0.7)

    assert standings.begin_trial(ORDERS) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda standings, trial: standings.release(trial),
        lambda standings, _trial: standings.force_over(ORDERS),
    ],
    ids=["the trial ends", "the entity changes its leg"],
)
async def test_who_waits_hears_what_decides(make, nursery, change):
    standings = make(failover_interval=60.0)
    fail(standings)
    await trio.sleep(1.0)
    trial = standings.begin_trial(ORDERS)
    heard = []

    async def wait():
        await standings.wait_verdict(ORDERS, 100.0)
        heard.append(trio.current_time())

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    now = trio.current_time()

    change(standings, trial)
    await wait_all_tasks_blocked()

    assert heard == [now]


async def test_trials_are_closer_together_than_half_of_a_short_interval(make):
    standings = make(failover_interval=0.4)
    fail(standings)

    await trio.sleep(0.19)
    early = standings.begin_trial(ORDERS)
    await trio.sleep(0.02)

    assert early is None
    assert standings.begin_trial(ORDERS) is not None


async def test_a_half_open_entity_may_be_tried_at_once(make):
    standings = make(failover_interval=0.0)
    standings.options = attrs.evolve(
        standings.options, failover_interval=60.0, trial_pause=Backoff(first=20.0, cap=20.0)
    )
    for _ in range(5):
        fail(standings)
        await trio.sleep(15.0)
    assert standings.state_of(ORDERS) is State.SECONDARY

    standings.probed(ORDERS)

    assert standings.begin_trial(ORDERS) is not None


async def test_a_new_outage_is_tried_as_soon_as_the_first(make):
    standings = make(failover_interval=60.0, trial_pause=Backoff(first=1.0, cap=64.0, jitter=0.0))
    for _ in range(2):
        fail(standings)
        for _ in range(3):
            await trio.sleep(10.0)
            trial = standings.begin_trial(ORDERS)
            standings.failed(trial, OUT)
        standings.sent(standings.begin(ORDERS))
    fail(standings)

    await trio.sleep(1.1)

    assert standings.begin_trial(ORDERS) is not None


async def test_a_trial_that_fails_after_the_recovery_is_the_first_failure_of_a_new_outage(make):
    standings = make(failover_interval=60.0, trial_pause=Backoff(first=1.0, cap=64.0, jitter=0.0))
    fail(standings)
    await trio.sleep(1.1)
    slow = standings.begin_trial(ORDERS)
    standings.sent(standings.begin(ORDERS))
    standings.failed(slow, OUT)

    await trio.sleep(1.1)

    assert standings.state_of(ORDERS) is State.SUSPECT
    assert standings.begin_trial(ORDERS) is not None


async def test_who_waits_waits_no_longer_than_they_said(make):
    standings = make(failover_interval=60.0)
    fail(standings)
    await trio.sleep(1.0)
    standings.begin_trial(ORDERS)
    started = trio.current_time()

    await standings.wait_verdict(ORDERS, 0.25)

    assert trio.current_time() - started == pytest.approx(0.25)


async def test_without_a_trial_there_is_nothing_to_wait_for(make):
    standings = make(failover_interval=60.0)
    fail(standings)
    started = trio.current_time()

    await standings.wait_verdict(ORDERS, 100.0)

    assert trio.current_time() == started


# A pause of the gateway


async def test_a_paused_gateway_throws_the_streak_away(make, nursery, events):
    standings = make(failover_interval=60.0)
    await nursery.start(standings.run)
    fail(standings)
    during = standings.begin(ORDERS)

    trio.lowlevel.current_clock().jump(100.0)
    standings.failed(during, OUT)

    assert standings.state_of(ORDERS) is State.PRIMARY
    assert len(events.of(LoopPaused)) == 1
    nursery.cancel_scope.cancel()


async def test_a_pause_matters_to_the_most_impatient_entity(make, nursery):
    rule = EntityRule(match="orders", failover_interval=0.0)
    standings = make(failover_interval=3600.0, entities=(rule,))
    await nursery.start(standings.run)
    during = standings.begin(ORDERS)

    trio.lowlevel.current_clock().jump(20.0)
    standings.failed(during, OUT)

    assert standings.state_of(ORDERS) is State.PRIMARY
    nursery.cancel_scope.cancel()


async def test_pauses_that_end_attempts_dont_add_up_to_an_outage(make, nursery):
    standings = make(failover_interval=30.0, attempt_timeout=10.0)
    await nursery.start(standings.run)

    for _ in range(2):
        during = standings.begin(ORDERS)
        trio.lowlevel.current_clock().jump(12.0)
        standings.failed(during, OUT)
        await trio.sleep(20.0)

    assert standings.state_of(ORDERS) is State.PRIMARY
    nursery.cancel_scope.cancel()


async def test_a_pause_is_noticed_without_a_failure_too(make, nursery, events):
    standings = make(failover_interval=10.0)
    await nursery.start(standings.run)
    fail(standings)

    trio.lowlevel.current_clock().jump(100.0)
    await wait_all_tasks_blocked()

    assert standings.state_of(ORDERS) is State.PRIMARY
    assert [round(event.seconds) for event in events.of(LoopPaused)] == [98]
    nursery.cancel_scope.cancel()


async def test_pauses_that_let_attempts_fail_are_no_outage_however_long_the_interval(make, nursery):
    standings = make(failover_interval=30.0, attempt_timeout=3.0)
    await nursery.start(standings.run)

    for _ in range(5):
        during = standings.begin(ORDERS)
        trio.lowlevel.current_clock().jump(10.0)
        standings.failed(during, OUT)

    assert standings.state_of(ORDERS) is State.PRIMARY
    nursery.cancel_scope.cancel()


async def test_a_pulse_that_is_a_little_late_is_no_pause(make, nursery, events):
    standings = make(failover_interval=60.0)
    await nursery.start(standings.run)
    fail(standings)

    trio.lowlevel.current_clock().jump(5.0)
    fail(standings)

    assert standings.state_of(ORDERS) is State.SUSPECT
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
    standings = make(failover_interval=60.0)
    await nursery.start(standings.run)

    trio.lowlevel.current_clock().jump(100.0)
    fail(standings)
    fail(standings)

    assert len(events.of(LoopPaused)) == 1
    nursery.cancel_scope.cancel()


async def test_who_doesnt_feel_the_pulse_notices_no_pause(make, nursery, events):
    standings = make(failover_interval=60.0)
    await nursery.start(standings.run)
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True), trio.move_on_after(1.0):
        await trio.sleep_forever()

    trio.lowlevel.current_clock().jump(100.0)
    fail(standings)

    assert events.of(LoopPaused) == []


# Operators


async def test_a_pinned_entity_stays_until_an_operator_says_so(make):
    standings = make(failover_interval=0.0)
    standings.force_over(ORDERS)

    standings.probed(ORDERS)
    standings.sent(standings.begin(ORDERS))
    fail(standings)
    pinned = standings.state_of(ORDERS)
    standings.force_back(ORDERS)

    assert pinned is State.PINNED
    assert standings.state_of(ORDERS) is State.PRIMARY


async def test_failback_while_the_primary_fails_starts_a_new_streak(make):
    standings = make(failover_interval=60.0)
    fail(standings)
    await trio.sleep(59.0)
    standings.force_over(ORDERS)
    standings.force_back(ORDERS)

    fail(standings)
    await trio.sleep(59.0)
    fail(standings)

    assert standings.state_of(ORDERS) is State.SUSPECT


async def test_failback_of_a_healthy_entity_changes_nothing(make, events):
    standings = make()

    standings.force_back(ORDERS)

    assert events.all == []


# Probes


async def test_a_probe_that_finds_the_entity_gone_is_shown(make):
    standings = make(failover_interval=0.0)
    fail(standings)
    version = standings.changes.version

    standings.found_unreachable(ORDERS, EntityNotFound("no orders here"))

    assert isinstance(standings.unreachable(ORDERS), EntityNotFound)
    assert "no orders here" in standings.troubled()[0].reason
    assert standings.changes.version > version


async def test_a_probe_that_is_answered_forgets_that_the_entity_was_gone(make):
    standings = make(failover_interval=0.0)
    fail(standings)
    standings.found_unreachable(ORDERS, EntityNotFound("gone"))

    standings.probed(ORDERS)

    assert standings.unreachable(ORDERS) is None


async def test_what_a_probe_says_of_an_entity_that_is_well_is_nothing(make, events):
    standings = make()

    standings.probed(ORDERS)
    standings.probe_failed(ORDERS, OUT)
    standings.found_unreachable(ORDERS, EntityNotFound("gone"))

    assert standings.troubled() == []
    assert standings.unreachable(ORDERS) is None


async def test_a_probe_that_finds_it_gone_closes_a_half_open_entity(make):
    standings = make(failover_interval=0.0)
    open_half(standings)

    standings.found_unreachable(ORDERS, EntityNotFound("gone"))

    assert standings.state_of(ORDERS) is State.SECONDARY


async def test_a_half_open_entity_is_probed_on(make):
    standings = make(failover_interval=0.0)
    open_half(standings)

    assert standings.failed_over() == [ORDERS]


async def test_an_operator_who_takes_it_back_forgets_that_it_was_gone(make):
    standings = make(failover_interval=0.0)
    fail(standings)
    standings.found_unreachable(ORDERS, EntityNotFound("gone"))

    standings.force_back(ORDERS)

    assert standings.unreachable(ORDERS) is None


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
async def test_what_is_failed_over_or_pinned_survives_a_restart(make, saved, restored):
    standings = make()

    standings.restore([Standing(entity=ORDERS, state=saved, since=START, reason="it was")])

    assert standings.state_of(ORDERS) is restored


async def test_all_that_was_saved_is_restored_and_told(make):
    standings = make()
    version = standings.changes.version
    saved = [
        Standing(entity=ORDERS, state=State.SUSPECT, since=START, reason="it was"),
        Standing(entity=BILLS, state=State.SECONDARY, since=START, reason="it was"),
    ]

    standings.restore(saved)

    assert standings.failed_over() == [BILLS]
    assert standings.changes.version > version


async def test_a_restored_standing_keeps_its_date_and_reason(make):
    standings = make()
    saved = Standing(entity=ORDERS, state=State.PINNED, since=START, reason="an operator")

    standings.restore([saved])

    assert standings.troubled() == [saved]


# Memory


async def test_an_entity_in_good_health_takes_no_memory(make, nursery):
    standings = make(failover_interval=60.0, send_timeout=30.0)
    await nursery.start(standings.run)
    fail(standings)
    standings.sent(standings.begin(ORDERS))

    await trio.sleep(65.0)

    assert standings._records == {}
    nursery.cancel_scope.cancel()


async def test_an_entity_is_remembered_while_an_attempt_from_before_may_answer(make, nursery):
    standings = make(failover_interval=60.0, send_timeout=30.0)
    await nursery.start(standings.run)
    fail(standings)
    standings.sent(standings.begin(ORDERS))

    await trio.sleep(55.0)

    assert len(standings._records) == 1
    nursery.cancel_scope.cancel()


async def test_an_attempt_outlives_what_was_remembered_of_its_entity(make, nursery):
    standings = make(failover_interval=0.0, successes_to_return=1)
    await nursery.start(standings.run)
    fail(standings)
    standings.probed(ORDERS)
    await trio.sleep(50.0)
    attempt = standings.begin(ORDERS)
    await trio.sleep(20.0)
    assert standings._records == {}

    standings.failed(attempt, OUT)

    assert standings.state_of(ORDERS) is State.SECONDARY
    nursery.cancel_scope.cancel()


async def test_an_entity_with_a_trial_on_its_way_is_remembered(make, nursery):
    standings = make(failover_interval=60.0)
    await nursery.start(standings.run)
    fail(standings)
    await trio.sleep(1.0)
    assert standings.begin_trial(ORDERS)
    standings.sent(standings.begin(ORDERS))

    await trio.sleep(100.0)

    assert len(standings._records) == 1
    nursery.cancel_scope.cancel()


async def test_the_memory_of_troubled_entities_is_bounded(make, monkeypatch):
    monkeypatch.setattr(module, "MAX_TROUBLED", 3)
    standings = make(failover_interval=0.0)

    for number in range(5):
        fail(standings, EntityPath(f"entity-{number}"))

    assert len(standings.troubled()) == 3
    assert standings.state_of(EntityPath("entity-4")) is State.PRIMARY


# What others see


async def test_each_change_is_told_once(make, events):
    standings = make(failover_interval=60.0)
    version = standings.changes.version

    fail(standings)
    fail(standings)

    assert events.all == [
        StandingChanged(entity=ORDERS, before="primary", after="suspect", reason="out")
    ]
    assert standings.changes.version == version + 1


async def test_case_of_a_name_is_ignored(make):
    standings = make(failover_interval=0.0)

    fail(standings, EntityPath("ORDERS"))

    assert standings.state_of(ORDERS) is State.SECONDARY


async def test_only_who_waits_for_a_probe_is_failed_over(make):
    standings = make(failover_interval=0.0)
    fail(standings)
    standings.force_over(BILLS)

    assert standings.failed_over() == [ORDERS]


async def test_the_first_rule_that_matches_counts():
    rules = (
        EntityRule(match="Orders/*", failover_interval=1.0),
        EntityRule(match="orders/new", failover_interval=2.0),
    )
    options = PairOptions(label=LABEL, failover_interval=3.0, entities=rules)

    assert entity_rule(EntityPath("orders/NEW"), rules) is rules[0]
    assert rule_for(EntityPath("orders/new"), options).interval == 1.0
    assert rule_for(ORDERS, options).interval == 3.0
