"""Each violation has one history that shows exactly it, and one near it that doesn't."""

from datetime import UTC, datetime, timedelta
from math import inf

import attrs
import pytest

from gateway.checker.history import Attempted, DeadLettered, End, VolumeLost, Way
from gateway.checker.operations import (
    Acked,
    AuditBegan,
    AuditFailed,
    Completed,
    CopyPlace,
    Delivered,
    Failed,
    Found,
    Invoked,
    QueueRead,
    Uncertain,
    Unknown,
    fingerprint,
)
from gateway.checker.verdict import EXPIRED, Rules, Violation, judge
from gateway.domain.message import AcceptedBy, Message, symbol
from gateway.store.engine import queue_content

AUDIT = (AuditBegan(at=100, queues=frozenset({"orders"})), QueueRead(at=101, queue="orders"))
INVOKED = Invoked(at=0, message_id="1", entity="orders", fingerprint="f")
MORTAL = attrs.evolve(INVOKED, expires=50)
ACKED = Acked(at=1, message_id="1")
FAILED = Failed(at=1, message_id="1")
UNKNOWN = Unknown(at=1, message_id="1")
UNCERTAIN = Uncertain(at=1, message_id="1")
DELIVERED = Delivered(at=2, message_id="1", entity="orders", fingerprint="f", copy="1")
NO_ANSWER = Attempted(
    at=1,
    process="gateway",
    entity="orders",
    message_ids=("1",),
    way=Way.PRIMARY,
    end=End.UNKNOWN,
    began=0,
)
AGAIN = attrs.evolve(DELIVERED, at=3, copy="2")
COMPLETED = Completed(at=2, entity="orders", copy="1")
ON_BACKLOG = Found(at=101, place=CopyPlace.BACKLOG, queue="b/0", message_id="1")
ON_PRIMARY = Found(at=101, place=CopyPlace.PRIMARY, queue="orders", message_id="1", copy="1")
DEAD = Found(
    at=101, place=CopyPlace.BACKLOG_DEAD_LETTER, queue="b/0/$dlq", message_id="1", reason="x"
)
DEAD_EXPIRED = attrs.evolve(DEAD, reason=EXPIRED)
GIVEN_UP = DeadLettered(at=51, process="syphon", message_id="1", began=50)
ALIVE = attrs.evolve(DELIVERED, expires=50.0)
BY_PRIMARY = attrs.evolve(ACKED, accepted_by=AcceptedBy.PRIMARY)
BY_BACKLOG = attrs.evolve(ACKED, accepted_by=AcceptedBy.BACKLOG)
LOST = VolumeLost(at=10, since=5)
LATER = attrs.evolve(INVOKED, at=6)

