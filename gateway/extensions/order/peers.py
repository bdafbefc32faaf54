"""The other gateways of a cluster, to which sends of ordered entities are forwarded."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy, Message


class OrderPeers(Protocol):
    """The other gateways of the cluster. `own` is the address by which they know this one."""

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
