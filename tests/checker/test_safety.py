"""Each bound of S5 to S11, which no run may break."""

import attrs
import pytest

from gateway.checker.history import (
    BUSY,
    End,
    FaultBegan,
    FaultEnded,
    FaultTarget,
    Killed,
    Paused,
    Run,
    Sampled,
    Settled,
    Swallowed,
    VolumeLost,
    Way,
)
from gateway.checker.judgements import Validity
from gateway.checker.operations import Acked, Invoked
from gateway.checker.safety import (
    failovers,
    inflight_bound,
    isolation,
    outside_bound,
    power_cuts,
    settled_after,
)
from gateway.checker.verdict import Finding, Verdict, Violation
from gateway.domain.failover import State
from tests.chaos.invariants import BEGAN, attempt, moved

P, S, B, H = State.PRIMARY, State.SUSPECT, State.SECONDARY, State.HALF_OPEN
HOLDS, BROKEN, IDLE = Validity.HOLDS, Validity.BROKEN, Validity.IDLE


def run_of(*records):
    """The interval is ten seconds, the slack one."""
    return Run.of([BEGAN, *records])


def fault(at, until, *entities, target=FaultTarget.PRIMARY, kind="kill"):
    covered = frozenset(entities) or None
    began = FaultBegan(at=at, fault=f"{at}", kind=kind, target=target, entities=covered)
    return [began, FaultEnded(at=until, fault=f"{at}")]


# --- S5


@pytest.mark.parametrize("target", FaultTarget, ids=lambda target: target.value)
def test_an_entity_leaves_the_primary_for_faults_on_the_way_to_it(target):
    reaches = target in {FaultTarget.PRIMARY, FaultTarget.GATEWAY, FaultTarget.HOST}
    run = run_of(*fault(50, 60, target=target), moved(55, P, S))

    assert isolation(run).validity is (HOLDS if reaches else BROKEN)


def test_a_fault_reaches_an_entity_from_its_first_moment_on():
    assert isolation(run_of(*fault(50, 60), moved(50, P, S))).validity is HOLDS
    assert isolation(run_of(*fault(50, 60), moved(49.9, P, S))).validity is BROKEN


def test_a_fault_reaches_an_entity_until_it_must_be_back():
    assert isolation(run_of(*fault(50, 60), moved(83, P, S))).validity is HOLDS
    assert isolation(run_of(*fault(50, 60), moved(83.1, P, S))).validity is BROKEN


def test_the_fault_of_another_entity_makes_it_suspect_and_never_more():
    faults = fault(50, 60, "invoices")
    suspected = moved(55, P, S)

    assert isolation(run_of(*faults, suspected)).validity is HOLDS
    assert isolation(run_of(*faults, suspected, moved(58, S, B))).validity is BROKEN
    assert isolation(run_of(*faults, moved(55, P, B))).validity is BROKEN


def test_one_fault_that_reached_it_is_enough():
    faults = [*fault(40, 45, "invoices"), *fault(50, 60, "orders")]

    assert isolation(run_of(*faults, moved(55, P, S))).validity is HOLDS


@pytest.mark.parametrize(
    ("other", "validity"),
    [
        (attempt(90, End.UNKNOWN, entity="invoices"), HOLDS),
        (attempt(90, End.ACCEPTED, entity="invoices"), BROKEN),
        (attempt(59, End.ACCEPTED, entity="invoices"), BROKEN),
        (attrs.evolve(attempt(90, End.UNKNOWN), process="another"), BROKEN),
        (attempt(90, End.UNKNOWN, entity="invoices", way=Way.BACKLOG), BROKEN),
    ],
    ids=["silence", "an answer", "nothing since", "another gateway", "another way"],
)
def test_a_fault_reaches_an_entity_as_long_as_its_gateway_is_without_an_answer(other, validity):
    assert isolation(run_of(*fault(50, 60), other, moved(100, P, S))).validity is validity


def test_a_failover_by_an_operator_or_of_an_entity_that_had_left_before_is_not_judged():
    decision = isolation(run_of(moved(50, P, State.PINNED), moved(70, H, B)))

    assert decision.validity is IDLE