BAD = {
    "lost": ([INVOKED, ACKED], Violation.LOST),
    "lost, though one of two sends failed": ([INVOKED, FAILED, INVOKED, ACKED], Violation.LOST),
    "lost, its life not yet over": (
        [attrs.evolve(INVOKED, expires=101), ACKED],
        Violation.LOST,
    ),
    "lost, sent to the primary after it had lost its volume": (
        [LATER, attrs.evolve(BY_PRIMARY, at=11), LOST],
        Violation.LOST,
    ),
    "lost, and the backlog had it before": ([INVOKED, BY_BACKLOG, LOST], Violation.LOST),
    "lost, and nobody says where it was": ([INVOKED, ACKED, LOST], Violation.LOST),
    "lost, its first send with the volume": (
        [INVOKED, BY_PRIMARY, LOST, LATER, attrs.evolve(BY_PRIMARY, at=11)],
        Violation.LOST,
    ),
    "resurrected in the new volume": (
        [
            INVOKED, BY_BACKLOG, LOST, attrs.evolve(DELIVERED, at=12),
            attrs.evolve(COMPLETED, at=13), attrs.evolve(DELIVERED, at=14),
        ],
        Violation.RESURRECTED,
    ),
    "one copy in each volume": (
        [INVOKED, BY_BACKLOG, DELIVERED, LOST, attrs.evolve(DELIVERED, at=12)],
        Violation.DUPLICATED,
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
    "failed, and dead-lettered": ([INVOKED, FAILED, DEAD], Violation.ABORTED),
    "two copies": ([INVOKED, ACKED, DELIVERED, AGAIN], Violation.DUPLICATED),
    "two copies, one found by the audit": (
        [INVOKED, ACKED, DELIVERED, attrs.evolve(ON_PRIMARY, copy="2")],
        Violation.DUPLICATED,
    ),
    "three copies, one uncertain": (
        [INVOKED, ACKED, UNCERTAIN, DELIVERED, AGAIN, attrs.evolve(AGAIN, copy="3")],
        Violation.DUPLICATED,
    ),
    "three copies, one attempt without an answer": (
        [INVOKED, ACKED, NO_ANSWER, DELIVERED, AGAIN, attrs.evolve(AGAIN, copy="3")],
        Violation.DUPLICATED,
    ),
    "two copies, though one of two sends failed": (
        [INVOKED, FAILED, INVOKED, ACKED, DELIVERED, AGAIN],
        Violation.DUPLICATED,
    ),
    "stuck": ([INVOKED, ACKED, ON_BACKLOG], Violation.STUCK),
    "stuck, of an unknown send": ([INVOKED, UNKNOWN, ON_BACKLOG], Violation.STUCK),
    "a stuck second copy": ([INVOKED, ACKED, DELIVERED, ON_BACKLOG], Violation.STUCK),
    "dead_lettered": ([INVOKED, ACKED, DEAD], Violation.DEAD_LETTERED),
    "dead-lettered as expired, which it wasn't": (
        [attrs.evolve(INVOKED, expires=101), ACKED, DEAD_EXPIRED],
        Violation.DEAD_LETTERED,
    ),
    "dead-lettered as expired, though one of two sends has no end": (
        [MORTAL, UNKNOWN, INVOKED, ACKED, DEAD_EXPIRED],
        Violation.DEAD_LETTERED,
    ),
    "dead-lettered as expired, before its end": (
        [MORTAL, ACKED, attrs.evolve(GIVEN_UP, began=49.9), DEAD_EXPIRED],
        Violation.DEAD_LETTERED,
    ),
    "dead-lettered as expired, without an end": ([INVOKED, ACKED, DEAD_EXPIRED], Violation.MORTAL),
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
    "resurrected, and completed again": (
        [
            INVOKED, ACKED, DELIVERED, COMPLETED,
            attrs.evolve(DELIVERED, at=3), attrs.evolve(COMPLETED, at=4),
        ],
        Violation.RESURRECTED,
    ),
    "completed, and found by the audit": (
        [INVOKED, ACKED, DELIVERED, COMPLETED, ON_PRIMARY],
        Violation.RESURRECTED,
    ),
}  # fmt: skip

GOOD = {
    "delivered": [INVOKED, ACKED, DELIVERED, COMPLETED],
    "answered as the audit begins": [INVOKED, attrs.evolve(ACKED, at=100), DELIVERED],
    "still on the primary": [INVOKED, ACKED, ON_PRIMARY],
    "still on the primary, as it was sent": [
        INVOKED, ACKED, attrs.evolve(ON_PRIMARY, fingerprint="f"),
    ],
    "expired": [MORTAL, ACKED],
    "dead-lettered at its end": [MORTAL, ACKED, GIVEN_UP, DEAD_EXPIRED],
    "dead-lettered once more, as nobody confirmed it": [
        MORTAL, ACKED, GIVEN_UP, attrs.evolve(GIVEN_UP, began=60), DEAD_EXPIRED,
    ],
    "dead-lettered too early, unconfirmed, and once more": [
        MORTAL, ACKED, attrs.evolve(GIVEN_UP, began=49.9), GIVEN_UP, DEAD_EXPIRED,
    ],
    "dead-lettered at the end of the first of two sends": [
        MORTAL, UNKNOWN, attrs.evolve(MORTAL, at=30, expires=80), ACKED, GIVEN_UP, DEAD_EXPIRED,
    ],
    "expired as the audit begins": [attrs.evolve(INVOKED, expires=100), ACKED],
    "failed, and nowhere": [INVOKED, FAILED],
    "unknown, and vanished": [INVOKED, UNKNOWN],
    "unknown, and arrived": [INVOKED, UNKNOWN, DELIVERED],
    "no answer, and arrived": [INVOKED, DELIVERED],
    "failed, sent again, and arrived": [INVOKED, FAILED, INVOKED, ACKED, DELIVERED],
    "sent twice, two copies": [INVOKED, UNKNOWN, INVOKED, ACKED, DELIVERED, AGAIN],
    "one attempt without an answer, two copies": [INVOKED, ACKED, NO_ANSWER, DELIVERED, AGAIN],
    "one attempt that was cut off, two copies": [
        INVOKED, ACKED, attrs.evolve(NO_ANSWER, end=End.CUT_OFF), DELIVERED, AGAIN,
    ],
    "one attempt uncertain, two copies": [INVOKED, ACKED, UNCERTAIN, DELIVERED, AGAIN],
    "a redelivery": [INVOKED, ACKED, DELIVERED, attrs.evolve(DELIVERED, at=3)],
    "delivered, and found by the audit": [INVOKED, ACKED, DELIVERED, ON_PRIMARY],
    "a redelivery before the completion": [
        INVOKED, ACKED, DELIVERED, attrs.evolve(DELIVERED, at=3), attrs.evolve(COMPLETED, at=4),
    ],
    "another copy with the number of one that was completed": [
        INVOKED, ACKED, ON_PRIMARY, attrs.evolve(INVOKED, message_id="2"),
        attrs.evolve(DELIVERED, message_id="2"), COMPLETED,
    ],
    "completed twice": [
        INVOKED, ACKED, DELIVERED, COMPLETED, attrs.evolve(COMPLETED, at=4),
    ],
    "expired on the backlog": [MORTAL, ACKED, DEAD_EXPIRED],
    "dead-lettered for a good reason": [INVOKED, ACKED, attrs.evolve(DEAD, reason="gone")],
    "scheduled, in time": [attrs.evolve(INVOKED, not_before=2), ACKED, DELIVERED],
    "scheduled, at the end of the slack": [attrs.evolve(INVOKED, not_before=3), ACKED, DELIVERED],
    "scheduled, within the slack": [attrs.evolve(INVOKED, not_before=2.9), ACKED, DELIVERED],
    "lives as long": [MORTAL, ACKED, attrs.evolve(ALIVE, expires=60)],
    "immortal": [INVOKED, ACKED, attrs.evolve(DELIVERED, expires=inf)],
    "lives as long as its second send": [
        MORTAL, UNKNOWN, attrs.evolve(MORTAL, at=30, expires=80), ACKED,
        attrs.evolve(ALIVE, expires=80),
    ],
    "lost with the primary's volume": [INVOKED, BY_PRIMARY, LOST],
    "lost with the first of two volumes": [
        INVOKED, BY_PRIMARY, LOST, VolumeLost(at=30, since=20),
    ],
    "a new volume counts copies from 1 again": [
        INVOKED, BY_PRIMARY, DELIVERED, COMPLETED, LOST,
        attrs.evolve(LATER, message_id="2"), attrs.evolve(BY_PRIMARY, at=11, message_id="2"),
        attrs.evolve(DELIVERED, at=12, message_id="2"),
    ],
    "a redelivery before the volume is lost, and no copy": [
        INVOKED, BY_PRIMARY, DELIVERED, attrs.evolve(DELIVERED, at=9), LOST,
    ],
    "delivered in the new volume, and found by the audit": [
        LATER, BY_BACKLOG, LOST, attrs.evolve(DELIVERED, at=12), ON_PRIMARY,
    ],
    "the same copy number in two entities": [
        INVOKED, ACKED, DELIVERED, attrs.evolve(INVOKED, message_id="2", entity="invoices"),
        attrs.evolve(DELIVERED, message_id="2", entity="invoices"),
    ],
}  # fmt: skip

RULES = Rules(expiry_slack=10, schedule_slack=1, expected_reasons=frozenset({"gone"}))


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
        [*AUDIT, INVOKED, ACKED, FAILED],
    ],
)
def test_an_incomplete_history_is_not_judged(records):
    verdict = judge(records)

    assert verdict.undecided
    assert verdict.findings == ()
    assert not verdict.passed


