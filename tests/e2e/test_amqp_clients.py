"""The current SDKs over AMQP, unmodified, each in its own process: every feature, and an outage."""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.net.certs import write_certificates
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".venv-azure" / "bin" / "python"
MODULES = ROOT / ".node" / "node_modules"
CREDENTIALS = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
TLS = 'tls = { certificate = "tls/server.pem", key = "tls/server.key" }\n'
CLIENTS = ("plain", "asyncio", "node")

EXPECTED = {
    "sending": {
        "bodies": ["single", "list 0", "list 1", "batch 0", "batch 1", "batch 2"],
        "large": 700_000,
        "left": [],
    },
    "properties": {
        "body": "rich",
        "properties": {"text": "grün", "number": 7, "real": 2.5, "truth": True},
        "id": "the id",
        "subject": "the subject",
        "content_type": "text/plain",
        "correlation": "the correlation",
        "reply_to": "the answer",
        "to": "the target",
        "key": "key",
        "ttl": 3600,
        "count": 0,
        "numbered": True,
        "recent": True,
    },
    "scheduling": {
        "numbers": 2,
        "before": ["by property", "later", "never"],
        "early": 0,
        "arrived": ["by property", "later"],
        "cancelled_twice": "MessageNotFound",
    },
    "settling": {
        "abandoned": ["abandon", 1],
        "deferred": ["defer"],
        "deferred_twice": "MessageNotFound",
        "dead": ["dead-letter", "the reason", "the description"],
        "left": [],
    },
    "deleting": {"bodies": ["0", "1", "2"], "left": []},
    "peeking": {"first": ["0", "1"], "rest": ["2", "3"]},
    "renewing": {"later": True, "kept": None, "left": []},
    "losing": {"late": "MessageLockLost", "count": 1},
    "sessions": {
        "without": "ServiceBus",
        "state": ["the state", "the state", True],
        "renewed": True,
        "locked": "SessionCannotBeLocked",
        "bodies": ["b0", "b1"],
        "next": ["a", ["a0", "a1"]],
    },
    "losing_sessions": {"late": "SessionLockLost", "again": "late"},
    "topics": {"all": ["red", "blue"], "red": ["red"], "blue": ["blue"]},
    "refusals": {
        "sender": "MessagingEntityNotFound",
        "receiver": "MessagingEntityNotFound",
        "subscription": "MessagingEntityNotFound",
        "disabled": "MessagingEntityDisabled",
        "wrong_key": "ServiceBusAuthentication",
        "too_large": "MessageSizeExceeded",
    },
}
# Node's SDK lists no sessions, and waits a minute for the next one.
MORE_IN_PYTHON = {"listed": ["a", "b"], "none": "OperationTimeout", "no_session": "ServiceBus"}
# Python's manages rules over HTTP only.
RULES_IN_NODE = {
    "first": [["$Default", "1=1"]],
    "then": ["correlation", "sql"],
    "twice": "MessagingEntityAlreadyExists",
    "missing": "MessagingEntityNotFound",
    "arrived": ["big", "urgent"],
    "left": [],
}
PREPARED = [
    *("deleting", "disabled", "losing", "losing-sessions", "peeking", "properties", "renewing"),
    *("scheduling", "sending", "sessions", "settling"),
]


def served(config: str) -> str:
    """The configuration with one port for everything, which takes TLS too."""
    return config.replace('"service-bus-http"', '"service-bus"') + TLS


async def start(gateways: Gateways, config: str, **named: Any) -> GatewayProcess:
    process = gateways.prepare(served(config), **named)
    process.folder.mkdir(parents=True, exist_ok=True)
    write_certificates(process.folder / "tls", now=datetime.now(UTC))
    await process.start()
    return process


def command(kind: str, process: GatewayProcess, *parts: str, secure: str = "") -> list[str]:
    """`secure` is the SDK's name of a transport; without one it's AMQP in plain text."""
    options = {"connection_verify": str(process.folder / "tls/ca.pem")}
    connection = f"Endpoint=sb://localhost:{process.port};{CREDENTIALS}"
    if secure:
        options |= {"custom_endpoint_address": connection[9:].partition(";")[0]}
        options |= {"transport_type": secure}
    else:
        connection += "UseDevelopmentEmulator=true;"
    if kind == "node":
        return ["node", str(HERE / "amqp_client.js"), connection, "{}", *parts]
    options_text = json.dumps(options)
    return [str(PYTHON), str(HERE / "amqp_client.py"), kind, connection, options_text, *parts]


async def run(kind: str, process: GatewayProcess, *parts: str, secure: str = "") -> dict[str, Any]:
    with trio.fail_after(120):
        result = await trio.run_process(
            command(kind, process, *parts, secure=secure),
            env={**os.environ, "NODE_PATH": str(MODULES)},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert result.returncode == 0, result.stderr.decode()
    found: dict[str, Any] = json.loads(result.stdout)
    print(result.stderr.decode())
    return found


async def prepare(gateways: Gateways) -> GatewayProcess:
    broker = await start(gateways, broker_config())
    assert await run("plain", broker, "entities") == {"entities": PREPARED}
    return broker


@pytest.mark.parametrize("kind", CLIENTS)
async def test_an_sdk_finds_everything_at_one_port(gateways: Gateways, kind: str) -> None:
    expected: dict[str, Any] = dict(EXPECTED)
    if kind == "node":
        expected["rules"] = RULES_IN_NODE
    else:
        expected["sessions"] = EXPECTED["sessions"] | MORE_IN_PYTHON
    broker = await prepare(gateways)

    found = await run(kind, broker, *expected)

    for part, result in expected.items():
        assert found[part] == result, part
    assert broker.count("connection_crashed") == 0


@pytest.mark.parametrize("kind", ["plain", "asyncio"])
@pytest.mark.parametrize("secure", ["Amqp", "AmqpOverWebsocket"])
async def test_tls_and_websocket_are_at_the_same_port(
    gateways: Gateways, kind: str, secure: str
) -> None:
    parts = ("sending", "properties", "peeking", "sessions")
    broker = await prepare(gateways)

    found = await run(kind, broker, *parts, secure=secure)

    expected = EXPECTED | {"sessions": EXPECTED["sessions"] | MORE_IN_PYTHON}
    assert found == {part: expected[part] for part in parts}
    assert broker.count("connection_crashed") == 0
