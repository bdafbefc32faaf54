"""
A namespace in Azure Storage without a socket: its accounts are endpoints of our own, over memory,
and what they answer can be changed. All of it lives in virtual time.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from gateway.brokers.local_visibility import LocalVisibility
from gateway.brokers.memory import MemoryBroker
from gateway.brokers.storage_queue import StorageQueueBroker
from gateway.brokers.storage_queue_options import StorageQueueNamespaceOptions
from gateway.brokers.storage_queue_peer import StorageAccountPeer
from gateway.domain.accounts import EMULATOR_ACCOUNT
from gateway.domain.entity import EntityPath
from gateway.frontends.storage_auth import Accounts
from gateway.frontends.storage_operations import StorageOperations
from gateway.frontends.storage_queue import StorageQueueFrontend
from gateway.testing.clocks import VirtualClock
from gateway.wire.http import Headers, Request, Response
from gateway.wire.storage_connection import parse_storage_connection

ORDERS: Final = EntityPath("orders")

Fault = Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]
"""What happens to a request instead; it may pass it on."""


@attrs.define(eq=False)
class Account:
    """One account: what is in it, and what was asked of it."""

    store: MemoryBroker
    frontend: StorageQueueFrontend
    asked: list[Request] = attrs.field(factory=list)
    fault: Fault | None = None

    async def ask(self, request: Request) -> Response:
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
class Lab:
    broker: StorageQueueBroker
    accounts: list[Account]
    clock: VirtualClock  # the gateway's; the accounts have their own

    @property
    def account(self) -> Account:
        return self.accounts[0]


@asynccontextmanager
async def lab(accounts: int = 1, **options: Any) -> AsyncIterator[Lab]:
    clock, rng = VirtualClock(), random.Random(0)
    served = [_account(VirtualClock()) for _ in range(accounts)]
    connection = parse_storage_connection("UseDevelopmentStorage=true")
    broker = StorageQueueBroker(
        clients=[],
        accounts=[
            StorageAccountPeer(ask=each.ask, connection=connection, clock=clock) for each in served
        ],
        options=StorageQueueNamespaceOptions(**{"shards": accounts, **options}),
        clock=clock,
        rng=rng,
    )
    async with broker, trio.open_nursery() as nursery:
        for each in served:
            await nursery.start(_kept, each.store)
        yield Lab(broker=broker, accounts=served, clock=clock)
        nursery.cancel_scope.cancel()


async def _kept(store: MemoryBroker, *, task_status: trio.TaskStatus[None]) -> None:
    async with store:
        task_status.started()
        await trio.sleep_forever()


def _account(clock: VirtualClock) -> Account:
    store = MemoryBroker(clock, random.Random(0))
    operations = StorageOperations(
        broker=store, visibility=LocalVisibility(store), sends=False, wall_clock=clock
    )
    accounts = Accounts([EMULATOR_ACCOUNT], wall_clock=clock, loopback=True)
    frontend = StorageQueueFrontend(operations=operations, accounts=accounts, wall_clock=clock)
    return Account(store=store, frontend=frontend)