@pytest.mark.parametrize(
    ("records", "broken"),
    [
        ([attrs.evolve(INVOKED, not_before=3), ACKED, DELIVERED], set()),
        ([attrs.evolve(INVOKED, not_before=3.1), ACKED, DELIVERED], {Violation.EARLY}),
        ([MORTAL, ACKED, attrs.evolve(ALIVE, expires=50.5)], {Violation.WRONG_EXPIRY}),
        ([INVOKED, ACKED, DELIVERED, AGAIN], {Violation.DUPLICATED}),
        ([INVOKED, ACKED, attrs.evolve(DEAD, reason="gone")], {Violation.DEAD_LETTERED}),
    ],
)
def test_without_rules_only_a_second_of_a_date_is_tolerated(records, broken):
    assert judge([*records, *AUDIT]).broken() == broken


def test_spare_duplicates_are_for_the_whole_run():
    other = [attrs.evolve(record, message_id="2") for record in (INVOKED, ACKED, DELIVERED, AGAIN)]
    records = [INVOKED, ACKED, DELIVERED, AGAIN, *other, *AUDIT]

    assert judge(records, Rules(spare_duplicates=2)).passed
    assert judge(records, Rules(spare_duplicates=1)).broken() == {Violation.DUPLICATED}


def test_the_counts_say_what_became_of_the_messages():
    records = [INVOKED, ACKED, UNCERTAIN, DELIVERED, DELIVERED, AGAIN]
    for number, answer in (("2", UNKNOWN), ("3", FAILED), ("4", UNKNOWN), ("5", UNKNOWN)):
        records += [attrs.evolve(record, message_id=number) for record in (INVOKED, answer)]
    records.append(attrs.evolve(DELIVERED, message_id="4", copy="4"))
    records.append(attrs.evolve(DELIVERED, message_id="5", copy="5"))

    counts = judge([*records, *AUDIT]).counts

    assert +counts == {
        "acked": 1, "failed": 1, "unknown": 3, "duplicated": 1, "redelivered": 1,
        "recovered": 2, "vanished": 1, "allowed": 1,
    }  # fmt: skip


