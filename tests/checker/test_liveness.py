"""Each bound of liveness once the faults are over, also bounds that can't be decided."""

import attrs
import pytest

from gateway.checker.history import (
    Bounds,
    DeadLettered,
    Drained,
    End,
    FaultBegan,
    FaultEnded,
    FaultTarget,
    Healed,
    Killed,
    Run,
    RunBegan,
    Sampled,
    Settled,
    Unconfirmed,
    Way,
)
from gateway.checker.judgements import Validity
from gateway.checker.liveness import (
    backlog_drains,
    entities_return,
    no_long_stall,
    nobody_delays_others,
    quiescence,
    sends_return,
)
from gateway.checker.operations import Acked, AuditBegan, Failed, Invoked, Unknown
from gateway.domain.backlog import QUEUE_PROPERTIES
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.extensions.order.watch import ANSWER_LIMIT, LATER
from gateway.pairing.options import PairOptions, SyphonOptions
from tests.chaos.invariants import BEGAN, attempt, moved

P, B = State.PRIMARY, State.SECONDARY
HOLDS, BROKEN, IDLE, UNDECIDED = Validity.HOLDS, Validity.BROKEN, Validity.IDLE, Validity.UNDECIDED
HEALED = Healed(at=300, backlog=0)  # an entity is back by 323, the backlog empty by 351
AUDIT = AuditBegan(at=500, queues=frozenset({"orders"}))


def run_of(*records):
    return Run.of([BEGAN, *records])


def fault(at, until, *entities, target=FaultTarget.PRIMARY, kind="kill"):
    name = f"{target.value} {at} {entities}"
    covered = frozenset(entities) or None
    began = FaultBegan(at=at, fault=name, kind=kind, target=target, entities=covered)
    return [began, FaultEnded(at=until, fault=name)]


def send(at, message, answered, answer=Acked, entity="orders", **told):
    sent = Invoked(at=at, message_id=message, entity=entity, fingerprint="f")
    return [sent, answer(at=answered, message_id=message, **told)]


# --- L1


def test_where_no_answer_says_who_accepted_nobody_knows_which_way_a_send_went():
    decision = sends_return(run_of(HEALED, *send(330, "1", 330), AUDIT))

    assert (decision.validity, decision.judged) == (UNDECIDED, 0)


def test_one_answer_that_says_who_accepted_is_enough():
    sends = [*send(330, "1", 330), *send(331, "2", 331, accepted_by=AcceptedBy.PRIMARY)]

    decision = sends_return(run_of(HEALED, *sends, AUDIT))

    assert (decision.validity, decision.judged) == (HOLDS, 2)


def test_only_sends_that_begin_late_enough_must_reach_the_primary():
    early = send(322.9, "1", 330, accepted_by=AcceptedBy.BACKLOG)
    late = send(323, "2", 330, accepted_by=AcceptedBy.PRIMARY)

    decision = sends_return(run_of(HEALED, *early, *late, AUDIT))

    assert (decision.validity, decision.judged) == (HOLDS, 1)


@pytest.mark.parametrize(
    ("kind", "ended", "begin"),
    [("busy", 287, 323), ("busy", 295, 330), ("kill", 295, 323)],
)
def test_a_busy_primary_is_heeded_for_a_while(kind, ended, begin):
    early = send(begin - 0.1, "1", 330, accepted_by=AcceptedBy.BACKLOG)
    busy = [*fault(200, 210, kind="busy"), *fault(280, ended, kind=kind)]

    in_time = sends_return(
        run_of(HEALED, *busy, *early, *send(begin, "2", 330, accepted_by=AcceptedBy.PRIMARY), AUDIT)
    )
    late = sends_return(
        run_of(HEALED, *busy, *early, *send(begin, "2", 330, accepted_by=AcceptedBy.BACKLOG), AUDIT)
    )

    assert (in_time.validity, in_time.judged) == (HOLDS, 1)
    assert (late.validity, late.judged) == (BROKEN, 1)


