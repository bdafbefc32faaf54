"""
A connection to a namespace with its dialect, tokens and request links; and the pool of connections.
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

import attrs
import trio

from gateway.brokers.amqp.cbs import CbsTokens, TokenSource
from gateway.brokers.amqp.dialects import SERVICE_BUS, Dialect, dialect_of
from gateway.brokers.amqp.options import LinkOptions
from gateway.domain.backoff import Backoff
from gateway.domain.errors import BrokerError, NotAuthorized, NoToken, Unavailable, Unreachable
from gateway.domain.health.trust import Trust
from gateway.net.amqp.client import AmqpClient
from gateway.net.amqp.exchange import Exchange
from gateway.net.amqp.links import LinkVoid, SendingLink
from gateway.net.dialing import dial
from gateway.net.hosts import Hosts
from gateway.net.reconnecting import ANY_TIME, Attempts, Failures
from gateway.net.server_address import ServerAddress
from gateway.wire.amqp.conditions import refusal_from_condition
from gateway.wire.amqp.events import AmqpError
from gateway.wire.amqp.exchange import NodeRequest, Reply
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import Credentials

T = TypeVar("T")

_MAX_EXCHANGES: Final = 50  # $management link pairs that one connection keeps
_MAX_PARTIAL: Final = 256 * 1024 * 1024  # bytes; Service Bus has messages of up to 100 MB
_CONNECT_SHARE: Final = 0.9  # share of the time until a link is attached
_BACKOFF: Final = Backoff(first=0.1, cap=5.0)
_LASTING: Final = 1.0  # seconds; a connection that lived longer doesn't count as a failure
_SESSIONS_NEEDED: Final = 2  # for a sender and the watch on its queue
_TRIES: Final = 2  # a link that had ended unnoticed is attached again
_LINGER: Final = 10.0  # seconds for late answers on a connection that was replaced


GoneBad = Callable[["NamespaceConnection", float, bool], None]
"""
Called with a connection that may have gone bad, with the start of the request that shows it, and
with True if that would have changed something and had no answer.
"""


@attrs.define(eq=False)
class NamespaceConnection:
    """A connection. Its links are void once it is `over`."""

    client: AmqpClient
    dialect: Dialect
    _tokens: CbsTokens | None
    _gone_bad: "GoneBad"
    is_replaced: bool = attrs.field(default=False, init=False)  # no request begins on it any more
    # Of those who wait for a link, and have sent nothing.
    _attaching: set[trio.CancelScope] = attrs.field(factory=set, init=False)
    _trust: Trust = attrs.field(factory=lambda: Trust(trio.current_time()), init=False)
    _exchanges: dict[str, Exchange] = attrs.field(factory=dict, init=False)
    _names: "count[int]" = attrs.field(factory=lambda: count(1), init=False)

    @property
    def over(self) -> bool:
        return self.client.end is not None

    @property
    def properties(self) -> Mapping[str, Any]:
        """The properties of the open frame in which the peer identified itself."""
        return {} if self.client.opened is None else self.client.opened.properties

    @property
    def is_idle(self) -> bool:
        """True if no send and no request waits for its answer."""
        links = self.client.links.values()
        sends = any(isinstance(link, SendingLink) and not link.idle for link in links)
        return not sends and all(each.idle for each in self._exchanges.values())

    def judged(self, began: float | None = None, *, changes: bool = False) -> "JudgedRequest":
        """
        A context for a request that began at `began` (None: now). If it fails or is given up, the
        connection may have gone bad. Only sends and settlements, which change something, show the
        contrary.
        """
        return JudgedRequest(self, trio.current_time() if began is None else began, changes)

    def judge(self, error: BaseException | None, began: float, *, changes: bool) -> None:
        """Judge the connection by the end of a request, as `judged`."""
        if isinstance(error, trio.Cancelled):
            bad = self._trust.given_up(began, trio.current_time())
            self._suspect(began, bad=bad, is_silent=changes)
        elif isinstance(error, BrokerError) and _shows_an_outage(error):
            bad = self._trust.failed(began, trio.current_time())
            self._suspect(began, bad=bad, is_silent=False)
        elif changes and (error is None or isinstance(error, BrokerError)):
            self.prove()

    def prove(self) -> None:
        """Record that the peer has changed something: it took a message, or gave one."""
        self._trust.answered(trio.current_time())

    @property
    def last_answer(self) -> float:
        """When the peer last changed something; minus infinity: never."""
        return self._trust.last_answer

    @contextmanager
    def until_replaced(self) -> Iterator[None]:
        """A context that ends without an error once the connection is replaced."""
        with trio.CancelScope() as scope:
            self._attaching.add(scope)
            try:
                yield
            finally:
                self._attaching.discard(scope)

    def replace(self) -> None:
        """Begin no request on the connection any more. Who waits for a link is let go."""
        self.is_replaced = True
        for scope in self._attaching:
            scope.cancel()

    def is_doubtful(self, since: float) -> bool:
        """True if the peer has changed nothing since then: it may have gone bad."""
        return self._trust.failed(since, trio.current_time())

    def _suspect(self, began: float, *, bad: bool, is_silent: bool) -> None:
        if bad and not self.is_replaced and not self.over:
            self._gone_bad(self, began, is_silent)

    def new_name(self, kind: str) -> str:
        """A link name that is unique on this connection."""
        return f"{kind}-{next(self._names)}"

    async def attach(self, address: str, attach: Callable[[], Awaitable[T]]) -> T:
        """
        Get the right to attach links to the address, call `attach` and return its result.

        A token may become invalid early, for example after a step of the peer's clock. Then another
        token is put, and `attach` is called once more.

        Raises:
            BrokerError: as `attach` and `CbsTokens.ensure`.
        """
        if self._tokens is None:
            return await attach()
        is_new = await self._tokens.ensure(address)
        try:
            return await attach()
        except NotAuthorized:
            self._tokens.forget(address)
            if is_new:
                raise
        await self._tokens.ensure(address)
        return await attach()

    def is_authorized(self, address: str) -> bool:
        """True if messages can be sent to the address: its token is good, or it needs none."""
        return self._tokens is None or self._tokens.is_good(address)

    async def authorize(self, address: str) -> None:
        """
        Return when the address has a token that is good, or needs none.

        Raises:
            BrokerError: as `CbsTokens.ensure`. Nothing was sent.
        """
        if self._tokens is not None:
            await self._tokens.ensure(address)

    async def ask(self, node: str, request: NodeRequest) -> Reply:
        """
        Return a node's reply to a request.

        Raises:
            BrokerError: the node can't be reached, there is no reply, or no token instead of one
                that expires.
        """
        for _ in range(_TRIES):
            exchange = await self._exchange(node)
            try:
                return await exchange.ask(request)
            except LinkVoid:
                continue
        raise Unavailable(f"{self.client.name}: {node} detaches its links at once")

    async def _exchange(self, node: str) -> Exchange:
        exchange = self._exchanges.get(node)
        if exchange is None or exchange.void:
            return await self.attach(node, partial(self._attach_exchange, node))
        if not self.is_authorized(node):
            await self.authorize(node)
        await exchange.wait_attached()
        return exchange

    async def _attach_exchange(self, node: str) -> Exchange:
        exchange = self._exchanges.get(node)
        if exchange is None or exchange.void:
            self._make_room()
            exchange = Exchange(self.client, node, self.new_name("asked"))
            self._exchanges[node] = exchange
        await exchange.wait_attached()
        return exchange

    def _make_room(self) -> None:
        gone = [node for node, each in self._exchanges.items() if each.void]
        idle = [node for node, each in self._exchanges.items() if each.idle]
        surplus = len(self._exchanges) - len(gone) - _MAX_EXCHANGES + 1
        for node in {*gone, *idle[: max(0, surplus)]}:
            self._exchanges.pop(node).close()


@attrs.define(eq=False)
class JudgedRequest:
    """Made by `NamespaceConnection.judged`: a class, as each send and settlement enters two."""

    _peer: NamespaceConnection
    _began: float
    _changes: bool

    def __enter__(self) -> None:
        """As any context manager."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._peer.judge(error, self._began, changes=self._changes)


