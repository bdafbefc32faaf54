"""
Gateways whose namespace, another Pairgate, accepts only tokens of the identity provider: by a
client secret, a client certificate, or a workload identity. All are processes; the configurations
are the blocks of the how-to page.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Final

import attrs
import jwt
import pytest
import trio

from gateway.net.certs import write_certificates
from tests.e2e.commands import run
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rest import request, send, take
from tests.harness.identity_provider import (
    CLIENT,
    ISSUER,
    SECRET,
    TENANT,
    IdentityProvider,
    identity_provider,
    write_app_certificate,
)
from tests.harness.patience import PATIENCE
from tests.harness.secret_files import write_secret
from tests.harness.servers import running
from tests.pages import blocks

pytestmark = [pytest.mark.slow, pytest.mark.live]

PAGE: Final = blocks("docs/how-to/secure/entra-id.md", "toml")
URL: Final = re.compile(r'url = "([\w+-]+):.*"')
WRONG: Final = "a wrong secret of this test"
# Seconds of access tokens in the test of the outage: those that outlive it, and the last ones.
LONG: Final = 600
SHORT: Final = 10
REFUSALS: Final = {
    "client-secret": "AADSTS7000215: Invalid client secret provided.",
    "client-certificate": "AADSTS700027: The assertion isn't signed by a known key",
    "workload-identity": "AADSTS700027: The assertion isn't signed by a known key",
}


@attrs.frozen(kw_only=True)
class World:
    """An identity provider, and a broker that accepts its tokens. The gateway's files are here."""

    folder: Path
    provider: IdentityProvider
    south: GatewayProcess

    @property
    def host(self) -> str:
        return f"identity provider localhost:{self.provider.tls_port}"

    def namespace(self, kind: str, scheme: str = "") -> str:
        """
        The page's block for that kind of credential, with the names of this world in it.

        `scheme`: of the URL, if it isn't the block's own.
        """
        [block] = [each for each in PAGE if f'kind = "{kind}"' in each]
        if kind == "workload-identity":  # the environment has the rest, as on AKS
            block = block.replace('" }', '", instance_discovery = false }')
        else:
            block += f"""authority = "{self.provider.authority}"
instance_discovery = false
ca = "{self.provider.ca}"
"""
        for theirs, ours in (
            ("contoso.onmicrosoft.com", TENANT),
            ("11111111-2222-3333-4444-555555555555", CLIENT),
            ("tls/gateway.pem", str(self.folder / "gateway.pem")),
        ):
            block = block.replace(theirs, ours)
        return URL.sub(lambda found: self._place(scheme or found[1]), block)

    def _place(self, scheme: str) -> str:
        bus, rest, storage = (f"localhost:{port}" for port in self.south.ports)
        url = {
            "servicebus": f"Endpoint=sb://{bus}/",
            "servicebus+https": f"//{rest}",
            "storage-queue": f"QueueEndpoint=https://{storage}/contoso;AccountName=contoso",
        }[scheme]
        return f"""url = "{scheme}:{url}"
queues = ["orders"]
tls = {{ ca = "{self.folder / "tls" / "ca.pem"}" }}"""

    def gateway(self, kind: str, scheme: str = "") -> str:
        return f"""
logging = {{ level = "debug" }}

{self.namespace(kind, scheme)}
[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""

    def variables(self, secret: str = SECRET) -> Mapping[str, str]:
        """The environment of a gateway; most is what AKS sets."""
        return {
            "ENTRA_SECRET": secret,
            "AZURE_TENANT_ID": TENANT,
            "AZURE_CLIENT_ID": CLIENT,
            "AZURE_FEDERATED_TOKEN_FILE": str(self.folder / "assertion"),
            "AZURE_AUTHORITY_HOST": f"{self.provider.authority}/",
            "REQUESTS_CA_BUNDLE": str(self.provider.ca),
        }

    def put_files(self, *, good: bool) -> None:
        """Put a new certificate and a new token of the workload; the provider knows good ones."""
        certificate = write_app_certificate(self.folder / "gateway.pem")
        assertion = jwt.encode({"sub": "gateway", "jti": token_hex(8)}, "k" * 32, "HS256")
        write_secret(self.folder / "assertion", assertion)
        if good:
            self.provider.allow(certificate)
            self.provider.allow_assertion(assertion)


@asynccontextmanager
async def open_world(gateways: Gateways, folder: Path) -> AsyncIterator[World]:
    write_certificates(folder / "tls", now=datetime.now(UTC))
    provider = identity_provider(folder / "provider")
    async with running(provider.server):
        south = await gateways.start(south_of(provider, folder / "tls"), name="south")
        world = World(folder=folder, provider=provider, south=south)
        world.put_files(good=True)
        yield world


def south_of(provider: IdentityProvider, tls: Path) -> str:
    """A broker that knows nobody but the app of these tests, by its tokens."""
    endpoints = "".join(
        f"""
