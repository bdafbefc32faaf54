"""For every violation one history that shows exactly it, and one near it that doesn't."""

from math import inf

import attrs
import pytest

from gateway.domain.history import (
    Acked,
    AuditBegan,
    AuditFailed,
    Completed,
    Delivered,
    Failed,
    Found,
    Invoked,
    Place,
    QueueRead,
    Uncertain,
    Unknown,
    fingerprint,
)
from gateway.domain.message import Message
from gateway.domain.verdict import EXPIRED, Rules, Violation, judge

AUDIT = (AuditBegan(at=100, queues=frozenset({"orders"})), QueueRead(at=101, queue="orders"))
INVOKED = Invoked(at=0, message_id="1", entity="orders", fingerprint="f")
MORTAL = attrs.evolve(INVOKED, expires=50)
ACKED = Acked(at=1, message_id="1")
FAILED = Failed(at=1, message_id="1")
UNKNOWN = Unknown(at=1, message_id="1")
UNCERTAIN = Uncertain(at=1, message_id="1")
DELIVERED = Delivered(at=2, message_id="1", entity="orders", fingerprint="f", copy="1")
AGAIN = attrs.evolve(DELIVERED, at=3, copy="2")
COMPLETED = Completed(at=2, entity="orders", copy="1")
ON_BACKLOG = Found(at=101, place=Place.BACKLOG, queue="b/0", message_id="1")
ON_PRIMARY = Found(at=101, place=Place.PRIMARY, queue="orders", message_id="1", copy="1")
DEAD = Found(at=101, place=Place.BACKLOG_DEAD_LETTER, queue="b/0/$dlq", message_id="1", reason="x")
DEAD_EXPIRED = attrs.evolve(DEAD, reason=EXPIRED)
ALIVE = attrs.evolve(DELIVERED, expires=50.0)

BAD = {
    "lost": ([INVOKED, ACKED], Violation.LOST),
    "lost, though one of two sends failed": ([INVOKED, FAILED, INVOKED, ACKED], Violation.LOST),
    "lost, its life not yet over": (
        [attrs.evolve(INVOKED, expires=101), ACKED],
        Violation.LOST,
    ),
    "unexpected at the primary": ([DELIVERED], Violation.UNEXPECTED),
    "unexpected on the backlog": ([ON_BACKLOG], Violation.UNEXPECTED),
    "misrouted": (
        [INVOKED, ACKED, attrs.evolve(DELIVERED, entity="invoices")],
        Violation.MISROUTED,
    ),
    "misrouted, found by the audit": (
        [INVOKED, ACKED, attrs.evolve(ON_PRIMARY, queue="invoices")],
        Violation.MISROUTED,
    ),
    "corrupt": ([INVOKED, ACKED, attrs.evolve(DELIVERED, fingerprint="g")], Violation.CORRUPT),
    "corrupt, found by the audit": (
        [INVOKED, ACKED, attrs.evolve(ON_PRIMARY, fingerprint="g")],
        Violation.CORRUPT,
    ),
    "failed, and delivered": ([INVOKED, FAILED, DELIVERED], Violation.ABORTED),
    "failed, and parked": ([INVOKED, FAILED, DEAD], Violation.ABORTED),
    "two copies": ([INVOKED, ACKED, DELIVERED, AGAIN], Violation.DUPLICATED),
    "two copies, one found by the audit": (
        [INVOKED, ACKED, DELIVERED, attrs.evolve(ON_PRIMARY, copy="2")],
        Violation.DUPLICATED,
    ),
    "three copies, one uncertain": (
        [INVOKED, ACKED, UNCERTAIN, DELIVERED, AGAIN, attrs.evolve(AGAIN, copy="3")],
        Violation.DUPLICATED,
    ),
    "two copies, though one of two sends failed": (
        [INVOKED, FAILED, INVOKED, ACKED, DELIVERED, AGAIN],
        Violation.DUPLICATED,
    ),
    "stuck": ([INVOKED, ACKED, ON_BACKLOG], Violation.STUCK),
    "stuck, of an unknown send": ([INVOKED, UNKNOWN, ON_BACKLOG], Violation.STUCK),
    "a stuck second copy": ([INVOKED, ACKED, DELIVERED, ON_BACKLOG], Violation.STUCK),
    "parked": ([INVOKED, ACKED, DEAD], Violation.PARKED),
    "parked as expired, which it wasn't": (
        [attrs.evolve(INVOKED, expires=101), ACKED, DEAD_EXPIRED],
        Violation.PARKED,
    ),
    "parked as expired, without an end": ([INVOKED, ACKED, DEAD_EXPIRED], Violation.MORTAL),
    "early": (
        [attrs.evolve(INVOKED, not_before=3.5), ACKED, DELIVERED],
        Violation.EARLY,
    ),
    "lives longer": ([MORTAL, ACKED, attrs.evolve(ALIVE, expires=61)], Violation.WRONG_EXPIRY),
    "lives shorter": ([MORTAL, ACKED, attrs.evolve(ALIVE, expires=39)], Violation.WRONG_EXPIRY),
    "lives for ever": ([MORTAL, ACKED, attrs.evolve(ALIVE, expires=inf)], Violation.WRONG_EXPIRY),
    "mortal now": ([INVOKED, ACKED, ALIVE], Violation.WRONG_EXPIRY),
    "resurrected": (
        [INVOKED, ACKED, DELIVERED, COMPLETED, attrs.evolve(DELIVERED, at=3)],
        Violation.RESURRECTED,
    ),
}

