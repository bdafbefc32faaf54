"""
Consumers in an outage of their primary, each in its own process: their SDKs hear nothing of it, and
have the next message as soon as the primary is back.

    SDKs, REST ─▶ gateway ─▶ primary, killed and started again
"""

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from tests.e2e.amqp_clients import CREDENTIALS, ENVIRONMENT, HERE, NAME, PYTHON
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import request, send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

KINDS: Final = ("plain", "asyncio", "node")
OUTAGE: Final = 12.0  # seconds: two receives of an SDK that waits five at a time
ADDRESS: Final = re.compile(r"127\.0\.0\.1:[0-9]+")


@attrs.define(eq=False)
class Consumer:
    """A process that receives from a queue, and the lines that it has printed."""

    kind: str
    queue: str
    said: list[dict[str, Any]] = attrs.field(factory=list)
    _more: trio.Condition = attrs.field(factory=trio.Condition)

    def command(self, gateway: GatewayProcess) -> Sequence[str]:
        connection = (
            f"Endpoint=sb://localhost:{gateway.port};{CREDENTIALS}UseDevelopmentEmulator=true;"
        )
        arguments = [self.kind, connection, self.queue]
        if self.kind.startswith("node"):
            return ["node", str(HERE / "waiting_receiver.js"), *arguments]
        return [str(PYTHON), str(HERE / "waiting_receiver.py"), *arguments]

    async def run(self, gateway: GatewayProcess) -> None:
        """Run until cancelled."""
        process = await trio.lowlevel.open_process(
            self.command(gateway), env=ENVIRONMENT, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        async with process.stdout:
            try:
                rest = b""
                async for part in process.stdout:
                    *lines, rest = (rest + part).split(b"\n")
                    async with self._more:
                        self.said += map(json.loads, lines)
                        self._more.notify_all()
            finally:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()

    async def until(self, **line: str) -> None:
        with trio.fail_after(PATIENCE):
            async with self._more:
                while line not in self.said:
                    await self._more.wait()

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [each for each in self.said if "error" in each]


@attrs.define(eq=False)
class Poller:
    """A client of REST that asks again as soon as it is answered."""

    statuses: list[int] = attrs.field(factory=list)
    fields: list[str | None] = attrs.field(factory=list)
    texts: list[str] = attrs.field(factory=list)
    refused: trio.Event = attrs.field(factory=trio.Event)

    async def hears_of_it(self) -> None:
        """Return when it was refused for the first time."""
        with trio.fail_after(PATIENCE):
            await self.refused.wait()

    async def run(self, gateway: GatewayProcess) -> None:
        """Run until cancelled."""
        while True:
            status, fields, body = await request(
                gateway.address, "DELETE", "/rest/messages/head?timeout=5"
            )
            self.statuses.append(status)
            if status not in {200, 204}:
                self.refused.set()
                self.fields.append(fields.get("retry-after"))
                self.texts.append(body.decode())


def for_all(config: str) -> str:
    """The configuration, with an endpoint for AMQP and HTTP."""
    return config.replace('"service-bus-http"', '"service-bus"')


def over_amqp(config: str, primary: GatewayProcess) -> str:
    """The configuration, with the primary's URL for AMQP."""
    http = f"servicebus+http://RootManageSharedAccessKey@{primary.address}"
    amqp = f"servicebus:Endpoint=sb://{primary.address}/;SharedAccessKeyName={NAME};"
    assert http in config
    return config.replace(http, f"{amqp}UseDevelopmentEmulator=true")


@pytest.mark.parametrize("protocol", ["http", "amqp"])
async def test_consumers_hear_nothing_of_an_outage_and_go_on_after_it(
    gateways: Gateways, protocol: str
) -> None:
    queues = (*KINDS, "rest")
    primary = await gateways.start(for_all(broker_config(*queues)), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(primary.address, secondary.address)
    if protocol == "amqp":
        config = over_amqp(config, primary)
    gateway = await gateways.start(for_all(config), name="gateway")
    consumers, poller = [Consumer(kind, kind) for kind in KINDS], Poller()
    async with trio.open_nursery() as nursery:
        for each in consumers:
            nursery.start_soon(each.run, gateway)
        nursery.start_soon(poller.run, gateway)
        for each in consumers:
            await each.until(opened=each.kind)
            await send(primary.address, each.kind, b"before")
            await each.until(got="before")
        await primary.kill()
        await poller.hears_of_it()
        began = trio.current_time()
        del poller.statuses[:]
        await trio.sleep(OUTAGE)
        in_outage, outage = list(poller.statuses), trio.current_time() - began
        await primary.start()
        back, took = time.monotonic(), {}
        for each in consumers:
            await send(primary.address, each.kind, b"after")
            await each.until(got="after")
            took[each.kind] = round(time.monotonic() - back, 2)
        nursery.cancel_scope.cancel()

    print(f"seconds from the return to the message of each: {took}")  # noqa: T201 for `-s`
    assert [each.errors for each in consumers] == [[], [], []]
    assert set(in_outage) <= {503}
    assert len(in_outage) <= outage + 1
    assert set(poller.fields) == {"1"}
    assert not any(ADDRESS.search(each) for each in poller.texts)


@pytest.mark.parametrize("protocol", ["http", "amqp"])
async def test_consumers_of_queues_in_receive_in_outage_work_on_in_it(
    gateways: Gateways, protocol: str
) -> None:
    primary = await gateways.start(for_all(broker_config(*KINDS)), name="primary")
    secondary = await gateways.start(for_all(broker_config()), name="secondary")
    config = pair_config(primary.address, secondary.address, receive_in_outage=KINDS)
    if protocol == "amqp":
        config = over_amqp(over_amqp(config, primary), secondary)
    gateway = await gateways.start(for_all(config), name="gateway")
    consumers = [Consumer(kind, kind) for kind in KINDS]
    async with trio.open_nursery() as nursery:
        for each in consumers:
            nursery.start_soon(each.run, gateway)
        for each in consumers:
            await each.until(opened=each.kind)
            await send(gateway.address, each.kind, b"before")
            await each.until(got="before")
        await primary.kill()
        for number in range(3):
            for each in consumers:
                body = f"meanwhile {number}"
                sent = await send(gateway.address, each.kind, body.encode())
                assert sent == (201, "backlog")
                await each.until(got=body)
        await primary.start()
        for each in consumers:
            await send(primary.address, each.kind, b"after")
            await each.until(got="after")
        nursery.cancel_scope.cancel()

    assert [each.errors for each in consumers] == [[], [], []]
    for each in consumers:
        got = Counter(line["got"] for line in each.said if "got" in line)
        # The primary was perhaps killed before it had the completion, for which no SDK waits.
        assert got.pop("before") <= 2
        assert got == Counter(("meanwhile 0", "meanwhile 1", "meanwhile 2", "after"))


@pytest.mark.parametrize("kind", ["sessions", "node-sessions"])
async def test_sessions_in_receive_in_outage_are_received_in_it_and_go_on_after_it(
    gateways: Gateways, kind: str
) -> None:
    """Each message once and in its session's order, whichever side it was at."""
    primary = await gateways.start(for_all(broker_config()), name="primary")
    secondary = await gateways.start(for_all(broker_config()), name="secondary")
    queue = EntityPath("sessions")
    async with client(primary) as broker:
        await broker.create_queue(queue, QueueProperties(requires_session=True))
    config = pair_config(primary.address, secondary.address, receive_in_outage=["sessions"])
    config = over_amqp(over_amqp(config, primary), secondary)
    gateway = await gateways.start(for_all(config), name="gateway")
    consumer, sent = Consumer(kind, "sessions"), []

    async def send_each(text: str) -> None:
        """Return once the consumer has a message of each of two sessions."""
        for session in "ab":
            sent.append({"got": f"{session} {text}", "session": session})
            message = Message(body=sent[-1]["got"].encode(), session_id=session)
            async with client(gateway) as broker:
                await broker.send(queue, [message])
        for line in sent[-2:]:
            await consumer.until(**line)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, gateway)
        await send_each("before")
        await primary.kill()
        await send_each("meanwhile")
        await send_each("and again")
        await primary.start()
        await gateway.seen("outage_over")
        await send_each("after")
        nursery.cancel_scope.cancel()

    got = [line for line in consumer.said if "got" in line]
    # The primary was perhaps killed before it had the completion, for which no SDK waits.
    once = [line for number, line in enumerate(got) if line not in got[:number]]
    assert sorted(once, key=lambda line: line["session"]) == sorted(
        sent, key=lambda line: line["session"]
    )
    assert {line["got"] for line in got if got.count(line) > 1} <= {"a before", "b before"}
    assert gateway.count("connection_crashed") == 0
