"""
Several processes of a pair get orders, are cut off from the secondary, end and start again; each
follows the orders that it must know. A naive model tells what these put into force.

A process must know the orders that were given to it, or to the process that it follows, and those
in each record that hasn't expired. A syphon must follow them within seconds.
"""

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import attrs
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import Unreachable
from gateway.domain.health.process_records import (
    ORDERS_HOLD,
    GatewayRecord,
    ProcessRecord,
    SyphonRecord,
)
from gateway.domain.health.record_coding import record_in
from gateway.domain.message import Message
from gateway.domain.operators.control import Action, Operator, Order, matches
from gateway.domain.operators.given_orders import GivenOrder
from gateway.forwarding_broker import ForwardingBroker
from gateway.pairing.control import Control
from gateway.pairing.records.following import OrderFollower
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.records.writer import USUAL, RecordWriter
from gateway.pairing.syphon.pauses import Pauses
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import LABEL, Events
from tests.pairing.records.processes import KEYS, Faulty

ENTITIES: Final = ("orders", "invoices")
TARGETS: Final = ("orders", "inv*", "*", "*")
SYPHON: Final = "syphon"
PLACES: Final = (SYPHON, "gateway-1", "gateway-2")
ANN: Final = Operator(name="ann", peer="127.0.0.1:5000")
READ: Final = 5.0  # seconds in which a syphon follows, also after it was cut off
GATEWAYS_READ: Final = 150.0
PINS: Final = {Action.FAILOVER: True, Action.FAILBACK: False}
PAUSES: Final = {Action.PAUSE: True, Action.RESUME: False}


def naive(orders: Iterable[GivenOrder], entity: str, now: datetime, kinds: dict[Any, bool]) -> bool:
    """True if the orders of these kinds hold the entity back: each is looked at by itself."""
    every = sorted({each.key: each for each in orders}.values(), key=lambda each: each.key)
    every = [each for each in every if each.action in kinds]
    for number, order in enumerate(every):
        later = every[number + 1 :]
        is_over = order.until is not None and order.until <= now
        if not kinds[order.action] or is_over:
            continue
        for target in order.targets:
            replaced = any(kinds[each.action] and target in each.targets for each in later)
            taken_back = any(
                not kinds[each.action] and any(matches(one, entity) for one in each.targets)
                for each in later
            )
            if matches(target, entity) and not replaced and not taken_back:
                return True
    return False


def naive_rate(orders: Iterable[GivenOrder]) -> float | None:
    rates = [each for each in orders if each.action is Action.RATE]
    return max(rates, key=lambda each: each.key).rate if rates else None


@attrs.frozen(kw_only=True)
class Step:
    """An operator gives an order, or something happens to a process; then time passes."""

    place: str
    event: str  # order, cut, hang, heal, kill, end, start
    order: Order = attrs.field(factory=lambda: Order(action=Action.RESUME))
    until: float | None = None  # seconds, of the order
    seconds: float = 0.0


@attrs.define(eq=False)
class Spied(ForwardingBroker):
    """Notes the records that arrive."""

    _inner: Broker
    told: dict[str, tuple[datetime, tuple[GivenOrder, ...]]] = attrs.field(factory=dict)

    @property
    def inner(self) -> Broker:
        return self._inner

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._inner.send(entity, messages)
        for each in messages:
            record = record_in(each.body, LABEL, KEYS)
            assert record is not None
            self.told[record.process] = (VirtualClock()(), record.orders)


@attrs.define(eq=False, kw_only=True)
class Process:
    place: str
    book: OrderBook
    control: Control
    reader: RecordReader
    way: Faulty
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)
    well_since: float = 0.0  # by Trio's clock: from here on it could read and tell
    given: list[GivenOrder] = attrs.field(factory=list)

    @property
    def moves(self) -> bool:
        return self.place == SYPHON

    @property
    def is_cut(self) -> bool:
        return self.way.hangs or bool(self.way.errors)


