"""Requests to the admin endpoint of a local or remote gateway."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import trio

from gateway.app.failure import ExitCode, Failure, Unanswered
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.admin_endpoint import AdminEndpoint, admin_here
from gateway.app.status.sections import SECTIONS
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, MessageError, Outcome
from gateway.domain.status.process import Status
from gateway.net.http.client import HttpClient
from gateway.wire.http.messages import Headers, Request
from gateway.wire.pairgate.admin_json import parse_refusal
from gateway.wire.pairgate.control_call import ANSWER_SECONDS, ControlCall
from gateway.wire.pairgate.status import parse_status

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

_UNKNOWN: Final = "it isn't known whether the order is in effect: `pairgate status` tells"


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


async def fetch(
    config: Config, choice: AdminChoice, target: str, parse: Callable[[bytes], T]
) -> tuple[str, T]:
    """
    Read the target of the admin endpoint; return its address, and the answer that `parse` reads.

    Raises:
        Failure: no gateway runs or answers in time (temporary), it refused the request, or the
            configuration has no admin endpoint or no policy with the right.
    """

    async def read(endpoint: AdminEndpoint) -> T:
        return parse(await ask_once(endpoint, Right.LISTEN, target))

    return await _answered(config, choice, read, ANSWER_SECONDS)


async def give(
    config: Config,
    choice: AdminChoice,
    call: ControlCall[Q, A],
    request: Q,
    seconds: float | None = None,
) -> tuple[str, A]:
    """
    Make a control call; return the address of the admin endpoint, and its answer. `seconds` to wait
    for it; None: the call's own patience.

    Raises:
        Unanswered: no answer came to an order, which may be in effect, or in part.
        Failure: as `fetch`.
    """

    async def make(endpoint: AdminEndpoint) -> A:
        return await give_to(endpoint, call, request)

    patience = call.patience if seconds is None else seconds
    return await _answered(config, choice, make, patience, orders=not call.reads)


async def give_to(endpoint: AdminEndpoint, call: ControlCall[Q, A], request: Q) -> A:
    """
    As `give`, to this endpoint and without a limit of time.

    Raises:
        Failure: no policy of the configuration has the right.
        BrokerError: as `ask`.
        MessageError: the answer isn't one to this call.
    """
    right, target, body = call.right_of(request), call.target(request), call.build(request)
    answer = await ask_once(endpoint, right, target, method=call.method, body=body)
    return call.parse_answer(answer, request)


async def _answered(
    config: Config,
    choice: AdminChoice,
    make: Callable[[AdminEndpoint], Awaitable[T]],
    seconds: float,
    *,
    orders: bool = False,
) -> tuple[str, T]:
    endpoint = await admin_here(config, choice)
    try:
        with trio.fail_after(seconds):
            return str(endpoint), await make(endpoint)
    except (BrokerError, MessageError, trio.TooSlowError) as error:
        failure = failure_of(endpoint, error, seconds)
        if orders and not (isinstance(error, BrokerError) and error.outcome is Outcome.NOT_SENT):
            raise Unanswered(f"{failure}; {_UNKNOWN}", failure.code) from error
        raise failure from error


def failure_of(
    endpoint: AdminEndpoint, error: Exception, seconds: float = ANSWER_SECONDS
) -> Failure:
    """The failure of a request: final if the gateway refused it, else temporary."""
    refused = isinstance(error, BrokerError) and not error.counts_as_outage
    code = ExitCode.FAILED if refused or isinstance(error, MessageError) else ExitCode.TEMPORARY
    return Failure(named(endpoint, reason_of(error, seconds)), code)


def named(endpoint: AdminEndpoint, text: str) -> str:
    """The text with the endpoint's address, once."""
    return text if str(endpoint) in text else f"{endpoint}: {text}"


async def ask_status(config: Config, choice: AdminChoice) -> tuple[str, Status]:
    """
    Return the address of the gateway's admin endpoint, and its status.

    Raises:
        Failure: as `fetch`.
    """
    return await fetch(config, choice, "/status", partial(parse_status, sections=SECTIONS))
