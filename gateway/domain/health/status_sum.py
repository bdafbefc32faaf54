"""The status of a gateway with workers: that of its parent, with the figures of all workers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs

from gateway.domain.billing import sum_of
from gateway.domain.health.abilities import AbilityStatus
from gateway.domain.health.distribution import Distribution, added
from gateway.domain.status import (
    Alarm,
    BusyEntity,
    ConnectionCount,
    LimitCount,
    NamespaceStatus,
    OperationDuration,
    PairStatus,
    RefusalCount,
    SendCount,
    SendDuration,
    SpoolStatus,
    StateChangeCount,
    Status,
)

STORES: Final = frozenset({"embedded", "memory"})
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def summed(parent: Status, workers: Sequence[Status]) -> Status:
    """
    The parent's status with the counts of all; of each ability the newest evidence counts.

    Entity states, backlog, syphon, spool, commits and certificates are the parent's.
    """
    alarms = (alarm for each in (parent, *workers) for alarm in each.alarms)
    return attrs.evolve(
        parent,
        namespaces=tuple(_namespace(each, workers) for each in parent.namespaces),
        pair=None if parent.pair is None else _pair(parent.pair, workers),
        events=_events(each.events for each in (parent, *workers)),
        alarms=tuple(_alarms(alarms)),
        refused=tuple(_refused(parent, workers)),
        limited=tuple(_limited(parent, workers)),
        connections=tuple(_connections(parent, workers)),
        sends=tuple(_sends((parent, *workers))),
        durations=tuple(_durations((parent, *workers))),
        loop_lag=added(each.loop_lag for each in (parent, *workers) if each.loop_lag is not None),
        tasks=_tasks((parent, *workers)),
        token_expiries=_first(each.token_expiries for each in (parent, *workers)),
    )


def _first(dates: Iterable[Mapping[str, datetime]]) -> Mapping[str, datetime]:
    """The first date of each name."""
    found: dict[str, datetime] = {}
    for name, date in ((name, date) for each in dates for name, date in each.items()):
        found[name] = min(date, found.get(name, date))
    return found


def _tasks(processes: Iterable[Status]) -> int | None:
    counted = [each.tasks for each in processes if each.tasks is not None]
    return sum(counted) if counted else None


def ended(status: Status) -> Status:
    """The status of a worker that has ended: its counts are left."""
    pair = status.pair
    if pair is not None:
        usable = attrs.evolve(pair.backlog, usable=pair.backlog.wanted)
        pair = attrs.evolve(
            pair,
            entities=(),
            inflight=0,
            max_inflight=0,
            paused=0,
            backlog=usable,
            spool=None,
        )
    namespaces = (
        attrs.evolve(each, usage=attrs.evolve(each.usage, idle_seconds=float("inf")), abilities={})
        for each in status.namespaces
    )
    connections = (attrs.evolve(each, open=0) for each in status.connections)
    return attrs.evolve(
        status,
        namespaces=tuple(namespaces),
        pair=pair,
        alarms=(),
        connections=tuple(connections),
    )


def _namespace(own: NamespaceStatus, workers: Sequence[Status]) -> NamespaceStatus:
    same = [space for status in workers for space in status.namespaces if space.name == own.name]
    abilities = dict(own.abilities)
    for space in same:
        for name, ability in space.abilities.items():
            if name not in abilities or _seen(ability) > _seen(abilities[name]):
                abilities[name] = ability
    usages = [own.usage, *(space.usage for space in same)]
    # The parent sees all operations on its own stores.
    usage = own.usage if own.kind in STORES else sum_of(usages)
    operations = tuple(_operations([own, *same]))
    return attrs.evolve(own, usage=usage, abilities=abilities, operations=operations)


def _seen(ability: AbilityStatus) -> datetime:
    return ability.seen or _NEVER


def _pair(own: PairStatus, workers: Sequence[Status]) -> PairStatus:
    pairs = [own, *(status.pair for status in workers if status.pair is not None)]
    changes: Counter[tuple[str, str, str]] = Counter()
    refused: Counter[str] = Counter()
    possibly_twice: Counter[str] = Counter()
    for pair in pairs:
        for change in pair.state_changes:
            changes[change.before, change.after, change.cause] += change.times
        refused.update(pair.refused)
        possibly_twice.update(pair.possibly_twice)
    usable = min(pair.backlog.usable for pair in pairs)
    diverted: Counter[str] = Counter()
    for pair in pairs:
        for entity in pair.entities:
            diverted[entity.entity.lower()] += entity.diverted
    return attrs.evolve(
        own,
        entities=tuple(
            attrs.evolve(each, diverted=diverted[each.entity.lower()]) for each in own.entities
        ),
        backlog=attrs.evolve(own.backlog, usable=usable),
        sends=tuple(_sends(pairs)),
        durations=tuple(_durations(pairs)),
        refused=dict(refused),
        possibly_twice=dict(possibly_twice),
        oversized=sum(pair.oversized for pair in pairs),
        slow_calls=sum(pair.slow_calls for pair in pairs),
        state_changes=tuple(
            StateChangeCount(before=before, after=after, cause=cause, times=times)
            for (before, after, cause), times in changes.items()
        ),
        inflight=sum(pair.inflight for pair in pairs),
        max_inflight=sum(pair.max_inflight for pair in pairs),
        paused=max(pair.paused for pair in pairs),
        pauses=sum(pair.pauses for pair in pairs),
        busy=tuple(_busy(pairs)),
        spool=_spool(own.spool, [pair.spool for pair in pairs if pair.spool is not None]),
    )


def _busy(pairs: Sequence[PairStatus]) -> Iterable[BusyEntity]:
    """Each entity once, as the process has it in which it has been busy for the longest time."""
    found: dict[str, BusyEntity] = {}
    for each in sorted((one for pair in pairs for one in pair.busy), key=lambda one: one.seconds):
        found[each.entity] = each
    return found.values()


def _operations(namespaces: Sequence[NamespaceStatus]) -> Iterable[OperationDuration]:
    found: defaultdict[tuple[str, str], list[Distribution]] = defaultdict(list)
    for namespace in namespaces:
        for each in namespace.operations:
            found[each.name, each.error].append(each.seconds)
    for (name, error), several in found.items():
        seconds = added(several)
        if seconds is not None:
            yield OperationDuration(name=name, error=error, seconds=seconds)


def _sends(parts: Sequence[PairStatus | Status]) -> Iterable[SendCount]:
    found: Counter[tuple[str, str, str]] = Counter()
    for part in parts:
        for each in part.sends:
            found[each.accepted_by, each.outcome, each.error] += each.messages
    for (accepted_by, outcome, error), messages in found.items():
        yield SendCount(accepted_by=accepted_by, outcome=outcome, messages=messages, error=error)


def _durations(parts: Sequence[PairStatus | Status]) -> Iterable[SendDuration]:
    found: defaultdict[tuple[str, str], list[Distribution]] = defaultdict(list)
    for part in parts:
        for each in part.durations:
            found[each.accepted_by, each.error].append(each.seconds)
    for (accepted_by, error), several in found.items():
        seconds = added(several)
        if seconds is not None:
            yield SendDuration(accepted_by=accepted_by, error=error, seconds=seconds)


def _connections(own: Status, workers: Sequence[Status]) -> Iterable[ConnectionCount]:
    """The connections of all processes; the limits are those of all processes together."""
    for each in own.connections:
        same = [
            count
            for status in (own, *workers)
            for count in status.connections
            if count.protocol == each.protocol
        ]
        yield attrs.evolve(
            each,
            open=sum(count.open for count in same),
            opened=sum(count.opened for count in same),
            refused=sum(count.refused for count in same),
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


def _limited(own: Status, workers: Sequence[Status]) -> Iterable[LimitCount]:
    counts: Counter[tuple[str, str]] = Counter()
    for status in (own, *workers):
        for each in status.limited:
            counts[each.client, each.limit] += each.times
    for (client, limit), times in sorted(counts.items()):
        yield LimitCount(client=client, limit=limit, times=times)


def _refused(own: Status, workers: Sequence[Status]) -> Iterable[RefusalCount]:
    counts: Counter[tuple[str, str]] = Counter()
    for status in (own, *workers):
        for each in status.refused:
            counts[each.protocol, each.reason] += each.times
    for (protocol, reason), times in sorted(counts.items()):
        yield RefusalCount(protocol=protocol, reason=reason, times=times)
