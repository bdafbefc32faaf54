"""Tokens that must not be taken for good ones: by algorithm, by key, by form."""

import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.access import Refusal, Refused
from gateway.domain.errors import InvalidRequest
from gateway.wire.openid.jwt import ALGORITHMS, LONGEST, parse_jwt
from gateway.wire.openid.keys import MOST_KEYS, KeySet, parse_keys
from tests.harness.openid import KINDS, OpenIdProvider, SigningKey

PROVIDER = OpenIdProvider("https://login.example.net", [SigningKey.make(k, k) for k in KINDS])
KEYS = parse_keys(PROVIDER.jwks())
ES256 = next(key for key in PROVIDER.keys if key.algorithm == "ES256")
RS256 = next(key for key in PROVIDER.keys if key.algorithm == "RS256")
CLAIMS = PROVIDER.claims(1_000_000)
GOOD = ES256.sign(CLAIMS)
HEADER = {"alg": "ES256"}


def part(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def compact(header: object, claims: object, signature: bytes = b"x") -> str:
    return f"{part(header)}.{part(claims)}.{part(signature)}"


def refusal(text: str, keys: KeySet = KEYS) -> Refusal:
    with pytest.raises(Refused) as caught:
        keys.verify(parse_jwt(text))
    for piece in text.split("."):
        assert len(piece) < 8 or piece not in str(caught.value)
    return caught.value.why


@pytest.mark.parametrize("key", PROVIDER.keys, ids=lambda key: key.algorithm)
def test_each_algorithm_verifies_by_its_key(key: SigningKey) -> None:
    token = parse_jwt(key.sign(CLAIMS))

    assert KEYS.verify(token) in KEYS.thumbprints
    assert dict(token.claims) == CLAIMS


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256", "PS384", "PS512"])
def test_a_key_for_one_algorithm_verifies_by_no_other(algorithm: str) -> None:
    text = jwt.encode(CLAIMS, RS256.private, algorithm, {"kid": RS256.key_id})
    free = {name: value for name, value in RS256.jwk().items() if name != "alg"}

    assert refusal(text) is Refusal.WRONG_KEY
    assert parse_keys(json.dumps({"keys": [free]}).encode()).verify(parse_jwt(text))


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", "HS256", "HS512", "ES256K"])
def test_only_asymmetric_algorithms_are_taken(name: str) -> None:
    text = compact({"alg": name, "kid": ES256.key_id}, CLAIMS)

    assert refusal(text) is Refusal.MALFORMED


def test_a_token_without_a_signature_is_none() -> None:
    header = part({"alg": "none", "kid": ES256.key_id})

    assert refusal(f"{header}.{part(CLAIMS)}.") is Refusal.MALFORMED
    assert refusal(f"{GOOD.rpartition('.')[0]}.") is Refusal.MALFORMED


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
def test_a_public_key_is_no_secret_of_hmac(encoding: Encoding) -> None:
    """The classic confusion: HS256, keyed with the public key that everybody has."""
    public = RS256.private.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{part({'alg': 'HS256', 'kid': RS256.key_id})}.{part(CLAIMS)}"
    signature = part(hmac.digest(public, signed.encode(), "sha256"))

    assert refusal(f"{signed}.{signature}") is Refusal.MALFORMED
    for name in ALGORITHMS:  # with the name of a good one
        signed = f"{part({'alg': name, 'kid': RS256.key_id})}.{part(CLAIMS)}"
        signature = part(hmac.digest(public, signed.encode(), "sha256"))
        assert refusal(f"{signed}.{signature}") is Refusal.WRONG_KEY


def test_a_key_that_the_token_brings_along_is_not_asked() -> None:
    guess = SigningKey.make("guess")
    for more in ({"jwk": guess.jwk()}, {"jku": "https://evil.example"}, {"x5u": "https://evil"}):
        for key_id in ("guess", ES256.key_id):
            assert refusal(guess.sign(CLAIMS, **{"kid": key_id, **more})) is Refusal.WRONG_KEY


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"], "exp": 1},
        {"crit": []},
        {"b64": False},
        {"b64": True},
        {"typ": "logout+jwt"},
        {"typ": "dpop+jwt"},
        {"typ": 5},
        {"kid": 5},
        {"kid": "k" * 256},
        {"kid": ["ES256"]},
        {"alg": ["ES256"]},
        {"alg": None},
    ],
    ids=str,
)
def test_a_header_with_another_meaning_is_refused(header: dict[str, Any]) -> None:
    text = compact({**HEADER, **header}, CLAIMS, b"x" * 64)

    assert refusal(text) is Refusal.MALFORMED


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+jwt"])
def test_access_tokens_have_one_of_two_types(kind: str) -> None:
    assert KEYS.verify(parse_jwt(ES256.sign(CLAIMS, typ=kind)))


