"""The service that ends outages."""

from collections.abc import Iterable
from typing import Final

from gateway.app.assembly.parts import Parts
from gateway.app.assembly.roles import LEADING
from gateway.app.assembly.services import ServiceRow
from gateway.extensions.outage_report import EXTENSION
from gateway.extensions.outage_report.feature import Reporting
from gateway.extensions.outage_report.watch import ANSWER_LIMIT, OutageWatch
from gateway.ports import Service


async def _watch(parts: Parts) -> Iterable[Service]:
    feature, pair, spool = parts.features.get(EXTENSION.name), parts.pair, parts.spool
    if not isinstance(feature, Reporting):
        return []
    assert pair is not None, "a report is made of a pair"
    feature.book.read_from(pair.broker.sends, lambda: pair.depth.history)

    async def is_spool_empty() -> bool:
        return spool is None or (await spool.read(ANSWER_LIMIT)).pending == 0

    return [
        OutageWatch(
            book=feature.book,
            depth=pair.depth,
            report=parts.plan.runtime.observer.report,
            is_spool_empty=is_spool_empty,
        )
    ]


SERVICE: Final = ServiceRow("outages", LEADING, _watch)
