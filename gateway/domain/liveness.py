"""What a run must come to, once its faults are over or while one namespace is well: L1 to L6."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import attrs

from gateway.domain.conduct import (
    BUSY,
    Attempted,
    Drained,
    End,
    FaultBegan,
    Healed,
    Killed,
    Run,
    Sampled,
    StandingMoved,
    Target,
    Unconfirmed,
    Way,
)
from gateway.domain.failover import State
from gateway.domain.history import Acked, AuditBegan, Failed, Invoked, Unknown
from gateway.domain.message import Leg
from gateway.domain.rulings import Decision, Invariant, decide, undecided

FAILED_OVER: Final = frozenset({State.SECONDARY, State.HALF_OPEN})
LOCKING: Final = frozenset({Target.GATEWAY, Target.SYPHON})
ONE_NAMESPACE: Final = ({Target.PRIMARY}, {Target.SECONDARY})
NOT_HEALED: Final = "nobody says when the faults were over"


def sends_return(run: Run) -> Decision:
    """L1: a send that begins late enough after the healing goes to the primary."""
    healed = run.first(Healed)
    if healed is None:
        return undecided(Invariant.L1, NOT_HEALED)
    begin = run.spared_until(healed.at) + run.bounds.return_within
    late = {one.message_id: one for one in run.all(Invoked) if one.at >= begin}
    legs = {one.message_id: one.leg for one in run.all(Acked) if one.message_id in late}
    problems = [
        f"{one}, sent at {late[one].at:.3f}, went by {'no leg' if leg is None else leg.value}"
        for one, leg in ((one, legs.get(one)) for one in late)
        if one not in legs or leg not in {None, Leg.PRIMARY}
    ]
    unsaid = bool(legs) and not any(legs.values())
    return decide(Invariant.L1, len(late), problems, "no answer says its leg" if unsaid else "")


def entities_return(run: Run) -> Decision:
    """L2: what was failed over at the healing comes back in time, with traffic or without."""
    healed, audit = run.first(Healed), run.first(AuditBegan)
    if healed is None or audit is None:
        return undecided(Invariant.L2, NOT_HEALED)
    bound = healed.at + run.bounds.return_within
    out = [key for key, state in _standings(run, healed.at).items() if state in FAILED_OVER]
    back = {
        (move.process, move.entity)
        for move in run.all(StandingMoved)
        if healed.at <= move.at <= bound and move.after in {State.PRIMARY, State.PINNED}
    }
    problems = [
        f"{entity} isn't back in {process} at {bound:.3f}"
        for process, entity in out
        if (process, entity) not in back
    ]
    if problems and audit.at < bound:
        return undecided(Invariant.L2, "the audit began before an entity had to be back")
    return decide(Invariant.L2, len(out), problems)


def _standings(run: Run, moment: float) -> dict[tuple[str, str], State]:
    """Where each entity stood; a gateway that was killed since then may not know it any more."""
    standings: dict[tuple[str, str], State] = {}
    for record in run.mixed(Killed, StandingMoved):
        if record.at > moment:
            break
        if isinstance(record, StandingMoved):
            standings[record.process, record.entity] = record.after
        elif isinstance(record, Killed):
            standings = {key: v for key, v in standings.items() if key[0] != record.process}
    return standings


def backlog_drains(run: Run) -> Decision:
    """
    L3: in the time that a lock, a rest and the moving take.

    What a syphon had moved, but stopped waiting to see completed, may stay locked once more.
    """
    healed, drained = run.first(Healed), run.first(Drained)
    if healed is None:
        return undecided(Invariant.L3, NOT_HEALED)
    bound = run.spared_until(healed.at) + run.bounds.drain_within(healed.backlog)
    for one in run.all(Unconfirmed):
        if one.at <= bound:
            bound = max(bound, one.at + run.bounds.move_within(healed.backlog))
    if drained is not None and drained.at <= bound:
        return decide(Invariant.L3, max(1, healed.backlog), [])
    audit = run.first(AuditBegan)
    if drained is None and audit is not None and audit.at < bound:
        return undecided(Invariant.L3, "the audit began before the backlog had to be empty")
    when = "never" if drained is None else f"at {drained.at:.3f}"
    return decide(Invariant.L3, healed.backlog, [f"empty {when}, due at {bound:.3f}"])


def nobody_delays_others(run: Run) -> Decision:
    """L4: a well entity's backlog moves within a lock for each other entity that is in trouble."""
    judged = [wait for wait in _waits(run) if wait.troubled]
    problems = [
        f"{wait.message_id} of {wait.entity} waited {wait.seconds:.3f} s on the backlog"
        for wait in judged
        if wait.seconds > wait.troubled * run.bounds.lock + run.bounds.slack
    ]
    return decide(Invariant.L4, len(judged), problems)


