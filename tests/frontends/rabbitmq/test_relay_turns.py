"""Beside another client, a client has few publishes and requests at the primary at a time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from pamqp import commands
from trio.testing import wait_all_tasks_blocked

from gateway.net.clients import AWAITED
from tests.frontends.rabbitmq.peers import Harness, harness, with_content

HANDLED = 32  # frames at a time
STEP = HANDLED // 2  # publishes of two frames
MANY = 4 * STEP


@asynccontextmanager
async def beside_another() -> AsyncIterator[tuple[Harness, Harness]]:
    """A client, and another one that has published just now."""
    async with harness(share=2) as here:
        await here.confirmed_once()
        other = await here.another("bert")
        await other.confirmed_once()
        yield here, other


async def publish_many(here: Harness, count: int = MANY) -> None:
    """Publishes that the gateway reads together."""
    publish = with_content(commands.Basic.Publish(routing_key="orders"), b"")
    await here.client.stream.send_all(count * publish)


async def hears(here: Harness, count: int) -> None:
    for _ in range(count):
        await here.primary.hears(commands.Basic.Publish)


async def test_a_client_alone_waits_for_no_confirm(autojump_clock):
    async with harness(share=2) as here:
        await here.confirmed_once()
        await trio.sleep(2)
        began = trio.current_time()
        await publish_many(here)
        await hears(here, MANY)

        assert trio.current_time() == began


async def test_beside_another_client_publishes_wait_for_the_confirm_of_earlier_ones(autojump_clock):
    async with beside_another() as (here, _):
        began = trio.current_time()
        await publish_many(here)
        await hears(here, 2 * STEP)
        await here.primary.send(1, commands.Basic.Ack(1 + STEP, multiple=True))
        await hears(here, STEP)
        assert trio.current_time() == began

        await hears(here, STEP)  # a primary far away confirms later
        assert trio.current_time() == began + AWAITED


async def test_the_other_client_does_not_wait(autojump_clock):
    async with beside_another() as (here, other):
        began = trio.current_time()
        await publish_many(here)
        await hears(here, 2 * STEP)
        await other.client.publish(b"its only one")
        await hears(other, 1)

        assert trio.current_time() == began


async def test_a_connection_that_ends_holds_no_turn(autojump_clock):
    async with beside_another() as (here, _):
        again = await here.another("anna")
        await again.confirmed_once()
        began = trio.current_time()
        await publish_many(here, 2 * STEP)
        await hears(here, 2 * STEP)
        await here.client.stream.aclose()
        await wait_all_tasks_blocked()
        await publish_many(again)
        await hears(again, 2 * STEP)

        assert trio.current_time() == began


async def test_requests_wait_for_the_answers_to_earlier_ones(autojump_clock):
    async with beside_another() as (here, _):
        began = trio.current_time()
        await here.client.send(1, *4 * HANDLED * [commands.Basic.Get(queue="orders")])
        for _ in range(2 * HANDLED):
            await here.primary.hears(commands.Basic.Get)
        await here.primary.send(1, *HANDLED * [commands.Basic.GetEmpty()])
        for _ in range(HANDLED):
            await here.primary.hears(commands.Basic.Get)
        assert trio.current_time() == began

        await here.primary.hears(commands.Basic.Get)
        assert trio.current_time() == began + AWAITED


async def test_settlements_wait_for_nothing(autojump_clock):
    async with beside_another() as (here, _):
        began = trio.current_time()
        await here.client.send(1, *4 * HANDLED * [commands.Basic.Ack(1)])
        for _ in range(4 * HANDLED):
            await here.primary.hears(commands.Basic.Ack)

        assert trio.current_time() == began
