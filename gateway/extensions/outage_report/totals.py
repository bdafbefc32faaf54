"""Adds the figures of the pair's other processes to an outage, by their records."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.health.process_records import (
    CountByName,
    GatewayRecord,
    PairRecords,
    ProcessRecord,
    SyphonRecord,
)
from gateway.extensions.outage_report.outage import EntityOutage, ProcessOutage, RecordedOutage

MOST_SHARES: Final = 100  # processes in a report that are told one by one
_NO_GATEWAY: Final = GatewayRecord(possibly_twice=0, twice=0, failed=0, troubles=0)
_NO_SYPHON: Final = SyphonRecord(possibly_twice=0)


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
    left_out, shares = [], [_own_share(outage)]
    for key, record in now.items():
        earlier = before.get(key)
        if earlier is None and record.started < outage.began:
            left_out.append(record.place)
            continue
        share = _share(earlier, record)
        if any((share.diverted, share.moved, share.possibly_twice, share.longest_stall)):
            shares.append(share)
        outage = _with_gateway(outage, earlier, record, share)
        outage = _with_syphon(outage, earlier, record)
        back = record.primary_back if earlier is None else _news(earlier, record)
        outage = attrs.evolve(
            outage,
            processes=outage.processes + 1,
            namespace_back=max(filter(None, (outage.namespace_back, back)), default=None),
        )
    return attrs.evolve(
        outage,
        left_out=tuple(left_out),
        shares=tuple(shares[:MOST_SHARES]) if outage.processes > 1 else (),
    )


def _news(before: ProcessRecord, now: ProcessRecord) -> datetime | None:
    """Since when the primary answers the process, if it has lost it meanwhile."""
    return None if now.primary_back == before.primary_back else now.primary_back


def _own_share(outage: RecordedOutage) -> ProcessOutage:
    return ProcessOutage(
        process="this process",
        diverted=outage.diverted,
        moved=outage.moved,
        possibly_twice=_sum(outage.possibly_twice, outage.possibly_twice_by_syphon or 0),
        longest_stall=outage.longest_stall,
    )


def _share(before: ProcessRecord | None, now: ProcessRecord) -> ProcessOutage:
    diverted = moved = stall = None
    if now.gateway is not None:
        earlier = _gateway_of(before)
        diverted = now.gateway.diverted.total - earlier.diverted.total
        stall = _stall(earlier, now.gateway, has_diverted=diverted > 0)
    if now.syphon is not None:
        moved = now.syphon.moved.total - _syphon_of(before).moved.total
    twice = 0 if before is None else before.possibly_twice
    return ProcessOutage(
        process=now.place,
        diverted=diverted,
        moved=moved,
        possibly_twice=_grown(twice, now.possibly_twice),
        longest_stall=stall,
    )


def _stall(before: GatewayRecord, now: GatewayRecord, *, has_diverted: bool) -> float | None:
    """
    The seconds of the slowest send since the first trouble of this outage; 0: it had none. None: it
    isn't told, or one of more troubles than are told.
    """
    if before.troubles is None or now.troubles is None:
        return None
    new = now.troubles - before.troubles + (1 if before.troubled else 0)
    if new == 0:
        return None if has_diverted else 0.0
    return now.stalls[-new] if new <= len(now.stalls) else None


def _gateway_of(record: ProcessRecord | None) -> GatewayRecord:
    return (None if record is None else record.gateway) or _NO_GATEWAY


def _syphon_of(record: ProcessRecord | None) -> SyphonRecord:
    return (None if record is None else record.syphon) or _NO_SYPHON


def _with_gateway(
    outage: RecordedOutage,
    before: ProcessRecord | None,
    now: ProcessRecord,
    share: ProcessOutage,
) -> RecordedOutage:
    if now.gateway is None:
        return outage
    earlier = _gateway_of(before)
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
    stall = share.longest_stall
    known_stalls = None not in (stall, outage.longest_stall)
    return attrs.evolve(
        outage,
        entities=(*entities, *further),
        troubled=outage.troubled + len(further),
        diverted=_sum(outage.diverted, share.diverted),
        possibly_twice=_sum(
            outage.possibly_twice, _grown(earlier.possibly_twice, now.gateway.possibly_twice)
        ),
        twice=_sum(outage.twice, _grown(earlier.twice, now.gateway.twice)),
        failed=_sum(outage.failed, _grown(earlier.failed, now.gateway.failed)),
        longest_stall=max(outage.longest_stall or 0.0, stall or 0.0) if known_stalls else None,
    )


def _with_syphon(
    outage: RecordedOutage, before: ProcessRecord | None, now: ProcessRecord
) -> RecordedOutage:
    if now.syphon is None:
        return outage
    earlier = _syphon_of(before)
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
