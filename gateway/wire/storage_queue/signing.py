"""
SharedKey and SharedKeyLite: the signatures of requests (REST API: Authorize with Shared Key).

    Authorization: SharedKey contoso:{Base64(HMAC-SHA256(key, string to sign))}

The string to sign has the method, some headers by their values, those that begin with x-ms- by
names and values, the account, and the path as in the request. The first version of the service used
the short form under the long name.
"""

import base64
import functools
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from gateway.wire.http.messages import Headers, Request
from gateway.wire.storage_queue.address import SECONDARY, parameters_of
from gateway.wire.storage_queue.errors import StorageRefusal

SHARED_KEY: Final = "SharedKey"
SHARED_KEY_LITE: Final = "SharedKeyLite"
_HEADERS: Final = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)
_LITE_HEADERS: Final = ("content-md5", "content-type", "date")
_SPACES: Final = re.compile(r"[^\S\n]{2,}|\t")
_LITE_SINCE: Final = "2009-09-19"  # the first version that uses the long form
_EMPTY_SINCE: Final = "2015-02-21"  # before it the length of a missing body was signed as 0


@attrs.frozen(kw_only=True)
class Signature:
    """The account and signature of an Authorization header."""

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
    The possible strings to sign: for an account's secondary a client may use either name.

    A client without a version may sign as in the first version, or as in later ones.
    """
    paths = [request.target.partition("?")[0]]
    if SECONDARY in paths[0]:
        paths.append(paths[0].replace(f"{account}{SECONDARY}", account, 1))
    long, lite = scheme == SHARED_KEY, scheme == SHARED_KEY_LITE
    if version is None or version < _LITE_SINCE:
        lite = True
    forms = [_fields_of(request)]
    if _SPACES.search("\n".join(forms[0].values())):
        # The service folds white space within a value; its own SDKs don't.
        forms.append({name: _SPACES.sub(" ", value) for name, value in forms[0].items()})
    makers = [make for make, wanted in ((_long, long), (_lite, lite)) if wanted]
    if long and version is not None and version < _EMPTY_SINCE:
        makers.append(_long_of_old)
    return [
        make(request, form, account, path) for make in makers for form in forms for path in paths
    ]


def sign(string: str, key: bytes) -> bytes:
    return hmac.digest(key, string.encode(), hashlib.sha256)


def signed(request: Request, *, account: str, key: bytes, lite: bool = False) -> Request:
    """The request with its Authorization; the target is as it is sent."""
    path = request.target.partition("?")[0]
    make = _lite if lite else _long
    string = make(request, _fields_of(request), account, path)
    scheme = SHARED_KEY_LITE if lite else SHARED_KEY
    text = f"{scheme} {account}:{base64.b64encode(sign(string, key)).decode()}"
    headers = Headers((*request.headers.items, ("Authorization", text)))
    return attrs.evolve(request, headers=headers)


def _fields_of(request: Request) -> dict[str, str]:
    """The headers by their names in lower case; several with the same name are joined."""
    found: dict[str, str] = {}
    for name, value in request.headers.items:
        key = name.lower()
        found[key] = f"{found[key]},{value.strip()}" if key in found else value.strip()
    return found


def _long(request: Request, fields: Mapping[str, str], account: str, path: str) -> str:
    resource = [f"/{account}{path}"]
    for name, values in sorted(parameters_of(request.target).items()):
        resource.append(f"{name}:{','.join(sorted(values))}")
    lines = [request.method, *_values(fields, _HEADERS), *_own_headers(fields), *resource]
    return "\n".join(lines)


def _long_of_old(request: Request, fields: Mapping[str, str], account: str, path: str) -> str:
    method, encoding, language, length, rest = _long(request, fields, account, path).split("\n", 4)
    return "\n".join([method, encoding, language, length or "0", rest])


def _lite(request: Request, fields: Mapping[str, str], account: str, path: str) -> str:
    comp = parameters_of(request.target).get("comp")
    resource = f"/{account}{path}" + (f"?comp={comp[-1]}" if comp else "")
    lines = [request.method, *_values(fields, _LITE_HEADERS), *_own_headers(fields), resource]
    return "\n".join(lines)


def _values(fields: Mapping[str, str], names: Sequence[str]) -> list[str]:
    left_out = {"content-length"} if fields.get("content-length") == "0" else set()
    if "x-ms-date" in fields:
        left_out.add("date")
    return ["" if name in left_out else fields.get(name, "") for name in names]


def _own_headers(fields: Mapping[str, str]) -> list[str]:
    names = sorted((name for name in fields if name.startswith("x-ms-")), key=collation)
    return [f"{name}:{fields[name]}" for name in names]


@functools.lru_cache(maxsize=256)
def collation(name: str) -> tuple[str, tuple[int, ...]]:
    """
    The service's order: underscores before digits before letters, ignoring hyphens; of two names
    that are equal then, the one whose first hyphen comes later is first.
    """
    hyphens = tuple(-place for place, char in enumerate(name) if char == "-")
    return name.replace("-", "").replace("_", " "), hyphens


def _strict(text: str) -> bytes:
    """Accept one text for each signature: Python's decoder ignores unknown characters."""
    try:
        digest = base64.b64decode(text, validate=True)
    except ValueError:
        digest = b""
    if not digest or base64.b64encode(digest).decode() != text:
        raise StorageRefusal("AuthenticationFailed", "The signature is not valid Base64.")
    return digest
