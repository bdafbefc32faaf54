"""Questions to the admin endpoint of a gateway, of this machine or another."""

from typing import Final

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.targets import admin_authorization, admin_place, find_admin
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, MessageError
from gateway.domain.status import Status
from gateway.net.dialing import Place
from gateway.net.http_client import HttpClient
from gateway.wire.http import Headers, Request
from gateway.wire.servicebus_errors import parse_error
from gateway.wire.status import parse_status

ANSWER_SECONDS: Final = 10.0


async def admin_here(config: Config, port_offset: int = 0) -> str:
    """
    The address of the gateway's admin endpoint that answers here.

    Raises:
        Failure: none does.
    """
    address = await find_admin(config, port_offset)
    if address is None:
        raise Failure(
            "no gateway answers at an endpoint `admin` without TLS of this configuration",
            ExitCode.TEMPORARY,
        )
    return address


def admin_client(place: Place) -> HttpClient:
    """A connection to it, not open yet."""
    return HttpClient(place.host, place.port, tls=place.tls)


async def ask(
    client: HttpClient,
    authorization: str | None,
    target: str,
    *,
    method: str = "GET",
    success: int = 200,
) -> bytes:
    """
    The body of its answer, if that has the one status that means success.

    Raises:
        BrokerError: it refused, or can't be reached.
    """
    headers = Headers.of({} if authorization is None else {"Authorization": authorization})
    response = await client.request(Request(method=method, target=target, headers=headers))
    if response.status != success:
        raise parse_error(response)
    return response.body


async def ask_here(
    address: str,
    authorization: str | None,
    target: str,
    *,
    method: str = "GET",
    success: int = 200,
) -> bytes:
    """
    As `ask`, of an endpoint of this machine, with a connection for this one question.

    Raises:
        BrokerError: as `ask`.
        trio.TooSlowError: there is no answer within `ANSWER_SECONDS`.
    """
    with trio.fail_after(ANSWER_SECONDS):
        async with admin_client(admin_place(f"http://{address}", address)) as client:
            return await ask(client, authorization, target, method=method, success=success)


def reason_of(error: Exception) -> str:
    return str(error) or f"no answer within {ANSWER_SECONDS:g} s"


async def ask_status(config: Config, *, port_offset: int = 0) -> tuple[str, Status]:
    """
    Return the address of the gateway's admin endpoint, and how it is.

    Raises:
        Failure: none runs here or it doesn't answer in time (temporary), or it refused.
    """
    address = await admin_here(config, port_offset)
    text = admin_authorization(config, address, Right.LISTEN)
    try:
        return address, parse_status(await ask_here(address, text, "/status"))
    except (BrokerError, MessageError, trio.TooSlowError) as error:
        refused = isinstance(error, BrokerError) and not error.counts_as_outage
        code = ExitCode.FAILED if refused or isinstance(error, MessageError) else ExitCode.TEMPORARY
        raise Failure(f"{address}: {reason_of(error)}", code) from error
