"""What a run must never show beside the fate of a single message: S5 to S11."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

import attrs

from gateway.domain.conduct import (
    BUSY,
    Attempted,
    Bounds,
    End,
    FaultBegan,
    Killed,
    Paused,
    Run,
    Sampled,
    Settled,
    StandingMoved,
    Swallowed,
    Target,
    Way,
)
from gateway.domain.failover import State
from gateway.domain.history import Acked, Invoked, Record
from gateway.domain.outage import Outage
from gateway.domain.rulings import Decision, Invariant, decide
from gateway.domain.verdict import Verdict, Violation

Problem = tuple[Invariant, str]

NOT_OVER: Final = frozenset({State.PRIMARY, State.SUSPECT})
MAY_COUNT: Final = frozenset({End.OUTAGE, End.UNKNOWN, End.CUT_OFF})
COUNTS: Final = frozenset({End.OUTAGE, End.UNKNOWN})
REACHES_THE_PRIMARY: Final = frozenset({Target.PRIMARY, Target.GATEWAY, Target.HOST})


def isolation(run: Run) -> Decision:
    """S5: an entity leaves the primary only where a fault reaches it, or has just done so."""
    left = [
        move
        for move in run.all(StandingMoved)
        if move.before is State.PRIMARY and move.after is not State.PINNED
    ]
    problems = [
        f"{move.entity} became {move.after.value} at {move.at:.3f}, and no fault reached it"
        for move in left
        if not _reached(run, move)
    ]
    return decide(Invariant.S5, len(left), problems)


def _reached(run: Run, move: StandingMoved) -> bool:
    felt = run.bounds.return_within  # after its end, as in L5
    return any(_reaches(fault, move) and move.at <= ended + felt for fault, ended in run.faults())


def _reaches(fault: FaultBegan, move: StandingMoved) -> bool:
    covered = fault.entities is None or move.entity in fault.entities
    return fault.at <= move.at and fault.target in REACHES_THE_PRIMARY and covered


def outside_bound(run: Run, verdict: Verdict) -> Decision:
    """
    S6, seen from outside: the extra copies of the whole run, against what was swallowed, what
    the killed had in their hands, and what producers sent again.
    """
    sends = Counter(record.message_id for record in run.all(Invoked))
    swallowed = sum(record.messages for record in run.all(Swallowed))
    in_hand = sum(record.in_flight for record in run.all(Killed))
    bound = swallowed + in_hand + sum(sends.values()) - len(sends)
    extra = verdict.counts.get("duplicated", 0)
    problems = [f"{extra} extra copies, where {bound} are explained"] if extra > bound else []
    return decide(Invariant.S6, 1 if sends else 0, problems)


def power_cuts(run: Run, verdict: Verdict) -> Decision:
    """S7: of what is lost, nothing was acknowledged before the power was cut."""
    cuts = [record.at for record in run.all(Killed) if record.power_cut]
    acked = {record.message_id: record.at for record in run.all(Acked)}
    last = max(cuts, default=-inf)
    before = {message_id for message_id, at in acked.items() if at <= last}
    lost = {one.message_id for one in verdict.findings if one.violation is Violation.LOST}
    problems = [
        f"{one} was acknowledged, and didn't survive a cut" for one in sorted(lost & before)
    ]
    return decide(Invariant.S7, len(before), problems)


def settled_after(run: Run) -> Decision:
    """S8: each copy that left the backlog had a transfer of its own, which was accepted."""
    accepted: Counter[str] = Counter()
    done: dict[str, set[tuple[str, str]]] = defaultdict(set)
    problems: list[str] = []
    for record in run.mixed(Attempted, Settled):
        if isinstance(record, Settled):
            copies = done[record.message_id]
            copies.add((record.queue, record.copy))
            if len(copies) > accepted[record.message_id]:
                problems.append(
                    f"{record.message_id}: copy {record.copy} of {record.queue} was completed at"
                    f" {record.at:.3f} with {accepted[record.message_id]} accepted transfers"
                )
        elif isinstance(record, Attempted) and record.way is Way.SYPHON:
            accepted.update(record.message_ids if record.end is End.ACCEPTED else ())
    return decide(Invariant.S8, len(run.all(Settled)), problems)


def inflight_bound(run: Run) -> Decision:
    """S11: at no moment that was sampled was more on its way than allowed."""
    samples, most = run.all(Sampled), run.bounds.max_inflight
    problems = [
        f"{one.process} had {one.inflight} bytes in flight at {one.at:.3f}, {most} are allowed"
        for one in samples
        if one.inflight > most
    ]
    return decide(Invariant.S11, len(samples), problems, "" if samples else "nobody sampled")


def failovers(run: Run) -> tuple[Decision, Decision]:
    """S9 and S10, from each gateway's attempts at each entity, or else from the faults."""
    over = [move for move in run.all(StandingMoved) if _fails_over(move)]
    found = list(_by_attempts(run) if run.all(Attempted) else _by_faults(run, over))
    causes = [problem for invariant, problem in found if invariant is Invariant.S9]
    times = [problem for invariant, problem in found if invariant is Invariant.S10]
    return decide(Invariant.S9, len(over), causes), decide(Invariant.S10, len(over), times)


