"""The status of a gateway with workers: that of its parent, with the figures of all workers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs

from gateway.domain.billing import Operation, UsageReport
from gateway.domain.health.abilities import AbilityStatus
from gateway.domain.status import (
    Alarm,
    NamespaceStatus,
    PairStatus,
    RefusalCount,
    SendCount,
    SpoolStatus,
    Status,
)

STORES: Final = frozenset({"embedded", "memory"})
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def summed(parent: Status, workers: Sequence[Status]) -> Status:
    """
    The parent's status with the counts of all; of each ability the newest evidence counts.

    Entity states, backlog, syphon and spool are the parent's.
    """
    alarms = (alarm for each in (parent, *workers) for alarm in each.alarms)
    return attrs.evolve(
        parent,
        namespaces=tuple(_namespace(each, workers) for each in parent.namespaces),
        pair=None if parent.pair is None else _pair(parent.pair, workers),
        events=_events(each.events for each in (parent, *workers)),
        alarms=tuple(_alarms(alarms)),
        refused=tuple(_refused(parent, workers)),
    )


def ended(status: Status) -> Status:
    """The status of a worker that has ended: its counts are left."""
    pair = status.pair
    if pair is not None:
        usable = attrs.evolve(pair.backlog, usable=pair.backlog.wanted)
        pair = attrs.evolve(pair, inflight=0, max_inflight=0, paused=0, backlog=usable, spool=None)
    namespaces = (
        attrs.evolve(each, usage=attrs.evolve(each.usage, idle_seconds=float("inf")), abilities={})
        for each in status.namespaces
    )
    return attrs.evolve(status, namespaces=tuple(namespaces), pair=pair, alarms=())


def _namespace(own: NamespaceStatus, workers: Sequence[Status]) -> NamespaceStatus:
    same = [space for status in workers for space in status.namespaces if space.name == own.name]
    abilities = dict(own.abilities)
    for space in same:
        for name, ability in space.abilities.items():
            if name not in abilities or _seen(ability) > _seen(abilities[name]):
                abilities[name] = ability
    usages = [own.usage, *(space.usage for space in same)]
    # The parent sees all operations on its own stores.
    usage = own.usage if own.kind in STORES else _usage(usages)
    return attrs.evolve(own, usage=usage, abilities=abilities)


def _seen(ability: AbilityStatus) -> datetime:
    return ability.seen or _NEVER


def _usage(reports: Sequence[UsageReport]) -> UsageReport:
    operations: Counter[Operation] = Counter()
    for report in reports:
        operations.update(report.operations)
    return UsageReport(
        operations=dict(operations),
        sent=sum(report.sent for report in reports),
        received=sum(report.received for report in reports),
        idle_operations=sum(report.idle_operations for report in reports),
        # The namespace is idle while no process works.
        idle_seconds=min(report.idle_seconds for report in reports),
    )


def _pair(own: PairStatus, workers: Sequence[Status]) -> PairStatus:
    pairs = [own, *(status.pair for status in workers if status.pair is not None)]
    sends: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        for count in pair.sends:
            sends[count.accepted_by, count.outcome] += count.messages
    usable = min(pair.backlog.usable for pair in pairs)
    return attrs.evolve(
        own,
        backlog=attrs.evolve(own.backlog, usable=usable),
        sends=tuple(
            SendCount(accepted_by=accepted_by, outcome=outcome, messages=messages)
            for (accepted_by, outcome), messages in sends.items()
        ),
        inflight=sum(pair.inflight for pair in pairs),
        max_inflight=sum(pair.max_inflight for pair in pairs),
        paused=max(pair.paused for pair in pairs),
        pauses=sum(pair.pauses for pair in pairs),
        spool=_spool(own.spool, [pair.spool for pair in pairs if pair.spool is not None]),
    )


def _spool(own: SpoolStatus | None, spools: Sequence[SpoolStatus]) -> SpoolStatus | None:
    """The parent's figures of the spool, with the rates of all processes."""
    if own is None:
        return None
    return attrs.evolve(
        own,
        rate_in=sum(spool.rate_in for spool in spools),
        rate_out=sum(spool.rate_out for spool in spools),
    )


def _events(counts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    events: Counter[str] = Counter()
    for each in counts:
        events.update(each)
    return dict(events)


def _alarms(alarms: Iterable[Alarm]) -> list[Alarm]:
    by_event: defaultdict[str, list[Alarm]] = defaultdict(list)
    for alarm in alarms:
        by_event[alarm.event].append(alarm)
    newest = [
        attrs.evolve(
            max(same, key=lambda alarm: alarm.last), times=sum(alarm.times for alarm in same)
        )
        for same in by_event.values()
    ]
    return sorted(newest, key=lambda alarm: alarm.last, reverse=True)


def _refused(own: Status, workers: Sequence[Status]) -> Iterable[RefusalCount]:
    counts: Counter[tuple[str, str]] = Counter()
    for status in (own, *workers):
        for each in status.refused:
            counts[each.protocol, each.reason] += each.times
    for (protocol, reason), times in sorted(counts.items()):
        yield RefusalCount(protocol=protocol, reason=reason, times=times)