# --- L2


@pytest.mark.parametrize("after", [State.PRIMARY, State.PINNED])
def test_an_entity_is_back_on_the_primary_or_where_an_operator_put_it(after):
    run = run_of(moved(60, P, B), HEALED, moved(310, B, after), AUDIT)

    assert entities_return(run).validity is HOLDS


@pytest.mark.parametrize("state", [State.SECONDARY, State.HALF_OPEN])
def test_each_entity_that_is_failed_over_at_the_healing_must_come_back(state):
    assert entities_return(run_of(moved(60, P, state), HEALED, AUDIT)).validity is BROKEN


def test_a_suspect_must_be_back_in_time_too():
    suspect = moved(60, P, State.SUSPECT)

    assert entities_return(run_of(suspect, HEALED, AUDIT)).validity is BROKEN
    back = moved(301, State.SUSPECT, P)
    assert entities_return(run_of(suspect, HEALED, back, AUDIT)).validity is HOLDS


def test_an_entity_that_fails_over_after_the_healing_is_judged_by_other_rules():
    run = run_of(moved(60, P, B), moved(301, B, P), HEALED, moved(302, P, B), AUDIT)

    decision = entities_return(run)

    assert (decision.validity, decision.judged) == (HOLDS, 1)


def test_a_gateway_that_was_killed_takes_its_own_entity_states_along():
    other = attrs.evolve(moved(60, P, B), process="other")
    killed = Killed(at=70, process="gateway")

    decision = entities_return(run_of(moved(60, P, B), other, killed, HEALED, AUDIT))

    assert decision.judged == 1
    assert decision.problems == ("orders isn't back in other at 323.000",)


def test_an_entity_that_came_back_before_the_healing_was_not_out():
    back = [moved(60, P, B), moved(290, B, P)]

    assert entities_return(run_of(*back, HEALED, AUDIT)).validity is IDLE


def test_an_entity_that_comes_back_at_the_healing_was_not_out_any_more():
    assert (
        entities_return(run_of(moved(60, P, B), moved(300, B, P), HEALED, AUDIT)).validity is IDLE
    )


def test_one_gateways_return_is_no_others():
    other = attrs.evolve(moved(310, B, P), process="other")

    assert entities_return(run_of(moved(60, P, B), HEALED, other, AUDIT)).validity is BROKEN


@pytest.mark.parametrize(("audit", "validity"), [(322, UNDECIDED), (323, BROKEN)])
def test_an_audit_before_the_bound_leaves_the_return_undecided(audit, validity):
    run = run_of(moved(60, P, B), HEALED, attrs.evolve(AUDIT, at=audit))

    assert entities_return(run).validity is validity


def test_without_an_audit_the_return_is_undecided():
    assert entities_return(run_of(moved(60, P, B), HEALED)).validity is UNDECIDED


# --- L3


@pytest.mark.parametrize(("drained", "validity"), [(351, HOLDS), (351.1, BROKEN)])
def test_the_backlog_is_empty_by_its_bound(drained, validity):
    assert backlog_drains(run_of(HEALED, Drained(at=drained), AUDIT)).validity is validity


@pytest.mark.parametrize(("kind", "last"), [("busy", 358), ("kill", 351)])
def test_a_syphon_heeds_for_a_while_that_the_primary_was_busy(kind, last):
    until = fault(280, 295, kind=kind)

    assert backlog_drains(run_of(HEALED, *until, Drained(at=last), AUDIT)).validity is HOLDS
    assert backlog_drains(run_of(HEALED, *until, Drained(at=last + 0.1), AUDIT)).validity is BROKEN


def test_a_deep_backlog_has_longer():
    healed = attrs.evolve(HEALED, backlog=20_000)  # 30 s more, at 1000 a second and a half spare

    decision = backlog_drains(run_of(healed, Drained(at=381), AUDIT))

    assert (decision.validity, decision.judged) == (HOLDS, 20_000)


