"""AMQP 0-9-1 as a server: bytes of a client, in a connection that the gateway serves itself."""

import random
from typing import Final

import trio
from trio.testing import MockClock, memory_stream_pair

from gateway.domain.access import AccessPolicy, Right
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq.frontend import RabbitmqFrontend
from gateway.frontends.rabbitmq.known_topology import KnownTopology
from gateway.frontends.rabbitmq_broker.connection import BrokerTarget, ServedConnection
from gateway.frontends.rabbitmq_broker.routed_sends import RoutedSends
from gateway.frontends.rabbitmq_broker.upkeep import QueueUpkeep
from gateway.frontends.rabbitmq_broker.vhost import ServedVhost
from gateway.store.local.broker import LocalOptions
from gateway.store.local.memory import MemoryBroker
from tests.fuzz.by_input import ByInput
from tests.fuzz.connections import END
from tests.fuzz.relays import after_login, frames_after, read_all, write_all
from tests.harness.clocks import VirtualClock

# The login of the relays' clients.
ANNA: Final = AccessPolicy(name="anna", keys=("secret",), rights=frozenset({Right.MANAGE}))
MOST: Final = 100  # methods and publishes without an answer


def serve_client(data: bytes) -> None:
    """A client sends these bytes, in one piece and in many; what it declares is kept."""
    for step in (len(data) or 1, 7) if len(data) < 2000 else (len(data),):
        trio.run(_converse, data, step, clock=MockClock(autojump_threshold=0))


async def _converse(data: bytes, step: int) -> None:
    clock = VirtualClock()
    known = KnownTopology()
    # A queue takes a millisecond, and an input has room for thousands.
    options = LocalOptions(max_queues=100)
    broker = MemoryBroker(clock, random.Random(0), options)
    vhost = ServedVhost(broker=broker, known=known, flush=trio.lowlevel.checkpoint)
    sends = RoutedSends(vhost=vhost, timeout=30.0)
    target = BrokerTarget(
        vhost=vhost,
        sends=sends,
        authorizer=Authorizer((ANNA,), wall_clock=clock),
        login_timeout=10.0,
        most_waiting=MOST,
        most_bytes=1024 * 1024,
    )
    client, end = memory_stream_pair()
    async with trio.open_nursery() as around:
        await around.start(QueueUpkeep(vhost=vhost, sends=sends, wall_clock=clock).run)
        with trio.fail_after(END):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_all, client)
                nursery.start_soon(write_all, client, data, step)
                frontend = RabbitmqFrontend(target, ServedConnection)
                await frontend.serve_connection(end)
                nursery.cancel_scope.cancel()
        around.cancel_scope.cancel()
    ServedVhost(broker=broker, known=known, flush=trio.lowlevel.checkpoint)  # after a restart


BROKERS: Final = (
    ByInput(name="amqp-0-9-1-brokers", check=serve_client, split=frames_after, mend=after_login),
)
