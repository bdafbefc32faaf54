"""Orders for drills to the running gateway."""

from gateway.app.operations.admin_endpoint import AdminChoice
from gateway.app.operations.asking import call
from gateway.config.options import Config
from gateway.domain.operators.drill import DrillAnswer, DrillOrder, DrillState
from gateway.wire.pairgate.drill import (
    END_PATH,
    PATH,
    build_order,
    parse_answer,
    parse_state,
)


async def read_drills(config: Config, choice: AdminChoice) -> DrillState:
    """
    The drill that is under way at the gateway, and whether it allows one.

    Raises:
        Failure: as `call`.
    """
    _, state = await call(config, choice, PATH, parse_state)
    return state


async def begin_drill(config: Config, choice: AdminChoice, order: DrillOrder) -> DrillAnswer:
    """
    Begin a drill. Raises as `read_drills`; without an answer the drill may be under way.
    """
    body = build_order(order)
    _, answer = await call(config, choice, PATH, parse_answer, body=body)
    return answer


async def end_drill(config: Config, choice: AdminChoice) -> DrillAnswer:
    """End the drill that is under way, if one is. Raises as `read_drills`."""
    _, answer = await call(config, choice, END_PATH, parse_answer, body=b"{}")
    return answer
