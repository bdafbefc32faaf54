"""A client of the Queue service's front end without a socket, and shared parts of its tests."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Final
from uuid import UUID

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.storage_queue import StorageAccount
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.frontends.options import StorageQueueOptions
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.frontend import StorageQueueFrontend
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.store.local.hooks import LocalHooks, Recent
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import LocalVisibility
from gateway.wire.http.date import format_http_date
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.answers import parse_response
from gateway.wire.storage_queue.rest import build_request
from gateway.wire.storage_queue.signing import signed
from tests.harness.clocks import VirtualClock
from tests.harness.faults import Fault, FaultyBroker, Operation, no_fault

ACCOUNT: Final = "contoso"
KEY: Final = b"a key for tests only"
SECOND_KEY: Final = b"another key for tests"
ORDERS: Final = EntityPath("orders")
HOST: Final = "127.0.0.1:10001"
VERSION: Final = "2026-10-06"


@attrs.define(eq=False)
class Client:
    """Signs requests and hands them to a front end."""

    frontend: StorageQueueFrontend
    broker: MemoryBroker
    clock: VirtualClock
    key: bytes = KEY
    version: str | None = VERSION
    prefix: str = f"/{ACCOUNT}"
    peer: str | None = "127.0.0.1"

    async def do(self, operation: storage.Operation) -> storage.Answer:
        """
        The answer.

        Raises:
            BrokerError: the error of the response.
        """
        return parse_response(operation, await self.send(build_request(operation)))

    async def send(self, request: Request, *, lite: bool = False) -> Response:
        fields = {"Host": HOST, "x-ms-date": format_http_date(self.clock())}
        if self.version is not None:
            fields["x-ms-version"] = self.version
        headers = Headers.of([*fields.items(), *request.headers.items])
        target = f"{self.prefix}{request.target}"
        request = attrs.evolve(request, headers=headers, target=target)
        return await self.frontend.handle(
            signed(request, account=ACCOUNT, key=self.key, lite=lite), self.peer
        )

    async def ask(self, method: str, target: str, body: bytes = b"", **fields: str) -> Response:
        """Unsigned."""
        headers = {"Host": HOST, "Content-Length": str(len(body)), "x-ms-version": VERSION}
        headers |= {name.replace("_", "-"): value for name, value in fields.items()}
        request = Request(
            method=method, target=f"{self.prefix}{target}", headers=Headers.of(headers), body=body
        )
        return await self.frontend.handle(request, self.peer)

    async def get(self, limit: int = 1, hidden: int = 30) -> list[storage.QueueMessage]:
        found = await self.do(storage.GetMessages(queue="orders", limit=limit, visibility=hidden))
        assert isinstance(found, storage.Messages)
        return list(found.items)

    async def put(self, *texts: str, hidden: int = 0) -> list[storage.QueueMessage]:
        put: list[storage.QueueMessage] = []
        for text in texts:
            found = await self.do(
                storage.PutMessage(queue="orders", body=text.encode(), visibility=hidden)
            )
            assert isinstance(found, storage.Messages)
            put += found.items
        return put

    async def delete(self, message: storage.QueueMessage) -> None:
        await self.do(
            storage.DeleteMessage(
                queue="orders",
                message_id=message.message_id,
                pop_receipt=message.pop_receipt or "",
            )
        )

    async def update(
        self, message: storage.QueueMessage, hidden: int, text: str | None = None
    ) -> storage.QueueMessage:
        """The message with its new receipt."""
        found = await self.do(
            storage.UpdateMessage(
                queue="orders",
                message_id=message.message_id,
                pop_receipt=message.pop_receipt or "",
                visibility=hidden,
                body=None if text is None else text.encode(),
            )
        )
        assert isinstance(found, storage.Updated)
        return attrs.evolve(message, pop_receipt=found.pop_receipt)


def code(response: Response) -> str | None:
    return response.headers.get("x-ms-error-code")


@asynccontextmanager
async def open_client(
    *,
    leased: bool = False,
    paired: bool = False,
    ahead: float = 0.0,
    fault: Callable[[Operation, EntityPath], Fault | None] = no_fault,
) -> AsyncIterator[Client]:
    """
    Open a client of a namespace with a queue `orders`.

    `leased`: over locks alone, as in a namespace that isn't our own; `paired`: messages are put as
    through a pair; `ahead`: seconds by which all other clocks are ahead of the namespace's;
    `fault`: decides the fate of each receive and settlement, if `leased`.
    """
    clock = VirtualClock(timedelta(seconds=ahead))
    ids = (UUID(int=number, version=4) for number in count(1))
    hooks = LocalHooks(recent=Recent() if paired else None)
    namespace = MemoryBroker(VirtualClock(), random.Random(1), hooks=hooks)
    async with namespace as broker, trio.open_nursery() as nursery:
        faulty = FaultyBroker(inner=broker, fault=fault)
        await nursery.start(faulty.run)
        leases = Leases(broker if fault is no_fault else faulty, clock)
        await nursery.start(leases.run)
        lent = LeasedVisibility(broker, leases, clock)
        await nursery.start(lent.run)
        accounts = Accounts(
            [StorageAccount(name=ACCOUNT, keys=(KEY, SECOND_KEY))], wall_clock=clock
        )
        frontend = StorageQueueFrontend(
            operations=StorageOperations(
                broker=broker,
                visibility=lent if leased else LocalVisibility(broker),
                sends=leased or paired,
                wall_clock=clock,
                marks=accounts.marks,
            ),
            accounts=accounts,
            wall_clock=clock,
            new_id=ids.__next__,
            options=StorageQueueOptions(),
        )
        client = Client(frontend, broker, clock)
        await client.do(storage.CreateQueue(queue="orders"))
        yield client
        nursery.cancel_scope.cancel()
