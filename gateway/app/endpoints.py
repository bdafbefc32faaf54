"""The ports that clients connect to, each with the front end of its protocol."""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import attrs

from gateway.app.assembly.parts import Parts
from gateway.app.failure import ExitCode, Failure
from gateway.app.runtime import Runtime
from gateway.app.servers import Basis, Makings, Server, Tls, make_server
from gateway.config.endpoints import (
    ADMIN,
    SERVE,
    Endpoint,
    moved,
    requires_tls,
)
from gateway.config.options import Config
from gateway.domain.access import Refusal
from gateway.domain.events.gateway import (
    ConnectionCrashed,
    ConnectionLost,
    Doubtful,
    Event,
    Listening,
    PageServed,
)
from gateway.fair_budget import FairBudget
from gateway.frontends.auth import Authorizer
from gateway.frontends.issuers import Issuers
from gateway.frontends.refusals import Refusals
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.web_guard import WebGuard
from gateway.net import unix
from gateway.net.listeners import (
    BoundSockets,
    CannotListen,
    Listener,
    OnEnd,
    is_lack,
    open_listener,
)
from gateway.net.tls import TlsFileError, server_context
from gateway.net.tls_handshake import UntrustedCertificate
from gateway.net.visits import host_of


@attrs.frozen(kw_only=True)
class OpenEndpoint:
    """A bound port: the kernel queues connections, and nothing serves them yet."""

    number: int  # in the configuration
    protocol: str
    listener: Listener
    server: Server
    makings: Makings

    def apply(self, fresh: Config) -> None:
        """Apply the access policies and accounts of that configuration."""
        self.makings.apply(fresh)


def listening(options: Endpoint, address: str) -> Iterator[Event]:
    """The events of an endpoint that accepts connections at that address."""
    yield Listening(protocol=options.protocol, address=address)
    if options.protocol == ADMIN and unix.path_of(address) is None:
        host, _, port = address.rpartition(":")
        here = "localhost" if host.strip("[]") in {"0.0.0.0", "::"} else host
        scheme = "http" if options.tls is None else "https"
        yield PageServed(page=f"{scheme}://{here}:{port}/")


class Given(Protocol):
    """Listening sockets from another process, as `gateway.app.given.GivenSockets`."""

    def acquire(self, bind: str) -> BoundSockets | None: ...


class NothingGiven:
    """The `Given` of a process that binds all ports itself."""

    def acquire(self, bind: str) -> BoundSockets | None:
        return None


async def open_endpoints(
    stack: AsyncExitStack,
    config: Config,
    parts: Parts,
    runtime: Runtime,
    *,
    port_offset: int = 0,
    given: Given | None = None,
) -> list[OpenEndpoint]:
    """
    Bind all ports of a gateway, which the stack closes, except ports whose sockets are `given`;
    every port except 0 is moved by `port_offset`.

    Raises:
        Failure: a port is in use, or a certificate can't be used.
    """
    endpoints = []
    given = given or NothingGiven()
    budget = make_budget(config)
    for number, endpoint in config.endpoints_of(SERVE).items():
        makings = make_makings(config, number, parts, runtime, budget)
        sockets = given.acquire(moved(endpoint.bind, port_offset))
        opened = OpenEndpoint(
            number=number,
            protocol=endpoint.protocol,
            server=make_server(endpoint.protocol, makings, tls_of(config, number)),
            listener=await bind_endpoint(
                config, number, runtime, parts.refusals, port_offset, given=sockets
            ),
            makings=makings,
        )
        opened.listener.limit_clients(parts.clients)
        stack.push_async_callback(opened.listener.aclose)
        endpoints.append(opened)
    return endpoints


