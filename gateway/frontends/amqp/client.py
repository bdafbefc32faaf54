"""
A client of the AMQP front end: events of its connection become links, and each link gets its own
events. Requests to `$cbs` (tokens) and to the namespace's own `$management` (its identity) are
answered here; all other management is on HTTP.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final

import attrs

from gateway.capabilities import Identifies, Sessions, Transacts
from gateway.deadlines import answered_within
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    GatewayError,
    InvalidRequest,
    NotSupported,
    Unavailable,
)
from gateway.frontends.amqp.browsing import BrowsingLink, browses
from gateway.frontends.amqp.context import Context, amqp_error, need_to_receive, need_to_send
from gateway.frontends.amqp.coordinator import CoordinatorLink
from gateway.frontends.amqp.incoming import IncomingLink
from gateway.frontends.amqp.management import Management
from gateway.frontends.amqp.outgoing import OutgoingLink
from gateway.frontends.amqp.receivers import Leased
from gateway.frontends.amqp.requests import Answer, ReplyLink, RequestLink
from gateway.frontends.amqp.sessions import open_session, session_wanted, wait_of, wants_session
from gateway.frontends.amqp.tokens import ConnectionTokens
from gateway.offering import required
from gateway.wire.amqp.conditions import condition_of, status_of
from gateway.wire.amqp.events import (
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    LinkId,
    TransferReceived,
)
from gateway.wire.amqp.exchange import NodeRequest, Reply
from gateway.wire.amqp.management import identity as wire
from gateway.wire.amqp.management.identity import OPEN_PROPERTIES
from gateway.wire.amqp.management.requests import refusal_of
from gateway.wire.amqp.servicebus.cbs import ACCEPTED, put_token_of
from gateway.wire.amqp.servicebus.links import Node, NodeKind, parse_address

# Before 7.15, azure-servicebus for Python reads a frame's fields by position, also the nulls at its
# end.
_PRODUCT: Final = "azsdk-python"
_VERSION: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})", re.ASCII)
_NOT_PADDED_SINCE: Final = (7, 15)
# Links that a client may attach before it has shown a token. SDKs attach the two of $cbs, and go
# back to them when a token is refused; a transaction's coordinator may come before its token.
MOST_BEFORE_TOKEN: Final = 100


@attrs.define(eq=False)
class Client:
    """Handles the events of one connection, and knows its links."""

    _context: Context
    # the connection was opened, or a link was attached or ended
    _on_change: Callable[[], None]
    _before_token: int = attrs.field(default=0, init=False)  # links that were attached

    def handle(self, event: Event) -> None:
        links = self._context.links
        match event:
            case TransferReceived():
                taking = links.get(event.link)
                if isinstance(taking, IncomingLink | RequestLink | CoordinatorLink):
                    taking.transfer(event)
            case DispositionReceived():
                giving = links.get(event.link)
                if isinstance(giving, OutgoingLink | ReplyLink):
                    giving.disposition(event)
            case LinkFlow():
                giving = links.get(event.link)
                if isinstance(giving, OutgoingLink | ReplyLink | BrowsingLink):
                    giving.flow(event)
            case _:
                self._handle_rare(event)

    def _handle_rare(self, event: Event) -> None:
        match event:
            case LinkAttached():
                self._attach(event)
            case LinkDetached(link=link):
                self._remove_link(link)
            case ConnectionOpened(properties=properties):
                self._context.engine.open(
                    properties=OPEN_PROPERTIES, pads_frames=pads_frames(properties)
                )
                self._on_change()
            case ConnectionClosed():
                for link in list(self._context.links):
                    self._remove_link(link)

    def _remove_link(self, link: LinkId) -> None:
        gone = self._context.links.pop(link, None)
        if gone is not None:
            gone.stop()
        self._on_change()

    def _attach(self, attached: LinkAttached) -> None:
        if self._has_attached_enough():
            return
        try:
            if not attached.we_send and attached.target and attached.target.coordinator:
                self._open_coordinator(attached)
                return
            node = parse_address(_address(attached))
            match node:
                case Node(kind=NodeKind.ENTITY, entity=EntityPath() as entity):
                    self._open(attached, entity)
                case Node(kind=NodeKind.TOKENS):
                    self._open_requests(attached, node, self._accept_token)
                case Node(entity=EntityPath() as entity):
                    management = Management(self._context, entity)
                    self._open_requests(attached, node, management.answer)
                case _:
                    self._context.tokens.check_any()
                    self._open_requests(attached, node, self._answer_identity)
        except BrokerError as error:
            self._context.refuse(attached.link, amqp_error(error))
        finally:
            self._on_change()

    def _has_attached_enough(self) -> bool:
        """True if the client attaches links without end and shows no token: its connection ends."""
        self._before_token = 0 if self._context.tokens.has_any else self._before_token + 1
        if self._before_token == MOST_BEFORE_TOKEN + 1:
            text = f"{MOST_BEFORE_TOKEN} links were attached, and no token was put on $cbs"
            error = AmqpError(condition="amqp:resource-limit-exceeded", description=text)
            self._context.nursery.start_soon(self._context.connection.close, error)
        return self._before_token > MOST_BEFORE_TOKEN

    def _open(self, attached: LinkAttached, entity: EntityPath) -> None:
        link: IncomingLink | OutgoingLink | BrowsingLink
        # The right is checked first, so that a client without it learns nothing else.
        self._context.check((need_to_receive if attached.we_send else need_to_send)(entity))
        if attached.we_send:
            link = self._outgoing(attached, entity)
            run = link.run
        else:
            link = IncomingLink(self._context, attached.link, attached.session, entity)
            run = link.open
        self._context.links[attached.link] = link
        self._context.nursery.start_soon(run)

    def _open_coordinator(self, attached: LinkAttached) -> None:
        required(self._context.broker, Transacts)  # otherwise the link is refused
        link = CoordinatorLink(self._context, attached.link, attached.session)
        self._context.links[attached.link] = link
        self._context.nursery.start_soon(link.open)

    def _outgoing(self, attached: LinkAttached, entity: EntityPath) -> OutgoingLink | BrowsingLink:
        context = self._context
        if not wants_session(attached):
            leased = partial(
                Leased, context.leases, entity, context.outages, context.options.attach_timeout
            )
            return OutgoingLink.of(context, attached, entity, leased, inf)
        if browses(attached):
            return BrowsingLink.of(context, attached, entity)
        wanted = session_wanted(attached)
        required(context.broker, Sessions)  # otherwise the link is refused
        session = partial(open_session, context.broker, entity, wanted)
        wait = wait_of(attached, wanted, context.options)
        return OutgoingLink.of(context, attached, entity, session, wait)

    def _open_requests(self, attached: LinkAttached, node: Node, answer: Answer) -> None:
        link: ReplyLink | RequestLink
        if attached.we_send:
            address = None if attached.target is None else attached.target.address
            link = ReplyLink(self._context, attached.link, attached.session, node, address)
        else:
            link = RequestLink(self._context, attached.link, attached.session, node, answer)
        if link.need is not None:
            self._context.check(link.need)
        self._context.links[attached.link] = link
        link.open()

    async def _answer_identity(self, request: NodeRequest, since: float) -> Reply:
        return await answer_identity(self._context, request, since)

    async def _accept_token(self, request: NodeRequest, _: float) -> Reply:
        return await answer_token(self._context.tokens, request)


def pads_frames(properties: Mapping[str, Any]) -> bool:
    """True if the client's SDK needs trailing nulls in frames."""
    product, version = properties.get("product"), properties.get("version")
    if not isinstance(product, str) or not product.startswith(_PRODUCT):
        return False
    numbers = _VERSION.match(version if isinstance(version, str) else "")
    return numbers is None or (int(numbers[1]), int(numbers[2])) < _NOT_PADDED_SINCE


