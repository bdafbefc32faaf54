"""
KEDA's scaler `azure-queue` (kedacore/keda 8b4f083c, pkg/scalers/azure_queue_scaler.go): its
requests as `azqueue` 2 sends them.
"""

import re

from trio.testing import MockClock

from gateway.wire.http.messages import Headers, Request
from tests.frontends.storage_client import Client, open_client

PEEK = (
    "/orders/messages?numofmessages=32&peekonly=true"  # line 151, with maxPeekMessages of line 40
)
PROPERTIES = "/orders?comp=metadata"  # line 164, GetProperties


async def waiting(client: Client, strategy: str) -> int:
    """getMessageCount, lines 149-168."""
    if strategy == "visibleonly":
        peeked = await client.send(Request(method="GET", target=PEEK, headers=Headers()))
        assert peeked.status == 200
        visible = len(re.findall("<QueueMessage>", peeked.body.decode()))
        if visible < 32:
            return visible
    told = await client.send(Request(method="GET", target=PROPERTIES, headers=Headers()))
    assert told.status == 200
    return int(told.headers.get("x-ms-approximate-messages-count") or -1)


async def test_a_scaler_counts_all_messages_or_the_visible_ones(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        none = [await waiting(client, each) for each in ("all", "visibleonly")]
        await client.put(*map(str, range(5)))
        await client.get(limit=2)
        some = [await waiting(client, each) for each in ("all", "visibleonly")]
        await client.put(*map(str, range(40)))
        many = await waiting(client, "visibleonly")

    assert (none, some, many) == ([0, 0], [5, 3], 45)


async def test_a_scaler_of_a_missing_queue_gets_an_error(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        target = PROPERTIES.replace("orders", "gone")

        told = await client.send(Request(method="GET", target=target, headers=Headers()))

    assert told.status == 404
    assert told.headers.get("x-ms-error-code") == "QueueNotFound"