@attrs.frozen(kw_only=True)
class _Wait:
    message_id: str
    entity: str
    seconds: float  # until the syphon first tried, from when nothing of its own hindered
    troubled: int  # other entities meanwhile


def _waits(run: Run) -> Iterator[_Wait]:
    tried: dict[str, list[Attempted]] = defaultdict(list)
    stored: dict[str, Attempted] = {}
    for attempt in run.all(Attempted):
        if attempt.way is Way.SYPHON:
            tried[attempt.entity].append(attempt)
        if attempt.way is Way.BACKLOG and attempt.end is End.ACCEPTED:
            stored.update((one, attempt) for one in attempt.message_ids)
    for message_id, attempt in stored.items():
        entity = attempt.entity
        mine = [one for one in tried[entity] if message_id in one.message_ids]
        if not mine:
            continue  # expired on the way, or stuck: other rules see that
        moved = min(one.began for one in mine)
        ready = _ready(run, attempt.at, entity, tried[entity], moved)
        yield _Wait(
            message_id=message_id,
            entity=entity,
            seconds=moved - ready,
            troubled=len(_troubled(run, entity, ready, moved)),
        )


def _troubled(run: Run, entity: str, since: float, until: float) -> frozenset[str]:
    """The other entities that had a fault of their own in that time."""
    faults = [
        fault.entities or frozenset()
        for fault, ended in run.faults()
        if fault.at < until and ended > since and not _hinders(fault, entity)
    ]
    return frozenset().union(*faults)


def _ready(run: Run, stored: float, entity: str, tried: list[Attempted], moved: float) -> float:
    """
    From when on nothing of its own, and nothing that concerns all, hindered the entity.

    What a syphon had locked when it was killed, no other one gets before the lock is over; then it
    may stand behind another entity's, as what comes at that moment does.
    """
    locks = [
        fault.at + run.bounds.lock
        for fault, _ in run.faults()
        if fault.target in LOCKING and stored <= fault.at < moved
    ]
    ends = [ended for fault, ended in run.faults() if _hinders(fault, entity) and fault.at < moved]
    rests = [
        one.at + run.bounds.longest_hold
        for one in tried
        if one.end is not End.ACCEPTED and stored <= one.at < moved
    ]
    back = [
        move.at
        for move in run.all(StandingMoved)
        if move.entity == entity and move.at < moved and move.after is State.PRIMARY
    ]
    return min(moved, max([stored, *locks, *ends, *rests, *back]))


def _hinders(fault: FaultBegan, entity: str) -> bool:
    return fault.target is not Target.PRIMARY or fault.entities is None or entity in fault.entities


def no_long_stall(run: Run) -> Decision:
    """L5: while at most one namespace has a fault, and nobody asks to wait."""
    spans = list(_well_spans(run))
    judged, problems = 0, []
    for entity, began, ended in _stalls(run):
        for start, end in spans:
            within = min(ended, end) - max(began, start)
            judged += within >= 0
            if within > run.bounds.stall:
                problems.append(f"{entity}: no send was answered for {within:.3f} s")
    return decide(Invariant.L5, judged, problems)


