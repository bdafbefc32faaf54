"""
Hedged sends: a send that the primary doesn't answer soon goes to the backlog as well.

Both copies have the same message id, and the first success answers the caller. The entity must
detect duplicates, or its receivers must be idempotent.
"""

from functools import partial

import attrs
import trio

from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import SentTwice
from gateway.domain.message import AcceptedBy
from gateway.extensions.hedging.hedge import Hedge, HedgeBudget
from gateway.extensions.hedging.options import HEDGING, hedge_after
from gateway.pairing.options import PairOptions
from gateway.pairing.sending import Batch, Sending
from gateway.pairing.ways import Ways
from gateway.ports import Observer


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
            await trio.lowlevel.checkpoint()
            return False
        if len(copy.pending) < len(copies):
            await trio.lowlevel.checkpoint()
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
