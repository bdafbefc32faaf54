"""`pairgate send` goes through the gateway, whichever endpoint that has."""

import json
from pathlib import Path

import pytest

from gateway.app.operations.certificates import make_certificates
from gateway.app.runtime import Runtime
from gateway.domain.entity import QueueProperties
from gateway.domain.message import Message
from tests.command_line import PATIENTLY
from tests.e2e.commands import run
from tests.e2e.installation import client
from tests.e2e.listen import NOTE, ORDERS, until_noted
from tests.e2e.processes import Gateways, broker_config

pytestmark = pytest.mark.slow

STORE = '[namespaces.here]\nurl = "embedded:here.db"\nqueues = ["orders"]\n'


def endpoint(protocol: str, tls: Path | None = None, *, client_ca: bool = False) -> str:
    text = f'[[endpoints]]\nprotocol = "{protocol}"\nbind = "127.0.0.1:0"\n'
    if tls is None:
        return text
    files = f'certificate = "{tls / "server.pem"}", key = "{tls / "server.key"}"'
    if client_ca:
        files += f', client_ca = "{tls / "ca.pem"}"'
    return f"{text}tls = {{ {files}, required = true }}\n"


@pytest.mark.parametrize(
    ("protocol", "secure"),
    [
        ("storage-queue", False),
        ("storage-queue", True),
        ("amqp", False),
        ("amqp", True),
        ("service-bus-http", True),
    ],
)
async def test_a_message_goes_through_the_only_endpoint_that_there_is(
    protocol: str, secure: bool, gateways: Gateways, tmp_path: Path
) -> None:
    certs = tmp_path / "tls"
    make_certificates(certs, Runtime.now())
    gateway = await gateways.start(STORE + endpoint(protocol, certs if secure else None))
    gateway.config_file.write_text(gateway.config)

    code, output, errors = await run(gateway.folder, "send", "orders", "hello", "--json")
    rich = await run(gateway.folder, "send", "orders", "rich", "--property", "a=b")
    await gateway.stop()
    _, taken, _ = await run(gateway.folder, "receive", "orders", "--json", *PATIENTLY)

    assert (code, errors) == (0, "")
    sent = json.loads(output)
    assert sent["target"] == f"the gateway at {gateway.address}"
    assert (sent["through_gateway"], sent["namespace"]) == (True, None)
    assert json.loads(taken)["body"] == "hello"
    if protocol == "storage-queue":
        assert rich[0] == 2
        assert "add an endpoint `service-bus-http`" in rich[2]
    else:
        assert rich[0] == 0


async def test_a_listener_waits_for_a_queue_that_is_yet_to_come_if_it_is_told_to(
    gateways: Gateways,
) -> None:
    gateway = await gateways.start(broker_config(), name="gateway")
    command = ("listen", "orders", *NOTE, "--wait-for-queue")
    listener = await gateways.start(gateway.config, name="listener", command=command)
    await listener.seen("listener_failed")

    async with client(gateway) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
        await broker.send(ORDERS, [Message(message_id="1", body=b"hello")])
        await until_noted(1, listener)

    assert await listener.stop() == 0


@pytest.mark.parametrize("protocol", ["service-bus", "service-bus-http", "amqp"])
async def test_a_client_certificate_is_shown_where_the_endpoint_demands_one(
    protocol: str, gateways: Gateways, tmp_path: Path
) -> None:
    certs = tmp_path / "tls"
    make_certificates(certs, Runtime.now())
    gateway = await gateways.start(STORE + endpoint(protocol, certs, client_ca=True))
    gateway.config_file.write_text(gateway.config)
    own = (f"--certificate={certs / 'client.pem'}", f"--key={certs / 'client.key'}")

    without = await run(gateway.folder, "send", "orders", "refused")
    sent = await run(gateway.folder, "send", "orders", "hello", *own)
    peeked = await run(gateway.folder, "peek", "orders", "--json", *own)
    ca = f"--ca={certs / 'ca.pem'}"
    taken = await run(gateway.folder, "receive", "orders", "--json", *PATIENTLY, ca, *own)

    assert without[0] == 2, without
    assert "demands a client certificate: name it with --cert and --key" in without[2]
    assert sent[0] == peeked[0] == taken[0] == 0, (sent, peeked, taken)
    assert json.loads(taken[1])["body"] == "hello"
    assert "refused" not in peeked[1] + taken[1]


@pytest.mark.parametrize(
    ("protocol", "secure", "client_ca"),
    [
        ("service-bus-http", True, False),
        ("service-bus-http", True, True),
        ("service-bus", True, False),
        ("amqp", False, False),
        ("amqp", True, True),
    ],
)
async def test_a_listener_finds_the_gateway_at_any_endpoint_that_it_can_receive_from(
    protocol: str, secure: bool, client_ca: bool, gateways: Gateways, tmp_path: Path
) -> None:
    certs = tmp_path / "tls"
    make_certificates(certs, Runtime.now())
    tls = certs if secure else None
    gateway = await gateways.start(STORE + endpoint(protocol, tls, client_ca=client_ca))
    gateway.config_file.write_text(gateway.config)
    own = (f"--cert={certs / 'client.pem'}", f"--key={certs / 'client.key'}")
    command = ("listen", "orders", *NOTE, "--through-gateway", *(own if client_ca else ()))
    listener = await gateways.start(gateway.config, name="listener", command=command)

    sent = await run(gateway.folder, "send", "orders", "hello", *(own if client_ca else ()))
    await until_noted(1, listener)

    assert sent[0] == 0, sent
    assert await listener.stop() == 0


async def test_a_listener_of_a_type_dead_letters_all_else(gateways: Gateways) -> None:
    gateway = await gateways.start(broker_config("orders"), name="gateway")
    command = ("listen", "orders", *NOTE, "--type", "json")
    async with client(gateway) as broker:
        bodies = {"text": b"hello", "json": b'{"a": 1}', "bytes": b"\xff"}
        messages = [Message(message_id=name, body=body) for name, body in bodies.items()]
        await broker.send(ORDERS, messages)

    listener = await gateways.start(gateway.config, name="listener", command=command)
    await until_noted(1, listener)
    options = ("--dead-letters", "--count", "2", "--wait", "60s", "--json")
    code, output, _ = await run(gateway.folder, "receive", "orders", *options)

    refused = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert {each["message_id"] for each in refused} == {"text", "bytes"}
    assert {each["dead_letter_reason"] for each in refused} == {"WrongBodyType"}
    assert all("the body" in each["dead_letter_description"] for each in refused)
    assert await listener.stop() == 0
