"""
Ends links and connections that aren't allowed any more, or idle, without an action of their client.
"""

import math
from typing import Final

import attrs
import trio

from gateway.domain.errors import NotAuthorized
from gateway.frontends.amqp.context import Context
from gateway.frontends.amqp.errors import amqp_error
from gateway.frontends.amqp.incoming import IncomingLink
from gateway.frontends.auth import Authorizer
from gateway.wire.amqp.events import AmqpError

_ON_ITS_WAY: Final = 0.3  # seconds for what a client has sent to arrive, before it misses an answer
_LONGEST_SILENCE: Final = 1.0  # seconds


@attrs.define(eq=False)
class Watch:
    """
    Ends links whose tokens have expired, connections without links, and everything when the gateway
    drains.
    """

    _context: Context
    _authorizer: Authorizer
    _drain: trio.Event
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _waiting: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # when to close the connection if it has no links by then
    _idle_at: float = attrs.field(default=math.inf, init=False)

    async def run(self) -> None:
        """Return when the connection is closing or closed."""
        await trio.lowlevel.checkpoint()
        self._authorizer.tell(self._look)
        try:
            with self._scope:
                await self._close(await self._reason())
        finally:
            self._authorizer.tell_no_more(self._look)

    def end(self) -> None:
        self._scope.cancel()

    def note_links(self) -> None:
        """A link was attached or ended."""
        timeout = self._context.options.idle_links_timeout
        self._idle_at = math.inf if self._context.links else trio.current_time() + timeout
        self.note_tokens()

    def note_tokens(self) -> None:
        """A token was added."""
        self._waiting.deadline = self._next()

    def _look(self) -> None:
        """The access policies have changed."""
        self._waiting.cancel()

    async def _reason(self) -> str:
        """
        Wait until the connection has to be closed, and return the reason; end unauthorized links
        meanwhile.
        """
        self.note_links()
        while trio.current_time() < self._idle_at:
            with trio.move_on_at(self._next()) as self._waiting:
                await self._drain.wait()
                await self._answer_all()
                return "The gateway is being shut down."
            self._context.tokens.drop_expired()
            self._end_unauthorized()
        return "The connection was without links for too long."  # noqa: ASYNC910

    async def _answer_all(self) -> None:
        """
        Return when everything that clients have sent is answered.

        The answers are written together with the close. A client that sends again after each answer
        would otherwise always have a message in flight that is never answered; Node's SDK waits for
        such a message until its timeout, and then may end its process.
        """
        connection, pending = self._context.connection, self._context.pending
        if any(isinstance(link, IncomingLink) for link in self._context.links.values()):
            connection.be_silent()
            await trio.sleep(_ON_ITS_WAY)
        with trio.move_on_after(_LONGEST_SILENCE):
            await pending.wait_until_none()
        if pending.count:
            connection.speak()  # a slow namespace delays no other answers
        await pending.wait_until_none()

    def _next(self) -> float:
        return min(self._idle_at, trio.current_time() + self._context.tokens.seconds_left())

    def _end_unauthorized(self) -> None:
        for link_id, link in list(self._context.links.items()):
            try:
                if link.need is not None:
                    self._context.check(link.need)
            except NotAuthorized as error:
                self._context.detach(link_id, amqp_error(error))

    async def _close(self, why: str) -> None:
        self._context.closed = True
        await self._context.connection.close(
            AmqpError(condition="amqp:connection:forced", description=why)
        )
