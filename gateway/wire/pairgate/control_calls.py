"""
The table of control calls. A call of the core has a row here, and an executor in
`app/operations/control_calls`; those of an extension are in its folder.

`GET /v1/permissions` lists the actions of a process in the order of this table.
"""

from typing import Any, Final

from gateway.domain.operators.control import (
    Action,
    ControlAnswer,
    ControlQuery,
    ControlState,
    Order,
)
from gateway.domain.operators.permissions import Permissions
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder
from gateway.domain.operators.process import ProcessAction, ProcessAnswer, ProcessOrder
from gateway.extensions.listing import parts
from gateway.wire.pairgate.control_call import ControlCall, NoKeys

CONTROL: Final = ControlCall(
    name="control",
    method="GET",
    summary="the orders in effect, and the states of the entities that the targets match",
    request=ControlQuery,
    answer=ControlState,
)
PERMISSIONS: Final = ControlCall(
    name="permissions",
    method="GET",
    summary="the client's role, and the actions that work for it in this process",
    request=NoKeys,
    answer=Permissions,
)
FAILOVER: Final = ControlCall(
    name="failover",
    summary="pins entities to the backlog",
    request=Order,
    fixed={"action": Action.FAILOVER},
    required=("targets",),
    answer=ControlAnswer,
)
FAILBACK: Final = ControlCall(
    name="failback",
    summary="returns entities to the primary",
    request=Order,
    fixed={"action": Action.FAILBACK},
    required=("targets",),
    answer=ControlAnswer,
)
PROBE: Final = ControlCall(
    name="probe",
    summary="probes troubled entities now",
    request=ProbeOrder,
    answer=ProbeAnswer,
    patience=60.0,  # more than an `attempt_timeout`
)
PAUSE: Final = ControlCall(
    name="pause",
    summary="pauses the syphon",
    request=Order,
    fixed={"action": Action.PAUSE},
    answer=ControlAnswer,
)
RESUME: Final = ControlCall(
    name="resume",
    summary="ends pauses of the syphon",
    request=Order,
    fixed={"action": Action.RESUME},
    answer=ControlAnswer,
)
RATE: Final = ControlCall(
    name="rate",
    summary="limits the syphon's messages per second",
    request=Order,
    fixed={"action": Action.RATE},
    answer=ControlAnswer,
)
RELOAD: Final = ControlCall(
    name="reload",
    summary="reads the configuration again",
    request=ProcessOrder,
    fixed={"action": ProcessAction.RELOAD, "wait": False},
    answer=ProcessAnswer,
)
DRAIN: Final = ControlCall(
    name="drain",
    summary="accepts nothing more, finishes, and ends the process",
    request=ProcessOrder,
    fixed={"action": ProcessAction.DRAIN, "everywhere": False},
    answer=ProcessAnswer,
    audited=("changed", "before", "after", "report"),
)

CONTROL_CALLS: Final[tuple[ControlCall[Any, Any], ...]] = (
    CONTROL,
    PERMISSIONS,
    FAILOVER,
    FAILBACK,
    PROBE,
    PAUSE,
    RESUME,
    RATE,
    *parts("calls"),
    RELOAD,
    DRAIN,
)
