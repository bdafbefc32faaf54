"""The servers of one endpoint: the front ends of its protocol, put together."""

import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import attrs
import trio

from gateway.app.assembly.parts import Parts
from gateway.app.operations.control_calls import of_process
from gateway.app.runtime import Runtime
from gateway.app.status.board import StatusBoard, make_figures
from gateway.app.status.sections import readings
from gateway.config.endpoints import ADMIN, AMQP, ONE_PORT, RABBITMQ, STORAGE_QUEUE
from gateway.config.options import Config
from gateway.fair_budget import FairBudget
from gateway.frontends.admin.audited import Audited
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.servicebus.health import with_health
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend, is_long_poll
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.frontend import StorageQueueFrontend
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.frontends.web_guard import Frontend, Guarded, WebGuard
from gateway.net.http.guard import MAX_HEAD
from gateway.net.http.server import Handler, HttpServer, HttpServerOptions
from gateway.net.listeners import ConnectionHandler, peer_address
from gateway.net.sniffing import Sniffer
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.pairgate.control_calls import CONTROL_CALLS
from gateway.wire.servicebus.errors import PAIRGATE

# The pair's own outcome says more than a timeout of the front end, whose deadline therefore is
# later.
PATIENCE: Final = 1.0  # seconds
SMALL_BODY: Final = 1024 * 1024


@attrs.define(eq=False, kw_only=True)
class LongPolls:
    """Ends requests that wait for a message when the endpoint drains, as if none had arrived."""

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

    def cancel_all(self) -> None:
        for scope in self._waiting:
            scope.cancel()


class Drainable(Protocol):
    """A front end of connections that end by themselves once they are told to."""

    async def serve_connection(self, stream: trio.abc.Stream) -> None: ...

    def drain(self) -> None: ...


@attrs.frozen(kw_only=True)
class Server:
    """Serves connections, and can end each of them after its pending answers."""

    serve_connection: ConnectionHandler
    drains: tuple[Callable[[], None], ...]

    def drain(self) -> None:
        """End every connection after its pending answers."""
        for drain in self.drains:
            drain()


@attrs.frozen(kw_only=True)
class Basis:
    """The parts of an endpoint that don't depend on its protocol, nor on the process."""

    config: Config
    runtime: Runtime
    authorizer: Authorizer
    guard: WebGuard
    of_websockets: WebGuard  # the guard of AMQP over WebSocket
    budget: FairBudget

    def apply(self, fresh: Config) -> None:
        """Apply the access policies of this configuration, and their issuers, from now on."""
        if self.authorizer.issuers is not None:
            self.authorizer.issuers.replace(fresh.issuers)
        self.authorizer.replace(fresh.access)


@attrs.frozen(kw_only=True)
class Makings(Basis):
    """The parts that the front ends of one endpoint of a gateway are created from."""

    parts: Parts
    accounts: Accounts
    # In a worker: answers the requests for which the parent has the state (plain, over TLS).
    on_parent: Callable[[bool], Handler] | None = None

    def apply(self, fresh: Config) -> None:
        """As `Basis.apply`; applies the accounts, too."""
        Basis.apply(self, fresh)
        self.accounts.replace(fresh.accounts)

    @property
    def send_timeout(self) -> float:
        pairing = self.config.pairing
        if pairing is None:
            return self.config.limits.rest.send_timeout
        return pairing.options.send_timeout + PATIENCE


class MakeHttp(Protocol):
    """Creates the server of an HTTP-based protocol. `secure`: its clients connect with TLS."""

    def __call__(self, *, secure: bool) -> Server: ...


@attrs.frozen(kw_only=True)
class Tls:
    """TLS settings of an endpoint with a certificate."""

    context: ssl.SSLContext
    required: bool  # plain text is refused


def small_bodies(options: HttpServerOptions) -> HttpServerOptions:
    """The options with a small limit for bodies, for front ends whose requests are small."""
    return attrs.evolve(options, max_body=min(options.max_body, SMALL_BODY))