def _address(attached: LinkAttached) -> str | None:
    """
    The address of our end of the link.

    Raises:
        NotSupported: the link asks for a dynamic node or for copies, or receives from a
            coordinator.
    """
    terminus = attached.source if attached.we_send else attached.target
    if terminus is None:
        return None
    if terminus.coordinator:
        raise NotSupported("a coordinator can't be received from")
    if terminus.dynamic:
        raise NotSupported("dynamic nodes aren't supported: attach to an entity by name")
    if terminus.copies:  # Qpid JMS's browser, which would lock each message that it looks at
        raise NotSupported("browsing by a link isn't supported: peek with a request")
    return terminus.address


async def answer_token(tokens: ConnectionTokens, request: NodeRequest) -> Reply:
    """
    Accept the token or refuse it, in a reply. The token's rights are checked later, when a link is
    attached.
    """
    try:
        put = put_token_of(request)
        if put is None:
            raise InvalidRequest(f"operation: put-token expected, got {request.operation!r:.60}")
        await tokens.add(put.token, put.audience)
    except GatewayError as error:
        return Reply(
            id=request.id,
            status=status_of(error),
            description=str(error),
            condition=condition_of(error),
        )
    return Reply(id=request.id, status=ACCEPTED, description="Accepted")


async def answer_identity(context: Context, request: NodeRequest, since: float) -> Reply:
    """
    Answer the request; every error has become a reply. Any right suffices, because no entity is
    concerned.
    """
    try:
        if request.operation != wire.OPERATION:
            raise NotSupported("the namespace isn't managed over AMQP: use HTTP")
        context.tokens.check_any()
        identifies = required(context.broker, Identifies)
        with answered_within(context.options.answer_timeout, since=since, error=Unavailable):
            return wire.reply_of(request, await identifies.identity())
    except BrokerError as error:
        return refusal_of(request, error)