@pytest.mark.parametrize(("audit", "validity"), [(350, UNDECIDED), (351, BROKEN)])
def test_an_audit_before_the_bound_leaves_the_backlog_undecided(audit, validity):
    assert backlog_drains(run_of(HEALED, attrs.evolve(AUDIT, at=audit))).validity is validity


def test_an_audit_that_sees_it_empty_too_late_shows_that_whenever_it_was():
    run = run_of(HEALED, attrs.evolve(AUDIT, at=350), Drained(at=360))

    assert backlog_drains(run).validity is BROKEN


@pytest.mark.parametrize(
    ("unconfirmed", "last"),
    [
        ([], 351),
        ([299.9], 351),  # the message's lock ends before that
        ([300], 351),
        ([335], 356),
        ([335, 340], 361),
        ([351], 372),
        ([351, 371], 392),  # in time, as its lock held until then
        ([351.1], 351),  # too late itself
        ([335, 356.1], 356),
    ],
)
def test_a_message_that_a_syphon_stopped_waiting_for_stays_locked_once_more(unconfirmed, last):
    cut = [Unconfirmed(at=at, process="syphon", message_id="1") for at in unconfirmed]

    assert backlog_drains(run_of(HEALED, *cut, Drained(at=last), AUDIT)).validity is HOLDS
    assert backlog_drains(run_of(HEALED, *cut, Drained(at=last + 0.1), AUDIT)).validity is BROKEN


def test_a_backlog_that_nobody_ever_saw_empty_is_late():
    decision = backlog_drains(run_of(HEALED))

    assert decision.problems == ("empty never, due at 351.000",)


def test_a_backlog_that_was_empty_at_the_healing_is_judged_as_well():
    assert backlog_drains(run_of(HEALED, Drained(at=300))).judged == 1


# --- L4


def diverted(stored, tried, entity="orders", message="1"):
    return [
        attempt(stored, End.ACCEPTED, way=Way.BACKLOG, entity=entity, message=message),
        attempt(tried, End.ACCEPTED, way=Way.SYPHON, entity=entity, message=message),
    ]


OTHERS_TROUBLE = fault(50, 200, "invoices")


@pytest.mark.parametrize(("tried", "validity"), [(76, HOLDS), (76.1, BROKEN)])
def test_a_message_waits_for_a_lock_at_most(tried, validity):
    assert nobody_delays_others(run_of(*OTHERS_TROUBLE, *diverted(55, tried))).validity is validity


@pytest.mark.parametrize(("lock", "tried", "validity"), [(16, 80, HOLDS), (16, 80.1, BROKEN)])
def test_a_message_waits_for_a_send_without_an_answer_and_a_look_at_most(lock, tried, validity):
    bounds = attrs.evolve(BEGAN.bounds, lock=lock, unanswered=30)  # 15, 5 and 4 s, and a second
    records = [*OTHERS_TROUBLE, *diverted(55, tried)]

    run = Run.of([RunBegan(at=0, bounds=bounds), *records])

    assert nobody_delays_others(run).validity is validity


@pytest.mark.parametrize(("tried", "validity"), [(82, HOLDS), (82.1, BROKEN)])
def test_a_message_that_is_moved_or_looked_at_meanwhile_takes_time(tried, validity):
    bounds = attrs.evolve(BEGAN.bounds, drain_rate=0.5, look=1.0)  # 3 s for each that is moved
    others = [
        *diverted(60, 70, "audit/log", "2"),
        *diverted(41, 300, "invoices", "3"),
        *diverted(42, 300, "invoices", "4"),
        *diverted(43, 54, "invoices", "5"),
        attempt(210, End.ACCEPTED, way=Way.BACKLOG, entity="invoices", message="6"),
    ]
    looked = attempt(60, End.ACCEPTED, way=Way.BACKLOG, entity="invoices", message="7")

    run = Run.of(
        [RunBegan(at=0, bounds=bounds), *OTHERS_TROUBLE, *others, looked, *diverted(55, tried)]
    )

    assert nobody_delays_others(run).validity is validity


