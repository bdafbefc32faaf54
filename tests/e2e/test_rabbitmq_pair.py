"""
The pair on two real nodes of RabbitMQ, as `conf/examples/rabbitmq-pair.toml` has it, under load of
the official Service Bus SDK: each trouble of the primary, the producers' outcomes, and the verdict.
"""

import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from gateway.checker.verdict import Verdict
from tests.e2e.processes import Gateways
from tests.e2e.rabbitmq_nodes import VHOST, ExampleNode, ExampleNodes, Listed
from tests.e2e.rabbitmq_pair import (
    ORDERS,
    Installation,
    emptied,
    example,
    judged,
    provision,
    sending,
)
from tests.harness import servers
from tests.harness.chaos_proxy import BlackHole, ChaosProxy, Pass
from tests.harness.patience import PATIENCE

pytestmark = [pytest.mark.live, pytest.mark.slow]

DEFINITIONS = "rabbitmq-definitions.json"
NORTH = "rabbitmqs://gateway@rabbit-north.example.net/pairgate"
SOUTH = (
    "rabbitmqs://gateway@rabbit-south-1.example.net,rabbit-south-2.example.net,"
    "rabbit-south-3.example.net/pairgate"
)
SOME = 50  # messages
# Copies that are legal, since the senders were told "unknown" and sent again: one of each sender.
ON_THEIR_WAY = 8


@attrs.define(eq=False)
class Harness:
    """The pair, whose gateway reaches the primary through a proxy."""

    north: ExampleNode
    south: ExampleNode
    proxy: ChaosProxy
    gateways: Gateways
    config: str
    run: Installation

    async def verdict(self, spare: int = 0) -> Verdict:
        """
        All is over: the backlog is home, the gateway has ended well, every queue is read. Copies
        that the gateway has told of are legal, and so are `spare` others.
        """
        await self.run.senders.stop()
        await self.run.drained()
        assert await self.run.gateway.stop() == 0
        async with self.north.client() as primary, self.south.client() as secondary:
            return await judged(
                self.run,
                Listed(primary, await self.north.queues()),
                Listed(secondary, await self.south.queues()),
                spare,
            )


@asynccontextmanager
async def harness_on(
    rabbits: ExampleNodes, gateways: Gateways, *, is_newer: bool = False
) -> AsyncIterator[Harness]:
    north, south = rabbits.newer_north if is_newer else rabbits.north, rabbits.south
    async with trio.open_nursery() as nursery:
        for node in (north, south):
            nursery.start_soon(node.prepare, DEFINITIONS)
    proxy = ChaosProxy("127.0.0.1", north.node.port, rng=random.Random(0))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(proxy.serve)
        urls = {
            NORTH: f"rabbitmq://gateway@127.0.0.1:{port}/{VHOST}",
            SOUTH: f"rabbitmq://gateway@127.0.0.1:{south.node.port}/{VHOST}",
        }
        config = example("rabbitmq-pair.toml", "rabbit-north", urls)
        await provision(gateways, config)
        await north.keep_queues()
        gateway = await gateways.start(config, name="gateway")
        async with sending(gateway) as run:
            await run.senders.acknowledge(SOME)
            yield Harness(north, south, proxy, gateways, config, run)
        nursery.cancel_scope.cancel()


# Outages: no producer notices.


async def kill(harness: Harness) -> None:
    await harness.north.node.kill()


async def start(harness: Harness) -> None:
    await harness.north.node.start()


async def freeze(harness: Harness) -> None:
    await servers.freeze(harness.north.node.process.pid)


async def thaw(harness: Harness) -> None:
    await trio.lowlevel.checkpoint()
    os.kill(harness.north.node.process.pid, signal.SIGCONT)


async def blackhole(harness: Harness) -> None:
    await trio.lowlevel.checkpoint()
    harness.proxy.fault = BlackHole()


async def let_through(harness: Harness) -> None:
    await trio.lowlevel.checkpoint()
    harness.proxy.fault = Pass()


async def raise_alarm(harness: Harness) -> None:
    await harness.north.limit_memory(0.000001)


async def end_alarm(harness: Harness) -> None:
    await harness.north.limit_memory(0.4)


Act = Callable[[Harness], Awaitable[None]]


@pytest.mark.parametrize(
    ("harm", "heal", "is_newer"),
    [
        (kill, start, False),
        (kill, start, True),
        (freeze, thaw, False),
        (blackhole, let_through, False),
        (raise_alarm, end_alarm, False),
        (raise_alarm, end_alarm, True),
    ],
    ids=[
        "killed",
        "killed, RabbitMQ 4",
        "frozen",
        "in a black hole",
        "in a memory alarm",
        "in a memory alarm, RabbitMQ 4",
    ],
)
async def test_no_producer_notices_an_outage_and_nothing_is_lost(
    rabbits: ExampleNodes, gateways: Gateways, harm: Act, heal: Act, is_newer: bool
) -> None:
    async with harness_on(rabbits, gateways, is_newer=is_newer) as harness:
        try:
            await harm(harness)
            await harness.run.failed_over()
            await harness.run.senders.acknowledge(SOME)
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                await heal(harness)
        await harness.run.came_back()
        await harness.run.senders.acknowledge(SOME)
        verdict = await harness.verdict()

    said = harness.run.describe(verdict)
    print(said)  # noqa: T201 the figures of a good run
    assert verdict.passed, said
    assert not harness.run.senders.errors, said
    assert harness.run.states[0] == "suspect", said
    assert "secondary" in harness.run.states, said
    assert harness.run.diverted >= SOME, said


# Errors that are no outage: the producer is told, and nothing fails over.


async def delete_queue(harness: Harness) -> None:
    """Empty the queue, as its owner does, and delete it."""
    await harness.run.senders.rest()
    async with harness.north.client() as broker:
        harness.run.received += await emptied(broker)
        await broker.delete_queue(ORDERS)
    await harness.run.senders.go()


async def make_queue(harness: Harness) -> None:
    await provision(harness.gateways, harness.config)


async def fill_quota(harness: Harness) -> None:
    await harness.north.control(
        "set_policy", "-p", VHOST, "--priority", "9", "quota", "^orders$", '{"max-length": 10}'
    )


async def raise_quota(harness: Harness) -> None:
    await harness.north.control("clear_policy", "-p", VHOST, "quota")


async def take_rights(harness: Harness) -> None:
    await harness.north.take_rights("gateway")


async def give_rights(harness: Harness) -> None:
    await harness.north.give_rights("gateway")


ERRORS: Mapping[str, tuple[Act, Act]] = {
    "MessagingEntityNotFoundError": (delete_queue, make_queue),
    "ServiceBusQuotaExceededError": (fill_quota, raise_quota),
    "ServiceBusAuthorizationError": (take_rights, give_rights),
}


async def test_an_error_that_is_no_outage_is_told_the_producer_and_nothing_is_lost(
    rabbits: ExampleNodes, gateways: Gateways
) -> None:
    async with harness_on(rabbits, gateways) as harness:
        senders = harness.run.senders
        for error, (harm, heal) in ERRORS.items():
            before = set(senders.errors)
            try:
                await harm(harness)
                await senders.be_refused(SOME)
            finally:
                with trio.move_on_after(PATIENCE, shield=True):
                    await heal(harness)
            await senders.rest()
            assert set(senders.errors) - before == {error}, senders.described
            await senders.go()
            await senders.acknowledge(SOME)
        verdict = await harness.verdict(ON_THEIR_WAY)

    said = harness.run.describe(verdict)
    print(said)  # noqa: T201 the figures of a good run
    assert verdict.passed, said
    assert "secondary" not in harness.run.states, said
