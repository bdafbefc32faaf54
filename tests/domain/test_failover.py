import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.failover import TRANSITIONS, Event, Failover, FailoverRule, State

RULE = FailoverRule(interval=60, successes_to_return=2)
AT_ONCE = FailoverRule(interval=0, successes_to_return=2)


def after(*events, rule=RULE, begin=None):
    """The standing after those events: each (event, seconds), or an event at second 0."""
    standing = begin or Failover()
    for entry in events:
        event, now = entry if isinstance(entry, tuple) else (entry, 0.0)
        standing = standing.advance(event, rule, now=now)
    return standing


OVER = after(Event.FAILED, rule=AT_ONCE)
HALF = after(Event.PROBED, begin=OVER)


def test_the_table_is_complete():
    assert set(TRANSITIONS) == set(State)
    assert all(set(row) == set(Event) for row in TRANSITIONS.values())


def naive(events, rule):
    """The standing, by product.md, sections 2 and 3: from the whole list, without a table."""
    state, streak, successes = "primary", [], 0
    for event, now in events:
        if event is Event.FORCED_OVER:
            state, streak = "pinned", []
        elif event is Event.FORCED_BACK:
            state, streak = "primary", []
        elif state == "pinned":
            continue
        elif state in {"primary", "suspect"}:
            quiet = bool(streak) and now - streak[-1] >= rule.interval
            answered = event in {Event.SENT, Event.TRIAL_SENT, Event.PAUSED}
            if answered or (event is Event.REFUSED and quiet):
                state, streak = "primary", []
            elif event is Event.FAILED:
                if quiet:
                    streak = []
                streak.append(now)
                over = now - streak[0] >= rule.interval
                state, streak = ("secondary", []) if over else ("suspect", streak)
        elif event in {Event.FAILED, Event.PAUSED}:
            state, successes = "secondary", 0
        elif event is Event.PROBED or (event is Event.TRIAL_SENT and state == "half-open"):
            successes = successes + 1 if state == "half-open" else 1
            state = "primary" if successes >= rule.successes_to_return else "half-open"
        if state == "primary":
            successes = 0
    return state


SAID = [event for event in Event if event is not Event.FAILED_TOO_LONG]
PAUSES = st.one_of(st.just(0.0), st.floats(0, 90), st.sampled_from([59.0, 60.0, 30.0]))


@given(
    steps=st.lists(st.tuples(st.sampled_from(SAID), PAUSES), max_size=40),
    interval=st.sampled_from([0.0, 1.0, 60.0]),
    successes=st.integers(1, 4),
)
def test_it_equals_a_naive_model(steps, interval, successes):
    rule = FailoverRule(interval=interval, successes_to_return=successes)
    now, events = 0.0, []
    standing = Failover()
    for event, pause in steps:
        now += pause
        events.append((event, now))
        standing = standing.advance(event, rule, now=now)

        assert standing.state.value == naive(events, rule)


@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_every_short_history_equals_the_naive_model(interval):
    rule = FailoverRule(interval=interval, successes_to_return=2)

    for said in itertools.product(SAID, repeat=4):
        events = [(event, 30.0 * number) for number, event in enumerate(said)]
        assert after(*events, rule=rule).state.value == naive(events, rule), said


@given(steps=st.lists(st.tuples(st.sampled_from([Event.FAILED, Event.PROBED]), PAUSES), min_size=1))
def test_it_fails_over_no_earlier_than_the_interval(steps):
    now, standing, first = 0.0, Failover(), None
    for event, pause in steps:
        now += pause
        first = now if first is None and event is Event.FAILED else first
        standing = standing.advance(event, RULE, now=now)
        if standing.state is State.SECONDARY:
            assert now - first >= RULE.interval
            return


def test_one_error_and_silence_does_not_fail_over():
    assert after((Event.FAILED, 0), (Event.FAILED, 600)).state is State.SUSPECT


def test_an_attempt_that_hangs_is_no_silence():
    hung = after((Event.FAILED, 0)).advance(Event.FAILED, RULE, now=70, began=50)
    fresh = after((Event.FAILED, 0)).advance(Event.FAILED, RULE, now=70, began=60)

    assert hung.state is State.SECONDARY
    assert fresh.state is State.SUSPECT