@pytest.mark.parametrize(
    "hindrance",
    [
        fault(40, 70, "orders"),
        fault(40, 70),
        fault(40, 70, "invoices", target=FaultTarget.SECONDARY),
        [moved(70, B, P)],
        [attempt(40, End.BUSY, way=Way.SYPHON, message="2"),
         attempt(60, End.BUSY, way=Way.SYPHON, message="2")],
        [attempt(55, End.BUSY, way=Way.SYPHON, message="2")],
    ],
    ids=["its own fault", "everybody's", "the backlog's", "back", "a rest", "a rest at once"],
)  # fmt: skip
def test_an_entity_waits_since_its_last_own_hindrance(hindrance):
    begins = {55: 85, 60: 90}.get(hindrance[-1].at, 70)  # a rest takes 30 s

    def wait_until(tried):
        records = [*OTHERS_TROUBLE, *hindrance, *diverted(55, tried)]
        return nobody_delays_others(run_of(*records)).validity

    assert wait_until(begins + 21) is HOLDS
    assert wait_until(begins + 21.1) is BROKEN


@pytest.mark.parametrize("target", [FaultTarget.GATEWAY, FaultTarget.SYPHON])
@pytest.mark.parametrize("killed", [55, 60])
def test_an_entity_waits_since_the_end_of_a_killed_syphons_lock(target, killed):
    def wait_until(tried):
        records = [*OTHERS_TROUBLE, *fault(killed, 62, target=target), *diverted(55, tried)]
        return nobody_delays_others(run_of(*records)).validity

    # A lock for the killed one's, one for the other entity in trouble, a redelivery guard.
    assert wait_until(killed + 20 + 21 + 6) is HOLDS
    assert wait_until(killed + 20 + 21 + 6.1) is BROKEN


@pytest.mark.parametrize("died", [False, True])
def test_after_a_kill_it_waits_for_no_more_than_locks_though_nobody_is_in_trouble(died):
    def wait_until(tried):
        rest = attempt(59.5, End.BUSY, way=Way.SYPHON, message="2")
        ended = [Killed(at=60, process="gateway")] if died else []
        records = [*fault(60, 62, target=FaultTarget.GATEWAY), *diverted(55, tried), rest, *ended]
        return nobody_delays_others(run_of(*records)).validity

    longest = 60 + 20 if died else 59.5 + BEGAN.bounds.longest_backoff
    assert wait_until(longest + 21 + 6) is HOLDS
    assert wait_until(longest + 21 + 6.1) is BROKEN


@pytest.mark.parametrize(
    "other",
    [
        fault(54, 54.5, target=FaultTarget.SYPHON),
        fault(89, 95, target=FaultTarget.SYPHON),
        fault(89, 95, "orders"),
        [moved(70, B, P, "invoices")],
        [moved(70, P, State.SUSPECT)],
        [moved(89, B, P)],
        [attempt(37, End.BUSY, way=Way.SYPHON, message="2")],
        [attempt(95, End.BUSY, way=Way.SYPHON, message="2")],
        [attempt(60, End.ACCEPTED, way=Way.SYPHON, message="2")],
        diverted(55, 120),  # once more, since it was completed in vain
    ],
    ids=["killed before", "killed when it was tried", "a fault that comes later",
         "another is back", "a suspect", "back when it was tried", "a rest that was over",
         "a rest after", "no rest", "tried again"],
)  # fmt: skip
def test_nothing_else_excuses_that_a_message_waits(other):
    records = [*OTHERS_TROUBLE, *other, *diverted(55, 89)]

    assert nobody_delays_others(run_of(*records)).validity is BROKEN


