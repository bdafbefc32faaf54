"""Clients of several kinds that send until they are stopped, and an account of their answers."""

import json
from collections import Counter
from http.client import HTTPException
from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError
from tests.e2e.amqp_clients import producer_of
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import request, send
from tests.e2e.workers import Connection
from tests.harness.patience import PATIENCE

SOME: Final = 10
RECEIVERS: Final = 4
PAUSE: Final = 0.03  # seconds after an accepted send: all are received one by one in the end
# Seconds for which the Node SDK waits for an answer, and then sends again: a drain must leave no
# message without one.
SDK_TIMEOUT: Final = 60.0


async def pair_before_brokers(gateways: Gateways, **pairing: object) -> str:
    """Start a primary and a secondary; return the configuration of a gateway before them."""
    backlogs = [f"east/x-servicebus-transfer/{n}" for n in range(2)]
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(*backlogs), name="secondary")
    pair = pair_config(primary.address, secondary.address, backlog_queues=2, **pairing)
    return pair.replace("service-bus-http", "service-bus")


@attrs.define(eq=False)
class Load:
    """REST clients with a new connection for each send and with kept ones, and the Node SDK."""

    gateway: GatewayProcess
    senders: int = 4  # of each kind
    forgives: bool = False  # broken connections: the message is sent again
    accepted: set[str] = attrs.field(factory=set)
    errors: Counter[str] = attrs.field(factory=Counter)
    broken: Counter[str] = attrs.field(factory=Counter)  # connections, without an answer
    reconnects: int = 0  # of kept connections, after an answer that said so
    _stopping: bool = False
    _grown: trio.Condition = attrs.field(factory=trio.Condition)

    async def run(self) -> None:
        """Send until stopped; then return when the SDK has ended."""
        part = "producing_again" if self.forgives else "producing_across_restarts"
        producer = producer_of("node", self.gateway, retries=5, part=part)
        async with trio.open_nursery() as nursery:
            await nursery.start(producer.run)
            async with trio.open_nursery() as senders:
                for number in range(self.senders):
                    senders.start_soon(self._send_anew, f"new {number}")
                    senders.start_soon(self._send_kept, f"kept {number}")
            with trio.fail_after(PATIENCE):
                await producer.has_sent(SOME + 1)
            producer.stop()
        assert len(producer.sent) > SOME
        assert self.forgives or producer.longest < SDK_TIMEOUT
        self.accepted |= set(producer.sent)

    async def some(self) -> None:
        """Return when some more messages were accepted."""
        wanted = len(self.accepted) + SOME * self.senders
        with trio.fail_after(PATIENCE):
            async with self._grown:
                while len(self.accepted) < wanted:
                    await self._grown.wait()

    def stop(self) -> None:
        self._stopping = True

    async def _send_anew(self, name: str) -> None:
        number = 0
        while not self._stopping:
            number += 1
            text = f"{name}-{number}"
            try:
                status, _ = await send(self.gateway.address, "orders", text.encode())
            except (OSError, HTTPException) as error:
                self._note_broken(error)
                continue
            await self._note(text, status)

    async def _send_kept(self, name: str) -> None:
        number, connection = 0, Connection(self.gateway.address)
        while not self._stopping:
            number += 1
            text = f"{name}-{number}"
            try:
                answer = await connection.ask("POST", "/orders/messages", text.encode())
            except BrokerError as error:
                self._note_broken(error)
                await connection.aclose()
                connection = Connection(self.gateway.address)
                continue
            await self._note(text, answer.status)
            if (answer.headers.get("Connection") or "").lower() == "close":
                self.reconnects += 1
                await connection.aclose()
                connection = Connection(self.gateway.address)
        await connection.aclose()

    def _note_broken(self, error: Exception) -> None:
        self.broken[repr(error)] += 1
        if not self.forgives:
            self.errors[repr(error)] += 1

    async def _note(self, text: str, status: int) -> None:
        if status != 201:
            self.errors[str(status)] += 1
            return
        async with self._grown:
            self.accepted.add(text)
            self._grown.notify_all()
        await trio.sleep(PAUSE)


async def bodies(gateway: GatewayProcess, expected: set[str]) -> set[str]:
    """The bodies of the sends over REST, and the ids of those of the SDK; until all have come."""
    found = set[str]()
    limit = trio.current_time() + PATIENCE

    async def receive() -> None:
        while not expected <= found and trio.current_time() < limit:
            status, headers, body = await request(
                gateway.address, "DELETE", "/orders/messages/head?timeout=5"
            )
            if status != 200:
                continue
            name = json.loads(headers["brokerproperties"])["MessageId"]
            found.add(name if name.startswith("node ") else body.decode())

    async with trio.open_nursery() as nursery:
        for _ in range(RECEIVERS):
            nursery.start_soon(receive)
    return found
