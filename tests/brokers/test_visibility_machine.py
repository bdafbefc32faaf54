"""Storage Queue's and Service Bus's ways to receive on one queue, at random, beside a model."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Final

import attrs
import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import LockLost, MessageNotFound
from gateway.domain.message import Abandon, Complete, Delivery, Message
from gateway.domain.storage_queue import PopReceipt, Terms
from gateway.ports import Receiver
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import LocalVisibility
from tests.harness.clocks import VirtualClock

ORDERS: Final = EntityPath("orders")
LOCK: Final = 60.0  # seconds

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from([0, 5])),
        st.tuples(st.just("take"), st.sampled_from([1, 5, 20])),
        st.tuples(st.just("change"), st.sampled_from([0, 1, 20])),
        st.tuples(st.sampled_from(["remove", "receive", "complete", "abandon"]), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([1, 4, 30])),
    ),
    min_size=20,
    max_size=60,
)


@attrs.define(eq=False)
class Known:
    """A message as the model has it. Times are Trio's; dates are stored in whole microseconds."""

    stamp: PopReceipt
    number: int  # of the entity's first message 1, and so on
    visible: float = 0.0
    locked: float = 0.0
    holder: Delivery | None = None  # the entity whose lock that is, or was
    deliveries: int = 0

    @property
    def can_be_had(self) -> bool:
        now = trio.current_time()
        return self.locked <= now and round(self.visible, 6) <= round(now, 6)


@attrs.define(eq=False)
class Run:
    broker: MemoryBroker
    visibility: LocalVisibility
    receiver: Receiver
    rng: random.Random
    known: dict[int, Known] = attrs.field(factory=dict)  # by the sequence in the receipt
    numbers: Iterator[int] = attrs.field(factory=lambda: count(1))
    receipts: list[PopReceipt] = attrs.field(factory=list)  # stale ones too
    locks: list[Delivery] = attrs.field(factory=list)

    async def put(self, hidden: int) -> None:
        shown = await self.visibility.put(ORDERS, Message(), timedelta(seconds=hidden))
        assert shown.receipt is not None
        self._note(shown.receipt, hidden)

    async def take(self, hidden: int) -> None:
        expected = [sequence for sequence, each in self.known.items() if each.can_be_had]
        terms = Terms(hidden=timedelta(seconds=hidden))
        taken = await self.visibility.dequeue(ORDERS, 2, lambda _: terms)
        assert [each.delivery.sequence_number for each in taken] == sorted(expected)[:2]
        for each in taken:
            assert each.receipt is not None
            self._note(each.receipt, hidden)
            known = self.known[each.receipt.sequence]
            known.deliveries += 1
            assert each.delivery.delivery_count == known.deliveries

    async def change(self, hidden: int) -> None:
        if not self.receipts:
            return
        receipt = self.rng.choice(self.receipts)
        with self._judged(receipt):
            shown = await self.visibility.change(ORDERS, receipt, timedelta(seconds=hidden))
            assert shown.receipt is not None
            self._note(shown.receipt, hidden)

    async def remove(self, _: int) -> None:
        if not self.receipts:
            return
        receipt = self.rng.choice(self.receipts)
        with self._judged(receipt):
            await self.visibility.remove(ORDERS, receipt)
            del self.known[receipt.sequence]

    async def receive(self, _: int) -> None:
        expected = [each.number for each in self.known.values() if each.can_be_had]
        taken: Any = ()
        with trio.move_on_after(0.001):
            taken = await self.receiver.receive(1)
        assert [each.sequence_number for each in taken] == sorted(expected)[:1]
        for each in taken:
            known = self._numbered(each)
            assert known is not None
            known.locked, known.holder = trio.current_time() + LOCK, each
            known.deliveries += 1
            self.locks.append(each)

    async def complete(self, _: int) -> None:
        await self._settle(Complete())

    async def abandon(self, _: int) -> None:
        await self._settle(Abandon())

    async def wait(self, seconds: int) -> None:
        await trio.sleep(seconds)

    async def check(self) -> None:
        found = await self.visibility.peek(ORDERS, 100)
        visible = [sequence for sequence, each in self.known.items() if each.can_be_had]
        assert [each.sequence_number for each in found] == sorted(visible)
        info = await self.broker.inspect(ORDERS)
        assert (info.active or 0) + (info.scheduled or 0) == len(self.known)

    async def _settle(self, settlement: Complete | Abandon) -> None:
        if not self.locks:
            return
        delivery = self.locks.pop(self.rng.randrange(len(self.locks)))
        known = self._numbered(delivery)
        is_its_own = known is not None and known.holder is delivery
        is_held = known is not None and is_its_own and known.locked > trio.current_time()
        try:
            await self.receiver.settle(delivery, settlement)
        except LockLost:
            assert not is_held
            return
        assert is_held
        assert known is not None
        if isinstance(settlement, Complete):
            del self.known[known.stamp.sequence]
        else:
            known.locked = 0.0

    def _numbered(self, delivery: Delivery) -> Known | None:
        found = (each for each in self.known.values() if each.number == delivery.sequence_number)
        return next(found, None)

    def _note(self, receipt: PopReceipt, hidden: int) -> None:
        if receipt.sequence not in self.known:
            self.known[receipt.sequence] = Known(receipt, next(self.numbers))
        known = self.known[receipt.sequence]
        known.stamp, known.visible = receipt, trio.current_time() + hidden
        self.receipts.append(receipt)

    @contextmanager
    def _judged(self, receipt: PopReceipt) -> Iterator[None]:
        """Check that the namespace judges the receipt within the context as the model does."""
        known = self.known.get(receipt.sequence)
        good = (
            known is not None
            and known.stamp == receipt
            # No receiver has had the message in another way since.
            and known.deliveries == receipt.deliveries
            and known.locked <= trio.current_time()
        )
        try:
            yield
        except MessageNotFound:
            assert known is None
        except LockLost:
            assert known is not None
            assert not good
        else:
            assert good


@pytest.mark.slow
@given(steps, st.integers(0, 2**32))
@settings(max_examples=200)
def test_both_ways_to_receive_agree_on_who_has_a_message(
    chosen: list[tuple[str, int]], seed: int
) -> None:
    async def run() -> None:
        async with MemoryBroker(VirtualClock(), random.Random(seed)) as broker:
            await broker.create_queue(ORDERS, QueueProperties(max_delivery_count=1000))
            async with broker.open_receiver(ORDERS) as receiver:
                harness = Run(broker, LocalVisibility(broker), receiver, random.Random(seed))
                for name, argument in chosen:
                    await getattr(harness, name)(argument)
                    await harness.check()

    trio.run(run, clock=MockClock(autojump_threshold=0))