def _by_attempts(run: Run) -> Iterator[Problem]:
    gateways: dict[str, _Gateway] = {}
    for record in run.mixed(Attempted, Paused, Killed, StandingMoved):
        assert isinstance(record, Attempted | Paused | Killed | StandingMoved)
        yield from gateways.setdefault(record.process, _Gateway(run.bounds)).note(record)


def _by_faults(run: Run, over: Sequence[StandingMoved]) -> Iterator[Problem]:
    """Seen from outside: an outage was there, and had been for the interval."""
    bounds = run.bounds
    felt = bounds.failover_interval + bounds.attempt_timeout + bounds.slack  # after its end
    for move in over:
        began = [
            fault.at
            for fault, ended in run.faults()
            if fault.kind != BUSY and _reaches(fault, move) and ended + felt >= move.at
        ]
        if not began:
            yield Invariant.S9, f"{move.entity} failed over at {move.at:.3f} without an outage"
        elif move.at - min(began) < bounds.failover_interval - bounds.slack:
            after = move.at - min(began)
            yield Invariant.S10, f"{move.entity} failed over at {move.at:.3f}, after {after:.3f} s"


def _fails_over(move: StandingMoved) -> bool:
    """By the failover clock: not by an operator, and not back again from half-open."""
    return move.before in NOT_OVER and move.after is State.SECONDARY


@attrs.define(eq=False)
class _Streak:
    """
    One gateway's attempts at one entity since its last success there, as they ended.

    Seen from outside, an attempt that was cut off may have counted or not: it excuses a failover,
    and never demands one. After a quiet interval it may have begun a streak anew, so that what had
    begun before it and fails later isn't of the old one; it never carries a streak on. What was
    before a quiet interval excuses no failover after it.
    """

    entity: str
    bounds: Bounds
    void_before: float  # attempts that began earlier say nothing
    standing: State | None = State.PRIMARY  # None: not known, after a restart
    counts_since: float | None = None
    last: float = -inf
    overdue: float | None = None
    outage: Outage = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.outage = Outage(self.bounds.failover_interval + self.bounds.slack)

    def note(self, record: Record) -> Iterator[Problem]:
        match record:
            case Attempted(end=End.ACCEPTED):
                self._forget()
            case Attempted() if record.end in MAY_COUNT:
                yield from self._failed(record)
            case Paused():
                self.void_before = record.at
                self.counts_since = self.overdue = None
            case Killed():
                self._forget()
                self.standing, self.void_before = None, record.at
            case StandingMoved():
                yield from self._moved(record)

    def _forget(self) -> None:
        self.outage.forget()
        self.counts_since = self.overdue = None

    def _failed(self, attempt: Attempted) -> Iterator[Problem]:
        slack, interval = self.bounds.slack, self.bounds.failover_interval
        late = attempt.began <= self.void_before
        counts = attempt.end in COUNTS and not late
        self.outage.note(attempt.began, attempt.at, counts=counts)
        if self.standing not in NOT_OVER or late:
            return
        if self.overdue is not None and attempt.at > self.overdue + slack:
            text = f"{self.entity} failed for its interval at {self.overdue:.3f}, and stayed"
            yield Invariant.S10, text
        if attempt.began - self.last >= interval:
            self.counts_since = self.overdue = None
        if not counts:
            return
        if self.counts_since is None:
            self.counts_since = attempt.at
        self.last = attempt.at
        if self.overdue is None and attempt.at - self.counts_since >= interval:
            self.overdue = attempt.at

    def _moved(self, move: StandingMoved) -> Iterator[Problem]:
        if _fails_over(move):
            yield from self._judge_failover(move.at)
        self.standing = move.after
        if move.after is not State.SUSPECT:
            self._forget()
            self.void_before = move.at

    def _judge_failover(self, now: float) -> Iterator[Problem]:
        after = now - self.outage.since
        if after == -inf:
            yield Invariant.S9, f"{self.entity} failed over at {now:.3f} without an outage"
        elif after < self.bounds.failover_interval - self.bounds.slack:
            yield Invariant.S10, f"{self.entity} failed over at {now:.3f}, after {after:.3f} s"


@attrs.define(eq=False)
class _Gateway:
    """What one gateway made of its entities."""

    bounds: Bounds
    streaks: dict[str, _Streak] = attrs.field(factory=dict)
    void_before: float = -inf

    def note(self, record: Attempted | Paused | Killed | StandingMoved) -> Iterator[Problem]:
        match record:
            case Attempted(way=Way.PRIMARY) | StandingMoved():
                fresh = _Streak(record.entity, self.bounds, self.void_before)
                yield from self.streaks.setdefault(record.entity, fresh).note(record)
            case Paused() | Killed():
                self.void_before = record.at
                for streak in self.streaks.values():
                    yield from streak.note(record)
