"""Tokens of an identity provider at the endpoints of a gateway, from the SDKs, unmodified."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import attrs
import pytest
import trio

from gateway.demo.ports import free_port
from gateway.net.certs import write_certificates
from gateway.net.http.client import HttpClient
from gateway.net.tls import ClientTlsOptions, client_context
from gateway.wire.http.messages import Headers, Request, Response
from tests.e2e.commands import pairgate
from tests.e2e.processes import ROOT, GatewayProcess, Gateways
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

AZURE_PYTHON = ROOT / ".venv-azure" / "bin" / "python"
CLIENT = Path(__file__).with_name("token_client.py")
RHEA = Path(__file__).with_name("xoauth2_client.js")
MODULES = ROOT / ".node" / "node_modules"
TLS = 'tls = { certificate = "../tls/server.pem", key = "../tls/server.key" }'


@attrs.define(eq=False)
class ProviderProcess:
    """`python -m tests.harness.openid`, which can be ended and started again."""

    port: int
    tls: Path
    process: trio.Process | None = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    async def start(self) -> None:
        command = [sys.executable, "-m", "tests.harness.openid", str(self.port)]
        files = [str(self.tls / name) for name in ("server.pem", "server.key")]
        self.process = await trio.lowlevel.open_process(
            [*command, *files],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        with trio.fail_after(PATIENCE):
            assert await self.process.stdout.receive_some(6) == b"ready\n"

    async def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
            self.process = None


@asynccontextmanager
async def open_provider(folder: Path) -> AsyncIterator[ProviderProcess]:
    write_certificates(folder / "tls", now=datetime.now(UTC))
    provider = ProviderProcess(free_port(), folder / "tls")
    await provider.start()
    try:
        yield provider
    finally:
        with trio.CancelScope(shield=True):
            await provider.stop()


def config_of(provider: ProviderProcess) -> str:
    policies = "\n".join(
        f"""
[[access]]
name = "{role}"
token = {{ issuer = "tests", claims = {{ roles = ["{role}"] }} }}
rights = ["{right}"]
entities = {json.dumps(entities)}
"""
        for role, right, entities in (
            ("Orders.Send", "Send", ["orders"]),
            ("Orders.Listen", "Listen", ["orders"]),
            ("Reader", "Listen", ["*"]),
            ("Operator", "Manage", ["*"]),
        )
    )
    endpoints = "\n".join(
        f'[[endpoints]]\nprotocol = "{protocol}"\nbind = "127.0.0.1:0"\n{TLS}\n'
        for protocol in ("service-bus", "storage-queue", "admin")
    )
    return f"""
logging = {{ level = "debug" }}

[namespaces.here]
url = "embedded:broker.db"
queues = ["orders"]

[[issuers]]
name = "tests"
issuer = "{provider.url}"
audiences = ["https://storage.azure.com", "https://servicebus.azure.net/", "api://pairgate"]
ca = "../tls/ca.pem"

[[accounts]]
name = "contoso"

