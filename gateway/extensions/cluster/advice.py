"""
Advises the peers of the entities that this gateway has come to suspect, so that they needn't find
out by time-outs of their own. Advice to a peer that can't be reached isn't repeated, and each peer
decides by its own evidence.
"""

from typing import Final

import attrs
import trio

from gateway.changes import RunsTasks
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.extensions.cluster.peers import Peers
from gateway.extensions.cluster.requests import MOST_ADVICE, SuspectEntities, Suspicion

MOST_UNTOLD: Final = 1000  # entities for one peer; older ones are dropped
AT_ONCE: Final = 32  # peers that are told at the same time
# Characters; less than `requests._MOST_REASON`, which other versions may need.
LONGEST_REASON: Final = 150


@attrs.define(eq=False)
class _Untold:
    """The entities of which a peer hasn't been advised, each with its moment and its reason."""

    rows: Bounded[str, tuple[EntityPath, float, str]] = attrs.field(
        factory=lambda: Bounded(MOST_UNTOLD)
    )
    is_told: bool = False  # True while a task sends the advice to this peer

    def pop(self, now: float) -> tuple[Suspicion, ...]:
        """The next entities for a request; none: the peer knows all."""
        found = list[Suspicion]()
        while self.rows and len(found) < MOST_ADVICE:
            _, (entity, began, reason) = self.rows.popitem(last=False)
            found.append(Suspicion(entity, round(now - began, 3), reason))
        return tuple(found)


@attrs.define(eq=False)
class Advice(RunsTasks):
    """A `gateway.ports.Service`: `run` owns the tasks that tell the peers."""

    _peers: Peers
    _sender: str
    _untold: dict[str, _Untold] = attrs.field(factory=dict, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(AT_ONCE), init=False
    )

    def advise(self, entity: EntityPath, began: float, reason: str) -> None:
        """
        Tell all peers soon that the entity is suspect, by a request that began at `began`. Never
        waits.
        """
        if self._nursery is None:
            return
        known = self._peers.addresses()
        for gone in self._untold.keys() - set(known):
            del self._untold[gone]
        for address in known:
            untold = self._untold.setdefault(address, _Untold())
            untold.rows[entity.key] = entity, began, reason[:LONGEST_REASON]
            if not untold.is_told:
                untold.is_told = True
                self._nursery.start_soon(self._send, address, untold)

    async def _send(self, address: str, untold: _Untold) -> None:
        try:
            async with self._limiter:
                while rows := untold.pop(trio.current_time()):
                    await self._peers.advise(address, SuspectEntities(self._sender, rows))
        except BrokerError:
            untold.rows.clear()  # the peer finds out by itself
        finally:
            untold.is_told = False