[[endpoints]]
protocol = "{protocol}"
bind = "127.0.0.1:0"
tls = {{ certificate = "{tls / "server.pem"}", key = "{tls / "server.key"}" }}
"""
        for protocol in ("service-bus", "service-bus-http", "storage-queue")
    )
    return f"""
logging = {{ level = "debug" }}

[namespaces.here]
url = "embedded:here.db"
queues = ["orders"]
{endpoints}
[[accounts]]
name = "contoso"

[[issuers]]
name = "entra"
issuer = "{ISSUER}"
audiences = ["https://servicebus.azure.net", "https://storage.azure.com"]
keys_url = "{provider.keys_url}"
ca = "{provider.ca}"

[[access]]
name = "gateways"
token = {{ issuer = "entra", claims = {{ appid = ["{CLIENT}"] }} }}
rights = ["Send", "Listen", "Manage"]
"""


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_gateway_sends_and_receives_with_the_right_credential_only(
    kind: str, gateways: Gateways, tmp_path: Path
) -> None:
    async with open_world(gateways, tmp_path) as world:
        world.put_files(good=False)
        gateways.environments["gateway"] = world.variables(WRONG)
        gateway = await gateways.start(world.gateway(kind), name="gateway", wait=False)
        assert await gateway.wait() == 2
        [error] = gateway.garbage
        failed = await gateway.seen("token_request_failed", namespace="azure")
        wrong = await run(gateway.folder, "check", **world.variables(WRONG))

        world.put_files(good=True)
        good = await run(gateway.folder, "check", **world.variables())
        gateway.environment = world.variables()
        await gateway.start()
        assert (await send(gateway.address, "orders", b"by a token"))[0] == 201
        assert await take(gateway.address, "orders") == b"by a token"
        assert await gateway.stop() == 0

    refusal = f"{world.host}: HTTP status 401: {REFUSALS[kind]}"
    assert failed["reason"].startswith(refusal)
    assert refusal in json.loads(error)["error"]
    assert (wrong[0], good[0]) == (1, 0)
    assert f"orders: {refusal}" in wrong[1]
    assert "good    namespace azure: it answers\n" in good[1]
    assert gateway.garbage == [error]
    check_secrecy(gateway, wrong, good)


async def test_a_token_for_another_service_is_refused_by_the_namespace(
    gateways: Gateways, tmp_path: Path
) -> None:
    async with open_world(gateways, tmp_path) as world:
        config = f'{world.namespace("client-secret")}scope = "https://vault.azure.net/.default"\n'
        (tmp_path / "pairgate.toml").write_text(config)
        code, told, _ = await run(tmp_path, "check", **world.variables())
    assert code == 1
    assert "bad     namespace azure: refuses the credentials" in told
    assert "audience (aud) is none of https://servicebus.azure.net" in told


async def test_a_gateway_outlives_an_outage_of_the_provider_and_a_refusal(
    gateways: Gateways, tmp_path: Path
) -> None:
    async with open_world(gateways, tmp_path) as world:
        world.provider.answer(lifetime=LONG, renewed=2)
        gateways.environments["gateway"] = world.variables()
        config = world.gateway("client-certificate", "servicebus+https")
        gateway = await gateways.start(config, name="gateway")

        async def sent() -> int:
            return (await send(gateway.address, "orders", b"m"))[0]

        assert await sent() == 201
        with trio.fail_after(PATIENCE):  # long before the first token expires
            while len(world.provider.requests()) < 2:  # noqa: ASYNC110 of another process
                await trio.sleep(0.1)
        await world.provider.server.kill()
        failed = await gateway.seen("token_request_failed")
        assert failed["good_for"] > 0.0
        assert await sent() == 201
        world.provider.answer(lifetime=SHORT)
        await world.provider.server.start()
        await gateway.seen("token_regained")

        world.put_files(good=False)
        await gateway.until(lambda: is_refused_without_a_token(gateway))
        status, _, answer = await request(gateway.address, "POST", "/orders/messages", b"m")
        assert status == 401
        assert REFUSALS["client-certificate"] in answer.decode()
        world.provider.answer(lifetime=LONG)
        regained = gateway.count("token_regained")
        world.put_files(good=True)
        await gateway.until(lambda: gateway.count("token_regained") > regained)
        assert await sent() == 201
        assert await gateway.stop() == 0
    assert gateway.garbage == []
    check_secrecy(gateway)


def is_refused_without_a_token(gateway: GatewayProcess) -> bool:
    """True once the provider has refused the credential, and the last token had expired."""
    failed = [each for each in gateway.log if each["event"] == "token_request_failed"]
    refusal = REFUSALS["client-certificate"]
    return any(each["good_for"] == 0.0 and refusal in each["reason"] for each in failed)


def check_secrecy(gateway: GatewayProcess, *told: object) -> None:
    text = json.dumps([gateway.log, gateway.garbage, told])
    for secret in (SECRET, WRONG, "eyJ", "PRIVATE KEY"):
        assert secret not in text