@pytest.mark.parametrize(
    ("more", "locks"),
    [
        (fault(60, 70, "bills"), 2),
        (fault(60, 70, "bills", "audit"), 3),
        (fault(60, 70, "invoices", "bills"), 2),
        (fault(60, 70, "invoices"), 1),
        (fault(40, 55, "bills"), 1),
        (fault(120, 130, "bills"), 1),
        (fault(54, 55, "bills", target=FaultTarget.SECONDARY), 1),
    ],
    ids=["one more", "two more", "both", "the same", "before", "after", "of all on the backlog"],
)
def test_each_other_entity_that_is_in_trouble_meanwhile_may_take_a_lock(more, locks):
    def wait_until(tried):
        records = [*OTHERS_TROUBLE, *more, *diverted(55, tried)]
        return nobody_delays_others(run_of(*records)).validity

    assert wait_until(55 + 20 * locks + 1) is HOLDS
    assert wait_until(55 + 20 * locks + 1.1) is BROKEN


def test_a_message_that_is_tried_in_time_may_be_tried_again_later():
    records = [*OTHERS_TROUBLE, *diverted(55, 60), *diverted(55, 120)[1:]]

    assert nobody_delays_others(run_of(*records)).validity is HOLDS


def test_the_rest_after_its_own_first_try_came_too_late_for_it():
    records = [*OTHERS_TROUBLE, attempt(89, End.BUSY, way=Way.SYPHON), *diverted(55, 120)]

    assert nobody_delays_others(run_of(*records)).validity is BROKEN


@pytest.mark.parametrize(
    "trouble",
    [fault(20, 55, "invoices"), fault(89, 200, "invoices"), fault(40, 200, "orders"), []],
    ids=["before", "after", "its own", "none"],
)
def test_a_wait_beside_which_there_was_no_trouble_is_not_judged(trouble):
    assert nobody_delays_others(run_of(*trouble, *diverted(55, 89))).validity is IDLE


def test_a_message_that_the_syphon_never_tried_is_for_other_rules():
    stored = diverted(55, 89)[0]
    another = diverted(55, 89, message="2")

    assert nobody_delays_others(run_of(*OTHERS_TROUBLE, stored)).validity is IDLE
    assert nobody_delays_others(run_of(*OTHERS_TROUBLE, stored, *another)).validity is BROKEN


# --- L5


def stall(*records):
    return no_long_stall(run_of(*records, AUDIT)).validity


DOWN = fault(50, 100)  # felt until 123


@pytest.mark.parametrize(("answered", "validity"), [(65, HOLDS), (65.1, BROKEN)])
def test_a_send_is_answered_within_the_bound(answered, validity):
    assert stall(*DOWN, *send(51, "1", answered)) is validity


def test_each_time_without_an_answer_is_judged():
    assert no_long_stall(run_of(*DOWN, *send(51, "1", 60), *send(70, "2", 75))).judged == 2


def test_an_answer_that_nobody_waits_for_is_for_other_rules():
    assert stall(*DOWN, Acked(at=99, message_id="1")) is IDLE


def test_a_send_that_is_never_answered_waits_until_the_audit():
    sent = Invoked(at=51, message_id="1", entity="orders", fingerprint="f")

    assert stall(*DOWN, sent) is BROKEN


def test_an_answer_for_one_send_is_none_for_another_entity():
    sends = [*send(51, "1", 70), *send(51, "2", 60, entity="invoices")]

    assert stall(*DOWN, *sends) is BROKEN


def test_any_success_shows_that_the_entity_isnt_stalled():
    assert stall(*DOWN, *send(51, "1", 75), *send(52, "2", 63)) is HOLDS


@pytest.mark.parametrize("answer", [Failed, Unknown])
def test_a_failure_shows_it_only_for_who_got_it(answer):
    """Another sender still waits, and has waited from the beginning."""
    assert stall(*DOWN, *send(51, "1", 75), *send(52, "2", 63, answer)) is BROKEN