def make_budget(config: Config) -> FairBudget:
    """The memory for bodies in this process; a client may have half of it, or less."""
    memory, most = config.limits.http.max_body_memory, config.limits.clients.max_bytes
    return FairBudget(memory, min(most, memory // 2) or memory)


async def bind_endpoint(
    config: Config,
    number: int,
    runtime: Runtime,
    refusals: Refusals,
    port_offset: int,
    *,
    given: BoundSockets | None = None,
) -> Listener:
    """
    Bind the port of that endpoint, or use the sockets that another process has bound for it.

    Raises:
        Failure: the port is in use, or more users may connect than the endpoint allows.
    """
    endpoint = config.endpoints[number]
    on_crash = crash_reporter(runtime)
    on_lost = loss_reporter(runtime, endpoint.protocol, refusals)
    options = config.limits.listener
    if given is not None:
        if (path := unix.path_of(moved(endpoint.bind, port_offset))) is not None:
            _narrow(path, number, int(endpoint.mode, 8))
        inherited = Listener(
            given.sockets, on_crash=on_crash, on_lost=on_lost, options=options, file=given.file
        )
        # The other process continues to serve, if this one fails before it serves.
        inherited.borrow_file()
        return inherited
    try:
        return await open_listener(
            moved(endpoint.bind, port_offset),
            options=options,
            on_crash=on_crash,
            on_lost=on_lost,
            mode=int(endpoint.mode, 8),
        )
    except CannotListen as error:
        raise Failure(f"endpoints[{number}].bind: {error}") from error


def _narrow(path: Path, number: int, mode: int) -> None:
    """
    Restrict the clients of a socket file to those that the mode allows: systemd's sockets are open
    to all by default.

    Raises:
        Failure: the file is another user's.
    """
    try:
        if path.stat().st_mode & 0o777 & ~mode:
            path.chmod(mode)
    except FileNotFoundError:
        return  # the file was removed: no client can connect
    except OSError as error:
        raise Failure(
            f"endpoints[{number}].mode: {path} has a wider one, and it can't be changed"
            f" ({error.strerror}): write SocketMode={mode:04o} into the unit of the socket",
            ExitCode.WRONG,
        ) from error


def make_makings(
    config: Config, index: int, parts: Parts, runtime: Runtime, budget: FairBudget
) -> Makings:
    """The parts that the front ends of that endpoint are created from."""
    endpoint = config.endpoints[index]
    basis = make_basis(config, index, parts.refusals, runtime, budget, parts.issuers)
    return Makings(
        config=config,
        parts=parts,
        runtime=runtime,
        authorizer=basis.authorizer,
        guard=basis.guard,
        of_websockets=basis.of_websockets,
        budget=budget,
        accounts=Accounts(
            config.accounts,
            wall_clock=runtime.now,
            accepts_well_known_key=config.accepts_well_known_key(endpoint),
            on_refused=parts.refusals.at(endpoint.protocol),
            authorizer=basis.authorizer,
        ),
    )


def make_basis(
    config: Config,
    index: int,
    refusals: Refusals,
    runtime: Runtime,
    budget: FairBudget,
    issuers: Issuers,
) -> Basis:
    """The parts of that endpoint that need no gateway."""
    endpoint = config.endpoints[index]
    accepts_well_known_key = config.accepts_well_known_key(endpoint)
    authorizer = Authorizer(
        config.access,
        wall_clock=runtime.now,
        accepts_well_known_key=accepts_well_known_key,
        on_refused=refusals.at(endpoint.protocol),
        issuers=issuers,
    )
    is_file = unix.path_of(endpoint.bind) is not None  # no page of a browser can open such a socket
    guard = WebGuard(
        is_open=lambda: authorizer.is_open and not is_file,
        allowed_origins=frozenset(map(str.lower, endpoint.allowed_origins)),
        allowed_hosts=frozenset(map(str.lower, endpoint.allowed_hosts)),
        allow_local_names=config.development,
        has_certificate=lambda: authorizer.claim_of_certificate() is not None,
        takes_links=endpoint.protocol == "admin",
    )
    # Without credentials clients have rights over AMQP only.
    of_websockets = attrs.evolve(
        guard,
        is_open=lambda: guard.is_open() or (accepts_well_known_key and authorizer.takes_anonymous),
        has_certificate=lambda: guard.has_certificate() or authorizer.takes_anonymous,
    )
    return Basis(
        config=config,
        runtime=runtime,
        authorizer=authorizer,
        guard=guard,
        of_websockets=of_websockets,
        budget=budget,
    )


def crash_reporter(runtime: Runtime) -> OnEnd:
    """Reports connections that a bug has ended."""
    return lambda peer, error: runtime.observer.report(crashed(peer, error))


def loss_reporter(runtime: Runtime, protocol: str, refusals: Refusals) -> OnEnd:
    """
    Reports connections that an expected error has ended; counts refused connections, and notes in
    `refusals` clients whose certificate isn't trusted.
    """
    ended = port_reporter(runtime, protocol)

    def report(peer: str, error: BaseException) -> None:
        for each in _leaves(error):
            if isinstance(each, ConnectionRefusedError):
                runtime.observer.connections.refused[protocol] += 1
            elif isinstance(each, UntrustedCertificate):
                name = "" if each.certificate is None else each.certificate.subject
                refusals.record(protocol, host_of(peer), name, Refusal(each.why))
        ended(peer, error)

    return report


def port_reporter(runtime: Runtime, port: str) -> OnEnd:
    """
    Reports connections that an expected error has ended, and that clients of that port must wait,
    as long as there are too many open files.
    """

    def report(peer: str, error: BaseException) -> None:
        if is_lack(error):
            text = f"{port}: a client must wait: {error.strerror}"
            runtime.observer.report(Doubtful(text=text))
        else:
            runtime.observer.report(lost(peer, error))

    return report


def tls_of(config: Config, index: int) -> Tls | None:
    """
    The TLS settings of that endpoint; None if it has no certificate.

    Raises:
        Failure: a file can't be used; the text begins with the file's configuration key.
    """
    endpoint = config.endpoints[index]
    if endpoint.tls is None:
        return None
    try:
        context = server_context(endpoint.tls)
    except TlsFileError as error:
        text = f"endpoints[{index}].tls.{error.field}: {error}"
        raise Failure(text, ExitCode.WRONG) from error
    return Tls(context=context, required=requires_tls(endpoint))


def crashed(peer: str, error: BaseException) -> ConnectionCrashed:
    """The event for a connection that a bug has ended."""
    return ConnectionCrashed(peer=peer, traceback="".join(traceback.format_exception(error)))


def lost(peer: str, error: BaseException) -> ConnectionLost:
    """The event for a connection that an expected error has ended."""
    each = (f"{type(leaf).__name__}: {leaf}" for leaf in _leaves(error))
    return ConnectionLost(peer=peer, reason="; ".join(each))


def _leaves(error: BaseException) -> Sequence[BaseException]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