def make_server(protocol: str, makings: Makings, tls: Tls | None) -> Server:
    """The server of an endpoint, including TLS."""
    if protocol == ONE_PORT:
        return _make_one_port(makings, tls)
    if protocol == AMQP:
        return _make_amqp(makings, tls)
    if protocol == STORAGE_QUEUE:
        return make_http(partial(_make_storage_queue, makings), makings, tls)
    if protocol == RABBITMQ:
        return _make_rabbitmq(makings, tls)
    if protocol == ADMIN:
        return make_http(partial(_make_admin, makings), makings, tls)
    return make_http(partial(make_rest, makings), makings, tls)


def _make_one_port(makings: Makings, tls: Tls | None) -> Server:
    frontend = _make_frontend(makings)
    plain, secure = (make_rest(makings, secure=secure) for secure in (False, True))
    sniffer = _make_sniffer(
        makings,
        tls,
        amqp=frontend.serve_connection,
        http=plain.serve_connection,
        https=secure.serve_connection,
    )
    return Server(
        serve_connection=sniffer.serve_connection,
        drains=(sniffer.drain, frontend.drain.begin, plain.drain, secure.drain),
    )


def _make_amqp(makings: Makings, tls: Tls | None) -> Server:
    frontend = _make_frontend(makings)
    sniffer = _make_sniffer(makings, tls, amqp=frontend.serve_connection)
    return Server(
        serve_connection=sniffer.serve_connection, drains=(sniffer.drain, frontend.drain.begin)
    )


def _make_rabbitmq(makings: Makings, tls: Tls | None) -> Server:
    config, parts, authorizer = makings.config, makings.parts, makings.authorizer
    frontend: Drainable
    if config.is_home_rabbitmq:
        # The adapter of RabbitMQ, which only this endpoint needs here.
        from gateway.app.rabbitmq_endpoint import make_wire

        frontend = make_wire(config, parts, makings.runtime, authorizer)
    else:
        from gateway.app.rabbitmq_broker_endpoint import make_broker

        frontend = make_broker(config, parts, authorizer)
    sniffer = _make_sniffer(makings, tls, amqp=frontend.serve_connection)
    return Server(serve_connection=sniffer.serve_connection, drains=(sniffer.drain, frontend.drain))


def make_http(make: MakeHttp, basis: Basis, tls: Tls | None) -> Server:
    """
    An HTTP server; it needs no protocol detection if HTTP is the only protocol of the endpoint.
    """
    if tls is None:
        return make(secure=False)
    plain, secure = make(secure=False), make(secure=True)
    sniffer = _make_sniffer(basis, tls, http=plain.serve_connection, https=secure.serve_connection)
    return Server(
        serve_connection=sniffer.serve_connection,
        drains=(sniffer.drain, plain.drain, secure.drain),
    )


def _make_sniffer(
    basis: Basis,
    tls: Tls | None,
    *,
    amqp: ConnectionHandler | None = None,
    http: ConnectionHandler | None = None,
    https: ConnectionHandler | None = None,
) -> Sniffer:
    limits = basis.config.limits
    return Sniffer(
        amqp=amqp,
        http=http,
        https=https,
        tls=None if tls is None else tls.context,
        requires_tls=tls is not None and tls.required,
        handshake_timeout=limits.listener.handshake_timeout,
        server_name=limits.http.server_name,
        refusal=basis.of_websockets.refusal,
        options=limits.sniffing,
    )


def _make_frontend(makings: Makings) -> AmqpFrontend:
    return AmqpFrontend(
        broker=makings.parts.broker,
        leases=makings.parts.leases,
        authorizer=makings.authorizer,
        wall_clock=makings.runtime.now,
        options=attrs.evolve(
            makings.config.limits.amqp,
            namespace=makings.config.limits.rest.namespace,
            send_timeout=makings.send_timeout,
        ),
    )


class GuardedRequests(Protocol):
    """The two calls of an HTTP server for each request, as in `Guarded`."""

    async def handle(self, request: Request) -> Response: ...

    async def check_head(self, request: Request) -> Response | None: ...