def test_a_message_that_is_taken_when_its_client_has_gone_would_have_been_an_answer():
    gone = [*send(51, "1", 61, Unknown), attempt(62, End.ACCEPTED, way=Way.BACKLOG)]

    assert stall(*DOWN, *gone, *send(60, "2", 76)) is HOLDS
    assert stall(*DOWN, *gone, *send(60, "2", 76.1)) is BROKEN


@pytest.mark.parametrize(
    "nothing",
    [
        attempt(62, End.ACCEPTED, way=Way.BACKLOG, message="2"),
        attempt(62, End.ACCEPTED, way=Way.BACKLOG, entity="invoices"),
        attempt(62, End.ACCEPTED, way=Way.SYPHON),
        attempt(62, End.UNKNOWN, way=Way.BACKLOG),
    ],
    ids=["it is waited for", "of another entity", "by the syphon", "not taken"],
)
def test_no_other_attempt_is_an_answer(nothing):
    sends = [*send(51, "1", 61, Unknown), *send(60, "2", 75)]

    assert stall(*DOWN, *sends, nothing) is BROKEN


def test_an_attempt_for_nobody_is_no_wait():
    gone = [*send(51, "1", 61, Unknown), attempt(80, End.ACCEPTED, way=Way.BACKLOG)]

    assert stall(*DOWN, *gone) is HOLDS


def test_a_producer_that_sends_after_a_failure_begins_to_wait_then():
    assert stall(*DOWN, *send(51, "1", 60, Failed), *send(61, "2", 75)) is HOLDS


def test_a_fault_is_felt_until_its_entities_are_back():
    assert stall(*DOWN, *send(120, "1", 137)) is HOLDS  # three seconds of it
    assert stall(*fault(50, 120), *send(120, "1", 137)) is BROKEN


def test_no_fault_is_felt_longer_than_that():
    assert stall(*DOWN, *send(109, "1", 137)) is HOLDS
    assert stall(*DOWN, *send(108.9, "1", 137)) is BROKEN


def test_a_producer_that_was_asked_to_wait_does_so_after_the_fault():
    """
    Clients wait until 122, and the busy fault is felt until 145; then only the other fault counts.
    """
    busy = [*fault(50, 110, kind="busy"), *fault(60, 140)]

    assert stall(*busy, *send(100, "1", 159)) is HOLDS
    assert stall(*busy, *send(100, "1", 159.1)) is BROKEN
    assert stall(*fault(50, 110), *fault(60, 140), *send(100, "1", 159)) is BROKEN


@pytest.mark.parametrize(
    "target",
    [FaultTarget.GATEWAY, FaultTarget.SYPHON, FaultTarget.HOST],
    ids=lambda target: target.value,
)
def test_a_part_that_is_no_namespace_may_stall_it(target):
    assert stall(*fault(50, 100, target=target), *send(51, "1", 99)) is IDLE


def ordered(at, message, answered, entity="orders"):
    sent, acked = send(at, message, answered, entity=entity)
    return [attrs.evolve(sent, order="key"), acked]


def left(at, message="1"):
    return Settled(at=at, process="syphon", queue="x", copy="1", message_id=message)


SECONDARY_DOWN = fault(101, 150, target=FaultTarget.SECONDARY)  # once the primary is back
STORED = [*ordered(60, "1", 61), attempt(61, End.ACCEPTED, way=Way.BACKLOG, began=60)]
WAITS = ordered(124, "2", 145)


