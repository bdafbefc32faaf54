import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.failover import TRANSITIONS, Failover, FailoverEvent, FailoverRule, State
from gateway.domain.health.flapping import Damping

RULE = FailoverRule(interval=60, successes_to_return=2)
AT_ONCE = FailoverRule(interval=0, successes_to_return=2)


def after(*events, rule=RULE, begin=None):
    """The state after those events: each (event, seconds), or an event at second 0."""
    state = begin or Failover()
    for entry in events:
        event, now = entry if isinstance(entry, tuple) else (entry, 0.0)
        state = state.advance(event, rule, now=now)
    return state


OVER = after(FailoverEvent.FAILED, rule=AT_ONCE)
HALF = after(FailoverEvent.PROBED, begin=OVER)


def test_the_table_is_complete():
    assert set(TRANSITIONS) == set(State)
    assert all(set(row) == set(FailoverEvent) for row in TRANSITIONS.values())


def test_an_entity_is_steady_after_three_seconds_of_successes():
    failed = after((FailoverEvent.FAILED, 20.0), begin=HALF, rule=AT_ONCE)

    assert [HALF.is_steady(now) for now in (0.0, 2.9, 3.0, 30.0)] == [False, False, True, True]
    assert not OVER.is_steady(30.0)
    assert not failed.is_steady(30.0)
    assert not Failover().is_steady(30.0)


