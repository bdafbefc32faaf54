"""
JSON Web Tokens (RFC 7519), signed and in the compact form (RFC 7515, 3.1): parsed strictly, and
their terms checked.

    base64url(header) . base64url(claims) . base64url(signature)

Nothing in a token is proven until `gateway.wire.openid.keys.KeySet.verify` has returned. Errors
never contain a text of the token.
"""

import base64
import binascii
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

import attrs

from gateway.domain.access import Issuer, Refusal, Refused
from gateway.domain.errors import InvalidRequest
from gateway.wire.http.strict_json import as_object, load

LONGEST: Final = 15 * 1024  # characters: the head of an HTTP request has 16 KiB
SCHEME: Final = "Bearer"
# The asymmetric algorithms of RFC 7518 and RFC 8037, except for the curve secp256k1.
ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
# The types of access tokens (RFC 9068, 2.1) and of tokens without a stated purpose. Others, such as
# those for a logout, must not be taken for access tokens (RFC 8725, 3.11).
_TYPES: Final = frozenset({"jwt", "at+jwt"})
_COMPACT: Final = re.compile(r"([\w-]+)\.([\w-]+)\.([\w-]+)", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LONGEST_NAME: Final = 255
_LAST_SECOND: Final = 2**40


@attrs.frozen(kw_only=True)
class Jwt:
    """A parsed token; unproven."""

    text: str = attrs.field(repr=False)
    algorithm: str
    key_id: str | None
    claims: Mapping[str, Any] = attrs.field(repr=False)


def parse_jwt(text: str) -> Jwt:
    """
    Parse a token in its compact form.

    Raises:
        Refused: it isn't one, or needs an extension that isn't known here.
    """
    if len(text) > LONGEST:
        _refuse(f"up to {LONGEST} characters expected")
    parts = _COMPACT.fullmatch(text)
    if parts is None:
        _refuse("three parts in base64url expected")
    header, claims = _object(parts[1], "header"), _object(parts[2], "claims")
    _decoded(parts[3], "signature")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        _refuse(f"one of the algorithms {', '.join(ALGORITHMS)} expected")
    if not isinstance(key_id, str | None) or len(key_id or "") > _LONGEST_NAME:
        _refuse(f"kid: a text of up to {_LONGEST_NAME} characters expected")
    if "crit" in header or "b64" in header:
        _refuse("its header demands an extension that isn't known here")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in _TYPES:
        _refuse("typ: JWT or at+jwt expected, as of access tokens")
    return Jwt(text=text, algorithm=algorithm, key_id=key_id, claims=claims)


def looks_like_jwt(text: str) -> bool:
    """
    True if the text has the form of a token, whatever its content: `{"` in base64url is `eyJ`.
    """
    return text.startswith("eyJ") and _COMPACT.fullmatch(text) is not None


def issuer_of(token: Jwt) -> str:
    """
    The claim `iss`.

    Raises:
        Refused: it is missing.
    """
    value = token.claims.get("iss")
    if not isinstance(value, str) or not value:
        _refuse("the claim iss is missing")
    return value


def expiry_of(token: Jwt) -> int:
    """
    The claim `exp`, in seconds since 1970.

    Raises:
        Refused: it is missing, or is no date.
    """
    value = _date(token, "exp")
    if value is None:
        _refuse("the claim exp is missing")
    return math.floor(value)


def subject_of(token: Jwt, issuer: Issuer) -> str:
    """The client's name, in printable characters and not too long; empty if the token has none."""
    value = token.claims.get(issuer.subject_claim)
    return _CONTROL.sub("", value)[:_LONGEST_NAME] if isinstance(value, str) else ""


def check_terms(token: Jwt, issuer: Issuer, now: datetime) -> None:
    """
    Return if the token is of this issuer, for this service, and valid already. Its expiry isn't
    checked here, but where the expiry of any `Claim` is.

    Raises:
        Refused: the text says which condition isn't met.
    """
    if issuer_of(token) != issuer.issuer:
        _refuse(f"it isn't of the issuer {issuer.name!r}", Refusal.UNKNOWN_ISSUER)
    if token.algorithm not in issuer.algorithms:
        allowed = ", ".join(issuer.algorithms)
        _refuse(f"one of the issuer's algorithms {allowed} expected", name=issuer.name)
    if not audiences_of(token.claims) & set(issuer.audiences):
        text = f"its audience (aud) is none of {', '.join(issuer.audiences)}"
        _refuse(text, Refusal.WRONG_AUDIENCE, issuer.name)
    for claim in ("nbf", "iat"):
        date = _date(token, claim)
        if date is not None and date > now.timestamp() + issuer.clock_skew:
            text = f"it isn't valid yet ({claim}); do the clocks agree?"
            _refuse(text, Refusal.EXPIRED, issuer.name)


def audiences_of(claims: Mapping[str, Any]) -> set[str]:
    """The services that the token is for."""
    value = claims.get("aud")
    if isinstance(value, str):
        return {value}
    if isinstance(value, list):
        return {item for item in value if isinstance(item, str)}
    return set()


def _date(token: Jwt, claim: str) -> float | None:
    """A NumericDate (RFC 7519, 2); None: the claim is missing."""
    value = token.claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(f"{claim}: seconds since 1970 expected")
    if not 0 <= value < _LAST_SECOND:
        _refuse(f"{claim}: seconds since 1970 expected")
    return float(value)


def _object(part: str, name: str) -> dict[str, Any]:
    try:
        return as_object(load(_decoded(part, name), name, max_bytes=LONGEST), name)
    except InvalidRequest as error:
        # Not its text, which may repeat a part of the token.
        raise _refused(f"its {name} is no JSON object, or not an unambiguous one") from error


def _decoded(part: str, name: str) -> bytes:
    """Decode strictly: exactly one text is accepted for each value."""
    padded = part + "=" * (-len(part) % 4)
    try:
        data = base64.b64decode(padded, altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise _refused(f"its {name} isn't base64url") from error
    if base64.urlsafe_b64encode(data).rstrip(b"=") != part.encode():
        _refuse(f"its {name} isn't canonical base64url")
    return data


def _refused(text: str, why: Refusal = Refusal.MALFORMED, name: str = "") -> Refused:
    return Refused(f"token: {text}", why, name)


def _refuse(text: str, why: Refusal = Refusal.MALFORMED, name: str = "") -> NoReturn:
    raise _refused(text, why, name)
