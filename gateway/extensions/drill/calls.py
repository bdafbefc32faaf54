"""The control calls of drills."""

from typing import Final

from gateway.extensions.drill.order import DrillAnswer, DrillOrder, DrillState
from gateway.wire.pairgate.control_call import ControlCall, NoKeys

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