{policies}
{endpoints}
"""


async def run_client(
    gateway: GatewayProcess, provider: ProviderProcess, *parts: str
) -> dict[str, Any]:
    ports = [str(port) for port in gateway.ports[:2]]
    ca = str(provider.tls / "ca.pem")
    with trio.fail_after(PATIENCE):
        result = await trio.run_process(
            [str(AZURE_PYTHON), str(CLIENT), *ports, provider.url, ca, *parts],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert result.returncode == 0, result.stderr.decode()
    told: dict[str, Any] = json.loads(result.stdout)
    return told


async def ask(port: int, provider: ProviderProcess, request: Request) -> Response:
    tls = client_context(ClientTlsOptions(ca=provider.tls / "ca.pem"))
    client = HttpClient("localhost", port, tls=tls)
    try:
        with trio.fail_after(PATIENCE):
            return await client.request(request)
    finally:
        await client.aclose()


async def token_of(provider: ProviderProcess, *roles: str) -> str:
    now = int(datetime.now(UTC).timestamp())
    claims = {
        "iss": provider.url,
        "aud": "https://storage.azure.com",
        "sub": "somebody",
        "roles": roles,
        "exp": now + 600,
    }
    form = urlencode({"claims": json.dumps(claims)}).encode()
    answer = await ask(provider.port, provider, Request(method="POST", target="/token", body=form))
    return str(json.loads(answer.body)["access_token"])


async def send_by(token: str, gateway: GatewayProcess, provider: ProviderProcess) -> Response:
    fields = Headers.of({"Authorization": f"Bearer {token}"})
    request = Request(method="POST", target="/orders/messages", headers=fields, body=b"m")
    return await ask(gateway.port, provider, request)


REFUSED = ["ClientAuthenticationError", 401]
FORBIDDEN = ["HttpResponseError", 403]
EXPECTED = {
    "amqp": {
        "received": "by token",
        "refused": "ServiceBusAuthorizationError",
        "nobody": "ServiceBusAuthorizationError",
        "asked": [["https://servicebus.azure.net//.default", None]],
    },
    "management": {"names": ["made", "orders"], "refused": REFUSED},
    "queues": {
        "received": "by token",
        "refused": FORBIDDEN,
        "depth": 0,
        "create": FORBIDDEN,
        "nobody": FORBIDDEN,
        "asked": [["https://storage.azure.com/.default", None]],
        "challenged": [
            ["https://elsewhere.example/.default", None],
            ["https://storage.azure.com/.default", "tenant"],
        ],
    },
    "delegated": {
        "oid": "the-application",
        "refused": FORBIDDEN,
        "nobody": FORBIDDEN,
        "too_long": ["HttpResponseError", 400],
        "bound": [None, *[["ClientAuthenticationError", 403]] * 2],
        "tenant": ["HttpResponseError", 501],
    },
    "page": ["api://pairgate/.default"] * 2,
}


async def test_the_sdks_work_with_tokens_while_the_provider_rotates_and_fails(
    gateways: Gateways, tmp_path: Path
) -> None:
    async with open_provider(tmp_path) as provider:
        gateway = await gateways.start(config_of(provider))
        await gateway.seen("issuer_keys_read", issuer="tests", keys=1)

        assert await run_client(gateway, provider, *EXPECTED) == EXPECTED

        tokens = {
            role: await token_of(provider, role) for role in ("Orders.Send", "Reader", "Operator")
        }
        admin = gateway.ports[2]

        async def admin_status(method: str, path: str, role: str, body: bytes = b"") -> int:
            headers = {"Authorization": f"Bearer {tokens[role]}"}
            if body:
                headers["Content-Type"] = "application/json"
            fields = Headers.of(headers)
            request = Request(method=method, target=path, headers=fields, body=body)
            return (await ask(admin, provider, request)).status

        assert await admin_status("GET", "/status", "Reader") == 200
        assert await admin_status("GET", "/status", "Orders.Send") == 401
        order = b'{"reason": "a test"}'
        assert await admin_status("POST", "/v1/reload", "Reader", order) == 401
        assert await admin_status("POST", "/v1/reload", "Operator", order) == 200

        reader, operator = tmp_path / "reader", tmp_path / "operator"
        reader.write_text(tokens["Reader"])
        operator.write_text(f"{tokens['Operator']}\n")
        there = (f"--url=https://localhost:{admin}", f"--ca={provider.tls / 'ca.pem'}")
        shown = await pairgate(gateway, "status", "--json", *there, f"--token-file={reader}")
        refused = await pairgate(gateway, "reload", *there, f"--token-file={reader}")
        done = await pairgate(gateway, "reload", *there, f"--token-file={operator}")
        assert (shown[0], json.loads(shown[1])["good"]) == (0, True)
        assert (refused[0], "'Manage' claim(s) are required" in refused[2]) == (1, True)
        assert (done[0], done[2]) == (0, "")

        code, output, _ = await pairgate(gateway, "check")
        assert "1 of its keys can verify tokens" in output
        await provider.stop()
        assert await admin_status("GET", "/status", "Reader") == 200  # by the keys that are known
        code, output, _ = await pairgate(gateway, "check")
        assert code == 1
        assert "its keys can't be read" in output
        await gateway.seen("credentials_refused", name="tests:the-application")

        await provider.start()  # with other keys
        sent = await send_by(await token_of(provider, "Orders.Send"), gateway, provider)
        assert sent.status == 201
        assert await admin_status("GET", "/status", "Reader") == 401  # by a key that is gone
        code = await gateway.stop()

    assert code == 0
    told = str(gateway.log) + str(gateway.garbage)
    for token in tokens.values():
        assert not any(part in told for part in token.split("."))
    assert "eyJ" not in told


async def test_a_client_without_cbs_brings_its_token_in_sasl(
    gateways: Gateways, tmp_path: Path
) -> None:
    """rhea, whose mechanism for a token is XOAUTH2."""

    async def of_rhea(token: str) -> dict[str, Any]:
        words = [str(gateway.port), str(provider.tls / "ca.pem"), "orders", token]
        with trio.fail_after(PATIENCE):
            done = await trio.run_process(
                ["node", str(RHEA), *words],
                env={"PATH": os.environ["PATH"], "NODE_PATH": str(MODULES)},
                capture_stdout=True,
            )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    async with open_provider(tmp_path) as provider:
        gateway = await gateways.start(config_of(provider))
        token = await token_of(provider, "Orders.Send")
        sender = await of_rhea(token)
        both = await of_rhea(await token_of(provider, "Orders.Send", "Orders.Listen"))
        changed = await of_rhea(f"{token[:-9]}AAAAAAAAA")

    unauthorized = "amqp:unauthorized-access"
    assert sender == {"sent": True, "accepted": True, "receiver": unauthorized}
    assert both == {"sent": True, "accepted": True, "receiver": "message"}
    assert changed == {"connection_error": unauthorized}


async def test_a_gateway_starts_without_its_provider_and_says_so(
    gateways: Gateways, tmp_path: Path
) -> None:
    async with open_provider(tmp_path) as provider:
        token = await token_of(provider, "Orders.Send")
        await provider.stop()
        gateway = await gateways.start(config_of(provider))
        failed = await gateway.seen("issuer_unavailable", issuer="tests", keys=0)
        refused = await send_by(token, gateway, provider)
        await provider.start()
        await gateway.seen("issuer_keys_read", issuer="tests", keys=1)
        accepted = await send_by(await token_of(provider, "Orders.Send"), gateway, provider)

    assert failed["reason"].startswith(provider.url)
    assert refused.status == 503
    assert refused.headers.get("Retry-After") is not None
    assert accepted.status == 201
