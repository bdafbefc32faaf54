"""Identity providers in the configuration, and the policies for their tokens."""

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import Loaded, parse
from gateway.domain.access import Right
from gateway.wire.openid.jwt import ALGORITHMS

ISSUER = """
[namespaces.here]
url = "memory:"

[[issuers]]
name = "tests"
issuer = "https://login.example.net/tenant"
audiences = ["pairgate"]
"""
POLICY = """
[[access]]
name = "sender"
token = { issuer = "tests", claims = { roles = ["Queues.Send"] } }
rights = ["Send"]
"""


def read(text: str, folder: Path) -> Loaded:
    return parse(text, source="x.toml", folder=folder, environ={})


def test_an_issuer_and_a_policy_for_its_tokens(tmp_path: Path) -> None:
    loaded = read(f'{ISSUER}keys_file = "keys.json"\nclock_skew = "90s"\n{POLICY}', tmp_path)

    [issuer], [policy] = loaded.config.issuers, loaded.config.access
    assert issuer.issuer.algorithms == ALGORITHMS
    assert issuer.issuer.clock_skew == 90.0
    assert issuer.source.keys_file == tmp_path / "keys.json"
    assert issuer.refresh == 3600.0
    assert policy.keys == ()
    assert policy.rights == {Right.SEND}
    assert policy.token is not None
    assert policy.token.claims == {"roles": ("Queues.Send",)}
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("addition", "problem"),
    [
        ('algorithms = ["HS256"]', "issuers[0].algorithms"),
        ('algorithms = ["none"]', "issuers[0].algorithms"),
        ("algorithms = []", "issuers[0].algorithms"),
        ('keys_url = "http://keys.example.net"', "issuers[0].keys_url: https expected"),
        ('discovery = "login"', "issuers[0].discovery: https://HOST[:PORT]/PATH expected"),
        (
            'keys_url = "https://a.example/k"\nkeys_file = "k"',
            "issuers[0]: one of discovery, keys_url and keys_file expected",
        ),
        ('refresh = "1s"', "issuers[0].refresh: must be >= 60"),
        ('secret = "x"', "issuers[0].secret: unknown key"),
        (ISSUER.partition("[[")[2].join(["[[", ""]), "issuers: the name 'tests' is given twice"),
        (
            POLICY.replace('"tests"', '"other"'),
            "access[0].token.issuer: there is no issuer 'other'",
        ),
        (POLICY.replace('["Queues.Send"]', "[]"), "access[0].token.claims"),
        (POLICY.replace('{ roles = ["Queues.Send"] }', "{}"), "access[0].token.claims"),
        (
            POLICY.replace('["Queues.Send"]', '"Queues.Send"'),
            "access[0].token: claims.roles: a list",
        ),
        (POLICY.replace("token =", "tokens ="), "access[0].tokens: unknown key"),
        ('[[accounts]]\nname = "contoso"', "accounts[0].key: is missing"),
    ],
)
def test_a_mistake_is_named_with_its_key(addition: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"{ISSUER}{addition}\n", tmp_path)

    assert any(each.startswith(f"x.toml: {problem}") for each in caught.value.problems), str(
        caught.value
    )


def test_an_issuer_that_can_not_be_asked_over_https_needs_another_place(tmp_path: Path) -> None:
    plain = ISSUER.replace("https:", "http:")

    with pytest.raises(ConfigError, match=r"issuers\[0\]: issuer: https expected"):
        read(plain, tmp_path)
    assert read(f'{plain}keys_file = "keys.json"\n{POLICY}', tmp_path).config.issuers


def test_an_account_without_a_key_is_for_clients_with_tokens(tmp_path: Path) -> None:
    loaded = read(f'{ISSUER}{POLICY}[[accounts]]\nname = "contoso"\n', tmp_path)

    assert loaded.config.accounts[0].keys == ()


def test_an_account_without_a_key_is_for_clients_with_certificates(tmp_path: Path) -> None:
    policy = '[[access]]\nname = "orders"\ncertificates = ["CN=orders"]\nrights = ["Send"]\n'
    namespace = '[namespaces.here]\nurl = "memory:"\n'
    loaded = read(f'{namespace}{policy}[[accounts]]\nname = "contoso"\n', tmp_path)

    assert loaded.config.accounts[0].keys == ()


def test_an_issuer_without_a_policy_is_a_doubt(tmp_path: Path) -> None:
    [warning] = read(ISSUER, tmp_path).warnings

    assert "its clients have no rights" in warning


BY_CERTIFICATE = """
[namespaces.here]
url = "memory:"

[[access]]
name = "orders"
certificates = ["CN=orders,O=Contoso", "DNS:Orders.example.net"]
rights = ["Send"]
"""


def test_a_policy_for_client_certificates(tmp_path: Path) -> None:
    loaded = read(BY_CERTIFICATE, tmp_path)

    [policy] = loaded.config.access
    assert policy.certificates == ("CN=orders,O=Contoso", "DNS:orders.example.net")
    [warning] = loaded.warnings
    assert "no endpoint has tls.client_ca" in warning


@pytest.mark.parametrize("name", ["orders", "", "DNS:", "CN=", "SPIFFE:x"])
def test_a_name_of_a_certificate_says_what_it_is(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access\[0\]\.certificates"):
        read(BY_CERTIFICATE.replace("CN=orders,O=Contoso", name), tmp_path)


BY_KEY = """
[namespaces.here]
url = "memory:"

[[endpoints]]
protocol = "{protocol}"
bind = "127.0.0.1:0"
"""
ACCESS = '[[access]]\nname = "a"\nkey = { env = "KEY" }\nrights = ["Send"]\n'
ACCOUNTS = '[[accounts]]\nname = "contoso"\nkey = { env = "KEY" }\n'


@pytest.mark.parametrize(
    ("protocol", "credentials", "lacking"),
    [
        ("storage-queue", ACCESS, "[[accounts]]"),
        ("service-bus", ACCOUNTS, "[[access]]"),
        ("amqp", ACCOUNTS, "[[access]]"),
        ("storage-queue", ACCESS + ACCOUNTS, ""),
        ("service-bus", ACCESS, ""),
        ("admin", ACCOUNTS, ""),
        ("storage-queue", "", ""),
    ],
)
def test_a_well_known_key_beside_secret_ones_is_a_doubt(
    protocol: str, credentials: str, lacking: str, tmp_path: Path
) -> None:
    text = BY_KEY.format(protocol=protocol) + credentials
    environ = {"KEY": "YSBzZWNyZXQgb2Ygc2l4dGVlbg=="}
    loaded = parse(text, source="x", folder=tmp_path, environ=environ)

    found = [each for each in loaded.warnings if "well-known key" in each]
    assert bool(found) is bool(lacking)
    assert all(f"add {lacking}" in each for each in found)
