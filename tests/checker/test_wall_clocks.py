"""A clock that was wrong excuses the dates that it explains, and no others."""

from math import inf

import attrs
import pytest

from gateway.checker.history import (
    Attempted,
    ClockSet,
    DeadLettered,
    End,
    FaultBegan,
    FaultEnded,
    FaultTarget,
    Way,
)
from gateway.checker.operations import (
    Acked,
    AuditBegan,
    CopyPlace,
    Delivered,
    Found,
    Invoked,
    QueueRead,
)
from gateway.checker.verdict import EXPIRED, Rules, Violation, judge
from gateway.checker.wall_clocks import WallClocks

RULES = Rules(expiry_slack=0.0, schedule_slack=0.0, clock_grace=60.0)
HOUR = 3600.0
SENT = Invoked(at=10, message_id="1", entity="orders", fingerprint="f")
ACKED = Acked(at=10, message_id="1")
MORTAL = attrs.evolve(SENT, expires=60)  # the message lives for 50 s
DATED = attrs.evolve(SENT, not_before=200)
CAME = Delivered(at=30, message_id="1", entity="orders", fingerprint="f", copy="1")
DEAD = Found(
    at=501, place=CopyPlace.BACKLOG_DEAD_LETTER, queue="b/$dlq", message_id="1", reason=EXPIRED
)


def audit(at):
    return [AuditBegan(at=at, queues=frozenset({"orders"})), QueueRead(at=at, queue="orders")]


def attempt(way, began, process="gateway"):
    return Attempted(
        at=began,
        process=process,
        entity="orders",
        message_ids=("1",),
        way=way,
        end=End.ACCEPTED,
        began=began,
    )


def clock(at, process, ahead, **drift):
    return ClockSet(at=at, process=process, ahead=ahead, **drift)


def until(expires):
    return attrs.evolve(CAME, expires=expires)


def broken(*records, audit_at=500):
    return judge([*records, *audit(audit_at)], RULES).broken()


DIRECT = [MORTAL, attempt(Way.PRIMARY, 10), ACKED]
ROUND = [MORTAL, attempt(Way.BACKLOG, 10), ACKED, attempt(Way.SYPHON, 25, "syphon")]
OTHER = clock(0, "client", HOUR)  # no process that dates messages reads this clock


@pytest.mark.parametrize(
    ("records", "first", "last"),
    [
        ([OTHER, *DIRECT], 60, 60),
        ([clock(5, "primary", HOUR), *DIRECT], 60 + HOUR, 60 + HOUR),
        ([clock(5, "primary", -20), *DIRECT], 40, 60),  # the clock may be in doubt
        ([clock(0, "primary", 0.0, drift=0.5), *DIRECT], 65, 65),
        ([clock(5, "primary", HOUR), clock(6, "primary", 0.0), *DIRECT], 60, 60 + HOUR),
        ([clock(15, "primary", HOUR), *DIRECT], 60, 60),
        ([clock(5, "gateway", HOUR), *DIRECT], 60, 60),
        ([OTHER, *ROUND], 60, 60),
        ([clock(5, "gateway", -20), *ROUND], 40, 60),
        ([clock(5, "gateway", HOUR), *ROUND], 60, 60),  # the backlog knows how long it was there
        ([clock(5, "gateway", -HOUR), *ROUND], 60, 60),
        ([clock(15, "gateway", HOUR), *ROUND], 60, 60),
        ([clock(15, "syphon", 5), *ROUND], 55, 60),
        ([clock(15, "syphon", HOUR), *ROUND], 60, 60),
        ([clock(15, "syphon", -HOUR), *ROUND], 60, 60),
        ([clock(15, "secondary", HOUR), *ROUND], 60, 60),
        ([clock(5, "secondary", HOUR), *ROUND], 60, 60),
        ([clock(15, "secondary", -HOUR), *ROUND], 60, 60),
        ([clock(15, "primary", HOUR), *ROUND], 60 + HOUR, 60 + HOUR),
        ([clock(5, "gateway", HOUR), clock(5, "syphon", HOUR), *ROUND], 60, 60),
        ([clock(5, "gateway", HOUR), clock(15, "secondary", -HOUR), *ROUND], 60, 75),
        ([clock(15, "syphon", 30), clock(15, "secondary", HOUR), *ROUND], 30, 60),
    ],
)
def test_a_life_is_right_by_the_clocks_of_those_who_dated_it_and_by_nothing_else(
    records, first, last
):
    assert broken(*records, until(first)) == set()
    assert broken(*records, until(last)) == set()
    assert broken(*records, until(first - 1)) == {Violation.WRONG_EXPIRY}
    assert broken(*records, until(last + 1)) == {Violation.WRONG_EXPIRY}


