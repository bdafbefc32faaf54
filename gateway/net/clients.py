"""
Limits of each client in this process, so that no client can take all resources from the others.

A client is a credential: the name of an access policy or a storage account, an identity of a token,
the subject of a certificate. Before a connection has shown a credential, and where none is needed,
the client is the connection's address.
"""

import math
from collections import Counter
from typing import Final

import attrs
import trio
from attrs import validators

from gateway.domain.access import ClientLimit
from gateway.domain.errors import Busy
from gateway.domain.option_fields import BYTES
from gateway.net.turns import Contention, Line, Waiters

RETRY_AFTER: Final = 10.0  # seconds; Service Bus asks its clients for as many
# Answers with peeked messages that one client has under way, until they are written. A peek locks
# nothing, so nothing else bounds their number: such an answer takes some 10 MiB while it is made.
MOST_PEEKS: Final = 4
PEEK_PATIENCE: Final = 10.0  # seconds that a peek waits for the others of its client
# Seconds after which a request waits for a primary or for a message, not for this process: several
# times what RabbitMQ takes on the same machine, or a store here to find nothing.
AWAITED: Final = 0.005
MOST_NAMES: Final = 32  # clients whose refusals are counted by name
# The text and code with which Service Bus throttles: SDKs recognize it by both.
_TEXT: Final = (
    "The request was terminated because the client is being throttled: it has {} {} already, the"
    " most allowed. Error code: 50002. Please wait 10 seconds and try again."
)


@attrs.frozen(kw_only=True)
class ClientOptions:
    """The limits of one client; 0: no limit."""

    max_connections: int = attrs.field(default=0, validator=validators.ge(0))
    # Requests of Service Bus REST and Storage Queue, and transfers over AMQP, without an answer
    # yet.
    max_requests: int = attrs.field(default=0, validator=validators.ge(0))
    # Bytes of bodies over HTTP that come after their head, and of messages over AMQP, in flight.
    max_bytes: int = attrs.field(
        default=64 * 1024 * 1024, validator=validators.ge(0), metadata=BYTES
    )
    # Requests in progress at a time while other clients have requests, too.
    share: int = attrs.field(default=16, validator=validators.ge(0))


