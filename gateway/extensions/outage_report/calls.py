"""The control call of the report."""

from typing import Final

from gateway.extensions.outage_report.outage import OutageReport
from gateway.wire.pairgate.control_call import ControlCall, NoKeys

OUTAGES: Final = ControlCall(
    name="outage-report",
    method="GET",
    summary="the last outages of the primary, as data and as Markdown",
    request=NoKeys,
    answer=OutageReport,
    refusals=(501,),
)
