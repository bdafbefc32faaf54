"""
The mover: it takes what is left at the side that an entity leaves to the other one.

One process of the pair has it, by a lease in the folder that they share. A message is completed
only after the other side has it, so a mover that is killed leaves a copy, and loses nothing.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.broker import MovedBroker
from gateway.extensions.move.emptying import Change, Emptying, Stuck, session_queues
from gateway.extensions.move.events import EntityMoved
from gateway.extensions.move.report import MoveReport, report_key
from gateway.extensions.move.session_states import moved_states
from gateway.extensions.move.stages import SIDES, SWITCH, Move, Moves, MoveStep
from gateway.listening.intents import update
from gateway.listening.stores.values import Values
from gateway.ports import Observer, WallClock

LEASE: Final = timedelta(seconds=10)  # after it another process moves
RENEW: Final = 3.0  # seconds: a lease outlives two renewals that fail
ROUND: Final = 1.0  # seconds between two looks at an entity that is emptied
# Seconds after a stage began before its source counts as empty: sends of before are over.
GRACE: Final = 5.0
SWEEP: Final = 30.0  # seconds between two looks at a side that an entity has left
AT_ONCE: Final = 16  # entities
AGAIN: Final = Backoff(first=1.0, cap=30.0)  # between looks that fail
LEASE_KEY: Final = "mover"


@attrs.frozen(kw_only=True)
class MoverLease:
    """The process that moves messages, and until when it may."""

    process: str = ""
    until: datetime | None = None


@attrs.define(eq=False, kw_only=True)
class EntityMover:
    """A service."""

    broker: MovedBroker
    process: str  # the id of this process
    observer: Observer
    clock: WallClock
    _leases: Values[MoverLease] = attrs.field(init=False)
    _reports: Values[MoveReport] = attrs.field(init=False)
    _until: float = attrs.field(default=0.0, init=False)  # of the lease, by Trio's clock
    # In a row, and the moment of the next look, by entity.
    _failures: dict[str, int] = attrs.field(factory=dict, init=False)
    _not_before: dict[str, float] = attrs.field(factory=dict, init=False)
    _swept: dict[str, float] = attrs.field(factory=dict, init=False)  # by entity, by Trio's clock

    def __attrs_post_init__(self) -> None:
        self._leases = Values(self.book.store, MoverLease, MoverLease())
        self._reports = Values(self.book.store, MoveReport, MoveReport())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, empty the sides that entities leave."""
        task_status.started()
        try:
            while True:
                if not self.book.moves:
                    await self.book.changes.wait_next()
                await self._work()
                await trio.sleep(ROUND)
        finally:
            with trio.move_on_after(ROUND, shield=True):
                await self._release()

    async def _work(self) -> None:
        """Move while this process has the lease."""
        if not await self._acquire_lease():
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_lease, nursery.cancel_scope)
            await self._round()
            nursery.cancel_scope.cancel()

    @property
    def book(self) -> MoveBook:
        return self.broker.book

    # --- the lease

    async def _acquire_lease(self) -> bool:
        """True: this process moves, for a time."""
        began, now = trio.current_time(), self.clock()
        if began < self._until - LEASE.total_seconds() + RENEW:
            return True  # each renewal syncs a file
        try:
            lease, etag = await self._leases.read(LEASE_KEY)
            if lease.process != self.process:
                if lease.until is not None and now < lease.until:
                    return False
                if lease.process:
                    await self._record_interruption()
            own = MoverLease(process=self.process, until=now + LEASE)
            await self._leases.write(LEASE_KEY, own, if_match=etag)
        except (BrokerError, ValueError):
            return trio.current_time() < self._until - RENEW
        self._until = began + LEASE.total_seconds()
        return True

    async def _keep_lease(self, work: trio.CancelScope) -> None:
        while True:
            await trio.sleep(RENEW)
            if not await self._acquire_lease():
                work.cancel()

    async def _release(self) -> None:
        """Let another process move at once."""
        try:
            lease, etag = await self._leases.read(LEASE_KEY)
            if lease.process == self.process:
                await self._leases.write(LEASE_KEY, MoverLease(), if_match=etag)
        except (BrokerError, ValueError):
            return  # the lease runs out

    async def _record_interruption(self) -> None:
        for move in self.book.moves:
            if move.is_moving:
                await self._update_report(
                    move.path, lambda it: attrs.evolve(it, interrupted=it.interrupted + 1)
                )

    # --- moving

    async def _round(self) -> None:
        limiter = trio.CapacityLimiter(AT_ONCE)

        async def turn(move: Move) -> None:
            async with limiter:
                await self._visit(move)

        async with trio.open_nursery() as nursery:
            for move in self.book.moves:
                if not move.paused and self.clock() >= move.since:
                    nursery.start_soon(turn, move)

    async def _visit(self, move: Move) -> None:
        """Empty the side that the entity leaves, or look whether anything is there again."""
        key = move.path.key
        if not move.is_moving:
            if move.turned(self.clock()) != move:
                await self._change(move, lambda it: it.turned(self.clock()))
            if trio.current_time() < self._swept.get(key, 0.0):
                return
            self._swept[key] = trio.current_time() + SWEEP
        if trio.current_time() < self._not_before.get(key, 0.0):
            return
        began = (self.clock() - move.since).total_seconds()
        problem = ""
        try:
            is_empty = await self._emptying(move).run()
            if is_empty and move.is_moving and began >= GRACE:
                await self._finish(move)
            self._failures.pop(key, None)
        except BrokerError as error:
            problem = str(error)
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            pause = AGAIN.delay(failures, self.broker.rng)
            self._not_before[key] = trio.current_time() + pause
        except Stuck as error:
            problem = str(error)
            await self._change(move, lambda it: attrs.evolve(it, paused=True))
        await self._update_report(move.path, lambda report: attrs.evolve(report, problem=problem))

    def _emptying(self, move: Move) -> Emptying:
        return Emptying(
            source=self.broker.sides[move.source],
            target=self.broker.sides[1 - move.source],
            move=move,
            clock=self.clock,
            note=partial(self._update_report, move.path),
            renumber=partial(self.broker.numbers.add, move.path, move.source),
        )

    async def _change(self, move: Move, change: Callable[[Move], Move]) -> bool:
        """Change the move, unless its stage has changed meanwhile; True: it was changed."""
        changed = False

        def edit(moves: Moves) -> Moves:
            nonlocal changed
            found = next((each for each in moves.moves if each.path == move.path), None)
            changed = found is not None and (found.stage, found.since) == (move.stage, move.since)
            return moves.with_each([change(found)]) if found is not None and changed else moves

        try:
            await self.book.edit(edit)
        except (BrokerError, ValueError):
            return False  # the next round tries again
        return changed

    async def _finish(self, move: Move) -> None:
        """Let the move end; until all know it, no session that has a state is served here."""
        source, target = self.broker.sides[move.source], self.broker.sides[1 - move.source]
        async with AsyncExitStack() as held:
            for queue in await session_queues(source, move):
                await held.enter_async_context(moved_states(source, target, queue))
            now = self.clock()
            if not await self._change(move, lambda it: it.after(MoveStep.EMPTIED, now)):
                return
            if move.ordered:
                await trio.sleep(SWITCH.total_seconds())
        report = await self.report_of(move.path)
        self.observer.report(
            EntityMoved(
                entity=move.path,
                to=SIDES[1 - move.source],
                messages=report.active + report.scheduled + report.dead_lettered,
                doubtful=len(report.doubtful),
                left=len(report.left),
            )
        )

    # --- reports

    async def report_of(self, entity: EntityPath) -> MoveReport:
        """The entity's report; an empty one if it can't be read."""
        try:
            return (await self._reports.read(report_key(entity)))[0]
        except (BrokerError, ValueError):
            return MoveReport()

    async def _update_report(self, entity: EntityPath, change: Change) -> None:
        def dated(report: MoveReport) -> MoveReport:
            changed = change(report)
            return report if changed == report else attrs.evolve(changed, updated=self.clock())

        try:
            await update(self._reports, report_key(entity), dated)
        except (BrokerError, ValueError):
            return  # a figure is missing; the messages are where they are
