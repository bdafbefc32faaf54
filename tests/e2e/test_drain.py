"""A gateway that is told to stop while an SDK has many messages on their way."""

import subprocess
from collections import defaultdict

import pytest
import trio

from gateway.domain.entity import EntityPath
from tests.e2e.installation import client
from tests.e2e.processes import ROOT, Gateways, broker_config, environment
from tests.e2e.senders import CREDENTIALS
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

MODULES = ROOT / ".node" / "node_modules"
CROWD = ROOT / "tests" / "e2e" / "amqp_crowd.js"
SOME = 300
DRAIN = 50.0  # seconds; without an answer the SDK waits for a minute
ORDERS = EntityPath("orders")


async def test_sigterm_leaves_no_send_without_its_answer(gateways: Gateways) -> None:
    config = broker_config("orders").replace("service-bus-http", "service-bus")
    broker = await gateways.start(config)
    connection = f"Endpoint=sb://localhost:{broker.port};{CREDENTIALS};UseDevelopmentEmulator=true;"
    crowd = await trio.lowlevel.open_process(
        ["node", str(CROWD), connection, "orders", "2", "10"],
        env={**environment(), "NODE_PATH": str(MODULES)},
        stdout=subprocess.PIPE,
    )
    assert crowd.stdout is not None
    told: dict[str, set[str]] = defaultdict(set)
    stopping = False
    rest = b""

    with trio.fail_after(PATIENCE) as limit:
        async for chunk in crowd.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                what, _, name = line.decode().partition(" ")
                told[what].add(name)
            if len(told["accepted"]) >= SOME and not stopping:
                broker.nursery.start_soon(broker.stop)
                stopping = True
                limit.deadline = trio.current_time() + DRAIN
        assert await crowd.wait() == 0
    await broker.wait()
    await broker.start()
    async with client(broker) as service:
        kept = await service.peek(ORDERS, limit=10_000)

    assert told["accepted"] <= {each.message.message_id for each in kept}
    assert told["sent"] == told["accepted"] | told["refused"]
