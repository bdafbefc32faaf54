"""The AMQP front end of a simulated gateway, and its client's adapter. Both need the engine."""

import random
from typing import Final
from uuid import UUID

import trio

from gateway.brokers.amqp.broker import AmqpBroker
from gateway.brokers.amqp.cbs import Signer
from gateway.brokers.amqp.options import LinkOptions
from gateway.brokers.amqp.peer import NamespaceAccess
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.options import AmqpOptions
from gateway.net.dialing import FAILURES, failure_of
from gateway.net.server_address import ServerAddress
from gateway.ports import Broker, WallClock
from gateway.wire.amqp.sasl import Credentials
from tests.simulation.access import HOST, POLICY, TOKENS_LIFE
from tests.simulation.network import Network, Serve

PLACE: Final = ServerAddress(host=HOST, port=5672)
# Seconds: longer than the adapter's default, as heartbeats on virtual time cost real time.
IDLE_TIMEOUT: Final = 240.0


def serving(
    broker: Broker, leases: Leases, *, clock: WallClock, rng: random.Random, send_timeout: float
) -> Serve:
    """Return the function that serves a connection."""
    frontend = AmqpFrontend(
        broker=broker,
        leases=leases,
        authorizer=Authorizer([POLICY], wall_clock=clock),
        wall_clock=clock,
        new_id=lambda: UUID(int=rng.getrandbits(128)),
        options=AmqpOptions(send_timeout=send_timeout),
    )
    return frontend.serve_connection


def adapter(network: Network, clock: WallClock, rng: random.Random) -> AmqpBroker:
    """A client's, which speaks as to Service Bus: with tokens and batches."""

    async def dial(place: ServerAddress) -> trio.abc.Stream:
        try:
            return await network.connect()
        except FAILURES as error:
            raise failure_of(place, error) from error

    signer = Signer(
        host=HOST, key_name=POLICY.name, key=POLICY.keys[0], lifetime=TOKENS_LIFE, clock=clock
    )
    access = NamespaceAccess(
        places=[PLACE],
        credentials=Credentials(mechanism="ANONYMOUS"),
        tokens=signer,
        dial=dial,
    )
    options = LinkOptions(idle_timeout=IDLE_TIMEOUT)
    return AmqpBroker(access=access, options=options, clock=clock, rng=rng)
