"""
The keys of an identity provider (JSON Web Key Set, RFC 7517), and the signatures by them.

Keys that can't sign access tokens here are left out: symmetric ones, those for encryption, too
short ones, and kinds that aren't known.

The address of the keys is in the provider's discovery document (OpenID Connect Discovery 1.0, 3 and
4).
"""

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import attrs

from gateway.domain.access import Refusal, Refused
from gateway.domain.errors import InvalidRequest
from gateway.wire.http.strict_json import as_object, load
from gateway.wire.openid.jwt import Jwt

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWS

# Providers list some ten keys, of a few KiB each with their certificates.
MAX_BYTES: Final = 256 * 1024
MOST_KEYS: Final = 100
MOST_TRIED: Final = 4  # keys, for one token
_RSA_BITS: Final = range(2048, 16384 + 1)
_OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVE: Final[Mapping[str, tuple[str, ...]]] = {
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
}
# The members of a public key, of which its thumbprint is made (RFC 7638, 3.2; RFC 8037, 2).
_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("e", "kty", "n"),
    "EC": ("crv", "kty", "x", "y"),
    "OKP": ("crv", "kty", "x"),
}


@attrs.frozen(kw_only=True)
class VerifyingKey:
    """A public key, which verifies by the algorithms that fit it, and by no other."""

    key_id: str | None
    thumbprint: str
    by_algorithm: Mapping[str, "PyJWK"] = attrs.field(eq=False, repr=False)

    def fits(self, token: Jwt) -> bool:
        same = token.key_id is None or token.key_id == self.key_id
        return same and token.algorithm in self.by_algorithm


@attrs.frozen
class KeySet:
    """The keys of one provider at one time."""

    keys: Sequence[VerifyingKey]

    @cached_property
    def thumbprints(self) -> frozenset[str]:
        return frozenset(key.thumbprint for key in self.keys)

    def knows(self, token: Jwt) -> bool:
        """True if one of the keys may have signed the token."""
        return any(key.fits(token) for key in self.keys)

    def verify(self, token: Jwt) -> str:
        """
        The thumbprint of the key that signed the token.

        Raises:
            Refused: none of them did, of the first `MOST_TRIED` that fit the token.
        """
        fitting = [key for key in self.keys if key.fits(token)]
        if not fitting:
            text = "token: the provider has no key with its kid and algorithm"
            raise Refused(text, Refusal.WRONG_KEY)
        for key in fitting[:MOST_TRIED]:
            if _is_signed(token, key):
                return key.thumbprint
        raise Refused("token: its signature isn't by a key of the provider", Refusal.WRONG_KEY)


@cache
def _verifier() -> "PyJWS":
    # Imported here, and below: most processes have no identity provider.
    from jwt import PyJWS

    return PyJWS()


def _is_signed(token: Jwt, key: VerifyingKey) -> bool:
    from jwt import PyJWTError

    try:
        _verifier().decode(token.text, key.by_algorithm[token.algorithm], [token.algorithm])
    except (PyJWTError, ValueError, TypeError):
        return False
    return True


def parse_keys(data: bytes) -> KeySet:
    """
    Parse a JWKS.

    Raises:
        InvalidRequest: it isn't one, or has no usable key.
    """
    document = as_object(load(data, "keys (JWKS)", max_bytes=MAX_BYTES), "keys (JWKS)")
    listed = document.get("keys")
    if not isinstance(listed, list) or len(listed) > MOST_KEYS:
        raise InvalidRequest(f"keys (JWKS): a list of up to {MOST_KEYS} expected")
    keys = [key for jwk in listed if isinstance(jwk, dict) and (key := _key(jwk)) is not None]
    if not keys:
        raise InvalidRequest("keys (JWKS): none of them can verify a token by a known algorithm")
    return KeySet(keys)


def _key(jwk: Mapping[str, Any]) -> VerifyingKey | None:
    """The key; None: it can't be used."""
    members = _MEMBERS.get(str(jwk.get("kty")))
    operations = jwk.get("key_ops", ["verify"])
    key_id = jwk.get("kid")
    if members is None or jwk.get("use", "sig") != "sig" or not isinstance(key_id, str | None):
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    # Only these members: if a key was published with its private half, only the public half counts.
    public = {name: jwk.get(name) for name in members}
    by_algorithm = dict(_readings(public, jwk.get("alg")))
    if not by_algorithm:
        return None
    canonical = json.dumps(public, separators=(",", ":"), sort_keys=True).encode()
    thumbprint = urlsafe_b64encode(hashlib.sha256(canonical).digest()).decode().rstrip("=")
    return VerifyingKey(key_id=key_id, thumbprint=thumbprint, by_algorithm=by_algorithm)


def _readings(public: Mapping[str, Any], algorithm: object) -> Iterator[tuple[str, "PyJWK"]]:
    """The key, read for each algorithm that fits it."""
    from jwt import PyJWK, PyJWTError

    known = _OF_RSA if public["kty"] == "RSA" else _OF_CURVE.get(str(public.get("crv")), ())
    for name in known:
        if algorithm is not None and algorithm != name:  # a value in JSON may be of any type
            continue
        try:
            key = PyJWK(dict(public), name)
        except (PyJWTError, ValueError, TypeError, AttributeError):
            return
        if public["kty"] == "RSA" and key.key.key_size not in _RSA_BITS:
            return
        yield name, key


WELL_KNOWN: Final = "/.well-known/openid-configuration"
_WHAT: Final = "discovery document"


@attrs.frozen(kw_only=True)
class Discovery:
    """The parts of the document that an accepting service needs."""

    keys_url: str
    authorization_endpoint: str | None  # where users sign in


def discovery_url(issuer: str) -> str:
    """The document's usual URL."""
    return issuer.rstrip("/") + WELL_KNOWN


def parse_discovery(data: bytes, issuer: str) -> Discovery:
    """
    Parse the document of that issuer.

    Raises:
        InvalidRequest: it isn't one, or another issuer's.
    """
    document = as_object(load(data, _WHAT, max_bytes=MAX_BYTES), _WHAT)
    named = document.get("issuer")
    if named != issuer:
        raise InvalidRequest(f"{_WHAT}: it names the issuer {named!r:.200}, not {issuer!r}")
    keys_url, endpoint = document.get("jwks_uri"), document.get("authorization_endpoint")
    if not isinstance(keys_url, str):
        raise InvalidRequest(f"{_WHAT}: jwks_uri is missing")
    return Discovery(
        keys_url=keys_url, authorization_endpoint=endpoint if fits_a_header(endpoint) else None
    )


def fits_a_header(value: object) -> TypeGuard[str]:
    """True for a text without line ends and the like: clients get it in a header."""
    return isinstance(value, str) and value.isascii() and value.isprintable()
