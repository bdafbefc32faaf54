"""
Judges a history: was a message lost, duplicated, changed or invented?

Jepsen's total-queue checker, with routing, content, expiry, a bound on duplicates, and the
difference between "not sent" and "unknown" added.
"""

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

import attrs

from gateway.checker.clock_doubts import ROUNDING, Dates
from gateway.checker.history import (
    MAY_HAVE_ARRIVED,
    Attempted,
    ClockSet,
    DeadLettered,
    FaultBegan,
    FaultEnded,
    Run,
    VolumeLost,
)
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
    Record,
    Uncertain,
    Unknown,
)
from gateway.checker.wall_clocks import WallClocks
from gateway.domain.message import AcceptedBy

EXPIRED: Final = "TTLExpiredException"  # Service Bus's dead-letter reason


class Violation(enum.Enum):
    LOST = "accepted, and nowhere"
    UNEXPECTED = "found, and never sent"
    MISROUTED = "arrived at another entity"
    CORRUPT = "arrived, and isn't what was sent"
    ABORTED = "answered as not sent, and arrived"
    DUPLICATED = "more copies than unknown outcomes explain"
    STUCK = "still on the backlog"
    DEAD_LETTERED = "dead-lettered for no good reason"
    MORTAL = "expired, and was sent to live for ever"
    EARLY = "delivered before its scheduled date"
    WRONG_EXPIRY = "lives longer or shorter than it was sent to"
    RESURRECTED = "delivered again after its completion was confirmed"


@attrs.frozen
class Finding:
    """A broken rule, the message that broke it, and an explanation."""

    violation: Violation
    message_id: str
    detail: str

    def __str__(self) -> str:
        return f"{self.message_id}: {self.violation.value} ({self.detail})"


@attrs.frozen(kw_only=True)
class Rules:
    """
    The tolerances of the checker. Times are seconds.

    A namespace counts the time to live from a message's arrival, less the time that the message has
    lived in the gateway and on the backlog; a history counts it from the send. `expiry_slack`
    bounds the difference: the message's time in transit to the gateway and from there.
    `spare_duplicates` are copies without an `Uncertain` record, such as those in flight when a
    process was killed. `clock_grace` is how long a namespace trusts no date after a step of its
    clock, if clocks were set.
    """

    expiry_slack: float = 0.0
    schedule_slack: float = 1.0  # a date in an HTTP header has whole seconds
    spare_duplicates: int = 0
    expected_reasons: frozenset[str] = frozenset()  # expected dead-letter reasons besides `EXPIRED`
    clock_grace: float = 60.0


@attrs.frozen(kw_only=True)
class Verdict:
    """
    The findings about a history. `undecided` is the reason if nothing can be decided.

    `counts` has acked, failed, unknown (messages by answer), duplicated (extra copies),
    redelivered, recovered and vanished (of the unknown), expired, dead-lettered, perished (with the
    primary's volume), and allowed (extra copies that repeated sends and unknown outcomes explain,
    whether they arrived or not).
    """

    undecided: tuple[str, ...]
    findings: tuple[Finding, ...]
    counts: Mapping[str, int]

    @property
    def passed(self) -> bool:
        return not self.undecided and not self.findings

    def broken(self) -> set[Violation]:
        return {finding.violation for finding in self.findings}


def judge(records: Iterable[Record], rules: Rules | None = None) -> Verdict:
    """
    Judge a whole history.

    Nothing is judged unless the audit is complete: a queue that wasn't read could hold a message
    that seems lost. An answer without its `Invoked`, or after the audit began, shows that the
    recorder is broken.
    """
    history = _History.of(records)
    if undecided := tuple(history.gaps()):
        return Verdict(undecided=undecided, findings=(), counts={})
    rules = Rules() if rules is None else rules
    findings = list(history.resurrected())
    counts: Counter[str] = Counter()
    spare = rules.spare_duplicates
    clocks = WallClocks.of(history.clocks, Run.of(history.faults).unwatched())
    for message in history.messages.values():
        if not clocks.are_right:
            message.dates = history.dates(message, clocks, rules)
        findings.extend(message.broken_rules(rules, history.audit_began))
        excess = message.excess_copies()
        if excess > spare:
            findings.append(Finding(Violation.DUPLICATED, message.id, message.describe_copies()))
        spare -= min(excess, spare)
        counts.update(message.counted(history.audit_began))
    return Verdict(undecided=(), findings=tuple(findings), counts=counts)


