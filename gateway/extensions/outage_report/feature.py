"""The report in a gateway's process."""

import attrs

from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.assembly.roles import Role
from gateway.app.operations.control_calls import Executors
from gateway.domain.operators.control import Operator
from gateway.extensions.outage_report.book import OutageBook
from gateway.extensions.outage_report.calls import OUTAGES
from gateway.extensions.outage_report.markdown import report_of
from gateway.extensions.outage_report.outage import OutageReport
from gateway.frontends.admin.control import Executor, at_once
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
    )
    runtime.observer.followers.append(book.record)
    return Reporting(book)


@attrs.frozen(eq=False)
class Reporting(Feature):
    book: OutageBook

    def executors(self, parts: Parts) -> Executors:
        def report(_: NoKeys, __: Operator) -> OutageReport:
            outages = self.book.all()
            return OutageReport(outages=outages, markdown=report_of(outages))

        return [Executor(OUTAGES, at_once(report))]
