"""`pairgate outage-report`: the last outages of the primary, for a post-mortem."""

import click

from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.admin import add_gateway, give
from gateway.commands.terminal import Integer, Invocation, command
from gateway.extensions.outage_report.markdown import report_of
from gateway.extensions.outage_report.outage import OUTAGES, OutageReport
from gateway.wire.pairgate.control_call import NoKeys


@command
@add_gateway
@click.option("--last", type=Integer(1), help="Only so many outages, the latest first.")
def outage_report(invocation: Invocation, admin: AdminChoice, last: int | None) -> None:
    """
    Report the outages of the primary, as Markdown: cause, entities, curve and totals.

    The gateway remembers the last ten. With --json: as data.
    """

    def lines(_: str, answer: OutageReport) -> list[str]:
        return report_of(answer.outages[:last]).splitlines()

    give(invocation, admin, OUTAGES, NoKeys(), lines)
