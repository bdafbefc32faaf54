"""One client: what its connection tells becomes links, and the links get what is theirs."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NotSupported
from gateway.frontends.amqp.cbs import answer_token
from gateway.frontends.amqp.context import Context
from gateway.frontends.amqp.errors import amqp_error
from gateway.frontends.amqp.incoming import IncomingLink
from gateway.frontends.amqp.management import Management
from gateway.frontends.amqp.outgoing import OutgoingLink
from gateway.frontends.amqp.receivers import leased
from gateway.frontends.amqp.requests import Answer, ReplyLink, RequestLink
from gateway.frontends.amqp.sessions import (
    open_session,
    session_wanted,
    wait_of,
    wants_session,
)
from gateway.wire.amqp.addresses import Node, NodeKind, parse_address
from gateway.wire.amqp.events import (
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
from gateway.wire.amqp.exchange import Reply, Request

# Before 7.15 azure-servicebus for Python reads a frame by position, nulls at its end too.
_PRODUCT: Final = "azsdk-python"
_VERSION: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})", re.ASCII)
_NOT_PADDED_SINCE: Final = (7, 15)


@attrs.define(eq=False)
class Client:
    """Handles the events of one connection, and says what links there are."""

    _context: Context
    _on_links: Callable[[], None]  # there is one more, or one less

    def handle(self, event: Event) -> None:
        links = self._context.links
        match event:
            case TransferReceived():
                taking = links.get(event.link)
                if isinstance(taking, IncomingLink | RequestLink):
                    taking.transfer(event)
            case DispositionReceived():
                giving = links.get(event.link)
                if isinstance(giving, OutgoingLink | ReplyLink):
                    giving.disposition(event)
            case LinkFlow():
                giving = links.get(event.link)
                if isinstance(giving, OutgoingLink | ReplyLink):
                    giving.flow(event)
            case _:
                self._handle_rare(event)

    def _handle_rare(self, event: Event) -> None:
        match event:
            case LinkAttached():
                self._attach(event)
            case LinkDetached(link=link):
                self._end(link)
            case ConnectionOpened(properties=properties):
                self._context.engine.open(pads_frames=pads_frames(properties))
            case ConnectionClosed():
                for link in list(self._context.links):
                    self._end(link)

    def _end(self, link: LinkId) -> None:
        gone = self._context.links.pop(link, None)
        if gone is not None:
            gone.end()
        self._on_links()

    def _attach(self, attached: LinkAttached) -> None:
        try:
            node = parse_address(_address(attached))
            match node:
                case Node(kind=NodeKind.ENTITY, entity=EntityPath() as entity):
                    self._open(attached, entity)
                case Node(kind=NodeKind.TOKENS):
                    self._open_requests(attached, node, self._take_token)
                case Node(entity=EntityPath() as entity):
                    management = Management(self._context, entity)
                    self._open_requests(attached, node, management.answer)
                case _:
                    raise NotSupported("the namespace has no management on AMQP: it's on HTTP")
        except BrokerError as error:
            self._context.refuse(attached.link, amqp_error(error))
        self._on_links()

    def _open(self, attached: LinkAttached, entity: EntityPath) -> None:
        link: IncomingLink | OutgoingLink
        if attached.we_send:
            link = self._outgoing(attached, entity)
            run = link.run
        else:
            link = IncomingLink(self._context, attached, entity)
            run = link.open
        self._context.check(link.need)
        self._context.links[attached.link] = link
        self._context.nursery.start_soon(run)

    def _outgoing(self, attached: LinkAttached, entity: EntityPath) -> OutgoingLink:
        context = self._context
        if not wants_session(attached):
            opener = leased(context.leases, entity)
            wait = context.options.attach_timeout
            return OutgoingLink(context, attached, entity, opener, wait)
        wanted = session_wanted(attached)
        session = open_session(context.broker, entity, wanted)
        wait = wait_of(attached, wanted, context.options)
        return OutgoingLink(context, attached, entity, session, wait)

    def _open_requests(self, attached: LinkAttached, node: Node, answer: Answer) -> None:
        link: ReplyLink | RequestLink
        if attached.we_send:
            link = ReplyLink(self._context, attached, node)
        else:
            link = RequestLink(self._context, attached, node, answer)
        if link.need is not None:
            self._context.check(link.need)
        self._context.links[attached.link] = link
        link.open()

    async def _take_token(self, request: Request, _: float) -> Reply:
        return answer_token(self._context.tokens, request)  # noqa: ASYNC910 its link has waited


def pads_frames(properties: Mapping[str, Any]) -> bool:
    """Whether the client's SDK needs the nulls at the end of frames."""
    product, version = properties.get("product"), properties.get("version")
    if not isinstance(product, str) or not product.startswith(_PRODUCT):
        return False
    numbers = _VERSION.match(version if isinstance(version, str) else "")
    return numbers is None or (int(numbers[1]), int(numbers[2])) < _NOT_PADDED_SINCE


def _address(attached: LinkAttached) -> str | None:
    """
    The address of our end.

    Raises:
        NotSupported: it is for transactions, or to be made for this link.
    """
    terminus = attached.source if attached.we_send else attached.target
    if terminus is None:
        return None
    if terminus.coordinator:
        raise NotSupported("transactions aren't supported")
    if terminus.dynamic:
        raise NotSupported("nodes aren't made for links: name an entity")
    return terminus.address
