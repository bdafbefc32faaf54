"""Each invariant has a history that breaks exactly it, and one near it that doesn't."""

import attrs
import pytest

from gateway.checker.history import (
    Closed,
    Drained,
    End,
    FaultBegan,
    FaultEnded,
    FaultTarget,
    Healed,
    Killed,
    Opened,
    Paused,
    Sampled,
    Settled,
    Swallowed,
    Way,
)
from gateway.checker.invariants import judge_run
from gateway.checker.judgements import Invariant, Validity
from gateway.checker.operations import (
    Acked,
    AuditFailed,
    Completed,
    CopyPlace,
    Delivered,
    Found,
    Invoked,
    SessionAccepted,
    SessionServed,
    Unknown,
)
from gateway.checker.verdict import EXPIRED
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from tests.chaos.invariants import (
    ACKED,
    AGAIN,
    BEGAN,
    CAME,
    END,
    FAILED,
    MAY_DEAD_LETTER,
    SENT,
    STUCK,
    UNCERTAIN,
    UNKNOWN,
    WELL,
    attempt,
    moved,
    run_of,
)

P, S, B, H = State.PRIMARY, State.SUSPECT, State.SECONDARY, State.HALF_OPEN

DEAD_LETTERED = Found(
    at=501, place=CopyPlace.BACKLOG_DEAD_LETTER, queue="b", message_id="1", reason="x"
)
DOWN = FaultBegan(at=50, fault="1", kind="kill", target=FaultTarget.PRIMARY)
UP = FaultEnded(at=100, fault="1")


def send(at, message, answer=Acked, entity="orders", after=0.0, **told):
    told = told or ({"accepted_by": AcceptedBy.PRIMARY} if answer is Acked else {})
    sent = Invoked(at=at, message_id=message, entity=entity, fingerprint="f")
    came = Delivered(
        at=at + after, message_id=message, entity=entity, fingerprint="f", copy=message
    )
    return [sent, answer(at=at + after, message_id=message, **told), came]


def diverted(message, stored, moved_at, entity="orders"):
    """A message that went round by the backlog."""
    sent = Invoked(at=stored, message_id=message, entity=entity, fingerprint="f")
    came = Delivered(at=moved_at, message_id=message, entity=entity, fingerprint="f", copy=message)
    return [
        sent,
        Acked(at=stored, message_id=message, accepted_by=AcceptedBy.BACKLOG),
        attempt(stored, End.ACCEPTED, way=Way.BACKLOG, entity=entity, message=message),
        attempt(moved_at, End.ACCEPTED, way=Way.SYPHON, entity=entity, message=message),
        Settled(at=moved_at, process="syphon", queue="b", copy=message, message_id=message),
        came,
    ]


BACK = moved(61, S, P)
FAILS_OVER = [DOWN, attempt(50), moved(50, P, S), attempt(60), moved(60, S, B), UP]
ANOTHER_DOWN = attrs.evolve(DOWN, entities=frozenset({"invoices"}))


def accepted(at, receiver):
    return SessionAccepted(at=at, entity="orders", session="s", receiver=receiver)


def served(asked, receiver, number=1, side=0):
    """A completion that is answered 0.1 s after it was asked for."""
    return SessionServed(
        at=asked + 0.1,
        entity="orders",
        session="s",
        receiver=receiver,
        asked=asked,
        message_id="1",
        side=side,
        number=number,
    )


def of_second(began):
    """A send of the second message of the order, acknowledged at once."""
    sent = Invoked(at=began, message_id="2", entity="orders", fingerprint="f", order="k")
    return [sent, Acked(at=began, message_id="2", accepted_by=AcceptedBy.PRIMARY)]


