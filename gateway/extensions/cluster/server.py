"""Answers the peers: settles the deliveries that this gateway holds, and sends as the orderer."""

from collections.abc import Callable
from typing import Final, Protocol

import attrs
import trio

from gateway.capabilities import Visibility
from gateway.deadlines import answered_within
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest, NotOrderer, NotSupported
from gateway.domain.message import Delivery, Settlement
from gateway.extensions.cluster.channel import Channel, accept
from gateway.extensions.cluster.events import PeerRefused
from gateway.extensions.cluster.handshake import ChannelError, ServerHandshake
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.cluster.requests import (
    LARGEST,
    ChangeHidden,
    ForwardSend,
    HeldAnswer,
    HeldRequest,
    NameOrderer,
    News,
    RemoveHidden,
    RenewHeld,
    SettleHeld,
    SuspectEntities,
    build_answer,
    parse_request,
)
from gateway.net.visits import current_visit, record_authorized
from gateway.pairing.additions import SendsInOrder
from gateway.ports import Observer

HANDSHAKE_SECONDS: Final = 5.0  # for one message each way; a scanner gets no more
PATIENCE: Final = 300.0  # seconds for the next request; a peer keeps an idle connection for less
WRITE_SECONDS: Final = 10.0  # for a peer that is alive to read an answer


Advise = Callable[[EntityPath, float, str], object]
"""Takes advice on an entity: the seconds for which a peer has suspected it, and the reason."""


def ignore(entity: EntityPath, age: float, reason: str) -> None:
    """Do nothing: a gateway without a pair has no use for advice."""


class HeldHere(Protocol):
    """The deliveries of this gateway alone, as in `gateway.frontends.leasing.Leasing`."""

    async def settle(self, entity: EntityPath, lock_token: str, settlement: Settlement) -> None: ...

    async def renew(self, entity: EntityPath, lock_token: str) -> Delivery: ...


@attrs.frozen(eq=False)
class ClusterServer:
    """
    Serves the connections of peers. `visibility` is that of this gateway alone; None: it holds no
    messages of Storage Queue's clients. `orders` is None without a pair.
    """

    _options: ClusterOptions
    _handshake: ServerHandshake
    _leases: HeldHere
    _visibility: Visibility | None
    _observer: Observer
    _advise: Advise
    _orders: SendsInOrder | None = None

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """
        Serve one connection until the peer has left, or breaks the rules. Requests that have begun
        run to their end.
        """
        channel = await self._accept(stream)
        if channel is None:
            return
        record_authorized()
        while True:
            content = None
            with trio.move_on_after(PATIENCE):
                content = await self._next(channel)
            if content is None:
                return
            answer = build_answer(await self._answer(content))
            # Shielded: as the gateway ends, a request that was done would have an unknown outcome.
            with trio.move_on_after(WRITE_SECONDS, shield=True) as scope:
                await channel.send(answer)
            if scope.cancelled_caught:
                return

    async def _accept(self, stream: trio.abc.Stream) -> Channel | None:
        why = f"no handshake within {HANDSHAKE_SECONDS:g} s"
        with trio.move_on_after(HANDSHAKE_SECONDS):
            try:
                return await accept(stream, self._handshake)
            except ChannelError as error:
                why = str(error)
        self._observer.report(PeerRefused(peer=current_visit().peer, reason=why))
        return None

    async def _next(self, channel: Channel) -> bytes | None:
        try:
            return await channel.receive(LARGEST)
        except ChannelError as error:
            self._observer.report(PeerRefused(peer=current_visit().peer, reason=str(error)))
            return None

    async def _answer(self, content: bytes) -> HeldAnswer | BrokerError:
        """The answer, which may be an error of the namespace or of the request."""
        try:
            request = parse_request(content)
            if isinstance(request, ForwardSend):  # the send has a time limit of its own
                return await self._sent(request)
            with answered_within(self._options.timeout):
                return await self._done(request)
        except BrokerError as error:
            return error

    def _apply(self, news: News) -> None:
        if isinstance(news, SuspectEntities):
            for each in news.suspicions:
                self._advise(each.entity, each.age, f"advice of {news.sender}: {each.reason}")
        elif self._orders is None:
            raise NotSupported("this gateway has no ordered entities")
        else:
            self._orders.record_orderer(news.queue, news.sender)

    async def _sent(self, send: ForwardSend) -> HeldAnswer:
        if self._orders is None:
            raise NotOrderer("this gateway has no ordered entities")
        return HeldAnswer(
            accepted_by=await self._orders.send_forwarded(
                send.entity, send.queue, send.messages, send.seconds
            )
        )

    async def _done(self, request: HeldRequest | News) -> HeldAnswer:
        match request:
            case SuspectEntities() | NameOrderer():
                self._apply(request)
                return HeldAnswer()
            case SettleHeld(entity, lock_token, settlement):
                await self._leases.settle(entity, lock_token, settlement)
                return HeldAnswer()
            case RenewHeld(entity, lock_token):
                renewed = await self._leases.renew(entity, lock_token)
                return HeldAnswer(renewed.locked_until)
        visibility = self._visibility
        if visibility is None:
            raise InvalidRequest("this gateway holds no messages of a queue service")
        match request:
            case ChangeHidden(entity, receipt, hidden, body):
                taken = await visibility.change(entity, receipt, hidden, body)
                return HeldAnswer(taken.delivery.locked_until, taken.receipt)
            case RemoveHidden(entity, receipt):
                await visibility.remove(entity, receipt)
                return HeldAnswer()