# --- S6


def verdict_of(duplicated=0, lost=()):
    findings = tuple(Finding(Violation.LOST, each, "") for each in lost)
    return Verdict(undecided=(), findings=findings, counts={"duplicated": duplicated})


def sent(message, at=1):
    return Invoked(at=at, message_id=message, entity="orders", fingerprint="f")


EXPLAINED = [
    sent("1"),
    sent("2"),
    sent("2", 2),  # once more
    Swallowed(at=3, messages=4),
    Killed(at=4, process="gateway", in_flight=8),
]


@pytest.mark.parametrize(("duplicated", "validity"), [(13, HOLDS), (14, BROKEN)])
def test_extra_copies_are_sent_again_swallowed_or_were_in_the_hands_of_the_killed(
    duplicated, validity
):
    assert outside_bound(run_of(*EXPLAINED), verdict_of(duplicated)).validity is validity


def test_a_process_that_was_killed_with_nothing_in_its_hands_explains_no_copy():
    killed = Killed(at=4, process="gateway")

    assert outside_bound(run_of(sent("1"), killed), verdict_of(1)).validity is BROKEN


def test_where_nothing_was_sent_no_copy_could_be_too_many():
    nothing = attrs.evolve(verdict_of(), counts={})

    assert outside_bound(run_of(), nothing).validity is IDLE


# --- S7

CUT = Killed(at=50, process="primary", power_cut=True)


def acked(message, at):
    return Acked(at=at, message_id=message)


@pytest.mark.parametrize(("at", "validity"), [(50, BROKEN), (50.1, IDLE)])
def test_a_message_that_was_acknowledged_before_a_cut_survives_it(at, validity):
    assert power_cuts(run_of(acked("1", at), CUT), verdict_of(lost=["1"])).validity is validity


def test_the_last_cut_counts():
    cuts = [CUT, attrs.evolve(CUT, at=70)]

    assert power_cuts(run_of(acked("1", 60), *cuts), verdict_of(lost=["1"])).validity is BROKEN


def test_a_process_that_was_only_killed_keeps_what_its_disk_has():
    killed = Killed(at=50, process="primary")

    assert power_cuts(run_of(acked("1", 1), killed), verdict_of(lost=["1"])).validity is IDLE


def test_only_what_is_lost_did_not_survive():
    found = attrs.evolve(verdict_of(), findings=(Finding(Violation.CORRUPT, "1", ""),))

    assert power_cuts(run_of(acked("1", 1), acked("2", 2), CUT), found).judged == 2
    assert power_cuts(run_of(acked("1", 1), CUT), found).validity is HOLDS


# --- S8


def settled(at, copy, queue="b"):
    return Settled(at=at, process="syphon", queue=queue, copy=copy, message_id="1")


def transfer(at, end=End.ACCEPTED, way=Way.SYPHON):
    return attempt(at, end, way=way)


@pytest.mark.parametrize(
    ("records", "validity"),
    [
        ([transfer(1), settled(2, "1")], HOLDS),
        ([transfer(1, End.UNKNOWN), settled(2, "1")], BROKEN),
        ([transfer(1, way=Way.PRIMARY), settled(2, "1")], BROKEN),
        ([transfer(1), settled(2, "1"), settled(3, "1")], HOLDS),
        ([transfer(1), settled(2, "1"), settled(3, "2")], BROKEN),
        ([transfer(1), settled(2, "1"), settled(3, "1", queue="c")], BROKEN),
        ([transfer(1), transfer(2), settled(3, "1"), settled(3, "2")], HOLDS),
        ([transfer(1)], IDLE),
    ],
    ids=[
        "once",
        "unknown",
        "not by a syphon",
        "told twice",
        "two copies",
        "two queues",
        "each its own",
        "none",
    ],
)
def test_each_copy_that_is_settled_had_an_accepted_transfer(records, validity):
    assert settled_after(run_of(*records)).validity is validity


# --- S9 and S10: by a gateway's attempts


def causes(*records):
    return failovers(run_of(*records))[0].validity


def times(*records):
    return failovers(run_of(*records))[1].validity


