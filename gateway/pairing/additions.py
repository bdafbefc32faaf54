"""
The extension point of a pair: what an extension is given and adds, and what gateways with the same
pair ask of each other.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from gateway.changes import Changes
from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy, Message
from gateway.domain.status.sections import Section
from gateway.moments import Moments
from gateway.pairing.admission import Measure
from gateway.pairing.entity_cache import EntityCache
from gateway.pairing.inflight import InFlight
from gateway.pairing.options import PairOptions
from gateway.pairing.state_table import keep_to_oneself
from gateway.pairing.ways import Delivers, Ways
from gateway.ports import Broker, NewId, Observer, Service, WallClock


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

    async def notify_orderer(self, address: str, queue: EntityPath) -> None:
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

    def record_orderer(self, queue: EntityPath, address: str) -> None:
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


@attrs.frozen(kw_only=True)
class PairDependencies:
    """The values that a pair needs from outside."""

    clock: WallClock
    rng: random.Random
    new_id: NewId
    observer: Observer
    measure: Measure
    # Counts the returns of the primary that others than its sends and probes show: receivers.
    returns: Changes = attrs.field(factory=Changes)


@attrs.frozen(kw_only=True)
class PairCore:
    """The parts of a pair that an extension may build upon."""

    options: PairOptions
    secondary: Broker
    ways: Ways
    inflight: InFlight
    moments: Moments
    dependencies: PairDependencies
    peers: PairPeers
    entity_cache: EntityCache


class Kept(Protocol):
    """Names that an extension has in the state file, if the process before ended in good order."""

    @property
    def key(self) -> str:
        """The key of the list in the file."""
        ...

    def restore(self, names: Sequence[str]) -> None:
        """Take over the names of an earlier life, as they were at its end."""
        ...

    def names(self) -> tuple[str, ...]:
        """The names now, as no send begins any more."""
        ...


async def stay() -> None:
    """Do nothing: other gateways need nothing of this one."""


@attrs.frozen(kw_only=True)
class Addition:
    """The parts that an extension adds to a pair."""

    delivery: Delivers | None = None  # instead of the usual one, which it may use
    services: Sequence[Service] = ()
    queues: Sequence[EntityPath] = ()  # of the backlog, beside the usual ones
    kept: Kept | None = None
    in_order: SendsInOrder | None = None
    sections: Mapping[Section[Any], Callable[[], Any]] = attrs.field(factory=dict)  # of the status
    # Called when the last client is gone, while other gateways may still ask.
    leave: Callable[[], Awaitable[None]] = stay


AddToPair = Callable[[PairCore], Addition | None]
"""An extension's part of a pair; None: its options don't ask for it."""
