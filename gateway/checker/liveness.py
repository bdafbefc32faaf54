"""
Liveness, L1 to L6: a run's obligations once its faults are over, or while one namespace is healthy.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

import attrs

from gateway.checker.history import (
    BUSY,
    MAY_HAVE_ARRIVED,
    Attempted,
    Bounds,
    DeadLettered,
    Drained,
    End,
    EntityStateMoved,
    FaultBegan,
    FaultTarget,
    Healed,
    Killed,
    Run,
    Sampled,
    Settled,
    Unconfirmed,
    Way,
)
from gateway.checker.judgements import Decision, Invariant, decide, undecided
from gateway.checker.operations import Acked, AuditBegan, Failed, Invoked, Unknown
from gateway.checker.wall_clocks import joined
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy

IN_TROUBLE: Final = frozenset({State.SUSPECT, State.SECONDARY, State.HALF_OPEN})
LOCKING: Final = frozenset({FaultTarget.GATEWAY, FaultTarget.SYPHON})
ONE_NAMESPACE: Final = ({FaultTarget.PRIMARY}, {FaultTarget.SECONDARY})
NOT_HEALED: Final = "nobody says when the faults were over"

_Span = tuple[float, float]  # from one time to another, in seconds


def sends_return(run: Run) -> Decision:
    """L1: a send that begins late enough after the healing is accepted by the primary."""
    healed = run.first(Healed)
    if healed is None:
        return undecided(Invariant.L1, NOT_HEALED)
    begin = run.spared_until(healed.at) + run.return_within
    late = {one.message_id: one for one in run.all(Invoked) if one.at >= begin}
    told = {one.message_id: one.accepted_by for one in run.all(Acked) if one.message_id in late}
    problems = [
        f"{one}, sent at {late[one].at:.3f}, was accepted by"
        f" {'an unknown namespace' if accepted_by is None else accepted_by.value}"
        for one, accepted_by in ((one, told.get(one)) for one in late)
        if one not in told or accepted_by not in {None, AcceptedBy.PRIMARY}
    ]
    unsaid = bool(told) and not any(told.values())
    doubt = "no answer says which namespace accepted the message" if unsaid else ""
    return decide(Invariant.L1, len(late), problems, doubt)


def entities_return(run: Run) -> Decision:
    """L2: an entity that was in trouble at the healing returns in time, with or without traffic."""
    healed, audit = run.first(Healed), run.first(AuditBegan)
    if healed is None or audit is None:
        return undecided(Invariant.L2, NOT_HEALED)
    bound = healed.at + run.return_within
    out = [key for key, state in _states(run, healed.at).items() if state in IN_TROUBLE]
    back = {
        (move.process, move.entity)
        for move in run.all(EntityStateMoved)
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


def _states(run: Run, moment: float) -> dict[tuple[str, str], State]:
    """The state of each entity at that moment; the states of killed gateways are unknown."""
    states: dict[tuple[str, str], State] = {}
    for record in run.mixed(Killed, EntityStateMoved):
        if record.at > moment:
            break
        if isinstance(record, EntityStateMoved):
            states[record.process, record.entity] = record.after
        elif isinstance(record, Killed):
            states = {key: v for key, v in states.items() if key[0] != record.process}
    return states


def backlog_drains(run: Run) -> Decision:
    """
    L3: the backlog becomes empty within the time for an unanswered send, a lock, a backoff and the
    moving.

    Until an entity that flapped has proved itself, a syphon in a gateway moves trial messages only.
    A message that the syphon moved without waiting for its completion may stay locked for one more
    lock duration.
    """
    healed, drained = run.first(Healed), run.first(Drained)
    if healed is None:
        return undecided(Invariant.L3, NOT_HEALED)
    bound = run.spared_until(healed.at) + run.bounds.drain_within(healed.backlog) + run.proof
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
    """
    L4: the backlog of a healthy entity moves within one delay for each other entity in trouble, and
    within one more after a killed syphon's locks end. Messages that are moved meanwhile take time,
    and so do messages of entities in trouble, which the syphon looks at.
    """
    judged = [wait for wait in _waits(run) if wait.troubled or wait.was_killed]
    problems = [
        f"{wait.message_id} of {wait.entity} waited {wait.seconds:.3f} s on the backlog"
        for wait in judged
        if wait.seconds > _longest_wait(wait, run.bounds)
    ]
    return decide(Invariant.L4, len(judged), problems)


def _longest_wait(wait: "_Wait", bounds: Bounds) -> float:
    redelivery_guard = bounds.redelivery_guard if wait.was_killed else 0.0
    others = bounds.moving(wait.moved) + bounds.look * wait.looked_at
    return max(1, wait.troubled) * bounds.delay + redelivery_guard + others + bounds.slack


@attrs.frozen(kw_only=True)
class _Wait:
    message_id: str
    entity: str
    seconds: float  # from the last hindrance of the entity's own until the syphon's first try
    troubled: int  # other entities that were in trouble meanwhile
    moved: int  # messages that were moved meanwhile, of any entity
    looked_at: int  # messages of the entities in trouble
    was_killed: bool  # True: a syphon, or a process that may contain one, was killed meanwhile


def _waits(run: Run) -> Iterator[_Wait]:
    tried: dict[str, list[Attempted]] = defaultdict(list)
    stored: dict[str, Attempted] = {}
    moves: list[float] = []  # the time of each move, in order
    gone: dict[str, float] = defaultdict(lambda: inf)  # when each message was moved
    for attempt in run.all(Attempted):
        if attempt.way is Way.SYPHON:
            tried[attempt.entity].append(attempt)
            if attempt.end is End.ACCEPTED:
                moves += [attempt.at] * len(attempt.message_ids)
                gone.update(dict.fromkeys(attempt.message_ids, attempt.at))
        if attempt.way is Way.BACKLOG and attempt.end is End.ACCEPTED:
            stored.update((one, attempt) for one in attempt.message_ids)
    for message_id, attempt in stored.items():
        entity = attempt.entity
        mine = [one for one in tried[entity] if message_id in one.message_ids]
        if not mine:
            continue  # expired on the way, or stuck: judged by other rules
        moved = min(one.began for one in mine)
        ready = _ready(run, attempt.at, entity, tried[entity], moved)
        troubled = _troubled(run, entity, ready, moved)
        yield _Wait(
            message_id=message_id,
            entity=entity,
            seconds=moved - ready,
            troubled=len(troubled),
            moved=bisect_left(moves, moved) - bisect_left(moves, ready),
            looked_at=sum(
                other.entity in troubled and other.at < moved and gone[each] > ready
                for each, other in stored.items()
            ),
            was_killed=bool(_kills(run, attempt.at, moved)),
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
    The time since which nothing of the entity's own, and nothing that concerns all entities,
    hindered it.

    Messages that a killed syphon had locked become available when their locks end. They may then
    have to wait behind another entity's messages, as any message that arrives at that moment.
    """
    locks = [at + run.bounds.lock for at in _kills(run, stored, moved)]
    ends = [
        ended + (run.bounds.reread if fault.target is FaultTarget.SECONDARY else 0.0)
        for fault, ended in run.faults()
        if _hinders(fault, entity) and fault.at < moved
    ]
    killed = {one.process: one.at for one in run.all(Killed) if one.at < moved}
    backoffs = [
        one.at + run.bounds.longest_backoff
        for one in tried
        if one.end is not End.ACCEPTED
        and one.at < moved
        # a killed syphon leaves no backoff behind, only locks
        and one.at > killed.get(one.process, -inf)
    ]
    moves = [one for one in run.all(EntityStateMoved) if one.entity == entity and one.at < moved]
    if moves and moves[-1].after is State.HALF_OPEN:
        return moved  # the syphon sends one message at a time, until the entity has accepted some
    back = [move.at for move in moves if move.after is State.PRIMARY]
    return min(moved, max([stored, *locks, *ends, *backoffs, *back]))


