"""Requests that a worker passes on to its parent."""

import errno
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest
import trio
import trio.testing

from gateway.domain.errors import Unreachable
from gateway.extensions.workers.passing_on import (
    PassedOn,
    open_parent,
    path_of,
    serve_unix,
    without_hop,
)
from gateway.net.http.server import HttpServer
from gateway.net.visits import Visits, current_visit, record_certificate
from gateway.wire.http.messages import Headers, Request, Response
from tests.harness.clocks import VirtualClock
from tests.harness.open_files import room_for_files
from tests.harness.patience import PATIENCE

REQUEST = Request(
    method="POST",
    target="/orders/messages/head?timeout=1",
    headers=Headers([("Host", "gateway:5300"), ("Connection", "close"), ("X-Own", "kept")]),
    body=b"body",
)


def crash(peer: str, error: BaseException) -> None:
    raise error


def serving(requests: PassedOn, max_head: int) -> HttpServer:
    return HttpServer(
        handler=requests.handle,
        check_head=requests.check_head,
        error_body=lambda status, text: Response(status=status),
        wall_clock=VirtualClock(),
        max_head=max_head,
    )


def test_headers_of_one_connection_stay_on_it() -> None:
    headers = Headers([("Content-Length", "3"), ("TE", "trailers"), ("Accept", "*/*")])

    assert without_hop(headers).items == (("Accept", "*/*"),)


async def test_a_request_arrives_as_the_client_wrote_it_and_so_does_the_answer() -> None:
    seen: list[Request] = []

    async def handle(request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        seen.append(request)
        return Response(status=201, headers=Headers([("X-Answer", "kept")]), body=b"answer")

    server = HttpServer(
        handler=handle,
        error_body=lambda status, text: Response(status=status),
        wall_clock=VirtualClock(),
    )
    with TemporaryDirectory() as folder:
        path = path_of(Path(folder), 0, secure=True)
        async with trio.open_nursery() as nursery, open_parent() as parent:
            await nursery.start(serve_unix, path, server.serve_connection, crash, crash)
            answer = await parent.handler(Path(folder), 0, True)(REQUEST)
            nursery.cancel_scope.cancel()

    assert (seen[0].method, seen[0].target, seen[0].body) == ("POST", REQUEST.target, b"body")
    assert seen[0].headers.get("Host") == "gateway:5300"
    assert seen[0].headers.get("X-Own") == "kept"
    assert (answer.status, answer.body, answer.headers.get("X-Answer")) == (201, b"answer", "kept")


async def echo(stream: trio.abc.Stream) -> None:
    async for data in stream:
        await stream.send_all(data)


async def test_a_process_without_room_for_another_file_lets_a_worker_wait_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports, lacks = trio.open_memory_channel[int | None](10)

    def report(peer: str, error: BaseException) -> None:
        reports.send_nowait(error.errno if isinstance(error, OSError) else None)

    with TemporaryDirectory() as folder:
        path = path_of(Path(folder), 0, secure=False)
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_unix, path, echo, crash, report)
            with room_for_files(3):
                first = await trio.open_unix_socket(path)
                await first.send_all(b"first")
                answers = [await first.receive_some()]
                second = await trio.open_unix_socket(path)
                await second.send_all(b"second")
                with trio.fail_after(PATIENCE):
                    told = await lacks.receive()
            with trio.fail_after(PATIENCE):
                answers.append(await second.receive_some())
            await first.aclose()
            await second.aclose()
            nursery.cancel_scope.cancel()

    assert answers == [b"first", b"second"]
    assert told == errno.EMFILE
    assert caplog.records == []  # Trio's own, with tracebacks


async def test_the_last_file_of_a_process_goes_to_a_worker_without_a_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports: list[BaseException] = []

    def report(peer: str, error: BaseException) -> None:
        reports.append(error)

    with TemporaryDirectory() as folder:
        path = path_of(Path(folder), 0, secure=False)
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_unix, path, echo, crash, report)
            with room_for_files(2):
                async with await trio.open_unix_socket(path) as worker:
                    await trio.testing.wait_all_tasks_blocked()
                    await worker.send_all(b"hello")
                    with trio.fail_after(PATIENCE):
                        answer = await worker.receive_some()
            nursery.cancel_scope.cancel()

    assert answer == b"hello"
    assert reports == []
    assert caplog.records == []


@pytest.mark.parametrize("size", [0, 1200, 100 * 1024], ids=lambda size: f"{size} bytes")
@pytest.mark.parametrize("has_body", [True, False])
async def test_the_certificate_of_a_client_arrives_and_no_forged_one(
    size: int, has_body: bool
) -> None:
    """The certificate arrives, too, at the check of a head whose body is still to come."""
    der, seen = bytes(size), list[bytes]()

    class Inner:
        async def handle(self, request: Request) -> Response:
            await trio.lowlevel.checkpoint()
            seen.append(current_visit().certificate)
            return Response(status=201)

        async def check_head(self, request: Request) -> Response | None:
            await self.handle(request)
            return None

    server = serving(PassedOn(Inner()), max_head=200 * 1024)
    with TemporaryDirectory() as folder:
        path = path_of(Path(folder), 0, secure=True)
        forged = [*REQUEST.headers.items, ("x-pairgate-client-certificate", "AAAA")]
        request = attrs.evolve(
            REQUEST, headers=Headers(forged), body=bytes(1024 * 1024) if has_body else b""
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_unix, path, server.serve_connection, crash, crash)
            async with open_parent() as parent:
                handle = parent.handler(Path(folder), 0, True)
                with Visits(math.inf).begin("127.0.0.1"):
                    record_certificate(der)
                    answer = await handle(request)
                without = await handle(request)
            nursery.cancel_scope.cancel()

    assert (answer.status, without.status) == (201, 201)
    assert set(seen[: len(seen) // 2]) == {der}
    assert set(seen[len(seen) // 2 :]) == {b""}


async def test_a_parent_that_has_ended_is_an_error_and_nothing_was_done() -> None:
    with TemporaryDirectory() as folder:
        async with open_parent() as parent:
            with pytest.raises(Unreachable):
                await parent.handler(Path(folder), 0, False)(REQUEST)
