"""Sets up a backlog whose secondary was unavailable at the start, and reads its size limit."""

import random
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import BacklogReady
from gateway.pairing.admission import Admission
from gateway.pairing.options import PairOptions
from gateway.pairing.provision import usable_backlog
from gateway.ports import Broker, Observer

SETUP_LIMIT: Final = 60.0  # seconds
AGAIN: Final = Backoff(first=1.0, cap=10.0)


async def no_setup() -> None:
    """Do nothing: the backlog needs no setup."""


@attrs.define(eq=False, kw_only=True)
class BacklogLimit:
    """
    Calls `setup` and asks for the size limit until the secondary answers. From then on, sends that
    are too large for the backlog are refused; until then the primary may accept them.

    `setup` creates missing queues, or raises a `BrokerError` if the secondary doesn't answer.
    """

    secondary: Broker
    admission: Admission
    options: PairOptions
    observer: Observer
    rng: random.Random
    setup: Callable[[], Awaitable[None]] = no_setup

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Return when the limit is known."""
        task_status.started()
        failures = 0
        while not await self._ask():
            failures += 1
            await trio.sleep(AGAIN.delay(failures, self.rng))

    async def _ask(self) -> bool:
        wanted = self.options.backlog_queues
        try:
            with trio.fail_after(SETUP_LIMIT):
                await self.setup()
            found = await usable_backlog(self.secondary, self.options.label, wanted)
        except (BrokerError, trio.TooSlowError):
            return False  # even a missing right may be granted later
        if not found.asked:
            return False
        self.admission.backlog_limit = found.max_message_size
        reason = "; ".join(found.problems)
        self.observer.report(BacklogReady(wanted=wanted, usable=len(found.queues), reason=reason))
        return True