def _kills(run: Run, since: float, until: float) -> list[float]:
    """
    The times at which a process that may have locked messages was killed, from `since` to `until`.
    """
    return [f.at for f, _ in run.faults() if f.target in LOCKING and since <= f.at < until]


def _hinders(fault: FaultBegan, entity: str) -> bool:
    return (
        fault.target is not FaultTarget.PRIMARY
        or fault.entities is None
        or entity in fault.entities
    )


def no_long_stall(run: Run) -> Decision:
    """
    L5: no send waits long while at most one namespace has a fault and asks no client to wait.

    The sends of an ordered entity need the secondary while a key of it is away, however long the
    primary has been well.
    """
    spans = list(_well_spans(run, []))
    of_ordered = {entity: list(_well_spans(run, away)) for entity, away in _away(run).items()}
    judged, problems = 0, []
    for entity, began, ended in _stalls(run):
        for start, end in of_ordered.get(entity, spans):
            within = min(ended, end) - max(began, start)
            judged += within >= 0
            if within > run.bounds.stall:
                problems.append(f"{entity}: no send was answered for {within:.3f} s")
    return decide(Invariant.L5, judged, problems)


def _well_spans(run: Run, away: Sequence[_Span]) -> Iterator[_Span]:
    """
    The times in which one namespace was in trouble and the other healthy; not those in which the
    secondary was in trouble and a key `away`, unless it went away without a fault of anything else.

    A fault has effects after its end: an entity returns later than its namespace, and a client that
    was asked to wait still waits.
    """
    within = run.return_within
    felt = [(fault, ended + run.asked_to_wait(fault) + within) for fault, ended in run.faults()]

    def active(moment: float) -> list[FaultBegan]:
        return [fault for fault, end in felt if fault.at <= moment < end]

    away = [span for span in away if _targets(active(span[0])) - {FaultTarget.SECONDARY}]
    moments = {moment for fault, end in felt for moment in (fault.at, end)}
    begin: float | None = None
    for moment in sorted(moments.union(*away)):
        faults = active(moment)
        waits = any(fault.kind == BUSY for fault in faults)
        needs_both = any(since <= moment < end for since, end in away)
        alone = ({FaultTarget.PRIMARY},) if needs_both else ONE_NAMESPACE
        well = _targets(faults) in alone and not waits
        if well and begin is None:
            begin = moment
        elif begin is not None and not well:
            yield begin, moment
            begin = None


