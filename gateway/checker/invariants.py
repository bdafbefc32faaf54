"""
Decides every invariant of a run from its history.

`verdict.py` judges each message; `safety.py` and `liveness.py` judge the rest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

import attrs

from gateway.checker.history import (
    Closed,
    FaultEnded,
    Healed,
    Killed,
    Opened,
    Run,
    RunBegan,
    Sampled,
)
from gateway.checker.judgements import Decision, Invariant, Validity, decide
from gateway.checker.liveness import (
    backlog_drains,
    entities_return,
    no_long_stall,
    nobody_delays_others,
    quiescence,
    sends_return,
)
from gateway.checker.operations import (
    Acked,
    AuditBegan,
    Completed,
    Delivered,
    Failed,
    Found,
    Invoked,
    Record,
)
from gateway.checker.order import order_kept
from gateway.checker.safety import (
    failovers,
    inflight_bound,
    isolation,
    outside_bound,
    power_cuts,
    settled_after,
)
from gateway.checker.sessions import sessions_kept
from gateway.checker.verdict import Rules, Verdict, Violation, judge

BROKEN_BY: Final[Mapping[Violation, Invariant]] = {
    Violation.LOST: Invariant.S1,
    Violation.DEAD_LETTERED: Invariant.S1,
    Violation.UNEXPECTED: Invariant.S2,
    Violation.ABORTED: Invariant.S3,
    Violation.CORRUPT: Invariant.S4,
    Violation.WRONG_EXPIRY: Invariant.S4,
    Violation.MISROUTED: Invariant.S5,
    Violation.DUPLICATED: Invariant.S6,
    Violation.RESURRECTED: Invariant.S8,
    Violation.EARLY: Invariant.S12,
    Violation.MORTAL: Invariant.S12,
    Violation.STUCK: Invariant.L3,
}

# These promise a time, which a harness that was late itself can't measure.
TIMED: Final = frozenset(
    {
        Invariant.S10,
        *(Invariant.L1, Invariant.L2, Invariant.L3, Invariant.L4, Invariant.L5, Invariant.L6),
    }
)

# The harness says by moments which copies an unknown outcome may have made.
COPIES: Final = frozenset({Invariant.S6})
# Why an entity left the primary. That a message reaches its own entity, S5 as well, is never in
# doubt.
CAUSES: Final = frozenset({Invariant.S5, Invariant.S9})
# For each processor. A gateway with a tenth of a processor's time has sends of 12 s at a primary
# that answers others in 0.7 s: seen at 8.
MOST_LOAD: Final = 5.0


@attrs.frozen(kw_only=True)
class Judgement:
    """
    The decisions on a run. `undecided` is the reason why nothing is decided; there are then no
    decisions. `late` says how late the harness itself was: what depends on time isn't broken then.
    """

    undecided: tuple[str, ...]
    decisions: tuple[Decision, ...]
    verdict: Verdict
    late: str = ""

    def with_validity(self, validity: Validity) -> list[Invariant]:
        return [one.invariant for one in self.decisions if one.validity is validity]

    @property
    def amplification(self) -> float:
        """Extra copies per copy that unknown outcomes or repeated sends allow."""
        counts = self.verdict.counts
        return counts.get("duplicated", 0) / (counts.get("allowed") or 1)


def judge_run(records: Iterable[Record], rules: Rules | None = None) -> Judgement:
    """
    Decide every invariant of a whole run, by `rules` or by the rules that follow from its `Bounds`.

    Nothing is decided if the audit or the records are incomplete: a message that seems lost could
    be in a queue that the audit didn't read.
    """
    records = list(records)
    run = Run.of(records)
    verdict = judge(records, _rules(run) if rules is None else rules)
    undecided = (*verdict.undecided, *_unfinished(run))
    if undecided:
        return Judgement(undecided=undecided, decisions=(), verdict=verdict)
    late = _lateness(run)
    doubtful = TIMED | COPIES if late else TIMED
    late = late or _overload(run)
    found = [
        *(_doubted(one, late, doubtful) for one in _of_messages(run, verdict)),
        *(_doubted(one, late, doubtful | CAUSES) for one in _of_the_run(run, verdict)),
    ]
    return Judgement(undecided=(), decisions=tuple(_joined(found)), verdict=verdict, late=late)


def _overload(run: Run) -> str:
    """The text if the machine had too much to do for its processors."""
    load = max((one.load for one in run.all(Sampled)), default=0.0)
    if load <= MOST_LOAD:
        return ""
    return f"{load:.1f} threads wanted each processor: the harness had no time"


def _lateness(run: Run) -> str:
    """The text if a producer was late with a send; empty within the slack of all times."""
    planned = [one for one in run.all(Invoked) if one.due is not None]
    latest = max((one.at - one.due for one in planned if one.due is not None), default=0.0)
    if latest <= run.bounds.slack:
        return ""
    return f"a producer was {latest:.1f} s late with a send: the harness had no time"


def _doubted(decision: Decision, late: str, doubtful: Set[Invariant]) -> Decision:
    """The decision of a run whose harness was late, if `late` says so."""
    broken = decision.validity is Validity.BROKEN
    if not late or not broken or decision.invariant not in doubtful:
        return decision
    problems = (late, *decision.problems)
    return attrs.evolve(decision, validity=Validity.UNDECIDED, problems=problems)


def _rules(run: Run) -> Rules:
    """
    The rules that follow from the run's bounds. Messages in flight in a killed process may be
    duplicated without an `Uncertain` record.
    """
    return Rules(
        expiry_slack=run.bounds.expiry_slack,
        schedule_slack=run.bounds.slack,
        spare_duplicates=sum(record.in_flight for record in run.all(Killed)),
        expected_reasons=run.bounds.expected_reasons,
        clock_grace=run.bounds.clock_grace,
    )


def _unfinished(run: Run) -> Iterator[str]:
    """
    Records that are missing, or that belong to two runs. Only a killed process may lack its end.
    """
    began = len(run.all(RunBegan))
    if began != 1:
        yield f"{began} runs began in these records"
    ended: dict[str, float] = {}
    for record in run.mixed(Closed, Killed):
        if isinstance(record, Closed | Killed):
            ended[record.process] = record.at
    for opened in run.all(Opened):
        if ended.get(opened.process, opened.at) <= opened.at:
            yield f"the records of {opened.process} since {opened.at:.3f} have no end"


def _of_messages(run: Run, verdict: Verdict) -> Iterator[Decision]:
    """The findings of `judge`, by invariant, with the number of occasions for each."""
    arrived = len(run.all(Delivered)) + len(run.all(Found))
    dated = sum(sent.not_before > 0 or sent.expires == float("inf") for sent in run.all(Invoked))
    judged = {
        Invariant.S1: len({one.message_id for one in run.all(Acked)}),
        Invariant.S2: arrived,
        Invariant.S3: len(run.all(Failed)),
        Invariant.S4: arrived,
        Invariant.S5: arrived,
        Invariant.S6: len({one.message_id for one in run.all(Invoked)}),
        Invariant.S8: len(run.all(Completed)),
        Invariant.S12: dated,
    }
    problems: dict[Invariant, list[str]] = {invariant: [] for invariant in judged}
    for finding in verdict.findings:
        problems.setdefault(BROKEN_BY[finding.violation], []).append(str(finding))
    for invariant, found in problems.items():
        missing = _too_soon(run) if invariant is Invariant.S3 and judged[Invariant.S3] else ""
        yield decide(invariant, judged.get(invariant, 0), found, missing)


def _too_soon(run: Run) -> str:
    """The reason why the audit began too soon, when a message in transit could still arrive."""
    audit = run.first(AuditBegan)
    last = max((one.at for one in run.mixed(FaultEnded, Healed)), default=float("-inf"))
    if audit is None or audit.at - last >= run.bounds.horizon:
        return ""
    return f"the audit began {audit.at - last:.3f} s after the last fault"


def _of_the_run(run: Run, verdict: Verdict) -> Iterator[Decision]:
    yield isolation(run)
    yield outside_bound(run, verdict)
    yield power_cuts(run, verdict)
    yield settled_after(run)
    yield from failovers(run)
    yield inflight_bound(run)
    yield order_kept(run)
    yield sessions_kept(run)
    yield sends_return(run)
    yield entities_return(run)
    yield backlog_drains(run)
    yield nobody_delays_others(run)
    yield no_long_stall(run)
    yield quiescence(run)


def _joined(decisions: Sequence[Decision]) -> Iterator[Decision]:
    """Join the partial decisions about each invariant to a single one, in their order."""
    for invariant in Invariant:
        mine = [one for one in decisions if one.invariant is invariant]
        broken = [text for one in mine if one.validity is Validity.BROKEN for text in one.problems]
        open_ = [
            text for one in mine if one.validity is Validity.UNDECIDED for text in one.problems
        ]
        judged = sum(one.judged for one in mine)
        yield decide(invariant, judged, broken, "; ".join(open_))
