"""Parts of the tests of control that other tests need, too."""

import http.client
import json
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import trio

from gateway.changes import Changes
from tests.e2e.commands import ADMIN, pairgate_provision, status_at, with_fixed_port
from tests.e2e.processes import (
    GatewayProcess,
    Gateways,
    broker_config,
    pair_config,
)
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

GONE = 0  # instead of a status: there was no answer
EVERY = 0.005  # seconds between two sends


class Load:
    """Sends that go on while operators steer; each has an answer."""

    def __init__(self, gateway: GatewayProcess, every: float = EVERY) -> None:
        self.gateway = gateway
        self.every = every  # seconds between two sends
        self.answers: Counter[tuple[int, str]] = Counter()
        self.accepted: set[bytes] = set()
        self.stopping = trio.Event()
        self.is_ending = False  # from now on the gateway may be gone
        self._number = 0
        self._limit = trio.CapacityLimiter(20)
        self._changes = Changes()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while not self.stopping.is_set():
                self._number += 1
                await self._limit.acquire_on_behalf_of(self._number)
                nursery.start_soon(self._send, self._number)
                await trio.sleep(self.every)

    async def _send(self, number: int) -> None:
        body = f"message {number}".encode()
        try:
            answer = await send(self.gateway.address, "orders", body)
        except (OSError, http.client.HTTPException):
            if not self.is_ending:
                raise
            answer = (GONE, "")
        finally:
            self._limit.release_on_behalf_of(number)
        self.answers[answer] += 1
        self._changes.notify()
        if answer[0] == 201:
            self.accepted.add(body)

    async def more(self, accepted_by: str, messages: int = 20) -> None:
        """Wait until the given number of further sends was accepted there."""
        key = (201, accepted_by)
        wanted = self.answers[key] + messages
        with trio.fail_after(PATIENCE):
            while self.answers[key] < wanted:
                await self._changes.wait_next()


@asynccontextmanager
async def under_load(gateway: GatewayProcess, every: float = EVERY) -> Any:
    load = Load(gateway, every)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        yield load
        load.stopping.set()


async def start_pair(gateways: Gateways, more: str = "", **pairing: object) -> list[GatewayProcess]:
    """Start two brokers and a gateway before them; `more` are further tables of its file."""
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(primary.address, secondary.address, backlog_queues=2, **pairing) + ADMIN
    config += f'\n[audit]\nfile = "audit.jsonl"\n{more}'
    await pairgate_provision(gateways, config)
    gateway = await gateways.start(config, name="gateway")
    await with_fixed_port(gateway)
    return [primary, secondary, gateway]


def answer_of(
    gateway: GatewayProcess, action: str, order: object = None
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.ports[1], timeout=PATIENCE)
    try:
        connection.request(
            "POST", f"/v1/{action}", json.dumps(order or {}), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def post(gateway: GatewayProcess, action: str, order: dict[str, object]) -> dict[str, Any]:
    status, answer = answer_of(gateway, action, order)
    assert status == 200, answer
    return answer


async def order(gateway: GatewayProcess, action: str, **fields: object) -> dict[str, Any]:
    return await trio.to_thread.run_sync(post, gateway, action, fields)


async def until_it_holds_back(syphon: GatewayProcess) -> None:
    """Return once it tells the pin, and nothing is on its way to the primary."""
    with trio.fail_after(PATIENCE):
        while True:
            pair = (await status_at(syphon.ports[-1]))["pair"]
            if pair["pins"] and not pair["syphon"]["copies"].get("sending"):
                return
            await trio.sleep(0.2)
