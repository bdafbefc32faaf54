"""
Service Bus's shared access signatures: the text of the Authorization header, signed and verified.

    SharedAccessSignature sr={quoted uri}&sig={quoted base64}&se={seconds since 1970}&skn={key name}

The signature is HMAC-SHA256 over `sr`, exactly as it stands in the header, a line feed, and `se`.
The key is the UTF-8 of its text, which looks like Base64 and isn't decoded. Fields come in any
order.
"""

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final
from urllib.parse import quote, unquote

import attrs

from gateway.domain.errors import NotAuthorized

SCHEME: Final = "SharedAccessSignature"
_FIELDS: Final = ("sr", "sig", "se", "skn")
_SECONDS: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MAX_LENGTH: Final = 8192  # characters of the header's value


@attrs.frozen(kw_only=True)
class SasToken:
    """A parsed token. Its claims are unproven until `verify` returns true."""

    sr: str  # as in the header, still percent-encoded
    se: str
    key_name: str
    signature: bytes = attrs.field(repr=False)

    @property
    def resource(self) -> str:
        """The URI that the token is for, decoded once."""
        return unquote(self.sr)

    @property
    def expires(self) -> int:
        """Seconds since 1970 UTC."""
        return int(self.se)


def sign_sas(uri: str, key_name: str, key: str, expires: int) -> str:
    """
    Build the value of an Authorization header that is valid until `expires`, in seconds since 1970.
    """
    sr, se = quote(uri, safe=""), str(expires)
    signature = base64.b64encode(_signature(sr, se, key)).decode()
    return (
        f"{SCHEME} sr={sr}&sig={quote(signature, safe='')}&se={se}&skn={quote(key_name, safe='')}"
    )


def parse_sas(text: str) -> SasToken:
    """
    Parse the value of an Authorization header.

    Raises:
        NotAuthorized: it isn't such a token; the text names the field, and never contains the
            signature.
    """
    fields = _fields(text)
    if not _SECONDS.fullmatch(fields["se"]):
        raise NotAuthorized("token: 'se' (expiry): seconds since 1970 expected")
    token = SasToken(
        sr=fields["sr"],
        se=fields["se"],
        key_name=unquote(fields["skn"]),
        signature=_decoded(unquote(fields["sig"])),
    )
    if _CONTROL.search(token.resource) or _CONTROL.search(token.key_name):
        raise NotAuthorized("token: no control characters expected in 'sr' and 'skn'")
    return token


def verify(token: SasToken, key: str) -> bool:
    """True if the key made the signature; takes the same time for any wrong signature."""
    return hmac.compare_digest(token.signature, _signature(token.sr, token.se, key))


def _signature(sr: str, se: str, key: str) -> bytes:
    return hmac.digest(key.encode(), f"{sr}\n{se}".encode(), hashlib.sha256)


def _fields(text: str) -> dict[str, str]:
    if len(text) > _MAX_LENGTH or not text.isascii() or _CONTROL.search(text):
        raise NotAuthorized(f"token: up to {_MAX_LENGTH} visible ASCII characters expected")
    scheme, _, rest = text.partition(" ")
    if scheme.lower() != SCHEME.lower():
        raise NotAuthorized(f"token: scheme {SCHEME!r} expected")
    fields: dict[str, str] = {}
    for part in rest.strip().split("&"):
        name, equals, value = part.partition("=")
        if not equals or name in fields:
            raise NotAuthorized("token: name=value expected, joined by '&', each name once")
        fields[name] = value
    for name in _FIELDS:
        if not fields.get(name):
            raise NotAuthorized(f"token: {name!r} is missing")
    return fields


def _decoded(signature: str) -> bytes:
    """
    Decode strictly: exactly one text is accepted for each signature.

    Python's decoder ignores unknown characters, and bits left at the end.
    """
    try:
        decoded = base64.b64decode(signature, validate=True)
    except (ValueError, binascii.Error) as error:
        raise NotAuthorized("token: 'sig' (signature): Base64 expected") from error
    if base64.b64encode(decoded) != signature.encode():
        raise NotAuthorized("token: 'sig' (signature): canonical Base64 expected")
    return decoded