def test_failures_over_the_whole_interval_fail_over():
    assert after(*[(Event.FAILED, second) for second in (0, 30, 59)]).state is State.SUSPECT
    assert after(*[(Event.FAILED, second) for second in (0, 30, 60)]).state is State.SECONDARY


def test_a_late_probe_does_not_hide_the_streak():
    probed = after((Event.FAILED, 0), (Event.FAILED, 58), (Event.PROBED, 58))

    assert after((Event.FAILED, 60), begin=probed).state is State.SECONDARY


def test_a_success_stops_the_clock():
    standing = after((Event.FAILED, 0), (Event.FAILED, 59), (Event.SENT, 59), (Event.FAILED, 70))

    assert standing.state is State.SUSPECT
    assert standing.failing_since == 70


def test_an_answer_after_a_quiet_interval_ends_the_suspicion():
    assert after((Event.FAILED, 0), (Event.REFUSED, 60)).state is State.PRIMARY


def test_answers_between_failures_do_not_stop_the_clock():
    standing = after((Event.FAILED, 0), (Event.REFUSED, 20), (Event.FAILED, 40))

    assert after((Event.REFUSED, 59), (Event.FAILED, 60), begin=standing).state is State.SECONDARY


def test_interval_zero_fails_over_at_the_first_failure():
    assert after(Event.FAILED, rule=AT_ONCE).state is State.SECONDARY


@pytest.mark.parametrize("begin", [OVER, HALF])
def test_a_late_success_brings_nothing_back(begin):
    assert after(Event.SENT, begin=begin) == begin


@pytest.mark.parametrize("event", [event for event in Event if event is not Event.FORCED_BACK])
def test_only_an_operator_takes_a_pinned_entity_back(event):
    pinned = after(Event.FORCED_OVER)

    assert after(event, begin=pinned) == pinned
    assert after(Event.FORCED_BACK, begin=pinned) == Failover()


def test_a_pause_of_the_gateway_throws_the_streak_away():
    standing = after((Event.FAILED, 0), (Event.FAILED, 50), (Event.PAUSED, 600))

    assert standing == Failover()


@pytest.mark.parametrize("begin", [OVER, HALF])
def test_a_pause_of_the_gateway_brings_nothing_back(begin):
    assert after(Event.PAUSED, begin=begin).state is State.SECONDARY


@pytest.mark.parametrize("successes", [1, 2, 5])
def test_it_returns_after_that_many_successes(successes):
    rule = FailoverRule(interval=0, successes_to_return=successes)

    before = after(*[Event.PROBED] * (successes - 1), begin=OVER, rule=rule)
    last = after(Event.PROBED, begin=before, rule=rule)

    assert before.state is not State.PRIMARY
    assert last == Failover()


def test_a_failure_that_was_judged_already_is_judged_the_same():
    assert after(Event.FAILED_TOO_LONG).state is State.SECONDARY
    assert after(Event.FAILED_TOO_LONG, begin=HALF).state is State.SECONDARY


def test_a_minute_and_two_successes_are_the_usual_patience():
    assert FailoverRule() == FailoverRule(interval=60, successes_to_return=2)


@pytest.mark.parametrize("wrong", [{"interval": -0.1}, {"successes_to_return": 0}])
def test_a_rule_without_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FailoverRule(**wrong)


def test_one_success_may_be_enough():
    assert FailoverRule(successes_to_return=1).successes_to_return == 1


def test_probes_and_trials_count_together():
    assert after(Event.TRIAL_SENT, begin=HALF) == Failover()


def test_a_failure_closes_it_and_the_count_starts_anew():
    standing = after(Event.FAILED, Event.PROBED, begin=HALF)

    assert standing.state is State.HALF_OPEN
    assert standing.successes == 1


def test_an_operators_return_starts_a_new_streak():
    standing = after((Event.FORCED_BACK, 100), (Event.FAILED, 101), begin=OVER)

    assert standing.state is State.SUSPECT
    assert standing.failing_since == 101
