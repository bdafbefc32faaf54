"""
A secret is in no log, event, metric, span, status, error, file or command line. A body, or a value
of a property, is in stores alone.
"""

import base64
import http.client
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from click.testing import CliRunner

from gateway.cli import main
from gateway.demo.ports import free_port
from gateway.wire.http.date import format_http_date
from gateway.wire.http.messages import Headers, Request
from gateway.wire.servicebus.sas import sign_sas
from gateway.wire.storage_queue.signing import signed
from tests.e2e.processes import GatewayProcess, Gateways, environment
from tests.e2e.rest import send_with
from tests.extensions.traces.collector import collecting
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

CANARIES = {name: f"canary-{name}-0f3a9c" for name in ("env", "file", "credential", "command")}
ACCOUNT = base64.b64encode(b"canary-account-0f3a9c").decode()
CONTENT = "canary-content-0f3a9c"  # of messages: bodies and values of properties
CONFIG = """
[namespaces.east]
url = "embedded:east.db"
queues = ["orders"]

[namespaces.west]
url = "servicebus+http://gateway@127.0.0.1:{closed}"
key = {{ env = "WEST_KEY" }}

[pairing]
primary = "east"
secondary = "west"
label = "canary"
enable_syphon = true
envelope_keys = [{{ id = "1", key = {{ command = [{command}] }} }}]

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"

[[access]]
name = "ops"
key = {{ file = "ops.key" }}
second_key = {{ systemd_credential = "second" }}
rights = ["Manage"]

[[accounts]]
name = "contoso"
key = {{ env = "ACCOUNT_KEY" }}

[audit]
file = "audit.jsonl"

[traces]
endpoint = "http://127.0.0.1:{collector}/v1/traces"

[logging]
level = "debug"
"""


@attrs.define
class Heard:
    """Everything that came out of a process."""

    texts: dict[str, bytes] = attrs.field(factory=dict)

    def add(self, where: str, data: bytes) -> None:
        self.texts[where] = self.texts.get(where, b"") + data

    def leaks(self) -> list[str]:
        return [
            f"{secret.decode()!r} in {where}"
            for where, data in self.texts.items()
            for secret in forms()
            if secret in data
        ] + [
            f"the content of a message in {where}"
            for where, data in self.texts.items()
            if CONTENT.encode() in data and not where.startswith("east.db")
        ]


def forms() -> Iterator[bytes]:
    """Each canary as it is, and in the encodings in which a key may show up."""
    for text in (*CANARIES.values(), ACCOUNT, base64.b64decode(ACCOUNT).decode()):
        yield text.encode()
        yield text.encode().hex().encode()
        yield base64.b64encode(text.encode()).rstrip(b"=")


def request(port: int, method: str, path: str, headers: Mapping[str, str], body: str) -> bytes:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        client.request(method, path, body, dict(headers))
        response = client.getresponse()
        return f"{response.status} {response.headers}".encode() + response.read(64 * 1024)
    finally:
        client.close()


