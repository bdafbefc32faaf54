"""`pairgate check` refuses every configuration that `pairgate serve` refuses, and names the key."""

import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.net.certs import write_certificates
from tests.e2e.commands import pairgate as run_pairgate
from tests.e2e.commands import with_fixed_port
from tests.e2e.processes import Gateways
from tests.security.gateway import every_port
from tests.stores import make_stores

CONFIG = """
[namespaces.east]
url = "embedded:east.db"
[namespaces.west]
url = "embedded:west.db"
[pairing]
primary = "east"
secondary = "west"
label = "east"
state = "state.json"
"""
ENDPOINT = """
[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""
TLS = 'tls = { certificate = "tls/server.pem", key = "tls/server.key" }\n'
SERVED = CONFIG + ENDPOINT + TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("tls", "other"):
        write_certificates(folder / name, now=datetime.now(UTC))
    (folder / "garbage").write_text("no certificate at all\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path, certificates: Path) -> Path:
    for each in certificates.iterdir():
        (tmp_path / each.name).symlink_to(each)
    return tmp_path


def pairgate(command: str, folder: Path, config: str) -> Result:
    file = folder / "pairgate.toml"
    file.write_text(config)
    return CliRunner().invoke(main, [command, "--config", str(file)])


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (SERVED.replace("tls/server.pem", "missing.pem"), "endpoints[0].tls.certificate"),
        (SERVED.replace("tls/server.pem", "garbage"), "endpoints[0].tls.certificate"),
        (SERVED.replace("tls/server.pem", "tls"), "endpoints[0].tls.certificate"),
        (SERVED.replace("tls/server.key", "other/server.key"), "endpoints[0].tls.key"),
        (SERVED.replace("tls/server.key", "garbage"), "endpoints[0].tls.key"),
        (SERVED.replace(" }", ', client_ca = "garbage" }'), "endpoints[0].tls.client_ca"),
        (SERVED.replace("127.0.0.1:0", "127.0.0.1:70000"), "endpoints[0].bind"),
        (SERVED.replace("127.0.0.1:0", "127.0.0.1:TAKEN"), "endpoints[0].bind"),
        (SERVED.replace("state.json", "tls"), "pairing.state"),
        (SERVED.replace("state.json", "garbage/state.json"), "pairing.state"),
        (SERVED.replace("east.db", "garbage/east.db"), "namespaces.east.url"),
        (SERVED.replace("west.db", "tls"), "namespaces.west.url"),
        (SERVED.replace('state = "state.json"', 'spool = "garbage/spool.db"'), "pairing.spool"),
        (CONFIG, "endpoints"),
    ],
    ids=[
        "no certificate",
        "garbage",
        "a folder",
        "the key of another one",
        "garbage for a key",
        "garbage for an authority",
        "no port",
        "a taken port",
        "a folder for the state",
        "the state below a file",
        "a store below a file",
        "a folder for a store",
        "a spool below a file",
        "no endpoint",
    ],
)
def test_check_refuses_what_serve_refuses(config: str, key: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = config.replace("TAKEN", str(taken.getsockname()[1]))
        checked = pairgate("check", folder, config)
        served = pairgate("serve", folder, config)

    said = checked.stdout + checked.stderr
    assert checked.exit_code in (1, 2), said
    assert key in said
    assert served.exit_code in (1, 2), served.stderr
    for result in (checked, served):
        assert "Traceback" not in result.output


def test_a_configuration_that_can_be_served_is_good(folder: Path) -> None:
    result = pairgate("check", folder, SERVED)

    assert result.exit_code == 0, result.stdout
    assert sorted(each.name for each in folder.iterdir()) == [
        "garbage",
        "other",
        "pairgate.toml",
        "tls",
    ]


def test_a_key_that_does_not_fit_is_named_by_serve(folder: Path) -> None:
    result = pairgate("serve", folder, SERVED.replace("tls/server.key", "other/server.key"))

    assert "endpoints[0].tls.key: " in result.stderr


def test_stores_that_are_there_are_left_as_they_are(folder: Path) -> None:
    file = folder / "pairgate.toml"
    file.write_text(SERVED)
    make_stores(file)
    before = {each.name for each in folder.iterdir()}

    assert pairgate("check", folder, SERVED).exit_code == 0
    assert {each.name for each in folder.iterdir()} == before


@pytest.mark.parametrize("url", ["embedded:here.db", "memory:"])
async def test_beside_a_gateway_that_runs_its_ports_are_good(
    url: str, gateways: Gateways, certificates: Path
) -> None:
    """Without a locked store, the ports themselves show whether a gateway has them."""
    tls = TLS.replace("tls/", f"{certificates}/tls/")
    config = every_port().replace("embedded:here.db", url) + ENDPOINT + tls
    gateway = await gateways.start(config)
    await with_fixed_port(gateway)

    code, output, _ = await run_pairgate(gateway, "check")
    await gateway.stop()

    assert code == 0, output
    assert output.count("is served by a running gateway") == len(gateway.ports) == 6
    assert gateway.count("credentials_refused") == 0


@pytest.mark.slow
async def test_a_port_that_another_program_has_is_bad_though_a_gateway_was_served_before(
    gateways: Gateways,
) -> None:
    gateway = await gateways.start(every_port())
    await with_fixed_port(gateway)
    await gateway.stop()

    with socket.create_server(("127.0.0.1", gateway.ports[1]), backlog=1):
        code, output, _ = await run_pairgate(gateway, "check")

    assert code == 1
    assert f"can't listen on 127.0.0.1:{gateway.ports[1]}" in output
