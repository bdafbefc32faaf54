"""Deletes bodies that no message needs any more, one prefix after the other."""

from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError
from gateway.extensions.claims.claim import PREFIXES, waste
from gateway.extensions.claims.claim_check import ClaimCheck
from gateway.extensions.claims.events import ClaimCollectionFailed, ClaimsCollected

# seconds after the start, so that a process of a few minutes collects too
FIRST_ROUND: Final = 10.0
PAUSE: Final = 0.05  # seconds between two of the 256 prefixes


@attrs.define(eq=False)
class Collector:
    """
    Deletes bodies from the store; a `Service`. Several gateways may collect in one store: a body
    that is already deleted is no error.

    A body whose message may still be in a queue or backlog is never deleted, unless it is older
    than `keep_at_most`. Ages are measured by the store's clock, unless it was set
    forward.
    """

    _claim_check: ClaimCheck

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Collect every `collect_every` seconds, until cancelled."""
        task_status.started()
        every = self._claim_check.options.collect_every
        await trio.sleep(min(FIRST_ROUND, every))
        while True:
            await self.round()
            await trio.sleep(every)

    async def round(self) -> None:
        """Examine all prefixes once; a failure ends the round, and is reported."""
        kept = removed = 0
        try:
            with trio.fail_after(self._claim_check.options.timeout):
                date = await self._claim_check.store.date()
            for prefix in PREFIXES:
                seen, gone = await self._tidy(prefix, date)
                kept, removed = kept + seen - gone, removed + gone
                await trio.sleep(PAUSE)
        except (BrokerError, trio.TooSlowError) as error:
            reason = str(error) or "the claim store didn't answer in time"
            self._claim_check.observer.report(ClaimCollectionFailed(reason=reason))
            return
        self._claim_check.observer.report(ClaimsCollected(kept=kept, removed=removed))

    async def _tidy(self, prefix: str, date: datetime) -> tuple[int, int]:
        """The number of names with the prefix, and of those deleted."""
        claim_check = self._claim_check
        with trio.fail_after(claim_check.options.timeout):
            entries = await claim_check.store.list(prefix)
        gone = 0
        for name in waste(entries, claim_check.keeping, claim_check.clock(), date):
            with trio.fail_after(claim_check.options.timeout):
                await claim_check.store.remove(name)
            gone += 1
        return len(entries), gone
