"""
Asks the gateway, or the process of this one, that holds a delivery to settle it, and the orderer of
a key to send its messages.

    no connection       nothing was asked: the lock is lost, as far as the client is concerned; or
                        nothing was sent
    no answer           the outcome is unknown, and stays so
    an answer           the other gateway's own result, or its error
"""

import math
import random
import select
from bisect import insort
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Final

import attrs
import trio

from gateway.deadlines import answered_within
from gateway.domain.errors import (
    BrokerError,
    Busy,
    HolderSilent,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    MessageTooLarge,
    NoAnswer,
    NotOrderer,
    OutcomeUnknown,
    TooLargeToForward,
    Unavailable,
    Unreachable,
)
from gateway.domain.message import AcceptedBy
from gateway.extensions.cluster.channel import Channel, connect
from gateway.extensions.cluster.events import PeerFound, PeerLost
from gateway.extensions.cluster.handshake import ChannelError, ClientHandshake
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.cluster.requests import (
    LARGEST,
    ForwardSend,
    HeldAnswer,
    HeldRequest,
    News,
    build_request,
    parse_answer,
)
from gateway.net.dialing import FAILURES, failure_of
from gateway.net.direct import socket_of
from gateway.ports import Observer

IDLE_SECONDS: Final = 30.0  # after which a connection is not used again
AFTER_SILENCE: Final = 1.0  # seconds for which a peer that didn't connect in time isn't tried again
AFTER_TAKE_OVER: Final = 1.0  # seconds: an older connection may reach a process that was replaced
_NOT_HELD: Final = (LockLost, MessageNotFound, NotOrderer)  # certainly nothing was done
# Of a forwarded send's time, for the orderer: the rest is for the way there and back.
ORDERERS_SHARE: Final = 0.9

Dial = Callable[[str], Awaitable[trio.abc.Stream]]
"""Connects to an address; raises one of `gateway.net.dialing.FAILURES`."""

Content = Callable[[], bytes]
"""Makes a request that is about to leave, over a connection that is there."""


@attrs.define(eq=False)
class _Request:
    """A request that leaves once for each process that is asked."""

    make: Content
    not_sent: Callable[[], object] = lambda: None  # called if a request that left did nothing
    error: type[BrokerError] = attrs.field(default=LockLost, init=False)  # if its time ends now

    def content(self) -> bytes:
        content, self.error = self.make(), HolderSilent
        return content

    def did_nothing(self) -> None:
        self.error = LockLost
        self.not_sent()


@attrs.define(eq=False)
class _Connection:
    channel: Channel
    made: float = attrs.field(factory=trio.current_time)
    idle_since: float | None = None  # None: it is new

    def is_usable(self) -> bool:
        """False if the peer has ended it, or it has been idle for too long."""
        if self.idle_since is not None and trio.current_time() - self.idle_since > IDLE_SECONDS:
            return False
        stream = socket_of(self.channel.stream)
        if stream is None:  # in tests
            return True
        poll = select.poll()
        poll.register(stream.socket.fileno(), select.POLLIN)
        return not poll.poll(0)


