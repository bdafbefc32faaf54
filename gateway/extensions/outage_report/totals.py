"""Adds the figures of the pair's other processes to an outage, by their records."""

from collections import Counter
from collections.abc import Mapping

import attrs

from gateway.domain.health.process_records import (
    CountByName,
    GatewayRecord,
    PairRecords,
    ProcessRecord,
    SyphonRecord,
)
from gateway.extensions.outage_report.outage import EntityOutage, RecordedOutage

_NO_GATEWAY = GatewayRecord(possibly_twice=0)
_NO_SYPHON = SyphonRecord(possibly_twice=0)


def by_process(records: PairRecords, own: str) -> Mapping[str, ProcessRecord]:
    """The newest record of each process but `own`, also of those that have ended."""
    all_of_them = (*records.ended, *records.stale, *records.alive)
    return {each.process: each for each in all_of_them if each.process != own}


def with_others(
    outage: RecordedOutage,
    before: Mapping[str, ProcessRecord],
    now: Mapping[str, ProcessRecord],
    unknown: str = "",
) -> RecordedOutage:
    """
    The outage of this process, with what the others have counted from `before` to `now`. A process
    whose earlier figures aren't known is left out and named; `unknown` is why all are.
    """
    if unknown:
        return attrs.evolve(outage, left_out=(f"all other processes: {unknown}",))
    left_out = []
    for key, record in now.items():
        earlier = before.get(key)
        if earlier is None and record.started < outage.began:
            left_out.append(record.place)
            continue
        outage = _with_gateway(outage, earlier, record)
        outage = _with_syphon(outage, earlier, record)
        outage = attrs.evolve(outage, processes=outage.processes + 1)
    return attrs.evolve(outage, left_out=tuple(left_out))


def _with_gateway(
    outage: RecordedOutage, before: ProcessRecord | None, now: ProcessRecord
) -> RecordedOutage:
    if now.gateway is None:
        return outage
    earlier = (before.gateway if before is not None else None) or _NO_GATEWAY
    diverted = _added(earlier.diverted, now.gateway.diverted)
    entities = [
        attrs.evolve(
            each,
            diverted=None if each.diverted is None else each.diverted + diverted[each.entity],
        )
        for each in outage.entities
    ]
    known = {each.entity for each in entities}
    further = [
        EntityOutage(entity=name, began=None, diverted=count)
        for name, count in sorted(diverted.items())
        if count > 0 and name not in known
    ]
    return attrs.evolve(
        outage,
        entities=(*entities, *further),
        troubled=outage.troubled + len(further),
        diverted=_sum(outage.diverted, now.gateway.diverted.total - earlier.diverted.total),
        possibly_twice=_sum(
            outage.possibly_twice, _grown(earlier.possibly_twice, now.gateway.possibly_twice)
        ),
    )


def _with_syphon(
    outage: RecordedOutage, before: ProcessRecord | None, now: ProcessRecord
) -> RecordedOutage:
    if now.syphon is None:
        return outage
    earlier = (before.syphon if before is not None else None) or _NO_SYPHON
    dead = Counter(outage.dead_lettered)
    dead.update(now.syphon.dead_lettered)
    dead.subtract(earlier.dead_lettered)
    moved = now.syphon.moved.total - earlier.moved.total
    twice = _grown(earlier.possibly_twice, now.syphon.possibly_twice)
    # None: no syphon is in this process, which is no doubt any more.
    return attrs.evolve(
        outage,
        moved=(outage.moved or 0) + moved,
        possibly_twice_by_syphon=_sum(outage.possibly_twice_by_syphon or 0, twice),
        dead_lettered={reason: count for reason, count in dead.items() if count > 0},
    )


def _added(before: CountByName, now: CountByName) -> Counter[str]:
    """By entity, as far as both name it."""
    added = Counter(now.most)
    added.subtract({name: count for name, count in before.most.items() if name in added})
    return added


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _grown(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else now - before