@pytest.mark.parametrize(("at", "validity"), [(59, HOLDS), (58.9, BROKEN)])
def test_an_entity_fails_over_after_its_interval(at, validity):
    assert times(attempt(50), moved(50, P, S), attempt(at), moved(at, S, B)) is validity


@pytest.mark.parametrize(("last", "validity"), [(61, IDLE), (61.1, BROKEN)])
def test_an_entity_that_failed_for_its_interval_fails_over_then(last, validity):
    assert times(attempt(50), attempt(55), attempt(60), attempt(last)) is validity


def test_the_interval_must_be_over_at_a_failure():
    assert times(attempt(50), attempt(55), attempt(59.9), attempt(60.5)) is IDLE


def test_a_silence_of_an_interval_begins_anew():
    assert times(attempt(50), attempt(60), attempt(65), attempt(68)) is IDLE
    assert times(attempt(50), attempt(59), attempt(65), attempt(68)) is BROKEN


@pytest.mark.parametrize(("began", "validity"), [(61, HOLDS), (61.1, BROKEN)])
def test_one_failure_before_a_silence_and_one_after_it_are_no_outage(began, validity):
    second = attempt(62, began=began)

    assert times(attempt(50), moved(50, P, S), second, moved(62, S, B)) is validity


def test_an_attempt_that_may_have_counted_breaks_the_silence():
    failures = [attempt(50), attempt(55, End.CUT_OFF), attempt(65)]

    assert times(*failures, moved(65, P, B)) is HOLDS


def test_an_attempt_that_had_begun_before_is_no_silence():
    assert times(attempt(50), attempt(60, began=51), attempt(65)) is BROKEN


@pytest.mark.parametrize("end", [End.BUSY, End.REFUSED])
def test_an_error_that_never_counts_neither_causes_nor_demands_a_failover(end):
    failures = [attempt(at, end) for at in (50, 55, 60, 65)]

    assert times(*failures) is IDLE
    assert causes(*failures, moved(65, P, B)) is BROKEN


def test_an_unknown_outcome_counts_as_an_outage_does():
    failures = [attempt(at, End.UNKNOWN) for at in (50, 55, 60, 65)]

    assert times(*failures) is BROKEN
    assert causes(*failures, moved(65, P, B)) is HOLDS


def test_an_attempt_that_was_cut_off_excuses_a_failover_and_demands_none():
    failures = [attempt(at, End.CUT_OFF) for at in (50, 55, 60, 65)]

    assert times(*failures) is IDLE
    assert causes(*failures, moved(65, P, B)) is HOLDS


@pytest.mark.parametrize(("began", "validity"), [(60, IDLE), (59.9, BROKEN)])
def test_an_attempt_that_was_cut_off_after_a_silence_may_have_begun_anew(began, validity):
    hung = attempt(62, began=55)  # the gateway hears of it after the other, which began later

    cut_off = attempt(61, End.CUT_OFF, began=began)
    assert times(attempt(50), cut_off, hung, attempt(64, began=62)) is validity


@pytest.mark.parametrize(("began", "validity"), [(60, IDLE), (59.9, BROKEN)])
def test_another_entitys_probe_after_a_silence_may_have_begun_anew(began, validity):
    hung = attempt(62, began=55)
    probe = attempt(61, began=began, way=Way.PROBE, entity="invoices")

    assert times(attempt(50), moved(50, P, S), probe, hung, attempt(64, began=62)) is validity


def test_an_attempt_that_was_cut_off_carries_no_streak_on():
    assert times(attempt(50), attempt(55, End.CUT_OFF), attempt(61), attempt(65)) is IDLE


@pytest.mark.parametrize(("last", "validity"), [(61, IDLE), (61.1, BROKEN)])
def test_an_attempt_that_was_cut_off_shows_who_stayed(last, validity):
    overdue = [attempt(50), attempt(55), attempt(60)]

    assert times(*overdue, attempt(last, End.CUT_OFF)) is validity


@pytest.mark.parametrize("way", [Way.BACKLOG, Way.SPOOL, Way.SYPHON])
def test_only_sends_to_the_primary_count(way):
    assert causes(attempt(50, way=way), moved(60, P, B)) is BROKEN


