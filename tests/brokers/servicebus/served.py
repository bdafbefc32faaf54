"""A Pairgate's REST endpoint on a socket in this process, and adapters for it."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from gateway.brokers.servicebus.broker import (
    ServiceBusRestBroker,
    ServiceBusRestOptions,
    open_namespace,
)
from gateway.domain.access import AccessPolicy, Right
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend, is_long_poll
from gateway.net.http.server import HttpServer
from gateway.net.listeners import open_listener
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from gateway.wire.http.messages import Headers, Request, Response
from tests.harness.patience import PATIENCE

KEY = "a key of this test"
POLICY = AccessPolicy(name="tester", keys=(KEY,), rights=frozenset(Right))


def real_date() -> datetime:
    return datetime.now(UTC)


def crashed(peer: str, error: BaseException) -> None:
    raise error


@attrs.frozen
class Stranger:
    """Hides from both sides that a Pairgate answers, as Azure would: operations of ours too."""

    frontend: ServiceBusRestFrontend

    async def handle(self, request: Request) -> Response:
        if request.method in {"HEAD", "OPTIONS"}:
            await trio.lowlevel.checkpoint()
            return Response(status=405)
        response = await self.frontend.handle(attrs.evolve(request, headers=_without(request)))
        return attrs.evolve(response, headers=_without(response))


def _without(part: Request | Response) -> Headers:
    ours = ("x-pairgate", "x-pairgate-accepted-by", "x-pairgate-error", "x-pairgate-outcome")
    ours += ("x-pairgate-locked-until", "x-pairgate-receive")
    return Headers.of([item for item in part.headers.items if item[0].lower() not in ours])


@asynccontextmanager
async def served(
    *, as_stranger: bool = False, kind: type[MemoryBroker] = MemoryBroker
) -> AsyncIterator[int]:
    """The port of an endpoint over an empty namespace."""
    broker = kind(real_date, random.Random(0))
    leases = Leases(broker, real_date)
    frontend = ServiceBusRestFrontend(
        broker=broker,
        leases=leases,
        authorizer=Authorizer([POLICY], wall_clock=real_date),
        wall_clock=real_date,
    )
    server = HttpServer(
        handler=Stranger(frontend).handle if as_stranger else frontend.handle,
        error_body=frontend.refuse,
        wall_clock=real_date,
        cancels_when_gone=is_long_poll,
    )
    async with broker, trio.open_nursery() as nursery:
        await nursery.start(leases.run)
        listener = await open_listener("127.0.0.1:0", on_crash=crashed)
        await nursery.start(partial(listener.serve, server.serve_connection, connections=nursery))
        yield listener.port
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pairgate(_folder: Path) -> AsyncIterator[Broker]:
    async with served() as port, client(port, connect_timeout=PATIENCE) as broker:
        yield broker


@asynccontextmanager
async def stranger(_folder: Path) -> AsyncIterator[Broker]:
    async with served(as_stranger=True) as port, client(port, connect_timeout=PATIENCE) as broker:
        yield broker


@asynccontextmanager
async def client(
    port: int, *, key_name: str = POLICY.name, key: str = KEY, **options: Any
) -> AsyncIterator[ServiceBusRestBroker]:
    known = ServiceBusRestOptions(key=key, **options)
    async with open_namespace(
        "servicebus+http", f"//{key_name}@127.0.0.1:{port}", known, real_date
    ) as broker:
        yield broker