def test_time_to_live_runs_while_the_gateway_has_the_message():
    late = [MORTAL, attempt(Way.PRIMARY, 10), attempt(Way.PRIMARY, 25), ACKED]

    assert broken(OTHER, *late, until(60)) == set()
    assert broken(OTHER, *late, until(75)) == {Violation.WRONG_EXPIRY}


def test_an_attempt_before_a_send_gave_it_no_life():
    longer = attrs.evolve(SENT, at=30, expires=130)  # again, to live for 100 s
    records = [OTHER, MORTAL, attempt(Way.PRIMARY, 10), longer, attempt(Way.PRIMARY, 30)]

    for expires in (60, 130):
        assert broken(*records, until(expires)) == set()
    for expires in (80, 110):
        assert broken(*records, until(expires)) == {Violation.WRONG_EXPIRY}


def test_a_message_without_an_end_gets_none():
    immortal = [OTHER, SENT, attempt(Way.PRIMARY, 10), ACKED]

    assert broken(*immortal, until(inf)) == set()
    assert broken(*immortal, until(10**9)) == {Violation.WRONG_EXPIRY}


def test_a_way_may_take_its_time():
    late = attrs.evolve(RULES, expiry_slack=15.0)
    records = [clock(20, "primary", 100), *DIRECT, *audit(500)]

    for expires in (60, 69, 171, 174):  # the message arrived before the step, or after it
        assert judge([*records, until(expires)], late).broken() == set()
    for expires in (59, 71, 169, 176):
        assert judge([*records, until(expires)], late).broken() == {Violation.WRONG_EXPIRY}


@pytest.mark.parametrize("step", [clock(10, "gateway", 0), clock(25, "syphon", 0)])
def test_a_message_dated_while_its_senders_clock_is_set_may_go_by_either_date(step):
    records = [clock(5, step.process, 5), step, *ROUND]
    either = {55, 60} if step.process == "syphon" else {60, 65}

    for expires in (54, 55, 60, 65, 66):
        wrong = expires not in either
        assert bool(broken(*records, until(expires))) == wrong


def test_a_message_that_expired_by_the_primarys_clock_is_not_lost():
    ahead = clock(20, "primary", HOUR)

    assert broken(OTHER, *DIRECT, audit_at=59) == {Violation.LOST}
    assert broken(OTHER, *DIRECT, audit_at=61) == set()
    assert broken(clock(20, "primary", -HOUR), *DIRECT) == {Violation.LOST}
    assert broken(ahead, *ROUND, audit_at=40) == {Violation.LOST}
    # This message would have lived for longer than a minute more.
    long = [attrs.evolve(MORTAL, expires=400), *DIRECT[1:]]
    assert broken(ahead, *long, audit_at=79) == {Violation.LOST}
    assert broken(ahead, *long, audit_at=81) == set()


def test_a_message_that_has_ended_by_the_earliest_date_that_it_may_have_is_not_lost():
    late = attrs.evolve(RULES, expiry_slack=15.0)
    records = [clock(20, "primary", 100), *DIRECT]  # to live until 60, or until 170

    assert judge([*records, *audit(59)], late).broken() == {Violation.LOST}
    assert judge([*records, *audit(61)], late).broken() == set()


