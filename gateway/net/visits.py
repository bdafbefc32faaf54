"""
The state of a port's connections: whether a connection has authorized anything, and how long it has
waited for its client.

The code that checks a key calls `record_authorized`, from any task of the connection: the task's
context identifies the connection, so that the layers between the port and the check needn't pass it
on.
"""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final

import attrs
import trio

from gateway.net.clients import ClientLoad, Clients
from gateway.net.turns import RequestTurn

_current: ContextVar["Visit"] = ContextVar("visit")

# Seconds for which a process that drains waits for bytes that a client has sent already: between
# two requests, and after the client has connected.
ON_ITS_WAY: Final = 0.3
FIRST_ON_ITS_WAY: Final = 2.0


def host_of(peer: str) -> str:
    """The address without its port."""
    return peer.rpartition(":")[0].strip("[]").removeprefix("::ffff:")


@attrs.define(eq=False)
class Visit:
    """
    A client's connection. Until a request on it was authorized, the connection has a short timeout,
    and is closed first when connections run out.
    """

    owner: str = ""
    peer: str = ""  # the client's host:port, or unix:PROCESS; empty if unknown
    user: int | None = None  # of the client's process, over a Unix socket
    certificate: bytes = b""  # of the client, verified by TLS's handshake; empty: none
    # Seconds that it may wait for its client before anything was authorized.
    patience: float = math.inf
    is_authorized: bool = False
    is_busy: bool = False  # whether a request is being processed
    gave_way: bool = False  # whether it was closed for another connection
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    # Ends the connection at the socket: its client gets no further byte.
    hang_up: Callable[[], None] = lambda: None
    # True if bytes of the client wait at the socket, since the connection's task hasn't run yet.
    has_unread: Callable[[], bool] = lambda: False
    clients: Clients | None = None  # None: its client has no limits
    client: str = ""  # the credential that it has shown last; empty: none
    peek_slot: "PeekSlot | None" = attrs.field(
        default=None, init=False
    )  # of the request in progress
    _connected: ClientLoad | None = attrs.field(default=None, init=False)
    # The port's connections without any authorization, the longest idle first.
    _strangers: dict["Visit", None] = attrs.field(factory=dict)

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return host_of(self.peer)

    @property
    def client_name(self) -> str:
        """The name of the client for its limits."""
        return self.client or self.owner

    def load(self) -> ClientLoad | None:
        """The load of the connection's client; None: the client has no limits."""
        return None if self.clients is None else self.clients.load(self.client_name)

    def begin_wait(self) -> None:
        """Note that the connection waits for its client from now on."""
        if self.is_authorized:
            return
        self.is_busy = False
        self._strangers.pop(self, None)
        self._strangers[self] = None
        self.scope.deadline = trio.current_time() + self.patience

    def begin_work(self) -> None:
        """Note that a request has arrived completely: from now on the time is the server's."""
        if not self.is_authorized:
            self.is_busy = True
            self.scope.deadline = math.inf

    def authorize(self, client: str = "") -> None:
        """
        Note that the client has shown a valid credential with that name, or needs none. The
        connection counts for the first credential that it shows.

        Raises:
            Busy: the client has as many connections as it may.
        """
        if client and client != self.client:
            self._show(client)
        if not self.is_authorized:
            self.is_authorized = True
            self.scope.deadline = math.inf
            self.close()

    def _show(self, client: str) -> None:
        if self.clients is not None and self._connected is None:
            load = self.clients.load(client)
            load.connect()
            self._connected = load
        self.client = client

    def close(self) -> None:
        self._strangers.pop(self, None)

    def release_peek(self) -> None:
        """Note that the answer of the request in progress is written, or won't be."""
        slot, self.peek_slot = self.peek_slot, None
        if slot is not None:
            slot.release()

    def leave(self) -> None:
        """Note that the connection has ended."""
        self.close()
        self.release_peek()
        if self._connected is not None:
            self._connected.disconnect()
            self._connected = None


@attrs.define(eq=False)
class Visits:
    """The connections of one port that haven't authorized anything."""

    patience: float
    clients: Clients | None = None
    _strangers: dict[Visit, None] = attrs.field(factory=dict, init=False)

    @contextmanager
    def begin(self, owner: str, peer: str = "", user: int | None = None) -> Iterator[Visit]:
        """
        Track a connection as long as the context lasts; its tasks find it with `current_visit`.
        """
        visit = Visit(
            owner=owner,
            peer=peer,
            user=user,
            patience=self.patience,
            clients=self.clients,
            strangers=self._strangers,
        )
        token = _current.set(visit)
        visit.begin_wait()
        try:
            yield visit
        finally:
            visit.leave()
            _current.reset(token)

    def close_longest_idle(self, owner: str | None = None) -> bool:
        """
        Close the connection that has waited longest for its client; only among those of `owner`, if
        given. A client whose bytes lie unread at the socket isn't idle: it gives way only if each
        other one has sent something, too.

        Returns False if each connection has authorized something, or is busy.
        """
        idle = [
            each for each in self._strangers if not each.is_busy and owner in {None, each.owner}
        ]
        if not idle:
            return False
        longest = next((each for each in idle if not each.has_unread()), idle[0])
        longest.close()
        longest.gave_way = True
        longest.scope.cancel()
        return True


