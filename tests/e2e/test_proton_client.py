"""A client that knows AMQP 1.0 and nothing of Service Bus: Qpid Proton's own, as a process."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.net.certs import write_certificates
from tests.e2e.processes import GatewayProcess, Gateways, broker_config

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "proton_client.py"
TLS = 'tls = { certificate = "tls/server.pem", key = "tls/server.key" %s}\n'
QUEUES = ("sending", "types", "outcomes", "deleting", "draining", "heartbeats")
ENTITIES = {
    "Queues": [
        *({"Name": name, "Properties": {}} for name in QUEUES),
        {"Name": "sessions", "Properties": {"RequiresSession": True}},
    ],
    "Topics": [
        {
            "Name": "topic",
            "Properties": {},
            "Subscriptions": [{"Name": name, "Properties": {}} for name in ("one", "two")],
        }
    ],
}
EXPECTED = {
    "sending": {"bodies": ["binary", "settled", "single"], "large": 700_000, "left": []},
    "types": [],
    "outcomes": {
        "again": [["modify", 1], ["release", 0]],
        "dead": ["reject", "my:reason"],
        "left": [],
    },
    "deleting": {"bodies": ["0", "1"], "left": []},
    "draining": {"bodies": ["0", "1", "2"], "then": 0},
    "sessions": {
        "bodies": ["b0", "b1"],
        "taken": "com.microsoft:session-cannot-be-locked",
        "next": ["a", ["a0", "a1"]],
        "without": "rejected",
    },
    "topics": [["news"], ["news"]],
    "heartbeats": ["still there"],
    "refusals": {
        "sender": "amqp:not-found",
        "receiver": "amqp:not-found",
        "subscription": "amqp:not-found",
        "dead_letters": "amqp:not-allowed",
        "dynamic": "amqp:not-implemented",
        "transactions": "amqp:not-implemented",
        "too_large": "rejected",
        "wrong_key": "ConnectionException",
        "no_token": "amqp:unauthorized-access",
    },
}


async def start(gateways: Gateways, more: str = "") -> GatewayProcess:
    config = broker_config().replace('"service-bus-http"', '"service-bus"') + TLS % more
    config = config.replace("queues = []", 'entities = "Config.json"')
    process = gateways.prepare(config)
    process.folder.mkdir(parents=True)
    write_certificates(process.folder / "tls", now=datetime.now(UTC))
    entities = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", **ENTITIES}]}}
    (process.folder / "Config.json").write_text(json.dumps(entities))
    await process.start()
    return process


async def run(process: GatewayProcess, *parts: str, **options: object) -> dict[str, Any]:
    program = [sys.executable, str(PROGRAM), json.dumps({"port": process.port, **options}), *parts]
    with trio.fail_after(60):
        result = await trio.run_process(
            program, capture_stdout=True, capture_stderr=True, check=False
        )
    print(result.stderr.decode())  # noqa: T201 shown where the test fails
    assert result.returncode == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found


async def test_a_client_that_knows_only_the_standard_finds_everything(gateways: Gateways) -> None:
    broker = await start(gateways)

    found = await run(broker, *EXPECTED)

    assert found == EXPECTED
    assert broker.count("connection_crashed") == 0


async def test_the_same_port_takes_tls(gateways: Gateways) -> None:
    parts = ("sending", "outcomes", "refusals")
    broker = await start(gateways)

    found = await run(broker, *parts, ca=str(broker.folder / "tls/ca.pem"))

    assert found == {part: EXPECTED[part] for part in parts}
    assert broker.count("connection_crashed") == 0


async def test_a_client_certificate_is_demanded_and_says_who_it_is(gateways: Gateways) -> None:
    broker = await start(gateways, ', client_ca = "tls/ca.pem"')
    tls = broker.folder / "tls"
    ours = {"certificate": str(tls / "client.pem"), "key": str(tls / "client.key")}
    ca = str(tls / "ca.pem")

    with_certificate = await run(broker, "sending", ca=ca, mechanism="EXTERNAL", **ours)
    without_one = await run(broker, "certificates", ca=ca)
    in_plain_text = await run(broker, "certificates")

    assert with_certificate == {"sending": EXPECTED["sending"]}
    assert without_one == in_plain_text == {"certificates": "ConnectionException"}
    assert broker.count("connection_crashed") == 0