def test_each_send_has_its_own_end_and_the_last_one_tells_what_is_lost():
    again = attrs.evolve(SENT, at=30, expires=80)
    records = [OTHER, *DIRECT, again, attempt(Way.PRIMARY, 30)]

    assert broken(*records, audit_at=79) == {Violation.LOST}
    assert broken(*records, audit_at=81) == set()


def test_a_date_that_was_wrong_for_a_moment_costs_nothing():
    steps = [clock(20, "primary", HOUR), clock(50, "primary", 0.0)]
    long = [attrs.evolve(MORTAL, expires=400), *DIRECT[1:]]

    assert broken(*steps, *long, audit_at=399) == {Violation.LOST}
    assert broken(*steps, *long, audit_at=401) == set()
    # A message that would have expired without the steps may expire.
    assert broken(*steps, *DIRECT, audit_at=61) == set()


def dead_lettered(began):
    return DeadLettered(at=began, process="syphon", message_id="1", began=began)


def test_a_message_that_the_syphon_found_expired_must_be_so_by_all_clocks_that_it_can_compare():
    stored = ROUND[:3]

    assert broken(OTHER, *stored, dead_lettered(61), DEAD) == set()
    assert broken(OTHER, *stored, dead_lettered(59), DEAD) == {Violation.DEAD_LETTERED}
    assert broken(clock(20, "syphon", HOUR), *stored, dead_lettered(25), DEAD) == {
        Violation.DEAD_LETTERED
    }
    assert broken(clock(20, "secondary", HOUR), *stored, dead_lettered(25), DEAD) == {
        Violation.DEAD_LETTERED
    }
    both = [clock(20, "syphon", HOUR), clock(20, "secondary", HOUR)]
    assert broken(*both, *stored, dead_lettered(25), DEAD) == set()
    assert broken(clock(20, "gateway", HOUR), *stored, dead_lettered(25), DEAD) == {
        Violation.DEAD_LETTERED
    }
    assert broken(clock(5, "gateway", HOUR), *stored, dead_lettered(61), DEAD) == set()
    assert broken(clock(5, "gateway", HOUR), *stored, dead_lettered(59), DEAD) == {
        Violation.DEAD_LETTERED
    }


def test_each_envelope_has_its_own_end():
    again = attrs.evolve(SENT, at=30, expires=80)
    records = [OTHER, *ROUND[:3], again, attempt(Way.BACKLOG, 30)]

    assert broken(*records, dead_lettered(61), DEAD) == set()
    assert broken(*records, dead_lettered(59), DEAD) == {Violation.DEAD_LETTERED}


def test_an_envelope_is_dated_by_when_the_gateway_took_the_message():
    records = [OTHER, MORTAL, attempt(Way.PRIMARY, 10), attempt(Way.BACKLOG, 20), ACKED]

    assert broken(*records, dead_lettered(59), DEAD) == {Violation.DEAD_LETTERED}
    assert broken(*records, dead_lettered(61), DEAD) == set()


def test_at_its_end_a_message_is_over():
    assert broken(OTHER, *DIRECT, audit_at=60) == set()
    assert broken(OTHER, *ROUND[:3], dead_lettered(60), DEAD) == set()


def test_a_date_comes_when_the_primarys_clock_shows_it():
    sent = [DATED, attempt(Way.PRIMARY, 10), ACKED]

    def came(at):
        return attrs.evolve(CAME, at=at)

    assert broken(OTHER, *sent, came(199)) == {Violation.EARLY}
    assert broken(OTHER, *sent, came(201)) == set()
    assert broken(clock(5, "primary", HOUR), *sent, came(11)) == set()
    assert broken(clock(20, "primary", HOUR), *sent, came(79)) == {Violation.EARLY}
    assert broken(clock(20, "primary", HOUR), *sent, came(81)) == set()
    assert broken(clock(20, "primary", -50), *sent, came(249)) == {Violation.EARLY}
    assert broken(clock(20, "primary", -50), *sent, came(251)) == set()
    assert broken(clock(20, "gateway", HOUR), *sent, came(199)) == {Violation.EARLY}


