"""Names, numbers, metadata and checksums in requests of the Queue service, checked."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from gateway.wire.http.hardened_xml import is_legal
from gateway.wire.http.messages import Headers, Request
from gateway.wire.storage_queue.address import parameters_of
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.operations import MAX_BODY, MAX_MESSAGE, MAX_METADATA
from gateway.wire.storage_queue.xml import decoded

META: Final = "x-ms-meta-"
VERSION: Final = "x-ms-version"
MIN_NAME: Final = 3  # characters of a queue's name
MAX_NAME: Final = 63  # as of a label of DNS; the service's limit
_NAME: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9])*", re.ASCII)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTROL: Final = re.compile("[\0-\x08\n-\x1f\x7f]")
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def check_name(queue: str) -> str:
    """
    Raises:
        StorageRefusal: OutOfRangeInput, InvalidResourceName.
    """
    if not MIN_NAME <= len(queue) <= MAX_NAME:
        raise StorageRefusal(
            "OutOfRangeInput", f"A queue's name has {MIN_NAME} to {MAX_NAME} characters."
        )
    if not is_name(queue):
        raise StorageRefusal(
            "InvalidResourceName", "A queue's name has small letters, digits and single hyphens."
        )
    return queue


def is_name(queue: str) -> bool:
    """True if the name is valid for a queue here."""
    return MIN_NAME <= len(queue) <= MAX_NAME and _NAME.fullmatch(queue) is not None


@attrs.frozen
class Query:
    """The parameters of one request."""

    values: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, request: Request) -> "Query":
        return cls(parameters_of(request.target))

    def get(self, name: str) -> str | None:
        """The last value of that parameter."""
        found = self.values.get(name)
        return found[-1] if found else None

    def required(self, name: str) -> str:
        """
        Raises:
            StorageRefusal: MissingRequiredQueryParameter.
        """
        value = self.get(name)
        if not value:
            extra = {"QueryParameterName": name}
            raise StorageRefusal("MissingRequiredQueryParameter", extra=extra)
        return value

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """
        Raises:
            StorageRefusal: InvalidQueryParameterValue where it's no number;
                OutOfRangeQueryParameterValue.
        """
        text = self.get(name)
        if text is None:
            return default
        if not _NUMBER.fullmatch(text):
            raise invalid(name, text, "A whole number is expected.")
        if not least <= int(text) <= most:
            extra = {
                "QueryParameterName": name,
                "QueryParameterValue": text,
                "MinimumAllowed": str(least),
                "MaximumAllowed": str(most),
            }
            raise StorageRefusal("OutOfRangeQueryParameterValue", extra=extra)
        return int(text)


def invalid(name: str, value: str, reason: str) -> StorageRefusal:
    extra = {"QueryParameterName": name, "QueryParameterValue": value[:100], "Reason": reason}
    return StorageRefusal("InvalidQueryParameterValue", extra=extra)


def version_of(request: Request, query: Query) -> str | None:
    """
    The version of the service that the client wants; None: the first one, which had no such header.

    Any date will do: versions to come are answered as the latest one.

    Raises:
        StorageRefusal: InvalidHeaderValue.
    """
    version = request.headers.get(VERSION) or query.get("api-version") or query.get("sv")
    if version is not None and not _DATE.fullmatch(version):
        raise invalid_header(VERSION, version)
    return version


def invalid_header(name: str, value: str) -> StorageRefusal:
    extra = {"HeaderName": name, "HeaderValue": value[:100]}
    return StorageRefusal("InvalidHeaderValue", extra=extra)


def metadata_of(headers: Headers) -> dict[str, str]:
    """
    Raises:
        StorageRefusal: EmptyMetadataKey, InvalidMetadata, MetadataTooLarge.
    """
    metadata: dict[str, str] = {}
    seen: set[str] = set()
    for header, value in headers.items:
        if not header.lower().startswith(META):
            continue
        name = header[len(META) :]
        if not name:
            raise StorageRefusal("EmptyMetadataKey")
        if not _IDENTIFIER.fullmatch(name) or name.lower() in seen:
            raise StorageRefusal(
                "InvalidMetadata", f"{name[:60]!r} is not a valid name, or is given twice."
            )
        if not is_metadata(name, value):
            raise StorageRefusal("InvalidMetadata", f"{name[:60]}: characters of XML are expected.")
        seen.add(name.lower())
        metadata[name] = value
    if sum(len(name) + len(value) for name, value in metadata.items()) > MAX_METADATA:
        raise StorageRefusal("MetadataTooLarge")
    return metadata


def is_metadata(name: str, value: str) -> bool:
    """True if headers and documents can express it."""
    written = is_legal(value) and not _CONTROL.search(value)
    return _IDENTIFIER.fullmatch(name) is not None and written


def metadata_headers(metadata: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return ((f"{META}{name}", value) for name, value in metadata.items())


def check_body(request: Request) -> None:
    """
    Raises:
        StorageRefusal: RequestBodyTooLarge, MissingContentLengthHeader, InvalidMd5, Md5Mismatch.
    """
    if len(request.body) > MAX_BODY:
        raise StorageRefusal("RequestBodyTooLarge", extra={"MaxLimit": str(MAX_BODY)})
    headers = request.headers
    has_length = any(headers.get(name) for name in ("Content-Length", "Transfer-Encoding"))
    if request.method in {"PUT", "POST"} and not has_length:
        raise StorageRefusal("MissingContentLengthHeader")
    stated = headers.get("Content-MD5")
    if stated is None:
        return
    digest = decoded(stated.strip())
    if digest is None or len(digest) != 16:
        raise StorageRefusal("InvalidMd5")
    found = md5_of(request.body)
    if base64.b64encode(digest).decode() != found:
        extra = {"UserSpecifiedMd5": stated[:100], "ServerCalculatedMd5": found}
        raise StorageRefusal("Md5Mismatch", extra=extra)


def md5_of(body: bytes) -> str:
    """A checksum against transmission errors, not for security."""
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def check_text(body: bytes) -> bytes:
    """
    Raises:
        StorageRefusal: RequestBodyTooLarge, as the service says it of a text, too.
    """
    if len(body) > MAX_MESSAGE:
        detail = f"It has {len(body)} bytes, of {MAX_MESSAGE}."
        raise StorageRefusal("RequestBodyTooLarge", detail, extra={"MaxLimit": str(MAX_MESSAGE)})
    return body
