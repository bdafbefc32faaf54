"""
Ends links and connections that aren't allowed any more, or idle, without an action of their client.
"""

import math
from typing import Final

import attrs
import trio

from gateway.domain.errors import NotAuthorized
from gateway.frontends.amqp.context import Context, amqp_error
from gateway.frontends.amqp.incoming import IncomingLink
from gateway.frontends.auth import Authorizer
from gateway.net.visits import FIRST_ON_ITS_WAY, ON_ITS_WAY
from gateway.wire.amqp.events import AmqpError

# Seconds: beyond it, a slow namespace would delay the others' answers.
_LONGEST_SILENCE: Final = 1.0


@attrs.define(eq=False)
class FrontendDrain:
    """Closes the connections of a front end on request."""

    begun: bool = attrs.field(default=False, init=False)
    _watches: "set[ConnectionWatch]" = attrs.field(factory=set, init=False)

    def begin(self) -> None:
        """Accept nothing new, and close each connection when its pending answers are sent."""
        self.begun = True
        for watch in self._watches:
            watch.drain()

    def add(self, watch: "ConnectionWatch") -> None:
        self._watches.add(watch)
        if self.begun:
            watch.drain()

    def discard(self, watch: "ConnectionWatch") -> None:
        self._watches.discard(watch)


@attrs.define(eq=False)
class ConnectionWatch:
    """
    Ends links whose tokens have expired, connections without links, and everything when the gateway
    drains. The watch has no task: the connection's ticks call it.
    """

    _context: Context
    _authorizer: Authorizer
    _drain: FrontendDrain
    _look_at: float = attrs.field(default=math.inf, init=False)  # when a token may have expired
    # when to close the connection if it has no links by then
    _idle_at: float = attrs.field(default=math.inf, init=False)
    # when the connection began or was opened, or a link was attached, opened or ended last
    _changed_at: float = attrs.field(default=-math.inf, init=False)
    _closing: trio.CancelScope | None = attrs.field(default=None, init=False)

    def begin(self) -> None:
        """Watch until `stop`."""
        self._context.connection.on_tick = self._tick
        self._context.tokens.on_added = self._record_token
        self._context.on_opened = self.record_change
        self._authorizer.subscribe(self._record_policies)
        self._drain.add(self)
        self.record_change()

    def stop(self) -> None:
        self._authorizer.unsubscribe(self._record_policies)
        self._drain.discard(self)
        if self._closing is not None:
            self._closing.cancel()

    def record_change(self) -> None:
        """
        Note that the connection has begun or is open, or that a link was attached, is open or has
        ended.
        """
        timeout = self._context.options.idle_links_timeout
        self._changed_at = trio.current_time()
        self._idle_at = math.inf if self._context.links else self._changed_at + timeout
        if self._closing is not None:
            self._context.connection.speak_once()
        self._set_next_look()

    def drain(self) -> None:
        """Note that the gateway drains."""
        self._close_soon("The gateway is being shut down.", answers_all=True)

    def _record_token(self) -> None:
        """Note that a token was added: from now on the client may send large messages."""
        self._context.engine.allow_partial(self._context.options.max_partial)
        self._set_next_look()

    def _record_policies(self) -> None:
        """Note that the access policies have changed."""
        self._look_at = -math.inf
        self._context.connection.tick_by(self._look_at)

    def _set_next_look(self) -> None:
        left = self._context.tokens.seconds_left()
        self._look_at = min(self._idle_at, trio.current_time() + left)
        self._context.connection.tick_by(self._look_at)

    def _tick(self) -> float:
        """
        End links and connections that aren't allowed any more; return the time of the next check.
        """
        now = trio.current_time()
        if self._closing is not None:
            return math.inf
        if now >= self._idle_at:
            self._close_soon("The connection was without links for too long.")
        elif now >= self._look_at:
            self._context.tokens.drop_expired()
            self._stop_unauthorized()
            self._set_next_look()
        return self._look_at

    def _close_soon(self, why: str, *, answers_all: bool = False) -> None:
        if self._closing is None:
            self._closing = trio.CancelScope()
            self._look_at = self._idle_at = math.inf
            self._context.nursery.start_soon(self._close, self._closing, why, answers_all)

    async def _close(self, scope: trio.CancelScope, why: str, answers_all: bool) -> None:
        with scope:
            if answers_all:
                await self._answer_all()
            self._context.closed = True
            await self._context.connection.close(
                AmqpError(condition="amqp:connection:forced", description=why)
            )

    async def _answer_all(self) -> None:
        """
        Return when everything that clients have sent is answered.

        The answers are written together with the close. A client that sends again after each answer
        would otherwise always have a message in flight that is never answered; Node's SDK waits for
        such a message until its timeout, and then may end its process.

        The answer to an attach is written at once. Node's SDK sends as soon as it has a link, even
        if a close came with the link, and waits for that message until its timeout. So a client
        that is setting up a connection or a link gets the time to send one message on it.
        """
        connection, pending = self._context.connection, self._context.pending
        latest = trio.current_time() + FIRST_ON_ITS_WAY
        is_changing = True
        while is_changing and trio.current_time() < latest:
            changed_at = self._changed_at
            until = changed_at + ON_ITS_WAY
            if self._incoming:
                connection.be_silent()
                until = trio.current_time() + ON_ITS_WAY
            await trio.sleep_until(until)
            is_opening = any(not link.is_open for link in self._incoming)
            is_changing = is_opening or changed_at != self._changed_at
        with trio.move_on_after(_LONGEST_SILENCE):
            await pending.wait_until_none()
        if pending.count:
            connection.speak()  # a slow namespace delays no other answers
        await pending.wait_until_none()

    @property
    def _incoming(self) -> list[IncomingLink]:
        links = self._context.links.values()
        return [link for link in links if isinstance(link, IncomingLink)]

    def _stop_unauthorized(self) -> None:
        for link_id, link in list(self._context.links.items()):
            try:
                if link.need is not None:
                    self._context.check(link.need)
            except NotAuthorized as error:
                self._context.detach(link_id, amqp_error(error))
