"""
Finds out when an outage is over: its last entity is back, and the backlog is empty. Notes which
orders of operators held messages back meanwhile.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import attrs
import trio

from gateway.app.status.own_problems import RECORDS_A_SECOND
from gateway.changes import Changes
from gateway.domain.events.gateway import Event
from gateway.domain.operators.control import Action
from gateway.extensions.outage_report.book import ClientCounts, OutageBook
from gateway.extensions.outage_report.outage import OutageOrder
from gateway.pairing.depth import BacklogDepth
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.records.writer import FIGURES, JITTER
from gateway.pairing.state_table import StateTable
from gateway.pairing.syphon.pauses import Pauses

EVERY: Final = 10.0  # seconds between two readings of the depth: each is billed
ANSWER_LIMIT: Final = 5.0  # seconds: as `pairing.depth.COUNT_LIMIT`
# Seconds without a known depth after which the outage ends without one. Some namespaces never tell
# it; RabbitMQ doesn't for a minute after the connection of a consumer was lost.
UNKNOWN: Final = 120.0
SETTLED: Final = 2.0  # seconds in which a send that is under way may still be diverted


# Seconds after the end until the records tell of it: a syphon leaves one as soon as the backlog is
# empty, a gateway once no entity of its own is in trouble. So many gateways take turns.
SOON: Final = 3.0
# The same for a gateway that doesn't tell whether entities are in trouble, or always has some.
LATE: Final = FIGURES * (1.0 + JITTER) + SOON
AGAIN: Final = 2.0  # seconds between two readings of the records meanwhile


async def nothing_spooled() -> bool:  # noqa: ASYNC124 it stands for one that waits
    """Return True, as there is no spool."""
    return True


@attrs.define(eq=False, kw_only=True)
class OrderNotes:
    """A service: lets the book know each order of an operator that holds messages back."""

    book: OutageBook
    pauses: Pauses
    states: StateTable

    def in_force(self) -> Iterator[OutageOrder]:
        for action, overrides in (
            (Action.FAILOVER, self.states.pins),
            (Action.PAUSE, self.pauses.overrides),
        ):
            for each in overrides:
                yield OutageOrder(action=action.value, text=each.text, since=each.since)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        changes = Changes()
        self.pauses.changes.pass_on(changes)
        self.states.changes.pass_on(changes)
        task_status.started()
        while True:
            await changes.wait_next()
            self.book.record_orders()


@attrs.define(eq=False, kw_only=True)
class OutageWatch:
    """Reports `OutageOver`. Reads the depth only while all entities are back and messages wait."""

    book: OutageBook
    depth: BacklogDepth
    report: Callable[[Event], None]
    is_spool_empty: Callable[[], Awaitable[bool]] = nothing_spooled
    reader: RecordReader | None = None  # None: nothing is known of the pair's other processes
    # Counts what workers have diverted since their start; None: there are no workers.
    count_workers: Callable[[], Awaitable[ClientCounts]] | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        changes = self.book.changes
        while True:
            seen = changes.version
            if not self.book.waits_for_backlog:
                await changes.wait(seen)
                continue
            await trio.sleep(SETTLED)
            empty, at = await self._wait_empty(), self.book.clock()
            await self._hear_of_others()
            if self.count_workers is not None:
                self.book.workers = await self.count_workers()
            if self.book.waits_for_backlog:
                self.report(self.book.close(empty=empty, at=at))

    async def _hear_of_others(self) -> None:
        """Return when the records of the pair's other processes are of the end of the outage."""
        reader = self.reader
        if reader is None or reader.may_read is False or not self.book.waits_for_backlog:
            return
        gateways = sum(each.gateway is not None for each in reader.others)
        until = trio.current_time() + LATE
        pause = SOON + gateways / RECORDS_A_SECOND if reader.others else 0.0
        while self.book.waits_for_backlog:
            await trio.sleep(min(pause, max(0.0, until - trio.current_time())))
            await reader.look()
            told = (each.gateway is None or each.gateway.troubled == 0 for each in reader.others)
            if all(told) or trio.current_time() >= until:
                return
            pause = AGAIN

    async def _wait_empty(self) -> bool | None:
        """
        Return True when the backlog is empty, None if its depth is unknown for `UNKNOWN` seconds,
        False if the outage goes on.
        """
        changes, known = self.book.changes, trio.current_time()
        while self.book.waits_for_backlog:
            seen = changes.version
            if await self._is_empty():
                return True
            if self.depth.last.pending is not None:
                known = trio.current_time()
            elif trio.current_time() >= known + UNKNOWN:
                return None
            with trio.move_on_after(EVERY):
                await changes.wait(seen)
        return False

    async def _is_empty(self) -> bool:
        if not await self.is_spool_empty():
            return False
        if not self.book.is_filled:
            return True
        reading = await self.depth.ask(ANSWER_LIMIT)
        return reading is not None and reading.pending == 0
