"""
Hedged sends: a send that the primary doesn't answer soon goes to the backlog as well, as far as a
budget for all of them allows.

Both copies have the same message id, and the first success answers the caller. The entity must
detect duplicates, or its receivers must be idempotent.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import SentTwice
from gateway.domain.message import AcceptedBy
from gateway.extensions.hedging.options import HEDGING, hedge_after
from gateway.pairing.options import PairOptions
from gateway.pairing.sending import Batch, Sending
from gateway.pairing.ways import Ways
from gateway.ports import Observer

MOST_SAVED: Final = 5.0  # hedges that may begin at once after a quiet time


@attrs.define(eq=False)
class HedgeBudget:
    """
    Grants hedges to a share of all sends, and counts them. Sends to a suspect entity need no grant.
    """

    share: float
    hedged: int = attrs.field(default=0, init=False)  # sends, with a grant or without
    withheld: int = attrs.field(default=0, init=False)
    _saved: float = attrs.field(default=0.0, init=False)

    def earn(self) -> None:
        """Add one send's share to the budget."""
        self._saved = min(MOST_SAVED, self._saved + self.share)

    def spend(self) -> bool:
        """Take one hedge from the budget. False: the budget is used up."""
        if self._saved < 1.0:
            self.withheld += 1
            return False
        self._saved -= 1.0
        return True


@attrs.define(eq=False)
class Hedge:
    """
    `gateway.pairing.sending.SecondCopy`: the second copy of one send. `deliver` returns whether
    the backlog accepted the messages.

    Only the first copy that the budget grants is sent.
    """

    after: float  # seconds without an answer of the primary
    budget: HedgeBudget
    deliver: Callable[[], Awaitable[bool]]
    # Called if the primary accepted the send. True: the backlog accepted its copy as well. False:
    # the copy was cancelled, with an unknown outcome.
    doubled: Callable[[bool], object]
    delivered: bool = attrs.field(default=False, init=False)
    refused: bool = attrs.field(default=False, init=False)  # by the primary, for certain
    _accepted: bool = attrs.field(default=False, init=False)  # by the primary
    _over: trio.Event | None = attrs.field(default=None, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def expect(self) -> None:
        """Add the send's share to the budget."""
        self.budget.earn()

    def begin(self, nursery: trio.Nursery, then: Callable[[], object], *, in_doubt: bool) -> None:
        """Send the copy in the nursery, if the budget grants it, or the entity is in doubt."""
        if self._over is not None or not (in_doubt or self.budget.spend()):
            return
        self.budget.hedged += 1
        self._over = trio.Event()
        nursery.start_soon(self._run, then)

    def accepted_by_primary(self) -> None:
        """Record that the primary accepted; `doubled` follows once the copy's outcome is known."""
        self._accepted = True
        if self.delivered:
            self.doubled(True)

    async def wait(self) -> bool:
        """Return whether the backlog accepted the copy, once that is known; at once without one."""
        if self._over is not None:
            await self._over.wait()
        return self.delivered

    def cancel(self) -> None:
        """Cancel the second copy."""
        self._scope.cancel()

    async def _run(self, then: Callable[[], object]) -> None:
        assert self._over is not None
        try:
            with self._scope:
                self.delivered = await self.deliver()
        finally:
            self._over.set()
        if self.delivered:
            then()
        if self._accepted and (self.delivered or self._scope.cancelled_caught):
            self.doubled(self.delivered)


@attrs.define(eq=False)
class Hedging:
    """`gateway.pairing.ways.MakesCopies`: hedges the sends of entities that have `hedge_after`."""

    options: PairOptions
    observer: Observer
    budget: HedgeBudget = attrs.field(init=False)

    @budget.default
    def _budget(self) -> HedgeBudget:
        return HedgeBudget(self.options.of(HEDGING).hedge_budget)

    def second_of(self, sending: Sending, ways: Ways) -> Hedge | None:
        """As `MakesCopies.second_of`."""
        after = hedge_after(sending.entity, self.options)
        if after is None:
            return None
        return Hedge(
            after,
            self.budget,
            deliver=partial(self._deliver_copy, sending, ways),
            doubled=partial(self._report, sending),
        )

    async def _deliver_copy(self, sending: Sending, ways: Ways) -> bool:
        """Send the copy to the backlog. True: the backlog accepted all of its batches."""
        asked = sending.pending
        copies = [Batch(batch.messages) for batch in asked]
        copy = attrs.evolve(sending, batches=copies, second=None, copy_of=sending.second)
        try:
            ways.refuse_what_the_primary_would(copy)
        except BrokerError:
            return False
        if len(copy.pending) < len(copies):
            return False
        delivered = await ways.to_backlog.send_to_backlog(copy) and all(
            e.error is None for e in copies
        )
        for batch, each in zip(asked, copies, strict=True):
            arrived = each.accepted_by is not None and not delivered
            batch.tainted |= each.tainted or arrived
        return delivered

    def _report(self, sending: Sending, certain: bool) -> None:
        accepted = [e for e in sending.batches if e.accepted_by is AcceptedBy.PRIMARY]
        messages = sum(len(batch.messages) for batch in accepted)
        self.observer.report(SentTwice(entity=sending.entity, messages=messages, certain=certain))
