"""
Connection strings of Storage accounts.

    DefaultEndpointsProtocol=https;AccountName=NAME;AccountKey=KEY;EndpointSuffix=core.windows.net
    QueueEndpoint=http://127.0.0.1:10001/NAME;AccountName=NAME;AccountKey=KEY
    QueueEndpoint=https://NAME.queue.core.windows.net/;SharedAccessSignature=sv=...
    UseDevelopmentStorage=true          Azurite on this machine
"""

import base64
from collections.abc import Mapping
from typing import Final

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.domain.storage_queue import EMULATOR_ACCOUNT, check_account_name
from gateway.wire.http.hosts import split_url

_DEVELOPMENT: Final = "usedevelopmentstorage"
_EMULATOR: Final = "http://127.0.0.1:10001"
_NAMES: Final = {
    "defaultendpointsprotocol": "DefaultEndpointsProtocol",
    "accountname": "AccountName",
    "accountkey": "AccountKey",
    "endpointsuffix": "EndpointSuffix",
    "queueendpoint": "QueueEndpoint",
    "sharedaccesssignature": "SharedAccessSignature",
    _DEVELOPMENT: "UseDevelopmentStorage",
    # Of the account's other services, and of its read-only secondary.
    "queuesecondaryendpoint": "QueueSecondaryEndpoint",
    "blobendpoint": "BlobEndpoint",
    "blobsecondaryendpoint": "BlobSecondaryEndpoint",
    "tableendpoint": "TableEndpoint",
    "tablesecondaryendpoint": "TableSecondaryEndpoint",
    "fileendpoint": "FileEndpoint",
    "filesecondaryendpoint": "FileSecondaryEndpoint",
}
_PORTS: Final = {"http": 80, "https": 443}


@attrs.frozen(kw_only=True)
class StorageConnection:
    """
    The part of a connection string that concerns the Queue service. `path` precedes every target
    (`/NAME`, of emulators). `key` and `sas` may be configured elsewhere instead.
    """

    account: str
    host: str
    port: int
    secure: bool
    path: str = ""
    key: bytes = attrs.field(default=b"", repr=False)
    sas: str = attrs.field(default="", repr=False)  # as a query, without "?"

    @property
    def origin(self) -> str:
        """The URL of the host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"


def parse_storage_connection(text: str) -> StorageConnection:
    """
    Parse a connection string; names in any order and case.

    Raises:
        InvalidRequest: a part is missing, unknown, or given twice. The text contains no secret.
    """
    parts = _parts_of(text)
    if parts.get(_DEVELOPMENT, "").lower() == "true":
        if len(parts) > 1:
            raise _wrong("nothing expected beside UseDevelopmentStorage=true")
        name, (key,) = EMULATOR_ACCOUNT.name, EMULATOR_ACCOUNT.keys
        return _located(f"{_EMULATOR}/{name}", name, key=key, sas="")
    sas = parts.get("sharedaccesssignature", "").removeprefix("?")
    account = parts.get("accountname", "")
    if account or not sas:
        _check_account(account)
    key = decode_account_key(parts.get("accountkey", ""), "AccountKey")
    return _located(_endpoint_of(parts, account), account, key=key, sas=sas)


def decode_account_key(text: str, field: str) -> bytes:
    """
    The bytes of an account's key, which is in Base64; empty for an empty text.

    Raises:
        InvalidRequest: it isn't Base64; the text names `field` and doesn't contain the key.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidRequest(f"{field}: the account's key in Base64 expected") from error


def _parts_of(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in filter(None, text.strip().split(";")):
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        if not equals or name not in _NAMES:
            raise _wrong(f"NAME=VALUE expected, NAME one of {', '.join(_NAMES.values())}")
        if name in parts:
            raise _wrong(f"{_NAMES[name]} is given twice")
        parts[name] = value.strip()
    return parts


def _check_account(account: str) -> None:
    if not account:
        raise _wrong("AccountName is missing")
    try:
        check_account_name(account)
    except ValueError as error:
        raise _wrong(f"AccountName: {error}") from error


def _endpoint_of(parts: Mapping[str, str], account: str) -> str:
    if endpoint := parts.get("queueendpoint"):
        return endpoint
    if not account:
        raise _wrong("QueueEndpoint is missing")
    scheme = parts.get("defaultendpointsprotocol", "https").lower()
    return f"{scheme}://{account}.queue.{parts.get('endpointsuffix', 'core.windows.net')}"


def _located(endpoint: str, account: str, *, key: bytes, sas: str) -> StorageConnection:
    try:
        url = split_url(endpoint)
    except ValueError as error:
        raise _wrong(f"QueueEndpoint: {error}") from error
    if url.scheme not in _PORTS or not url.hostname or url.query or url.fragment:
        raise _wrong("http(s)://HOST[:PORT][/ACCOUNT] expected as QueueEndpoint")
    if "@" in url.netloc:
        raise _wrong("QueueEndpoint: no user expected")
    return StorageConnection(
        account=account,
        host=url.hostname,
        port=url.port or _PORTS[url.scheme],
        secure=url.scheme == "https",
        path=url.path.rstrip("/"),
        key=key,
        sas=sas,
    )


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(f"connection string: {text}")
