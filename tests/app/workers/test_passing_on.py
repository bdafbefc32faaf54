"""Requests that a worker passes on to its parent."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from gateway.app.workers.passing_on import open_parent, path_of, serve_unix, without_hop
from gateway.domain.errors import Unreachable
from gateway.net.http.server import HttpServer
from gateway.wire.http.messages import Headers, Request, Response
from tests.harness.clocks import VirtualClock

REQUEST = Request(
    method="POST",
    target="/orders/messages/head?timeout=1",
    headers=Headers([("Host", "gateway:5300"), ("Connection", "close"), ("X-Own", "kept")]),
    body=b"body",
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

    def crash(peer: str, error: BaseException) -> None:
        raise error

    server = HttpServer(
        handler=handle,
        error_body=lambda status, text: Response(status=status),
        wall_clock=VirtualClock(),
    )
    with TemporaryDirectory() as folder:
        path = path_of(Path(folder), 0, secure=True)
        async with trio.open_nursery() as nursery, open_parent() as parent:
            await nursery.start(serve_unix, path, server.serve_connection, crash)
            answer = await parent.handler(Path(folder), 0, True)(REQUEST)
            nursery.cancel_scope.cancel()

    assert (seen[0].method, seen[0].target, seen[0].body) == ("POST", REQUEST.target, b"body")
    assert seen[0].headers.get("Host") == "gateway:5300"
    assert seen[0].headers.get("X-Own") == "kept"
    assert (answer.status, answer.body, answer.headers.get("X-Answer")) == (201, b"answer", "kept")


async def test_a_parent_that_has_ended_is_an_error_and_nothing_was_done() -> None:
    with TemporaryDirectory() as folder:
        async with open_parent() as parent:
            with pytest.raises(Unreachable):
                await parent.handler(Path(folder), 0, False)(REQUEST)