@pytest.mark.parametrize(("began", "validity"), [(51.7, HOLDS), (51.8, BROKEN)])
def test_a_syphons_trial_without_an_answer_counts_before_it_ends(began, validity):
    trial = attempt(90, End.UNKNOWN, way=Way.SYPHON, began=began)
    hung = attrs.evolve(trial, process="syphon in gateway")

    assert times(moved(50, P, S), moved(62, S, B), hung) is validity
    assert causes(moved(50, P, S), moved(62, S, B)) is BROKEN


def test_a_syphons_trial_counts_as_long_as_it_may_have_waited():
    bounds = attrs.evolve(BEGAN.bounds, trial=20.0)
    trial = attempt(90, End.ACCEPTED, way=Way.SYPHON, began=51)
    hung, late = attrs.evolve(trial, process="syphon in gateway"), attempt(85, began=80)
    run = Run.of([attrs.evolve(BEGAN, bounds=bounds), moved(50, P, S), late, moved(85, S, B), hung])

    assert failovers(run)[1].validity is HOLDS
    assert times(moved(50, P, S), late, moved(85, S, B), hung) is BROKEN


def test_a_success_ends_the_streak():
    well = attempt(57, End.ACCEPTED)

    assert times(attempt(50), attempt(55), well, attempt(60), attempt(62)) is IDLE
    assert causes(attempt(50), attempt(55), well, moved(60, P, B)) is BROKEN


def test_each_entity_and_each_gateway_has_a_streak_of_its_own():
    other = attrs.evolve(moved(60, P, B), process="other")

    assert causes(attempt(50), moved(60, P, B, "invoices")) is BROKEN
    assert causes(attempt(50), other) is BROKEN


@pytest.mark.parametrize(("began", "validity"), [(61, HOLDS), (61.1, BROKEN)])
def test_a_failure_before_a_silence_excuses_no_failover(began, validity):
    assert times(attempt(50), attempt(62, began=began), moved(62, P, B)) is validity


def test_the_latest_of_several_failures_ends_a_silence():
    hung, late = attempt(59, began=41), attempt(70, began=69)

    assert times(attempt(50), hung, late, moved(70, P, B)) is HOLDS
    assert times(attempt(50), attempt(57), late, moved(70, P, B)) is BROKEN


def test_an_attempt_that_was_cut_off_after_a_silence_may_have_ended_nothing():
    cut_off, hung = attempt(61.5, End.CUT_OFF, began=61.2), attempt(62, began=55)

    assert times(attempt(50), cut_off, hung, moved(62, P, B)) is HOLDS
    assert times(attempt(50), attempt(61.5, began=61.2), hung, moved(62, P, B)) is BROKEN


def test_half_open_goes_back_without_an_interval():
    back = [moved(80, B, H), attempt(81), moved(81, H, B)]

    assert times(attempt(50), attempt(60), moved(60, P, B), *back) is HOLDS


def test_an_entity_that_is_failed_over_need_not_fail_over():
    over = [attempt(50), attempt(60), moved(60, P, B)]

    assert times(*over, *(attempt(at) for at in (65, 70, 75, 80))) is HOLDS


def test_an_attempt_begun_before_an_entity_came_back_says_nothing():
    over = [attempt(50), attempt(60), moved(60, P, B), moved(80, B, P)]
    before = [attempt(at, began=80) for at in (81, 86, 91, 93)]
    after = [attempt(at, began=80.1) for at in (81, 86, 91, 93)]

    assert times(*over, *before) is HOLDS
    assert times(*over, *after) is BROKEN


def test_an_entity_that_came_back_by_a_send_has_no_streak():
    back = [attempt(50), moved(50, P, S), attempt(55, End.ACCEPTED), moved(55, S, P)]

    assert causes(*back, moved(61, P, B)) is BROKEN


def test_an_entity_that_only_probes_brought_back_goes_on_with_its_streak():
    back = [attempt(50), moved(50, P, S), moved(55, S, P)]

    assert times(*back, attempt(62, began=61.5), moved(62, P, B)) is HOLDS


