"""`pairgate trigger`: announces a message to listeners that didn't come through the gateway."""

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.admin_endpoint import admin_here
from gateway.app.operations.asking import ask_once, named, reason_of
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest
from gateway.wire.pairgate.control_call import ANSWER_SECONDS


async def trigger(config: Config, queue: str, choice: AdminChoice, *, size: int = 0) -> str:
    """
    Announce a message in the queue; return the address of the gateway that has announced it to its
    listeners.

    Raises:
        Failure: no gateway answers at an admin endpoint, or it refused.
    """
    try:
        path = EntityPath.parse(queue)
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    endpoint = await admin_here(config, choice)
    target = f"/triggers/{path.name}?size={size}"
    try:
        with trio.fail_after(ANSWER_SECONDS):
            await ask_once(endpoint, Right.SEND, target, method="POST", success=202)
    except (BrokerError, trio.TooSlowError) as error:
        raise Failure(named(endpoint, reason_of(error))) from error
    return str(endpoint)
