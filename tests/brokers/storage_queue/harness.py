"""
A namespace in Azure Storage without a socket: its account is an endpoint of our own, over memory,
and a test can change its answers. All parts live in virtual time.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from gateway.brokers.storage_queue.broker import StorageQueueBroker
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.brokers.storage_queue.peer import StorageAccountPeer
from gateway.brokers.storage_queue.receiver import MAX_KEPT
from gateway.domain.entity import EntityPath
from gateway.domain.storage_queue import EMULATOR_ACCOUNT
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.frontend import StorageQueueFrontend
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import LocalVisibility
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.storage_queue.connection_string import parse_storage_connection
from tests.harness.clocks import VirtualClock

ORDERS: Final = EntityPath("orders")

Fault = Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]
"""Handles a request in place of the account, and may pass it on."""


@attrs.define(eq=False)
class Account:
    """A storage account: its queues, and the requests that it got."""

    store: MemoryBroker
    frontend: StorageQueueFrontend
    asked: list[Request] = attrs.field(factory=list)
    fault: Fault | None = None

    async def ask(self, request: Request, max_body: int | None = None) -> Response:
        self.asked.append(request)
        arrived = attrs.evolve(
            request, headers=Headers((("Host", "127.0.0.1:10001"), *request.headers.items))
        )
        if self.fault is not None:
            return await self.fault(arrived, self.frontend.handle)
        return await self.frontend.handle(arrived)

    def count(self, method: str, part: str) -> int:
        return sum(each.method == method and part in each.target for each in self.asked)

    async def depths(self) -> dict[str, int]:
        return {info.path.key: info.active or 0 for info in await self.store.list_queues()}


@attrs.define(eq=False)
class Harness:
    broker: StorageQueueBroker
    account: Account
    peer: StorageAccountPeer  # of the account
    clock: VirtualClock  # the gateway's; the account has its own


@asynccontextmanager
async def harness(max_kept: int = MAX_KEPT, **options: Any) -> AsyncIterator[Harness]:
    clock, rng = VirtualClock(), random.Random(0)
    served = _account(VirtualClock())
    connection = parse_storage_connection("UseDevelopmentStorage=true")
    peer = StorageAccountPeer(ask=served.ask, connection=connection, clock=clock)
    broker = StorageQueueBroker(
        client=None,
        account=peer,
        options=StorageQueueNamespaceOptions(**options),
        clock=clock,
        rng=rng,
        max_kept=max_kept,
    )
    async with broker, trio.open_nursery() as nursery:
        await nursery.start(_kept, served.store)
        yield Harness(broker=broker, account=served, peer=peer, clock=clock)
        nursery.cancel_scope.cancel()


async def _kept(store: MemoryBroker, *, task_status: trio.TaskStatus[None]) -> None:
    async with store:
        task_status.started()
        await trio.sleep_forever()


def _account(clock: VirtualClock) -> Account:
    store = MemoryBroker(clock, random.Random(0))
    accounts = Accounts([EMULATOR_ACCOUNT], wall_clock=clock)
    operations = StorageOperations(
        broker=store,
        visibility=LocalVisibility(store),
        sends=False,
        wall_clock=clock,
        marks=accounts.marks,
    )
    frontend = StorageQueueFrontend(operations=operations, accounts=accounts, wall_clock=clock)
    return Account(store=store, frontend=frontend)
