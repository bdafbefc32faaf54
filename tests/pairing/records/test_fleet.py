"""A thousand sidecars of one pair cost the secondary few requests."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized
from gateway.domain.health.problems import Problem
from gateway.domain.health.process_records import (
    CountByName,
    GatewayRecord,
    PairRecords,
    ProcessRecord,
)
from gateway.domain.message import Delivery, Message
from gateway.forwarding_broker import ForwardingBroker
from gateway.pairing.control import Control
from gateway.pairing.records.following import GATEWAY_READS, OrderFollower
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.records.writer import FIGURES, USUAL, RecordWriter
from gateway.pairing.syphon.pauses import Pauses
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import LABEL, Events, virtual_time
from tests.pairing.records.processes import KEYS

pytestmark = virtual_time

FLEET = 1000
MINUTE = 60
MOST = 10.0  # requests a second


@attrs.define(eq=False)
class Counting(ForwardingBroker):
    """Counts requests by the minute. Sidecars may send, and nothing else."""

    _inner: Broker
    minutes: Counter[int] = attrs.field(factory=Counter)

    @property
    def inner(self) -> Broker:
        return self._inner

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._count()

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        await self._count()
        raise NotAuthorized("no right to receive")

    async def _count(self) -> None:
        self.minutes[int(trio.current_time() // MINUTE)] += 1
        await trio.lowlevel.checkpoint()


@attrs.define
class Sidecars:
    secondary: Counting
    diverted: int = 0
    problems: tuple[Problem, ...] = ()

    def services(self, number: int) -> list[Any]:
        clock, rng = VirtualClock(), random.Random(number)
        reader = RecordReader(secondary=self.secondary, label=LABEL, clock=clock)
        book = OrderBook(process=f"p{number}", clock=clock)
        control = Control(clock=clock, observer=Events(), pauses=Pauses(), book=book)
        follower = OrderFollower(
            reader=reader,
            control=control,
            book=book,
            moves=False,
            host=f"pod-{number}",
            kind="serve",
            rng=rng,
        )
        writer = RecordWriter(
            secondary=self.secondary,
            label=LABEL,
            keys=lambda: KEYS,
            describe=lambda: self._describe(book, reader),
            interval=USUAL,
            rng=rng,
            new_id=lambda: "id",
            observer=Events(),
            urgent=control.told,
            first_after=rng.uniform(0.0, FIGURES),
        )
        return [follower, writer]

    async def _describe(self, book: OrderBook, reader: RecordReader) -> ProcessRecord:
        await trio.lowlevel.checkpoint()
        now = VirtualClock()()
        return ProcessRecord(
            process=book.process,
            host="pod",
            kind="serve",
            pid=1,
            version="1",
            started=now,
            at=now,
            interval=USUAL,
            sees_others=reader.may_read,
            gateway=GatewayRecord(diverted=CountByName(total=self.diverted)),
            problems=self.problems,
        )


async def test_a_thousand_sidecars_need_fewer_than_ten_requests_a_second() -> None:
    secondary = Counting(MemoryBroker(VirtualClock(), random.Random(1)))
    sidecars = Sidecars(secondary)
    async with trio.open_nursery() as nursery:
        for number in range(FLEET):
            for service in sidecars.services(number):
                nursery.start_soon(service.run)
        await trio.sleep(10 * MINUTE)  # all have started
        secondary.minutes.clear()
        await trio.sleep(15 * MINUTE)
        at_rest, secondary.minutes = secondary.minutes, Counter()
        for _ in range(15 * MINUTE):
            sidecars.diverted += 1
            await trio.sleep(1)
        in_outage, secondary.minutes = secondary.minutes, Counter()
        sidecars.problems = (Problem(text="it hasn't been reached"),)
        await trio.sleep(15 * MINUTE)
        with_problems = Counter(secondary.minutes)
        nursery.cancel_scope.cancel()

    assert max(at_rest.values()) / MINUTE < MOST
    assert 0 < max(in_outage.values()) / MINUTE < MOST
    assert 0 < max(with_problems.values()) / MINUTE < MOST
    assert sum(at_rest.values()) < sum(in_outage.values()) / 2


async def test_gateways_that_may_read_do_so_the_less_the_more_there_are() -> None:
    [follower, _] = Sidecars(Counting(MemoryBroker(VirtualClock(), random.Random(1)))).services(1)
    record = ProcessRecord(
        process="p",
        host="pod",
        kind="serve",
        pid=1,
        started=VirtualClock()(),
        at=VirtualClock()(),
        interval=USUAL,
    )
    follower.reader.known = PairRecords(alive=(record,) * FLEET)
    follower.reader.pages = 11

    assert follower.reader.pages * FLEET / follower.pause() <= 1 / GATEWAY_READS