BROKEN = {
    "lost": ([SENT, ACKED], Invariant.S1),
    "dead-lettered for no good reason": ([SENT, ACKED, DEAD_LETTERED], Invariant.S1),
    "delivered, and nobody sent it": ([CAME], Invariant.S2),
    "not sent, and delivered": ([SENT, FAILED, CAME], Invariant.S3),
    "another body": ([SENT, ACKED, attrs.evolve(CAME, fingerprint="g")], Invariant.S4),
    "another end of its life": (
        [attrs.evolve(SENT, expires=50.0), ACKED, attrs.evolve(CAME, expires=60.0)],
        Invariant.S4,
    ),
    "another entity": ([SENT, ACKED, attrs.evolve(CAME, entity="invoices")], Invariant.S5),
    "a fault of another entity": (
        [
            *WELL, ANOTHER_DOWN, attempt(50), moved(50, P, S), attempt(60), moved(60, S, B), UP,
            moved(101, B, P),
        ],
        Invariant.S5,
    ),
    "before there was a fault": ([*WELL, moved(49, P, S), DOWN, UP, moved(99, S, P)], Invariant.S5),
    "long after its fault was over": (
        [*WELL, DOWN, attrs.evolve(UP, at=60), moved(90, P, S), moved(91, S, P)],
        Invariant.S5,
    ),
    "a fault of the secondary": (
        [*WELL, attrs.evolve(DOWN, target=FaultTarget.SECONDARY), UP, moved(60, P, S), BACK],
        Invariant.S5,
    ),
    "two copies of one send": ([*WELL, AGAIN, Swallowed(at=1, messages=1)], Invariant.S6),
    "two copies, where nothing was swallowed": ([*WELL, UNCERTAIN, AGAIN], Invariant.S6),
    "completed, and came again": (
        [*WELL, Completed(at=2, entity="orders", copy="1"), attrs.evolve(CAME, at=3)],
        Invariant.S8,
    ),
    "completed before it was sent on": (
        [
            *WELL,
            Settled(at=5, process="syphon", queue="b", copy="1", message_id="1"),
            attempt(6, End.ACCEPTED, way=Way.SYPHON),
        ],
        Invariant.S8,
    ),
    "two copies completed for one transfer": (
        [
            *WELL,
            attempt(4, End.ACCEPTED, way=Way.SYPHON),
            Settled(at=5, process="syphon", queue="b", copy="1", message_id="1"),
            Settled(at=6, process="syphon", queue="b", copy="2", message_id="1"),
        ],
        Invariant.S8,
    ),
    "failed over since it was busy": (
        [*WELL, DOWN, attempt(50, End.BUSY), moved(60, P, B), UP, moved(101, B, P)],
        Invariant.S9,
    ),
    "failed over though a send worked": (
        [
            *WELL, DOWN, attempt(50), attempt(55, End.ACCEPTED), moved(61, P, B), UP,
            moved(101, B, P),
        ],
        Invariant.S9,
    ),
    "failed over while it was only busy, seen from outside": (
        [*WELL, attrs.evolve(DOWN, kind="busy"), moved(70, P, B), UP, moved(101, B, P)],
        Invariant.S9,
    ),
    "failed over long after the outage, seen from outside": (
        [*WELL, DOWN, UP, moved(122, P, B), moved(123, B, P)],
        Invariant.S9,
    ),
    "failed over early, seen from outside": (
        [*WELL, DOWN, moved(58, P, B), UP, moved(101, B, P)],
        Invariant.S10,
    ),
    "failed over early": (
        [*WELL, DOWN, attempt(50), attempt(58), moved(58, P, B), UP, moved(101, B, P)],
        Invariant.S10,
    ),
    "failed over for what was before a silence": (
        [*WELL, DOWN, attempt(50), attempt(90), moved(90, P, B), UP, moved(101, B, P)],
        Invariant.S10,
    ),
    "failed over early after a restart": (
        [
            *WELL, DOWN, attempt(50), Killed(at=55, process="gateway"), attempt(60),
            attempt(62), moved(62, P, B), UP, moved(101, B, P),
        ],
        Invariant.S10,
    ),
    "failed for its interval, and stayed": (
        [*WELL, DOWN, attempt(50), attempt(55), attempt(60), attempt(64), UP],
        Invariant.S10,
    ),
    "too many bytes": ([*WELL, Sampled(at=5, process="gateway", inflight=1001)], Invariant.S11),
    "came before its date": ([attrs.evolve(SENT, not_before=4.0), ACKED, CAME], Invariant.S12),
    "expired without an end": (
        [SENT, ACKED, attrs.evolve(DEAD_LETTERED, reason=EXPIRED)],
        Invariant.S12,
    ),
    "overtaken": (
        [
            attrs.evolve(SENT, order="k"), ACKED, attrs.evolve(CAME, copy="2"),
            *of_second(3.0), attrs.evolve(CAME, message_id="2", copy="1"),
        ],
        Invariant.S13,
    ),
    "a session with two receivers": (
        [*WELL, accepted(10, "a"), accepted(20, "b"), served(21, "a")],
        Invariant.S14,
    ),
    "a session out of its order": (
        [*WELL, accepted(10, "a"), served(11, "a", 2), accepted(20, "b"), served(21, "b", 1)],
        Invariant.S14,
    ),
    "still by the backlog": (send(323, "1", accepted_by=AcceptedBy.BACKLOG), Invariant.L1),
    "still not answered well": ([*send(323, "1", Unknown)], Invariant.L1),
    "didn't come back": ([*WELL, *FAILS_OVER], Invariant.L2),
    "came back late": ([*WELL, *FAILS_OVER, moved(324, B, P)], Invariant.L2),
    "stuck on the backlog": ([*WELL, STUCK], Invariant.L3),
    "waited behind another's trouble": (
        [ANOTHER_DOWN, *diverted("1", 55, 77), attrs.evolve(UP, at=90)],
        Invariant.L4,
    ),
    "no answer for long": ([DOWN, UP, *send(51, "1", after=14.5)], Invariant.L5),
    "only failures for long": (
        [
            DOWN, UP, *send(51, "1", Unknown, after=10), *send(60, "2", Unknown, after=10),
            *send(69, "3"),
        ],
        Invariant.L5,
    ),
    "the syphon sends though nobody did": (
        [*WELL, attempt(400, End.BUSY, way=Way.SYPHON)],
        Invariant.L6,
    ),
    "asks too often": (
        [
            *WELL,
            Sampled(at=320, process="syphon", inflight=0),
            Sampled(at=380, process="syphon", inflight=0, polls=61),
        ],
        Invariant.L6,
    ),
    "spins": (
        [
            *WELL,
            Sampled(at=320, process="syphon", inflight=0),
            Sampled(at=380, process="syphon", inflight=0, processor=7.0),
        ],
        Invariant.L6,
    ),
}  # fmt: skip

