"""The control call of a redrive."""

from typing import Final

from gateway.extensions.redrive.order import Redriven, RedriveOrder, Survey
from gateway.wire.pairgate.control_call import OF_NAMESPACE, ControlCall

REDRIVE: Final[ControlCall[RedriveOrder, Survey | Redriven]] = ControlCall(
    name="redrive",
    summary="counts dead letters of the backlog, or moves them",
    request=RedriveOrder,
    answer=Redriven,
    survey=Survey,
    refusals=OF_NAMESPACE,
    audited=("moved", "left"),
    patience=600.0,  # for the dead letters of all backlog queues
    old_path="/redrive",
)
