"""A namespace whose large bodies lie in a store, both in memory, both failing on command."""

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.events.gateway import Event
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.extensions.claims.broker import ClaimedBroker
from gateway.extensions.claims.claim_check import ClaimCheck, MessageCodec
from gateway.extensions.claims.options import ClaimOptions, PackingRule
from gateway.extensions.claims.packing import PackedBroker
from gateway.extensions.claims.receiver import ClaimDependencies
from gateway.extensions.claims.store import ClaimStore
from gateway.ports import Broker, WallClock
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.message import decode_message, encode_message
from tests.harness.claim_store import MemoryClaimStore
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker

ORDERS: Final = EntityPath("orders")
LARGE: Final = b"a large body " * 1000
CODEC: Final = MessageCodec(encode=encode_message, decode=decode_message)
A_DAY: Final = 86400.0  # virtual seconds
LONGEST_TEST: Final = 400 * A_DAY

E = TypeVar("E", bound=Event)


@attrs.define(eq=False)
class Events:
    """An observer that remembers."""

    all: list[Event] = attrs.field(factory=list)

    def report(self, event: Event) -> None:
        self.all.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.all if isinstance(event, kind)]


def claimed(
    broker: Broker, store: ClaimStore, clock: WallClock, events: Events, **options: Any
) -> ClaimedBroker:
    numbers = itertools.count(1)
    claim_check = ClaimCheck(
        store=store,
        options=ClaimOptions(**{"above": 1000, **options}),
        codec=CODEC,
        clock=clock,
        new_id=lambda: f"claim {next(numbers)}",
        observer=events,
        rng=random.Random(0),
    )
    dependencies = ClaimDependencies(clock=clock, rng=random.Random(0), observer=events)
    return ClaimedBroker(broker=broker, claim_check=claim_check, dependencies=dependencies)


def packing(
    broker: Broker, match: str = "*", clock: WallClock | None = None, **options: Any
) -> PackedBroker:
    numbers = itertools.count(1)
    return PackedBroker(
        broker=broker,
        rules=(PackingRule(match=match, **options),),
        codec=CODEC,
        clock=clock or VirtualClock(),
        new_id=lambda: f"pack-{next(numbers)}",
    )


@attrs.define(eq=False, kw_only=True)
class Harness:
    """`plain` is the namespace as it is, `faulty` with its faults, `broker` with claims above."""

    store: MemoryClaimStore
    plain: MemoryBroker
    faulty: FaultyBroker
    broker: ClaimedBroker
    events: Events

    async def send(self, body: Any = LARGE, **fields: Any) -> None:
        await self.broker.send(ORDERS, [Message(message_id="m1", body=body, **fields)])

    async def take(
        self, entity: EntityPath = ORDERS, settle: Callable[[Delivery], Any] | None = None
    ) -> Delivery:
        """Receive one delivery, and settle it as `settle` returns."""
        with trio.fail_after(A_DAY):
            async with self.broker.open_receiver(entity) as receiver:
                (delivery,) = await receiver.receive(1)
                if settle is not None:
                    await receiver.settle(delivery, settle(delivery))
                return delivery

    async def raw(self, entity: EntityPath = ORDERS) -> list[Message]:
        """Return the messages of a queue as they are stored, without receiving them."""
        return [each.message for each in await self.plain.peek(entity, limit=100)]

    async def taken_raw(self) -> Message:
        """The first message of the namespace itself, which goes away."""
        with trio.fail_after(A_DAY):
            async with self.plain.open_receiver(ORDERS, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
                (delivery,) = await receiver.receive(1)
                return delivery.message


@asynccontextmanager
async def open_harness(
    properties: QueueProperties | None = None, **options: Any
) -> AsyncIterator[Harness]:
    clock, events = VirtualClock(), Events()
    async with MemoryBroker(clock, random.Random(0)) as plain, trio.open_nursery() as nursery:
        await plain.create_queue(ORDERS, properties or QueueProperties())
        faulty = FaultyBroker(inner=plain)
        await nursery.start(faulty.run)
        store = MemoryClaimStore(clock)
        broker = claimed(faulty, store, clock, events, **options)
        yield Harness(store=store, plain=plain, faulty=faulty, broker=broker, events=events)
        nursery.cancel_scope.cancel()


def _run_in_time(test: Callable[[], Any], **_: Any) -> None:
    async def main() -> None:
        with trio.fail_after(LONGEST_TEST):
            await test()

    trio.run(main, clock=MockClock(autojump_threshold=0))


# For `pytestmark`: virtual time, and a limit for a test that waits in vain.
virtual_time = pytest.mark.trio(run=_run_in_time)