def basic(name: str, key: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{key}'.encode()).decode()}"}


def sas(name: str, signature: str) -> dict[str, str]:
    fields = f"sr=http%3A%2F%2Fa%2F&sig={signature}&se=9&skn={name}"
    return {"Authorization": f"SharedAccessSignature {fields}"}


async def ask_everything(process: GatewayProcess, heard: Heard) -> None:
    """Right and wrong credentials, also swapped ones, at each endpoint; and an order."""
    bus, storage, admin = process.ports
    key, other = CANARIES["file"], CANARIES["credential"]
    credentials = [basic("ops", key), basic("ops", other), basic(key, "ops"), basic("ops", "no")]
    credentials += [sas("ops", key), sas(key, "ops"), {"Authorization": f"Bearer {key}"}, {}]
    asked = [(admin, "GET", path) for path in ("/status", "/metrics", "/v1/control", "/livez")]
    asked += [(admin, "POST", "/v1/reload"), (bus, "POST", "/orders/messages")]
    asked += [(bus, "GET", f"/{key}"), (storage, "GET", "/contoso?comp=list")]
    shared = {"Authorization": f"SharedKey contoso:{ACCOUNT}", "x-ms-version": "2021-01-01"}
    for number, (port, method, path) in enumerate(asked):
        for headers in (*credentials, shared):
            call = partial(request, port, method, path, headers, "")
            answer = await trio.to_thread.run_sync(call)
            # The path of a request comes back in its error: that canary was the client's own.
            if key not in path:
                heard.add(f"the answer to {number} {method} {path}", answer)


async def send_content(process: GatewayProcess) -> None:
    """Messages that are accepted, and some that each front end refuses in its own way."""
    bus, storage, _ = process.ports
    token = sign_sas(f"http://127.0.0.1:{bus}/", "ops", CANARIES["file"], int(time.time()) + 600)
    batch = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
    sends: list[tuple[str, dict[str, str], str, int]] = [
        ("/orders", {}, CONTENT, 201),
        ("/missing", {}, CONTENT, 404),
        ("/orders", {}, CONTENT + "x" * 2_000_000, 413),
        ("/orders", batch, f'[{{"Body": "{CONTENT}"', 400),
        ("/orders", batch, f'[{{"Body": "", "UserProperties": {{"p": {{"{CONTENT}": 1}}}}}}]', 400),
        ("/orders", {"BrokerProperties": f'{{"TimeToLive": "{CONTENT}"}}'}, CONTENT, 400),
    ]
    for path, headers, body, status in sends:
        fields = {"Authorization": token, "shade": f'"{CONTENT}"', **headers}
        call = partial(request, bus, "POST", f"{path}/messages", fields, body)
        answer = await trio.to_thread.run_sync(call)
        assert answer.startswith(str(status).encode()), (path, headers, answer)
    text = f"<QueueMessage><MessageText>{CONTENT}</MessageText></QueueMessage>"
    for body, status in ((text, 201), (text[:-5], 400), (f"<a>{text}</a>", 400)):
        asked = signed(
            Request(
                method="POST",
                target="/contoso/orders/messages",
                headers=Headers.of(
                    {
                        "x-ms-date": format_http_date(datetime.now(UTC)),
                        "x-ms-version": "2021-12-02",
                        "Content-Length": str(len(body)),
                    }
                ),
                body=body.encode(),
            ),
            account="contoso",
            key=base64.b64decode(ACCOUNT),
        )
        fields = dict(asked.headers.items)
        call = partial(request, storage, "POST", asked.target, fields, body)
        answer = await trio.to_thread.run_sync(call)
        assert answer.startswith(str(status).encode()), (body, answer)


async def run_commands(process: GatewayProcess, heard: Heard) -> None:
    commands = [
        ["check"],
        ["config", "show"],
        ["status", "--json"],
        ["events", "--recent", "100"],
        ["reload"],
        ["token", "orders"],
    ]
    for words in commands:
        arguments = [*words, "--config", str(process.config_file)]
        runner = CliRunner(env={**environment(), **process.environment})
        done = await trio.to_thread.run_sync(runner.invoke, main, arguments)
        heard.add(f"pairgate {' '.join(words)}", done.output.encode())


async def test_no_secret_and_no_body_gets_out(gateways: Gateways, tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    folder.mkdir()
    (folder / "vault").mkdir()
    for name, secret in (("vault/second", "credential"), ("ops.key", "file")):
        (folder / name).write_text(CANARIES[secret])
        (folder / name).chmod(0o600)
    (folder / "print-key").write_text(f"#!/bin/sh\necho {CANARIES['command']}\n")
    (folder / "print-key").chmod(0o700)
    gateways.environments["gateway"] = {
        "WEST_KEY": CANARIES["env"],
        "ACCOUNT_KEY": ACCOUNT,
        "CREDENTIALS_DIRECTORY": str(folder / "vault"),
    }
    async with collecting() as collector:
        config = CONFIG.format(
            closed=free_port(), command='"./print-key"', collector=collector.port
        )
        process = await gateways.start(config, name="gateway")
        heard = Heard()

        await ask_everything(process, heard)
        assert await send_with(process.address, "orders", "ops", CANARIES["file"]) == 201
        await send_content(process)
        await run_commands(process, heard)
        broken = config.replace("[audit]", '[[access]]\nname = "ops"\nrights = ["x"]\n[audit]')
        process.config_file.write_text(broken)
        process.signal(signal.SIGHUP)
        await process.until(lambda: process.count("doubtful") > 1)
        process.config_file.write_text(process.config)
        line = await trio.Path(f"/proc/{process.pid}/cmdline").read_bytes()
        await process.stop()

    heard.add("the command line", line)
    for spans in collector.received:
        heard.add("the spans", spans.SerializeToString())
    heard.add("the log", "\n".join([*map(str, process.log), *process.garbage]).encode())
    for file in folder.rglob("*"):
        if file.is_file() and file.name not in {"ops.key", "second", "print-key"}:
            heard.add(file.name, file.read_bytes())
    assert heard.leaks() == []
    # The test would find them: all were used.
    assert any(b"200" in each for each in heard.texts.values())
    assert process.count("credentials_refused") > 3
    assert "audit.jsonl" in heard.texts
    assert "send orders" in {span.name for span in collector.spans}
    stores = [data for where, data in heard.texts.items() if where.startswith("east.db")]
    assert any(CONTENT.encode() in data for data in stores)
