"""A client that knows AMQP 1.0 and nothing of Service Bus: Qpid Proton's own, as a process."""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.net.certs import write_certificates
from tests.e2e.processes import GatewayProcess, Gateways, broker_config
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "proton_client.py"
RHEA = Path(__file__).parent / "rhea_client.js"
MODULES = Path(__file__).parents[2] / ".node" / "node_modules"
TLS = 'tls = { certificate = "tls/server.pem", key = "tls/server.key" %s}\n'
QUEUES = ("sending", "types", "outcomes", "deleting", "draining", "heartbeats", "from", "to")
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
LARGE = 24 * 2**20  # bytes of a message: more than may be unsettled
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
    "transactions": {
        "steps": ["declared", "committed", "declared", "aborted"],
        "from": ["kept"],
        "to": ["sent"],
    },
    "refusals": {
        "sender": "amqp:not-found",
        "receiver": "amqp:not-found",
        "subscription": "amqp:not-found",
        "dead_letters": "amqp:not-allowed",
        "dynamic": "amqp:not-implemented",
        "too_large": "rejected",
        "wrong_key": "ConnectionException",
        "no_token": "amqp:unauthorized-access",
    },
}


# A drain gets all that is there, although the machine may stall.
DRAINS = '[limits.amqp]\ndrain_wait = "1m"\n'


async def start(gateways: Gateways, more: str = "", access: str = "") -> GatewayProcess:
    config = broker_config().replace('"service-bus-http"', '"service-bus"') + TLS % more
    config += access or DRAINS
    if access:
        config = config.replace("queues = []", 'queues = []\nmax_message_size = "64MiB"')
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
    with trio.fail_after(PATIENCE):
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


ANYBODY = """
[[access]]
name = "anybody"
anonymous = true
rights = ["Manage"]
entities = ["sending", "types", "outcomes", "topic"]

[limits.amqp]
max_message_size = "64MiB"
"""
OF_RHEA = {
    "bodies": [
        {"number": 1, "list": ["a", 2, None], "nested": {"deep": True}},
        [1, "two", [3]],
        [1, 2, 3],
        "inside",  # rhea hands out a described value without its descriptor
        {"content": "bytes"},
        {"content": ["one", 2]},
        {"content": {"large": 10 * 2**20}},
    ],
    "properties": {
        "null": None,
        "true": True,
        "ubyte": 2**8 - 1,
        "ushort": 2**16 - 1,
        "uint": 2**32 - 1,
        "ulong": 7,
        "byte": -(2**7),
        "short": -(2**15),
        "int": -(2**31),
        "long": -5,
        "float": 1.5,
        "double": 0.1,
        "timestamp": 1_700_000_000_000,
        "string": "h\u00e4h",
        "symbol": "sym",
        "char": ord("\u00fc"),
        "uuid": "\x07" * 16,
        "binary": "octets",
    },
    "fields": {
        "durable": True,
        "priority": 7,
        "ttl": 3_600_000,
        "to": "there",
        "subject": "a subject",
        "reply_to": "here",
        "reply_to_group_id": "the group of the answer",
        "correlation_id": "correlated",
        "content_type": "application/json",
        "content_encoding": "identity",
        "creation_time": 1_700_000_000_000,
        "group_sequence": 3,
    },
    "annotation": 3,
    "footer": {"x-opt-sum": "of all"},
    "refused": "amqp:unauthorized-access",
}


async def test_clients_of_the_standard_need_no_credentials_where_a_policy_says_so(
    gateways: Gateways,
) -> None:
    """Proton with SASL ANONYMOUS, rhea without SASL, and a page of another site."""
    parts = ("sending", "types", "outcomes", "topics")
    broker = await start(gateways, access=ANYBODY)

    of_proton = await run(broker, *parts, mechanism="ANONYMOUS", large=LARGE)
    of_rhea = [await run_rhea(broker, *subprotocol) for subprotocol in ((), ("amqp",))]
    of_a_page = await upgraded(broker.port, "http://elsewhere.example")
    of_rebinding = await upgraded(broker.port, "http://evil.example", host="evil.example")
    of_a_program = await upgraded(broker.port)

    sending = EXPECTED["sending"] | {"large": LARGE}
    assert of_proton == {part: EXPECTED[part] for part in parts} | {"sending": sending}
    assert of_rhea == [OF_RHEA, OF_RHEA]
    assert (of_a_page, of_rebinding, of_a_program) == (b"403", b"403", b"101")
    assert broker.count("connection_crashed") == 0


async def run_rhea(process: GatewayProcess, *subprotocol: str) -> dict[str, Any]:
    """The result of rhea, over WebSocket if it is given a subprotocol."""
    with trio.fail_after(PATIENCE):
        result = await trio.run_process(
            ["node", str(RHEA), str(process.port), "types", *subprotocol],
            env=os.environ | {"NODE_PATH": str(MODULES)},
            capture_stdout=True,
        )
    found: dict[str, Any] = json.loads(result.stdout)
    return found


async def upgraded(port: int, origin: str = "", host: str = "localhost") -> bytes:
    """The status of the answer to a request for AMQP over WebSocket."""
    lines = [
        "GET /$servicebus/websocket HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol: AMQPWSB10",
        *([f"Origin: {origin}"] if origin else []),
    ]
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode())
        with trio.fail_after(PATIENCE):
            return bytes(await stream.receive_some(1000)).split(b" ")[1]