@attrs.define(eq=False)
class Peer:
    """
    The connections to one peer: each carries one request at a time.

    After a take-over, some of them reach the old process of the gateway and others its new one.
    Each process holds deliveries of its own, and answers that those of the other one are lost.
    """

    address: str
    _options: ClusterOptions
    _dial: Dial
    _rng: random.Random
    _observer: Observer
    _idle: list[_Connection] = attrs.field(factory=list, init=False)  # the newest is last
    _is_closed: bool = attrs.field(default=False, init=False)  # connections aren't used again
    _slots: trio.Semaphore = attrs.field(init=False)
    _sends: trio.Semaphore = attrs.field(init=False)  # slots that forwarded sends may take
    _silent_until: float = attrs.field(default=-math.inf, init=False)
    _why: str = attrs.field(default="", init=False)  # it can't be reached; empty: it can

    @_slots.default
    def _all_slots(self) -> trio.Semaphore:
        return trio.Semaphore(self._options.max_requests)

    @_sends.default
    def _slots_for_sends(self) -> trio.Semaphore:
        return trio.Semaphore(max(1, self._options.max_requests // 2))

    async def ask(self, request: HeldRequest | News, *, connects: bool = False) -> HeldAnswer:
        """
        Return the peer's answer. With `connects` the request goes over a new connection: to the new
        process, after a take-over.

        Raises:
            LockLost: the peer can't be asked; nothing was sent.
            Busy: too many requests to it are under way; nothing was sent.
            HolderSilent: it was asked, and didn't answer in time, or its answer was no answer.
            BrokerError: its own error.
        """
        content, until = build_request(request), trio.current_time() + self._options.timeout
        answer = await self._asked(_Request(lambda: content), until, connects=connects)
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    async def forward(
        self,
        make: Callable[[float], ForwardSend],
        seconds: float,
        *,
        not_sent: Callable[[], object],
    ) -> AcceptedBy:
        """
        As `OrderPeers.forward`. A send waits for its turn among those to this peer, and for a
        connection; `make` then makes it, with so many seconds for the orderer.
        """
        until = trio.current_time() + seconds
        if not await self._acquire_turn(until):
            raise Unavailable(f"{self.address}: too many sends to it are under way")

        def content() -> bytes:
            left = max(until - trio.current_time(), 0.0)
            return build_request(make(left * ORDERERS_SHARE))

        try:
            return await self._forwarded(_Request(content, not_sent), until)
        finally:
            self._sends.release()

    async def _acquire_turn(self, until: float) -> bool:
        with trio.move_on_at(until):
            await self._sends.acquire()
            return True
        return False

    async def _forwarded(self, request: _Request, until: float) -> AcceptedBy:
        try:
            answer = await self._asked(request, until)
        except MessageTooLarge as error:
            raise TooLargeToForward(str(error)) from error
        except (LockLost, Busy) as error:  # Busy: with requests that it doesn't answer
            raise Unreachable(str(error)) from error
        except HolderSilent as error:
            raise NoAnswer(str(error)) from error
        if isinstance(answer, HolderSilent):
            raise OutcomeUnknown(str(answer))
        if isinstance(answer, BrokerError):
            raise answer
        if answer.accepted_by is None:
            raise NoAnswer(f"{self.address}: its answer doesn't say who accepted the send")
        return answer.accepted_by

    async def _asked(
        self, request: _Request, until: float, *, connects: bool = False
    ) -> HeldAnswer | BrokerError:
        """The peer's answer, until then. Raises as `ask`, without the peer's own error."""
        await self._acquire_slot(until)
        try:
            seconds, at = until - trio.current_time(), self.address
            with answered_within(
                seconds, "of the peer", at=at, error=lambda text: request.error(text)
            ):
                return await self._answer(request, connects=connects)
        except HolderSilent:
            # The peer's machine may be gone, which the idle connections don't show, but a new one
            # does.
            for each in self._idle:
                each.idle_since = -math.inf
            raise
        finally:
            self._slots.release()

    async def _answer(self, request: _Request, *, connects: bool) -> HeldAnswer | BrokerError:
        """The answer of the process that holds the delivery, as far as there is one."""
        while True:
            connection = await self._acquire(connects=connects)
            is_new = connection.idle_since is None
            answer = await self._exchange(connection, request)
            if answer is not None:
                break
            if is_new:
                raise self._gone("it has ended the connection")
        if not isinstance(answer, _NOT_HELD):
            return answer
        return await self._answer_of_another(connection.made, request) or answer

    async def _answer_of_another(
        self, made: float, request: _Request
    ) -> HeldAnswer | BrokerError | None:
        """
        The answer of another process of this gateway, after that over a connection made then; None:
        there is none. The oldest connection reaches an old process, a new one the new process.
        """
        await self.close_unused()
        if self._idle and self._idle[0].made < made:
            answer = await self._exchange(self._idle.pop(0), request)
            if answer is not None and not isinstance(answer, _NOT_HELD):
                return answer
        # Or clients with locks that have expired would cost a handshake with each request.
        if trio.current_time() - made < AFTER_TAKE_OVER:
            return None
        try:
            connection = _Connection(await self._connect())
        except LockLost:
            return None
        return await self._exchange(connection, request)

    async def _exchange(
        self, connection: _Connection, request: _Request
    ) -> HeldAnswer | BrokerError | None:
        """The answer; None: the connection doesn't take the whole request, and is closed."""
        answer = None
        try:
            if await _sent(connection.channel, request.content()):
                answer = await self._received(connection.channel)
                connection.idle_since = trio.current_time()
        except BaseException:
            await trio.aclose_forcefully(connection.channel.stream)
            raise
        if answer is None or isinstance(answer, _NOT_HELD):
            request.did_nothing()
        if answer is None or self._is_closed:
            await _close([connection])
            return answer
        insort(self._idle, connection, key=attrgetter("made"))
        if len(self._idle) > self._options.max_requests:
            await _close([self._idle.pop(0)])
        return answer

    async def close_unused(self) -> None:
        """Close the connections that are idle for too long, or that the peer has ended."""
        unused = [each for each in self._idle if not each.is_usable()]
        self._idle = [each for each in self._idle if each not in unused]
        await _close(unused)

    async def aclose(self) -> None:
        """Close the connections that no request uses, and each other one after its request."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        await _close(idle)

    async def _acquire_slot(self, until: float) -> None:
        with trio.move_on_at(min(until, trio.current_time() + self._options.connect_timeout)):
            await self._slots.acquire()
            return
        raise Busy(f"{self.address}: {self._options.max_requests} requests are under way")

    async def _acquire(self, *, connects: bool) -> _Connection:
        """The newest connection that no request uses, or another one; with `connects`, always."""
        while self._idle and not connects:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            await _close([connection])
        return _Connection(await self._connect())

    async def _connect(self) -> Channel:
        if trio.current_time() < self._silent_until:
            raise self._gone(self._why)
        seconds = self._options.connect_timeout
        with trio.move_on_after(seconds):
            channel = await self._handshake()
            if self._why:
                self._why = ""
                self._observer.report(PeerFound(peer=self.address))
            return channel
        self._silent_until = trio.current_time() + AFTER_SILENCE
        raise self._gone(f"it didn't connect within {seconds:g} s")

    async def _handshake(self) -> Channel:
        try:
            stream = await self._dial(self.address)
        except FAILURES as error:
            raise self._gone(str(failure_of(self.address, error))) from error
        handshake = ClientHandshake(self._options.secrets[0], self.address, self._rng)
        try:
            return await connect(stream, handshake)
        except (ChannelError, trio.BrokenResourceError) as error:
            await trio.aclose_forcefully(stream)
            raise self._gone(str(error)) from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    def _gone(self, why: str) -> LockLost:
        if not self._why:
            self._observer.report(PeerLost(peer=self.address, reason=why))
        self._why = why
        return LockLost(f"{self.address} can't be asked: {why}")

    async def _received(self, channel: Channel) -> HeldAnswer | BrokerError:
        try:
            answer = await channel.receive(LARGEST)
            if answer is None:
                raise HolderSilent(f"{self.address}: the connection ended without an answer")
            return parse_answer(answer)
        except (ChannelError, InvalidRequest, trio.BrokenResourceError) as error:
            raise HolderSilent(f"{self.address}: no whole answer: {error}") from error


async def _close(connections: Sequence[_Connection]) -> None:
    """Close them all, also if cancelled."""
    with trio.CancelScope(shield=True):
        for each in connections:
            await trio.aclose_forcefully(each.channel.stream)


async def _sent(channel: Channel, content: bytes) -> bool:
    """
    False if the connection broke before the system had taken the whole frame: then the peer never
    opens it, and nothing was asked.
    """
    try:
        await channel.send(content)
    except (trio.BrokenResourceError, trio.ClosedResourceError, ChannelError):
        return False
    return True
