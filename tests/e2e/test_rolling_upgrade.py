"""
Two gateways and two syphons are replaced by another version, each by itself, under load and in
outages.

    sends ──▶ gateway a, gateway b ──▶ primary ◀── syphon 1, syphon 2 ◀── secondary

The other version is the folder in `PAIRGATE_EARLIER`, as `make upgrade-check FROM=REVISION` sets
it; without it, the same one: then the test shows that a replacement loses nothing.
"""

import itertools
import os
from collections import Counter
from datetime import timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from gateway.domain.backlog import QUEUE_PROPERTIES, queue_name
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete
from tests.e2e.installation import client
from tests.e2e.processes import ROOT, GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

EARLIER: Final = Path(os.environ.get("PAIRGATE_EARLIER", ROOT))
ORDERS: Final = EntityPath("orders")
BACKLOGS: Final = tuple(queue_name("east", number) for number in range(2))
LOCK: Final = timedelta(seconds=5)  # a syphon that ends may leave locked messages
SENDERS: Final = 2
SOME: Final = 10  # messages
PAUSE: Final = 0.02  # seconds between two sends, so that the processes have the processor


@attrs.define(eq=False)
class Load:
    """Sends to both gateways; a message without an answer is sent to the other one."""

    gateways: tuple[GatewayProcess, GatewayProcess]
    accepted: set[str] = attrs.field(factory=set)
    by: Counter[tuple[str, str]] = attrs.field(factory=Counter)  # gateway, accepted by
    stopping: bool = False
    _grown: trio.Condition = attrs.field(factory=trio.Condition)

    async def run(self, name: str) -> None:
        for number in itertools.count():
            if self.stopping:
                return
            await trio.sleep(PAUSE)
            await self._send(
                f"{name}-{number}", itertools.cycle(self.gateways[:: 1 - 2 * (number % 2)])
            )

    async def _send(self, body: str, ways: "itertools.cycle[GatewayProcess]") -> None:
        with trio.fail_after(PATIENCE):
            for gateway in ways:
                try:
                    status, accepted_by = await send(gateway.address, "orders", body.encode())
                except (OSError, HTTPException):
                    continue
                if status == 201:
                    self.accepted.add(body)
                    async with self._grown:
                        self.by[gateway.folder.name, accepted_by] += 1
                        self._grown.notify_all()
                    return

    async def some(self, accepted_by: str, *gateways: GatewayProcess) -> None:
        """Return when some more messages were accepted so, through each of these gateways."""
        names = [(each.folder.name, accepted_by) for each in gateways]
        wanted = {name: self.by[name] + SOME for name in names}
        with trio.fail_after(PATIENCE):
            async with self._grown:
                while any(self.by[name] < number for name, number in wanted.items()):
                    await self._grown.wait()


async def replace(process: GatewayProcess) -> None:
    """Stop the process, and start the version here in its place."""
    assert await process.stop() == 0
    process.environment = {}
    await process.start()


async def drained(secondary: GatewayProcess) -> None:
    """Return when the backlog is empty."""
    async with client(secondary) as broker:
        with trio.fail_after(PATIENCE):
            while True:
                if not any([(await broker.inspect(queue)).active for queue in BACKLOGS]):
                    return
                await trio.sleep(0.1)


async def received(primary: GatewayProcess) -> Counter[str]:
    """All messages of the queue, each completed."""
    found: Counter[str] = Counter()
    async with client(primary) as broker, broker.open_receiver(ORDERS) as receiver:
        while (await broker.inspect(ORDERS)).active:
            for delivery in await receiver.receive(100):
                found[bytes(delivery.message.body).decode()] += 1
                await receiver.settle(delivery, Complete())
    return found


async def test_all_processes_are_replaced_one_by_one_and_nothing_is_lost(
    gateways: Gateways,
) -> None:
    if EARLIER != ROOT:
        for name in ("gateway a", "gateway b", "syphon 1", "syphon 2"):
            gateways.environments[name] = {"PYTHONPATH": str(EARLIER)}
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    async with client(secondary) as broker:
        for queue in BACKLOGS:
            await broker.create_queue(queue, attrs.evolve(QUEUE_PROPERTIES, lock_duration=LOCK))
    pair = pair_config(
        primary.address, secondary.address, backlog_queues=len(BACKLOGS), enable_syphon=False
    )
    alone, _, _ = pair.partition("[[endpoints]]")
    a = await gateways.start(pair, name="gateway a")
    b = await gateways.start(pair, name="gateway b")
    syphons = [
        await gateways.start(alone, name=f"syphon {number}", command=("syphon",))
        for number in (1, 2)
    ]
    load = Load((a, b))
    async with trio.open_nursery() as nursery:
        for number in range(SENDERS):
            nursery.start_soon(load.run, f"sender {number}")
        await load.some("primary", a, b)

        # The new gateway's backlog messages are moved by the earlier syphons.
        await primary.kill()
        await replace(a)
        await load.some("backlog", a, b)
        await primary.start()
        await load.some("primary", a, b)
        await drained(secondary)

        # The earlier gateway's are moved by the new syphons.
        for syphon in syphons:
            await replace(syphon)
        await primary.kill()
        await load.some("backlog", a, b)
        await primary.start()
        await load.some("primary", a, b)

        await replace(b)
        await load.some("primary", a, b)
        load.stopping = True
    await drained(secondary)
    found = await received(primary)

    assert load.accepted - found.keys() == set()
    assert len(load.accepted) > 10 * SOME
    for process in (a, b, *syphons):
        assert process.count("dead_lettered") == 0
        assert await process.stop() == 0
