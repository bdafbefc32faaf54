"""
The requests to Azure's Blob service that a store of bodies needs, and their responses.

    PUT    /CONTAINER?restype=container                      201, 409 if it exists
    PUT    /CONTAINER/NAME   x-ms-blob-type: BlockBlob       201
    GET    /CONTAINER/NAME                                   200, 404 BlobNotFound
    DELETE /CONTAINER/NAME                                   202, 404 BlobNotFound
    GET    /CONTAINER?restype=container&comp=list&prefix=P   200, pages with NextMarker

(REST API: Put Blob, Get Blob, Delete Blob, List Blobs, Create Container; the signature is that of
`storage_queue.signing`.) The response's x-ms-error-code says whether a 404 concerns the container
or the body.
"""

import base64
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.errors import (
    BrokerError,
    Busy,
    InvalidRequest,
    NotAuthorized,
    StorageFull,
    Unavailable,
)
from gateway.wire.http.date import format_http_date, parse_http_date
from gateway.wire.http.hardened_xml import XmlError, parse_xml, text_of
from gateway.wire.http.hosts import split_url
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.storage_queue.address import build_target
from gateway.wire.storage_queue.signing import signed

VERSION: Final = "2020-12-06"  # newer than all operations used here, older than any server
PAGE: Final = 1000  # names of one response: some 600 bytes each, below the limit for XML
_CONTAINER: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}", re.ASCII)
_PORTS: Final = {"http": 80, "https": 443}
_DEVELOPMENT: Final = "usedevelopmentstorage"
# The emulators' well-known account.
_EMULATOR: Final = {
    "blobendpoint": "http://127.0.0.1:10000/devstoreaccount1",
    "accountname": "devstoreaccount1",
    "accountkey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/"
    "KBHBeksoGMGw==",
}
_BUSY: Final = frozenset({"ServerBusy", "OperationTimedOut"})
_FULL: Final = "InsufficientStorage"


@attrs.frozen(kw_only=True)
class BlobAccount:
    """The address and key of an account's Blob service. `path` is prefixed to every target."""

    name: str
    key: bytes = attrs.field(repr=False)  # empty: accessed by a credential
    host: str
    port: int
    secure: bool
    path: str = ""


@attrs.frozen
class Blob:
    """The name of a blob, and when it was written."""

    name: str
    written: datetime


@attrs.frozen
class Page:
    """
    A page of blobs, and the marker of the next page; an empty marker: there are no more pages.
    """

    blobs: tuple[Blob, ...]
    marker: str


def parse_blob_account(text: str, key: str = "", *, needs_key: bool = True) -> BlobAccount:
    """
    Parse a connection string of a Storage account; `key` replaces the key in it. Without
    `needs_key` the string must have no key.

    Raises:
        InvalidRequest: a part is missing or wrong. The text contains no secret.
    """
    parts = _parts_of(text)
    name = parts.get("accountname", "")
    if not name:
        raise _wrong("AccountName is missing")
    try:
        secret = base64.b64decode(key or parts.get("accountkey", ""), validate=True)
    except ValueError as error:
        raise _wrong("AccountKey: Base64 expected") from error
    if needs_key and not secret:
        raise _wrong("AccountKey is missing")
    if secret and not needs_key:
        raise InvalidRequest("leave out the key, or the credential")
    suffix = parts.get("endpointsuffix", "core.windows.net")
    scheme = parts.get("defaultendpointsprotocol", "https")
    host, port, secure, path = _located(
        parts.get("blobendpoint") or f"{scheme}://{name}.blob.{suffix}"
    )
    return BlobAccount(name=name, key=secret, host=host, port=port, secure=secure, path=path)