@pytest.mark.parametrize(
    ("stays", "validity"),
    [
        ([], HOLDS),
        ([left(86.1)], HOLDS),  # not listed before the secondary failed
        ([left(86)], BROKEN),
        ([left(59)], HOLDS),  # an earlier copy
        ([left(70), left(90)], HOLDS),
        ([Unconfirmed(at=86, process="syphon", message_id="1")], BROKEN),
        ([DeadLettered(at=86, process="syphon", message_id="1", began=86)], BROKEN),
        ([left(86, "3")], HOLDS),
    ],
)
def test_an_ordered_entity_needs_the_secondary_while_a_key_is_away(stays, validity):
    assert stall(*DOWN, *SECONDARY_DOWN, *STORED, *stays, *WAITS) is validity


def test_without_a_key_away_the_primary_is_enough_for_an_ordered_entity():
    assert stall(*DOWN, *SECONDARY_DOWN, *WAITS) is BROKEN
    assert stall(*DOWN, *SECONDARY_DOWN, *STORED, *ordered(124, "2", 145, "invoices")) is BROKEN


def test_an_entity_without_an_order_needs_no_secondary_while_the_backlog_has_its_messages():
    stored = [*send(60, "1", 61), attempt(61, End.ACCEPTED, way=Way.BACKLOG)]

    assert stall(*DOWN, *SECONDARY_DOWN, *stored, *send(124, "2", 145)) is BROKEN


@pytest.mark.parametrize(
    ("end", "at", "validity"),
    [(End.UNKNOWN, 86.1, HOLDS), (End.UNKNOWN, 86, BROKEN), (End.OUTAGE, 100, BROKEN)],
)
def test_a_key_may_be_away_after_an_attempt_that_may_have_arrived(end, at, validity):
    stored = [*ordered(at - 1, "1", at), attempt(at, end, way=Way.BACKLOG, began=at - 1)]

    assert stall(*DOWN, *SECONDARY_DOWN, *stored, *WAITS) is validity


def test_a_key_that_goes_away_without_another_fault_is_no_excuse():
    stored = attempt(106, End.UNKNOWN, way=Way.BACKLOG, message="2")

    assert stall(*SECONDARY_DOWN, *ordered(105, "2", 125), stored) is BROKEN
    assert stall(*fault(60, 82), *SECONDARY_DOWN, *ordered(105, "2", 125), stored) is BROKEN
    assert stall(*fault(60, 84), *SECONDARY_DOWN, *ordered(105, "2", 125), stored) is IDLE


def test_the_secondary_is_enough_for_an_ordered_entity_with_a_key_away():
    assert stall(*DOWN, *STORED, *ordered(70, "2", 84)) is HOLDS
    assert stall(*DOWN, *STORED, *ordered(70, "2", 84.1)) is BROKEN


@pytest.mark.parametrize(("fails", "validity"), [(65, IDLE), (66, BROKEN)])
def test_a_gateway_that_starts_needs_the_secondary_to_list_the_backlog(fails, validity):
    dead = fault(50, 51, target=FaultTarget.GATEWAY)
    down = fault(fails, 150, target=FaultTarget.SECONDARY)

    assert stall(*dead, *down, *ordered(80, "2", 100)) is validity


# --- L6


def quiet(*records, drained=310, audit=500):
    end = [Drained(at=drained), attrs.evolve(AUDIT, at=audit)]
    return quiescence(run_of(HEALED, *records, *end)).validity


def sampled(at, polls=0, processor=0.0, process="syphon"):
    return Sampled(at=at, process=process, inflight=0, polls=polls, processor=processor)


def test_a_rest_that_is_too_short_says_nothing():
    assert quiet(sampled(480), drained=471) is IDLE
    assert quiet(sampled(480), drained=470) is HOLDS


@pytest.mark.parametrize("answer", [Acked, Failed, Unknown])
def test_the_rest_begins_after_the_last_answer(answer):
    busy = [sampled(320), sampled(350, polls=1000), sampled(480, polls=1000)]

    assert quiet(*busy, *send(349, "1", 360, answer)) is HOLDS


def test_an_attempt_that_begins_as_the_last_fault_ends_is_no_unrest():
    assert quiet(sampled(480), attempt(310)) is HOLDS


