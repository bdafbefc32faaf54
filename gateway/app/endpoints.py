"""The ports that clients connect to, each with the front end that speaks its protocol."""

import ssl
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.outside import Outside
from gateway.app.parts import Parts
from gateway.app.servers import Makings, Server, make_server
from gateway.config.checks import host_of_bind, is_loopback
from gateway.config.options import ONE_PORT, Config, Endpoint
from gateway.domain.events import ConnectionCrashed, ConnectionLost
from gateway.frontends.auth import Authorizer
from gateway.frontends.storage_auth import Accounts
from gateway.net.listeners import CannotListen, Listener, open_listener
from gateway.net.tls import TlsFileError, server_context


@attrs.frozen(kw_only=True)
class OpenEndpoint:
    """A bound port: the kernel queues clients, nobody serves them yet."""

    protocol: str
    listener: Listener
    server: Server
    take_over: Callable[[Config], None]  # who may do what, from now on


async def open_endpoints(
    stack: AsyncExitStack, config: Config, parts: Parts, outside: Outside, *, port_offset: int = 0
) -> list[OpenEndpoint]:
    """
    Bind all ports, which the stack frees; each but 0 is moved by `port_offset`.

    Raises:
        Failure: a port is taken, a certificate can't be used, or AMQP's engine isn't installed.
    """
    await trio.lowlevel.checkpoint()
    endpoints = []
    for endpoint in config.endpoints:
        endpoints.append(await _opened(config, endpoint, parts, outside, port_offset))
        stack.push_async_callback(endpoints[-1].listener.aclose)
    return endpoints


def moved(bind: str, port_offset: int) -> str:
    """The address with its port moved; port 0 is any free one and stays that."""
    host, colon, port = bind.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) == 0:
        return bind
    return f"{host}{colon}{int(port) + port_offset}"


async def _opened(
    config: Config, endpoint: Endpoint, parts: Parts, outside: Outside, port_offset: int
) -> OpenEndpoint:
    tls = _context(endpoint)
    loopback = is_loopback(host_of_bind(endpoint.bind))
    makings = Makings(
        config=config,
        parts=parts,
        outside=outside,
        authorizer=Authorizer(config.access, wall_clock=outside.now, loopback=loopback),
        accounts=Accounts(config.accounts, wall_clock=outside.now, loopback=loopback),
    )
    server = make_server(endpoint.protocol, makings, tls)
    report = outside.observer.report
    try:
        listener = await open_listener(
            moved(endpoint.bind, port_offset),
            tls=None if endpoint.protocol == ONE_PORT else tls,
            options=config.limits.listener,
            on_crash=lambda peer, error: report(crashed(peer, error)),
            on_lost=lambda peer, error: report(lost(peer, error)),
        )
    except CannotListen as error:
        raise Failure(str(error)) from error
    return OpenEndpoint(
        protocol=endpoint.protocol, listener=listener, server=server, take_over=makings.take_over
    )


def _context(endpoint: Endpoint) -> ssl.SSLContext | None:
    try:
        return server_context(endpoint.tls) if endpoint.tls else None
    except TlsFileError as error:
        raise Failure(str(error), ExitCode.WRONG) from error


def crashed(peer: str, error: BaseException) -> ConnectionCrashed:
    """What to tell of a connection that a bug ended."""
    return ConnectionCrashed(peer=peer, traceback="".join(traceback.format_exception(error)))


def lost(peer: str, error: BaseException) -> ConnectionLost:
    """What to tell of a connection that ended with an error of its own."""
    leaves = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
    return ConnectionLost(peer=peer, reason="; ".join(f"{type(e).__name__}: {e}" for e in leaves))
