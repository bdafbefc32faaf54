"""Senders and receivers of a queue over REST, while gateways move the queue and are killed."""

from collections import Counter
from itertools import count

import attrs
import trio

from tests.e2e.processes import GatewayProcess
from tests.e2e.rest import request

SENDERS = 4
PAUSE = 0.04  # seconds between two sends of one sender: some 100 a second


@attrs.define(eq=False)
class Load:
    """The bodies that were accepted, and those that were received, each as often as it came."""

    gateway: GatewayProcess
    entity: str = "orders"
    prefix: str = ""  # of the bodies
    accepted: set[str] = attrs.field(factory=set)
    received: Counter[str] = attrs.field(factory=Counter)
    over: bool = False
    longest: float = 0.0  # seconds of an accepted send
    _numbers: "count[int]" = attrs.field(factory=count)

    async def run(self, receivers: int) -> None:
        """
        Send and receive until `over` is set. A cancellation lets a request go on, whose message
        is locked for nobody.
        """
        self.over = False
        async with trio.open_nursery() as nursery:
            for _ in range(SENDERS):
                nursery.start_soon(self._send)
            for _ in range(receivers):
                nursery.start_soon(self.receive)

    async def _send(self) -> None:
        while not self.over:
            name = f"{self.prefix}{next(self._numbers)}"
            began = trio.current_time()
            try:
                status, _, _ = await request(
                    self.gateway.address, "POST", f"/{self.entity}/messages", name.encode()
                )
            except OSError:
                status = 0  # it was killed
            if status == 201:
                self.accepted.add(name)
                self.longest = max(self.longest, trio.current_time() - began)
            await trio.sleep(PAUSE)

    async def receive(self) -> None:
        """Receive and complete until `over` is set."""
        while not self.over:
            try:
                await self._receive_one()
            except OSError:
                await trio.sleep(PAUSE)  # it was killed

    async def _receive_one(self) -> None:
        address = self.gateway.address
        path = f"/{self.entity}/messages/head?timeout=1"
        status, headers, body = await request(address, "POST", path)
        if status != 201:
            return
        self.received[body.decode()] += 1
        path = headers["location"].partition(address)[2]
        await request(address, "DELETE", path)

    async def receive_all(self) -> None:
        """Return when each accepted message was received."""
        self.over = False
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(self.receive)
            while self.accepted - self.received.keys():  # noqa: ASYNC110 over the network
                await trio.sleep(0.1)
            self.over = True
