"""The log and the metrics show which clients still use an old key."""

import base64
import time
from pathlib import Path

import pytest
import trio

from gateway.wire.servicebus.sas import sign_sas
from tests.e2e.commands import pairgate
from tests.e2e.processes import KEY_VARIABLE, GatewayProcess, Gateways
from tests.harness.patience import PATIENCE
from tests.security.gateway import ask, every_port, head, port_of, read_head, status

pytestmark = pytest.mark.slow

NAME, GUESS = "RootManageSharedAccessKey", "the-former-key"
SASL = b"AMQP\x03\x01\x00\x00"
PLAIN = f"\0{NAME}\0{GUESS}".encode()
OVER_CBS = """
[namespaces.there]
url = "servicebus:Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=former;UseDevelopmentEmulator=true;"
key = {{ env = "{variable}" }}
"""


def sasl_init() -> bytes:
    """A frame with the mechanism PLAIN and its response."""
    fields = b"\xa3\x05PLAIN" + b"\xa0" + bytes([len(PLAIN)]) + PLAIN
    body = b"\x00\x53\x41\xc0" + bytes([len(fields) + 1, 2]) + fields
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


async def try_plain(port: int) -> None:
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(SASL + sasl_init())
            await read_head(stream)


async def refused_at_each_port(gateway: GatewayProcess) -> None:
    """Requests with the former key: by HTTP twice at each port, as Basic, as SAS, by AMQP."""
    key = sign_sas("http://127.0.0.1/", NAME, GUESS, int(time.time()) + 600)
    basic = f"Basic {base64.b64encode(f'{NAME}:{GUESS}'.encode()).decode()}"
    shared = f"SharedKey devstoreaccount1:{base64.b64encode(bytes(32)).decode()}"
    sas = "sv=2026-10-06&ss=q&srt=sco&sp=r&se=2100-01-01T00:00:00Z&sig=" + "A" * 43 + "%3D"
    for protocol, target, field in (
        ("service-bus", "/orders/messages", ("Authorization", key)),
        ("service-bus-http", "/$Resources/Queues", ("Authorization", key)),
        ("storage-queue", "/devstoreaccount1/orders/messages", ("Authorization", shared)),
        ("storage-queue", f"/devstoreaccount1/orders/messages?{sas}", ("Accept", "*/*")),
        ("storage-queue", "/former/orders/messages", ("Authorization", "SharedKey former:AAAA")),
        ("admin", "/status", ("Authorization", basic)),
    ):
        fields = (("Host", "127.0.0.1"), ("Date", "Wed, 25 Nov 2026 00:00:00 GMT"), field)
        answer = await ask(port_of(gateway, protocol), head("GET", target, *fields))
        assert status(answer) in {401, 403, 404}
    await try_plain(port_of(gateway, "amqp"))


async def test_each_front_end_tells_of_refused_credentials_and_no_secret(
    gateways: Gateways, tmp_path: Path
) -> None:
    gateway = await gateways.start(every_port() + '[logging]\nlevel = "debug"\n')
    await refused_at_each_port(gateway)
    _, metrics = (await everything(gateway)).split("\r\n\r\n", 1)
    await gateway.stop()

    told = {
        (line["protocol"], line["name"], line["reason"])
        for line in gateway.log
        if line["event"] == "credentials_refused"
    }
    assert told == {
        ("service-bus", NAME, "wrong-key"),
        ("service-bus-http", NAME, "wrong-key"),
        ("storage-queue", "devstoreaccount1", "wrong-key"),
        ("storage-queue", "former", "unknown-name"),
        ("admin", NAME, "wrong-key"),
        ("amqp", NAME, "wrong-key"),
    }
    peers = {line["peer"] for line in gateway.log if line["event"] == "credentials_refused"}
    assert peers == {"127.0.0.1"}
    assert 'pairgate_credentials_refused_total{protocol="amqp",reason="wrong-key"} 1' in metrics
    assert (
        'pairgate_credentials_refused_total{protocol="storage-queue",reason="wrong-key"} 2'
        in metrics
    )
    opened = [line["peer"] for line in gateway.log if line["event"] == "connection_opened"]
    closed = [line["peer"] for line in gateway.log if line["event"] == "connection_closed"]
    assert len(opened) >= 7
    assert sorted(opened) == sorted(closed)
    text = str(gateway.log)
    assert GUESS not in text
    assert "sig=" not in text
    assert "SharedAccessSignature" not in text


async def everything(gateway: GatewayProcess) -> str:
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream("127.0.0.1", port_of(gateway, "admin")) as stream:
            fields = (("Host", "127.0.0.1"), ("Connection", "close"))
            await stream.send_all(head("GET", "/metrics", *fields))
            data = b"".join([piece async for piece in stream])
    return data.decode()


async def test_a_token_on_cbs_of_a_former_policy_is_told(gateways: Gateways) -> None:
    gateway = await gateways.start(every_port())
    port = port_of(gateway, "service-bus")
    gateway.config_file.write_text(OVER_CBS.format(port=port, variable=KEY_VARIABLE))

    code, _, errors = await pairgate(gateway, "peek", "orders")
    assert code == 2
    assert "unknown key name 'former'" in errors
    with trio.fail_after(PATIENCE):
        event = await gateway.seen("credentials_refused")

    assert (event["name"], event["reason"]) == ("former", "unknown-name")
