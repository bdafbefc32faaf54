"""Settlements in a transaction: judged at once, and done at its commit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from pamqp import base, commands

from tests.frontends.rabbitmq_broker.site import Client, Site, site

COMMIT = commands.Tx.Commit(), commands.Tx.CommitOk
ROLLBACK = commands.Tx.Rollback(), commands.Tx.RollbackOk


@asynccontextmanager
async def transaction(messages: int) -> AsyncIterator[tuple[Client, Site]]:
    """A client with a transaction, which has so many messages of a queue."""
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        for number in range(messages):
            await client.publish(b"%d" % number, "orders")
        await client.asks(commands.Tx.Select(), commands.Tx.SelectOk)
        for _ in range(messages):
            assert await client.gets("orders", no_ack=False) is not None
        yield client, here


@pytest.mark.parametrize(
    "wrong",
    [
        commands.Basic.Ack(1),
        commands.Basic.Ack(1, multiple=True),
        commands.Basic.Nack(7),
        commands.Basic.Ack(7, multiple=True),
        commands.Basic.Reject(7),
    ],
)
async def test_a_tag_that_is_unknown_is_refused_before_the_commit(
    autojump_clock, wrong: base.Frame
) -> None:
    async with transaction(2) as (client, _):
        await client.send(commands.Basic.Ack(1))

        await client.is_refused(wrong, 406, "unknown delivery tag")


async def test_a_settlement_of_several_is_for_those_that_were_there(autojump_clock) -> None:
    async with transaction(1) as (client, here):
        other = await here.connect()
        await client.send(commands.Basic.Ack(0, multiple=True))
        await other.publish(b"later", "orders")
        assert (await client.gets("orders", no_ack=False)) is not None
        await client.asks(*COMMIT)
        await client.asks(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)

        assert (await other.until_it_gets("orders")).body == b"later"


async def test_a_recovery_brings_back_what_no_transaction_settles(autojump_clock) -> None:
    async with transaction(2) as (client, _):
        await client.send(commands.Basic.Ack(1))
        await client.asks(commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)

        got = await client.gets("orders")
        assert got is not None
        assert got.body == b"1"
        assert await client.gets("orders") is None


async def test_a_delivery_may_be_settled_again_after_a_rollback(autojump_clock) -> None:
    async with transaction(3) as (client, here):
        await client.send(commands.Basic.Ack(2), commands.Basic.Nack(3, requeue=False))
        await client.asks(*ROLLBACK)
        await client.send(commands.Basic.Ack(1, multiple=True), commands.Basic.Ack(2))
        await client.send(commands.Basic.Nack(3))
        await client.asks(*COMMIT)

        assert await here.bodies("orders") == [b"2"]


async def test_a_prefetch_has_room_again_after_the_commit(autojump_clock) -> None:
    async with transaction(0) as (client, here):
        other = await here.connect()
        await client.asks(commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        await client.asks(commands.Basic.Consume(queue="orders"), commands.Basic.ConsumeOk)
        for number in range(2):
            await other.publish(b"%d" % number, "orders")
        await client.hears(commands.Basic.Deliver)
        await client.send(commands.Basic.Ack(1))
        await trio.sleep(5)
        assert client.arrived == []
        await client.send(commands.Tx.Commit())

        answers = [await client.next(), await client.next()]
        assert [each.body for each in answers if each.body] == [b"1"]


async def test_a_lock_is_renewed_until_the_commit(autojump_clock) -> None:
    async with transaction(1) as (client, here):
        await client.send(commands.Basic.Ack(1))
        await trio.sleep(3600)
        await client.asks(*COMMIT)

        assert await here.bodies("orders") == []