@attrs.define(eq=False)
class _Fate:
    """All records of one message id."""

    id: str
    invoked: list[Invoked] = attrs.field(factory=list)
    acked: int = 0
    failed: int = 0
    unknown: int = 0
    uncertain: int = 0
    accepted_by: set[AcceptedBy | None] = attrs.field(factory=set)
    lost_before: float = -inf  # what the primary took until then, it lost with its volume
    delivered: list[Delivered] = attrs.field(factory=list)
    found: list[Found] = attrs.field(factory=list)
    dead_lettered: list[DeadLettered] = attrs.field(factory=list)
    dates: Dates | None = None  # None: all clocks were right

    @property
    def outcome(self) -> str:
        """
        A message with a successful send is acknowledged; it has failed only if every send failed.
        """
        if self.acked:
            return "acked"
        return "failed" if self.invoked and self.failed == len(self.invoked) else "unknown"

    @property
    def copies(self) -> set[tuple[str, str]]:
        """The stored copies that reached the primary, according to all readers."""
        on_primary = [(found.queue, found.copy) for found in self.found_in(CopyPlace.PRIMARY)]
        return {(each.entity, each.copy) for each in self.delivered}.union(on_primary)

    @property
    def allowed(self) -> int:
        """
        Each send that may have worked makes a copy, and each unknown attempt may make one more.
        """
        return max(1, len(self.invoked) - self.failed) + self.uncertain

    def excess_copies(self) -> int:
        """Copies that no record explains."""
        return max(0, len(self.copies) - self.allowed)

    def describe_copies(self) -> str:
        return (
            f"{len(self.copies)} copies, {len(self.invoked)} sends of which {self.failed} failed,"
            f" {self.uncertain} uncertain"
        )

    def broken_rules(self, rules: Rules, audit_began: float) -> Iterator[Finding]:
        if not self.invoked:
            yield Finding(Violation.UNEXPECTED, self.id, self._describe_places())
            return
        if self.outcome == "failed" and (self.delivered or self.found):
            yield Finding(Violation.ABORTED, self.id, self._describe_places())
        if self._is_lost(audit_began):
            yield Finding(Violation.LOST, self.id, f"sent at {self.invoked[0].at}")
        for backlog in self.found_in(CopyPlace.BACKLOG):
            yield Finding(Violation.STUCK, self.id, f"in {backlog.queue}")
        yield from self._badly_dead_lettered(rules, audit_began)
        for each in self.delivered:
            yield from self._badly_delivered(each, rules)
        yield from self._badly_found()

    def _is_lost(self, audit_began: float) -> bool:
        nowhere = self.outcome == "acked" and not self.copies and not self.found
        return nowhere and not self._expired_by(audit_began) and not self._perished()

    def _perished(self) -> bool:
        """True if only the primary accepted it, and before it lost its volume."""
        by_primary = self.accepted_by == {AcceptedBy.PRIMARY}
        return by_primary and all(sent.at <= self.lost_before for sent in self.invoked)

    def _badly_dead_lettered(self, rules: Rules, audit_began: float) -> Iterator[Finding]:
        for found in self._dead_letters():
            expired = found.reason == EXPIRED and self._was_expired(found, audit_began)
            if (
                self.outcome != "failed"
                and not expired
                and found.reason not in rules.expected_reasons
            ):
                mortal = found.reason != EXPIRED or any(one.expires < inf for one in self.invoked)
                violation = Violation.DEAD_LETTERED if mortal else Violation.MORTAL
                yield Finding(violation, self.id, f"in {found.queue}: {found.reason!r}")

    def _badly_delivered(self, each: Delivered, rules: Rules) -> Iterator[Finding]:
        sent = self.invoked[0]
        if each.entity != sent.entity:
            yield Finding(Violation.MISROUTED, self.id, f"{sent.entity} -> {each.entity}")
        if each.fingerprint != sent.fingerprint:
            yield Finding(Violation.CORRUPT, self.id, f"at {each.entity}")
        date = each.at if self.dates is None else self.dates.latest(each.at)
        if date < sent.not_before - rules.schedule_slack:
            yield Finding(Violation.EARLY, self.id, f"by {sent.not_before - date} s")
        if each.expires is not None and not self._lives_right(each.expires, rules):
            span = f"{sent.expires} -> {each.expires}"
            yield Finding(Violation.WRONG_EXPIRY, self.id, span)

    def _badly_found(self) -> Iterator[Finding]:
        sent = self.invoked[0]
        for found in self.found:
            if found.place is CopyPlace.PRIMARY and found.queue != sent.entity:
                yield Finding(Violation.MISROUTED, self.id, f"{sent.entity} -> {found.queue}")
            if found.fingerprint not in {None, sent.fingerprint}:
                yield Finding(Violation.CORRUPT, self.id, f"in {found.queue}")

    def _lives_right(self, expires: float, rules: Rules) -> bool:
        """
        True if the expiry matches one of the sends: each send gives its copy its own time to live.
        """
        if self.dates is not None:
            return self.dates.lives_right(expires)
        return any(
            expires == sent.expires or abs(expires - sent.expires) <= rules.expiry_slack + ROUNDING
            for sent in self.invoked
        )

    def _was_expired(self, found: Found, audit_began: float) -> bool:
        on_backlog = found.place is CopyPlace.BACKLOG_DEAD_LETTER
        if self.dates is not None and on_backlog:
            return self.dates.expired_on_backlog()
        if self.dead_lettered and on_backlog:
            # An expiry after the decision to dead-letter doesn't excuse that decision.
            moment = max(dead_lettered.began for dead_lettered in self.dead_lettered)
            return min(sent.expires for sent in self.invoked) <= moment + ROUNDING
        return self._expired_by(audit_began)

    def _expired_by(self, moment: float) -> bool:
        if self.dates is not None:
            return self.dates.expired_by(moment)
        return max(sent.expires for sent in self.invoked) <= moment

    def found_in(self, place: CopyPlace) -> list[Found]:
        return [found for found in self.found if found.place is place]

    def _dead_letters(self) -> list[Found]:
        return self.found_in(CopyPlace.PRIMARY_DEAD_LETTER) + self.found_in(
            CopyPlace.BACKLOG_DEAD_LETTER
        )

    def _describe_places(self) -> str:
        places = [each.entity for each in self.delivered] + [each.queue for each in self.found]
        return "in " + ", ".join(sorted(set(places)))

    def counted(self, audit_began: float) -> Counter[str]:
        counts = Counter({self.outcome: 1})
        counts["duplicated"] = max(0, len(self.copies) - 1)
        counts["allowed"] = self.allowed - 1
        counts["redelivered"] = len(self.delivered) - len(
            {(each.entity, each.copy) for each in self.delivered}
        )
        counts["dead_lettered"] = len(self._dead_letters())
        if self.outcome == "unknown":
            counts["recovered" if self.copies else "vanished"] = 1
        if not self.copies and self.invoked and self._expired_by(audit_began):
            counts["expired"] = 1
        if not self.copies and self._perished():
            counts["perished"] = 1
        return counts


