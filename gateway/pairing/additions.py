"""The extension point of a pair: what it is given, and what it adds."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.status.sections import Section
from gateway.moments import Moments
from gateway.pairing.admission import Measure
from gateway.pairing.inflight import InFlight
from gateway.pairing.options import PairOptions
from gateway.pairing.peers import PairPeers, SendsInOrder
from gateway.pairing.ways import Delivers, Ways
from gateway.ports import Broker, NewId, Observer, Service, WallClock


@attrs.frozen(kw_only=True)
class PairDependencies:
    """The values that a pair needs from outside."""

    clock: WallClock
    rng: random.Random
    new_id: NewId
    observer: Observer
    measure: Measure


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
    await trio.lowlevel.checkpoint()


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
