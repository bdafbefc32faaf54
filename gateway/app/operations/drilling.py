"""Orders for drills to the running gateway."""

import trio

from gateway.app.operations.admin_endpoint import AdminChoice, AdminEndpoint, admin_here
from gateway.app.operations.asking import ask_once, failure_of
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, MessageError
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
        Failure: no gateway runs or answers in time (temporary), it refused the request, or the
            configuration has no admin endpoint.
    """
    endpoint = await admin_here(config, choice)
    try:
        return parse_state(await ask_once(endpoint, Right.LISTEN, PATH))
    except (BrokerError, MessageError, trio.TooSlowError) as error:
        raise failure_of(endpoint, error) from error


async def begin_drill(config: Config, choice: AdminChoice, order: DrillOrder) -> DrillAnswer:
    """
    Begin a drill. Raises as `read_drills`; without an answer the drill may be under way.
    """
    return await _post(await admin_here(config, choice), PATH, build_order(order))


async def end_drill(config: Config, choice: AdminChoice) -> DrillAnswer:
    """End the drill that is under way, if one is. Raises as `read_drills`."""
    return await _post(await admin_here(config, choice), END_PATH, b"{}")


async def _post(endpoint: AdminEndpoint, path: str, body: bytes) -> DrillAnswer:
    try:
        told = await ask_once(endpoint, Right.MANAGE, path, method="POST", body=body)
        return parse_answer(told)
    except (BrokerError, MessageError, trio.TooSlowError) as error:
        raise failure_of(endpoint, error) from error
