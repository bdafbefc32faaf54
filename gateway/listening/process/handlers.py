"""Handlers of `pairgate listen`: an HTTP endpoint, a command or a Python function."""

import errno
import importlib
import os
import shlex
import shutil
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.json_schema import Schema, read_schema
from gateway.app.operations.typed_message import BodyType, typed_body
from gateway.domain.bounded import Bounded
from gateway.domain.errors import BrokerError, GatewayError, InvalidRequest, OutcomeUnknown
from gateway.domain.message import DeadLetter, Message, Settlement
from gateway.listening.errors import EndpointDown
from gateway.listening.handlers import Blame, handler_of, key_of
from gateway.listening.items import Item
from gateway.listening.job import Handler
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.tls import client_context
from gateway.ports import WallClock
from gateway.wire.http.cloud_events import HandlerVerdict, build_request, parse_answer
from gateway.wire.pairgate.environment import build_environment
from gateway.wire.servicebus.rest_message import body_bytes

# Dead-letter reasons.
REFUSED: Final = "HandlerRefused"
WRONG_TYPE: Final = "WrongBodyType"
_CONNECT_SECONDS: Final = 5.0
_MOST_BROKEN: Final = 1000
_PATIENCE: Final = 5.0  # seconds between SIGTERM and SIGKILL
_PORTS: Final = {"http": 80, "https": 443}


class HandlerFailed(GatewayError):
    """A handler outside of this process failed. The text contains nothing of a body."""


@attrs.define(eq=False, kw_only=True)
class HttpHandler:
    """
    Posts each message to an endpoint, as a CloudEvent in binary mode.

    2xx completes the message; 4xx dead-letters it. After 429, 503 and other statuses about the
    endpoint itself, or if the endpoint can't be reached, the listener pauses. Any other status, and
    a timeout, abandon the message; if that happens for message after message, the listener pauses
    too. A connection that breaks before the answer pauses the listener, and the second time that
    this happens for a message it is abandoned: it may be what ended the endpoint.
    """

    client: HttpClient
    target: str
    timeout: float  # seconds, for a whole response
    clock: WallClock
    _blame: Blame = attrs.field(factory=Blame, init=False)
    # Messages with a broken connection, and no success since.
    _broken: Bounded[tuple[str, int], None] = attrs.field(
        factory=lambda: Bounded(_MOST_BROKEN), init=False
    )

    async def __call__(self, item: Item[Message]) -> Settlement | None:
        """
        Return when the endpoint has answered. If cancelled, the endpoint may still do the work.
        """
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
                raise  # the message has a property that HTTP can't carry
            except OutcomeUnknown as error:
                raise self._judge_break(item, error) from error
            except BrokerError as error:
                raise EndpointDown(str(error)) from error
        if scope.cancelled_caught:
            text = f"no answer within {self.timeout:g} s"
            raise self._blame.judge(item, HandlerFailed(text))
        answer = parse_answer(response, self.clock())
        status = f"status {response.status}"
        if answer.verdict is HandlerVerdict.DOWN:
            raise EndpointDown(status, retry_after=answer.retry_after)
        if answer.verdict is HandlerVerdict.FAILED:
            raise self._blame.judge(item, HandlerFailed(status))
        self._blame.succeeded()
        self._broken.pop(key_of(item), None)
        if answer.verdict is HandlerVerdict.POISON:
            return DeadLetter(reason=REFUSED, description=f"{status} from the handler")
        return None

    def _judge_break(self, item: Item[Message], error: BrokerError) -> Exception:
        key = key_of(item)
        if key in self._broken:
            return self._blame.judge(item, HandlerFailed(str(error)))
        self._broken[key] = None
        return EndpointDown(str(error))


