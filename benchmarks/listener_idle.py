"""
Counts the requests for an idle queue: 22 hours on virtual time, through the listener itself.

The namespace must be polled. The source of the comparison polls once a second.
"""

import random
from typing import Final

import attrs
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.listening import RAW, Item, ListenerOptions, QueueListener, Triggers
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.harness.polled import PolledBroker

HOURS: Final = 22
NAIVE: Final = HOURS * 3600  # a thread that looks each second
QUEUE: Final = EntityPath("orders")


@attrs.frozen(kw_only=True)
class Idle:
    """Requests of one listener in that time."""

    name: str
    requests: int

    @property
    def of_naive(self) -> float:
        return self.requests / NAIVE


@attrs.frozen(kw_only=True)
class Way:
    """A way to use a listener."""

    name: str
    polls: bool = True
    triggers: bool = False
    idle_max: float = 60.0  # seconds, the default


SOURCE: Final = Way(name="polling, idle_max = 1s", idle_max=1.0)  # as the source caps it
WAYS: Final = (
    Way(name="polling"),
    Way(name="with triggers", triggers=True),
    Way(name="where the namespace pushes", polls=False),
)


def measure(way: Way) -> Idle:
    counted = 0

    async def main() -> None:
        nonlocal counted
        store = MemoryBroker(VirtualClock(), random.Random(1))
        await store.create_queue(QUEUE, QueueProperties())
        broker: Broker = PolledBroker(inner=store) if way.polls else store
        listener = QueueListener(
            broker=broker,
            queues=QUEUE.name,
            format=RAW,
            handle=_nothing,
            clock=VirtualClock(),
            rng=random.Random(2),
            options=ListenerOptions(idle_max=way.idle_max),
            triggers=Triggers(hears_all_senders=True) if way.triggers else None,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run)
            await trio.sleep(HOURS * 3600)
            counted = sum(state.billed for state in listener.states().values())
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return Idle(name=way.name, requests=counted)


async def _nothing(item: Item[Message]) -> None:
    """A handler that is never called."""
