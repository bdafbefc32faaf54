"""A server of a few lines, and the tools to talk to it in raw bytes."""

from datetime import UTC, datetime
from functools import partial

import attrs
import pytest
import trio
from trio.testing import memory_stream_pair

from gateway.net.certs import write_certificates
from gateway.net.http.server import HttpServer
from gateway.wire.http.messages import Headers, Response

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def plain_error(status, text):
    return Response(status=status, body=text.encode())


@attrs.define(eq=False)
class Exchange:
    """A connection to `server`, over which raw bytes are sent and answered."""

    nursery: trio.Nursery
    requests: list = attrs.field(factory=list)
    plain: bool = True  # False: h11 reads every head

    async def echo(self, request):
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return Response(status=200, headers=Headers.of({"X-Path": request.path}), body=request.body)

    def server(self, handler=None, **fields):
        return HttpServer(
            handler=handler or self.echo,
            error_body=plain_error,
            wall_clock=lambda: NOW,
            plain=self.plain,
            **fields,
        )

    def connect(self, server=None, pair=memory_stream_pair):
        ours, theirs = pair()
        self.nursery.start_soon((server or self.server()).serve_connection, theirs)
        return ours


async def read_all(stream):
    """Everything until the connection ends, however it ends."""
    received = bytearray()
    with trio.fail_after(3600):
        while data := await stream.receive_some():
            received += data
    return bytes(received)


async def read_response(stream):
    """Read a response with a Content-Length, byte for byte."""
    received = bytearray()
    with trio.fail_after(3600):
        while b"\r\n\r\n" not in received:
            received += await some(stream)
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        while len(body) < length:
            body += await some(stream)
    return head, body


async def some(stream):
    data = await stream.receive_some()
    assert data, "the connection ended"
    return data


@pytest.fixture
def exchange(nursery):
    return Exchange(nursery)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder, now=datetime.now(UTC))
    return folder


@pytest.fixture
def tcp_server(nursery):
    """Start a bare TCP server; returns its port."""

    async def start(handler):
        serve = partial(trio.serve_tcp, host="127.0.0.1")
        listeners = await nursery.start(serve, handler, 0)
        return listeners[0].socket.getsockname()[1]

    return start