MALFORMED = [
    "",
    ".",
    "..",
    "...",
    "a.b.c",
    GOOD + ".e30",
    GOOD + "=",
    GOOD + " ",
    " " + GOOD,
    GOOD + "\n",
    GOOD.replace(".", "%2e"),
    "Bearer " + GOOD,
    "é" + GOOD,
    "x" * (LONGEST + 1),
    GOOD + "A" * LONGEST,
    compact(b"[]", CLAIMS),
    compact(b"{", CLAIMS),
    compact(HEADER, b"[]"),
    compact(HEADER, b"[" * 9000),
    compact(HEADER, b'{"a":' * 2000),
    compact(HEADER, b'{"exp": 1, "exp": 2}'),
    compact(b'{"alg": "ES256", "alg": "ES256"}', CLAIMS),
    compact(HEADER, b'{"exp": NaN}'),
    compact(HEADER, b'{"exp": 1' + b"0" * 5000 + b"}"),
    compact(HEADER, bytes([255, 254])),
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_an_invalid_token_is_malformed(text: str) -> None:
    assert refusal(text) is Refusal.MALFORMED


@given(st.data())
def test_a_token_with_one_changed_character_is_none(data: st.DataObject) -> None:
    where = data.draw(st.integers(0, len(GOOD) - 1))
    other = data.draw(st.characters(max_codepoint=255).filter(lambda c: c != GOOD[where]))

    assert refusal(GOOD[:where] + other + GOOD[where + 1 :]) in Refusal


@given(st.text() | st.binary().map(lambda data: f"{part(data)}.{part(data)}.{part(data)}"))
def test_any_text_is_a_refusal_and_no_other_error(text: str) -> None:
    assert refusal(text) is Refusal.MALFORMED


def test_a_token_without_a_kid_is_by_any_key_of_its_algorithm() -> None:
    assert KEYS.verify(parse_jwt(ES256.sign(CLAIMS, kid=None)))
    assert refusal(SigningKey.make("").sign(CLAIMS, kid=None)) is Refusal.WRONG_KEY
    assert refusal(ES256.sign(CLAIMS, kid="")) is Refusal.WRONG_KEY


USELESS: list[dict[str, Any]] = [
    {"kty": "oct", "k": part(b"x" * 64), "kid": "secret", "alg": "HS256"},
    {"kty": "oct", "k": part(b"x" * 64), "kid": "secret", "alg": "RS256"},
    {**ES256.jwk(), "use": "enc"},
    {**ES256.jwk(), "key_ops": ["sign"]},
    {**ES256.jwk(), "key_ops": "verify"},
    {**ES256.jwk(), "alg": "ES384"},
    {**ES256.jwk(), "alg": "HS256"},
    {**ES256.jwk(), "alg": ["ES256"]},
    {**ES256.jwk(), "crv": "secp256k1", "alg": "ES256K"},
    {**ES256.jwk(), "x": part(b"x" * 31)},
    {**ES256.jwk(), "x": 5},
    {**ES256.jwk(), "kid": 5},
    {**ES256.jwk(), "crv": None},
    {**ES256.jwk(), "kty": None},
    {**RS256.jwk(), "n": part(b"\xff" * 128)},  # 1024 bits
    {**RS256.jwk(), "n": part(b"\xff" * 4096)},  # verifying by it takes too long
    {**RS256.jwk(), "e": part(b"\x02")},
    {**RS256.jwk(), "n": None},
    {"kty": "RSA"},
    {},
]


@pytest.mark.parametrize("jwk", USELESS)
def test_a_key_that_cannot_verify_tokens_is_left_out(jwk: dict[str, Any]) -> None:
    beside = parse_keys(PROVIDER.jwks([jwk]))

    assert beside.thumbprints == KEYS.thumbprints
    with pytest.raises(InvalidRequest, match="none of them"):
        parse_keys(json.dumps({"keys": [jwk]}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"keys": []}',
        b'{"keys": {}}',
        b'{"keys": [[], 5, null]}',
        json.dumps({"keys": [{}] * (MOST_KEYS + 1)}).encode(),
        b" " * 300_000,
    ],
    ids=lambda data: str(data[:20]),
)
def test_keys_that_are_none_are_an_error(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_keys(data)


def test_a_private_key_that_was_published_is_used_by_its_public_half() -> None:
    from jwt.algorithms import ECAlgorithm

    private = {**ECAlgorithm.to_jwk(ES256.private, as_dict=True), "kid": ES256.key_id}
    private.pop("key_ops", None)

    assert parse_keys(json.dumps({"keys": [private]}).encode()).verify(parse_jwt(GOOD))