def _targets(faults: Sequence[FaultBegan]) -> set[FaultTarget]:
    return {fault.target for fault in faults}


def _away(run: Run) -> dict[str, Sequence[_Span]]:
    """
    For each ordered entity, the times in which a key of it may have been away: while the backlog
    may have had a message of the entity, or the gateway was dead, and until it has listed the
    backlog after that. It can't while the secondary has a fault.
    """
    ordered = {one.entity for one in run.all(Invoked) if one.order}
    left: dict[str, float] = {}  # when a copy of each message left the backlog, last
    for one in run.mixed(Settled, Unconfirmed, DeadLettered):
        if isinstance(one, Settled | Unconfirmed | DeadLettered):
            left[one.message_id] = one.at
    dead = [
        (fault.at, ended) for fault, ended in run.faults() if fault.target is FaultTarget.GATEWAY
    ]
    times = {entity: list(dead) for entity in ordered}
    for attempt in run.all(Attempted):
        may_have_arrived = attempt.end is End.ACCEPTED or attempt.end in MAY_HAVE_ARRIVED
        if attempt.entity in ordered and attempt.way is Way.BACKLOG and may_have_arrived:
            until = max(_left_at(attempt, left.get(each, -inf)) for each in attempt.message_ids)
            times[attempt.entity].append((attempt.began, until))
    return {
        entity: joined((since, _listed_by(run, until)) for since, until in mine)
        for entity, mine in times.items()
    }


def _left_at(stored: Attempted, left: float) -> float:
    """When a message of that attempt had left the backlog; `left`: when a copy of it did, last."""
    if left >= stored.began:
        return left
    return inf if stored.end is End.ACCEPTED else stored.at


def _listed_by(run: Run, moment: float) -> float:
    """The time by which the gateway has listed the backlog after that moment."""
    listed = moment + run.bounds.listing
    for fault, ended in run.faults():
        if fault.target is FaultTarget.SECONDARY and fault.at < listed:
            listed = max(listed, ended + run.bounds.listing)
    return listed


def _stalls(run: Run) -> Iterator[tuple[str, float, float]]:
    """
    For each entity, the times in which sends waited and none was acknowledged.

    If unknown outcomes are raised instead of diverted, they count as answers. So does a send that
    was accepted after its own client had stopped waiting: the client would have been answered at
    that moment.
    """
    answer = Acked | Unknown if run.bounds.raises_unknown else Acked
    entities = {one.message_id: one.entity for one in run.all(Invoked)}
    waiting: dict[str, _UnansweredMessages] = defaultdict(_UnansweredMessages)
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
class _UnansweredMessages:
    """
    The messages of an entity that wait for an answer, and the time since which none was answered.
    """

    messages: set[str] = attrs.field(factory=set)
    since: float = 0.0

    def begin(self, sent: Invoked) -> None:
        if not self.messages:
            self.since = sent.at
        self.messages.add(sent.message_id)

    def end(self, now: float) -> float:
        """Note an answer; return the time since which there had been none."""
        since, self.since = self.since, now
        return since

    def missed(self, attempt: Attempted) -> bool:
        """
        True if a gateway accepted a message that no client waits for any more, while other clients
        wait.
        """
        taken = attempt.end is End.ACCEPTED and attempt.way not in {Way.SYPHON, Way.PROBE}
        return taken and bool(self.messages) and self.messages.isdisjoint(attempt.message_ids)


def quiescence(run: Run) -> Decision:
    """
    L6: after the last send and the last move, until the audit, nothing is sent and little is
    polled.
    """
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
        if began < one.began <= audit.at and one.way is not Way.PROBE
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
