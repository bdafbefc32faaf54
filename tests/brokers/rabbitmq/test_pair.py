"""The pair of two RabbitMQs: each trouble of the primary, what senders see, and the way home."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, EntityNotFound, QuotaExceeded
from gateway.domain.failover import State
from gateway.domain.message import Complete, Leg, Message
from gateway.pairing.pair import Pair
from gateway.testing.chaos_proxy import BlackHole, ChaosProxy, Pass, Refuse
from gateway.testing.rabbitmq import control
from tests.brokers.pairs import pair_of, syphon_of
from tests.brokers.rabbitmq.nodes import Nodes, Room, client

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")
PATIENCE = 30  # seconds


def real_date() -> datetime:
    return datetime.now(UTC)


def message(number: object) -> Message:
    return Message(message_id=str(number), body=b"x", session_id="s", properties={"n": 1})


@attrs.frozen
class Lab:
    """A pair whose primary is reached through a proxy, and how to look at it directly."""

    pair: Pair
    primary: Room
    proxy: ChaosProxy
    secondary: Room
    nodes: Nodes

    def state(self) -> State:
        return next(
            (each.state for each in self.pair.standings.troubled() if each.entity == ORDERS),
            State.PRIMARY,
        )

    async def send_until_diverted(self) -> list[str]:
        """With no error to the sender; return what it was told is accepted."""
        accepted, leg = [], None
        with trio.fail_after(PATIENCE):
            while leg is not Leg.BACKLOG or self.state() is not State.SECONDARY:
                accepted.append(str(len(accepted)))
                leg = await self.pair.broker.send(ORDERS, [message(accepted[-1])])
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
async def lab_on(nodes: Nodes) -> AsyncIterator[Lab]:
    proxy = ChaosProxy("127.0.0.1", nodes.port("primary"), rng=random.Random(0))
    async with (
        nodes.room("primary") as primary,
        nodes.room("secondary") as secondary,
        trio.open_nursery() as nursery,
    ):
        port = await nursery.start(proxy.serve)
        await primary.create_queue(ORDERS, QueueProperties())
        async with (
            client(port, heartbeat=1.0, connect_timeout=0.3) as broker,
            pair_of(
                Room(broker, primary.name, port),
                secondary,
                real_date,
                failover_interval=0.5,
                attempt_timeout=1.0,
                ping_interval=1.0,
            ) as pair,
        ):
            yield Lab(pair, primary, proxy, secondary, nodes)
        nursery.cancel_scope.cancel()


async def black_hole(lab: Lab) -> None:
    await trio.lowlevel.checkpoint()
    lab.proxy.fault = BlackHole()


async def refuse(lab: Lab) -> None:
    await trio.lowlevel.checkpoint()
    lab.proxy.fault = Refuse()
    lab.proxy.reset_all()


async def alarm(lab: Lab) -> None:
    await control(lab.nodes.process("primary"), "set_vm_memory_high_watermark", "0.000001")


async def heal(lab: Lab) -> None:
    lab.proxy.fault = Pass()
    await control(lab.nodes.process("primary"), "set_vm_memory_high_watermark", "0.4")


@pytest.mark.parametrize("trouble", [black_hole, refuse, alarm], ids=lambda each: each.__name__)
async def test_what_a_primary_in_trouble_can_not_take_goes_to_the_backlog_and_comes_home(
    rabbits: Nodes, trouble: Callable[[Lab], Awaitable[None]]
) -> None:
    async with lab_on(rabbits) as lab:
        assert await lab.pair.broker.send(ORDERS, [message("before")]) is Leg.PRIMARY
        try:
            await trouble(lab)
            accepted = await lab.send_until_diverted()
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                await heal(lab)
        with trio.fail_after(PATIENCE):
            while lab.state() is not State.PRIMARY:
                accepted.append(f"after {len(accepted)}")
                await lab.pair.broker.send(ORDERS, [message(accepted[-1])])
                await trio.sleep(0.1)

        assert await lab.arrived(["before", *accepted]) == {"before", *accepted}


@pytest.mark.parametrize("error", [EntityNotFound, QuotaExceeded], ids=lambda each: each.__name__)
async def test_what_is_no_outage_goes_to_the_sender(
    rabbits: Nodes, error: type[BrokerError]
) -> None:
    async with lab_on(rabbits) as lab:
        await lab.pair.broker.send(ORDERS, [message("before")])
        await lab.primary.delete_queue(ORDERS)
        if error is QuotaExceeded:
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await lab.primary.declare(ORDERS, full)
            await lab.pair.broker.send(ORDERS, [message("fills it")])
        with pytest.raises(error):
            await lab.pair.broker.send(ORDERS, [message("refused")])

        assert lab.state() is State.PRIMARY
