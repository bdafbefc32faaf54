"""Parts of the tests of traces that other tests need, too."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from gateway.net.http.server import HttpServer, HttpServerOptions
from gateway.net.listeners import open_listener
from gateway.wire.http.messages import Headers, Request, Response
from tests.brokers.kinds import real_date


@attrs.define(eq=False)
class Collector:
    """Keeps the exported spans; once `hangs`, it answers nothing any more."""

    port: int = 0
    hangs: bool = False
    received: list[ResourceSpans] = attrs.field(factory=list)
    asked: trio.Event = attrs.field(factory=trio.Event)
    _grown: trio.Condition = attrs.field(factory=trio.Condition)

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for resource in self.received
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    async def has(self, number: int) -> None:
        """Return when `count` spans have arrived."""
        async with self._grown:
            while len(self.spans) < number:
                await self._grown.wait()

    async def handle(self, request: Request) -> Response:
        assert request.target == "/v1/traces"
        self.asked.set()
        if self.hangs:
            await trio.sleep_forever()
        body = request.body
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.received += ExportTraceServiceRequest.FromString(body).resource_spans
        async with self._grown:
            self._grown.notify_all()
        return Response(
            status=200, headers=Headers.of({"Content-Type": "application/x-protobuf"}), body=b""
        )


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    server = HttpServer(
        handler=collector.handle,
        error_body=lambda status, _text: Response(status=status),
        wall_clock=real_date,
        options=HttpServerOptions(),
    )
    listener = await open_listener("127.0.0.1:0", on_crash=lambda _peer, _error: None)
    collector.port = listener.port
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(listener.serve, server.serve_connection, connections=nursery))
        yield collector
        nursery.cancel_scope.cancel()
