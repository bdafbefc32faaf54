"""A Pairgate's endpoint `storage-queue` on a socket in this process, and adapters for it."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.frontend import StorageQueueFrontend
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.net.http.server import HttpServer
from gateway.net.listeners import open_listener
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import LocalVisibility
from tests.brokers.storage_queue.azurites import client
from tests.harness.patience import PATIENCE


def real_date() -> datetime:
    return datetime.now(UTC)


def crashed(peer: str, error: BaseException) -> None:
    raise error


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """The port of an endpoint over an empty namespace."""
    broker = MemoryBroker(real_date, random.Random(0))
    accounts = Accounts([], wall_clock=real_date, accepts_well_known_key=True)
    operations = StorageOperations(
        broker=broker,
        visibility=LocalVisibility(broker),
        sends=False,
        wall_clock=real_date,
        marks=accounts.marks,
    )
    frontend = StorageQueueFrontend(operations=operations, accounts=accounts, wall_clock=real_date)
    server = HttpServer(handler=frontend.handle, error_body=frontend.refuse, wall_clock=real_date)
    async with broker, trio.open_nursery() as nursery:
        listener = await open_listener("127.0.0.1:0", on_crash=crashed)
        await nursery.start(partial(listener.serve, server.serve_connection, connections=nursery))
        yield listener.port
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pairgate(_folder: Path) -> AsyncIterator[Broker]:
    async with served() as port, client(port, connect_timeout=PATIENCE) as broker:
        yield broker
