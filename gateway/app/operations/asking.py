"""Requests to the admin endpoint of a local or remote gateway."""

import json
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_endpoint import AdminChoice, AdminEndpoint, admin_here
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, MessageError
from gateway.domain.operators.control import ControlAnswer, Order
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder
from gateway.domain.operators.process import ProcessAnswer, ProcessOrder
from gateway.domain.operators.purge import PurgeAnswer, PurgeOrder
from gateway.domain.status.process import Status
from gateway.frontends.admin.readiness import Readiness
from gateway.net.http.client import HttpClient
from gateway.wire.http.messages import Headers, Request
from gateway.wire.pairgate import probe as probing
from gateway.wire.pairgate import purge as purging
from gateway.wire.pairgate.admin_json import parse_refusal
from gateway.wire.pairgate.control import (
    build_order,
    build_process_order,
    parse_answer,
    parse_process_answer,
    path_of,
)
from gateway.wire.pairgate.status import parse_status

T = TypeVar("T")

ANSWER_SECONDS: Final = 10.0
PROBE_SECONDS: Final = 60.0  # more than an `attempt_timeout`
PURGE_SECONDS: Final = 600.0  # for all messages of a backlog queue


async def ask(
    client: HttpClient,
    authorization: str | None,
    target: str,
    *,
    method: str = "GET",
    success: int = 200,
    body: bytes = b"",
) -> bytes:
    """
    Return the body of the gateway's response, if its status is the only one that means success. A
    `body` of the request is JSON.

    Raises:
        BrokerError: the gateway refused, or can't be reached.
    """
    fields = {} if authorization is None else {"Authorization": authorization}
    if body:
        fields["Content-Type"] = "application/json"
    request = Request(method=method, target=target, headers=Headers.of(fields), body=body)
    response = await client.request(request)
    if response.status != success:
        raise parse_refusal(response)
    return response.body


async def ask_once(
    endpoint: AdminEndpoint,
    right: Right,
    target: str,
    *,
    method: str = "GET",
    success: int = 200,
    body: bytes = b"",
) -> bytes:
    """
    As `ask`, over a connection of its own, with a key that has the right.

    Raises:
        Failure: no policy of the configuration has the right.
        BrokerError: as `ask`.
    """
    async with endpoint.client() as client:
        text = endpoint.authorization(right)
        return await ask(client, text, target, method=method, success=success, body=body)


def reason_of(error: Exception, seconds: float = ANSWER_SECONDS) -> str:
    return str(error) or f"no answer within {seconds:g} s"


async def call(
    config: Config,
    choice: AdminChoice,
    path: str,
    read: Callable[[bytes], T],
    *,
    body: bytes = b"",
    seconds: float = ANSWER_SECONDS,
) -> tuple[str, T]:
    """
    Ask the admin endpoint once; return its address, and the answer that `read` parses. With a body
    it is an order, and needs the right Manage instead of Listen.

    Raises:
        Failure: no gateway runs or answers within `seconds` (temporary), it refused the request, or
            the configuration has no admin endpoint or no policy with the right.
    """
    endpoint = await admin_here(config, choice)
    right, method = (Right.MANAGE, "POST") if body else (Right.LISTEN, "GET")
    try:
        with trio.fail_after(seconds):
            told = await ask_once(endpoint, right, path, method=method, body=body)
        return str(endpoint), read(told)
    except (BrokerError, MessageError, trio.TooSlowError) as error:
        raise failure_of(endpoint, error, seconds) from error


def failure_of(
    endpoint: AdminEndpoint, error: Exception, seconds: float = ANSWER_SECONDS
) -> Failure:
    """The failure of a request: final if the gateway refused it, else temporary."""
    refused = isinstance(error, BrokerError) and not error.counts_as_outage
    code = ExitCode.FAILED if refused or isinstance(error, MessageError) else ExitCode.TEMPORARY
    return Failure(f"{endpoint}: {reason_of(error, seconds)}", code)


async def ask_status(config: Config, choice: AdminChoice) -> tuple[str, Status]:
    """
    Return the address of the gateway's admin endpoint, and its status.

    Raises:
        Failure: as `call`.
    """
    return await call(config, choice, "/status", parse_status)


async def ask_readiness(config: Config, choice: AdminChoice) -> tuple[str, Readiness]:
    """
    Return the address of the process's admin endpoint, and whether the process takes work. No key
    is needed.

    Raises:
        Failure: no process answers (temporary), or the configuration has no admin endpoint.
    """
    endpoint = await admin_here(config, choice)
    request = Request(method="GET", target="/readyz", headers=Headers.of({}))
    try:
        with trio.fail_after(ANSWER_SECONDS):
            async with endpoint.client() as client:
                response = await client.request(request)
    except (BrokerError, MessageError, trio.TooSlowError) as error:
        raise failure_of(endpoint, error) from error
    try:
        return str(endpoint), Readiness(str(json.loads(response.body)["reason"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        text = f"{endpoint}: no valid answer to /readyz: this isn't an endpoint `admin`"
        raise Failure(text) from error


async def give_order(
    config: Config, choice: AdminChoice, order: Order
) -> tuple[str, ControlAnswer]:
    """
    Give an order to the gateway; return the address of its admin endpoint, and its answer.

    Raises:
        Failure: as `call`. Without an answer the order may be in effect; as orders are idempotent,
            it can be given again.
    """
    path, body = path_of(order.action), build_order(order)
    return await call(config, choice, path, parse_answer, body=body)


async def probe(config: Config, choice: AdminChoice, order: ProbeOrder) -> tuple[str, ProbeAnswer]:
    """
    Let the gateway probe troubled entities; return the address of its admin endpoint, and its
    answer.

    Raises:
        Failure: as `call`; nothing is to be probed.
    """
    body = probing.build_order(order)
    return await call(
        config, choice, probing.PATH, probing.parse_answer, body=body, seconds=PROBE_SECONDS
    )


async def steer_process(
    config: Config, choice: AdminChoice, order: ProcessOrder, seconds: float = ANSWER_SECONDS
) -> tuple[str, ProcessAnswer]:
    """
    Give an order to the process as a whole; return the address of its admin endpoint, and its
    answer.

    Raises:
        Failure: as `give_order`.
    """
    path, body = path_of(order.action), build_process_order(order)
    return await call(config, choice, path, parse_process_answer, body=body, seconds=seconds)


async def purge(config: Config, choice: AdminChoice, order: PurgeOrder) -> tuple[str, PurgeAnswer]:
    """
    Count or delete messages of a backlog queue; return the address of the gateway's admin endpoint,
    and its answer.

    Raises:
        Failure: as `call`. Without an answer some messages may be deleted.
    """
    return await call(
        config,
        choice,
        purging.PATH,
        purging.parse_answer,
        body=purging.build_order(order),
        seconds=PURGE_SECONDS,
    )
