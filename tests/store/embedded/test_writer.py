"""The moment at which a step of the writer is considered to run."""

import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import attrs
import trio

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.writer import Writer
from gateway.store.engine.deliveries import StepReport
from gateway.store.local.step import Step
from tests.store.embedded.stores import ORDERS, numbered


def unopened() -> Committer:
    raise AssertionError("not opened in these tests")


def a_writer() -> Writer:
    return Writer(open=unopened, tell=lambda _: None, most_steps=10, most_bytes=10)


async def test_steps_within_a_millisecond_share_a_reading_of_the_clocks(autojump_clock):
    writer, numbers = a_writer(), count()

    def read() -> Now:
        return Now(next(numbers), trio.current_time())

    first = writer.now(read)
    await trio.sleep(0.0005)
    second = writer.now(read)
    await trio.sleep(0.0006)
    third = writer.now(read)

    assert [each.wall for each in (first, second, third)] == [0, 0, 1]


async def test_a_step_after_another_one_was_committed_has_its_own_date(tmp_path):
    date = datetime(2026, 1, 1, tzinfo=UTC)
    options = EmbeddedOptions(create_missing=True)
    async with EmbeddedBroker(tmp_path / "a.db", lambda: date, random.Random(0), options) as broker:
        await broker.send(ORDERS, numbered(1))
        date += timedelta(hours=1)
        await broker.send(ORDERS, numbered(2))
        first, second = await broker.peek(ORDERS, limit=2)

    assert second.enqueued - first.enqueued == timedelta(hours=1)


async def test_concurrent_steps_have_dates_in_their_order(tmp_path):
    dates = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=each) for each in count())
    options = EmbeddedOptions(create_missing=True)
    async with EmbeddedBroker(
        tmp_path / "a.db", lambda: next(dates), random.Random(0), options
    ) as broker:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(broker.send, ORDERS, numbered(number))
        stored = await broker.peek(ORDERS, limit=50)

    enqueued = [each.enqueued for each in stored]
    assert enqueued == sorted(enqueued)


@attrs.define
class NotedBatches:
    """A committer that notes its batches, and runs none before it may."""

    begun: threading.Event = attrs.field(factory=threading.Event)
    may_run: threading.Event = attrs.field(factory=threading.Event)
    batches: list[list[tuple[str, int]]] = attrs.field(factory=list)
    failed: str = ""
    untidy: bool = False

    def run(self, steps: Sequence[Step[Any]]) -> StepReport:
        self.begun.set()
        self.may_run.wait()
        self.batches.append([(step.path.name, step.now.wall) for step in steps])
        return StepReport()

    def shorten_log(self) -> None: ...

    def close(self) -> None: ...


async def test_each_large_read_runs_alone_after_the_steps_that_came_meanwhile():
    committer = NotedBatches()
    writer = Writer(open=lambda: committer, tell=lambda _: None, most_steps=10, most_bytes=10**6)
    await writer.start()
    dates = count()

    def post(name: str, *, is_large_read: bool = False) -> None:
        now = next(dates)
        step = Step(EntityPath(name), Now(now, now), lambda *_: None, is_large_read=is_large_read)
        writer.post(step)

    post("send 0")
    await trio.to_thread.run_sync(committer.begun.wait)
    for number in (1, 2):
        post(f"peek {number}", is_large_read=True)
        post(f"send {number}")
    committer.may_run.set()
    await writer.stop()

    assert committer.batches == [
        [("send 0", 0)],
        [("send 1", 2), ("send 2", 4)],
        [("peek 1", 4)],
        [("peek 2", 4)],
    ]