def test_an_expired_message_is_counted_where_no_copy_arrived_and_a_dead_letter_too():
    records = []
    for number, fate in (("1", ALIVE), ("2", DEAD_EXPIRED), ("3", None)):
        happened = [MORTAL, ACKED] if fate is None else [MORTAL, ACKED, fate]
        records += [attrs.evolve(record, message_id=number) for record in happened]

    counts = +judge([*records, *AUDIT], RULES).counts
    assert counts == {"acked": 3, "expired": 2, "dead_lettered": 1}


def test_a_message_that_perished_with_the_volume_is_counted():
    assert +judge([INVOKED, BY_PRIMARY, LOST, *AUDIT]).counts == {"acked": 1, "perished": 1}


def test_a_finding_says_where_and_how_often():
    stray = judge([DELIVERED, ON_BACKLOG, *AUDIT]).findings
    double = judge([INVOKED, FAILED, INVOKED, ACKED, DELIVERED, AGAIN, *AUDIT]).findings

    assert [str(one) for one in stray] == ["1: found, and never sent (in b/0, orders)"]
    assert [one.detail for one in double] == ["2 copies, 2 sends of which 1 failed, 0 uncertain"]


def test_the_verdict_knows_the_stores_reason_for_expired_messages():
    assert queue_content.EXPIRED.reason == EXPIRED


@pytest.mark.parametrize(
    "change",
    [{"body": b"b"}, {"session_id": "s"}, {"subject": "s"}, {"properties": {"a": 1}}, {"to": "t"}],
)
def test_the_fingerprint_is_of_what_must_arrive(change):
    message = Message(message_id="1", body=b"a", properties={"a": 2, "b": 3})

    assert fingerprint(message) != fingerprint(attrs.evolve(message, **change))


@pytest.mark.parametrize("section", ["properties", "annotations", "footer"])
@pytest.mark.parametrize("keys", [("a", "b"), (symbol("a"), symbol("b"))], ids=["text", "symbols"])
def test_the_fingerprint_ignores_the_order_in_a_section(section, keys):
    there = dict.fromkeys(keys, 1)
    back = dict.fromkeys(reversed(keys), 1)

    assert fingerprint(Message(**{section: there})) == fingerprint(Message(**{section: back}))


@pytest.mark.parametrize(
    "change",
    [
        {"time_to_live": timedelta(seconds=1)},
        {"scheduled": datetime(2026, 1, 1, tzinfo=UTC)},
        {"absolute_expiry": datetime(2026, 1, 1, tzinfo=UTC)},
        {"partition_key": "s"},
        {"encoded": b"x"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_fingerprint_is_not_of_what_changes_on_the_way(change):
    message = Message(message_id="1")

    assert fingerprint(message) == fingerprint(attrs.evolve(message, **change))


def test_the_fingerprint_is_not_of_how_a_message_was_written():
    message, written = Message(message_id="1"), Message(message_id="1")
    object.__setattr__(written, "written", (b"bytes",))

    assert fingerprint(message) == fingerprint(written)
