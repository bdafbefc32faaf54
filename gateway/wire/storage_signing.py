"""
SharedKey and SharedKeyLite: what a request is signed with (REST API: Authorize with Shared Key).

    Authorization: SharedKey contoso:{Base64(HMAC-SHA256(key, string to sign))}

The string to sign has the method, some headers by their values, those that begin with x-ms- by
names and values, the account, and the path as it stands in the request. The first version of the
service used the short form under the long name.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Final

import attrs

from gateway.wire.http import Headers, Request
from gateway.wire.storage_queue_address import SECONDARY, parameters_of
from gateway.wire.storage_queue_errors import StorageRefusal

SHARED_KEY: Final = "SharedKey"
SHARED_KEY_LITE: Final = "SharedKeyLite"
_HEADERS: Final = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)
_LITE_HEADERS: Final = ("Content-MD5", "Content-Type", "Date")
_SPACE: Final = re.compile(r"\s+")
_LITE_SINCE: Final = "2009-09-19"  # the version from which on the long form is used


@attrs.frozen(kw_only=True)
class Signature:
    """What an Authorization header claims."""

    scheme: str
    account: str
    digest: bytes = attrs.field(repr=False)


def parse_authorization(text: str) -> Signature:
    """
    Raises:
        StorageRefusal: InvalidAuthenticationInfo.
    """
    scheme, _, rest = text.partition(" ")
    account, colon, digest = rest.strip().rpartition(":")
    names = {SHARED_KEY.lower(): SHARED_KEY, SHARED_KEY_LITE.lower(): SHARED_KEY_LITE}
    known = names.get(scheme.lower())
    if known is None or not colon or not account:
        raise StorageRefusal(
            "InvalidAuthenticationInfo",
            "SharedKey or SharedKeyLite, account:signature is expected.",
        )
    return Signature(scheme=known, account=account, digest=_strict(digest))


def strings_to_sign(request: Request, scheme: str, account: str, version: str | None) -> list[str]:
    """
    The texts of which one is signed: for an account's secondary a client may name either.

    A client that names no version may sign as the first one did, or as later ones do.
    """
    paths = [request.target.partition("?")[0]]
    if SECONDARY in paths[0]:
        paths.append(paths[0].replace(f"{account}{SECONDARY}", account, 1))
    long, lite = scheme == SHARED_KEY, scheme == SHARED_KEY_LITE
    if version is None or version < _LITE_SINCE:
        lite = True
    # The service folds white space within a value; its own SDKs don't.
    forms = [request, attrs.evolve(request, headers=_folded(request.headers))]
    makers = [make for make, wanted in ((_long, long), (_lite, lite)) if wanted]
    strings = [make(form, account, path) for make in makers for form in forms for path in paths]
    return list(dict.fromkeys(strings))


def sign(string: str, key: bytes) -> bytes:
    return hmac.digest(key, string.encode(), hashlib.sha256)


def signed(request: Request, *, account: str, key: bytes, lite: bool = False) -> Request:
    """The request with its Authorization; the target is as it goes on the wire."""
    path = request.target.partition("?")[0]
    string = _lite(request, account, path) if lite else _long(request, account, path)
    scheme = SHARED_KEY_LITE if lite else SHARED_KEY
    text = f"{scheme} {account}:{base64.b64encode(sign(string, key)).decode()}"
    headers = Headers((*request.headers.items, ("Authorization", text)))
    return attrs.evolve(request, headers=headers)


def _long(request: Request, account: str, path: str) -> str:
    lines = [request.method, *_values(request.headers, _HEADERS)]
    resource = [f"/{account}{path}"]
    for name, values in sorted(parameters_of(request.target).items()):
        resource.append(f"{name}:{','.join(sorted(values))}")
    return "\n".join([*lines, *_own_headers(request.headers), *resource])


def _lite(request: Request, account: str, path: str) -> str:
    lines = [request.method, *_values(request.headers, _LITE_HEADERS)]
    comp = parameters_of(request.target).get("comp")
    resource = f"/{account}{path}" + (f"?comp={comp[-1]}" if comp else "")
    return "\n".join([*lines, *_own_headers(request.headers), resource])


def _values(headers: Headers, names: Sequence[str]) -> list[str]:
    found = {name: headers.get(name) or "" for name in names}
    if found.get("Content-Length") == "0":
        found["Content-Length"] = ""
    if headers.get("x-ms-date") is not None:
        found["Date"] = ""
    return list(found.values())


def _folded(headers: Headers) -> Headers:
    return Headers(tuple((name, _SPACE.sub(" ", value)) for name, value in headers.items))


def _own_headers(headers: Headers) -> list[str]:
    found: dict[str, list[str]] = {}
    for name, value in headers.items:
        if name.lower().startswith("x-ms-"):
            found.setdefault(name.lower(), []).append(value.strip())
    return [f"{name}:{','.join(found[name])}" for name in sorted(found, key=collation)]


def collation(name: str) -> tuple[str, list[int]]:
    """
    The order of the service: underscores before digits before letters, and as if there were no
    hyphens; of two that are the same then, the one whose first hyphen stands later comes first.
    """
    hyphens = [-place for place, char in enumerate(name) if char == "-"]
    return name.replace("-", "").replace("_", " "), hyphens


def _strict(text: str) -> bytes:
    """One text for each signature: Python's decoder passes over what it doesn't know."""
    try:
        digest = base64.b64decode(text, validate=True)
    except ValueError:
        digest = b""
    if not digest or base64.b64encode(digest).decode() != text:
        raise StorageRefusal("AuthenticationFailed", "The signature is no Base64.")
    return digest
