"""
A pair without keys: the primary, an Azurite, is accessed by the secret of an app registration, the
secondary, another Pairgate, by a managed identity. The identity provider is a process, too: it goes
down, and comes back.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
import trio

from gateway.net.certs import write_certificates
from tests.e2e.commands import run
from tests.e2e.processes import Gateways
from tests.e2e.rest import send, take
from tests.harness.azurite import ACCOUNT, azurite
from tests.harness.identity_provider import (
    CLIENT,
    HEADER,
    ISSUER,
    SECRET,
    TENANT,
    IdentityProvider,
    identity_provider,
)
from tests.harness.patience import PATIENCE
from tests.harness.servers import running
from tests.pages import blocks

pytestmark = [pytest.mark.slow, pytest.mark.live]

WRONG: Final = "a wrong secret of this test"
LIFETIME: Final = 40  # seconds of an access token


def south_of(provider: IdentityProvider) -> str:
    """A broker that takes the provider's tokens."""
    return f"""
logging = {{ level = "debug" }}

[namespaces.here]
url = "embedded:here.db"

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"

[[issuers]]
name = "entra"
issuer = "{ISSUER}"
audiences = ["https://servicebus.azure.net"]
keys_url = "{provider.keys_url}"
ca = "{provider.ca}"

[[access]]
name = "gateways"
token = {{ issuer = "entra", claims = {{ appid = ["system"] }} }}
rights = ["Send", "Listen", "Manage"]
"""


def config_of(provider: IdentityProvider, port: int, folder: Path, south: str) -> str:
    return f"""
logging = {{ level = "debug" }}

[namespaces.azure]
url = "storage-queue:QueueEndpoint=https://localhost:{port}/{ACCOUNT};AccountName={ACCOUNT}"
queues = ["orders"]
tls = {{ ca = "{folder / "ca.pem"}" }}
poll = {{ first = "50ms", cap = "500ms" }}

[namespaces.azure.credential]
kind = "client-secret"
tenant_id = "{TENANT}"
client_id = "{CLIENT}"
secret = {{ env = "ENTRA_SECRET" }}
authority = "{provider.authority}"
instance_discovery = false
ca = "{provider.ca}"

[namespaces.south]
url = "servicebus:Endpoint=sb://{south}/;UseDevelopmentEmulator=true"
credential = {{ kind = "managed-identity" }}

[pairing]
primary = "azure"
secondary = "south"
label = "azure"
backlog_queues = 2
enable_syphon = true
failover_interval = "1s"
ping_interval = "1s"
envelope_keys = [{{ id = "test", key = {{ env = "PAIRGATE_TEST_ENVELOPE_KEY" }} }}]

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"
"""


async def test_a_pair_outlives_the_outage_of_its_identity_provider(
    gateways: Gateways, tmp_path: Path
) -> None:
    certificates = tmp_path / "certificates"
    write_certificates(certificates, now=datetime.now(UTC))
    provider = identity_provider(tmp_path / "provider")
    async with (
        azurite(tmp_path / "azurite", certificate=certificates / "server.pem") as (_, port),
        running(provider.server),
    ):
        south = await gateways.start(south_of(provider), name="south")
        config = config_of(provider, port, certificates, south.address)
        variables = {"ENTRA_SECRET": SECRET, **provider.app_service}
        (tmp_path / "pairgate.toml").write_text(config)
        code, refused, _ = await run(tmp_path, "check", **{**variables, "ENTRA_SECRET": WRONG})
        assert code == 1
        [console] = blocks("docs/how-to/secure/entra-id.md", "console")
        told = console.replace("login.microsoftonline.com", f"localhost:{provider.tls_port}")
        told = told.replace("contoso.queue.core.windows.net:443", f"localhost:{port}")
        assert told.splitlines()[1] in refused.splitlines()
        made = await run(tmp_path, "provision", **variables)
        assert made[0] == 0, made
        checked = await run(tmp_path, "check", **variables)
        assert checked[0] == 0, checked

        provider.answer(lifetime=LIFETIME)
        gateways.environments["serve"] = variables
        gateway = await gateways.start(config, name="serve")
        assert await send(gateway.address, "orders", b"before") == (201, "primary")
        await provider.server.kill()
        assert await send(gateway.address, "orders", b"in an outage") == (201, "primary")
        failed = await gateway.seen("token_request_failed", namespace="azure", good_for=0.0)
        assert f"identity provider localhost:{provider.tls_port}" in failed["reason"]
        assert await send(gateway.address, "orders", b"without a token") == (201, "backlog")
        status = await status_of(gateway.ports[1])
        [azure] = [each for each in status["namespaces"] if each["name"] == "azure"]
        can_send = azure["abilities"]["send"]
        assert can_send["state"] == "no"
        assert "identity provider" in can_send["error"]
        assert "identity provider" in can_send["remedy"]

        await provider.server.start()
        await gateway.seen("token_regained", namespace="azure")
        with trio.fail_after(PATIENCE):
            bodies = {await take(gateway.address, "orders") for _ in range(3)}
        assert bodies == {b"before", b"in an outage", b"without a token"}
        assert await gateway.stop() == 0

    shown = json.dumps([gateway.log, refused, made, checked, status])
    for secret in (SECRET, WRONG, HEADER, "eyJ"):
        assert secret not in shown
    assert gateway.garbage == []


async def status_of(port: int) -> Any:
    def read() -> Any:
        with urlopen(f"http://127.0.0.1:{port}/status", timeout=PATIENCE) as answer:
            return json.load(answer)

    return await trio.to_thread.run_sync(read)