HOLDS = {
    "delivered": (WELL, Invariant.S1),
    "dead-lettered for a good reason": (
        [SENT, ACKED, attrs.evolve(DEAD_LETTERED, reason="gone")],
        Invariant.S1,
    ),
    "unknown, and arrived": ([SENT, UNKNOWN, CAME], Invariant.S2),
    "not sent, and sent again": ([SENT, FAILED, SENT, ACKED, CAME], Invariant.S3),
    "its own end": (
        [attrs.evolve(SENT, expires=50.0), ACKED, attrs.evolve(CAME, expires=50.0)],
        Invariant.S4,
    ),
    "a fault of its own": (
        [*WELL, attrs.evolve(DOWN, entities=frozenset({"orders"})), UP, moved(60, P, S), BACK],
        Invariant.S5,
    ),
    "an operator": ([*WELL, moved(60, P, State.PINNED)], Invariant.S5),
    "the machine stood still": (
        [*WELL, attrs.evolve(DOWN, target=FaultTarget.HOST), UP, moved(60, P, S), BACK],
        Invariant.S5,
    ),
    "two copies that are explained": (
        [*WELL, UNCERTAIN, AGAIN, Swallowed(at=1, messages=1)],
        Invariant.S6,
    ),
    "two copies by an attempt without an answer": (
        [*WELL, attempt(1, End.UNKNOWN), AGAIN, Swallowed(at=1, messages=1)],
        Invariant.S6,
    ),
    "two copies of what a killed one had": (
        [*WELL, AGAIN, Killed(at=1, process="syphon", in_flight=1)],
        Invariant.S6,
    ),
    "acknowledged before the cut, and there": (
        [*WELL, Killed(at=5, process="primary", power_cut=True)],
        Invariant.S7,
    ),
    "completed after it was sent on": (diverted("1", 1, 2), Invariant.S8),
    "completed once more after an answer got lost": (
        [*diverted("1", 1, 2), Settled(at=9, process="s", queue="b", copy="1", message_id="1")],
        Invariant.S8,
    ),
    "an outage": ([*WELL, *FAILS_OVER, moved(101, B, P)], Invariant.S9),
    "a cut-off attempt may count": (
        [
            *WELL, DOWN, attempt(50, End.CUT_OFF), attempt(60, End.CUT_OFF), moved(60, P, B), UP,
            moved(101, B, P),
        ],
        Invariant.S9,
    ),
    "an outage, seen from outside": (
        [*WELL, DOWN, moved(120, P, B), UP, moved(121, B, P)],
        Invariant.S9,
    ),
    "after its interval, seen from outside": (
        [*WELL, DOWN, moved(60, P, B), UP, moved(101, B, P)],
        Invariant.S10,
    ),
    "after its interval": ([*WELL, *FAILS_OVER, moved(101, B, P)], Invariant.S10),
    "silence in between": (
        [*WELL, DOWN, attempt(50), attempt(61), attempt(70), UP, *FAILS_OVER[1:-1],
         moved(101, B, P)],
        Invariant.S10,
    ),
    "a pause in between": (
        [*WELL, DOWN, attempt(50), Paused(at=55, process="gateway"), attempt(61), attempt(66),
         attempt(71), moved(71, P, B), UP, moved(101, B, P)],
        Invariant.S10,
    ),
    "all bytes that are allowed": (
        [*WELL, Sampled(at=5, process="gateway", inflight=1000)],
        Invariant.S11,
    ),
    "overtaken by a send at the same time": (
        [
            attrs.evolve(SENT, order="k"), ACKED, attrs.evolve(CAME, copy="2"),
            *of_second(1.0), attrs.evolve(CAME, message_id="2", copy="1"),
        ],
        Invariant.S13,
    ),
    "a session that is passed on": (
        [*WELL, accepted(10, "a"), served(19.95, "a", 1), accepted(20, "b"), served(21, "b", 2)],
        Invariant.S14,
    ),
    "a session of two sides": (
        [*WELL, accepted(10, "a"), served(11, "a", 2, side=1), served(12, "a", 1)],
        Invariant.S14,
    ),
    "came at its date": ([attrs.evolve(SENT, not_before=2.0), ACKED, CAME], Invariant.S12),
    "by the backlog, soon after the healing": (
        [*send(322, "1", accepted_by=AcceptedBy.BACKLOG), *send(340, "2")],
        Invariant.L1,
    ),
    "came back in time": ([*WELL, *FAILS_OVER, moved(323, B, P)], Invariant.L2),
    "drained": (WELL, Invariant.L3),
    "waited for a lock": (
        [ANOTHER_DOWN, *diverted("1", 55, 75), attrs.evolve(UP, at=90)],
        Invariant.L4,
    ),
    "waited for its own rest": (
        [
            ANOTHER_DOWN, *diverted("1", 55, 99), attempt(56, End.BUSY, way=Way.SYPHON),
            attrs.evolve(UP, at=150),
        ],
        Invariant.L4,
    ),
    "an answer just in time": ([DOWN, UP, *send(51, "1", after=13.5)], Invariant.L5),
    "nobody was waiting": ([DOWN, UP, *send(51, "1"), *send(90, "2")], Invariant.L5),
    "both were in trouble": (
        [
            DOWN, UP, attrs.evolve(DOWN, fault="2", target=FaultTarget.SECONDARY, at=60),
            FaultEnded(at=100, fault="2"), *send(51, "1"), *send(61, "2", after=30),
        ],
        Invariant.L5,
    ),
    "asked to wait": (
        [
            DOWN, UP, attrs.evolve(DOWN, fault="2", kind="busy", at=60),
            FaultEnded(at=100, fault="2"), *send(51, "1"), *send(61, "2", after=30),
        ],
        Invariant.L5,
    ),
    "asks now and then": (
        [
            *WELL,
            Sampled(at=320, process="syphon", inflight=0),
            Sampled(at=380, process="syphon", inflight=0, polls=60, processor=5.0),
        ],
        Invariant.L6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_history_breaks_exactly_its_invariant(name):
    records, invariant = BROKEN[name]

    judgement = judge_run(run_of(records))

    assert judgement.undecided == ()
    assert judgement.with_validity(Validity.BROKEN) == [invariant]


MOMENTS = {Invariant.S10, *(each for each in Invariant if each.name.startswith("L"))}
MISROUTED = "another entity"  # breaks S5, whatever the machine has to do


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("load", [5.0, 5.1])
def test_a_machine_without_time_for_a_gateway_decides_neither_moments_nor_causes(name, load):
    records, invariant = BROKEN[name]
    busy = Sampled(at=311, process="gateway", inflight=0, load=load)

    judgement = judge_run(run_of([*records, busy]))

    causes = {Invariant.S5, Invariant.S9} if name != MISROUTED else set()
    doubted = load > 5.0 and invariant in MOMENTS | causes
    assert judgement.with_validity(Validity.BROKEN) == ([] if doubted else [invariant])
    assert (invariant in judgement.with_validity(Validity.UNDECIDED)) == doubted


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("late", [1.0, 1.1])
def test_a_harness_that_was_late_decides_neither_moments_nor_causes_nor_copies(name, late):
    records, invariant = BROKEN[name]
    sent = Invoked(at=50 + late, message_id="late", entity="late", fingerprint="f", due=50.0)
    answer = Unknown(at=50 + late, message_id="late")
    causes = {Invariant.S5, Invariant.S9} if name != MISROUTED else set()

    judgement = judge_run(run_of([*records, sent, answer]))

    doubted = late > 1.0 and invariant in MOMENTS | causes | {Invariant.S6}
    assert judgement.with_validity(Validity.BROKEN) == ([] if doubted else [invariant])
    assert (invariant in judgement.with_validity(Validity.UNDECIDED)) == doubted
    assert (judgement.late != "") == (late > 1.0)


@pytest.mark.parametrize("name", HOLDS)
def test_a_near_miss_breaks_nothing_and_was_judged(name):
    records, invariant = HOLDS[name]

    judgement = judge_run(run_of(records))

    assert judgement.undecided == ()
    assert judgement.with_validity(Validity.BROKEN) == []
    assert invariant in judgement.with_validity(Validity.HOLDS)


@pytest.mark.parametrize(("after", "validity"), [(10, Validity.HOLDS), (14.5, Validity.BROKEN)])
def test_where_unknown_outcomes_are_told_they_are_answers_in_time(after, validity):
    began = attrs.evolve(BEGAN, bounds=attrs.evolve(BEGAN.bounds, raises_unknown=True))
    sends = [*send(51, "1", Unknown, after=after), *send(60, "2", Unknown, after=10)]

    judgement = judge_run([began, DOWN, UP, *sends, *send(69, "3"), *END])

    assert Invariant.L5 in judgement.with_validity(validity)


def test_a_loss_after_a_power_cut_says_so():
    judgement = judge_run(run_of([SENT, ACKED, Killed(at=5, process="p", power_cut=True)]))

    assert judgement.with_validity(Validity.BROKEN) == [Invariant.S1, Invariant.S7]


def test_a_backlog_that_stays_is_late():
    end = [one for one in END if not isinstance(one, Drained)]

    judgement = judge_run([MAY_DEAD_LETTER, *WELL, *end])

    assert judgement.with_validity(Validity.BROKEN) == [Invariant.L3]


def test_a_backlog_that_is_drained_late_is_late():
    end = [attrs.evolve(one, at=352) if isinstance(one, Drained) else one for one in END]

    judgement = judge_run([MAY_DEAD_LETTER, *WELL, *end])

    assert judgement.with_validity(Validity.BROKEN) == [Invariant.L3]


def test_every_invariant_has_a_bad_history_and_a_near_miss():
    assert {invariant for _, invariant in BROKEN.values()} | {Invariant.S7} == set(Invariant)
    assert {invariant for _, invariant in HOLDS.values()} == set(Invariant)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (WELL, "there was no audit"),
        ([*WELL, *END, AuditFailed(at=502, queue="b", reason="x")], "couldn't read b"),
        ([*WELL, *END[:-1]], "didn't finish orders"),
        ([*WELL, *END, Opened(at=0, process="syphon")], "records of syphon"),
        ([*WELL, *END, BEGAN], "2 runs began"),
        (
            [*WELL, *END, Opened(at=9, process="s"), Killed(at=8, process="s")],
            "records of s since",
        ),
    ],
)
def test_nothing_is_decided_of_an_incomplete_history(records, reason):
    judgement = judge_run([MAY_DEAD_LETTER, *records])

    assert judgement.decisions == ()
    assert any(reason in text for text in judgement.undecided)


