"""Context that all links of one connection share, and the AMQP conditions of a broker's errors."""

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import attrs
import trio

from gateway.capabilities.settling import SettlementDoubts
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    MessageError,
    NotAuthorized,
    Unavailable,
    drop_tracebacks,
)
from gateway.domain.message import Message, derive_message
from gateway.domain.topics.property_values import check_sent
from gateway.frontends.amqp.pending import Pending
from gateway.frontends.amqp.tokens import ConnectionTokens
from gateway.frontends.amqp.transactions import Transactions
from gateway.frontends.leasing import Leasing
from gateway.frontends.options import AmqpOptions
from gateway.frontends.outages import Outages
from gateway.net.amqp.connection import AmqpConnection
from gateway.ports import Broker, WallClock
from gateway.wire.amqp.conditions import DETACH_FORCED, condition_of
from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import AmqpError, LinkId, SessionId
from gateway.wire.amqp.frames import DECODE_ERROR
from gateway.wire.servicebus.sentences import sentence_of


@attrs.frozen(kw_only=True)
class Need:
    """The permission that a link's client must have for as long as the link lives."""

    rights: tuple[Right, ...]  # any of the rights is enough
    entity: EntityPath
    # The link is to the entity's `$management` node: a token for that address suffices.
    management: bool = False


def need_to_send(entity: EntityPath) -> Need:
    return Need(rights=(Right.SEND,), entity=entity)


def need_to_receive(entity: EntityPath) -> Need:
    return Need(rights=(Right.LISTEN,), entity=entity)


class Link(Protocol):
    """A link of a client."""

    @property
    def session(self) -> SessionId: ...

    @property
    def need(self) -> Need | None:
        """The permission that the link needs; None if it needs none."""
        ...

    def stop(self) -> None:
        """Process no more events for the link, which is void."""
        ...


def _ignore() -> None:
    """Do nothing, as no task waits for the answer."""


@attrs.define(eq=False, kw_only=True)
class Context:
    """The connection of a client, and the parts of the gateway that its links need."""

    broker: Broker
    leases: Leasing
    outages: Outages | None  # None: an outage ends the links that receive
    wall_clock: WallClock
    new_id: Callable[[], UUID]
    options: AmqpOptions
    connection: AmqpConnection
    tokens: ConnectionTokens
    pending: Pending
    nursery: trio.Nursery  # for tasks that end by themselves once their link is void
    _transactions: Transactions | None = attrs.field(default=None, init=False)
    _turns: trio.CapacityLimiter | None = attrs.field(default=None, init=False)
    closed: bool = attrs.field(default=False, init=False)  # by us: the client gets no more outcomes
    # Called when an attach to send on was answered.
    on_opened: Callable[[], None] = attrs.field(default=_ignore, init=False)
    links: dict[LinkId, Link] = attrs.field(factory=dict, init=False)
    # A client that got no answer on a link repeats the settlement as a request, and the link may
    # have ended with its session meanwhile.
    doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts, init=False)

    @property
    def turns(self) -> trio.CapacityLimiter:
        """
        Limits concurrent requests to $management: each holds a token of the limiter while it is
        answered.
        """
        if self._turns is None:
            self._turns = trio.CapacityLimiter(self.options.max_requests)
        return self._turns

    @property
    def transactions(self) -> Transactions:
        """The transactions of this connection."""
        if self._transactions is None:
            self._transactions = Transactions(self.options, self.new_id, self.nursery, self.pending)
        return self._transactions

    @property
    def engine(self) -> Engine:
        return self.connection.engine

    def with_id(self, message: Message) -> Message:
        """
        The message, with a new id if it has none.

        Raises:
            InvalidRequest: its own id is too long, or it has no time to live.
        """
        check_sent(message)
        if message.message_id is not None:
            return message
        return derive_message(message, message_id=str(self.new_id()))

    def check(self, need: Need) -> None:
        """
        Check that the client's tokens allow the operation.

        Raises:
            NotAuthorized: the text says why not.
        """
        refusal = NotAuthorized(f"nothing is allowed on {need.entity}")
        for right in reversed(need.rights):
            try:
                self.tokens.check(right, need.entity, management=need.management)
            except NotAuthorized as error:
                refusal = error
            else:
                return
        self.tokens.report_refused(refusal)
        raise refusal

    def refuse(self, link: LinkId, error: AmqpError) -> None:
        """Answer an attach with an error. Does nothing for a link that is void."""
        self.links.pop(link, None)
        self.engine.refuse(link, error)

    def detach(self, link: LinkId, error: AmqpError) -> None:
        """End a link that was attached, and everything that runs for it."""
        gone = self.links.pop(link, None)
        self.engine.detach(link, error)
        if gone is not None:
            gone.stop()


def amqp_error(error: BrokerError) -> AmqpError:
    """The error as AMQP has it. It is answered, so that its tracebacks are dropped."""
    drop_tracebacks(error)
    return AmqpError(condition=condition_of(error), description=sentence_of(error))


def link_error(error: BrokerError) -> AmqpError:
    """
    The error that ends a link to receive on. A namespace that can't be reached detaches it by
    force: to all SDKs that is a problem with the connection, after which they attach again.
    """
    told = amqp_error(error)
    if isinstance(error, Unavailable):
        return attrs.evolve(told, condition=DETACH_FORCED)
    return told


def unreadable(error: MessageError) -> AmqpError:
    """The error for a message that can't be read."""
    return AmqpError(condition=DECODE_ERROR, description=str(error))