@attrs.frozen(eq=False, kw_only=True)
class CommandHandler:
    """
    Runs a command for each message: its standard input is the body, its environment has the rest.

    Exit code 0 completes the message. After 75 (EX_TEMPFAIL), or if the command can't be started,
    the listener pauses. Any other exit code, a signal, a timeout, and properties that are too large
    for an environment abandon the message, which the listener tries again as often as configured.
    """

    command: Sequence[str]
    timeout: float  # seconds
    environment: Mapping[str, str]

    async def __call__(self, item: Item[Message]) -> Settlement | None:
        """
        Return when the command has ended. If cancelled, the command and the processes that it
        started get SIGTERM, and SIGKILL five seconds later.
        """
        added = build_environment(item.delivery, queue=item.queue.name)
        with trio.move_on_after(self.timeout) as scope:
            try:
                ended = await trio.run_process(
                    self.command,
                    stdin=body_bytes(item.message, strict=False),
                    env={**self.environment, **added},
                    check=False,
                    # An interrupt from the keyboard is for this process; the command ends with it.
                    start_new_session=True,
                    deliver_cancel=_stop_all,
                )
            except OSError as error:
                if error.errno == errno.E2BIG:
                    text = "its properties are too large for the environment of a command"
                    raise HandlerFailed(text) from error
                raise EndpointDown(f"{self.command[0]}: {error.strerror}") from error
        if scope.cancelled_caught:
            raise HandlerFailed(f"the command didn't end within {self.timeout:g} s")
        if ended.returncode == ExitCode.TEMPORARY:
            raise EndpointDown(f"exit code {ended.returncode}")
        if ended.returncode:
            raise HandlerFailed(f"exit code {ended.returncode}")
        return None


@attrs.frozen(eq=False)
class TypedHandler:
    """Dead-letters each message whose body isn't of the type; the inner handler gets the others."""

    inner: Handler[Message]
    kind: BodyType
    schema: Schema | None = None

    async def __call__(self, item: Item[Message]) -> Settlement | None:
        try:
            typed_body(body_bytes(item.message, strict=False), self.kind, self.schema)
        except Failure as error:
            return DeadLetter(reason=WRONG_TYPE, description=str(error))
        return await self.inner(item)


async def _stop_all(process: trio.Process) -> None:
    """
    Send SIGTERM to a command and the processes that it started, and SIGKILL if they don't end soon.
    """
    _signal_all(process, signal.SIGTERM)
    with trio.move_on_after(_PATIENCE):
        await process.wait()
    _signal_all(process, signal.SIGKILL)


def _signal_all(process: trio.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@attrs.frozen(kw_only=True)
class HandlerChoice:
    """The handler that the command line selects, and the timeout of a call."""

    to: str | None = None
    command: str | None = None
    python: str | None = None
    timeout: float = 60.0  # seconds; a Python function's timeout is the message's lock
    kind: BodyType = BodyType.BYTES  # of the bodies that the handler gets
    schema: Path | None = None  # the file of the JSON schema that the bodies must fit


async def open_handler(
    stack: AsyncExitStack, choice: HandlerChoice, *, parallel: int, clock: WallClock
) -> Handler[Message]:
    """
    Open the handler; the stack closes it.

    Raises:
        Failure: not exactly one handler is given, or there is no such command or function.
    """
    handler = await _open(stack, choice, parallel=parallel, clock=clock)
    if choice.kind is BodyType.BYTES:
        return handler
    schema = None if choice.schema is None else read_schema(choice.schema)
    return TypedHandler(handler, choice.kind, schema)


async def _open(
    stack: AsyncExitStack, choice: HandlerChoice, *, parallel: int, clock: WallClock
) -> Handler[Message]:
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
    if shutil.which(command[0]) is None:
        text = f"--exec: command {command[0]!r} not found, or not executable"
        raise Failure(text, ExitCode.WRONG)
    return CommandHandler(command=command, timeout=timeout, environment=dict(os.environ))


def function_named(text: str, option: str) -> Any:
    """
    The function that `module:function` names; modules in the current folder are found too.

    Raises:
        Failure: there is no such function; the text begins with the option that names it.
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
        raise Failure(f"{option} {text}: it isn't a function", ExitCode.WRONG)
    return function
