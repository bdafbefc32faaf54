"""
Shared access signatures of a storage account: parameters of a URL that grant permissions.

    ?sv=2026-10-06&ss=q&srt=sco&sp=rwdlacup&se=...&sig=...     for the account's services
    ?sv=2026-10-06&sp=raup&se=...&sig=...                      for one queue
    ?sv=2026-10-06&si=policy&sig=...                           the same, by a stored policy
    ?sv=2026-10-06&sp=raup&se=...&skoid=...&skt=...&sig=...    by a user delegation key

`sig` is HMAC-SHA256 over the values, decoded, each in its line (REST API: Create an account SAS,
Create a service SAS, Create a user delegation SAS).
"""

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs

from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.signing import sign

_ACCOUNT_FIELDS: Final = ("sp", "ss", "srt", "st", "se", "sip", "spr", "sv")
_WITH_SCOPE: Final = "2020-12-06"  # the version from which on an account SAS signs `ses` too
# The terms of the user delegation key by which a queue's SAS may be signed, in their order.
_OF_KEY: Final = ("skoid", "sktid", "skt", "ske", "sks", "skv", "skdutid", "sduoid")
_NAMES: Final = ("sv", "ss", "srt", "sp", "st", "se", "sip", "spr", "si", "ses", *_OF_KEY, "sig")
_DATES: Final = ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S.%fZ")
_FIRST_VERSION: Final = "2015-04-05"  # earlier versions signed another text
_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
# Control characters, and halves of surrogate pairs, which can't be encoded to be signed.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_PROTOCOLS: Final = frozenset({"https", "https,http"})
_FRACTION: Final = re.compile(r"(\.\d{6})\d+Z$", re.ASCII)


@attrs.frozen(kw_only=True)
class Sas:
    """The parameters of a SAS, by name; its claims are unproven until its signature is verified."""

    values: Mapping[str, str]
    digest: bytes = attrs.field(repr=False)

    @property
    def of_account(self) -> bool:
        return "ss" in self.values and "srt" in self.values

    @property
    def is_delegated(self) -> bool:
        """True if a user delegation key has signed, as the parameters say."""
        return any(name in self.values for name in _OF_KEY)

    def get(self, name: str) -> str:
        return self.values.get(name, "")

    def string_to_sign(self, account: str, queue: str | None) -> str:
        """The string to sign, for that account and, without `ss`, for that queue."""
        if self.of_account and not self.is_delegated:
            lines = [account, *(self.get(name) for name in _ACCOUNT_FIELDS)]
            if self.get("sv") >= _WITH_SCOPE:
                lines.append(self.get("ses"))
            return "\n".join([*lines, ""])
        resource = f"/queue/{account}/{queue or ''}"
        values = [self.get(name) for name in ("sp", "st", "se")]
        signer = _OF_KEY if self.is_delegated else ("si",)
        rest = (*signer, "sip", "spr", "sv")
        return "\n".join([*values, resource, *(self.get(name) for name in rest)])


def parse_sas(parameters: Mapping[str, Sequence[str]]) -> Sas | None:
    """
    The SAS among the parameters of a request; None if the request has no SAS.

    Raises:
        StorageRefusal: AuthenticationFailed: a parameter is repeated, malformed or unknown, or `sv`
            is missing.
    """
    if "sig" not in parameters:
        return None
    for name in _NAMES:
        if len(parameters.get(name, ())) > 1:
            raise _failed(f"{name} is given twice.")
    values = {name: parameters[name][0] for name in _NAMES if name in parameters}
    _check_values(values)
    text = values.pop("sig")
    try:
        digest = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise _failed("sig is not valid Base64.") from error
    if base64.b64encode(digest).decode() != text:
        raise _failed("sig is not canonical Base64.")
    return Sas(values=values, digest=digest)


def _check_values(values: Mapping[str, str]) -> None:
    """
    Each value is a line of the string to sign: with a line feed in a value, the values of one
    signature could be read as those of another.
    """
    for name, value in values.items():
        if _CONTROL.search(value):
            raise _failed(f"{name}: no control characters expected.")
    version = values.get("sv", "")
    if not _VERSION.fullmatch(version) or version < _FIRST_VERSION:
        raise _failed(f"sv: a version from {_FIRST_VERSION} on expected, got {version[:40]!r}.")
    protocols = values.get("spr", "")
    if protocols and protocols.lower() not in _PROTOCOLS:
        raise _failed(f"spr: 'https' or 'https,http' expected, got {protocols[:40]!r}.")


def build_sas(values: Mapping[str, str], *, account: str, queue: str | None, key: bytes) -> str:
    """The value of `sig` for those parameters."""
    string = Sas(values=values, digest=b"").string_to_sign(account, queue)
    return base64.b64encode(sign(string, key)).decode()


def parse_time(name: str, text: str) -> datetime | None:
    """
    A time of a SAS or of a stored policy; None if it is missing.

    Raises:
        StorageRefusal: AuthenticationFailed.
    """
    if not text:
        return None
    for form in _DATES:
        try:
            return datetime.strptime(_FRACTION.sub(r"\1Z", text), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise _failed(f"{name}: {text[:40]!r} is not a valid time.")


def _failed(detail: str) -> StorageRefusal:
    return StorageRefusal("AuthenticationFailed", extra={"AuthenticationErrorDetail": detail})
