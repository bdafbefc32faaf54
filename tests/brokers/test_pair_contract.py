"""A pair keeps more than the contract of a broker, while its primary is dead and afterwards."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.abc import Clock
from trio.testing import MockClock

from gateway.capabilities import send_accepted_by
from gateway.domain.backlog import is_backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, Unavailable
from gateway.domain.message import AcceptedBy, Complete, Delivery, Message
from gateway.extensions.announcements.interceptor import Announcing
from gateway.interception.broker import InterceptedBroker
from gateway.ports import Broker, WallClock
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.abilities import AbilityWatch
from tests.brokers.amqp.served import client as amqp_client
from tests.brokers.kinds import real_date
from tests.brokers.pairs import BACKLOG_QUEUES, pair_of, syphon_of
from tests.brokers.servicebus.served import client
from tests.e2e.processes import broker_config, open_gateways
from tests.e2e.rest import KEY, KEY_NAME
from tests.extensions.claims.harness import Events, MemoryClaimStore, claimed, packing
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker
from tests.harness.patience import PATIENCE
from tests.harness.watched import watched

ORDERS = EntityPath("orders")
NEW = EntityPath("new")


@attrs.frozen(kw_only=True)
class Sides:
    """Two namespaces, of which the primary dies and comes back."""

    primary: Broker
    secondary: Broker
    clock: WallClock
    kill: Callable[[], Awaitable[None]]
    revive: Callable[[], Awaitable[None]]


@asynccontextmanager
async def local(primary: Broker, secondary: Broker, clock: WallClock) -> AsyncIterator[Sides]:
    faulty = FaultyBroker(inner=primary)

    async def kill() -> None:
        await trio.lowlevel.checkpoint()
        faulty.crash()

    async def revive() -> None:
        await trio.lowlevel.checkpoint()
        faulty.restart()

    async with trio.open_nursery() as nursery:
        await nursery.start(faulty.run)
        yield Sides(primary=faulty, secondary=secondary, clock=clock, kill=kill, revive=revive)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def memory(_folder: Path) -> AsyncIterator[Sides]:
    clock, rng = VirtualClock(), random.Random(0)
    async with local(MemoryBroker(clock, rng), MemoryBroker(clock, rng), clock) as sides:
        yield sides


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Sides]:
    rng = random.Random(0)
    async with (
        EmbeddedBroker(folder / "primary.db", real_date, rng) as primary,
        EmbeddedBroker(folder / "secondary.db", real_date, rng) as secondary,
        local(primary, secondary, real_date) as sides,
    ):
        yield sides


@asynccontextmanager
async def processes(folder: Path) -> AsyncIterator[Sides]:
    async with between(folder, broker_config(), client) as sides:
        yield sides


@asynccontextmanager
async def processes_over_amqp(folder: Path) -> AsyncIterator[Sides]:
    config = broker_config().replace("service-bus-http", "service-bus")
    async with between(folder, config, amqp_client) as sides:
        yield sides


@asynccontextmanager
async def between(
    folder: Path, config: str, connect: Callable[..., AbstractAsyncContextManager[Broker]]
) -> AsyncIterator[Sides]:
    async with open_gateways(folder) as gateways:
        one, other = gateways.prepare(config), gateways.prepare(config)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.start)
            nursery.start_soon(other.start)
        async with (
            connect(one.port, key_name=KEY_NAME, key=KEY) as primary,
            connect(other.port, key_name=KEY_NAME, key=KEY) as secondary,
        ):
            yield Sides(
                primary=primary,
                secondary=secondary,
                clock=real_date,
                kill=one.kill,
                revive=one.start,
            )


OpenSides = Callable[[Path], AbstractAsyncContextManager[Sides]]


@pytest.fixture(
    params=[memory, embedded, processes, processes_over_amqp], ids=lambda kind: kind.__name__
)
def open_sides(request: pytest.FixtureRequest) -> OpenSides:
    return request.param


@pytest.fixture
def clock(open_sides: OpenSides) -> Clock | None:
    return MockClock(autojump_threshold=0) if open_sides is memory else None


@pytest.fixture
async def sides(open_sides: OpenSides, clock: Clock | None, tmp_path: Path) -> AsyncIterator[Sides]:
    async with open_sides(tmp_path) as sides:
        yield sides


async def take(broker: Broker, wanted: int) -> list[Message]:
    taken: list[Delivery] = []
    with trio.fail_after(PATIENCE):
        async with broker.open_receiver(ORDERS) as receiver:
            while len(taken) < wanted:
                deliveries = await receiver.receive(wanted - len(taken))
                for delivery in deliveries:
                    await receiver.settle(delivery, Complete())
                taken += deliveries
    return [delivery.message for delivery in taken]


async def left_on_the_backlog(secondary: Broker) -> int:
    infos = [info for info in await secondary.list_queues() if is_backlog(info.path)]
    assert len(infos) == BACKLOG_QUEUES
    return sum(info.active or 0 for info in infos)


async def drain(sides: Sides) -> None:
    """Run a syphon until the backlog is empty."""
    syphon = syphon_of(sides.primary, sides.secondary, sides.clock)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(syphon.run)
            while await left_on_the_backlog(sides.secondary):  # noqa: ASYNC110 no event reports it
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()


async def test_a_message_to_a_dead_primary_comes_home_when_it_lives_again(sides):
    messages = [Message(message_id=str(number), body=b"x") for number in range(10)]
    async with pair_of(sides.primary, sides.secondary, sides.clock) as pair:
        await sides.primary.create_queue(ORDERS, QueueProperties())
        healthy = await send_accepted_by(pair.broker, ORDERS, messages[:2])
        await sides.kill()
        accepted = [
            await send_accepted_by(pair.broker, ORDERS, [message]) for message in messages[2:8]
        ]
        accepted.append(await send_accepted_by(pair.broker, ORDERS, messages[8:]))
        backlog = await left_on_the_backlog(sides.secondary)
        await sides.revive()
        await drain(sides)
        taken = await take(pair.broker, len(messages))

    assert (healthy, set(accepted), backlog) == (AcceptedBy.PRIMARY, {AcceptedBy.BACKLOG}, 8)
    assert sorted(taken, key=lambda message: message.message_id) == messages


async def test_everything_but_a_send_fails_as_the_dead_primary_does(sides):
    async def receive(broker: Broker) -> None:
        with trio.fail_after(PATIENCE):
            async with broker.open_receiver(ORDERS) as receiver:
                await receiver.receive(1)

    async def error_of(operation: Callable[[Broker], Awaitable[object]], broker: Broker) -> str:
        with pytest.raises(BrokerError) as caught:
            await operation(broker)
        assert isinstance(caught.value, Unavailable)
        return str(caught.value)

    operations: list[Callable[[Broker], Awaitable[object]]] = [
        receive,
        lambda broker: broker.probe(ORDERS),
        lambda broker: broker.inspect(ORDERS),
        lambda broker: broker.list_queues(),
        lambda broker: broker.create_queue(NEW, QueueProperties()),
        lambda broker: broker.delete_queue(ORDERS),
    ]
    async with pair_of(sides.primary, sides.secondary, sides.clock) as pair:
        await sides.primary.create_queue(ORDERS, QueueProperties())
        await sides.kill()
        through_the_pair = [await error_of(operation, pair.broker) for operation in operations]
        of_the_primary = [await error_of(operation, sides.primary) for operation in operations]

    assert through_the_pair == of_the_primary


async def test_through_all_wrappers_at_once_the_pair_says_who_accepted(sides):
    """Alone, packed with another sender's messages, and with a body in the store."""
    told = []

    async def send(broker, name, body=b"x"):
        sent = [Message(message_id=name, body=body)]
        told.append(await send_accepted_by(broker, ORDERS, sent))

    async with pair_of(sides.primary, sides.secondary, sides.clock) as pair:
        await sides.primary.create_queue(ORDERS, QueueProperties())
        seen = watched(pair.broker, AbilityWatch(clock=sides.clock))
        announced = InterceptedBroker(seen, [Announcing(lambda queue, size: None)])
        store = MemoryClaimStore(sides.clock)
        broker = packing(claimed(announced, store, sides.clock, Events(), above=4))
        await send(broker, "healthy")
        await sides.kill()
        await send(broker, "alone", body=b"large")
        async with trio.open_nursery() as running:
            await running.start(broker.run)
            async with trio.open_nursery() as senders:
                senders.start_soon(send, broker, "packed 1")
                senders.start_soon(send, broker, "packed 2")
            running.cancel_scope.cancel()

    assert told == [AcceptedBy.PRIMARY] + [AcceptedBy.BACKLOG] * 3
