"""
An outgoing AMQP connection and its links. Each wait ends with the peer's answer, or with the end of
the link or the connection, whichever comes first.

Each link has a session of its own, or shares a session with another link that belongs to it: an
error of one link must not end others, and some brokers end the whole session. Strangers share a
session only where the peer allows no further one. Sessions are reused, because an end followed by a
begin would share a channel number, and RabbitMQ may send its answers to the two in the wrong order.
"""

import ssl
import sys
from typing import Final, Self

import trio

from gateway.domain.errors import BrokerError, NotAuthorized
from gateway.net.amqp.connection import AmqpConnection, AmqpConnectionOptions
from gateway.net.dialing import late_refusal
from gateway.wire.amqp.conditions import (
    error_from_condition,
    refusal_from_condition,
    refusal_of_connection,
)
from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import (
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    LinkId,
    NewLink,
    SessionClosed,
    SessionId,
    TransferReceived,
)
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import Credentials, SaslClient

_HIGH_WATER: Final = 4 * 1024 * 1024  # bytes that wait to be written
_CLOSE_TIMEOUT: Final = 2.0  # seconds: a peer that is alive answers a close within a round trip
_FORCED: Final = "amqp:connection:forced"


class AmqpClient:
    """A client's connection to a broker."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        name: str,
        hostname: str,
        credentials: Credentials,
        options: EngineOptions,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """
        `name` is for error texts; `hostname` is the peer's name in the open frame; `tls` is the
        context of the stream.
        """
        self.name = name
        self._tls = tls
        self.links: dict[LinkId, ClientLink] = {}
        self.leaving: dict[LinkId, trio.Event] = {}  # set when the peer has detached, too
        self.opened: ConnectionOpened | None = None
        self.end: AmqpError | None = None  # why the connection has ended
        self._spare: list[SessionId] = []  # sessions without links
        self._users: dict[SessionId, int] = {}  # of the others
        self._hostname = hostname
        self._told = trio.Event()
        self._ended = trio.Event()
        self._connection = AmqpConnection(
            stream,
            engine=options,
            sasl=SaslClient(credentials, hostname=hostname),
            options=AmqpConnectionOptions(
                close_timeout=_CLOSE_TIMEOUT,
                # Limited by credit. If reading paused, the answers to settlements would wait, too.
                max_unsettled=sys.maxsize,
                high_water=_HIGH_WATER,
            ),
        )

    @property
    def engine(self) -> Engine:
        return self._connection.engine

    @property
    def free_sessions(self) -> int:
        """The sessions without links that the connection has, or may begin."""
        return len(self._spare) + self.engine.free_sessions

    def acquire_session(self) -> SessionId:
        """Return a session without links; the one with the fewest users if there is none."""
        if self._spare:
            session = self._spare.pop()
        elif self.engine.free_sessions > 0 or not self._users:
            session = self.engine.begin()
        else:
            session = min(self._users, key=self._users.__getitem__)
        self._users[session] = self._users.get(session, 0) + 1
        return session

    def release_session(self, session: SessionId, *, is_spent: bool = False) -> None:
        """
        Take back a session from one of its users, who has no links there any more; one that is
        spent ends with its last user.
        """
        left = self._users.pop(session, 0) - 1
        if left > 0:
            self._users[session] = left
        elif left == 0 and is_spent:
            self.engine.end(session)
        elif left == 0:  # otherwise the peer has ended it
            self._spare.append(session)

    async def run(self) -> None:
        """Run the connection to its end, of whatever kind. The stream is closed then."""
        self.engine.open(hostname=self._hostname)
        await self._connection.run(self._handle)

    async def wait_opened(self) -> ConnectionOpened:
        """
        Return the peer's open frame.

        Raises:
            NotAuthorized: the peer refuses the login.
            Untrusted: it refuses the client certificate.
            Unreachable: the connection ended. Nothing was sent.
        """
        await self._told.wait()
        if self.opened is None:
            assert self.end is not None, "one of both was told"
            refused = late_refusal(self.name, self._tls, self._connection.broken)
            if refused is not None:
                raise refused
            raise refusal_of_connection(self.end.condition, self.end.description)
        return self.opened

    @property
    def is_full(self) -> bool:
        """
        True if the bytes that wait to be written are so many that a large message should wait, too.
        """
        return self.engine.unsent >= _HIGH_WATER

    async def wait_for_room(self) -> None:
        """Wait until there is room again, or the connection ends."""
        await self._connection.wait_for_room()

    async def wait_ended(self) -> None:
        """Return when the connection has ended; `end` says why."""
        await self._ended.wait()

    async def close(self) -> None:
        """
        Close in order; return when the connection has ended. A peer that doesn't answer is cut off.
        """
        await self._connection.close()

    def _handle(self, event: Event) -> None:
        match event:
            case TransferReceived() | DispositionReceived() | LinkFlow() | LinkDrained():
                link = self.links.get(event.link)
                if link is not None:
                    link.handle(event)
            case _:
                self._handle_rare(event)

    def _handle_rare(self, event: Event) -> None:
        match event:
            case LinkAttached():
                self._attached(event)
            case LinkDetached(link=id_, error=error):
                if (link := self.links.pop(id_, None)) is not None:
                    link.over(error or _ended(f"{self.name}: the link was detached"))
                elif (answered := self.leaving.get(id_)) is not None:
                    answered.set()
            case SessionClosed():
                self._users.pop(event.session, None)
                self._spare = [each for each in self._spare if each != event.session]
            case ConnectionOpened():
                self.opened = event
                self._told.set()
            case ConnectionClosed():
                self._over(_end_of(self.name, event))

    def _attached(self, event: LinkAttached) -> None:
        link = self.links.get(event.link)
        if link is not None:
            link.attached(event)
        else:  # a link that the peer has opened: a client serves no links
            error = AmqpError(condition="amqp:not-implemented", description="This is a client.")
            self.engine.refuse(event.link, error)

    def _over(self, error: AmqpError) -> None:
        self.end = error
        self._told.set()
        self._ended.set()
        links = list(self.links.values())
        self.links.clear()
        for link in links:
            link.over(error)
        for answered in self.leaving.values():
            answered.set()


def _end_of(name: str, event: ConnectionClosed) -> AmqpError:
    """
    The reason why a connection ended. A condition that means "busy", "full" or "not allowed" for a
    link is about the whole connection here: an outage, unless the login is refused.
    """
    error = event.error
    if error is None:
        return _ended(f"{name}: the connection was lost")
    if event.is_broken:
        return _ended(f"{name}: {error.description}")
    refusal = refusal_of_connection(error.condition, error.description)
    if isinstance(refusal, NotAuthorized) or error.condition == _FORCED:
        return error
    return _ended(f"{name}: {refusal}")


def _ended(text: str) -> AmqpError:
    return AmqpError(condition=_FORCED, description=text)


class ClientLink:
    """
    A link that this side has opened. Once `why` is set, the link is void.

    The maker of a link also calls `close`, or is told by `over` that the link has ended.
    """

    ends_session = False  # the link's own session ends with it

    def __init__(self, client: AmqpClient, new: NewLink, session: SessionId | None = None) -> None:
        """
        Attach a link.

        Raises:
            Unavailable: the connection has ended.
        """
        self.name = new.name
        node = new.target if new.we_send else new.source
        self.address = node.address if node else None  # of the peer's end
        self.answer: LinkAttached | None = None
        self.why: AmqpError | None = None
        self.client = client
        self._changed = trio.lowlevel.ParkingLot()
        self._owns_session = session is None
        self.session = client.acquire_session() if session is None else session
        id_ = client.engine.attach(self.session, new) if client.end is None else None
        if id_ is None:
            end = client.end or _ended(f"{client.name}: the session has ended")
            raise refusal_from_condition(end.condition, end.description)
        self.id = id_
        client.links[id_] = self

    @property
    def engine(self) -> Engine:
        return self.client.engine

    async def wait_attached(self) -> LinkAttached:
        """
        Return the peer's answer, if it isn't a refusal.

        Raises:
            BrokerError: the peer refused; nothing was sent.
        """
        await trio.lowlevel.checkpoint()
        while self.why is None and (self.answer is None or self._is_refusal(self.answer)):
            await self._changed.park()  # the reason of a refusal follows
        if self.answer is None or self.why is not None:
            raise self.refusal()
        return self.answer

    async def once_attached(self) -> Self:
        """Return this link once `wait_attached` returns; close it if that raises."""
        try:
            await self.wait_attached()
        except BaseException:
            self.close()
            raise
        return self

    def refusal(self) -> BrokerError:
        """The error for an operation that wasn't handed over to this void link."""
        assert self.why is not None, "it isn't void"
        return refusal_from_condition(self.why.condition, self.why.description)

    def failure(self) -> BrokerError:
        """The error of the link itself, by its condition."""
        assert self.why is not None, "it isn't void"
        return error_from_condition(self.why.condition, self.why.description)

    def close(self, *, because: AmqpError | None = None) -> None:
        """Detach, unless the link is void; afterwards the link is void, for the given reason."""
        if self.why is None:
            self.client.links.pop(self.id, None)
            self.engine.detach(self.id)
            self.over(because or _ended("the link was closed"))

    async def detach(self) -> None:
        """
        As `close`, and return when the peer has answered, or can't answer any more. If cancelled,
        the link is void, too. The caller sets the deadline.
        """
        if self.why is not None:
            await trio.lowlevel.checkpoint()
            return
        answered = self.client.leaving[self.id] = trio.Event()
        self.engine.detach(self.id, awaited=True)
        self.close()
        try:
            await answered.wait()
        finally:
            del self.client.leaving[self.id]

    def attached(self, answer: LinkAttached) -> None:
        self.answer = answer
        self._changed.unpark_all()

    def over(self, why: AmqpError) -> None:
        """Note that the link is void, and wake its waiters."""
        self.why = why
        self._changed.unpark_all()
        if self._owns_session:
            self.client.release_session(self.session, is_spent=self.ends_session)

    def handle(self, event: Event) -> None:
        """Handle any other event of this link."""

    def _is_refusal(self, answer: LinkAttached) -> bool:
        return (answer.target if answer.we_send else answer.source) is None