def _well_spans(run: Run) -> Iterator[tuple[float, float]]:
    """
    When one namespace was in trouble and the other well. A fault is felt for some time after its
    end: an entity comes back later than its namespace, and who was asked to wait still does.
    """
    within = run.bounds.return_within
    felt = [(fault, ended + run.asked_to_wait(fault) + within) for fault, ended in run.faults()]
    moments = sorted({moment for fault, end in felt for moment in (fault.at, end)})
    begin: float | None = None
    for moment in moments:
        active = [fault for fault, end in felt if fault.at <= moment < end]
        waits = any(fault.kind == BUSY for fault in active)
        well = {fault.target for fault in active} in ONE_NAMESPACE and not waits
        if well and begin is None:
            begin = moment
        elif begin is not None and not well:
            yield begin, moment
            begin = None


def _stalls(run: Run) -> Iterator[tuple[str, float, float]]:
    """
    Of each entity the times in which some send waited and none was acknowledged.

    Where an unknown outcome isn't to be diverted but told, it is an answer as well, and so is what
    was accepted when its own client had stopped waiting: it would have been told just then.
    """
    answer = Acked | Unknown if run.bounds.raises_unknown else Acked
    entities = {one.message_id: one.entity for one in run.all(Invoked)}
    waiting: dict[str, _Waiting] = defaultdict(_Waiting)
    for record in run.mixed(Invoked, Acked, Failed, Unknown, Attempted):
        if isinstance(record, Invoked):
            waiting[record.entity].begin(record)
        elif isinstance(record, Attempted) and waiting[record.entity].missed(record):
            yield record.entity, waiting[record.entity].end(record.at), record.at
        elif isinstance(record, Acked | Failed | Unknown) and record.message_id in entities:
            entity = entities[record.message_id]
            waiting[entity].messages.discard(record.message_id)
            if isinstance(record, answer) or not waiting[entity].messages:
                yield entity, waiting[entity].end(record.at), record.at
    audit = run.first(AuditBegan)
    for entity, left in waiting.items():
        if left.messages and audit is not None:
            yield entity, left.since, audit.at


@attrs.define(eq=False)
class _Waiting:
    """Which of an entity's messages are waited for, and since when none was answered."""

    messages: set[str] = attrs.field(factory=set)
    since: float = 0.0

    def begin(self, sent: Invoked) -> None:
        if not self.messages:
            self.since = sent.at
        self.messages.add(sent.message_id)

    def end(self, now: float) -> float:
        """There was an answer; return since when there had been none."""
        since, self.since = self.since, now
        return since

    def missed(self, attempt: Attempted) -> bool:
        """Whether a gateway took what nobody waits for any more, while others wait."""
        taken = attempt.end is End.ACCEPTED and attempt.way is not Way.SYPHON
        return taken and bool(self.messages) and self.messages.isdisjoint(attempt.message_ids)


def quiescence(run: Run) -> Decision:
    """L6: after the last send and the last move, until the audit."""
    audit, drained = run.first(AuditBegan), run.first(Drained)
    if audit is None or drained is None:
        return undecided(Invariant.L6, "the backlog was never seen empty")
    answers = [one.at for one in run.mixed(Invoked, Acked, Failed, Unknown) if one.at < audit.at]
    began = max([drained.at, *answers])
    length = audit.at - began
    if length < run.bounds.quiet:
        return decide(Invariant.L6, 0, [])
    sends = [
        f"{one.process} sent {len(one.message_ids)} to {one.entity} at {one.at:.3f}"
        for one in run.all(Attempted)
        if began < one.began <= audit.at
    ]
    samples = [one for one in run.all(Sampled) if began <= one.at <= audit.at]
    missing = "" if samples else "nobody sampled while all was quiet"
    return decide(Invariant.L6, len(samples), [*sends, *_restless(run, samples)], missing)


def _restless(run: Run, samples: list[Sampled]) -> Iterator[str]:
    by_process: dict[str, list[Sampled]] = defaultdict(list)
    for sample in samples:
        by_process[sample.process].append(sample)
    for process, mine in by_process.items():
        seconds = mine[-1].at - mine[0].at
        if seconds < run.bounds.quiet / 2:
            continue
        polls = 60.0 * (mine[-1].polls - mine[0].polls) / seconds
        busy = (mine[-1].processor - mine[0].processor) / seconds
        if polls > run.bounds.idle_polls:
            yield f"{process} asked {polls:.0f} times a minute"
        if busy > run.bounds.idle_processor:
            yield f"{process} kept {busy:.3f} of a core busy"
