"""Another Pairgate as the namespace: it checks tokens, and ends links whose token has expired."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import attrs
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from gateway.brokers.amqp.broker import AmqpBroker
from gateway.brokers.amqp.cbs import AccessTokenSource
from gateway.brokers.amqp.options import LinkOptions
from gateway.brokers.amqp.peer import NamespaceAccess
from gateway.brokers.entra.tokens import AccessToken, AccessTokens
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, NotAuthorized, NoToken
from gateway.domain.message import Complete, Message
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.leases import Leases
from gateway.net.server_address import ServerAddress
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.sasl import Credentials
from tests.frontends.bearer import World
from tests.frontends.rest_client import wall_clock

HOUR = 3600.0
ORDERS = EntityPath("orders")
HOST = "contoso.example"
DOWN = NoToken("identity provider login.example: connection refused")


@attrs.define(eq=False)
class Requests:
    """Token requests to the provider of that world, which may be down."""

    world: World
    roles: tuple[str, ...] = ("Send", "Listen")
    failure: BrokerError | None = None
    count: int = 0

    async def request(self) -> AccessToken:
        await trio.sleep(0.1)
        if self.failure is not None:
            raise self.failure
        self.count += 1
        ends = int(wall_clock().timestamp() + HOUR)
        return AccessToken(
            text=self.world.token(*self.roles, exp=ends), expires=datetime.fromtimestamp(ends, UTC)
        )


@attrs.define(eq=False)
class Dialled:
    broker: AmqpBroker
    requests: Requests
    connections: int = 0


@asynccontextmanager
async def namespace(*roles: str) -> AsyncIterator[Dialled]:
    world = World()
    requests = Requests(world, roles or ("Send", "Listen"))
    store = MemoryBroker(wall_clock, random.Random(1))
    await store.create_queue(ORDERS, QueueProperties())
    leases = Leases(store, wall_clock)
    frontend = AmqpFrontend(
        broker=store, leases=leases, authorizer=world.authorizer(), wall_clock=wall_clock
    )
    async with trio.open_nursery() as nursery:

        async def dial(place: ServerAddress) -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            dialled.connections += 1
            ours, theirs = memory_stream_pair()
            nursery.start_soon(frontend.serve_connection, theirs)
            return ours

        await nursery.start(world.issuers.run)
        await nursery.start(leases.run)
        tokens = AccessTokens(
            request=requests.request,
            namespace="east",
            clock=wall_clock,
            rng=random.Random(0),
            observer=world,
            patience=4.0,
        )
        access = NamespaceAccess(
            places=[ServerAddress(host=HOST, port=5671, tls=None)],
            credentials=Credentials(mechanism="ANONYMOUS"),
            tokens=AccessTokenSource(host=HOST, tokens=tokens),
            dial=dial,
        )
        async with (
            tokens,
            AmqpBroker(
                access=access,
                options=LinkOptions(idle_timeout=240.0),
                clock=wall_clock,
                rng=random.Random(0),
            ) as broker,
        ):
            dialled = Dialled(broker, requests)
            yield dialled
        nursery.cancel_scope.cancel()


async def exchange_until(end: float, broker: AmqpBroker) -> int:
    """Send a message every minute, and receive and complete it; return their number."""
    count = 0
    async with broker.open_receiver(ORDERS) as receiver:
        while trio.current_time() < end:
            await broker.send(ORDERS, [Message(message_id=str(count), body=b"x")])
            [delivery] = await receiver.receive(1)
            assert delivery.message.message_id == str(count)
            await receiver.settle(delivery, Complete())
            count += 1
            await trio.sleep(60)
    return count


@pytest.mark.slow
async def test_messages_pass_for_hours_on_the_same_connections(autojump_clock: MockClock) -> None:
    async with namespace() as east:
        count = await exchange_until(3 * HOUR, east.broker)

    assert count == 3 * 60
    assert east.connections == 2  # a connection for sends, and one for receives
    assert east.requests.count >= 4


@pytest.mark.slow
async def test_messages_pass_while_the_identity_provider_is_down_and_a_token_is_good(
    autojump_clock: MockClock,
) -> None:
    async with namespace() as east:
        await exchange_until(0.4 * HOUR, east.broker)
        east.requests.failure = DOWN
        await exchange_until(0.95 * HOUR, east.broker)
        east.requests.failure = None
        await exchange_until(2 * HOUR, east.broker)

    assert east.connections == 2


async def test_without_a_token_a_send_says_so_and_works_again_with_one(
    autojump_clock: MockClock,
) -> None:
    async with namespace() as east:
        await exchange_until(0.4 * HOUR, east.broker)
        east.requests.failure = DOWN
        await trio.sleep_until(1.1 * HOUR)  # the gateway has ended the links
        with pytest.raises(NoToken, match="connection refused"):
            await east.broker.send(ORDERS, [Message(body=b"x")])
        east.requests.failure = None
        await trio.sleep(7)
        await exchange_until(1.2 * HOUR, east.broker)


async def test_a_token_without_the_right_is_refused(autojump_clock: MockClock) -> None:
    async with namespace("Listen") as east:
        with pytest.raises(NotAuthorized):
            await east.broker.send(ORDERS, [Message(body=b"x")])
