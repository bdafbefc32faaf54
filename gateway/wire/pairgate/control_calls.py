"""
The table of control calls. A new one needs a row here, and an executor in
`app/operations/control_calls`.

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
from gateway.domain.operators.drill import DrillAnswer, DrillOrder, DrillState
from gateway.domain.operators.permissions import Permissions
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder
from gateway.domain.operators.process import ProcessAction, ProcessAnswer, ProcessOrder
from gateway.domain.operators.purge import PurgeAnswer, PurgeOrder
from gateway.domain.operators.redrive import Redriven, RedriveOrder, Survey
from gateway.wire.pairgate.control_call import ControlCall, NoKeys

_OF_NAMESPACE: Final = (404, 503, 504)

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
REDRIVE: Final[ControlCall[RedriveOrder, Survey | Redriven]] = ControlCall(
    name="redrive",
    summary="counts dead letters of the backlog, or moves them",
    request=RedriveOrder,
    answer=Redriven,
    survey=Survey,
    refusals=_OF_NAMESPACE,
    audited=("moved", "left"),
    patience=600.0,  # for the dead letters of all backlog queues
    old_path="/redrive",
)
PURGE: Final = ControlCall(
    name="purge",
    summary="counts the messages of a backlog queue, or deletes them",
    request=PurgeOrder,
    answer=PurgeAnswer,
    refusals=_OF_NAMESPACE,
    audited=("purged", "left"),
    patience=600.0,  # for all messages of a backlog queue
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
DRILLS: Final = ControlCall(
    name="drill",
    method="GET",
    summary="the drill that is under way",
    request=NoKeys,
    answer=DrillState,
    refusals=(501,),
)
DRILL: Final = ControlCall(
    name="drill", summary="begins a drill", request=DrillOrder, answer=DrillAnswer
)
END_DRILL: Final = ControlCall(
    name="end-drill", summary="ends the drill", request=NoKeys, answer=DrillAnswer
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
    fixed={"action": ProcessAction.DRAIN},
    answer=ProcessAnswer,
    audited=("changed", "before", "after", "report"),
)

CONTROL_CALLS: Final[tuple[ControlCall[Any, Any], ...]] = (
    CONTROL,
    PERMISSIONS,
    FAILOVER,
    FAILBACK,
    PROBE,
    REDRIVE,
    PURGE,
    PAUSE,
    RESUME,
    RATE,
    DRILLS,
    DRILL,
    END_DRILL,
    RELOAD,
    DRAIN,
)
