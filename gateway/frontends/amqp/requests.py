"""
Links of requests and of their replies: `$cbs`, and `$management` of each entity.

A reply goes to the link of the same session whose target is the request's `reply-to`, or else to
the one that is attached to the same node.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs

from gateway.domain.access import Right
from gateway.domain.errors import MessageError
from gateway.frontends.amqp.context import Context, Need
from gateway.wire.amqp.addresses import Node, NodeKind
from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    DispositionReceived,
    LinkAttached,
    LinkFlow,
    Rejected,
    SessionId,
    TransferReceived,
)
from gateway.wire.amqp.exchange import Dialect, Reply, Request, build_reply, parse_request

_CREDIT: Final = 100  # requests that a client may have under way on one link
_OWED: Final = 1000  # replies that may wait for a client to give credit
_ANY: Final = (Right.LISTEN, Right.SEND, Right.MANAGE)

Answer = Callable[[Request], Awaitable[Reply]]
"""Answers one request; what it raises is a bug."""


def _need(node: Node) -> Need | None:
    """Each request has to ask for more."""
    if node.entity is None:
        return None
    return Need(rights=_ANY, entity=node.entity, management=True)


@attrs.define(eq=False)
class ReplyLink:
    """A link on which a client gets replies."""

    _context: Context
    _attached: LinkAttached
    node: Node
    need: Need | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.need = _need(self.node)

    @property
    def session(self) -> SessionId:
        return self._attached.session

    @property
    def address(self) -> str | None:
        """Where the client says that it receives."""
        return self._attached.target.address if self._attached.target else None

    def open(self) -> None:
        self._context.engine.accept(self._attached.link, filters={})

    def send(self, payload: bytes) -> None:
        engine, link = self._context.engine, self._attached.link
        if engine.credit(link) <= -_OWED:
            # A detach would wait behind what is owed.
            text = f"{_OWED} replies wait for credit"
            error = AmqpError(condition="amqp:resource-limit-exceeded", description=text)
            self._context.nursery.start_soon(self._context.connection.close, error)
            return
        engine.send(link, self._context.new_id().bytes, payload, settled=True)

    def flow(self, event: LinkFlow) -> None:
        if event.drain:
            self._context.engine.drained(self._attached.link)

    def disposition(self, event: DispositionReceived) -> None:
        """Replies are settled when they are sent."""

    def end(self) -> None:
        """Replies that are on their way find no link."""


@attrs.define(eq=False)
class RequestLink:
    """A link on which a client sends requests."""

    _context: Context
    _attached: LinkAttached
    node: Node
    _answer: Answer
    need: Need | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.need = _need(self.node)

    @property
    def session(self) -> SessionId:
        return self._attached.session

    def open(self) -> None:
        engine, link = self._context.engine, self._attached.link
        engine.accept(link, max_message_size=self._context.options.max_message_size)
        engine.grant(link, _CREDIT)

    def transfer(self, event: TransferReceived) -> None:
        engine = self._context.engine
        try:
            request = parse_request(event.payload)
        except MessageError as error:
            reason = AmqpError(condition="amqp:decode-error", description=str(error))
            engine.settle(event.delivery, Rejected(error=reason))
            self._top_up()
            return
        engine.settle(event.delivery, ACCEPTED)
        self._context.pending.add(len(event.payload))
        self._context.nursery.start_soon(self._serve, request, len(event.payload))

    def end(self) -> None:
        """Requests that are under way end by themselves."""

    async def _serve(self, request: Request, size: int) -> None:
        try:
            reply = await self._answer(request)
        finally:
            self._context.pending.drop(size)
        is_tokens = self.node.kind is NodeKind.TOKENS
        reply_link = self._reply_link(request.reply_to)
        if reply_link is not None:
            reply_link.send(build_reply(reply, Dialect.CBS if is_tokens else Dialect.MANAGEMENT))
        self._top_up()

    def _reply_link(self, reply_to: str | None) -> ReplyLink | None:
        of_session = [
            link
            for link in self._context.links.values()
            if isinstance(link, ReplyLink) and link.session == self.session
        ]
        by_address = [link for link in of_session if reply_to and link.address == reply_to]
        same_node = [link for link in of_session if link.node == self.node]
        return next(iter((*by_address, *same_node)), None)

    def _top_up(self) -> None:
        engine, link = self._context.engine, self._attached.link
        missing = _CREDIT - engine.credit(link)
        if missing * 2 >= _CREDIT:
            engine.grant(link, missing)
