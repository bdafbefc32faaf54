"""Learns the size limit of a backlog whose secondary couldn't be asked at the start."""

import random
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.errors import NotAuthorized
from gateway.domain.events import BacklogReady
from gateway.pairing.admission import Admission
from gateway.pairing.options import PairOptions
from gateway.pairing.provision import usable_backlog
from gateway.ports import Broker, Observer

AGAIN: Final = Backoff(first=1.0, cap=60.0)


@attrs.define(eq=False, kw_only=True)
class BacklogLimit:
    """
    Asks until the secondary has told; then sends are refused that could not be diverted.

    Before that nobody knows, and the primary takes what an outage would refuse.
    """

    secondary: Broker
    admission: Admission
    options: PairOptions
    observer: Observer
    rng: random.Random

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Return when it's known."""
        task_status.started()
        failures = 0
        while not await self._ask():
            failures += 1
            await trio.sleep(AGAIN.delay(failures, self.rng))

    async def _ask(self) -> bool:
        wanted = self.options.backlog_queues
        try:
            found = await usable_backlog(self.secondary, self.options.label, wanted)
        except NotAuthorized:
            return False  # rights may come back, as a send to the backlog will tell
        if not found.asked:
            return False
        self.admission.backlog_limit = found.max_message_size
        reason = "; ".join(found.problems)
        self.observer.report(BacklogReady(wanted=wanted, usable=len(found.queues), reason=reason))
        return True
