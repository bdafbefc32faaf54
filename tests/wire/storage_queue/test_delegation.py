"""The documents of user delegation keys, and signatures by such a key."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime

import attrs
import pytest

from gateway.domain.access import Delegated
from gateway.wire.storage_queue.delegation import (
    identity_of,
    key_of,
    parse_key_info,
    tenant_of,
    value_of,
)
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.operations import UserDelegationKey
from gateway.wire.storage_queue.sas import parse_sas

KEY = UserDelegationKey(
    object_id="7c0b",
    tenant_id="9d1e",
    start="2026-01-01T00:00:00Z",
    expiry="2026-01-02T00:00:00Z",
    service="q",
    version="2026-04-06",
)
PARAMETERS = {
    "sp": ["raup"],
    "se": ["2026-01-01T06:00:00Z"],
    "sv": ["2026-04-06"],
    "skoid": ["7c0b"],
    "sktid": ["9d1e"],
    "skt": ["2026-01-01T00:00:00Z"],
    "ske": ["2026-01-02T00:00:00Z"],
    "sks": ["q"],
    "skv": ["2026-04-06"],
    "spr": ["https"],
    "sig": [base64.b64encode(bytes(32)).decode()],
}


def test_a_request_names_the_dates_of_the_key() -> None:
    body = b"<KeyInfo><Start>2026-01-01T08:00:00Z</Start><Expiry>2026-01-02</Expiry></KeyInfo>"

    asked = parse_key_info(body)

    assert asked.start == datetime(2026, 1, 1, 8, tzinfo=UTC)
    assert asked.expiry == datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "InvalidXmlNodeValue"),
        ("<Start>2026-01-01</Start>", "InvalidXmlNodeValue"),
        ("<Expiry>soon</Expiry>", "InvalidXmlNodeValue"),
        ("<Start>now</Start><Expiry>2026-01-01</Expiry>", "InvalidXmlNodeValue"),
        (
            "<Expiry>2026-01-01</Expiry><DelegatedUserTid>t</DelegatedUserTid>",
            "NotImplemented",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(content: str, code: str) -> None:
    with pytest.raises(StorageRefusal) as refused:
        parse_key_info(f"<KeyInfo>{content}</KeyInfo>".encode())

    assert refused.value.code == code


@pytest.mark.parametrize("body", [b"", b"<KeyInfo>", b"<Other><Expiry>2026-01-01</Expiry></Other>"])
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(StorageRefusal) as refused:
        parse_key_info(body)

    assert refused.value.code == "InvalidXmlDocument"


def test_the_string_to_sign_has_the_terms_of_the_key_in_place_of_a_stored_policy() -> None:
    sas = parse_sas(PARAMETERS)

    assert sas is not None
    assert sas.is_delegated
    assert sas.string_to_sign("contoso", "orders").split("\n") == [
        "raup",
        "",
        "2026-01-01T06:00:00Z",
        "/queue/contoso/orders",
        "7c0b",
        "9d1e",
        "2026-01-01T00:00:00Z",
        "2026-01-02T00:00:00Z",
        "q",
        "2026-04-06",
        "",
        "",
        "",
        "https",
        "2026-04-06",
    ]
    assert key_of(sas) == KEY


@pytest.mark.parametrize("name", ["skoid", "ske", "sduoid"])
def test_a_term_that_is_given_twice_is_refused(name: str) -> None:
    with pytest.raises(StorageRefusal, match=r".*"):
        parse_sas({**PARAMETERS, name: ["a", "b"]})


@pytest.mark.parametrize(
    "changes",
    [
        {"object_id": "other"},
        {"tenant_id": "other"},
        {"start": "2026-01-01T00:00:01Z"},
        {"expiry": "2026-01-09T00:00:00Z"},
        {"service": "b"},
        {"version": "2020-01-01"},
    ],
)
def test_the_value_of_a_key_depends_on_each_of_its_terms(changes: dict[str, str]) -> None:
    other = attrs.evolve(KEY, **changes)

    assert value_of(b"secret", "contoso", other) != value_of(b"secret", "contoso", KEY)


def test_the_value_of_a_key_depends_on_secret_and_account_and_signs_nothing_else() -> None:
    value = value_of(b"secret", "contoso", KEY)
    terms = "\n".join(["contoso", *attrs.astuple(KEY)[:-1]])

    assert value == value_of(b"secret", "contoso", attrs.evolve(KEY, value="another"))
    assert value != value_of(b"another", "contoso", KEY)
    assert value != value_of(b"secret", "fabrikam", KEY)
    assert value != hmac.digest(b"secret", terms.encode(), hashlib.sha256)


def test_an_identity_is_in_its_key() -> None:
    identity = Delegated(issuer="entra: 2", subject="7c0b", marks=frozenset({"0a1b", "2c3d"}))
    key = attrs.evolve(KEY, tenant_id=tenant_of(identity))

    assert identity_of(key) == identity
