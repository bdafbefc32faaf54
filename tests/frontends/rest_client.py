"""A client of the REST front end without a socket, and shared parts of its tests."""

import json
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

import attrs
import trio

from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import Message, ReceiveMode
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.options import RestOptions
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend
from gateway.ports import Receiver
from gateway.store.local.memory import MemoryBroker
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus import answers, atom, atom_answers, rest
from gateway.wire.servicebus import atom_operations as management
from gateway.wire.servicebus.operations import Operation
from gateway.wire.servicebus.sas import sign_sas

ORDERS = EntityPath("orders")
KEY = "SAS_KEY_VALUE"
ROOT = AccessPolicy(name="RootManageSharedAccessKey", keys=(KEY,), rights=frozenset({Right.MANAGE}))
POLICIES = [
    ROOT,
    *(AccessPolicy(name=r.value, keys=(KEY,), rights=frozenset({r})) for r in Right),
]


def wall_clock() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=trio.current_time())


@attrs.define(eq=False)
class Client:
    """Signs requests and hands them to a front end, without a socket."""

    frontend: ServiceBusRestFrontend
    broker: MemoryBroker
    key_name: str = ROOT.name

    async def ask(self, method: str, target: str, body: bytes = b"", **fields: str) -> Response:
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        return await self.send(
            Request(method=method, target=target, headers=Headers.of(headers), body=body)
        )

    async def send(self, request: Request, max_body: int | None = None) -> Response:
        expires = int(wall_clock().timestamp()) + 300
        token = sign_sas("http://localhost:8080/", self.key_name, KEY, expires)
        fields = [("Host", "localhost:8080"), ("Authorization", token), *request.headers.items]
        return await self.frontend.handle(attrs.evolve(request, headers=Headers.of(fields)))

    async def do(self, operation: Operation) -> object:
        """As a Pairgate does it to another one."""
        response = await self.send(rest.build_request(operation))
        return answers.parse_response(operation, response)

    async def manage(self, operation: management.Operation) -> management.Answer:
        return atom_answers.parse_response(
            operation, await self.send(atom.build_request(operation))
        )


@attrs.define(eq=False)
class Scripted:
    """A broker that fails or hangs as the test says, before or after it has done its work."""

    inner: MemoryBroker
    error: BrokerError | None = None
    hangs: bool = False
    takes: float = 0.0  # seconds, for a send
    bound: float = math.inf  # seconds

    def longest_send(self) -> float:
        return self.bound

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._fail()
        await trio.sleep(self.takes)
        await self.inner.send(entity, messages)

    async def probe(self, entity: EntityPath) -> None:
        await self._fail()

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        async with self.inner.open_receiver(entity, mode) as receiver:
            yield receiver

    async def _fail(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if self.error:
            raise self.error


def numbered() -> Iterator[UUID]:
    return (UUID(int=number) for number in count(1))


def frontend_of(broker: object, leases: Leases) -> ServiceBusRestFrontend:
    return ServiceBusRestFrontend(
        broker=broker,  # type: ignore[arg-type]
        leases=leases,
        authorizer=Authorizer(POLICIES, wall_clock=wall_clock),
        wall_clock=wall_clock,
        new_id=numbered().__next__,
        options=RestOptions(namespace="east"),
    )


def broker_properties(response: Response) -> dict[str, object]:
    found: dict[str, object] = json.loads(response.headers.get("BrokerProperties") or "")
    return found


def detail(response: Response) -> str:
    text = response.body.decode()
    assert text.startswith(f"<Error><Code>{response.status}</Code><Detail>")
    return text


async def head(client: Client, method: str = "POST", seconds: float = 0) -> Response:
    return await client.ask(method, f"/orders/messages/head?timeout={seconds}")


async def locked_target(client: Client) -> str:
    """Lock the next message, and return the target that settles it."""
    received = await head(client)
    assert received.status == 201
    return (received.headers.get("Location") or "").removeprefix("http://localhost:8080")
