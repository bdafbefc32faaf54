"""Streams are read by several clients, each from any place, and nothing is taken from them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import trio

from gateway.brokers.rabbitmq.broker import RabbitmqBroker
from gateway.capabilities import Streams
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityExists, EntityNotFound, NotSupported
from gateway.domain.message import Message
from gateway.offering import required
from tests.brokers.rabbitmq.broker import ORDERS, numbered
from tests.brokers.rabbitmq.nodes import Namespace, Nodes, client
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.live

PAGE = 100


@asynccontextmanager
async def stream(rabbits: Nodes) -> AsyncIterator[tuple[Namespace, EntityPath]]:
    async with rabbits.namespace("secondary") as namespace:
        path = namespace.inside(EntityPath("records"))
        await create(namespace.broker, path)
        try:
            yield namespace, path
        finally:
            with trio.move_on_after(5, shield=True):
                await namespace.broker.delete_queue(path)


async def create(broker: RabbitmqBroker, path: EntityPath) -> None:
    await required(broker, Streams).create_stream(path, keeps=timedelta(hours=1), most=2**20)


async def texts(broker: RabbitmqBroker, path: EntityPath, first: int = 0) -> tuple[list[str], int]:
    """The ids of all messages from that number on, and the number that would be next."""
    found: list[str] = []
    while page := await broker.read_stream(path, from_sequence=first, limit=PAGE):
        assert [each.sequence_number for each in page] == sorted(
            each.sequence_number for each in page
        )
        found += [str(each.message.message_id) for each in page]
        first = page[-1].sequence_number + 1
    return found, first


async def test_each_reader_gets_all_and_later_what_is_new(rabbits: Nodes) -> None:
    ids = [str(number) for number in range(250)]
    async with stream(rabbits) as (namespace, path), client(namespace.port) as other:
        ours = namespace.broker
        assert await texts(ours, path) == ([], 0)
        await ours.send_many(path, [[message] for message in numbered(*ids)])
        first, after = await texts(ours, path)
        again, _ = await texts(other, path)
        nothing, _ = await texts(ours, path, after)
        short = Message(message_id="late", body=b"x", time_to_live=timedelta(milliseconds=1))
        await other.send(path, [short])
        late, _ = await texts(ours, path, after)
        with trio.fail_after(PATIENCE):  # both at once, ten times
            async with trio.open_nursery() as nursery:
                for broker in (ours, other) * 10:
                    nursery.start_soon(texts, broker, path)

    assert first == again == ids
    assert (nothing, late) == ([], ["late"])


async def test_a_stream_that_is_made_again_starts_with_the_first_number(rabbits: Nodes) -> None:
    async with stream(rabbits) as (namespace, path):
        broker = namespace.broker
        await broker.send_many(path, [[message] for message in numbered(*range(20))])
        _, after = await texts(broker, path)
        await broker.delete_queue(path)
        with pytest.raises(EntityNotFound):
            await broker.read_stream(path)
        await create(broker, path)
        await broker.send(path, numbered("new"))
        lost, _ = await texts(broker, path, after)
        found, _ = await texts(broker, path)

    assert (lost, found) == ([], ["new"])


async def test_a_read_that_is_cancelled_gives_its_messages_to_no_other(rabbits: Nodes) -> None:
    async with stream(rabbits) as (namespace, path):
        broker = namespace.broker
        await broker.send_many(path, [[message] for message in numbered(*range(5))])
        for _ in range(20):
            with trio.move_on_after(0.001):
                await texts(broker, path)
            assert (await texts(broker, path))[0] == ["0", "1", "2", "3", "4"]


async def test_another_queue_is_no_stream(rabbits: Nodes) -> None:
    async with stream(rabbits) as (namespace, path):
        await namespace.create_queue(ORDERS, QueueProperties())
        with pytest.raises(EntityExists):
            await create(namespace.broker, namespace.inside(ORDERS))
        with pytest.raises(EntityExists):
            await create(namespace.broker, path)
        await namespace.send(ORDERS, numbered(1))
        with pytest.raises(NotSupported, match="can't be read as a stream"):
            await namespace.broker.read_stream(namespace.inside(ORDERS))
        info = await namespace.inspect(ORDERS)

    assert info.active == 1
