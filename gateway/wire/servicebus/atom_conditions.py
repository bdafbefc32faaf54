"""
Conditional requests of Service Bus's management (RFC 9110, section 13.1).

    GET     If-Match: "3"        200, or 412 if the entity has another version
            If-None-Match: "3"   304 if the entity has that version still
    PUT     If-Match: * or "3"   an update; 412 if the entity was changed since that version
            If-None-Match: *     412 instead of 409 if the entity exists already
    DELETE  If-Match: * or "3"   412, with the entity as it is, if it was changed since

An ETag is the version of an entity's properties: its counts of messages don't change it.
"""

import re
from typing import Any, Final

from gateway.domain.errors import InvalidRequest, PreconditionFailed
from gateway.wire.http.messages import Headers

_ETAG: Final = re.compile(r'(?:W/)?"?([0-9]{1,19})"?', re.ASCII)


def etag(version: int) -> str:
    return f'"{version}"'


def parse_etag(text: str | None) -> int:
    """The version in an answer; 0 if it has none of ours."""
    match = _ETAG.fullmatch(text or "")
    return int(match[1]) if match else 0


def put_condition(headers: Headers) -> dict[str, Any]:
    """
    The fields `update`, `if_version` and `only_new` of a Put operation.

    Raises:
        PreconditionFailed: If-Match has a tag that isn't ours.
        InvalidRequest: If-None-Match isn't `*`, or stands beside If-Match.
    """
    tag, none = headers.get("If-Match"), headers.get("If-None-Match")
    if none is not None and (none.strip() != "*" or tag is not None):
        raise InvalidRequest("If-None-Match: * without If-Match expected")
    return {
        "update": tag is not None,
        "if_version": _version(tag),
        "only_new": none is not None,
    }


def version_to_delete(headers: Headers) -> int | None:
    """
    The version in If-Match; None: any version is to be deleted.

    Raises:
        PreconditionFailed: If-Match has a tag that isn't ours.
        InvalidRequest: there is an If-None-Match.
    """
    if headers.get("If-None-Match") is not None:
        raise InvalidRequest("If-None-Match: a DELETE has no such condition")
    return _version(headers.get("If-Match"))


def is_unchanged(headers: Headers, answered: str | None) -> bool:
    """
    True if the client of a GET has the state with the ETag `answered` already (304). None: the
    state has no ETag.

    Raises:
        PreconditionFailed: If-Match names another state.
    """
    wanted, known = headers.get("If-Match"), headers.get("If-None-Match")
    if wanted is not None and not _names(wanted, answered):
        raise PreconditionFailed(f"If-Match: the entity has the ETag {answered}")
    return known is not None and _names(known, answered)


def _names(tags: str, answered: str | None) -> bool:
    """True if a list of tags has `answered`. `*` names every state."""
    if tags.strip() == "*":
        return True
    if answered is None:
        return False
    found = (_ETAG.fullmatch(tag.strip()) for tag in tags.split(","))
    return any(match is not None and int(match[1]) == parse_etag(answered) for match in found)


def _version(tag: str | None) -> int | None:
    if tag is None or tag.strip() == "*":
        return None
    match = _ETAG.fullmatch(tag.strip())
    if match is None:
        raise PreconditionFailed(f"If-Match: * or an ETag of ours expected, got {tag!r:.60}")
    return int(match[1])
