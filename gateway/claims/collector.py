"""Removes from the store what no message needs any more, shelf by shelf, without haste."""

from typing import Final

import attrs
import trio

from gateway.claims.desk import ClaimDesk
from gateway.domain.claim import SHELVES, waste
from gateway.domain.errors import BrokerError
from gateway.domain.events import ClaimCollectionFailed, ClaimsCollected

FIRST_ROUND: Final = 10.0  # seconds after the start, for who runs for minutes only
PAUSE: Final = 0.05  # between two shelves, of which there are 256


@attrs.define(eq=False)
class Collector:
    """
    A `Service`. Several gateways may collect in one store: what is gone already is no error.

    A body that belongs to a message which is in a queue or backlog yet is never waste, unless
    `keep_at_most` says that it's too old.
    """

    _desk: ClaimDesk

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """A round every `collect_every` seconds, until cancelled."""
        task_status.started()
        every = self._desk.options.collect_every
        await trio.sleep(min(FIRST_ROUND, every))
        while True:
            await self.round()
            await trio.sleep(every)

    async def round(self) -> None:
        """Look at everything once; a failure ends the round, and is reported."""
        await trio.lowlevel.checkpoint()
        kept = removed = 0
        try:
            for shelf in SHELVES:
                seen, gone = await self._tidy(shelf)
                kept, removed = kept + seen - gone, removed + gone
                await trio.sleep(PAUSE)
        except (BrokerError, trio.TooSlowError) as error:
            reason = str(error) or "claim store: no answer in time"
            self._desk.observer.report(ClaimCollectionFailed(reason=reason))
            return
        self._desk.observer.report(ClaimsCollected(kept=kept, removed=removed))

    async def _tidy(self, shelf: str) -> tuple[int, int]:
        """How many names were there, and how many aren't any more."""
        desk = self._desk
        with trio.fail_after(desk.options.timeout):
            entries = await desk.store.list(shelf)
        gone = 0
        for name in waste(entries, desk.keeping, desk.clock()):
            with trio.fail_after(desk.options.timeout):
                await desk.store.remove(name)
            gone += 1
        return len(entries), gone