@attrs.define(eq=False)
class World:
    secondary: Spied
    nursery: trio.Nursery
    clock: VirtualClock = attrs.field(factory=VirtualClock)
    processes: dict[str, Process] = attrs.field(factory=dict)  # that run, by place
    files: dict[str, Process] = attrs.field(factory=dict)  # what the state files have
    starts: int = 0

    async def start(self, place: str) -> None:
        self.starts += 1
        way = Faulty(self.secondary)
        book = OrderBook(process=f"p{self.starts}", clock=self.clock)
        reader = RecordReader(
            secondary=way,
            label=LABEL,
            clock=self.clock,
            process=book.process,
            keys=lambda: KEYS,
        )
        control = Control(
            clock=self.clock, observer=Events(), pauses=Pauses(), book=book, reader=reader
        )
        process = Process(
            place=place,
            book=book,
            control=control,
            reader=reader,
            way=way,
            well_since=trio.current_time(),
        )
        if process.moves:
            process.given += self._inherited(place)
        elif place in self.files:
            before = self.files[place]
            book.adopt(before.book.own)
            process.given += before.given
        await self.nursery.start(self._run, process)
        self.processes[place] = process

    def _inherited(self, place: str) -> list[GivenOrder]:
        """The orders of the processes before it that others can still read."""
        former = self.files.get(place)
        return [] if former is None else self._told_by(former.book.process)

    def _told_by(self, process: str) -> list[GivenOrder]:
        at, orders = self.secondary.told.get(process, (None, ()))
        return list(orders) if at is not None and self.clock() < at + ORDERS_HOLD else []

    async def _run(self, process: Process, *, task_status: trio.TaskStatus[None]) -> None:
        rng = random.Random(process.book.process)
        follower = OrderFollower(
            reader=process.reader,
            control=process.control,
            book=process.book,
            moves=process.moves,
            host=process.place,
            kind="syphon" if process.moves else "serve",
            rng=rng,
            inherits=process.moves,
            waits=process.moves,
        )
        writer = RecordWriter(
            secondary=process.way,
            label=LABEL,
            keys=lambda: KEYS,
            describe=partial(self._describe, process),
            interval=30.0 if process.moves else USUAL,
            rng=rng,
            new_id=lambda: f"{process.book.process}-{rng.random()}",
            observer=Events(),
            urgent=process.control.told,
            first_after=0.0,
        )
        with process.scope:
            async with trio.open_nursery() as nursery:
                for run in (process.control.run, follower.run, writer.run):
                    await nursery.start(run)
                task_status.started()
        process.ended.set()

    async def _describe(self, process: Process) -> ProcessRecord:
        await trio.lowlevel.checkpoint()
        now = self.clock()
        return ProcessRecord(
            process=process.book.process,
            host=process.place,
            kind="syphon" if process.moves else "serve",
            pid=1,
            version="1",
            started=now,
            at=now,
            interval=USUAL,
            orders=process.book.own,
            gateway=None if process.moves else GatewayRecord(),
            syphon=SyphonRecord() if process.moves else None,
        )

    async def play(self, steps: Sequence[Step]) -> str | None:
        for place in PLACES:
            await self.start(place)
        for step in steps:
            await self.take(step)
            await trio.sleep(step.seconds + READ)
            for process in self.processes.values():
                is_well = not process.is_cut and trio.current_time() >= process.well_since + READ
                if process.moves and is_well and (found := self.complaint(process)):
                    return found
        for process in self.processes.values():
            self.heal(process)
        await trio.sleep(GATEWAYS_READ)
        return next(filter(None, map(self.complaint, self.processes.values())), None)

    async def take(self, step: Step) -> None:
        process = self.processes.get(step.place)
        if process is None:
            if step.event == "start":
                await self.start(step.place)
            return
        match step.event:
            case "order":
                self._give(process, step)
            case "cut":
                refused = Unreachable("cut off")
                process.way.errors = {"send": refused, "peek": refused}
            case "hang":
                process.way.hangs = True
            case "heal":
                self.heal(process)
            case "end" | "kill":
                if step.event == "kill":  # without a last word
                    process.way.errors = {"send": Unreachable("killed")}
                self.files[step.place] = self.processes.pop(step.place)
                process.scope.cancel()
                await process.ended.wait()

    def heal(self, process: Process) -> None:
        if process.is_cut:
            process.way.errors, process.way.hangs = {}, False
            process.well_since = trio.current_time()

    def _give(self, process: Process, step: Step) -> None:
        until = None if step.until is None else self.clock() + timedelta(seconds=step.until)
        order = attrs.evolve(step.order, until=until)
        before = process.book.revision
        process.control.execute(order, ANN)
        if process.book.revision > before:
            process.given.append(
                GivenOrder(
                    revision=process.book.revision,
                    process=process.book.process,
                    action=order.action,
                    targets=order.targets,
                    operator=ANN.name,
                    at=self.clock(),
                    until=until,
                    rate=order.rate,
                )
            )

    def complaint(self, process: Process) -> str | None:
        """The difference between the naive model and the process; None: there is none."""
        now = self.clock()
        expiries = [at + ORDERS_HOLD for at, orders in self.secondary.told.values() if orders]
        ends = [each.until for each in process.given if each.until is not None]
        near = timedelta(seconds=READ if process.moves else GATEWAYS_READ)
        if any(timedelta(seconds=-1) < now - each < near for each in (*expiries, *ends)):
            return None  # it may know or not
        known = [*process.given]
        for other in self.secondary.told:
            known += self._told_by(other)
        for entity in ENTITIES:
            wanted = naive(known, entity, now, PINS) or naive(known, entity, now, PAUSES)
            if process.control.pauses.is_paused(EntityPath(entity)) is not wanted:
                verb = "doesn't hold back" if wanted else "holds back"
                return f"{process.place} {verb} {entity}: {known}"
        rate = process.book.in_force().rate
        if (None if rate is None else rate.rate) != naive_rate(known):
            return f"{process.place} has the rate {rate}: {known}"
        return None