@pytest.mark.parametrize(("ahead", "latest"), [(1.5, 31.5), (2.0, 32.0), (2.1, 30)])
def test_up_to_two_seconds_are_believed_at_once(ahead, latest):
    clocks = WallClocks.of([clock(20, "primary", ahead)])

    assert clocks.trusted("primary", 0, 30, grace=60) == latest


@pytest.mark.parametrize(("ahead", "latest"), [(-3, 37), (-3.1, 30)])
def test_up_to_two_seconds_back_are_believed_at_once(ahead, latest):
    # As the next step is, it holds on to the date of a clock that it believed, which gains.
    back = clock(10, "primary", ahead, drift=0.5)  # at 12 s it is a second less behind
    clocks = WallClocks.of([back, clock(12, "primary", HOUR)])

    assert clocks.trusted("primary", 0, 30, grace=60) == latest


def test_two_seconds_back_count_from_where_drift_had_brought_the_clock():
    slow = clock(0, "primary", 0, drift=-0.1)  # a second behind at 10 s
    back = clock(10, "primary", -3.5, drift=0.5)
    clocks = WallClocks.of([slow, back, clock(12, "primary", HOUR)])

    assert clocks.trusted("primary", 0, 30, grace=60) == 36.5


@pytest.mark.parametrize(
    "steps", [[clock(20, "p", -HOUR)], [clock(10, "p", HOUR), clock(20, "p", -HOUR)]]
)
def test_at_the_moment_of_a_step_the_date_before_it_is_believed(steps):
    assert WallClocks.of(steps).trusted("p", 20, 30, grace=60) == 20


def test_after_a_minute_a_step_is_believed():
    def latest(back_at):
        clocks = WallClocks.of([clock(10, "p", HOUR), clock(back_at, "p", -HOUR)])
        return clocks.trusted("p", 0, 80, grace=60)

    assert latest(69) == 69
    assert latest(70) == 70 + HOUR


def test_after_a_minute_what_was_before_a_step_is_forgotten():
    def latest(again_at):
        clocks = WallClocks.of([clock(10, "p", -HOUR), clock(again_at, "p", 0)])
        return clocks.trusted("p", 0, 80, grace=60)

    assert latest(69) == 80
    assert latest(70) == 10


@pytest.mark.parametrize(("ahead", "latest"), [(1.9, 31.9), (2.1, 30)])
def test_of_steps_that_end_where_they_began_nobody_need_have_seen_one(ahead, latest):
    clocks = WallClocks.of([clock(10, "primary", -100), clock(12, "primary", ahead)])

    assert clocks.trusted("primary", 0, 30, grace=60) == latest


@pytest.mark.parametrize(
    ("at", "ahead", "latest"), [(69, 1.9, 81.9), (69, 2.1, 80), (71, 1.9, 78.2)]
)
def test_for_less_than_a_minute_nobody_need_have_looked(at, ahead, latest):
    clocks = WallClocks.of([clock(10, "primary", -1.8), clock(at, "primary", ahead)])

    assert clocks.trusted("primary", 0, 80, grace=60) == pytest.approx(latest)


@pytest.mark.parametrize(("drift", "latest"), [(-0.02, 31.9), (-0.005, 30)])
def test_a_step_that_drift_takes_back_until_then_nobody_need_have_seen(drift, latest):
    clocks = WallClocks.of([clock(20, "primary", 2.1, drift=drift)])

    assert clocks.trusted("primary", 0, 30, grace=60) == pytest.approx(latest)


def test_a_step_that_drift_makes_soon_after_nobody_need_have_seen():
    clocks = WallClocks.of([clock(20, "primary", 1.5, drift=0.1)])  # 2.5 s ahead at 30 s

    assert clocks.trusted("primary", 0, 30, grace=60) == pytest.approx(32.5)


@pytest.mark.parametrize(("drift", "latest"), [(-0.01, 81.5), (-0.001, 79.39)])
def test_a_step_that_drift_alone_has_made_nobody_need_have_seen(drift, latest):
    drifts = clock(5, "primary", -0.6 - 65 * drift, drift=drift)  # 0.6 s behind, at 70 s
    clocks = WallClocks.of([drifts, clock(70, "primary", 1.5)])

    assert clocks.trusted("primary", 70, 80, grace=60) == pytest.approx(latest)


