"""Requests to the admin endpoint of a local or remote gateway."""

from typing import Final

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_endpoint import AdminChoice, AdminEndpoint, admin_here
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, MessageError
from gateway.domain.status import Status
from gateway.net.http.client import HttpClient
from gateway.wire.http.messages import Headers, Request
from gateway.wire.pairgate.status import parse_status
from gateway.wire.servicebus.errors import parse_error

ANSWER_SECONDS: Final = 10.0


async def ask(
    client: HttpClient,
    authorization: str | None,
    target: str,
    *,
    method: str = "GET",
    success: int = 200,
) -> bytes:
    """
    The body of its response, if that has the one status that means success.

    Raises:
        BrokerError: the gateway refused, or can't be reached.
    """
    headers = Headers.of({} if authorization is None else {"Authorization": authorization})
    response = await client.request(Request(method=method, target=target, headers=headers))
    if response.status != success:
        raise parse_error(response)
    return response.body


async def ask_once(
    endpoint: AdminEndpoint,
    right: Right,
    target: str,
    *,
    method: str = "GET",
    success: int = 200,
) -> bytes:
    """
    As `ask`, over a connection of its own, with a key that has the right.

    Raises:
        Failure: no policy of the configuration has the right.
        BrokerError: as `ask`.
        trio.TooSlowError: no response within `ANSWER_SECONDS`.
    """
    with trio.fail_after(ANSWER_SECONDS):
        async with endpoint.client() as client:
            text = endpoint.authorization(right)
            return await ask(client, text, target, method=method, success=success)


def reason_of(error: Exception) -> str:
    return str(error) or f"no answer within {ANSWER_SECONDS:g} s"


async def ask_status(config: Config, choice: AdminChoice) -> tuple[str, Status]:
    """
    Return the address of the gateway's admin endpoint, and its status.

    Raises:
        Failure: no gateway runs or answers in time (temporary), it refused the request, or the
            configuration has no admin endpoint.
    """
    endpoint = await admin_here(config, choice)
    try:
        return str(endpoint), parse_status(await ask_once(endpoint, Right.LISTEN, "/status"))
    except (BrokerError, MessageError, trio.TooSlowError) as error:
        refused = isinstance(error, BrokerError) and not error.counts_as_outage
        code = ExitCode.FAILED if refused or isinstance(error, MessageError) else ExitCode.TEMPORARY
        raise Failure(f"{endpoint}: {reason_of(error)}", code) from error
