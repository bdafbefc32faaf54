"""`pairgate trigger`: listeners hear of a message that didn't come through the gateway."""

import trio

from gateway.app.asking import admin_here, ask_here, reason_of
from gateway.app.failure import ExitCode, Failure
from gateway.app.targets import admin_authorization
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest


async def trigger(config: Config, queue: str, *, size: int = 0, port_offset: int = 0) -> str:
    """
    Return the address of the gateway that has taken it; its listeners hear of it now.

    Raises:
        Failure: no gateway with an admin endpoint runs here, or it refused.
    """
    try:
        path = EntityPath.parse(queue)
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    address = await admin_here(config, port_offset)
    text = admin_authorization(config, address, Right.SEND)
    target = f"/triggers/{path.name}?size={size}"
    try:
        await ask_here(address, text, target, method="POST", success=202)
    except (BrokerError, trio.TooSlowError) as error:
        raise Failure(f"{address}: {reason_of(error)}") from error
    return address
