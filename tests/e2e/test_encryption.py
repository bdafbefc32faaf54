"""A search of the secondary and of the claim store finds nothing of a diverted message."""

import functools
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete, Message
from tests.e2e.installation import client
from tests.e2e.processes import (
    ENVELOPE_VARIABLE,
    KEY_VARIABLE,
    GatewayProcess,
    Gateways,
    broker_config,
)
from tests.e2e.rabbitmq_nodes import VHOST, ExampleNodes
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")
CANARY = b"canary"
OLD = f'{{ id = "first-key", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}'
NEW = '{ id = "second-key", key = { command = ["./kms", "second-key"] } }'
KMS = """#!/bin/sh
test "$1" = second-key && echo "another envelope key, for tests only"
"""


def canaries(message_id: str, size: int = 1) -> Message:
    """A message whose every text is a canary; its body has the given number of canaries."""
    return Message(
        message_id=f"canary-{message_id}",
        body=b"canary in the body" * size,
        properties={"canary-name": "canary-value", "number": 7},
        session_id="canary-session",
        subject="canary-subject",
        correlation_id="canary-correlation",
        reply_to="canary-reply",
        content_type="canary/type",
        time_to_live=timedelta(hours=1),
    )


def pair(primary: GatewayProcess, secondary: str, *keys: str) -> str:
    return f"""
logging = {{ level = "debug" }}

[namespaces.primary]
url = "servicebus+http://RootManageSharedAccessKey@{primary.address}"
key = {{ env = "{KEY_VARIABLE}" }}

[namespaces.secondary]
{secondary}

[pairing]
primary = "primary"
secondary = "secondary"
label = "east"
backlog_queues = 2
enable_syphon = true
failover_interval = "0s"
attempt_timeout = "30s"
send_timeout = "60s"
ping_interval = "1s"
envelope_keys = [{", ".join(keys)}]
encrypt = true

[claims]
store = "folder:claims"
above = "1KiB"
compression = "none"
encrypt = true

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


def content(folders: Sequence[Path]) -> bytes:
    """All bytes of all files below these folders."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return b"".join(path.read_bytes() for path in files)


async def expect_hidden(folders: Sequence[Path], stored: bytes) -> None:
    """Return when the files have `stored`, as the search sees messages; they have no canary."""
    found = b""
    with trio.fail_after(PATIENCE):
        while stored not in found:
            await trio.sleep(0.1)
            found = await trio.to_thread.run_sync(functools.partial(content, folders))
    assert CANARY not in found


async def expect_home(gateway: GatewayProcess, *sent: Message) -> None:
    """Assert that these messages reach the primary, and nothing is missing of them."""
    found = {}
    async with client(gateway) as broker, broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(PATIENCE):
            while len(found) < len(sent):
                for delivery in await receiver.receive(10):
                    found[delivery.message.message_id] = delivery.message
                    await receiver.settle(delivery, Complete())
    for message in sent:
        home = found[message.message_id]
        assert (home.body, home.properties) == (message.body, message.properties)
        assert (home.session_id, home.subject) == (message.session_id, message.subject)
        assert home.correlation_id == message.correlation_id
        assert timedelta(minutes=50) < home.time_to_live <= message.time_to_live


@pytest.mark.parametrize("kind", ["embedded", pytest.param("rabbitmq", marks=pytest.mark.live)])
async def test_a_search_of_the_secondary_finds_no_text_of_a_message_and_a_new_key_costs_none(
    kind: str, gateways: Gateways, request: pytest.FixtureRequest
) -> None:
    primary = await gateways.start(broker_config(ORDERS.name), name="primary")
    await primary.kill()
    if kind == "rabbitmq":
        rabbits: ExampleNodes = request.getfixturevalue("rabbits")
        await rabbits.south.prepare("rabbitmq-backlog-definitions.json")
        address = f"127.0.0.1:{rabbits.south.node.port}/{VHOST}"
        secondary = f'url = "rabbitmq://guest@{address}"\npassword = {{ file = "guest" }}'
        folder = rabbits.south.node.folder
    else:
        secondary = 'url = "embedded:backlog/west.db"'
        folder = gateways.folder / "gateway" / "backlog"
    gateway = gateways.prepare(pair(primary, secondary, OLD), name="gateway")
    gateway.folder.mkdir()
    searched = [folder, gateway.folder / "claims"]
    for name, text in (("guest", "guest"), ("kms", KMS)):
        (gateway.folder / name).write_text(text)
        (gateway.folder / name).chmod(0o700)
    await gateway.start()
    first, large, second = canaries("first"), canaries("large", 1000), canaries("second")

    async with client(gateway) as broker:
        await broker.send(ORDERS, [first])
        await broker.send(ORDERS, [large])
    await expect_hidden(searched, stored=b"first-key")
    gateway.config_file.write_text(gateway.config.replace(OLD, f"{NEW}, {OLD}"))
    gateway.signal(signal.SIGHUP)
    reloaded = await gateway.seen("reloaded")
    async with client(gateway) as broker:
        await broker.send(ORDERS, [second])
    await expect_hidden(searched, stored=b"second-key")
    await primary.start()

    await expect_home(gateway, first, large, second)
    assert (reloaded["envelope_keys"], reloaded["needs_restart"]) == ("second-key, first-key", "")
    assert gateway.count("diverted") >= 3
    assert gateway.count("left_untouched") == gateway.count("dead_lettered") == 0
