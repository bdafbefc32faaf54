"""Commands ask an admin endpoint over TLS, with a key, here and by its URL."""

import json
from pathlib import Path

import pytest

from gateway.app.failure import Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.certificates import make_certificates
from gateway.app.operations.gateway_keys import GatewayKeys
from gateway.app.runtime import Runtime
from gateway.config.file import load
from gateway.domain.entity import EntityPath
from gateway.extensions.redrive.order import RedriveOrder, Selection
from gateway.extensions.redrive.redriving import RedriveOptions, redrive
from gateway.listening.agent.work_depth import ScaleReader
from gateway.net.tls import ClientTlsOptions
from tests.e2e.commands import ACCESS, run
from tests.e2e.processes import (
    KEY_VARIABLE,
    GatewayProcess,
    Gateways,
    broker_config,
    environment,
)
from tests.pairing.harness import Events

pytestmark = pytest.mark.slow

KEY = environment()[KEY_VARIABLE]


def admin(folder: Path, *, client_ca: bool = False) -> str:
    files = {"certificate": "server.pem", "key": "server.key"}
    files |= {"client_ca": "ca.pem"} if client_ca else {}
    tls = ", ".join(f'{name} = "{folder / file}"' for name, file in files.items())
    return f'\n[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\ntls = {{ {tls} }}\n'


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    make_certificates(folder, Runtime.now())
    return folder


async def secured(gateways: Gateways, endpoint: str) -> GatewayProcess:
    gateway = await gateways.start(broker_config("orders") + endpoint + ACCESS)
    gateway.config_file.write_text(gateway.config)
    return gateway


async def test_without_an_admin_endpoint_status_says_what_to_add(gateways: Gateways) -> None:
    gateway = await gateways.start(broker_config("orders"))
    gateway.config_file.write_text(gateway.config)

    code, output, errors = await run(gateway.folder, "status")

    assert (code, output) == (2, "")
    assert "no `admin` endpoint" in errors
    assert '[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:9640"' in errors
    assert "no gateway answers" not in errors


async def test_a_gateway_is_asked_over_tls_by_its_configuration_and_by_url(
    gateways: Gateways, certs: Path, tmp_path: Path
) -> None:
    gateway = await secured(gateways, admin(certs))
    code, output, errors = await run(gateway.folder, "status", "--json")
    laptop = tmp_path / "laptop"
    laptop.mkdir()
    url = f"--url=https://localhost:{gateway.ports[1]}"
    ca = f"--ca={certs / 'ca.pem'}"
    user = "--user=operators"

    good = await run(laptop, "status", "--json", url, ca, user, PAIRGATE_PASSWORD=KEY)
    wrong_key = await run(laptop, "status", url, ca, user, PAIRGATE_PASSWORD="guess")
    no_key = await run(laptop, "status", url, ca, user)
    no_user = await run(laptop, "status", url, ca)
    stranger = await run(laptop, "status", url, user, PAIRGATE_PASSWORD=KEY)
    told = await run(laptop, "trigger", "orders", url, ca, user, PAIRGATE_PASSWORD=KEY)

    assert (code, errors) == (0, "")
    assert json.loads(output)["good"]
    assert (good[0], good[2]) == (0, "")
    assert json.loads(good[1])["gateway"] == f"localhost:{gateway.ports[1]}"
    assert wrong_key[0] == 1
    assert "guess" not in wrong_key[1] + wrong_key[2]
    assert no_key[0] == 2
    assert "PAIRGATE_PASSWORD" in no_key[2]
    assert no_user[0] == 1
    assert stranger[0] == 1
    assert "certificate" in stranger[2]
    assert told[0] == 0
    await agent_and_redrive_ask(gateway, certs, tmp_path)


async def test_a_client_certificate_is_shown_where_one_is_demanded(
    gateways: Gateways, certs: Path
) -> None:
    gateway = await secured(gateways, admin(certs, client_ca=True))
    own = (f"--cert={certs / 'client.pem'}", f"--key={certs / 'client.key'}")

    code, output, errors = await run(gateway.folder, "status", *own)
    without = await run(gateway.folder, "status")

    assert (code, errors) == (0, "")
    assert "all is well" in output
    assert without[0] != 0


async def agent_and_redrive_ask(gateway: GatewayProcess, certs: Path, tmp_path: Path) -> None:
    """An agent and a redrive take the same options as the commands."""
    laptop = load(None, environ={}, here=tmp_path).config
    choice = AdminChoice(
        url=f"https://localhost:{gateway.ports[1]}",
        tls=ClientTlsOptions(ca=certs / "ca.pem"),
        credentials=f"operators:{KEY}",
    )
    keys = GatewayKeys(config=laptop, observer=Events())
    reader = ScaleReader(keys=keys, choice=choice)
    wish = RedriveOptions(order=RedriveOrder(selection=Selection()), admin=choice)

    assert (await reader.poll([EntityPath("orders")])).depth == 0
    with pytest.raises(Failure, match=f"the gateway at localhost:{gateway.ports[1]}"):
        await redrive(laptop, Runtime(), wish, begin=lambda _: None, moved=lambda _: None)
