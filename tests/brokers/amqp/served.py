"""A Pairgate's `service-bus` endpoint on a socket in this process, and adapters for it."""

import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.amqp.servicebus import ServiceBusBroker, open_namespace
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend, is_long_poll
from gateway.net.http.server import HttpServer
from gateway.net.listeners import open_listener
from gateway.net.sniffing import Sniffer
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.brokers.servicebus.served import KEY, POLICY, crashed, real_date
from tests.harness.patience import PATIENCE


@attrs.define(eq=False)
class House:
    """The namespace behind an endpoint, and the endpoint's port."""

    broker: MemoryBroker
    authorizer: Authorizer
    port: int = 0


@asynccontextmanager
async def served(tls: ssl.SSLContext | None = None) -> AsyncIterator[House]:
    """An endpoint over an empty namespace."""
    broker = MemoryBroker(real_date, random.Random(0))
    leases = Leases(broker, real_date)
    authorizer = Authorizer([POLICY], wall_clock=real_date)
    house = House(broker, authorizer)
    amqp = AmqpFrontend(
        broker=broker,
        leases=leases,
        authorizer=authorizer,
        wall_clock=real_date,
    )
    rest = ServiceBusRestFrontend(
        broker=broker, leases=leases, authorizer=authorizer, wall_clock=real_date
    )
    http = HttpServer(
        handler=rest.handle,
        error_body=rest.refuse,
        wall_clock=real_date,
        cancels_when_gone=is_long_poll,
    )
    web = http.serve_connection
    sniffer = Sniffer(amqp=amqp.serve_connection, http=web, https=web, tls=tls)
    async with broker, trio.open_nursery() as nursery:
        await nursery.start(leases.run)
        listener = await open_listener("127.0.0.1:0", on_crash=crashed)
        await nursery.start(partial(listener.serve, sniffer.serve_connection, connections=nursery))
        house.port = listener.port
        yield house
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def client(
    port: int,
    *,
    key_name: str = POLICY.name,
    key: str = KEY,
    plain: bool = True,
    **options: object,
) -> AsyncIterator[ServiceBusBroker]:
    text = f"Endpoint=sb://localhost:{port}/;SharedAccessKeyName={key_name}"
    text += f";UseDevelopmentEmulator={plain}"
    known = ServiceBusOptions(key=key, **options)  # type: ignore[arg-type]
    async with open_namespace(text, known, real_date, random.Random(0)) as broker:
        yield broker


@asynccontextmanager
async def pairgate(_folder: Path) -> AsyncIterator[Broker]:
    async with served() as house, client(house.port, connect_timeout=PATIENCE) as broker:
        yield broker
