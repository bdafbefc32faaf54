"""
Moves whose process is killed at one point after the other: before a call of the shared store, or of
a namespace.

    process ──▶ Doomed ──▶ the stages' store
                      └──▶ old and new namespace

A killed process does nothing more, not even on its way out: each later call of it ends as the first
one did. What it had locked is free again.
"""

import random
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

import attrs
import trio

from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.broker import MovedBroker
from gateway.extensions.move.calls import MoveCalls
from gateway.extensions.move.mover import EntityMover
from gateway.extensions.move.numbers import MovedNumbers
from gateway.extensions.move.order import MoveAction, MoveOrder, MovesAnswer, PlanOrder
from gateway.interception import Call, CallKind, Interceptor
from gateway.interception.broker import InterceptedBroker
from gateway.ports import Broker, WallClock
from tests.brokers.pairs import Nobody
from tests.extensions.move.stand import OPERATOR
from tests.harness.memory_values import MemoryValues
from tests.harness.patience import PATIENCE


class ProcessKilled(BaseException):
    """The process is gone: nothing of it may catch this."""


@attrs.define(eq=False)
class Doom:
    """Kills its process before the call with that number; None: never."""

    at: int | None = None
    calls: int = 0
    is_dead: bool = False

    def pass_by(self) -> None:
        """Raises ProcessKilled."""
        self.calls += 1
        if self.is_dead or self.calls == self.at:
            self.is_dead = True
            raise ProcessKilled


@attrs.frozen(eq=False)
class DoomedCalls(Interceptor):
    """The calls of a namespace by that process."""

    doom: Doom
    kinds: ClassVar[frozenset[CallKind]] = frozenset(CallKind) - {CallKind.WAIT, CallKind.RECEIVE}

    def before(self, call: Call) -> None:
        self.doom.pass_by()


@attrs.frozen(eq=False)
class DoomedStore:
    """The shared store as that process sees it."""

    store: MemoryValues
    doom: Doom

    async def read(self, key: str) -> tuple[bytes | None, str]:
        self.doom.pass_by()
        return await self.store.read(key)

    async def write(self, key: str, value: bytes | None, *, if_match: str) -> str:
        self.doom.pass_by()
        return await self.store.write(key, value, if_match=if_match)


@attrs.frozen(eq=False, kw_only=True)
class Process:
    """A gateway's part in a move, until it is killed."""

    broker: MovedBroker
    mover: EntityMover
    calls: MoveCalls
    queue: str

    async def plan(self) -> None:
        await self.calls.plan(PlanOrder(targets=(self.queue,)), OPERATOR)

    async def order(self, action: str) -> MovesAnswer:
        order = MoveOrder(action=MoveAction(action), targets=(self.queue,), force=True)
        return await self.calls.execute(order, OPERATOR)

    async def until(self, *stages: str) -> None:
        """Return when the only move has one of these stages, and it holds."""
        with trio.fail_after(PATIENCE):
            while self.stage not in stages:  # noqa: ASYNC110 also on virtual time
                await trio.sleep(0.1)

    @property
    def stage(self) -> str:
        now = self.broker.clock()
        return next((each.stage_at(now).value for each in self.broker.book.moves), "")


Work = Callable[[Process], Awaitable[None]]


async def plan(process: Process) -> None:
    await process.plan()


async def start(process: Process) -> None:
    await process.order("start")
    await process.until("to-new", "new")  # the next process may be as fast as that


async def pause(process: Process) -> None:
    await process.order("pause")
    await trio.sleep(3.0)


async def resume(process: Process) -> None:
    await process.order("resume")


async def finish(process: Process) -> None:
    await process.until("new")


async def roll_back(process: Process) -> None:
    await process.order("rollback")
    await process.until("old")


STAGES: Final[tuple[Work, ...]] = (plan, start, pause, resume, finish, roll_back)


@attrs.define(eq=False, kw_only=True)
class Machine:
    """Starts processes with the same store and namespaces, one after the other."""

    sides: tuple[Broker, Broker]
    queue: str
    clock: WallClock
    store: MemoryValues = attrs.field(factory=MemoryValues)
    started: int = 0

    async def run(self, work: Work, doom: Doom) -> bool:
        """Let a process work until it has done so, or is killed; True: it has done it."""
        self.started += 1
        is_done = False
        try:
            async with trio.open_nursery() as nursery:
                process = await self.start(nursery, doom)
                await work(process)
                is_done = True
                doom.is_dead = True  # it ends as if it were killed
                nursery.cancel_scope.cancel()
        except* ProcessKilled:
            pass
        return is_done

    async def start(self, nursery: trio.Nursery, doom: Doom, *, moves: bool = True) -> Process:
        """A process in the nursery; `moves`: with a mover."""
        store = DoomedStore(self.store, doom)
        book = MoveBook(store=store, clock=self.clock, observer=Nobody())
        await book.load()
        old, new = (InterceptedBroker(each, [DoomedCalls(doom)]) for each in self.sides)
        broker = MovedBroker(
            sides=(old, new),
            book=book,
            numbers=MovedNumbers(store=store),
            entities=("*",),
            rng=random.Random(self.started),
            clock=self.clock,
        )
        mover = EntityMover(
            broker=broker, process=str(self.started), observer=Nobody(), clock=self.clock
        )
        calls = MoveCalls(
            broker=broker,
            mover=mover,
            to="new",
            keeps_order=lambda _: False,
            clock=self.clock,
            observer=Nobody(),
        )
        for service in (book, *([mover] if moves else [])):
            await nursery.start(service.run)
        return Process(broker=broker, mover=mover, calls=calls, queue=self.queue)
