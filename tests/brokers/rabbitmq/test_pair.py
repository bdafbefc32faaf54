"""
The pair of two RabbitMQs: each trouble of the primary, the answers to senders, and the way home.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import attrs
import pytest
import trio

from gateway.capabilities import send_accepted_by
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, EntityNotFound, QuotaExceeded
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy, Complete, Message
from gateway.pairing.pair import Pair
from tests.brokers.pairs import pair_of, syphon_of
from tests.brokers.rabbitmq.nodes import Namespace, Nodes, client
from tests.harness.chaos_proxy import BlackHole, ChaosProxy, Pass, Refuse
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import limit_memory

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")


def real_date() -> datetime:
    return datetime.now(UTC)


def message(number: object) -> Message:
    return Message(message_id=str(number), body=b"x", session_id="s", properties={"n": 1})


@attrs.frozen
class Harness:
    """A pair whose primary is reached through a proxy, and a direct connection to the primary."""

    pair: Pair
    primary: Namespace
    proxy: ChaosProxy
    secondary: Namespace
    nodes: Nodes

    def state(self) -> State:
        return next(
            (each.state for each in self.pair.states.troubled() if each.entity == ORDERS),
            State.PRIMARY,
        )

    async def send_until_diverted(self) -> list[str]:
        """Send until a message is diverted, without an error; return the ids that were accepted."""
        accepted, accepted_by = [], None
        with trio.fail_after(PATIENCE):
            while accepted_by is not AcceptedBy.BACKLOG or self.state() is not State.SECONDARY:
                accepted.append(str(len(accepted)))
                accepted_by = await send_accepted_by(
                    self.pair.broker, ORDERS, [message(accepted[-1])]
                )
                await trio.sleep(0.02)  # a suspect entity's sends don't wait: they would be many
        return accepted

    async def arrived(self, wanted: list[str]) -> set[str]:
        """Run a syphon until all of these are on the primary; take them there."""
        taken: set[str] = set()
        syphon = syphon_of(self.primary, self.secondary, real_date)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery, self.primary.open_receiver(ORDERS) as orders:
                await nursery.start(syphon.run)
                while not set(wanted) <= taken:
                    for delivery in await orders.receive(100):
                        taken.add(delivery.message.message_id)
                        assert delivery.message.session_id == "s"
                        await orders.settle(delivery, Complete())
                nursery.cancel_scope.cancel()
        return taken


@asynccontextmanager
async def harness_on(nodes: Nodes) -> AsyncIterator[Harness]:
    proxy = ChaosProxy("127.0.0.1", nodes.port("primary"), rng=random.Random(0))
    async with (
        nodes.namespace("primary") as primary,
        nodes.namespace("secondary") as secondary,
        trio.open_nursery() as nursery,
    ):
        port = await nursery.start(proxy.serve)
        await primary.create_queue(ORDERS, QueueProperties())
        async with (
            client(port, heartbeat=2.0, connect_timeout=2.0) as broker,
            pair_of(
                Namespace(broker, primary.name, port),
                secondary,
                real_date,
                failover_interval=0.5,
                attempt_timeout=3.0,
                ping_interval=1.0,
            ) as pair,
        ):
            yield Harness(pair, primary, proxy, secondary, nodes)
        nursery.cancel_scope.cancel()


async def black_hole(harness: Harness) -> None:
    await trio.lowlevel.checkpoint()
    harness.proxy.fault = BlackHole()


async def refuse(harness: Harness) -> None:
    await trio.lowlevel.checkpoint()
    harness.proxy.fault = Refuse()
    harness.proxy.reset_all()


async def alarm(harness: Harness) -> None:
    await limit_memory(harness.nodes.process("primary"), 0.000001)


async def heal(harness: Harness) -> None:
    harness.proxy.fault = Pass()
    # A connection that has lost bytes hangs, which would be a second outage.
    harness.proxy.reset_all()
    await limit_memory(harness.nodes.process("primary"), 0.4)


@pytest.mark.parametrize("trouble", [black_hole, refuse, alarm], ids=lambda each: each.__name__)
async def test_a_message_that_a_troubled_primary_can_not_take_goes_to_the_backlog_and_comes_home(
    rabbits: Nodes, trouble: Callable[[Harness], Awaitable[None]]
) -> None:
    async with harness_on(rabbits) as harness:
        assert (
            await send_accepted_by(harness.pair.broker, ORDERS, [message("before")])
            is AcceptedBy.PRIMARY
        )
        try:
            await trouble(harness)
            accepted = await harness.send_until_diverted()
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                await heal(harness)
        with trio.fail_after(PATIENCE):
            while harness.state() is not State.PRIMARY:
                accepted.append(f"after {len(accepted)}")
                await harness.pair.broker.send(ORDERS, [message(accepted[-1])])
                await trio.sleep(0.1)

        assert await harness.arrived(["before", *accepted]) == {"before", *accepted}


@pytest.mark.parametrize("error", [EntityNotFound, QuotaExceeded], ids=lambda each: each.__name__)
async def test_an_error_that_is_no_outage_goes_to_the_sender(
    rabbits: Nodes, error: type[BrokerError]
) -> None:
    async with harness_on(rabbits) as harness:
        await harness.pair.broker.send(ORDERS, [message("before")])
        await harness.primary.delete_queue(ORDERS)
        if error is QuotaExceeded:
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await harness.primary.declare(ORDERS, full)
            await harness.pair.broker.send(ORDERS, [message("fills it")])
        with pytest.raises(error):
            await harness.pair.broker.send(ORDERS, [message("refused")])

        assert harness.state() is State.PRIMARY