class Flaps:
    """Counts, naively, the returns of an entity that lasted for too short a time."""

    def __init__(self):
        self.level, self.returned, self.well = 0, None, None

    def failed(self, now):
        if self.returned is not None and now - self.returned < 300:
            self.level = min(5, self.level + 1)
        elif self.well is not None:
            self.level = max(0, self.level - int((now - self.well) // 300))
        self.returned = self.well = None

    def back(self, now, *, by_asking):
        self.returned, self.well = now if by_asking else None, now

    def enough(self, rule, run, now):
        wanted = max(rule.successes_to_return, min(32, rule.successes_to_return * 2**self.level))
        proof = min(300, 20 * 2**self.level) if self.level else 0
        return len(run) >= wanted and now - run[0] >= proof


def naive(events, rule):
    """The state, by docs/explanation/semantics.md: from the whole list, without a table."""
    state, streak, run, last, flaps = "primary", [], [], None, Flaps()
    for event, now in events:
        if event is FailoverEvent.FORCED_OVER:
            state, streak, run, last, flaps = "pinned", [], [], None, Flaps()
        elif event is FailoverEvent.FORCED_BACK:
            state, streak, run, last, flaps = "primary", [], [], None, Flaps()
        elif state == "pinned":
            continue
        elif state in {"primary", "suspect"}:
            patience = max(300, rule.interval) if state == "primary" else rule.interval
            quiet = last is not None and now - last >= patience
            answered = event in {FailoverEvent.SENT, FailoverEvent.TRIAL_SENT, FailoverEvent.PAUSED}
            if answered or (event is FailoverEvent.REFUSED and quiet):
                if state == "suspect":
                    flaps.back(now, by_asking=False)
                state, streak, run, last = "primary", [], [], None
            elif event in {FailoverEvent.FAILED, FailoverEvent.SUSPECTED}:
                if state == "primary":
                    flaps.failed(now)
                decides = event is FailoverEvent.FAILED or state == "primary" or not quiet
                if quiet and decides:
                    streak = []
                state, run, last = "suspect", [], now if decides else last
                if event is FailoverEvent.FAILED:
                    streak.append(now)
                    if now - streak[0] >= rule.interval:
                        state, streak, last = "secondary", [], None
            elif event in PROBES and state == "suspect":
                run.append(now)
                if event is FailoverEvent.PROBED and flaps.enough(rule, run, now):
                    state, run = "primary", []
                    flaps.back(now, by_asking=True)
        elif event in {FailoverEvent.FAILED, FailoverEvent.PAUSED}:
            state, run = "secondary", []
        elif event in PROBES or (event is FailoverEvent.TRIAL_SENT and state == "half-open"):
            state = "half-open"
            run.append(now)
            if event is not FailoverEvent.PROBED_BESIDE and flaps.enough(rule, run, now):
                state, run = "primary", []
                flaps.back(now, by_asking=True)
    return state


PROBES = {FailoverEvent.PROBED, FailoverEvent.PROBED_BESIDE}
SAID = [event for event in FailoverEvent if event is not FailoverEvent.FAILED_TOO_LONG]
PAUSES = st.one_of(
    st.just(0.0), st.floats(0, 90), st.sampled_from([59.0, 60.0, 30.0, 299.0, 301.0])
)


@given(
    steps=st.lists(st.tuples(st.sampled_from(SAID), PAUSES), max_size=40),
    interval=st.sampled_from([0.0, 1.0, 60.0]),
    successes=st.integers(1, 4),
)
def test_the_table_equals_a_naive_model(steps, interval, successes):
    rule = FailoverRule(interval=interval, successes_to_return=successes)
    now, events = 0.0, []
    state = Failover()
    for event, pause in steps:
        now += pause
        events.append((event, now))
        state = state.advance(event, rule, now=now)

        assert state.state.value == naive(events, rule)


@pytest.mark.parametrize("interval", [0.0, 60.0])
@pytest.mark.parametrize("pause", [10.0, 30.0, 310.0])
def test_every_short_history_equals_the_naive_model(interval, pause):
    rule = FailoverRule(interval=interval, successes_to_return=2)

    for said in itertools.product(SAID, repeat=4):
        events = [(event, pause * number) for number, event in enumerate(said)]
        assert after(*events, rule=rule).state.value == naive(events, rule), said


def test_a_send_that_waits_does_not_go_on_with_a_streak_that_a_quiet_interval_has_ended():
    rule = FailoverRule(interval=60.0, successes_to_return=2)
    events = [
        (FailoverEvent.FAILED, 0.0),
        (FailoverEvent.PROBED, 30.0),
        (FailoverEvent.SUSPECTED, 61.0),
    ]

    more = [(FailoverEvent.FAILED, at) for at in (62.0, 100.0, 122.0)]

    assert after(*events, *more[:1], rule=rule).state is State.SUSPECT
    assert after(*events, *more, rule=rule).state is State.SECONDARY


LITTLE = [FailoverEvent.FAILED, FailoverEvent.PROBED, FailoverEvent.SUSPECTED]


@given(steps=st.lists(st.tuples(st.sampled_from(LITTLE), PAUSES), min_size=1))
def test_an_entity_fails_over_no_earlier_than_the_interval(steps):
    now, state, first = 0.0, Failover(), None
    # A second of failures after another, in the end, so that each history comes to a fail-over.
    for event, pause in [*steps, *[(FailoverEvent.FAILED, 1.0)] * (2 * int(RULE.interval))]:
        now += pause
        first = now if first is None and event is FailoverEvent.FAILED else first
        state = state.advance(event, RULE, now=now)
        if state.state is State.SECONDARY:
            break

    assert state.state is State.SECONDARY
    assert now - first >= RULE.interval


def test_one_error_and_silence_does_not_fail_over():
    assert after((FailoverEvent.FAILED, 0), (FailoverEvent.FAILED, 600)).state is State.SUSPECT


def test_an_attempt_that_hangs_is_no_silence():
    hung = after((FailoverEvent.FAILED, 0)).advance(FailoverEvent.FAILED, RULE, now=70, began=50)
    fresh = after((FailoverEvent.FAILED, 0)).advance(FailoverEvent.FAILED, RULE, now=70, began=60)

    assert hung.state is State.SECONDARY
    assert fresh.state is State.SUSPECT


def test_failures_over_the_whole_interval_fail_over():
    assert after(*[(FailoverEvent.FAILED, second) for second in (0, 30, 59)]).state is State.SUSPECT
    assert (
        after(*[(FailoverEvent.FAILED, second) for second in (0, 30, 60)]).state is State.SECONDARY
    )


def test_a_late_probe_does_not_hide_the_streak():
    probed = after(
        (FailoverEvent.FAILED, 0), (FailoverEvent.FAILED, 58), (FailoverEvent.PROBED, 58)
    )

    assert after((FailoverEvent.FAILED, 60), begin=probed).state is State.SECONDARY


def test_a_success_stops_the_clock():
    state = after(
        (FailoverEvent.FAILED, 0),
        (FailoverEvent.FAILED, 59),
        (FailoverEvent.SENT, 59),
        (FailoverEvent.FAILED, 70),
    )

    assert state.state is State.SUSPECT
    assert state.failing_since == 70


def test_an_answer_after_a_quiet_interval_ends_the_suspicion():
    assert after((FailoverEvent.FAILED, 0), (FailoverEvent.REFUSED, 60)).state is State.PRIMARY


def test_answers_between_failures_do_not_stop_the_clock():
    state = after(
        (FailoverEvent.FAILED, 0), (FailoverEvent.REFUSED, 20), (FailoverEvent.FAILED, 40)
    )

    assert (
        after((FailoverEvent.REFUSED, 59), (FailoverEvent.FAILED, 60), begin=state).state
        is State.SECONDARY
    )


def test_interval_zero_fails_over_at_the_first_failure():
    assert after(FailoverEvent.FAILED, rule=AT_ONCE).state is State.SECONDARY


@pytest.mark.parametrize("begin", [OVER, HALF])
def test_a_late_success_brings_nothing_back(begin):
    assert after(FailoverEvent.SENT, begin=begin) == begin


@pytest.mark.parametrize("begin", [Failover(), after(FailoverEvent.FAILED), OVER, HALF])
def test_an_operator_pins_an_entity_in_any_state(begin):
    assert after(FailoverEvent.FORCED_OVER, begin=begin) == Failover(state=State.PINNED)


@pytest.mark.parametrize(
    "event", [event for event in FailoverEvent if event is not FailoverEvent.FORCED_BACK]
)
def test_only_an_operator_takes_a_pinned_entity_back(event):
    pinned = after(FailoverEvent.FORCED_OVER)

    assert after(event, begin=pinned) == pinned
    assert after(FailoverEvent.FORCED_BACK, begin=pinned) == Failover()


def test_a_pause_of_the_gateway_throws_the_streak_away():
    state = after(
        (FailoverEvent.FAILED, 0), (FailoverEvent.FAILED, 50), (FailoverEvent.PAUSED, 600)
    )

    assert state == Failover()


@pytest.mark.parametrize("begin", [OVER, HALF])
def test_a_pause_of_the_gateway_brings_nothing_back(begin):
    assert after(FailoverEvent.PAUSED, begin=begin).state is State.SECONDARY


@pytest.mark.parametrize("successes", [1, 2, 5])
def test_an_entity_returns_after_that_many_successes(successes):
    rule = FailoverRule(interval=0, successes_to_return=successes)

    before = after(*[FailoverEvent.PROBED] * (successes - 1), begin=OVER, rule=rule)
    last = after(FailoverEvent.PROBED, begin=before, rule=rule)

    assert before.state is not State.PRIMARY
    assert last.state is State.PRIMARY
    assert last.is_healthy(rule, 301.0)


def test_a_failure_that_was_judged_already_is_judged_the_same():
    assert after(FailoverEvent.FAILED_TOO_LONG).state is State.SECONDARY
    assert after(FailoverEvent.FAILED_TOO_LONG, begin=HALF).state is State.SECONDARY


def test_a_minute_and_two_successes_are_the_usual_patience():
    assert FailoverRule() == FailoverRule(interval=60, successes_to_return=2)


@pytest.mark.parametrize("wrong", [{"interval": -0.1}, {"successes_to_return": 0}])
def test_a_rule_without_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FailoverRule(**wrong)


def test_one_success_may_be_enough():
    assert FailoverRule(successes_to_return=1).successes_to_return == 1


def test_probes_and_trials_count_together():
    assert after(FailoverEvent.TRIAL_SENT, begin=HALF).state is State.PRIMARY


def test_a_failure_closes_it_and_the_count_starts_anew():
    state = after(FailoverEvent.FAILED, FailoverEvent.PROBED, begin=HALF)

    assert state.state is State.HALF_OPEN
    assert state.successes == 1


def test_an_operators_return_starts_a_new_streak():
    state = after((FailoverEvent.FORCED_BACK, 100), (FailoverEvent.FAILED, 101), begin=OVER)

    assert state.state is State.SUSPECT
    assert state.failing_since == 101


# Suspect


def test_a_suspicion_is_no_failure():
    state = after((FailoverEvent.SUSPECTED, 0), (FailoverEvent.SUSPECTED, 59))

    assert state.state is State.SUSPECT
    assert state.failing_since is None
    assert after((FailoverEvent.FAILED, 60), begin=state).failing_since == 60


def test_a_suspicion_after_a_quiet_interval_hides_no_attempt_that_has_hung_since_before():
    state = after((FailoverEvent.FAILED, 0), (FailoverEvent.SUSPECTED, 65))
    hung = state.advance(FailoverEvent.FAILED, RULE, now=70, began=59)
    fresh = state.advance(FailoverEvent.FAILED, RULE, now=70, began=63)

    assert hung.state is State.SECONDARY
    assert fresh.failing_since == 70


def test_a_suspicion_fails_nothing_over_whatever_the_interval():
    assert after(FailoverEvent.SUSPECTED, rule=AT_ONCE).state is State.SUSPECT


def test_probes_in_a_row_since_the_last_failure_bring_a_suspect_entity_back():
    broken = after(
        FailoverEvent.FAILED, FailoverEvent.PROBED, FailoverEvent.FAILED, FailoverEvent.PROBED
    )

    assert broken.state is State.SUSPECT
    assert after(FailoverEvent.PROBED, begin=broken).state is State.PRIMARY


def test_after_a_return_by_probes_the_next_failure_goes_on_with_the_streak():
    back = after((FailoverEvent.FAILED, 0), (FailoverEvent.PROBED, 1), (FailoverEvent.PROBED, 2))

    assert back.state is State.PRIMARY
    assert after((FailoverEvent.FAILED, 60), begin=back).state is State.SECONDARY
    assert (
        after((FailoverEvent.SENT, 3), (FailoverEvent.FAILED, 60), begin=back).state
        is State.SUSPECT
    )


def test_a_streak_that_only_probes_have_ended_ends_after_five_minutes():
    back = after((FailoverEvent.FAILED, 0), (FailoverEvent.PROBED, 1), (FailoverEvent.PROBED, 2))

    assert after((FailoverEvent.FAILED, 299), begin=back).state is State.SECONDARY
    assert after((FailoverEvent.FAILED, 301), begin=back).state is State.SUSPECT
    assert not back.is_healthy(RULE, 299)
    assert back.is_healthy(RULE, 303)


@pytest.mark.parametrize("begin", [after(FailoverEvent.FAILED), OVER])
def test_probes_beside_a_trial_complete_no_return(begin):
    first = after(FailoverEvent.PROBED_BESIDE, begin=begin)
    beside = after(*[FailoverEvent.PROBED_BESIDE] * 5, begin=first)

    assert beside.state in {State.SUSPECT, State.HALF_OPEN}
    assert after(FailoverEvent.PROBED, begin=beside).state is State.PRIMARY


@pytest.mark.parametrize(
    ("events", "answered"),
    [
        ((FailoverEvent.FAILED,), False),
        ((FailoverEvent.FAILED, FailoverEvent.PROBED), True),
        ((FailoverEvent.FAILED, FailoverEvent.REFUSED), True),
        ((FailoverEvent.FAILED, FailoverEvent.PROBED, FailoverEvent.SUSPECTED), False),
        ((FailoverEvent.FAILED, FailoverEvent.PROBED, FailoverEvent.FAILED), False),
        ((FailoverEvent.FAILED, FailoverEvent.PROBED, FailoverEvent.REFUSED), True),
    ],
)
def test_a_suspect_entity_may_be_tried_when_the_newest_that_is_known_is_an_answer(events, answered):
    rule = FailoverRule(interval=60, successes_to_return=9)

    assert after(*events, rule=rule).answered is answered


def test_any_event_but_a_success_completes_no_return():
    half = after(FailoverEvent.PROBED_BESIDE, FailoverEvent.PROBED_BESIDE, begin=HALF)

    assert after(FailoverEvent.SUSPECTED, begin=half).state is State.HALF_OPEN
    assert after(FailoverEvent.REFUSED, begin=half).state is State.HALF_OPEN


AT_THE_FIRST = FailoverRule(interval=0, successes_to_return=1)


@pytest.mark.parametrize("event", [FailoverEvent.TRIAL_SENT, FailoverEvent.SENT])
def test_a_late_answer_returns_no_entity_though_one_success_is_enough(event):
    assert after(event, begin=OVER, rule=AT_THE_FIRST) == OVER


@pytest.mark.parametrize("event", [FailoverEvent.PROBED, FailoverEvent.TRIAL_SENT])
def test_a_success_returns_no_pinned_entity_though_one_is_enough(event):
    pinned = after(FailoverEvent.FORCED_OVER)

    assert after(event, begin=pinned, rule=AT_THE_FIRST) == pinned


def test_a_failure_of_a_suspect_entity_ends_the_time_of_its_successes():
    state = after(
        (FailoverEvent.FAILED, 100), (FailoverEvent.PROBED, 101), (FailoverEvent.FAILED, 102)
    )
    again = after((FailoverEvent.PROBED, 103), begin=state)

    assert (state.successes, state.succeeding_since) == (0, None)
    assert (again.successes, again.succeeding_since) == (1, 103)
    assert [again.is_steady(now) for now in (105.9, 106.0)] == [False, True]


def test_a_streak_ends_an_interval_after_its_first_failure():
    assert Failover().ends(RULE) is None
    assert after((FailoverEvent.FAILED, 100), (FailoverEvent.FAILED, 130)).ends(RULE) == 160


def test_an_entity_is_healthy_when_neither_its_streak_nor_its_flaps_matter():
    suspected = after((FailoverEvent.SUSPECTED, 1000))
    back = after((FailoverEvent.PROBED, 1001), (FailoverEvent.PROBED, 1002), begin=suspected)
    flapping = attrs.evolve(Failover(), damping=Damping(level=1, well_since=1000.0))

    assert [back.is_healthy(RULE, now) for now in (1299.9, 1302.0)] == [False, True]
    assert not attrs.evolve(suspected, last_failure=None).is_healthy(RULE, 9999.0)
    assert [flapping.is_healthy(RULE, now) for now in (1299.9, 1300.0)] == [False, True]


def test_a_streak_that_only_probes_have_ended_is_remembered_for_its_whole_time():
    state = attrs.evolve(Failover(), failing_since=1000.0, last_failure=1000.0)

    assert [state.is_healthy(RULE, now) for now in (1299.9, 1300.0)] == [False, True]


def test_each_moment_is_moved_to_the_clock_of_another_process():
    state = Failover(
        state=State.SUSPECT,
        failing_since=1.0,
        last_failure=2.0,
        successes=3,
        succeeding_since=4.0,
        damping=Damping(level=1, well_since=5.0),
    )

    assert state.shifted(100.0) == attrs.evolve(
        state,
        failing_since=101.0,
        last_failure=102.0,
        succeeding_since=104.0,
        damping=Damping(level=1, well_since=105.0),
    )
    assert Failover().shifted(100.0) == Failover()


def test_a_return_by_probes_alone_is_one_on_trial_and_a_send_makes_it_sure():
    suspect = after((FailoverEvent.FAILED, 100))
    probed = after((FailoverEvent.PROBED, 101), (FailoverEvent.PROBED, 102), begin=suspect)
    sent = after((FailoverEvent.SENT, 101), begin=suspect)
    flapped = after((FailoverEvent.FAILED, 103), begin=probed)

    trial = after((FailoverEvent.TRIAL_SENT, 101), begin=suspect)

    assert (probed.damping.on_trial, probed.damping.well_since) == (True, 102)
    assert sent.damping == trial.damping == Damping()
    assert flapped.damping.level == 1
    assert after((FailoverEvent.SENT, 104), begin=flapped).damping.well_since == 104
    assert after((FailoverEvent.FORCED_BACK, 104), begin=flapped).damping == Damping()


def test_more_successes_of_an_entity_that_is_back_change_nothing():
    back = after(
        (FailoverEvent.FAILED, 100), (FailoverEvent.PROBED, 101), (FailoverEvent.PROBED, 102)
    )

    assert after((FailoverEvent.SENT, 104), begin=back).damping == back.damping
    assert after((FailoverEvent.PROBED, 104), begin=back).damping == back.damping


def test_a_suspicion_shows_that_the_time_before_it_was_not_quiet():
    suspected = after((FailoverEvent.FAILED, 0), (FailoverEvent.SUSPECTED, 50))

    assert after((FailoverEvent.FAILED, 100), begin=suspected).state is State.SECONDARY


@pytest.mark.parametrize(
    ("event", "cause"),
    [(FailoverEvent.FAILED_TOO_LONG, "failed-too-long"), (FailoverEvent.SENT, "sent")],
)
def test_a_cause_has_the_name_of_its_event(event, cause):
    assert event.cause == cause


@pytest.mark.parametrize(
    "event",
    [
        event
        for event in FailoverEvent
        if event not in {*PROBES, FailoverEvent.FORCED_OVER, FailoverEvent.FORCED_BACK}
    ],
)
def test_only_probes_and_operators_move_an_entity_that_failed_over(event):
    assert after(event, begin=OVER).state is State.SECONDARY


def test_a_probe_beside_a_trial_ends_no_streak_either():
    back = after((FailoverEvent.FAILED, 0), (FailoverEvent.PROBED, 1), (FailoverEvent.PROBED, 2))
    beside = after((FailoverEvent.PROBED_BESIDE, 3), begin=back)

    assert after((FailoverEvent.FAILED, 60), begin=beside).state is State.SECONDARY


@pytest.mark.parametrize("event", [FailoverEvent.FORCED_OVER, FailoverEvent.FORCED_BACK])
def test_an_operator_makes_the_flaps_of_an_entity_forgotten(event):
    flapping = attrs.evolve(HALF, damping=Damping(level=3))

    assert after(event, begin=flapping).damping == Damping()


def test_an_entity_that_flapped_proves_itself_for_its_whole_time():
    half = attrs.evolve(HALF, successes=9, succeeding_since=1000.0, damping=Damping(level=1))
    states = [half.advance(FailoverEvent.PROBED, RULE, now=now).state for now in (1039.9, 1040.0)]

    assert states == [State.HALF_OPEN, State.PRIMARY]
