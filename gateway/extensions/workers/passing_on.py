"""
Requests that a worker passes on to its parent, over a Unix socket: HTTP requests other than sends.

A client may receive a message over one connection and settle it over another, which may be another
worker's. So locks that HTTP clients hold are in one process, the parent.

The certificate of a client goes with each of its requests, in a header that no client can write:
the worker removes the clients' own.
"""

import binascii
import socket
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.app.servers import GuardedRequests, Makings, Server, make_rest
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.http.guard import MAX_HEAD
from gateway.net.http.server import Handler
from gateway.net.listeners import ConnectionHandler, OnEnd, PausingListener
from gateway.net.visits import current_visit, on_behalf_of
from gateway.wire.http.messages import Headers, Request, Response

CERTIFICATE: Final = "X-Pairgate-Client-Certificate"
_BACKLOG: Final = 1024  # connections that wait: a worker's clients may all ask at once
# Bytes of a head: the client's own head, and its certificate in Base64. OpenSSL reads chains of up
# to 100 KiB.
_LARGEST_HEAD: Final = MAX_HEAD + 140 * 1024
_LARGEST: Final = 1024 * 1024 * 1024  # bytes of an answer, which the parent has limited already
# Headers of one connection (RFC 9110, 7.6.1), those that each hop writes itself, and ours.
_OF_HOP: Final = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "expect",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        CERTIFICATE.lower(),
    }
)


def path_of(folder: Path, index: int, *, secure: bool) -> Path:
    """The parent's socket for requests to that endpoint."""
    return folder / f"{index}{'s' if secure else ''}"


def without_hop(headers: Headers) -> Headers:
    """The headers for the next connection."""
    return Headers([(name, value) for name, value in headers.items if name.lower() not in _OF_HOP])


@attrs.frozen(eq=False)
class Parent:
    """
    The way on which a worker passes requests on. Leave the context of `open_parent` to close it.
    """

    clients: dict[Path, HttpClient]

    def handler(self, folder: Path, index: int, secure: bool) -> Handler:
        """Answers the requests to an endpoint as the parent does; raises `BrokerError`."""
        path = path_of(folder, index, secure=secure)
        client = self.clients[path] = HttpClient(
            "parent",
            1,
            options=HttpClientOptions(max_connections=10_000, max_body=_LARGEST),
            connect=partial(trio.open_unix_socket, str(path)),
        )

        async def handle(request: Request) -> Response:
            headers = without_hop(request.headers)
            if der := current_visit().certificate:
                encoded = b64encode(der).decode()
                headers = Headers([*headers.items, (CERTIFICATE, encoded)])
            onward = attrs.evolve(request, headers=headers)
            answer = await client.request(onward)
            return attrs.evolve(answer, headers=without_hop(answer.headers))

        return handle


@attrs.frozen
class PassedOn:
    """Requests that workers pass on, each of a client that its worker has authenticated by TLS."""

    inner: GuardedRequests

    async def handle(self, request: Request) -> Response:
        with on_behalf_of(_certificate_of(request)):
            return await self.inner.handle(request)

    async def check_head(self, request: Request) -> Response | None:
        """As `HttpServer.check_head`."""
        with on_behalf_of(_certificate_of(request)):
            return await self.inner.check_head(request)


def _certificate_of(request: Request) -> bytes:
    try:
        return b64decode(request.headers.get(CERTIFICATE) or "", validate=True)
    except binascii.Error:
        return b""


@asynccontextmanager
async def open_parent() -> AsyncIterator[Parent]:
    """The parent, with connections that are opened on demand and closed at the end."""
    parent = Parent({})
    try:
        yield parent
    finally:
        for client in parent.clients.values():
            await client.aclose()


def doors(folder: Path, index: int, makings: Makings) -> list[tuple[Path, Server]]:
    """The parent's servers for the requests to that endpoint, each with the path of its socket."""
    return [
        (
            path_of(folder, index, secure=secure),
            make_rest(makings, secure=secure, enter=PassedOn, max_head=_LARGEST_HEAD),
        )
        for secure in (False, True)
    ]


async def serve_unix(
    path: Path,
    handler: ConnectionHandler,
    on_crash: OnEnd,
    on_lost: OnEnd,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """
    Serve connections to a Unix socket until cancelled; this ends them, too. `on_lost` is called
    each second while there is no descriptor for a process that connects.
    """
    bound = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await bound.bind(str(path))
    bound.listen(_BACKLOG)
    async with trio.open_nursery() as nursery:
        serve = partial(_contained, handler, on_crash)
        listeners = [PausingListener(trio.SocketListener(bound), on_lost)]
        await nursery.start(
            partial(trio.serve_listeners, serve, listeners, handler_nursery=nursery)
        )
        task_status.started()


async def _contained(
    handler: ConnectionHandler, on_crash: OnEnd, stream: trio.SocketStream
) -> None:
    try:
        async with stream:
            await handler(stream)
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the worker has ended
    except* Exception as group:
        on_crash("worker", group)
