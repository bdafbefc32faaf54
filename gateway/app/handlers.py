"""What `pairgate listen` runs for each message: an HTTP endpoint, a command, a Python function."""

import importlib
import os
import shlex
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from operator import attrgetter
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.domain.errors import BrokerError, GatewayError, InvalidRequest
from gateway.domain.message import DeadLetter, Message, Settlement
from gateway.listener.errors import EndpointDown
from gateway.listener.handlers import Blame, handler_of
from gateway.listener.items import Item
from gateway.listener.job import Handler
from gateway.net.http_client import HttpClient, HttpClientOptions
from gateway.net.tls import client_context
from gateway.ports import WallClock
from gateway.wire.cloud_events import Verdict, build_request, parse_answer
from gateway.wire.environment import build_environment
from gateway.wire.rest_message import body_bytes

REFUSED: Final = "HandlerRefused"  # the reason of a dead letter
_CONNECT_SECONDS: Final = 5.0
_PATIENCE: Final = 5.0  # seconds that a command has after SIGTERM
_PORTS: Final = {"http": 80, "https": 443}


class HandlerFailed(GatewayError):
    """A handler outside of this process didn't do its work. The text has nothing of a body."""


@attrs.define(eq=False, kw_only=True)
class HttpHandler:
    """
    Posts each message to an endpoint, as a CloudEvent in binary mode.

    2xx: done. 4xx: dead-lettered. 429, 503 and others that are about the endpoint, and an endpoint
    that can't be reached: the listener pauses. Any other, and no answer in time: given back, and
    if that goes on for message after message, the listener pauses too.
    """

    client: HttpClient
    target: str
    timeout: float  # seconds, for a whole answer
    clock: WallClock
    _blame: Blame = attrs.field(factory=Blame, init=False)

    async def __call__(self, item: Item[Message]) -> Settlement | None:
        """Return when the endpoint has answered. Cancelled, it may do the work nevertheless."""
        request = build_request(
            item.delivery,
            queue=item.queue.name,
            account=item.account,
            target=self.target,
        )
        with trio.move_on_after(self.timeout) as scope:
            try:
                response = await self.client.request(request)
            except InvalidRequest:
                raise  # the message has what HTTP can't carry
            except BrokerError as error:
                raise EndpointDown(str(error)) from error
        if scope.cancelled_caught:
            text = f"no answer within {self.timeout:g} s"
            raise self._blame.judge(item, HandlerFailed(text))
        answer = parse_answer(response, self.clock())
        status = f"status {response.status}"
        if answer.verdict is Verdict.DOWN:
            raise EndpointDown(status, retry_after=answer.retry_after)
        if answer.verdict is Verdict.FAILED:
            raise self._blame.judge(item, HandlerFailed(status))
        self._blame.succeeded()
        if answer.verdict is Verdict.POISON:
            return DeadLetter(reason=REFUSED, description=f"{status} from the handler")
        return None


@attrs.frozen(eq=False, kw_only=True)
class CommandHandler:
    """
    Runs a command for each message: the body is its standard input, the environment has the rest.

    Exit code 0: done. 75 (EX_TEMPFAIL), and a command that can't be started: the listener pauses.
    Any other, a signal, and no end in time: given back, as often as the listener tries.
    """

    command: Sequence[str]
    timeout: float  # seconds
    environment: Mapping[str, str]

    async def __call__(self, item: Item[Message]) -> Settlement | None:
        """Return when it has ended. Cancelled, it gets SIGTERM, and SIGKILL five seconds later;
        so does what it has started."""
        added = build_environment(item.delivery, queue=item.queue.name)
        with trio.move_on_after(self.timeout) as scope:
            try:
                ended = await trio.run_process(
                    self.command,
                    stdin=body_bytes(item.message, strict=False),
                    env={**self.environment, **added},
                    check=False,
                    # An interrupt from the keyboard is for us; what it started ends with it.
                    start_new_session=True,
                    deliver_cancel=_end_all,
                )
            except OSError as error:
                raise EndpointDown(f"{self.command[0]}: {error.strerror}") from error
        if scope.cancelled_caught:
            raise HandlerFailed(f"no end within {self.timeout:g} s")
        if ended.returncode == ExitCode.TEMPORARY:
            raise EndpointDown(f"exit code {ended.returncode}")
        if ended.returncode:
            raise HandlerFailed(f"exit code {ended.returncode}")
        return None


async def _end_all(process: trio.Process) -> None:
    """SIGTERM for a command and for what it has started, SIGKILL when that takes too long."""
    _signal_all(process, signal.SIGTERM)
    with trio.move_on_after(_PATIENCE):
        await process.wait()
    _signal_all(process, signal.SIGKILL)


def _signal_all(process: trio.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@attrs.frozen(kw_only=True)
class HandlerChoice:
    """One of the three, as the command line has it, and how long one call may take."""

    to: str | None = None
    command: str | None = None
    python: str | None = None
    timeout: float = 60.0  # seconds; a Python function has the time that its message is locked


async def open_handler(
    stack: AsyncExitStack, choice: HandlerChoice, *, parallel: int, clock: WallClock
) -> Handler[Message]:
    """
    The handler, with what it needs open until the stack is closed.

    Raises:
        Failure: it isn't one of the three, or there is no such function.
    """
    await trio.lowlevel.checkpoint()
    match (choice.to, choice.command, choice.python):
        case (str() as url, None, None):
            host, port, target, tls = _split(url)
            options = HttpClientOptions(max_connections=parallel, connect_timeout=_CONNECT_SECONDS)
            client = HttpClient(host, port, tls=tls, options=options)
            await stack.enter_async_context(client)
            return HttpHandler(client=client, target=target, timeout=choice.timeout, clock=clock)
        case (None, str() as text, None):
            return _command(text, choice.timeout)
        case (None, None, str() as text):
            return handler_of(function_named(text, "--python"), threads=parallel)
    raise Failure("one of --to, --exec and --python expected", ExitCode.WRONG)


def _split(url: str) -> tuple[str, int, str, ssl.SSLContext | None]:
    wrong = Failure("--to: http(s)://HOST[:PORT][/PATH] without a user expected", ExitCode.WRONG)
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise wrong from error
    if not parts.hostname or not port or "@" in parts.netloc or not url.isascii():
        raise wrong
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return parts.hostname, port, target, client_context() if parts.scheme == "https" else None


def _command(text: str, timeout: float) -> CommandHandler:
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise Failure(f"--exec: {error}", ExitCode.WRONG) from error
    if not command:
        raise Failure("--exec: a command expected", ExitCode.WRONG)
    return CommandHandler(command=command, timeout=timeout, environment=dict(os.environ))


def function_named(text: str, option: str) -> Any:
    """
    The function that `module:function` names; modules of this folder are found too.

    Raises:
        Failure: there is none; the text begins with the option that names it.
    """
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise Failure(f"{option}: MODULE:FUNCTION expected, got {text!r}", ExitCode.WRONG)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise Failure(f"{option} {text}: {error}", ExitCode.WRONG) from error
    if not callable(function):
        raise Failure(f"{option} {text}: that is no function", ExitCode.WRONG)
    return function
