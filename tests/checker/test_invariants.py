"""
Each invariant reports the number of occasions on which it was judged, and S3 that it can't be
decided.
"""

import attrs
import pytest

from gateway.checker.history import Drained, Healed
from gateway.checker.invariants import judge_run
from gateway.checker.judgements import Invariant, Validity
from gateway.checker.operations import Completed, CopyPlace, Delivered, Found
from tests.chaos.invariants import (
    ACKED,
    AGAIN,
    CAME,
    END,
    FAILED,
    MAY_DEAD_LETTER,
    SENT,
    STUCK,
    UNKNOWN,
    WELL,
    run_of,
)


def decided(records):
    return {one.invariant: one for one in judge_run(records).decisions}


def of(message, *records):
    return [attrs.evolve(record, message_id=message) for record in records]


def test_each_invariant_counts_what_could_have_broken_it():
    mortal = attrs.evolve(SENT, expires=50.0)
    found = Found(at=501, place=CopyPlace.PRIMARY, queue="orders", message_id="5", fingerprint="f")
    records = [
        SENT, ACKED, SENT, ACKED, CAME, AGAIN,
        Completed(at=9, entity="orders", copy="1"), Completed(at=9, entity="orders", copy="2"),
        *of("2", SENT, FAILED),
        *of("3", attrs.evolve(mortal, not_before=0.5), FAILED),
        *of("4", attrs.evolve(mortal, not_before=0.0), FAILED),
        *of("5", SENT, UNKNOWN, found),
        *of("6", mortal, UNKNOWN, found),
    ]  # fmt: skip

    judged = {key: one.judged for key, one in decided(run_of(records)).items()}

    assert {key.name: judged[key] for key in Invariant if key.name.startswith("S")} == {
        "S1": 1,  # message that was acknowledged
        "S2": 4,  # copies that arrived
        "S3": 3,  # messages that weren't sent
        "S4": 4,
        "S5": 4,
        "S6": 7,  # messages, and the whole run seen from outside
        "S7": 0,
        "S8": 2,  # completions
        "S9": 0,
        "S10": 0,
        "S11": 1,
        "S12": 5,  # sends with a date, or without an end
        "S13": 0,
        "S14": 0,
    }


def test_a_message_that_stays_on_the_backlog_is_one_occasion_more():
    decision = decided(run_of([*WELL, STUCK]))[Invariant.L3]

    assert (decision.validity, decision.judged) == (Validity.BROKEN, 1)


@pytest.mark.parametrize(("healed", "validity"), [(400, Validity.HOLDS), (401, Validity.UNDECIDED)])
def test_a_message_that_was_not_sent_may_arrive_until_the_horizon_after_the_last_fault(
    healed, validity
):
    end = [attrs.evolve(one, at=healed) if isinstance(one, Healed) else one for one in END]
    end = [attrs.evolve(one, at=healed) if isinstance(one, Drained) else one for one in end]

    assert decided([MAY_DEAD_LETTER, SENT, FAILED, *end])[Invariant.S3].validity is validity


def test_without_any_fault_nothing_is_on_its_way():
    end = [one for one in END if not isinstance(one, Healed)]

    assert decided([MAY_DEAD_LETTER, SENT, FAILED, *end])[Invariant.S3].validity is Validity.HOLDS


def test_a_message_that_never_arrives_breaks_nothing_late():
    late = Delivered(at=499, message_id="1", entity="orders", fingerprint="f", copy="1")

    assert decided(run_of([SENT, FAILED]))[Invariant.S3].validity is Validity.HOLDS
    assert decided(run_of([SENT, FAILED, late]))[Invariant.S3].validity is Validity.BROKEN


def test_a_copy_that_nothing_explains_is_amplified_alone():
    assert judge_run(run_of([*WELL, AGAIN])).amplification == 1.0


def test_where_nothing_can_be_decided_nothing_is_amplified():
    assert judge_run(WELL).amplification == 0.0