def test_to_become_a_suspect_ends_no_streak():
    assert times(attempt(50), moved(50, P, S), attempt(55), attempt(60), attempt(62)) is BROKEN


def test_a_gateway_that_stood_still_demands_nothing_of_before():
    paused = Paused(at=58, process="gateway")

    assert times(attempt(50), attempt(55), paused, attempt(60), attempt(62)) is IDLE
    assert times(attempt(50), paused, *(attempt(at, began=57) for at in (59, 69, 71))) is IDLE
    assert times(attempt(50), paused, *(attempt(at, began=59) for at in (59, 69, 71))) is BROKEN


def test_a_gateway_that_stood_still_may_fail_over_for_what_was_before():
    assert times(attempt(50), Paused(at=55, process="gateway"), moved(60, P, B)) is HOLDS


def test_a_pause_or_a_death_holds_for_entities_that_come_later_too():
    paused = Paused(at=58, process="gateway")
    late = [attempt(at, began=57) for at in (59, 64, 69, 71)]

    assert times(paused, *late) is IDLE


def test_a_killed_gateway_knows_nothing_of_before():
    killed = Killed(at=55, process="gateway")

    assert causes(attempt(50), killed, moved(60, P, B)) is BROKEN
    assert times(attempt(50), killed, *(attempt(at) for at in (56, 61, 66, 68))) is IDLE


def test_a_killed_gateway_is_judged_again_once_it_says_where_an_entity_stands():
    killed, stands = Killed(at=55, process="gateway"), moved(56, B, P)
    failures = [attempt(at) for at in (57, 62, 67, 69)]

    assert times(attempt(50), killed, stands, *failures) is BROKEN


def test_a_problem_says_after_which_time_an_entity_failed_over():
    early = [attempt(50), moved(57.5, P, B)]
    seen = [*fault(50, 100), *fault(52, 100), moved(57.5, P, B)]
    expected = ("orders failed over at 57.500, after 7.500 s",)

    assert failovers(run_of(*early))[1].problems == expected
    assert failovers(run_of(*seen))[1].problems == expected


# --- S9 and S10: from outside, where no gateway records its attempts


@pytest.mark.parametrize(("at", "validity"), [(121, HOLDS), (121.1, BROKEN)])
def test_a_fault_is_felt_for_an_interval_and_an_attempt_after_its_end(at, validity):
    assert causes(*fault(50, 100), moved(at, P, B)) is validity


@pytest.mark.parametrize(("at", "validity"), [(59, HOLDS), (58.9, BROKEN)])
def test_from_outside_too_an_entity_fails_over_after_its_interval(at, validity):
    assert times(*fault(50, 100), moved(at, P, B)) is validity


@pytest.mark.parametrize(("at", "validity"), [(54, HOLDS), (45, BROKEN), (56, BROKEN)])
def test_a_primary_that_comes_back_empty_is_left_before_the_interval_is_over(at, validity):
    assert times(*fault(50, 100), VolumeLost(at=at, since=at), moved(55, P, B)) is validity


def test_of_several_faults_the_first_counts():
    assert times(*fault(50, 100), *fault(58, 100), moved(60, P, B)) is HOLDS


@pytest.mark.parametrize(
    "wrong",
    [fault(50, 100, "invoices"), fault(50, 100, kind=BUSY), fault(61, 100),
     fault(50, 100, target=FaultTarget.SECONDARY)],
    ids=["of another entity", "busy", "later", "of the secondary"],
)  # fmt: skip
def test_other_faults_explain_no_failover(wrong):
    assert causes(*wrong, moved(60, P, B)) is BROKEN


# --- S11


def sampled(inflight):
    return Sampled(at=5, process="gateway", inflight=inflight)


def test_the_bytes_in_flight_have_a_bound_at_each_moment():
    assert inflight_bound(run_of(sampled(1000), sampled(999))).validity is HOLDS
    assert inflight_bound(run_of(sampled(1001), sampled(999))).validity is BROKEN


def test_a_bound_that_nobody_sampled_is_undecided():
    assert inflight_bound(run_of()).validity is Validity.UNDECIDED