@attrs.define(eq=False)
class ClientLoad:
    """
    The connections, requests and bytes of one client; forgotten when the client has none of them.
    """

    name: str
    clients: "Clients"
    connections: int = attrs.field(default=0, init=False)
    requests: int = attrs.field(default=0, init=False)
    bytes: int = attrs.field(default=0, init=False)
    line: Line = attrs.field(init=False)
    # Of the client's connections that have read much at once.
    reading: Line = attrs.field(init=False)
    # Of requests that wait for a primary, which answers them by itself, or for a message.
    awaiting: Line = attrs.field(init=False)
    _less: Waiters = attrs.field(factory=Waiters, init=False)
    _finishing: object | None = attrs.field(default=None, init=False)
    _peeks: trio.CapacityLimiter | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.line = Line(self.clients.contention, self.name, self._forget_if_idle)
        # A turn to read ends before its connection waits for anything, however busy the machine is.
        self.reading = Line(self.clients.contention, self.name, self._forget_if_idle, math.inf)
        self.awaiting = Line(self.clients.contention, self.name, self._forget_if_idle, AWAITED)

    def connect(self) -> None:
        """
        Count a connection.

        Raises:
            Busy: the client has as many connections as it may.
        """
        most = self.clients.options.max_connections
        if most and self.connections >= most:
            self._refuse(ClientLimit.CONNECTIONS, self.connections)
        self.connections += 1

    def disconnect(self) -> None:
        self.connections -= 1
        self._forget_if_idle()

    def begin(self, size: int = 0) -> None:
        """
        Count a request of `size` bytes. A request is never refused for its bytes: the code that
        reads them checks `is_full` before.

        Raises:
            Busy: the client has as many requests in flight as it may.
        """
        most = self.clients.options.max_requests
        if most and self.requests >= most:
            self._refuse(ClientLimit.REQUESTS, self.requests)
        self.requests += 1
        self.bytes += size

    def answered(self, size: int = 0, count: int = 1) -> None:
        """Note that the requests are answered."""
        self.requests -= count
        self.release(size)

    def hold(self, size: int) -> None:
        """Count bytes that are held without a request in flight."""
        self.bytes += size

    def release(self, size: int) -> None:
        """Subtract `size` bytes from the bytes in flight."""
        self.bytes -= size
        self._less.wake()
        self._forget_if_idle()

    def may_finish(self, connection: object) -> bool:
        """
        True if that connection may be read although the client is full, so that a message becomes
        whole: one at a time, until `finish`.
        """
        if self._finishing is None:
            self._finishing = connection
        return self._finishing is connection

    def finish(self, connection: object) -> None:
        """Note that the connection's messages are whole, or never will be."""
        if self._finishing is connection:
            self._finishing = None
            self._less.wake()

    async def acquire_peek(self, holder: object) -> None:
        """
        Return when the client has fewer than `MOST_PEEKS` answers with peeked messages under way;
        `holder` counts as one until `release_peek`.

        Raises:
            Busy: it has had as many for `PEEK_PATIENCE` seconds.
        """
        if self._peeks is None:
            self._peeks = trio.CapacityLimiter(MOST_PEEKS)
        with trio.move_on_after(PEEK_PATIENCE):
            await self._peeks.acquire_on_behalf_of(holder)
            return
        self._refuse(ClientLimit.PEEKS, MOST_PEEKS)

    def release_peek(self, holder: object) -> None:
        """Note that the answer is written, or won't be."""
        assert self._peeks is not None, "the holder has acquired it"
        self._peeks.release_on_behalf_of(holder)
        self._forget_if_idle()

    @property
    def is_full(self) -> bool:
        """True if no more bytes of the client may be read now."""
        return self.is_full_besides(0)

    def is_full_besides(self, size: int) -> bool:
        """True if the client would be full without `size` of its bytes in flight."""
        most = self.clients.options.max_bytes
        return bool(most) and self.bytes - size >= most

    async def wait_for_less(self) -> None:
        """Return after the end of the next request, or the next release of bytes."""
        await self._less.wait()

    def _refuse(self, limit: ClientLimit, number: int) -> None:
        self.clients.record_refused(self.name, limit)
        self._forget_if_idle()
        raise Busy(_TEXT.format(number, limit.value), retry_after=RETRY_AFTER)

    def _forget_if_idle(self) -> None:
        is_idle = self.line.is_idle and self.reading.is_idle and self.awaiting.is_idle
        is_idle = is_idle and (self._peeks is None or not self._peeks.borrowed_tokens)
        if not (self.connections or self.requests or self.bytes) and is_idle:
            self.clients.forget(self)


@attrs.define(eq=False)
class Clients:
    """The clients of one process, over all its endpoints."""

    options: ClientOptions = attrs.field(factory=ClientOptions)
    # By the client's name and the limit, since the start; the name is empty beyond `MOST_NAMES`.
    refused: Counter[tuple[str, ClientLimit]] = attrs.field(factory=Counter, init=False)
    contention: Contention = attrs.field(init=False)
    _loads: dict[str, ClientLoad] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.contention = Contention(self.options.share)

    def load(self, name: str) -> ClientLoad:
        """The load of the client with that name."""
        found = self._loads.get(name)
        if found is None:
            found = self._loads[name] = ClientLoad(name, self)
        return found

    def forget(self, load: ClientLoad) -> None:
        """Forget a client that has nothing in flight any more."""
        if self._loads.get(load.name) is load:
            del self._loads[load.name]

    def record_refused(self, name: str, limit: ClientLimit) -> None:
        """Count a refusal; memory stays bounded, however many names there are."""
        names = {known for known, _ in self.refused} - {""}
        is_known = name in names or len(names) < MOST_NAMES
        self.refused[name if is_known else "", limit] += 1

    @property
    def counts_requests(self) -> bool:
        return self.options.max_requests > 0