GOOD = {
    "delivered": [INVOKED, ACKED, DELIVERED, COMPLETED],
    "still on the primary": [INVOKED, ACKED, ON_PRIMARY],
    "expired": [MORTAL, ACKED],
    "failed, and nowhere": [INVOKED, FAILED],
    "unknown, and vanished": [INVOKED, UNKNOWN],
    "unknown, and arrived": [INVOKED, UNKNOWN, DELIVERED],
    "no answer, and arrived": [INVOKED, DELIVERED],
    "failed, sent again, and arrived": [INVOKED, FAILED, INVOKED, ACKED, DELIVERED],
    "sent twice, two copies": [INVOKED, UNKNOWN, INVOKED, ACKED, DELIVERED, AGAIN],
    "one attempt uncertain, two copies": [INVOKED, ACKED, UNCERTAIN, DELIVERED, AGAIN],
    "a redelivery": [INVOKED, ACKED, DELIVERED, attrs.evolve(DELIVERED, at=3)],
    "delivered, and found by the audit": [INVOKED, ACKED, DELIVERED, ON_PRIMARY],
    "a redelivery before the completion": [
        INVOKED, ACKED, DELIVERED, attrs.evolve(DELIVERED, at=3), attrs.evolve(COMPLETED, at=4),
    ],
    "expired on the backlog": [MORTAL, ACKED, DEAD_EXPIRED],
    "parked for a good reason": [INVOKED, ACKED, attrs.evolve(DEAD, reason="gone")],
    "scheduled, in time": [attrs.evolve(INVOKED, not_before=2), ACKED, DELIVERED],
    "scheduled, within the slack": [attrs.evolve(INVOKED, not_before=2.9), ACKED, DELIVERED],
    "lives as long": [MORTAL, ACKED, attrs.evolve(ALIVE, expires=60)],
    "immortal": [INVOKED, ACKED, attrs.evolve(DELIVERED, expires=inf)],
    "lives as long as its second send": [
        MORTAL, UNKNOWN, attrs.evolve(MORTAL, at=30, expires=80), ACKED,
        attrs.evolve(ALIVE, expires=80),
    ],
    "the same copy number in two entities": [
        INVOKED, ACKED, DELIVERED, attrs.evolve(INVOKED, message_id="2", entity="invoices"),
        attrs.evolve(DELIVERED, message_id="2", entity="invoices"),
    ],
}  # fmt: skip

RULES = Rules(expiry_slack=10, schedule_slack=1, parkable=frozenset({"gone"}))


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_shows_exactly_its_violation(name):
    records, violation = BAD[name]

    verdict = judge([*records, *AUDIT], RULES)

    assert verdict.broken() == {violation}
    assert not verdict.passed


@pytest.mark.parametrize("name", GOOD)
def test_a_near_miss_is_no_violation(name):
    verdict = judge([*GOOD[name], *AUDIT], RULES)

    assert verdict.findings == ()
    assert verdict.passed


@pytest.mark.parametrize("name", BAD)
def test_the_order_of_the_records_does_not_matter(name):
    records, violation = BAD[name]

    verdict = judge([*AUDIT, *reversed(records)], RULES)

    assert verdict.broken() == {violation}


def test_every_violation_has_a_bad_history():
    assert {violation for _, violation in BAD.values()} == set(Violation)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [AUDIT[0]],
        [*AUDIT, AuditFailed(at=101, queue="orders", reason="refused")],
        [*AUDIT, INVOKED, attrs.evolve(ACKED, at=100.5)],
        [*AUDIT, ACKED],
        [*AUDIT, INVOKED, ACKED, UNKNOWN],
    ],
)
def test_an_incomplete_history_is_not_judged(records):
    verdict = judge(records)

    assert verdict.undecided
    assert verdict.findings == ()
    assert not verdict.passed


def test_spare_duplicates_are_for_the_whole_run():
    other = [attrs.evolve(record, message_id="2") for record in (INVOKED, ACKED, DELIVERED, AGAIN)]
    records = [INVOKED, ACKED, DELIVERED, AGAIN, *other, *AUDIT]

    assert judge(records, Rules(spare_duplicates=2)).passed
    assert judge(records, Rules(spare_duplicates=1)).broken() == {Violation.DUPLICATED}


def test_the_counts_say_what_became_of_the_messages():
    records = [INVOKED, ACKED, UNCERTAIN, DELIVERED, DELIVERED, AGAIN]
    for number, answer in (("2", UNKNOWN), ("3", FAILED), ("4", UNKNOWN)):
        records += [attrs.evolve(record, message_id=number) for record in (INVOKED, answer)]
    records.append(attrs.evolve(DELIVERED, message_id="4", copy="4"))

    counts = judge([*records, *AUDIT]).counts

    assert +counts == {
        "acked": 1, "failed": 1, "unknown": 2, "duplicated": 1, "redelivered": 1,
        "recovered": 1, "vanished": 1, "allowed": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"body": b"b"}, {"session_id": "s"}, {"subject": "s"}, {"properties": {"a": 1}}, {"to": "t"}],
)
def test_the_fingerprint_is_of_what_must_arrive(change):
    message = Message(message_id="1", body=b"a", properties={"a": 2, "b": 3})

    assert fingerprint(message) != fingerprint(attrs.evolve(message, **change))


def test_the_fingerprint_ignores_the_order_of_properties():
    message = Message(message_id="1", properties={"a": 2, "b": 3})

    assert fingerprint(message) == fingerprint(
        attrs.evolve(message, properties={"b": 3, "a": 2}, partition_key="s")
    )