def test_nothing_is_decided_without_the_bounds():
    judgement = judge_run([*WELL, *END])

    assert judgement.undecided == ("0 runs began in these records",)


@pytest.mark.parametrize("end", [Closed(at=9, process="s"), Killed(at=9, process="s")])
def test_a_process_that_closed_its_records_or_was_killed_is_complete(end):
    judgement = judge_run(run_of([*WELL, Opened(at=0, process="s"), end]))

    assert judgement.undecided == ()


def without(*kinds):
    return [one for one in END if not isinstance(one, kinds)]


@pytest.mark.parametrize(
    ("records", "invariants"),
    [
        ([*WELL, attempt(1), *without(Sampled)], {Invariant.S11, Invariant.L6}),
        (
            [*WELL, attempt(1), *without(Healed)],
            {Invariant.L1, Invariant.L2, Invariant.L3},
        ),
        (
            [*WELL, SENT, FAILED, attempt(1), FaultEnded(at=401, fault="1"), *END],
            {Invariant.S3},
        ),
    ],
)
def test_an_invariant_that_the_history_does_not_show_is_undecided(records, invariants):
    judgement = judge_run([MAY_DEAD_LETTER, *records])

    assert set(judgement.with_validity(Validity.UNDECIDED)) == invariants


def test_an_invariant_that_could_not_have_been_broken_is_idle():
    judgement = judge_run(run_of(WELL))

    assert {Invariant.S7, Invariant.L2, Invariant.L4, Invariant.L5} <= set(
        judgement.with_validity(Validity.IDLE)
    )


def test_the_order_of_the_records_does_not_matter():
    records = run_of([*WELL, *FAILS_OVER, moved(101, B, P)])

    assert (
        judge_run(records).decisions
        == judge_run(sorted(records, key=lambda one: -one.at)).decisions
    )


def test_the_amplification_is_of_what_is_explained():
    judgement = judge_run(run_of([*WELL, UNCERTAIN, UNCERTAIN, AGAIN, Swallowed(at=1, messages=2)]))

    assert judgement.amplification == 0.5
