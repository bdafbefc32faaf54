"""The embedded broker behind Service Bus REST: a `pairgate serve` process, and clients of it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs

from benchmarks.closed_loop import BODY, HTTP, Client, Way
from benchmarks.fleet import open_fleet, token
from benchmarks.keepalive import Answer, Connection, RequestFailed, connect, request
from gateway.demo.machines import broker_config

QUEUE: Final = "messages"
_LOCATION: Final = re.compile(rb"\r\nlocation: *\S+?//[^/]+(/\S+)", re.IGNORECASE)
_EVERYTHING: Final = 1_000_000_000
_PATIENCE: Final = 10  # seconds that a receive waits


@attrs.define(eq=False)
class RestClient:
    _connection: Connection
    _authorization: dict[str, str]
    _receive: bytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        path = f"/{QUEUE}/messages/head?timeout={_PATIENCE}"
        self._receive = request("POST", path, self._authorization)

    async def send(self, number: int) -> None:
        headers = {**self._authorization, "BrokerProperties": f'{{"MessageId":"{number}"}}'}
        await self._connection.ask(request("POST", f"/{QUEUE}/messages", headers, BODY), 201)

    async def receive_and_complete(self) -> int:
        answer = await self._connection.ask(self._receive, 201, 204)
        if answer.status == 204:
            return 0
        complete = request("DELETE", location_of(answer), self._authorization)
        await self._connection.ask(complete, 200)
        return 1


def location_of(answer: Answer) -> str:
    """The path at which a locked message is completed."""
    location = _LOCATION.search(answer.head)
    if location is None:
        raise RequestFailed(f"there is no Location: {answer.head!r}")
    return location[1].decode()


@asynccontextmanager
async def over_http(folder: Path) -> AsyncIterator[Way]:
    """Start a gateway whose store is in the folder."""
    authorization = {"Authorization": token()}
    async with open_fleet(folder) as fleet:
        machine = await fleet.start("broker", broker_config(QUEUE))

        @asynccontextmanager
        async def open_client() -> AsyncIterator[Client]:
            async with connect(machine.port) as connection:
                yield RestClient(connection, authorization)

        yield Way(name=HTTP, open_client=open_client, most=_EVERYTHING, server=machine.pid)
