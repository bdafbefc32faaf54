"""A listener with many queues opens some of them at a time, however often it has to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import ceil, inf

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable
from gateway.domain.events.gateway import ListenerFailed
from gateway.domain.message import ReceiveMode
from gateway.listening.listener import OPENED_AT_ONCE
from gateway.listening.options import ListenerOptions
from gateway.ports import Receiver
from tests.harness.polled import PolledBroker, PolledReceiver
from tests.listening.harness import Harness, ids, nothing, until, virtual_time

pytestmark = virtual_time

QUEUES = 2 * OPENED_AT_ONCE + 20
SECONDS = 1.0  # seconds that an open takes
TIMEOUT = ListenerOptions().answer_timeout


@attrs.define(eq=False, kw_only=True)
class SlowToOpen(PolledBroker):
    """`most` is the number of receivers that were being opened together."""

    seconds: float = SECONDS
    connection: trio.Event = attrs.field(factory=trio.Event)  # set: it is lost
    opening: int = 0
    most: int = 0
    opened: int = 0

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        self.opening += 1
        self.most = max(self.most, self.opening)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.opening -= 1
        self.opened += 1
        async with self.inner.open_receiver(entity, mode) as receiver:
            yield BreakingReceiver(
                broker=self, entity=entity, inner=receiver, connection=self.connection
            )

    def lose(self) -> None:
        """Break all receivers. Those that are opened from now on work."""
        lost, self.connection = self.connection, trio.Event()
        lost.set()


@attrs.define(eq=False, kw_only=True)
class BreakingReceiver(PolledReceiver):
    connection: trio.Event

    async def poll(self, limit, lock=None):
        if self.connection.is_set():
            await trio.lowlevel.checkpoint()
            raise Unavailable("the connection was lost")
        return await PolledReceiver.poll(self, limit, lock)


@pytest.fixture
async def names(harness: Harness) -> list[str]:
    found = [f"queue-{number}" for number in range(QUEUES)]
    for name in found:
        await harness.create(EntityPath(name))
    return found


async def test_many_queues_are_opened_some_at_a_time(harness, names):
    broker = harness.broker = SlowToOpen(inner=harness.store)
    began = trio.current_time()
    await harness.listen(nothing, " ".join(names))

    assert trio.current_time() - began == pytest.approx(ceil(QUEUES / OPENED_AT_ONCE) * SECONDS)
    assert broker.opened == QUEUES
    assert broker.most == OPENED_AT_ONCE


async def test_many_queues_are_opened_some_at_a_time_after_the_loss_of_their_connection(
    harness, names
):
    broker = harness.broker = SlowToOpen(inner=harness.store)
    await harness.listen(nothing, " ".join(names), options={"idle_max": 5.0})
    broker.most = 0
    broker.lose()
    await until(lambda: broker.opened == 2 * QUEUES)

    assert len(harness.of(ListenerFailed)) == QUEUES
    assert broker.most == OPENED_AT_ONCE


async def test_a_namespace_that_does_not_answer_has_started_after_one_attempt_of_each_queue(
    harness, names
):
    broker = harness.broker = SlowToOpen(inner=harness.store, seconds=inf)
    began = trio.current_time()
    await harness.listen(nothing, " ".join(names))

    assert trio.current_time() - began == pytest.approx(ceil(QUEUES / OPENED_AT_ONCE) * TIMEOUT)
    assert broker.most == OPENED_AT_ONCE


async def test_a_queue_that_waits_for_its_turn_has_the_whole_timeout_then(harness, names):
    broker = harness.broker = SlowToOpen(inner=harness.store, seconds=0.9 * TIMEOUT)
    await harness.send("m", queue=EntityPath(names[-1]))
    await harness.listen(nothing, " ".join(names))
    await until(lambda: bool(harness.items))

    assert ids(harness.items) == ["m"]
    assert harness.of(ListenerFailed) == []
    assert broker.opened == QUEUES


async def test_a_drain_ends_those_that_wait_for_their_turn(harness, names):
    broker = harness.broker = SlowToOpen(inner=harness.store, seconds=inf)
    listener = harness.listener(nothing, " ".join(names))
    harness.nursery.start_soon(listener.run)
    await trio.sleep(1.0)
    began = trio.current_time()
    await listener.drain()

    assert trio.current_time() - began <= TIMEOUT
    assert broker.most == OPENED_AT_ONCE
    assert harness.is_completed
