"""The figures of a store's commits."""

from pathlib import Path

import trio

from gateway.store.embedded.broker import EmbeddedBroker
from tests.store.embedded.stores import ORDERS, embedded, numbered

SENDS = 20


async def send(broker: EmbeddedBroker, number: int) -> None:
    await broker.send(ORDERS, numbered(number))


async def test_each_operation_is_counted_in_one_commit(tmp_path: Path) -> None:
    async with embedded(tmp_path) as broker:
        before = broker.commits.operations.read().total
        async with trio.open_nursery() as nursery:
            for number in range(SENDS):
                nursery.start_soon(send, broker, number)
    operations, seconds = broker.commits.operations.read(), broker.commits.seconds.read()

    assert operations.total - before >= SENDS
    assert operations.count == seconds.count
    assert 0 < seconds.total < 60
