"""The ledger of a process: facts are written by a thread, in the order in which they came."""

from collections.abc import Iterable
from functools import partial
from typing import Final

import apsw
import attrs
import trio

from gateway.app.assembly.parts import ProcessParts
from gateway.app.operations.control_calls import Executors
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable, starting_thread
from gateway.domain.operators.control import Operator
from gateway.extensions.ledger import file
from gateway.extensions.ledger.events import LedgerNotSaved
from gateway.extensions.ledger.facts import FACTS, Fact, FactsQuery, LedgerFacts, PairSide
from gateway.extensions.ledger.file import LedgerFile
from gateway.extensions.ledger.recorder import identify_with
from gateway.extensions.ledger.search import search
from gateway.frontends.admin.control import Executor
from gateway.ports import Observer, WallClock

EVERY: Final = 0.25  # seconds between two writings: what a kill -9 may cost
MOST_PENDING: Final = 50_000  # facts: five seconds of the fastest sends, some 20 MiB


@attrs.define(eq=False, kw_only=True)
class Ledger:
    """A service that writes facts, and answers the control call that reads them."""

    file: LedgerFile
    clock: WallClock
    observer: Observer
    most: int = MOST_PENDING
    _pending: list[Fact] = attrs.field(factory=list, init=False)
    _unwritten: int = attrs.field(default=0, init=False)
    _came: trio.Event = attrs.field(factory=trio.Event, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _failed: bool = attrs.field(default=False, init=False)

    def record(self, facts: Iterable[Fact]) -> None:
        """Keep the facts until they are written; those that have no room are counted."""
        self._pending += facts
        if (beyond := len(self._pending) - self.most) > 0:
            del self._pending[self.most :]
            self._unwritten += beyond
        self._came.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled."""
        task_status.started()
        while True:
            await self._came.wait()
            await self.write()
            await trio.sleep(EVERY)

    def close(self) -> None:
        """Write what was recorded since the last writing, at the end of the process."""
        try:
            if self._pending or self._unwritten:
                self.file.append(self._pending, self._unwritten, self.clock())
        except (apsw.Error, OSError) as error:
            self._report(len(self._pending), error)
        finally:
            self.file.close()

    async def write(self) -> None:
        """
        Write what was recorded until now. What can't be written is counted, and reported once. On
        cancellation it may be written, or not.
        """
        async with self._turn:
            facts, unwritten = self._pending, self._unwritten
            self._pending, self._unwritten, self._came = [], 0, trio.Event()
            if not facts and not unwritten:
                return
            try:
                with starting_thread():
                    write = partial(self.file.append, facts, unwritten, self.clock())
                    await trio.to_thread.run_sync(write)
            except (apsw.Error, OSError) as error:
                self._unwritten += unwritten + len(facts)
                if not self._failed:
                    self._report(len(facts), error)
                self._failed = True
            else:
                self._failed = False

    def _report(self, facts: int, error: Exception) -> None:
        path = str(self.file.path)
        self.observer.report(LedgerNotSaved(file=path, facts=facts, reason=str(error)))

    def executors(self, parts: ProcessParts) -> Executors:
        """As `OffersCalls.executors`."""

        async def execute(query: FactsQuery, _: Operator) -> LedgerFacts:
            found = await self.read(query)
            return await _searched(parts, query, found) if query.search else found

        return [Executor(FACTS, execute)]

    async def read(self, query: FactsQuery) -> LedgerFacts:
        """
        The facts that the query selects, those of this process up to now.

        Raises:
            Unavailable: the file can't be read.
        """
        await self.write()
        try:
            with starting_thread():
                found = await trio.to_thread.run_sync(file.read, self.file.path, query)
        except (apsw.Error, OSError) as error:
            raise Unavailable(f"{self.file.path}: {error}") from error
        return attrs.evolve(found, unwritten=found.unwritten + self._unwritten)


async def _searched(parts: ProcessParts, query: FactsQuery, found: LedgerFacts) -> LedgerFacts:
    """The facts, with what a search in the namespaces of this process finds."""
    config, runtime = parts.plan.config, parts.plan.runtime
    names = {PairSide.PRIMARY: config.home_name}
    if config.pairing is not None:
        names[PairSide.SECONDARY] = config.pairing.secondary
    open_ones = {
        side: parts.namespaces[name] for side, name in names.items() if name in parts.namespaces
    }
    entities = dict.fromkeys(
        [each.entity for each in found.facts] + [query.entity] * bool(query.entity)
    )
    queues = dict.fromkeys(each.queue for each in found.facts if each.queue)
    places = [
        (side, path)
        for side, listed in ((PairSide.PRIMARY, entities), (PairSide.SECONDARY, queues))
        for name in listed
        for path in (EntityPath.parse(name), EntityPath.parse(name).dead_letter)
        if side in open_ones
    ]
    identify = identify_with(runtime.envelopes)
    seen, searched = await search(open_ones, query.message, places, identify)
    return attrs.evolve(found, seen=seen, searched=searched)
