"""The handlers that `pairgate listen` can be given, and the exit codes of commands."""

import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

import attrs
import pytest
import trio
import trio.testing

from gateway.app.failure import ExitCode, Failure
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, OutcomeUnknown, Unreachable
from gateway.domain.message import Delivery, Message
from gateway.listening import EndpointDown, Item
from gateway.listening.process.handlers import (
    CommandHandler,
    HandlerChoice,
    HandlerFailed,
    HttpHandler,
    open_handler,
)
from gateway.net.http.client import HttpClient
from gateway.wire.http.messages import Request, Response
from tests.harness.patience import PATIENCE

MESSAGE = Message(message_id="m1", body=b"body")
ITEM = Item(
    value=MESSAGE,
    delivery=Delivery(message=MESSAGE, sequence_number=1),
    queue=EntityPath("orders"),
)


async def opened(choice: HandlerChoice) -> object:
    async with AsyncExitStack() as stack:
        return await open_handler(stack, choice, parallel=2, clock=lambda: datetime.now(UTC))


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (HandlerChoice(), "one of --to, --exec and --python"),
        (HandlerChoice(to="http://host/", command="true"), "one of --to, --exec and --python"),
        (HandlerChoice(to="ftp://host/"), "--to: http"),
        (HandlerChoice(to="host:80"), "--to: http"),
        (HandlerChoice(to="http://user:secret@host/"), "without a user"),
        (HandlerChoice(to="http://host:99999/"), "--to: http"),
        (HandlerChoice(command=""), "--exec: a command"),
        (HandlerChoice(command="a 'b"), "--exec: No closing quotation"),
        (HandlerChoice(python="json"), "MODULE:FUNCTION"),
        (HandlerChoice(python="no_such_module:handle"), "no_such_module"),
        (HandlerChoice(python="json:no_such_function"), "no_such_function"),
        (HandlerChoice(python="json:__name__"), "isn't a function"),
    ],
)
async def test_a_wrong_handler_is_wrong_usage(choice: HandlerChoice, text: str) -> None:
    with pytest.raises(Failure, match=text) as caught:
        await opened(choice)

    assert caught.value.code is ExitCode.WRONG


@pytest.mark.parametrize("url", ["http://host", "https://[::1]:8443/a?b=c", "http://host:80/"])
async def test_these_are_urls_of_an_endpoint(url: str) -> None:
    assert callable(await opened(HandlerChoice(to=url)))


async def test_an_endpoint_isnt_asked_before_there_is_a_message() -> None:
    """Nor connected to."""
    connections: list[trio.SocketStream] = []

    async def answer(stream: trio.SocketStream) -> None:
        connections.append(stream)
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        [listener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        choice = HandlerChoice(to=f"http://127.0.0.1:{port}/")
        handle = await open_handler(stack, choice, parallel=2, clock=lambda: datetime.now(UTC))
        await trio.testing.wait_all_tasks_blocked(0.05)
        before = len(connections)
        await handle(ITEM)
        nursery.cancel_scope.cancel()

    assert (before, len(connections)) == (0, 1)


@attrs.frozen
class Failing:
    """A client of an endpoint whose requests fail."""

    error: BrokerError

    async def request(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        raise self.error


def http_handler(error: BrokerError) -> HttpHandler:
    client = cast(HttpClient, Failing(error))
    return HttpHandler(client=client, target="/", timeout=60.0, clock=lambda: datetime.now(UTC))


async def test_an_endpoint_that_cant_be_reached_is_at_fault_each_time() -> None:
    handler = http_handler(Unreachable("refused"))
    for _ in range(3):
        with pytest.raises(EndpointDown, match="refused"):
            await handler(ITEM)


async def test_a_message_that_ends_its_endpoint_twice_is_at_fault() -> None:
    handler = http_handler(OutcomeUnknown("no whole answer"))
    other = attrs.evolve(ITEM, delivery=attrs.evolve(ITEM.delivery, sequence_number=2))
    for item, kind in (
        (ITEM, EndpointDown),
        (other, EndpointDown),
        (ITEM, HandlerFailed),
        (ITEM, HandlerFailed),
    ):
        with pytest.raises(kind, match="no whole answer"):
            await handler(item)


async def run_script(script: str, *, timeout: float = 60.0) -> None:  # noqa: ASYNC109 it's an option
    handler = CommandHandler(
        command=[sys.executable, "-c", script], timeout=timeout, environment={}
    )
    assert await handler(ITEM) is None


async def test_exit_code_0_is_done() -> None:
    await run_script("import sys; sys.exit(sys.stdin.read() != 'body')")


async def test_a_command_that_doesnt_read_its_input_is_done_too() -> None:
    await run_script("")


@pytest.mark.parametrize("script", ["raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)"])
async def test_other_exit_codes_and_signals_are_failures_of_the_message(script: str) -> None:
    with pytest.raises(HandlerFailed, match="exit code"):
        await run_script(script)


async def test_exit_code_75_pauses_the_listener() -> None:
    with pytest.raises(EndpointDown):
        await run_script("raise SystemExit(75)")


async def test_a_command_that_isnt_there_pauses_the_listener() -> None:
    handler = CommandHandler(command=["/no/such/command"], timeout=60.0, environment={})

    with pytest.raises(EndpointDown, match="No such file"):
        await handler(ITEM)


async def test_properties_that_no_environment_holds_are_a_failure_of_the_message() -> None:
    handler = CommandHandler(command=["/bin/true"], timeout=60.0, environment={})
    message = attrs.evolve(ITEM.message, properties={"large": "x" * 300_000})
    item = attrs.evolve(ITEM, delivery=attrs.evolve(ITEM.delivery, message=message))

    with pytest.raises(HandlerFailed, match="too large for the environment"):
        await handler(item)


async def test_processes_that_a_command_has_started_end_with_it(tmp_path: Path) -> None:
    noted = tmp_path / "child"
    script = f"sleep 1000 & echo $! > {noted}; wait"
    handler = CommandHandler(command=["/bin/sh", "-c", script], timeout=60.0, environment={})

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handler, ITEM)
            while True:  # polled: another process decides
                if noted.exists() and noted.read_text().endswith("\n"):
                    break
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    await until_ended(int(noted.read_text()))


async def until_ended(pid: int) -> None:
    """Return when there is no such process, or it only waits for its parent to ask for it."""
    with trio.fail_after(PATIENCE):
        while True:  # polled: the process isn't our child
            try:
                text = await trio.Path(f"/proc/{pid}/stat").read_text()
            except FileNotFoundError:
                return
            if text.rpartition(")")[2].split()[0] == "Z":
                return
            await trio.sleep(0.05)


async def test_a_command_that_hangs_is_ended_and_has_failed() -> None:
    with trio.fail_after(PATIENCE), pytest.raises(HandlerFailed, match="didn't end within"):
        await run_script("import time; time.sleep(1000)", timeout=0.2)
