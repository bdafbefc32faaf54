"""
User delegation keys: documents, values, and the identity in them (REST API: Get User Delegation
Key; Create a user delegation SAS).

    POST /?restype=service&comp=userdelegationkey
    <KeyInfo><Start>2026-11-26T08:00:00Z</Start><Expiry>2026-11-27T08:00:00Z</Expiry></KeyInfo>

A client with a token gets a key, and signs shared access signatures by it. The signature repeats
the key's terms (`skoid` to `skv`), and the key's value is derived from them and a secret, so that
no process has to remember a key. `sktid` also has the marks of the access policies that the client
had.
"""

import hashlib
import hmac
from datetime import UTC, datetime
from typing import Final
from xml.etree.ElementTree import Element

from gateway.domain.access import Delegated
from gateway.wire.http.hardened_xml import text_of
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.operations import GetUserDelegationKey, UserDelegationKey
from gateway.wire.storage_queue.sas import Sas, parse_time
from gateway.wire.storage_queue.xml import document, leaf, root_of

SERVICE: Final = "q"
_PURPOSE: Final = b"pairgate: user delegation keys"
_DATE: Final = "%Y-%m-%dT%H:%M:%SZ"
_KEY: Final = "UserDelegationKey"


def parse_key_info(body: bytes) -> GetUserDelegationKey:
    """
    Parse the body of a request for a key.

    Raises:
        StorageRefusal: InvalidXmlDocument, InvalidXmlNodeValue, or NotImplemented for a key that
            only a certain user may use.
    """
    root = root_of(body, "KeyInfo")
    if text_of(root, "DelegatedUserTid"):
        raise StorageRefusal("NotImplemented", "DelegatedUserTid isn't supported.")
    expiry = _time(root, "Expiry")
    if expiry is None:
        raise _invalid("Expiry")
    return GetUserDelegationKey(start=_time(root, "Start"), expiry=expiry)


def build_key_info(operation: GetUserDelegationKey) -> bytes:
    start = "" if operation.start is None else leaf("Start", written(operation.start))
    return document("KeyInfo", f"{start}{leaf('Expiry', written(operation.expiry))}")


def build_key(key: UserDelegationKey) -> bytes:
    """The answer's document."""
    values = {
        "SignedOid": key.object_id,
        "SignedTid": key.tenant_id,
        "SignedStart": key.start,
        "SignedExpiry": key.expiry,
        "SignedService": key.service,
        "SignedVersion": key.version,
        "Value": key.value,
    }
    return document(_KEY, "".join(leaf(name, value) for name, value in values.items()))


def parse_key(body: bytes) -> UserDelegationKey:
    """
    Raises:
        StorageRefusal: InvalidXmlDocument.
    """
    root = root_of(body, _KEY)
    return UserDelegationKey(
        object_id=text_of(root, "SignedOid"),
        tenant_id=text_of(root, "SignedTid"),
        start=text_of(root, "SignedStart"),
        expiry=text_of(root, "SignedExpiry"),
        service=text_of(root, "SignedService"),
        version=text_of(root, "SignedVersion"),
        value=text_of(root, "Value"),
    )


def written(date: datetime) -> str:
    """The date as these documents and signatures have it, to the second."""
    return date.astimezone(UTC).strftime(_DATE)


def value_of(secret: bytes, account: str, key: UserDelegationKey) -> bytes:
    """The value of the key with these terms, for that account; its own `value` doesn't count."""
    terms = (
        account,
        key.object_id,
        key.tenant_id,
        key.start,
        key.expiry,
        key.service,
        key.version,
    )
    own = hmac.digest(secret, _PURPOSE, hashlib.sha256)
    return hmac.digest(own, "\n".join(terms).encode(), hashlib.sha256)


def key_of(sas: Sas) -> UserDelegationKey:
    """The key that a signature claims to be by, without its value."""
    return UserDelegationKey(
        object_id=sas.get("skoid"),
        tenant_id=sas.get("sktid"),
        start=sas.get("skt"),
        expiry=sas.get("ske"),
        service=sas.get("sks"),
        version=sas.get("skv"),
    )


def tenant_of(identity: Delegated) -> str:
    """The `sktid` of an identity: the marks of its policies, and its issuer."""
    return f"{'.'.join(sorted(identity.marks))}:{identity.issuer}"


def identity_of(key: UserDelegationKey) -> Delegated:
    """The identity that got the key."""
    marks, _, issuer = key.tenant_id.partition(":")
    return Delegated(issuer=issuer, subject=key.object_id, marks=frozenset(marks.split(".")))


def _time(root: Element, name: str) -> datetime | None:
    try:
        return parse_time(name, text_of(root, name))
    except StorageRefusal as error:
        raise _invalid(name) from error


def _invalid(name: str) -> StorageRefusal:
    extra = {"XmlNodeName": name}
    return StorageRefusal("InvalidXmlNodeValue", f"{name}: a date is expected.", extra=extra)
