"""The ports that clients connect to, each with the front end that speaks its protocol."""

import traceback
from contextlib import AsyncExitStack
from typing import Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.outside import Outside
from gateway.app.parts import Parts
from gateway.config.checks import host_of_bind, is_loopback
from gateway.config.options import Config, Endpoint
from gateway.domain.events import ConnectionCrashed, ConnectionLost
from gateway.frontends.auth import Authorizer
from gateway.frontends.servicebus_rest import ServiceBusRestFrontend, is_long_poll
from gateway.net.http_server import Handler, HttpServer
from gateway.net.listeners import CannotListen, Listener, open_listener
from gateway.net.tls import TlsFileError, server_context
from gateway.wire.http import Headers, Request, Response
from gateway.wire.servicebus_errors import PAIRGATE

# The pair's own verdict says more than a time-out of the front end, which therefore comes later.
PATIENCE: Final = 1.0  # seconds


@attrs.define(eq=False, kw_only=True)
class LongPolls:
    """Ends requests that wait for a message when the endpoint drains: there is none."""

    handler: Handler
    _waiting: set[trio.CancelScope] = attrs.field(factory=set, init=False)

    async def handle(self, request: Request) -> Response:
        if not is_long_poll(request):
            return await self.handler(request)
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                return await self.handler(request)
            finally:
                self._waiting.discard(scope)
        return Response(status=204, headers=Headers((PAIRGATE,)), close=True)

    def end(self) -> None:
        for scope in self._waiting:
            scope.cancel()


@attrs.frozen(kw_only=True)
class OpenEndpoint:
    """A bound port: the kernel queues clients, nobody serves them yet."""

    protocol: str
    listener: Listener
    server: HttpServer
    polls: LongPolls
    authorizer: Authorizer

    def drain(self) -> None:
        """Let every connection end after the answer that it is owed."""
        self.server.drain.set()
        self.polls.end()


async def open_endpoints(
    stack: AsyncExitStack, config: Config, parts: Parts, outside: Outside, *, port_offset: int = 0
) -> list[OpenEndpoint]:
    """
    Bind all ports, which the stack frees; each but 0 is moved by `port_offset`.

    Raises:
        Failure: a port is taken, or a certificate can't be used.
    """
    await trio.lowlevel.checkpoint()
    endpoints = []
    for endpoint in config.endpoints:
        listener = await _listen(config, endpoint, outside, port_offset)
        stack.push_async_callback(listener.aclose)
        endpoints.append(_opened(config, endpoint, listener, parts, outside))
    return endpoints


def moved(bind: str, port_offset: int) -> str:
    """The address with its port moved; port 0 is any free one and stays that."""
    host, colon, port = bind.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) == 0:
        return bind
    return f"{host}{colon}{int(port) + port_offset}"


async def _listen(
    config: Config, endpoint: Endpoint, outside: Outside, port_offset: int
) -> Listener:
    report = outside.observer.report
    try:
        return await open_listener(
            moved(endpoint.bind, port_offset),
            tls=server_context(endpoint.tls) if endpoint.tls else None,
            options=config.limits.listener,
            on_crash=lambda peer, error: report(_crashed(peer, error)),
            on_lost=lambda peer, error: report(_lost(peer, error)),
        )
    except TlsFileError as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    except CannotListen as error:
        raise Failure(str(error)) from error


def _opened(
    config: Config, endpoint: Endpoint, listener: Listener, parts: Parts, outside: Outside
) -> OpenEndpoint:
    rest = config.limits.rest
    pairing = config.pairing
    authorizer = Authorizer(
        config.access, wall_clock=outside.now, loopback=is_loopback(host_of_bind(endpoint.bind))
    )
    patience = pairing.options.send_timeout + PATIENCE if pairing else rest.send_timeout
    frontend = ServiceBusRestFrontend(
        broker=parts.broker,
        leases=parts.leases,
        authorizer=authorizer,
        wall_clock=outside.now,
        options=attrs.evolve(rest, secure=endpoint.tls is not None, send_timeout=patience),
    )
    polls = LongPolls(handler=frontend.handle)
    server = HttpServer(
        handler=polls.handle,
        error_body=frontend.refuse,
        wall_clock=outside.now,
        options=config.limits.http,
        cancels_when_gone=is_long_poll,
    )
    return OpenEndpoint(
        protocol=endpoint.protocol,
        listener=listener,
        server=server,
        polls=polls,
        authorizer=authorizer,
    )


def _crashed(peer: str, error: BaseException) -> ConnectionCrashed:
    return ConnectionCrashed(peer=peer, traceback="".join(traceback.format_exception(error)))


def _lost(peer: str, error: BaseException) -> ConnectionLost:
    leaves = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
    return ConnectionLost(peer=peer, reason="; ".join(f"{type(e).__name__}: {e}" for e in leaves))
