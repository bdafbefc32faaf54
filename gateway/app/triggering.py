"""`pairgate trigger`: listeners hear of a message that didn't come through the gateway."""

from typing import Final

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.targets import admin_authorization, find_admin
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest
from gateway.net.http_client import HttpClient
from gateway.wire.http import Headers, Request
from gateway.wire.servicebus_errors import parse_error

ANSWER_SECONDS: Final = 10.0


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
    address = await find_admin(config, port_offset)
    if address is None:
        raise Failure(
            "no gateway answers at an endpoint `admin` without TLS of this configuration",
            ExitCode.TEMPORARY,
        )
    text = admin_authorization(config, address, Right.SEND)
    fields = {} if text is None else {"Authorization": text}
    request = Request(
        method="POST",
        target=f"/triggers/{path.name}?size={size}",
        headers=Headers.of(fields),
    )
    try:
        await _ask(address, request)
    except (BrokerError, trio.TooSlowError) as error:
        reason = str(error) or f"no answer within {ANSWER_SECONDS:g} s"
        raise Failure(f"{address}: {reason}") from error
    return address


async def _ask(address: str, request: Request) -> None:
    host, _, port = address.rpartition(":")
    async with HttpClient(host.strip("[]"), int(port)) as client:
        with trio.fail_after(ANSWER_SECONDS):
            response = await client.request(request)
    if response.status != 202:
        raise parse_error(response)
