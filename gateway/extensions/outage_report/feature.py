"""The report in a gateway: its book, its control call, and the service that ends outages."""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.assembly.records import counted_by
from gateway.app.assembly.roles import LEADING, Role
from gateway.app.assembly.services import ServiceRow
from gateway.app.operations.control_calls import Executors
from gateway.domain.operators.control import Operator
from gateway.extensions.outage_report import EXTENSION
from gateway.extensions.outage_report.book import ClientCounts, OutageBook
from gateway.extensions.outage_report.file import NAME, OutageFile
from gateway.extensions.outage_report.markdown import report_of
from gateway.extensions.outage_report.outage import OUTAGES, OutageReport
from gateway.extensions.outage_report.watch import ANSWER_LIMIT, OrderNotes, OutageWatch
from gateway.frontends.admin.control import Executor, at_once
from gateway.ports import Service
from gateway.wire.pairgate.control_call import NoKeys


def make(plan: ProcessPlan) -> Feature | None:
    pairing, runtime = plan.config.pairing, plan.runtime
    if pairing is None or not plan.role.leads:
        return None
    book = OutageBook(
        primary=pairing.primary,
        clock=runtime.now,
        counts=plan.role is Role.ALONE,
        moves=pairing.enable_syphon,
        back=partial(runtime.observer.back.get, pairing.primary),
    )
    runtime.observer.followers.append(book.record)
    return Reporting(book, pairing.state.with_name(NAME))


@attrs.frozen(eq=False)
class Reporting(Feature):
    book: OutageBook
    path: Path  # of the file that keeps the outages

    def executors(self, parts: Parts) -> Executors:
        def report(_: NoKeys, __: Operator) -> OutageReport:
            outages = self.book.all()
            return OutageReport(outages=outages, markdown=report_of(outages))

        return [Executor(OUTAGES, at_once(report))]


async def _watch(parts: Parts) -> Iterable[Service]:
    feature, pair, spool = parts.features.get(EXTENSION.name), parts.pair, parts.spool
    if not isinstance(feature, Reporting):
        return []
    assert pair is not None, "a report is made of a pair"
    book, records, runtime = feature.book, parts.records, parts.plan.runtime
    notes = OrderNotes(book=book, pauses=pair.pauses, states=pair.states)
    reader = None if records is None else records.reader
    book.read_from(
        pair.broker.sends,
        lambda: pair.depth.history,
        None if reader is None else lambda: reader.known,
        "" if records is None else records.book.process,
        notes.in_force,
    )

    async def is_spool_empty() -> bool:
        return spool is None or (await spool.read(ANSWER_LIMIT)).pending == 0

    async def count_workers() -> ClientCounts:
        found = await parts.workers()
        counted, by_entity = counted_by([*found.running, *found.ended]), Counter[str]()
        for name, messages in counted.by_entity.items():
            by_entity[name.lower()] += messages
        return ClientCounts(
            diverted=counted.diverted,
            possibly_twice=counted.possibly_twice,
            by_entity=by_entity,
        )

    watch = OutageWatch(
        book=book,
        depth=pair.depth,
        report=runtime.observer.report,
        is_spool_empty=is_spool_empty,
        reader=reader,
        count_workers=None if book.counts else count_workers,
    )
    file = OutageFile(path=feature.path, book=book, observer=runtime.observer)
    file.restore()
    return [watch, notes, file]


SERVICE: Final = ServiceRow("outages", LEADING, _watch)
