"""A namespace in memory, a listener on it, and the listener's work."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.events.gateway import Event
from gateway.domain.message import Message
from gateway.listening.consumer_stats import QueueState
from gateway.listening.items import RAW, Item
from gateway.listening.listener import QueueListener
from gateway.listening.options import ListenerOptions
from gateway.store.local.broker import LocalOptions
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker
from tests.harness.polled import PolledBroker

ORDERS: Final = EntityPath("orders")
LOCK: Final = timedelta(seconds=30)
LONGEST_TEST: Final = 48 * 3600.0  # virtual seconds

E = TypeVar("E", bound=Event)


def _run_in_time(test: Callable[[], Any], **_: Any) -> None:
    async def main() -> None:
        with trio.fail_after(LONGEST_TEST):
            await test()

    trio.run(main, clock=MockClock(autojump_threshold=0))


# For `pytestmark`: virtual time, and a limit for a test that waits in vain.
virtual_time = pytest.mark.trio(run=_run_in_time)


@attrs.define(eq=False)
class Harness:
    """
    A store, and the listeners of a test. `broker` may be replaced by a broker before the store.
    """

    nursery: trio.Nursery
    store: MemoryBroker = attrs.field(init=False)
    broker: Any = attrs.field(init=False)
    events: list[Event] = attrs.field(factory=list, init=False)
    items: list[Any] = attrs.field(factory=list, init=False)  # messages that were handled
    errors: list[Exception] = attrs.field(factory=list, init=False)
    is_completed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        options = LocalOptions(create_missing=False)
        self.store = MemoryBroker(VirtualClock(), random.Random(1), options)
        self.broker = self.store

    async def create(self, queue: EntityPath = ORDERS, **properties: Any) -> None:
        properties = {"lock_duration": LOCK, "max_delivery_count": 1000, **properties}
        await self.store.create_queue(queue, QueueProperties(**properties))

    def poll(self, **fields: Any) -> PolledBroker:
        self.broker = PolledBroker(inner=self.broker, **fields)
        return self.broker

    async def make_faulty(self) -> FaultyBroker:
        self.broker = FaultyBroker(inner=self.broker)
        await self.nursery.start(self.broker.run)
        return self.broker

    async def send(self, *ids: str, queue: EntityPath = ORDERS, body: bytes = b"body") -> None:
        if ids:
            await self.store.send(queue, [Message(message_id=each, body=body) for each in ids])

    def listener(self, handle: Any, queues: Any = "orders", **fields: Any) -> QueueListener[Any]:
        made = {"format": RAW, "clock": VirtualClock(), "rng": random.Random(2), **fields}
        if "options" in made:
            made["options"] = ListenerOptions(**made["options"])
        return QueueListener(
            broker=self.broker,
            queues=queues,
            handle=handle,
            observer=self,
            subscribers=(self,),
            **made,
        )

    async def listen(self, handle: Any, queues: Any = "orders", **fields: Any) -> Any:
        listener = self.listener(handle, queues, **fields)
        await self.nursery.start(listener.run)
        return listener

    def report(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def on_item(self, item: Item[Any]) -> None:
        self.items.append(item)

    def on_error(self, queue: EntityPath, error: Exception) -> None:
        self.errors.append(error)

    def on_completed(self) -> None:
        self.is_completed = True

    async def dead_letters(self, queue: EntityPath = ORDERS) -> list[Message]:
        found = await self.store.peek(queue.dead_letter, limit=1000)
        return [delivery.message for delivery in found]

    async def waiting(self, queue: EntityPath = ORDERS) -> list[str]:
        """Return the ids of the messages in the queue, locked or not."""
        return [each.message.message_id for each in await self.store.peek(queue, limit=1000)]


def ids(items: list[Item[Any]]) -> list[str]:
    return [item.message.message_id for item in items]


async def until(condition: Callable[[], bool], *, seconds: float = 3600.0) -> None:
    """Wait on virtual time; fail if it never becomes true."""
    began = trio.current_time()
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 a condition of any kind, on virtual time
            await trio.sleep(max(0.01, (trio.current_time() - began) / 200))


async def state_of(listener: QueueListener[Any], queue: EntityPath = ORDERS) -> QueueState:
    return (await listener.query_state())[queue]


async def nothing(item: Item[Any]) -> None:
    """A handler that is done at once."""