@attrs.define(eq=False)
class _History:
    """The records, sorted by message and kind."""

    messages: dict[str, _Fate] = attrs.field(factory=dict)
    completed: dict[tuple[str, str], float] = attrs.field(factory=dict)
    attempts: dict[str, list[Attempted]] = attrs.field(factory=lambda: defaultdict(list))
    clocks: list[ClockSet] = attrs.field(factory=list)
    faults: list[Record] = attrs.field(factory=list)  # begins and ends
    planned: set[str] = attrs.field(factory=set)
    read: set[str] = attrs.field(factory=set)
    failures: list[AuditFailed] = attrs.field(factory=list)
    audit_began: float = inf
    last_answer: float = -inf

    @classmethod
    def of(cls, records: Iterable[Record]) -> "_History":
        history = cls()
        records = list(records)
        losses = [record for record in records if isinstance(record, VolumeLost)]
        for record in records if not losses else _by_volume(records, losses):
            history._add(record)
        for fate in history.messages.values():
            fate.lost_before = max((loss.since for loss in losses), default=-inf)
        return history

    def _add(self, record: Record) -> None:
        match record:
            case Invoked():
                self._fate(record.message_id).invoked.append(record)
            case Acked() | Failed() | Unknown():
                self._add_answer(record)
            case Uncertain():
                self._fate(record.message_id).uncertain += 1
            case Attempted():
                self._add_attempt(record)
            case Delivered():
                self._fate(record.message_id).delivered.append(record)
            case Completed():
                first = min(record.at, self._done(record.entity, record.copy))
                self.completed[record.entity, record.copy] = first
            case DeadLettered() | ClockSet() | FaultBegan() | FaultEnded():
                self._add_dates(record)
            case _:
                self._add_audit(record)

    def _add_attempt(self, attempt: Attempted) -> None:
        for message_id in attempt.message_ids:
            self.attempts[message_id].append(attempt)
            if attempt.end in MAY_HAVE_ARRIVED:
                self._fate(message_id).uncertain += 1

    def _add_dates(self, record: DeadLettered | ClockSet | FaultBegan | FaultEnded) -> None:
        match record:
            case DeadLettered():
                self._fate(record.message_id).dead_lettered.append(record)
            case ClockSet():
                self.clocks.append(record)
            case _:
                self.faults.append(record)

    def _add_answer(self, answer: Acked | Failed | Unknown) -> None:
        self.last_answer = max(self.last_answer, answer.at)
        fate = self._fate(answer.message_id)
        if isinstance(answer, Acked):
            fate.acked += 1
            fate.accepted_by.add(answer.accepted_by)
        fate.failed += isinstance(answer, Failed)
        fate.unknown += isinstance(answer, Unknown)

    def _add_audit(self, record: Record) -> None:
        match record:
            case AuditBegan():
                self.planned |= record.queues
                self.audit_began = min(self.audit_began, record.at)
            case Found():
                self._fate(record.message_id).found.append(record)
            case QueueRead():
                self.read.add(record.queue)
            case AuditFailed():
                self.failures.append(record)

    def _fate(self, message_id: str) -> _Fate:
        return self.messages.setdefault(message_id, _Fate(id=message_id))

    def dates(self, message: _Fate, clocks: WallClocks, rules: Rules) -> Dates | None:
        """The dates that the clocks allow for a message that was sent."""
        if not message.invoked:
            return None
        return Dates(
            clocks=clocks,
            invoked=message.invoked,
            attempts=self.attempts[message.id],
            dead_lettered=message.dead_lettered,
            late=rules.expiry_slack,
            grace=rules.clock_grace,
        )

    def gaps(self) -> Iterator[str]:
        """The reasons why this history can't be judged."""
        if self.audit_began == inf:
            yield "there was no audit"
        for failure in self.failures:
            yield f"the audit couldn't read {failure.queue}: {failure.reason}"
        for queue in sorted(self.planned - self.read):
            yield f"the audit didn't finish {queue}"
        if self.last_answer > self.audit_began:
            yield "a send was answered after the audit began"
        for fate in self.messages.values():
            if fate.acked + fate.failed + fate.unknown > len(fate.invoked):
                yield f"{fate.id} has more answers than sends"

    def resurrected(self) -> Iterator[Finding]:
        """
        Deliveries after the first confirmed completion. Later ones don't count: a consumer that
        gets a copy again mostly completes it again.
        """
        for fate in self.messages.values():
            for each in fate.delivered:
                if each.at > self._done(each.entity, each.copy):
                    yield Finding(Violation.RESURRECTED, fate.id, f"copy {each.copy} at {each.at}")
            had = {(each.entity, each.copy) for each in fate.delivered}
            for found in fate.found_in(CopyPlace.PRIMARY):
                if (found.queue, found.copy) in had and self._done(found.queue, found.copy) < inf:
                    yield Finding(Violation.RESURRECTED, fate.id, f"copy {found.copy} is there")

    def _done(self, entity: str, copy: str) -> float:
        return self.completed.get((entity, copy), inf)


def _by_volume(records: Iterable[Record], losses: Sequence[VolumeLost]) -> Iterator[Record]:
    """The records, with copies whose names differ from one of the primary's volumes to the next."""
    for record in records:
        if isinstance(record, Delivered | Completed | Found):
            volume = sum(loss.at <= record.at for loss in losses)
            yield attrs.evolve(record, copy=f"{volume}/{record.copy}")
        else:
            yield record
