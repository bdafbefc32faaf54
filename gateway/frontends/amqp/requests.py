"""
Links for requests and replies: `$cbs`, and the `$management` of each entity.

A reply goes to the link of the same session whose target is the request's `reply-to`, or else to
the link that is attached to the same node.

A request in a transaction joins it at its arrival, so that a discharge right behind it finds it.

Requests of one connection take turns: few are answered at a time. A request whose reply may be
large isn't answered while too many replies wait for the client to read or to give credit, on this
connection or on all of its client together.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from gateway.domain.access import Right
from gateway.domain.errors import (
    BrokerError,
    Busy,
    InvalidRequest,
    MessageError,
    NotSupported,
    TransactionRolledBack,
    Unavailable,
)
from gateway.frontends.amqp.context import Context, Need, amqp_error, unreadable
from gateway.frontends.amqp.transactions import Transaction
from gateway.net.visits import PeekSlot, acquire_peek_slot, acquire_turn_to_show
from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    DeliveryState,
    DispositionReceived,
    LinkFlow,
    LinkId,
    Rejected,
    SessionId,
    TransactionalState,
    TransferReceived,
)
from gateway.wire.amqp.exchange import NodeRequest, Reply, ReplyDialect, build_reply, parse_request
from gateway.wire.amqp.management.requests import looks_only, may_answer_much, refusal_of
from gateway.wire.amqp.servicebus.links import Node, NodeKind

_CREDIT: Final = 100  # requests that a client may have in flight on one link
_OWED: Final = 1000  # replies that may wait for a client's credit
# maximum size of a request to $cbs: the client isn't authenticated yet
_TOKEN_SIZE: Final = 64 * 1024
_ANY: Final = (Right.LISTEN, Right.SEND, Right.MANAGE)

Answer = Callable[[NodeRequest, float], Awaitable[Reply]]
"""
Answers a request that was received at the given time (by Trio's clock). An exception is a bug.
"""

_Joined = Transaction | BrokerError | None
"""
The transaction of a request, or the error why it isn't part of any; None: the request names no
transaction.
"""


def _need(node: Node) -> Need | None:
    """Return None: each request is checked instead of the link."""
    if node.entity is None:
        return None
    return Need(rights=_ANY, entity=node.entity, management=True)


@attrs.define(eq=False)
class ReplyLink:
    """A link on which a client receives replies."""

    _context: Context
    id: LinkId
    session: SessionId
    node: Node
    address: str | None  # that the client gave as its own
    need: Need | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.need = _need(self.node)

    def open(self) -> None:
        self._context.engine.accept(self.id, filters={})

    def send(self, payload: bytes) -> None:
        engine, link = self._context.engine, self.id
        if engine.credit(link) <= -_OWED:
            # The link isn't detached, since a detach would wait behind the replies.
            text = f"{_OWED} replies wait for the link's credit"
            error = AmqpError(condition="amqp:resource-limit-exceeded", description=text)
            self._context.nursery.start_soon(self._context.connection.close, error)
            return
        engine.send(link, self._context.new_id().bytes, payload, settled=True)

    def flow(self, event: LinkFlow) -> None:
        if event.drain:
            self._context.engine.drained(self.id)

    def disposition(self, event: DispositionReceived) -> None:
        """Do nothing: replies are sent settled."""

    def stop(self) -> None:
        """Do nothing: replies that come later find no link."""


@attrs.define(eq=False)
class RequestLink:
    """A link on which a client sends requests."""

    _context: Context
    id: LinkId
    session: SessionId
    node: Node
    _answer: Answer
    need: Need | None = attrs.field(init=False)
    _under_way: int = attrs.field(default=0, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _looking: set[trio.CancelScope] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.need = _need(self.node)

    def open(self) -> None:
        engine, link = self._context.engine, self.id
        most = self._context.options.max_message_size
        engine.accept(link, max_message_size=min(most, _TOKEN_SIZE) if self._is_small else most)
        engine.grant(link, _CREDIT)

    def transfer(self, event: TransferReceived) -> None:
        if isinstance(event.state, TransactionalState) and self._is_small:
            error = NotSupported("a request to a node can't be part of a transaction")
            self._context.transactions.fail_if_open(event.state.txn_id, error)
            self._context.engine.settle(event.delivery, Rejected(error=amqp_error(error)))
            self._top_up()
            return
        joined = self._join(event)
        try:
            self._context.pending.begin(len(event.payload))
        except Busy as error:
            self._fail(joined, error)
            self._leave(joined)
            self._context.engine.settle(event.delivery, Rejected(error=amqp_error(error)))
            self._top_up()
            return
        self._under_way += 1
        self._context.nursery.start_soon(self._serve, event, joined)

    def stop(self) -> None:
        """End the link: requests that only read are cancelled, all others run to their end."""
        self._ended = True
        for scope in self._looking:
            scope.cancel()

    def _join(self, event: TransferReceived) -> _Joined:
        if not isinstance(event.state, TransactionalState):
            return None
        try:
            return self._context.transactions.join(event.state.txn_id)
        except TransactionRolledBack as error:
            return error

    def _fail(self, joined: _Joined, error: BrokerError) -> None:
        """Note that the request isn't done: its transaction can only be rolled back."""
        if isinstance(joined, Transaction):
            self._context.transactions.fail(joined, error)

    def _leave(self, joined: _Joined) -> None:
        """Note that the request has ended."""
        if isinstance(joined, Transaction):
            self._context.transactions.leave(joined)

    async def _serve(self, event: TransferReceived, joined: _Joined) -> None:
        since = trio.current_time()
        try:
            if self._of_tokens:  # answered at once
                await self._serve_in_turn(event, since, joined)
                return
            async with self._context.turns:
                if await self._serve_in_turn(event, since, joined) is not None:
                    return
            await self._serve_much(event, since, joined)
        finally:
            self._under_way -= 1
            self._leave(joined)
            self._context.pending.finish(len(event.payload))
            self._top_up()

    async def _serve_much(self, event: TransferReceived, since: float, joined: _Joined) -> None:
        """
        Answer a request that may have a large reply, when there is room for it, on the connection
        and among those of its client, and when it is the client's turn. The request holds none of
        the connection's turns while it waits.
        """
        connection = self._context.connection
        slot: PeekSlot | None = None
        try:
            slot = await acquire_peek_slot()
        except Busy as error:
            self._fail(joined, error)
            async with self._context.turns:
                await self._serve_in_turn(event, since, error, is_large=True)
            return
        try:
            while True:
                await connection.wait_for_room()
                if await self._has_served_large(event, since, joined):
                    break
            await connection.wait_for_room()
        finally:
            if slot is not None:
                slot.release()

    async def _has_served_large(
        self, event: TransferReceived, since: float, joined: _Joined
    ) -> bool:
        """Answer the request in the client's turn; False: there is no room on the connection."""
        turn, size = await acquire_turn_to_show(len(event.payload)), None
        try:
            async with self._context.turns:
                if self._context.connection.has_room:
                    size = await self._serve_in_turn(event, since, joined, is_large=True)
        finally:
            if turn is not None:
                turn.release(size or 0)
        return size is not None

    async def _serve_in_turn(
        self, event: TransferReceived, since: float, joined: _Joined, *, is_large: bool = False
    ) -> int | None:
        """
        Answer a request, and return the bytes of the reply; None, without an answer, if the reply
        may be large, unless `is_large`. The request is decoded here and not kept: a decoded value
        may take a hundred times its bytes.
        """
        engine = self._context.engine
        if self._ended:  # the reply couldn't be delivered
            self._fail(joined, Unavailable("the link of a request had ended"))
            return 0
        try:
            request = parse_request(event.payload)
        except MessageError as error:
            self._fail(joined, InvalidRequest(str(error)))
            engine.settle(event.delivery, Rejected(error=unreadable(error)))
            return 0
        if may_answer_much(request) and not is_large:
            return None
        taken: DeliveryState = ACCEPTED
        if isinstance(event.state, TransactionalState):
            request = attrs.evolve(request, txn_id=event.state.txn_id)
            taken = attrs.evolve(event.state, outcome=ACCEPTED)
        engine.settle(event.delivery, taken)
        with trio.CancelScope() as scope:
            if looks_only(request):
                self._looking.add(scope)
            try:
                reply = await self._reply_to(request, since, joined)
            finally:
                self._looking.discard(scope)
        reply_link = self._reply_link(request.reply_to)
        if reply_link is None or scope.cancelled_caught:
            return 0
        payload = build_reply(
            reply, ReplyDialect.CBS if self._of_tokens else ReplyDialect.MANAGEMENT
        )
        reply_link.send(payload)
        return len(payload)

    async def _reply_to(self, request: NodeRequest, since: float, joined: _Joined) -> Reply:
        if isinstance(joined, BrokerError):
            return refusal_of(request, joined)
        return await self._answer(request, since)

    @property
    def _is_small(self) -> bool:
        """True if replies are small, as those to tokens and to the namespace's management."""
        return self.node.entity is None

    @property
    def _of_tokens(self) -> bool:
        return self.node.kind is NodeKind.TOKENS

    def _reply_link(self, reply_to: str | None) -> ReplyLink | None:
        """
        The link with the address that the request names: of this session, or of another one, since
        Java's retired SDK has a session for each of its two links. Otherwise any link of this
        session to the same node.
        """
        links = [link for link in self._context.links.values() if isinstance(link, ReplyLink)]
        links.sort(key=lambda link: link.session != self.session)
        by_address = [link for link in links if reply_to and link.address == reply_to]
        same_node = [
            link for link in links if link.node == self.node and link.session == self.session
        ]
        return next(iter((*by_address, *same_node)), None)

    def _top_up(self) -> None:
        engine, link = self._context.engine, self.id
        free = _CREDIT - self._under_way - engine.credit(link)
        if free * 2 >= _CREDIT:
            engine.grant(link, free)