def make_rest(
    makings: Makings,
    *,
    secure: bool,
    enter: Callable[[GuardedRequests], GuardedRequests] = lambda requests: requests,
    max_head: int = MAX_HEAD,
) -> Server:
    """
    The server for Service Bus REST and Atom. `secure`: its clients connect with TLS. `enter` may
    put a step before the guard.
    """
    frontend = ServiceBusRestFrontend(
        broker=makings.parts.broker,
        leases=makings.parts.leases,
        authorizer=makings.authorizer,
        wall_clock=makings.runtime.now,
        options=attrs.evolve(
            makings.config.limits.rest, secure=secure, send_timeout=makings.send_timeout
        ),
        on_parent=None if makings.on_parent is None else makings.on_parent(secure),
    )
    polls = LongPolls(handler=frontend.handle)
    requests = enter(
        Guarded(
            guard=makings.guard,
            frontend=frontend,
            handler=with_health(polls.handle) if makings.config.development else polls.handle,
            prepare=makings.authorizer.prepare,
        )
    )
    server = HttpServer(
        handler=requests.handle,
        check_head=requests.check_head,
        error_body=frontend.refuse,
        wall_clock=makings.runtime.now,
        budget=makings.budget,
        options=makings.config.limits.http,
        cancels_when_gone=is_long_poll,
        max_head=max_head,
    )
    return Server(
        serve_connection=server.serve_connection, drains=(server.drain.set, polls.cancel_all)
    )


def _make_admin(makings: Makings, *, secure: bool) -> Server:
    board = StatusBoard(
        config=makings.config,
        runtime=makings.runtime,
        parts=makings.parts,
        refusals=makings.parts.refusals,
        certificates=makings.parts.certificates,
        sections=readings(makings.parts.sections),
    )
    parts = makings.parts
    figures = make_figures(
        board,
        makings.authorizer,
        parts.readiness,
        [*parts.executors, *of_process(parts.process)],
    )
    frontend = AdminFrontend(
        broker=makings.parts.broker,
        authorizer=makings.authorizer,
        figures=figures,
        wall_clock=makings.runtime.now,
        announcements=makings.parts.announcements,
        options=makings.config.limits.admin,
        readiness=parts.readiness,
    )
    return make_admin_server(makings, frontend)


def make_admin_server(basis: Basis, frontend: Frontend) -> Server:
    """The server for the requests of operators, whose bodies are small."""
    handler, audit = frontend.handle, basis.config.audit
    if audit is not None:
        audited = Audited(
            handler=handler,
            authorizer=basis.authorizer,
            clock=basis.runtime.now,
            notes=basis.runtime.audits.at(audit.file, basis.runtime.observer),
            calls=CONTROL_CALLS,
        )
        handler = audited.handle
    guarded = Guarded(
        guard=basis.guard, frontend=frontend, handler=handler, prepare=basis.authorizer.prepare
    )
    server = HttpServer(
        handler=guarded.handle,
        check_head=guarded.check_head,
        error_body=frontend.refuse,
        wall_clock=basis.runtime.now,
        budget=basis.budget,
        options=small_bodies(basis.config.limits.http),
    )
    return Server(serve_connection=server.serve_connection, drains=(server.drain.set,))


def _make_storage_queue(makings: Makings, *, secure: bool) -> Server:
    parts, now = makings.parts, makings.runtime.now
    frontend = StorageQueueFrontend(
        operations=StorageOperations(
            broker=parts.broker,
            visibility=parts.visibility,
            # A pair protects only messages sent through it; elsewhere only an embedded store
            # returns the sequence number of a put message.
            sends=parts.pair is not None or not parts.numbers_puts,
            wall_clock=now,
            marks=parts.others.marks(makings.accounts.marks),
            tokens=parts.others.client_tokens(),
        ),
        accounts=makings.accounts,
        wall_clock=now,
        options=attrs.evolve(makings.config.limits.storage, secure=secure),
    )
    drain = trio.Event()
    guard = attrs.evolve(makings.guard, is_open=lambda: makings.accounts.is_open)

    async def serve_connection(stream: trio.abc.Stream) -> None:
        guarded = Guarded(
            guard=guard,
            frontend=frontend,
            handler=partial(frontend.handle, peer=peer_address(stream)),
            prepare=makings.authorizer.prepare,
        )
        server = HttpServer(
            handler=guarded.handle,
            check_head=guarded.check_head,
            error_body=frontend.refuse,
            wall_clock=now,
            budget=makings.budget,
            drain=drain,
            options=makings.config.limits.http,
        )
        await server.serve_connection(stream)

    return Server(serve_connection=serve_connection, drains=(drain.set, frontend.ending.set))