@pytest.mark.parametrize(("at", "validity"), [(310, HOLDS), (500, HOLDS), (309, UNDECIDED)])
def test_a_sample_is_of_the_rest_at_both_of_its_ends(at, validity):
    assert quiet(sampled(at)) is validity


def test_a_rest_that_nobody_saw_begin_is_undecided():
    assert quiescence(run_of(HEALED, sampled(480), AUDIT)).validity is UNDECIDED


def test_an_attempt_after_the_audit_began_is_no_unrest():
    assert quiet(sampled(480), attempt(501)) is HOLDS
    assert quiet(sampled(480), attempt(500)) is BROKEN


def test_two_looks_shortly_after_each_other_are_no_rate():
    assert quiet(sampled(400), sampled(414, polls=1000)) is HOLDS
    assert quiet(sampled(400), sampled(415, polls=1000)) is BROKEN


def test_each_process_is_judged_by_its_own_samples():
    other = sampled(400, polls=1000, process="gateway")

    assert quiet(sampled(320), other, sampled(480)) is HOLDS


@pytest.mark.parametrize(("polls", "validity"), [(120, HOLDS), (121, BROKEN)])
def test_polls_are_counted_by_the_minute(polls, validity):
    samples = [sampled(320, polls=5), sampled(330, polls=5), sampled(440, polls=5 + polls)]

    assert quiet(*samples) is validity


@pytest.mark.parametrize(("processor", "validity"), [(12.0, HOLDS), (12.1, BROKEN)])
def test_processor_time_is_a_share_of_a_core(processor, validity):
    seconds = [1.0, 1.0, 1.0 + processor]
    samples = [
        sampled(at, processor=each) for at, each in zip((320, 330, 440), seconds, strict=True)
    ]

    assert quiet(*samples) is validity


# --- bounds


def test_the_bounds_follow_from_the_configuration():
    bounds = Bounds(
        send_timeout=20, attempt_timeout=10, suspect_wait=0.5, ping_interval=50,
        successes_to_return=3, lock=60, longest_backoff=300, drain_rate=100, slack=2,
        answer=0.3,
    )  # fmt: skip

    assert bounds.stall == 8 + 0.5 + 10 + 2
    assert bounds.return_within == pytest.approx(60 + 10 + 2.4 + 3 * 0.3 + 2)
    assert bounds.drain_within(1000) == 60 + 300 + 15 + 2


def test_the_share_of_the_primary_is_bounded_by_an_attempt():
    assert Bounds(send_timeout=100, attempt_timeout=10, suspect_wait=0, slack=0).stall == 20


@pytest.mark.parametrize(
    "name",
    [
        "failover_interval",
        "send_timeout",
        "attempt_timeout",
        "suspect_wait",
        "ping_interval",
        "successes_to_return",
        "max_inflight",
    ],
)
def test_the_usual_bounds_are_the_defaults_of_the_options(name):
    assert getattr(Bounds(), name) == attrs.fields_dict(PairOptions)[name].default


def test_the_usual_lock_is_that_of_a_backlog_queue():
    assert Bounds().lock == QUEUE_PROPERTIES.lock_duration.total_seconds()


def test_the_longest_rest_is_that_of_the_syphon():
    assert Bounds().longest_backoff == SyphonOptions().unknown_retry.cap


def test_the_list_of_the_ordered_queues_takes_what_the_pair_allows():
    assert Bounds().listing == ANSWER_LIMIT + LATER


def test_a_backlog_that_never_drains_has_no_bound():
    with pytest.raises(ValueError, match="drain_rate"):
        Bounds(drain_rate=0.0)


def test_a_run_without_bounds_has_the_usual_ones():
    assert Run.of([]).bounds == Bounds()
    assert Run.of([RunBegan(at=0, bounds=Bounds(lock=1))]).bounds.lock == 1