def test_an_earlier_drift_is_not_part_of_a_step():
    drifts = clock(5, "primary", -0.65, drift=0.01)  # 0.6 s behind at 10 s, and right at 70 s
    clocks = WallClocks.of([drifts, clock(70, "primary", 1.5)])

    assert clocks.trusted("primary", 70, 80, grace=60) == pytest.approx(81.5)


@pytest.mark.parametrize(
    ("target", "entities", "violations"),
    [
        (FaultTarget.HOST, None, set()),
        (FaultTarget.PRIMARY, None, set()),
        (FaultTarget.PRIMARY, frozenset({"orders"}), {Violation.EARLY}),
        (FaultTarget.SECONDARY, None, {Violation.EARLY}),
        (FaultTarget.GATEWAY, None, {Violation.EARLY}),
    ],
)
def test_where_the_machine_or_the_namespace_stands_still_nobody_looks_at_its_clock(
    target, entities, violations
):
    pause = FaultBegan(at=21, fault="1", kind="down", target=target, entities=entities)
    wrong = [clock(20, "primary", -100), clock(90, "primary", 0)]
    records = [attrs.evolve(SENT, not_before=50), attempt(Way.PRIMARY, 10), ACKED, *wrong]

    came = attrs.evolve(CAME, at=95)
    assert broken(*records, pause, FaultEnded(at=90, fault="1"), came) == violations
    assert broken(*records, pause, FaultEnded(at=30, fault="1"), came) == {Violation.EARLY}


@pytest.mark.parametrize(
    ("unwatched", "latest"),
    [
        ([(130, 200)], 207.0),
        ([(155, 160), (150, 200)], 207.0),
        ([(200, 205)], 199.5),
        ([(165, 200), (170, 200)], 199.5),  # 35 s, however many say so
    ],
)
def test_before_a_standstill_a_clock_that_drifts_was_seen_as_it_was_then(unwatched, latest):
    settings = [clock(0, "primary", 0.0, drift=-0.05), clock(200, "primary", -3.0)]
    clocks = WallClocks.of(settings, unwatched)

    assert clocks.trusted("primary", 205, 210, grace=60) == pytest.approx(latest)


def test_a_clock_shows_what_it_was_last_set_to():
    clocks = WallClocks.of([clock(20, "p", 5, drift=0.1), clock(40, "p", -5)])

    assert [list(clocks.shows("p", at)) for at in (10, 30, 50)] == [[10], [36], [45]]
    assert list(clocks.shows("p", 40)) == [47, 35]
    assert list(clocks.shows("q", 30)) == [30]
    assert not clocks.are_right


def test_a_process_that_ignores_a_step_counts_on_from_a_reading_before_it():
    clocks = WallClocks.of(
        [
            clock(10, "gateway", 2.0, drift=0.01),
            clock(20, "gateway", 0.0),
            clock(30, "gateway", 9.0),
        ]
    )

    doubted = list(clocks.doubted("gateway", 40))

    assert doubted == [
        pytest.approx((0.0, 0.1)),  # the right clock, and what it gained in its second period
        pytest.approx((2.0, 2.1)),  # read at the begin of the second period, or at its end
        (0.0, 0.0),
        (9.0, 9.0),
    ]


@pytest.mark.parametrize(("due", "found"), [(15.001, set()), (15.01, {Violation.WRONG_EXPIRY})])
def test_dates_that_differ_by_the_tolerance_may_be_rounded_to_it(due, found):
    ahead = [clock(0, "gateway", HOUR), clock(0, "syphon", HOUR)]
    scheduled = attrs.evolve(SENT, not_before=due, expires=due + 50.0)

    # Ahead, the clocks show a stay of 15 s. The backlog's shows one of 10 s since it was due.
    assert broken(*ahead, scheduled, *ROUND[1:], until(60)) == found
