"""What gateways with the same pair ask of each other."""

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy, Message
from gateway.pairing.states import keep_to_oneself


class OrderPeers(Protocol):
    """
    The other gateways, to which sends of ordered entities are forwarded. `own` is the address by
    which they know this one.
    """

    @property
    def own(self) -> str: ...

    async def forward(
        self,
        address: str,
        entity: EntityPath,
        queue: EntityPath,
        hand_over: Callable[[], Sequence[Message]],
        seconds: float,
        *,
        not_sent: Callable[[], object],
    ) -> AcceptedBy:
        """
        Have that gateway, the orderer of the queue, send messages within `seconds`; return who has
        accepted them. `hand_over` returns the messages. It is called when the request is about to
        leave: if cancelled before that, nothing was sent. `not_sent` is called when the request has
        certainly sent nothing, before it may leave again.

        Raises:
            NotOrderer: it isn't the orderer; nothing was sent.
            Unreachable: it can't be asked; nothing was sent.
            TooLargeToForward: the messages are too large for a request; nothing was sent.
            NoAnswer: it didn't answer.
            BrokerError: its own error.
        """
        ...

    async def tell_orderer(self, address: str, queue: EntityPath) -> None:
        """
        Tell that gateway that this one is the orderer of the queue.

        Raises:
            BrokerError: it can't be told.
        """
        ...


class SendsInOrder(Protocol):
    """The ordered entities of this gateway's pair, as other gateways use them."""

    async def send_forwarded(
        self, entity: EntityPath, queue: EntityPath, messages: Sequence[Message], seconds: float
    ) -> AcceptedBy:
        """
        As `Diverts.send_diverting`, for a gateway that takes this one for the orderer of that
        queue. All messages are of one key. The send counts in `max_inflight`, and in no statistics:
        the gateway that had it from a client counts it.

        Raises:
            NotOrderer: this gateway isn't the orderer, or isn't any more; nothing was sent.
            BrokerError: as `Diverts.send_diverting`.
        """
        ...

    def note_orderer(self, queue: EntityPath, address: str) -> None:
        """
        Record that the gateway with that address is the orderer of the queue.

        Raises:
            NotSupported: this gateway needs none.
        """
        ...


@attrs.frozen(kw_only=True)
class PairPeers:
    """The other gateways with the same pair, as far as this process talks to them."""

    tell: Callable[[EntityPath, float, str], None] = keep_to_oneself  # as `EntityStates.tell`
    takes_advice: bool = False  # their suspicions are adopted
    orderers: OrderPeers | None = None  # None: sends in order aren't forwarded to them
