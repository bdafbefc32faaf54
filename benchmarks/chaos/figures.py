"""Makes the figures of the report from the producers' records; nothing here starts a process."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from benchmarks.traffic import DEADLINE, WINDOW, Send
from gateway.checker.history import Drained, EntityStateMoved, FaultBegan, Healed, Run
from gateway.checker.operations import Acked, Delivered, Invoked, Record
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy

RECOVERED: Final = 5.0  # seconds of good service that count as recovered
GOOD: Final = 0.99  # share of the sends, each answered within `PROMPT`
PROMPT: Final = 1.0


@attrs.frozen(kw_only=True)
class Service:
    """
    The service that producers saw. Times are seconds; latencies count from the due date of a send.
    """

    sent: int
    acknowledged: int  # within the deadline
    windows: float  # share of those of 100 ms in which a send was answered
    stall: float  # longest time without an answer for an entity, beyond the pause between sends
    p50: float
    p99: float
    p999: float
    worst: float

    @property
    def availability(self) -> float:
        return self.acknowledged / max(1, self.sent)


@attrs.frozen(kw_only=True)
class Recovery:
    """
    The times of recovery after the first fault, and after the last. Seconds; None: it never
    recovered.
    """

    failover: float | None  # from the first fault to the first answer by the backlog
    good_again: float | None  # to the first five good seconds: the recovery time
    failback: float | None  # from the healing to the first answer by the primary
    drain: float | None  # to an empty backlog
    drain_rate: float | None  # messages/s, of the messages on the backlog at the healing
    diverted: int
    detour_p50: float | None  # from when a diverted send was due until a consumer had it
    detour_p99: float | None
    detour_worst: float | None


def service(entities: Sequence[Sequence[Send]], rate: float, deadline: float = DEADLINE) -> Service:
    """Return the service of all sends of these entities, each at `rate`."""
    sends = [send for each in entities for send in each]
    answered = [send for send in sends if send.latency <= deadline]
    latencies = sorted(send.latency for send in answered)
    return Service(
        sent=len(sends),
        acknowledged=len(answered),
        windows=_windows(sends),
        stall=max((_stall(each, rate) for each in entities), default=0.0),
        p50=quantile(latencies, 0.5),
        p99=quantile(latencies, 0.99),
        p999=quantile(latencies, 0.999),
        worst=quantile(latencies, 1.0),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that a share of the values doesn't exceed; None without values."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered), max(1, math.ceil(share * len(ordered)))) - 1]


def _stall(sends: Sequence[Send], rate: float) -> float:
    """Return the longest time between two answers, before the first or after the last."""
    if not sends:
        return 0.0
    began, ended = min(send.due for send in sends), max(send.due for send in sends)
    answers = sorted(send.answered for send in sends if send.answered < ended)
    return max(0.0, max(b - a for a, b in pairwise([began, *answers, ended])) - 1 / rate)


def _windows(sends: Sequence[Send]) -> float:
    if not sends:
        return math.nan
    began, ended = min(send.due for send in sends), max(send.due for send in sends)
    number = max(1, int((ended - began) / WINDOW))
    seen = {int((send.answered - began) / WINDOW) for send in sends if send.answered < ended}
    return len([window for window in seen if window < number]) / number


def recovery(
    records: Sequence[Record], entities: Sequence[Sequence[Send]], is_baseline: bool = False
) -> Recovery:
    """`is_baseline`: no send names the namespace that accepted it, since no gateway answered."""
    run = Run.of(records)
    sends = sorted((send for each in entities for send in each), key=lambda send: send.due)
    fault, healed, drained = run.first(FaultBegan), run.first(Healed), run.first(Drained)
    diverted = [send for send in sends if send.accepted_by not in {None, AcceptedBy.PRIMARY}]
    direct = [send for send in sends if send.accepted_by is AcceptedBy.PRIMARY or is_baseline]
    detours = sorted(_detours(run, diverted))
    began = fault.at if fault else math.inf
    over = healed.at if healed else math.inf
    return Recovery(
        failover=_first([send.answered for send in diverted], began),
        good_again=_good_again(sends, began),
        failback=_first([send.answered for send in direct], over),
        drain=drained.at - over if drained else None,
        drain_rate=_rate(healed, drained),
        diverted=len(diverted),
        detour_p50=quantile(detours, 0.5) if detours else None,
        detour_p99=quantile(detours, 0.99) if detours else None,
        detour_worst=detours[-1] if detours else None,
    )


def _rate(healed: Healed | None, drained: Drained | None) -> float | None:
    if healed is None or drained is None or not healed.backlog or drained.at <= healed.at:
        return None
    return healed.backlog / (drained.at - healed.at)


def healthy(
    records: Sequence[Record], entities: Sequence[Sequence[Send]]
) -> Sequence[Sequence[Send]]:
    """The sends that were answered before the first fault, which show the cost of the gateway."""
    fault = Run.of(records).first(FaultBegan)
    until = fault.at if fault else math.inf
    return [[send for send in each if send.answered < until] for each in entities]


def median_in_faults(records: Sequence[Record], sends: Sequence[Send], interval: float) -> float:
    """
    Seconds, of the sends that were due once the first fault had lasted for `interval`, until the
    last one was over. Not a number: there were none.
    """
    faults = Run.of(records).faults()
    begin = min((fault.at for fault, _ in faults), default=math.inf) + interval
    end = max((ended for _, ended in faults), default=-math.inf)
    return quantile(sorted(send.latency for send in sends if begin <= send.due < end), 0.5)


def lives_off(records: Sequence[Record], ends: Sequence[tuple[str, float]]) -> tuple[float, float]:
    """
    Return the seconds by which copies live shorter than they were sent to, and longer, at most.

    `ends`: a message, and when a copy of it expires. Not numbers: no copy has an end.
    """
    sent = {one.message_id: one.expires for one in records if isinstance(one, Invoked)}
    off = [end - sent[message] for message, end in ends]
    if not off:
        return math.nan, math.nan
    return max(0.0, -min(off)), max(0.0, max(off))


def waited_in_faults(records: Sequence[Record], sends: Sequence[Send]) -> float:
    """Seconds, summed over all sends that were due while some fault lasted."""
    faults = Run.of(records).faults()
    return sum(
        min(send.latency, DEADLINE)
        for send in sends
        if any(fault.at <= send.due < ended for fault, ended in faults)
    )


def most_failovers(records: Sequence[Record]) -> int:
    """Return how often the entity with the most failovers failed over, in one process."""
    counts = Counter(
        (one.process, one.entity)
        for one in Run.of(records).all(EntityStateMoved)
        if one.after is State.SECONDARY and one.before is not State.HALF_OPEN
    )
    return max(counts.values(), default=0)


def _first(moments: Sequence[float], since: float) -> float | None:
    return min((at - since for at in moments if since <= at < math.inf), default=None)


def _detours(run: Run, diverted: Sequence[Send]) -> list[float]:
    arrived: dict[str, float] = {}
    for one in run.all(Delivered):
        arrived.setdefault(one.message_id, one.at)
    return [arrived[send.message_id] - send.due for send in diverted if send.message_id in arrived]


def _good_again(sends: Sequence[Send], since: float) -> float | None:
    """Return the seconds from `since` to the first period in which almost all sends are prompt."""
    later = [send for send in sends if send.due >= since]
    if not later:
        return None
    last = later[-1].due
    begin = since
    while begin + RECOVERED <= last:
        within = [send for send in later if begin <= send.due < begin + RECOVERED]
        late = [send for send in within if send.latency > PROMPT]
        if within and len(late) <= (1 - GOOD) * len(within):
            return begin - since
        begin = max(begin + WINDOW, late[0].due if late else begin)
    return None


def per_second(
    records: Sequence[Record], began: float, ended: float, accepted_by: AcceptedBy | None
) -> list[tuple[int, int]]:
    """
    Return the number of sends that `accepted_by` accepted, for each whole second of the load.

    None: the sends that anything accepted.
    """
    counts = Counter(
        int(one.at - began)
        for one in records
        if isinstance(one, Acked) and (accepted_by is None or one.accepted_by is accepted_by)
    )
    return [(second, counts[second]) for second in range(int(ended - began))]


def as_json(value: Any) -> Any:
    """JSON has no infinite and no missing numbers."""
    if isinstance(value, dict):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
