"""Expiry dates of the certificates that the configuration names."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.app.expiries import read_expiries
from gateway.config.file import parse
from gateway.config.options import LISTEN, SERVE, Config
from gateway.net.certs import write_certificates
from gateway.net.tls import expiry_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)


def configured(folder: Path) -> Config:
    write_certificates(folder, now=NOW)
    tls = f'certificate = "{folder}/server.pem", key = "{folder}/server.key"'
    text = f"""
[namespaces.here]
url = "amqps://root@localhost"
password = {{ env = "SECRET" }}
tls = {{ ca = "{folder}/ca.pem" }}

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
tls = {{ {tls}, client_ca = "{folder}/gone.pem" }}
"""
    return parse(text, source="test", folder=folder, environ={"SECRET": "x"}).config


def test_each_file_is_told_by_the_setting_that_names_it(tmp_path: Path) -> None:
    found = {
        each.setting: (each.file, each.at) for each in read_expiries(configured(tmp_path), SERVE)
    }

    assert found == {
        "endpoints[0].tls.certificate": (f"{tmp_path}/server.pem", NOW + YEAR),
        "namespaces.here.tls.ca": (f"{tmp_path}/ca.pem", NOW + YEAR),
    }


def test_a_listener_has_none_of_the_endpoints(tmp_path: Path) -> None:
    found = read_expiries(configured(tmp_path), LISTEN)

    assert [each.setting for each in found] == ["namespaces.here.tls.ca"]


def test_of_a_chain_the_first_end_counts_and_of_authorities_the_last(tmp_path: Path) -> None:
    several = b""
    for days in (0, 30):
        write_certificates(tmp_path, now=NOW + timedelta(days=days))
        several += (tmp_path / "ca.pem").read_bytes()
    file = tmp_path / "several.pem"
    file.write_bytes(several)

    assert expiry_of(file, authorities=False) == NOW + YEAR
    assert expiry_of(file, authorities=True) == NOW + timedelta(days=30) + YEAR


def test_a_file_without_a_certificate_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "empty.pem"
    file.write_text("nothing")

    assert expiry_of(file, authorities=False) is None