async def play(steps: Sequence[Step]) -> str | None:
    """Take the steps; return what a process does that it must not, or None."""
    store = MemoryBroker(VirtualClock(), random.Random(1))
    await store.create_queue(backlog.heartbeat_queue(LABEL), QueueProperties())
    async with trio.open_nursery() as nursery:
        found = await World(Spied(store), nursery).play(steps)
        nursery.cancel_scope.cancel()
    return found


def _orders() -> st.SearchStrategy[Order]:
    steering = st.builds(
        Order,
        action=st.sampled_from([*PINS, *PAUSES]),
        targets=st.sampled_from(TARGETS).map(lambda each: (each,)),
    )
    return steering | st.builds(
        Order, action=st.just(Action.RATE), rate=st.none() | st.sampled_from([5.0, 50.0])
    )


STEPS: Final = st.lists(
    st.builds(
        Step,
        place=st.sampled_from(PLACES),
        event=st.sampled_from(["order"] * 8 + ["cut", "hang", "heal", "kill", "end", "start"]),
        order=_orders(),
        until=st.none() | st.sampled_from([20.0, 700.0]),
        seconds=st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.0, 40.0, 700.0]),
    ),
    min_size=4,
    max_size=12,
)


def check(examples: int, *, phases: Any = tuple(Phase)) -> None:
    """Raise AssertionError with the shortest steps after which a process does what it must not."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    @given(STEPS)
    def each(steps: Sequence[Step]) -> None:
        complaint = trio.run(play, steps, clock=MockClock(autojump_threshold=0))
        assert complaint is None, complaint

    each()


def finds(examples: int) -> bool:
    """True if one of so many examples shows that a process does what it must not."""
    try:
        check(examples, phases=(Phase.generate,))
    except AssertionError:
        return True
    return False
