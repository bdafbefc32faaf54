"""Safety of a whole run beyond single messages: S5 to S11."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

import attrs

from gateway.checker.history import (
    BUSY,
    Attempted,
    Bounds,
    End,
    EntityStateMoved,
    FaultBegan,
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
from gateway.checker.judgements import Decision, Invariant, decide
from gateway.checker.operations import Acked, Invoked, Record
from gateway.checker.outages import Outage
from gateway.checker.verdict import Verdict, Violation
from gateway.domain.failover import State
from gateway.domain.health.flapping import WINDOW

Problem = tuple[Invariant, str]

NOT_OVER: Final = frozenset({State.PRIMARY, State.SUSPECT})
MAY_COUNT: Final = frozenset({End.OUTAGE, End.UNKNOWN, End.CUT_OFF})
COUNTS: Final = frozenset({End.OUTAGE, End.UNKNOWN})
ANSWERED: Final = frozenset({End.ACCEPTED, End.BUSY, End.REFUSED})
TO_PRIMARY: Final = frozenset({Way.PRIMARY, Way.PROBE})
SYPHON_IN: Final = "syphon in "  # before a gateway's name: its own syphon, as a process
REACHES_THE_PRIMARY: Final = frozenset({FaultTarget.PRIMARY, FaultTarget.GATEWAY, FaultTarget.HOST})


def isolation(run: Run) -> Decision:
    """
    S5: an entity leaves the primary only while a fault affects it, soon after, or as long as its
    gateway has had no answer from the primary since. The fault of another entity may make it
    suspect, so that it is asked, and never more.
    """
    left = [move for move in run.all(EntityStateMoved) if _leaves(move)]
    problems = [
        f"{move.entity} became {move.after.value} at {move.at:.3f}, and no fault reached it"
        for move in left
        if not _reached(run, move)
    ]
    return decide(Invariant.S5, len(left), problems)


def _leaves(move: EntityStateMoved) -> bool:
    fails_over = move.before is State.SUSPECT and move.after not in NOT_OVER
    return (move.before is State.PRIMARY or fails_over) and move.after is not State.PINNED


def _reached(run: Run, move: EntityStateMoved) -> bool:
    reaching = [(fault, ended) for fault, ended in run.faults() if _reaches(fault, move)]
    felt = run.return_within  # after its end, as in L5
    if any(move.at <= ended + felt for _, ended in reaching):
        return True
    # A namespace that can't be reached counts as lost until a later request is answered.
    asked = [
        one
        for one in run.all(Attempted)
        if one.process == move.process and one.way in TO_PRIMARY and one.at <= move.at
    ]
    heard = max((one.began for one in asked if one.end in ANSWERED), default=-inf)
    return any(
        heard <= ended and any(one.end in COUNTS and one.at >= fault.at for one in asked)
        for fault, ended in reaching
    )


def _reaches(fault: FaultBegan, move: EntityStateMoved) -> bool:
    asked = move.after is State.SUSPECT
    covered = asked or fault.entities is None or move.entity in fault.entities
    return fault.at <= move.at and fault.target in REACHES_THE_PRIMARY and covered


def outside_bound(run: Run, verdict: Verdict) -> Decision:
    """
    S6, seen from outside: the extra copies of the whole run are at most the swallowed answers, the
    messages in flight in killed processes, and the repeated sends.
    """
    sends = Counter(record.message_id for record in run.all(Invoked))
    swallowed = sum(record.messages for record in run.all(Swallowed))
    in_flight = sum(record.in_flight for record in run.all(Killed))
    bound = swallowed + in_flight + sum(sends.values()) - len(sends)
    extra = verdict.counts.get("duplicated", 0)
    problems = [f"{extra} extra copies, where {bound} are explained"] if extra > bound else []
    return decide(Invariant.S6, 1 if sends else 0, problems)


def power_cuts(run: Run, verdict: Verdict) -> Decision:
    """S7: no message is lost that was acknowledged before the power was cut."""
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
    """S8: each copy completed on the backlog had an accepted transfer of its own."""
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
    """S11: no sample shows more bytes in flight than allowed."""
    samples, most = run.all(Sampled), run.bounds.max_inflight
    problems = [
        f"{one.process} had {one.inflight} bytes in flight at {one.at:.3f}, {most} are allowed"
        for one in samples
        if one.inflight > most
    ]
    return decide(Invariant.S11, len(samples), problems, "" if samples else "nobody sampled")


def failovers(run: Run) -> tuple[Decision, Decision]:
    """
    S9 and S10, from each gateway's attempts at each entity; without recorded attempts, from the
    faults.
    """
    over = [move for move in run.all(EntityStateMoved) if _fails_over(move)]
    found = list(_by_attempts(run) if run.all(Attempted) else _by_faults(run, over))
    causes = [problem for invariant, problem in found if invariant is Invariant.S9]
    times = [problem for invariant, problem in found if invariant is Invariant.S10]
    return decide(Invariant.S9, len(over), causes), decide(Invariant.S10, len(over), times)


def _by_attempts(run: Run) -> Iterator[Problem]:
    gateways: dict[str, _GatewayStreaks] = {}
    told = [*run.mixed(Attempted, Paused, Killed, EntityStateMoved), *_unanswered_trials(run)]
    for record in sorted(told, key=lambda each: each.at):
        assert isinstance(record, Attempted | Paused | Killed | EntityStateMoved)
        process = record.process.removeprefix(SYPHON_IN)
        found = gateways.setdefault(process, _GatewayStreaks(run.bounds)).judge(record)
        if isinstance(record, EntityStateMoved) and _attempt_hung(run, record):
            found = (each for each in found if each[0] is not Invariant.S10)
        yield from found


def _unanswered_trials(run: Run) -> Iterator[Attempted]:
    """
    The syphons' sends that had no answer for long, at the first and at the last moment at which
    their gateway may have counted them as failed. The send itself is recorded when it ends.
    """
    first = run.bounds.trial_silence
    for each in run.all(Attempted):
        for seconds in (first, max(first, run.bounds.trial)):
            told = each.began + seconds
            if each.way is Way.SYPHON and told < each.at:
                yield attrs.evolve(each, at=told, end=End.UNKNOWN)


def _attempt_hung(run: Run, move: EntityStateMoved) -> bool:
    """
    True if an attempt hung at that moment. Time in which one hangs isn't quiet: the streak
    before it went on. The attempt itself is recorded when it ends.
    """
    return any(
        each.began + run.bounds.silent_after <= move.at < each.at
        for each in run.all(Attempted)
        if (each.process, each.entity) == (move.process, move.entity)
    )


def _by_faults(run: Run, over: Sequence[EntityStateMoved]) -> Iterator[Problem]:
    """
    As seen from outside: an outage existed, and had lasted for the interval. A known entity that
    is missing when the primary comes back may be diverted at once.
    """
    emptied = [loss.at for loss in run.all(VolumeLost)]
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
        elif any(min(began) <= at <= move.at for at in emptied):
            continue
        elif move.at - min(began) < bounds.failover_interval - bounds.slack:
            after = move.at - min(began)
            yield Invariant.S10, f"{move.entity} failed over at {move.at:.3f}, after {after:.3f} s"


def _fails_over(move: EntityStateMoved) -> bool:
    """
    True if the move is a failover by the interval: not by an operator, and not back from half-open.
    """
    return move.before in NOT_OVER and move.after is State.SECONDARY


@attrs.define(eq=False)
class _Streak:
    """
    The attempts of a gateway at an entity since its last success there, as they ended.

    Seen from outside, a cut-off attempt may or may not have counted: it excuses a failover, and
    never demands one. After a quiet interval it may have begun a new streak, in which case an
    attempt that began earlier and fails later doesn't belong to the old streak; it never extends a
    streak. Failures before a quiet interval excuse no failover after it.
    """

    entity: str
    bounds: Bounds
    void_before: float  # earlier attempts are ignored
    state: State | None = State.PRIMARY  # None: unknown, after a restart
    counts_since: float | None = None
    last: float = -inf
    overdue: float | None = None
    outage: Outage = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.outage = Outage(self.bounds.failover_interval + self.bounds.slack)

    def judge(self, record: Record) -> Iterator[Problem]:
        match record:
            case Attempted():
                yield from self._attempted(record)
            case Paused():
                self.void_before = record.at
                self.counts_since = self.overdue = None
            case Killed():
                self._forget()
                self.state, self.void_before = None, record.at
            case EntityStateMoved():
                yield from self._moved(record)

    def _attempted(self, attempt: Attempted) -> Iterator[Problem]:
        against = self._speaks_against(attempt)
        if attempt.way is Way.PROBE:
            if against and self.state is State.SUSPECT:
                yield from self._failed(attempt)
        elif attempt.end is not End.ACCEPTED:
            if against:
                yield from self._failed(attempt)
        elif against:  # a late answer may count, or may be ignored
            self.counts_since = self.overdue = None
            self.outage.record_failure(attempt.began, attempt.at, counts=False)
        else:
            self._forget()

    def excuse(self, attempt: Attempted) -> None:
        """
        Note the failed probe of another entity, or the failed send of the gateway's own syphon. The
        one counts if the namespace is unreachable, the other if it was a trial. So it may have
        begun a new streak here, as a cut-off attempt may.
        """
        if self.state is State.SUSPECT and self._speaks_against(attempt):
            self.outage.record_failure(attempt.began, attempt.at, counts=False)
            if attempt.began - self.last >= self.bounds.failover_interval:
                self.counts_since = self.overdue = None

    def _speaks_against(self, attempt: Attempted) -> bool:
        late = attempt.end is End.ACCEPTED and attempt.at - attempt.began >= self.bounds.late
        return late or attempt.end in MAY_COUNT

    def _forget(self) -> None:
        self.outage.forget()
        self.counts_since = self.overdue = None

    def _failed(self, attempt: Attempted) -> Iterator[Problem]:
        slack, interval = self.bounds.slack, self.bounds.failover_interval
        late = attempt.began <= self.void_before
        counts = attempt.end in {*COUNTS, End.ACCEPTED} and not late
        self.outage.record_failure(attempt.began, attempt.at, counts=counts)
        if counts:
            self.outage.silence = interval + slack
        if self.state not in NOT_OVER or late:
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

    def _moved(self, move: EntityStateMoved) -> Iterator[Problem]:
        if _fails_over(move):
            yield from self._judge_failover(move.at)
        self.state = move.after
        if move.before is State.SUSPECT and move.after is State.PRIMARY:
            # If only probes ended the streak, the next failure continues it.
            self.counts_since = self.overdue = None
            self.outage.silence = max(self.bounds.failover_interval, WINDOW) + self.bounds.slack
        elif move.after is not State.SUSPECT:
            self._forget()
        if move.after is not State.SUSPECT:
            self.void_before = move.at

    def _judge_failover(self, now: float) -> Iterator[Problem]:
        after = now - self.outage.since
        if after == -inf:
            yield Invariant.S9, f"{self.entity} failed over at {now:.3f} without an outage"
        elif after < self.bounds.failover_interval - self.bounds.slack:
            yield Invariant.S10, f"{self.entity} failed over at {now:.3f}, after {after:.3f} s"


@attrs.define(eq=False)
class _GatewayStreaks:
    """The streaks of one gateway, by entity."""

    bounds: Bounds
    streaks: dict[str, _Streak] = attrs.field(factory=dict)
    void_before: float = -inf

    def judge(self, record: Attempted | Paused | Killed | EntityStateMoved) -> Iterator[Problem]:
        if isinstance(record, Attempted):
            for streak in self._excused_by(record):
                streak.excuse(record)
        match record:
            case Attempted(way=Way.PRIMARY | Way.PROBE) | EntityStateMoved():
                fresh = _Streak(record.entity, self.bounds, self.void_before)
                yield from self.streaks.setdefault(record.entity, fresh).judge(record)
            case Paused() | Killed():
                self.void_before = record.at
                for streak in self.streaks.values():
                    yield from streak.judge(record)

    def _excused_by(self, attempt: Attempted) -> list[_Streak]:
        """The streaks that this attempt is no attempt of, and may have begun all the same."""
        match attempt.way:
            case Way.PROBE:
                return [each for key, each in self.streaks.items() if key != attempt.entity]
            case Way.SYPHON:
                return [each for key, each in self.streaks.items() if key == attempt.entity]
        return []
