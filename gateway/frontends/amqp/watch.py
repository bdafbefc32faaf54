"""What ends links and connections although their client has done nothing."""

import math

import attrs
import trio

from gateway.domain.errors import NotAuthorized
from gateway.frontends.amqp.context import Context
from gateway.frontends.amqp.errors import amqp_error
from gateway.frontends.auth import Authorizer
from gateway.wire.amqp.events import AmqpError


@attrs.define(eq=False)
class Watch:
    """Ends links whose tokens have expired, connections without links, and all when draining."""

    _context: Context
    _authorizer: Authorizer
    _drain: trio.Event
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _idle: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _expiry: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def run(self) -> None:
        """Return when the connection is over, or as good as."""
        await trio.lowlevel.checkpoint()
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_links)
                nursery.start_soon(self._watch_tokens)
                nursery.start_soon(self._watch_drain)

    def end(self) -> None:
        self._scope.cancel()

    def note_links(self) -> None:
        """There is one more link, or one less."""
        timeout = self._context.options.idle_links_timeout
        self._idle.deadline = math.inf if self._context.links else trio.current_time() + timeout

    def note_tokens(self) -> None:
        """There is another token."""
        self._expiry.deadline = trio.current_time() + self._context.tokens.seconds_left()

    async def _watch_links(self) -> None:
        await trio.lowlevel.checkpoint()
        with self._idle:
            self.note_links()
            await trio.sleep_forever()
        await self._close("The connection was without links for too long.")

    async def _watch_tokens(self) -> None:
        while True:
            replaced = self._authorizer.replaced
            with trio.move_on_after(self._context.tokens.seconds_left()) as self._expiry:
                await replaced.wait()
            self._context.tokens.drop_expired()
            for link_id, link in list(self._context.links.items()):
                try:
                    if link.need is not None:
                        self._context.check(link.need)
                except NotAuthorized as error:
                    self._context.detach(link_id, amqp_error(error))

    async def _watch_drain(self) -> None:
        await self._drain.wait()
        await self._context.pending.wait_until_none()
        await self._close("The gateway is being shut down.")

    async def _close(self, why: str) -> None:
        await self._context.connection.close(
            AmqpError(condition="amqp:connection:forced", description=why)
        )
