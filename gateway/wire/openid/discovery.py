"""The discovery document of an identity provider (OpenID Connect Discovery 1.0, 3 and 4)."""

from typing import Final, TypeGuard

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.wire.http.strict_json import as_object, load

WELL_KNOWN: Final = "/.well-known/openid-configuration"
MAX_BYTES: Final = 256 * 1024
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