def _shows_an_outage(error: BrokerError) -> bool:
    return error.counts_as_outage and not isinstance(error, NoToken)


Dial = Callable[[ServerAddress], Awaitable[trio.abc.Stream]]
"""Opens a connection, as `gateway.net.dialing.dial`."""


@attrs.frozen(kw_only=True)
class NamespaceAccess:
    """The address of a namespace, and the credentials for it."""

    places: Sequence[ServerAddress]  # the nodes of one cluster
    credentials: Credentials
    tokens: TokenSource | None = None  # for Service Bus
    dialect: str = "auto"
    dial: Dial = dial  # tests and tunnels have another


@attrs.define(eq=False, kw_only=True)
class ConnectionPool:
    """
    A pool of connections, each opened when the links of the others are used up. A dial goes on when
    its caller is cancelled, as `gateway.net.reconnecting` says.

    A connection that ends soon after it was opened counts as a failure, as one that couldn't be
    opened. If one has gone bad, all on which no send has succeeded since are replaced.
    """

    _access: NamespaceAccess
    _options: LinkOptions
    _rng: random.Random
    _nursery: trio.Nursery
    _peers: list[NamespaceConnection] = attrs.field(factory=list, init=False)
    _dialling: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _hosts: Hosts = attrs.field(init=False)
    _failures: Failures = attrs.field(init=False)
    _dials: Attempts[NamespaceConnection] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._dials = Attempts(
            open=self._dial,
            use=lambda _: self._failures.connected(),
            spawn=self._nursery.start_soon,
        )
        self._hosts = Hosts(places=self._access.places, rng=self._rng)
        self._failures = Failures(backoff=_BACKOFF, rng=self._rng)

    async def acquire(self, since: float = ANY_TIME) -> NamespaceConnection:
        """
        Return a connection that has room for a few links.

        Raises:
            BrokerError: no connection could be opened by a dial that began at `since` or later; by
                default by the last dial, as long as its backoff lasts. Nothing was sent.
        """
        async with self._dialling:
            for peer in self._peers:
                if not (peer.over or peer.is_replaced) and self._has_room(peer.client):
                    return peer
            await self._failures.begin(since)
            return await self._open()

    def _has_room(self, client: AmqpClient) -> bool:
        if not client.links:
            return True
        has_sessions = client.free_sessions >= _SESSIONS_NEEDED
        return has_sessions and len(client.links) < self._options.max_links

    async def close(self) -> None:
        """Close all connections in order, concurrently."""
        async with trio.open_nursery() as nursery:
            for peer in self._peers:
                nursery.start_soon(peer.client.close)

    def _replace_bad(self, peer: NamespaceConnection, since: float, is_silent: bool) -> None:
        """Close the connections on which no send has succeeded since then, once they are idle."""
        for each in self._peers:
            if not each.is_replaced and each.is_doubtful(since):
                each.replace()
                self._nursery.start_soon(self._leave, each)

    async def _leave(self, peer: NamespaceConnection) -> None:
        await trio.lowlevel.checkpoint()
        if not peer.is_idle:
            with trio.move_on_after(_LINGER):
                await peer.client.wait_ended()
        await peer.client.close()

    async def _open(self) -> NamespaceConnection:
        try:
            return await self._dials.opened()
        except BrokerError as error:
            self._failures.add(error)
            raise

    async def _dial(self) -> NamespaceConnection:
        seconds = _CONNECT_SHARE * self._options.connect_timeout
        return await self._hosts.first(self._begin, seconds)

    async def _begin(self, place: ServerAddress, seconds: float) -> NamespaceConnection:
        peer: NamespaceConnection = await self._nursery.start(self._serve, place, seconds)
        return peer

    def _record_end(self, lived: float, end: AmqpError) -> None:
        """
        Count a connection that a peer opens and then ends at once as a failure; the first one is
        forgiven.
        """
        if lived >= _LASTING:
            self._failures.clear()
        else:
            self._failures.add(refusal_from_condition(end.condition, end.description), forgiven=1)

    async def _serve(
        self,
        place: ServerAddress,
        seconds: float,
        task_status: trio.TaskStatus[NamespaceConnection],
    ) -> None:
        """Run one connection until it ends. It must be open within `seconds`."""
        deadline = trio.current_time() + seconds
        refusal: BrokerError = Unreachable(f"{place}: no answer within {seconds:.2g} s")
        with trio.CancelScope(deadline=deadline) as limit:
            stream = await self._access.dial(place)
        if limit.cancelled_caught:
            raise refusal
        client = self._client(stream, place)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            peer: NamespaceConnection | None = None
            try:
                with trio.CancelScope(deadline=deadline):
                    peer = await self._introduce(client, nursery)
            except BrokerError as error:
                refusal = error
            if peer is not None:
                self._peers.append(peer)
                task_status.started(peer)
                opened = trio.current_time()
                await client.wait_ended()
                self._peers.remove(peer)
                assert client.end is not None, "it has ended"
                self._record_end(trio.current_time() - opened, client.end)
            nursery.cancel_scope.cancel()
        if peer is None:
            raise refusal

    def _client(self, stream: trio.abc.Stream, place: ServerAddress) -> AmqpClient:
        return AmqpClient(
            stream,
            name=str(place),
            hostname=place.host,
            credentials=self._access.credentials,
            tls=place.tls,
            options=EngineOptions(
                idle_timeout=self._options.idle_timeout,
                channel_max=min(2 * self._options.max_links + 2 * _MAX_EXCHANGES, 65535),
                max_links=2 * self._options.max_links + 4 * _MAX_EXCHANGES,
                max_partial=_MAX_PARTIAL,
                partial_timeout=0,  # a message over a slow line takes as long as it takes
            ),
        )

    async def _introduce(self, client: AmqpClient, nursery: trio.Nursery) -> NamespaceConnection:
        opened = await client.wait_opened()
        if self._access.tokens is None:
            dialect = dialect_of(self._access.dialect, opened.properties)
            return NamespaceConnection(client, dialect, None, self._replace_bad)
        tokens = CbsTokens(client, self._access.tokens, partial(_addresses, client))
        await tokens.open()
        nursery.start_soon(tokens.run)
        return NamespaceConnection(client, SERVICE_BUS, tokens, self._replace_bad)


def _addresses(client: AmqpClient) -> set[str]:
    return {link.address for link in client.links.values() if link.address}


Take = Callable[[], Awaitable[NamespaceConnection]]
