"""The moment at which a step of the writer is considered to run."""

import random
from datetime import UTC, datetime, timedelta
from itertools import count

import trio

from gateway.domain.clocks.times import Now
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.writer import Writer
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
