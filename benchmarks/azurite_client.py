"""
A client of Storage Queue by its REST API, each request signed with the account's key; and Azurite.

A get costs Azurite time for each message that it holds, so that it holds few here: that's its best.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Final
from urllib.parse import quote

import attrs

from benchmarks.closed_loop import AZURITE, BODY, Client, Way
from benchmarks.keepalive import Connection, RequestFailed, connect, request
from tests.harness.azurite import ACCOUNT, KEY, azurite, version

QUEUE: Final = f"/{ACCOUNT}/messages"
_MOST: Final = 256
_API: Final = "2021-12-02"
_KEY: Final = base64.b64decode(KEY)
_CONTENT: Final = b"<QueueMessage><MessageText>" + BODY + b"</MessageText></QueueMessage>"
_ID: Final = re.compile(rb"<MessageId>(.+?)</MessageId>")
_COUNT: Final = re.compile(rb"\r\nx-ms-approximate-messages-count: *(\d+)", re.IGNORECASE)
_RECEIPT: Final = re.compile(rb"<PopReceipt>(.+?)</PopReceipt>")


def signed(method: str, path: str, parameters: dict[str, str], body: bytes = b"") -> bytes:
    """A request with SharedKey authorization ("Authorize with Shared Key", version 2015-02-21)."""
    date = formatdate(usegmt=True)
    length = str(len(body)) if body else ""
    headers = f"x-ms-date:{date}\nx-ms-version:{_API}\n"
    resource = f"/{ACCOUNT}{path}" + "".join(
        f"\n{name}:{value}" for name, value in sorted(parameters.items())
    )
    text = f"{method}\n\n\n{length}\n\n\n\n\n\n\n\n\n{headers}{resource}"
    digest = hmac.digest(_KEY, text.encode(), hashlib.sha256)
    signature = base64.b64encode(digest).decode()
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    return request(
        method,
        f"{path}?{query}" if query else path,
        {
            "x-ms-date": date,
            "x-ms-version": _API,
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        },
        body,
    )


@attrs.define(eq=False)
class StorageQueueClient:
    _connection: Connection

    async def send(self, number: int) -> None:
        """The service numbers messages itself."""
        await self._connection.ask(signed("POST", f"{QUEUE}/messages", {}, _CONTENT), 201)

    async def receive_and_complete(self) -> int:
        get = signed("GET", f"{QUEUE}/messages", {"numofmessages": "1", "visibilitytimeout": "60"})
        answer = await self._connection.ask(get, 200)
        identity, receipt = _ID.search(answer.body), _RECEIPT.search(answer.body)
        if identity is None or receipt is None:
            return 0
        path = f"{QUEUE}/messages/{identity[1].decode()}"
        delete = signed("DELETE", path, {"popreceipt": receipt[1].decode()})
        await self._connection.ask(delete, 204)
        return 1


async def held(connection: Connection) -> int:
    """
    Return the number of messages that the queue holds, hidden ones too.

    Raises:
        RequestFailed: the answer has no count.
    """
    answer = await connection.ask(signed("GET", QUEUE, {"comp": "metadata"}), 200)
    count = _COUNT.search(answer.head)
    if count is None:
        raise RequestFailed(f"there is no count: {answer.head!r}")
    return int(count[1])


@asynccontextmanager
async def azurite_queue(folder: Path) -> AsyncIterator[Way]:
    """An Azurite with one queue."""

    @asynccontextmanager
    async def open_client() -> AsyncIterator[Client]:
        async with connect(port) as connection:
            yield StorageQueueClient(connection)

    async with azurite(folder) as (process, port):
        async with connect(port) as connection:
            await connection.ask(signed("PUT", QUEUE, {}), 201)
        yield Way(
            name=AZURITE,
            open_client=open_client,
            most=_MOST,
            version=version(),
            server=process.pid,
        )
