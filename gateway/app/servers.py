"""What serves the connections of one endpoint: the front ends of its protocol, put together."""

import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.outside import Outside
from gateway.app.parts import Parts
from gateway.app.status import StatusBoard, make_figures
from gateway.brokers.local_visibility import LocalVisibility
from gateway.config.options import ADMIN, AMQP, ONE_PORT, STORAGE_QUEUE, Config
from gateway.frontends.admin import AdminFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.servicebus_rest import ServiceBusRestFrontend, is_long_poll
from gateway.frontends.storage_auth import Accounts
from gateway.frontends.storage_operations import StorageOperations
from gateway.frontends.storage_queue import StorageQueueFrontend
from gateway.net.http_server import Handler, HttpServer
from gateway.net.listeners import ConnectionHandler, peer_address
from gateway.net.sniffing import Sniffer
from gateway.wire.amqp.options import why_no_engine
from gateway.wire.http import Headers, Request, Response
from gateway.wire.servicebus_errors import PAIRGATE

if TYPE_CHECKING:  # it imports the engine, which may be missing
    from gateway.frontends.amqp.frontend import AmqpFrontend

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
class Server:
    """Serves connections, and can let each end after what it is owed."""

    serve_connection: ConnectionHandler
    drains: tuple[Callable[[], None], ...]

    def drain(self) -> None:
        """Let every connection end after the answers that it is owed."""
        for drain in self.drains:
            drain()


@attrs.frozen(kw_only=True)
class Makings:
    """What the front ends of one endpoint are made from."""

    config: Config
    parts: Parts
    outside: Outside
    authorizer: Authorizer
    accounts: Accounts

    def take_over(self, fresh: Config) -> None:
        """From now on clients may do what this configuration says."""
        self.authorizer.replace(fresh.access)
        self.accounts.replace(fresh.accounts)

    @property
    def send_timeout(self) -> float:
        pairing = self.config.pairing
        if pairing is None:
            return self.config.limits.rest.send_timeout
        return pairing.options.send_timeout + PATIENCE


def why_not(protocol: str) -> str | None:
    """What to install so that an endpoint of that protocol can be served; None: nothing."""
    why = why_no_engine() if protocol in (ONE_PORT, AMQP) else None
    return None if why is None else f"protocol {protocol!r}: {why}"


def make_server(protocol: str, makings: Makings, tls: ssl.SSLContext | None) -> Server:
    """
    The server of an endpoint. With `tls`, the one of one port for everything begins it by itself;
    for the others it has begun.

    Raises:
        Failure: the engine of AMQP isn't installed.
    """
    why = why_not(protocol)
    if why is not None:
        raise Failure(why, ExitCode.WRONG)
    if protocol == ONE_PORT:
        return _make_one_port(makings, tls)
    if protocol == AMQP:
        return _make_amqp(makings)
    if protocol == STORAGE_QUEUE:
        return _make_storage_queue(makings, secure=tls is not None)
    if protocol == ADMIN:
        return _make_admin(makings)
    return _make_rest(makings, secure=tls is not None)


def _make_one_port(makings: Makings, tls: ssl.SSLContext | None) -> Server:
    frontend = _make_frontend(makings)
    plain, secure = (_make_rest(makings, secure=secure) for secure in (False, True))
    sniffer = Sniffer(
        amqp=frontend.serve_connection,
        http=plain.serve_connection,
        https=secure.serve_connection,
        tls=tls,
        options=makings.config.limits.sniffing,
    )
    return Server(
        serve_connection=sniffer.serve_connection,
        drains=(sniffer.drain, frontend.drain.set, plain.drain, secure.drain),
    )


def _make_amqp(makings: Makings) -> Server:
    frontend = _make_frontend(makings)
    sniffer = Sniffer(amqp=frontend.serve_connection, options=makings.config.limits.sniffing)
    return Server(
        serve_connection=sniffer.serve_connection, drains=(sniffer.drain, frontend.drain.set)
    )


def _make_frontend(makings: Makings) -> "AmqpFrontend":
    from gateway.frontends.amqp.frontend import AmqpFrontend

    return AmqpFrontend(
        broker=makings.parts.broker,
        leases=makings.parts.leases,
        authorizer=makings.authorizer,
        wall_clock=makings.outside.now,
        options=attrs.evolve(
            makings.config.limits.amqp,
            namespace=makings.config.limits.rest.namespace,
            send_timeout=makings.send_timeout,
        ),
    )


def _make_rest(makings: Makings, *, secure: bool) -> Server:
    frontend = ServiceBusRestFrontend(
        broker=makings.parts.broker,
        leases=makings.parts.leases,
        authorizer=makings.authorizer,
        wall_clock=makings.outside.now,
        options=attrs.evolve(
            makings.config.limits.rest, secure=secure, send_timeout=makings.send_timeout
        ),
    )
    polls = LongPolls(handler=frontend.handle)
    server = HttpServer(
        handler=polls.handle,
        error_body=frontend.refuse,
        wall_clock=makings.outside.now,
        options=makings.config.limits.http,
        cancels_when_gone=is_long_poll,
    )
    return Server(serve_connection=server.serve_connection, drains=(server.drain.set, polls.end))


def _make_admin(makings: Makings) -> Server:
    board = StatusBoard(config=makings.config, outside=makings.outside, parts=makings.parts)
    draining = trio.Event()
    figures = make_figures(board, makings.authorizer, draining)
    frontend = AdminFrontend(
        broker=makings.parts.broker,
        authorizer=makings.authorizer,
        figures=figures,
        wall_clock=makings.outside.now,
        announcements=makings.parts.announcements,
        options=makings.config.limits.admin,
        draining=draining,
    )
    server = HttpServer(
        handler=frontend.handle,
        error_body=frontend.refuse,
        wall_clock=makings.outside.now,
        options=makings.config.limits.http,
    )
    return Server(serve_connection=server.serve_connection, drains=(draining.set, server.drain.set))


def _make_storage_queue(makings: Makings, *, secure: bool) -> Server:
    parts, now = makings.parts, makings.outside.now
    frontend = StorageQueueFrontend(
        operations=StorageOperations(
            broker=parts.broker,
            visibility=parts.visibility,
            # What a pair protects goes the pair's way; elsewhere only a store of our own tells
            # the number of what it takes.
            sends=parts.pair is not None or not isinstance(parts.visibility, LocalVisibility),
            wall_clock=now,
        ),
        accounts=makings.accounts,
        wall_clock=now,
        options=attrs.evolve(makings.config.limits.storage, secure=secure),
    )
    drain = trio.Event()

    async def serve_connection(stream: trio.abc.Stream) -> None:
        server = HttpServer(
            handler=partial(frontend.handle, peer=peer_address(stream)),
            error_body=frontend.refuse,
            wall_clock=now,
            drain=drain,
            options=makings.config.limits.http,
        )
        await server.serve_connection(stream)

    return Server(serve_connection=serve_connection, drains=(drain.set, frontend.ending.set))