def _parts_of(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in filter(None, text.strip().split(";")):
        name, equals, value = part.partition("=")
        if not equals:
            raise _wrong("NAME=VALUE expected, separated by ';'")
        parts[name.strip().lower()] = value.strip()
    return _EMULATOR if parts.get(_DEVELOPMENT, "").lower() == "true" else parts


def _located(endpoint: str) -> tuple[str, int, bool, str]:
    """Host, port, whether to use TLS, and path."""
    try:
        url = split_url(endpoint)
    except ValueError as error:
        raise _wrong(f"BlobEndpoint: {error}") from error
    if url.scheme not in _PORTS or not url.hostname or url.query or "@" in url.netloc:
        raise _wrong("BlobEndpoint: http(s)://HOST[:PORT][/ACCOUNT] expected")
    return url.hostname, url.port or _PORTS[url.scheme], url.scheme == "https", url.path.rstrip("/")


def check_container(name: str) -> None:
    """
    Return if the name is valid for a container.

    Raises:
        InvalidRequest: it isn't.
    """
    if not _CONTAINER.fullmatch(name):
        raise InvalidRequest(
            f"container {name!r}: 3 to 63 small letters, digits and single hyphens expected"
        )


def build_create(container: str) -> Request:
    return Request(method="PUT", target=build_target(container, restype="container"))


def build_put(
    container: str,
    name: str,
    data: bytes,
    *,
    content_type: str = "application/zstd",
    condition: tuple[str, str] | None = None,
) -> Request:
    """A write; `condition` is its If-Match or If-None-Match."""
    headers = Headers.of(
        [
            ("x-ms-blob-type", "BlockBlob"),
            ("Content-Type", content_type),
            *([] if condition is None else [condition]),
        ]
    )
    return Request(method="PUT", target=build_target(container, name), headers=headers, body=data)


def build_get(container: str, name: str) -> Request:
    return Request(method="GET", target=build_target(container, name))


def build_remove(container: str, name: str, condition: tuple[str, str] | None = None) -> Request:
    headers = Headers.of([] if condition is None else [condition])
    return Request(method="DELETE", target=build_target(container, name), headers=headers)


def build_list(container: str, prefix: str, marker: str, page: int = PAGE) -> Request:
    target = build_target(
        container,
        restype="container",
        comp="list",
        prefix=prefix,
        maxresults=page,
        marker=marker or None,
    )
    return Request(method="GET", target=target)


def authorized(request: Request, account: BlobAccount, now: datetime, token: str = "") -> Request:
    """
    The request with its signature, which is valid for a quarter of an hour, or with the access
    token.
    """
    fields = [("x-ms-date", format_http_date(now)), ("x-ms-version", VERSION)]
    if request.method == "PUT":
        fields.append(("Content-Length", str(len(request.body))))
    if token:
        fields.append(("Authorization", f"Bearer {token}"))
    complete = attrs.evolve(
        request,
        target=f"{account.path}{request.target}",
        headers=Headers((*request.headers.items, *fields)),
    )
    return complete if token else signed(complete, account=account.name, key=account.key)


def parse_page(response: Response) -> Page:
    """
    The blobs of a page.

    Raises:
        Unavailable: the response isn't a list of blobs.
    """
    try:
        root = parse_xml(response.body)
    except XmlError as error:
        raise Unavailable(f"claim store: a list of blobs expected: {error}") from error
    blobs = []
    for blob in root.iterfind("{*}Blobs/{*}Blob"):
        properties = blob.find("{*}Properties")
        written = parse_http_date(
            "" if properties is None else text_of(properties, "Last-Modified")
        )
        if written is not None:
            blobs.append(Blob(text_of(blob, "Name"), written))
    return Page(tuple(blobs), text_of(root, "NextMarker"))


def code_of(response: Response) -> str:
    return response.headers.get("x-ms-error-code") or ""


# The error for a refusal. For any status that isn't here, the store is unavailable.
_BY_STATUS: Final[Mapping[int, type[BrokerError]]] = {
    400: InvalidRequest,
    401: NotAuthorized,
    403: NotAuthorized,
    507: StorageFull,
}


def refusal(response: Response, store: str) -> BrokerError:
    """The error for a response of 300 and above; `store` is the store's name in its text."""
    code = code_of(response)
    text = f"{store}: {response.status} {code}".rstrip()
    if code in _BUSY or response.status == 429:
        return Busy(text)
    if code == _FULL:
        return StorageFull(text)
    return _BY_STATUS.get(response.status, Unavailable)(text)


def is_missing(response: Response) -> bool:
    """True if the container works, and has no blob with that name."""
    return response.status == 404 and code_of(response) == "BlobNotFound"


def is_unmet(response: Response) -> bool:
    """True if the condition of a write doesn't hold: the blob has another version, or none."""
    is_taken = response.status == 409 and code_of(response) == "BlobAlreadyExists"
    return response.status == 412 or is_taken or is_missing(response)


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(f"connection string: {text}")
