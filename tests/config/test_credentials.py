"""Credentials of Entra ID in the configuration, and mistakes about them."""

from pathlib import Path

import pytest

from gateway.brokers.entra.options import CredentialKind
from tests.config.texts import SECRET, config, problems

AZURE = """
[namespaces.azure]
url = "servicebus:Endpoint=sb://contoso.servicebus.windows.net/"
"""


def test_a_credential_has_the_options_of_its_kind() -> None:
    text = (
        AZURE
        + """
[namespaces.azure.credential]
kind = "client-certificate"
tenant_id = "contoso.example"
client_id = "1"
certificate = "tls/gateway.pem"
password = { env = "KEY" }
"""
    )

    found = config(text).namespaces["azure"].options.credential

    assert found.kind is CredentialKind.CLIENT_CERTIFICATE
    assert (found.password, found.certificate) == (SECRET, Path("/nowhere/tls/gateway.pem"))
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("credential", "problem"),
    [
        ("kind = 'certificate'", 'kind: one of "managed-identity", "workload-identity", '),
        ("client_id = '1'", "kind: is missing"),
        ("kind = 'managed-identity', tenant_id = 'a'", "tenant_id: isn't for kind = \"managed-i"),
        ("kind = 'managed-identity', secret = 'a'", "secret: a secret must not be in this file"),
        ("kind = 'managed-identity', user = 'a'", "user: unknown key"),
        ("kind = 'client-secret', client_id = 'a', tenant_id = 'b'", "secret: is missing; kind ="),
        ("kind = 'workload-identity', tenant_id = 'a b'", "tenant_id: "),
        ("kind = 'workload-identity', authority = 'http://a'", "authority: "),
        ("kind = 'workload-identity', authority = 'https://a/b'", "authority: "),
    ],
)
def test_mistakes_about_a_credential_are_named(credential: str, problem: str) -> None:
    (found,) = problems(f"{AZURE}credential = {{ {credential} }}")

    assert found.startswith(f"namespaces.azure.credential.{problem}")


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("servicebus:Endpoint=sb://contoso.example;UseDevelopmentEmulator=true", False),
        ("servicebus:Endpoint=sb://localhost;UseDevelopmentEmulator=true", True),
        ("servicebus+http://contoso.example", False),
        ("servicebus+http://127.0.0.1:5300", True),
        ("servicebus+https://contoso.example", True),
        ("storage-queue:AccountName=contoso;DefaultEndpointsProtocol=http", False),
        ("storage-queue:AccountName=contoso", True),
    ],
)
def test_access_tokens_need_tls_beyond_this_machine(url: str, is_safe: bool) -> None:
    text = f"[namespaces.a]\nurl = '{url}'\ncredential = {{ kind = 'managed-identity' }}"
    if is_safe:
        assert config(text).namespaces["a"].options.credential is not None
    else:
        (found,) = problems(text)
        assert found.startswith("namespaces.a.credential: needs TLS")


def test_a_credential_without_the_extra_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.problems.find_spec", lambda _name: None)

    (found,) = problems(f"{AZURE}credential = {{ kind = 'managed-identity' }}")

    assert found == (
        "namespaces.azure.credential: needs the extra `entra`:"
        " pip install 'azure-identity>=1.25,<2'"
    )