def current_visit() -> Visit:
    """The connection that this task serves; outside of a port, a connection without limits."""
    return _current.get(None) or Visit(is_authorized=True)


def record_certificate(der: bytes) -> None:
    """Note the certificate by which TLS has authenticated the client of this task's connection."""
    visit = _current.get(None)
    if visit is not None:
        visit.certificate = der


@contextmanager
def on_behalf_of(certificate: bytes) -> Iterator[None]:
    """
    A context in which this task serves a client of another process, whose TLS handshake has
    authenticated it by that certificate; empty: by none.
    """
    token = _current.set(Visit(is_authorized=True, certificate=certificate))
    try:
        yield
    finally:
        _current.reset(token)


def record_authorized(client: str = "") -> None:
    """
    Note that the client of this task's connection has shown a valid credential with that name, or
    needs none.

    Raises:
        Busy: the client has as many connections as it may.
    """
    visit = _current.get(None)
    if visit is not None:
        visit.authorize(client)


@attrs.define(eq=False)
class PeekSlot:
    """The place of one answer with peeked messages among those of its client."""

    _load: ClientLoad

    def release(self) -> None:
        """Note that the answer is written, or won't be."""
        self._load.release_peek(self)


async def acquire_peek_slot() -> PeekSlot | None:
    """
    Return when this task's client may have another answer with peeked messages; the caller releases
    the result. None: the client has no limits.

    Raises:
        Busy: as `ClientLoad.acquire_peek`.
    """
    await trio.lowlevel.checkpoint()
    visit = _current.get(None)
    load = None if visit is None else visit.load()
    if load is None:
        return None
    slot = PeekSlot(load)
    await load.acquire_peek(slot)
    return slot


async def peek_until_written() -> None:
    """
    As `acquire_peek_slot`, for a request over HTTP. Its connection releases the slot once the
    answer is written.
    """
    visit = _current.get(None)
    slot = await acquire_peek_slot()
    if visit is not None:
        visit.release_peek()
        visit.peek_slot = slot


async def acquire_turn(size: int, count: int = 1) -> RequestTurn | None:
    """
    Return when it is the turn of a request of this task's client, of that size in bytes or
    messages; the caller calls `release` of the result. None: the port keeps no order.
    """
    load = _load_in_turn()
    if load is None:
        return None
    return await load.line.acquire(size, count)


async def acquire_turn_to_await(size: int = 0) -> RequestTurn | None:
    """
    As `acquire_turn`, for what may wait for something else than this process: `size` bytes of
    publishes and requests that are relayed together to a primary, which answers them by itself, or
    a receive. It counts no longer than `AWAITED` seconds.
    """
    load = _load_in_turn()
    return None if load is None else await load.awaiting.acquire(size)


async def acquire_turn_to_show(size: int) -> RequestTurn | None:
    """
    As `acquire_turn`, for a request whose answer may be large, as that to a peek: it begins between
    two requests of a light client, which would wait until the namespace has read the answer.
    """
    turn = await acquire_turn(size)
    if turn is not None:
        try:
            await turn.give_way()
        except BaseException:
            turn.release()
            raise
    return turn


async def acquire_turn_to_read(size: int) -> RequestTurn | None:
    """
    As `acquire_turn`, for `size` bytes that this task has read from its client and processes next.
    These turns have a line of their own, so that no client's data waits for a namespace before it
    is read. While another client has work, there is one of them at a time: it takes the event loop,
    and waits for nothing.
    """
    load = _load_in_turn()
    if load is None:
        return None
    return await load.reading.acquire(size, load.clients.options.share)


@asynccontextmanager
async def processing(size: int) -> AsyncIterator[None]:
    """A context in which this task processes that many bytes of its client, in its turn to read."""
    turn = await acquire_turn_to_read(size)
    try:
        yield
    finally:
        if turn is not None:
            turn.release()


@asynccontextmanager
async def answering(*, is_large: bool) -> AsyncIterator[None]:
    """
    A context in which an answer is built that may be large: of this task's client, one at a time
    while another client has work, however many were read from the namespace together.
    """
    turn = await acquire_turn_to_read(0) if is_large else None
    try:
        if turn is not None:
            await trio.lowlevel.checkpoint()  # those that resume in this pass wait in line
            await turn.give_way()
        yield
    finally:
        if turn is not None:
            turn.release()


def largest_step(most: int, most_bytes: int) -> tuple[int, int]:
    """
    The numbers of messages and bytes that this task's client may put into a step: `Line.step`.
    """
    load = _load_in_turn()
    return (most, most_bytes) if load is None else load.line.step(most, most_bytes)


def _load_in_turn() -> ClientLoad | None:
    """The load of this task's client; None: the port keeps no order."""
    visit = _current.get(None)
    if visit is None or visit.clients is None or not visit.clients.options.share:
        return None
    return visit.clients.load(visit.client_name)


def begin_request() -> ClientLoad | None:
    """
    Count a request of this task's client; the caller calls `answered` of the result. None: requests
    aren't limited.

    Raises:
        Busy: the client has as many requests in flight as it may.
    """
    visit = _current.get(None)
    if visit is None or visit.clients is None or not visit.clients.counts_requests:
        return None
    load = visit.clients.load(visit.client_name)
    load.begin()
    return load
