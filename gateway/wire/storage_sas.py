"""
Shared access signatures of a storage account: parameters of a URL that say who may do what.

    ?sv=2026-10-06&ss=q&srt=sco&sp=rwdlacup&se=...&sig=...     for the account's services
    ?sv=2026-10-06&sp=raup&se=...&sig=...                      for one queue
    ?sv=2026-10-06&si=policy&sig=...                           the same, by a stored policy

`sig` is HMAC-SHA256 over the values, decoded, each in its line (REST API: Create an account SAS,
Create a service SAS).
"""

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs

from gateway.wire.storage_queue_errors import StorageRefusal
from gateway.wire.storage_signing import sign

_ACCOUNT_FIELDS: Final = ("sp", "ss", "srt", "st", "se", "sip", "spr", "sv")
_WITH_SCOPE: Final = "2020-12-06"  # the version from which on an account SAS signs `ses` too
_NAMES: Final = ("sv", "ss", "srt", "sp", "st", "se", "sip", "spr", "si", "ses", "sig")
_DATES: Final = ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S.%fZ")
_FRACTION: Final = re.compile(r"(\.\d{6})\d+Z$", re.ASCII)


@attrs.frozen(kw_only=True)
class Sas:
    """The parameters of one, by their names; it is only a claim until a key has signed it."""

    values: Mapping[str, str]
    digest: bytes = attrs.field(repr=False)

    @property
    def of_account(self) -> bool:
        return "ss" in self.values and "srt" in self.values

    def get(self, name: str) -> str:
        return self.values.get(name, "")

    def string_to_sign(self, account: str, queue: str | None) -> str:
        """The text that a key has signed, for that account and, without `ss`, for that queue."""
        if self.of_account:
            lines = [account, *(self.get(name) for name in _ACCOUNT_FIELDS)]
            if self.get("sv") >= _WITH_SCOPE:
                lines.append(self.get("ses"))
            return "\n".join([*lines, ""])
        resource = f"/queue/{account}/{queue or ''}"
        values = [self.get(name) for name in ("sp", "st", "se")]
        return "\n".join(
            [*values, resource, *(self.get(name) for name in ("si", "sip", "spr", "sv"))]
        )


def parse_sas(parameters: Mapping[str, Sequence[str]]) -> Sas | None:
    """
    The SAS among the parameters of a request; None: there is none.

    Raises:
        StorageRefusal: AuthenticationFailed, a parameter is there twice or malformed.
    """
    if "sig" not in parameters:
        return None
    for name in _NAMES:
        if len(parameters.get(name, ())) > 1:
            raise _failed(f"{name} is there twice.")
    values = {name: parameters[name][0] for name in _NAMES if name in parameters}
    text = values.pop("sig")
    try:
        digest = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise _failed("sig is no Base64.") from error
    if base64.b64encode(digest).decode() != text:
        raise _failed("sig is no canonical Base64.")
    return Sas(values=values, digest=digest)


def build_sas(values: Mapping[str, str], *, account: str, queue: str | None, key: bytes) -> str:
    """The value of `sig` for those parameters."""
    string = Sas(values=values, digest=b"").string_to_sign(account, queue)
    return base64.b64encode(sign(string, key)).decode()


def parse_time(name: str, text: str) -> datetime | None:
    """
    A time of a SAS or of a stored policy; None: there is none.

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
    raise _failed(f"{name}: {text[:40]!r} is no time.")


def _failed(detail: str) -> StorageRefusal:
    return StorageRefusal("AuthenticationFailed", extra={"AuthenticationErrorDetail": detail})
