"""Shared access policies, as in Service Bus: the right to send to, listen to or manage entities."""

import enum
import functools
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote

import attrs
from attrs import validators

from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized

MAX_CLOCK_SKEW: Final = timedelta(minutes=5)
WHOLE_NAMESPACE: Final = "*"
_SUBSCRIPTION: Final = re.compile(r"/subscriptions/[^/]+$")  # of an entity's key


class Right(enum.Enum):
    """Service Bus's claims."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


class Refusal(enum.Enum):
    """Why a client's credentials are refused."""

    MISSING = "missing"  # the request has none
    MALFORMED = "malformed"
    UNKNOWN_NAME = "unknown-name"  # no policy or account has that name
    WRONG_KEY = "wrong-key"
    EXPIRED = "expired"  # or not valid yet
    NOT_ALLOWED = "not-allowed"  # genuine, but not for this operation
    UNTRUSTED = "untrusted"  # a certificate of no known authority
    REVOKED = "revoked"  # a certificate


OnRefused = Callable[[str, Refusal], None]
"""Called with the name of the policy or account that the client claims, and the refusal."""


class Refused(NotAuthorized):
    """Refused credentials. `name`: the policy or account that they claim; empty: none."""

    def __init__(self, text: str, why: Refusal, name: str = "") -> None:
        super().__init__(text)
        self.why = why
        self.name = name


@attrs.frozen(kw_only=True)
class AccessPolicy:
    """
    A policy: a name, one or two keys, and the rights that a key grants on some entities.

    `entities` are patterns; case is ignored, and `*` stands for any text, even with `/`. A pattern
    that matches an entity covers its sub-queues, and the subscriptions of a topic.
    """

    name: str = attrs.field(validator=validators.min_len(1))
    keys: tuple[str, ...] = attrs.field(
        repr=False,
        validator=[
            validators.deep_iterable(validators.min_len(1)),
            validators.min_len(1),
            validators.max_len(2),
        ],
    )
    rights: frozenset[Right] = attrs.field(validator=validators.min_len(1))
    entities: tuple[str, ...] = attrs.field(
        default=(WHOLE_NAMESPACE,), validator=validators.min_len(1)
    )

    def grants(self, right: Right) -> bool:
        """Manage implies Send and Listen, as in Service Bus."""
        return right in self.rights or Right.MANAGE in self.rights

    def covers(self, entity: EntityPath | None) -> bool:
        """True if the policy covers the entity; None: the namespace itself, such as its list."""
        if WHOLE_NAMESPACE in self.entities:
            return True
        if entity is None:
            return False
        owner = entity.parent.key
        names = {entity.key, owner, _SUBSCRIPTION.sub("", owner)}
        return any(fnmatchcase(key, pattern.lower()) for pattern in self.entities for key in names)


@attrs.frozen(kw_only=True)
class Claim:
    """The content of a token, and the key of its policy that signed it."""

    key_name: str
    resource: str  # a URI, decoded once
    expires: int  # seconds since 1970 UTC
    key: str | None = attrs.field(default=None, repr=False)  # None: no key has signed it


@attrs.frozen(kw_only=True)
class Access:
    """An operation to be authorized: the right, the entity, and the path on the endpoint."""

    right: Right
    entity: EntityPath | None  # None: the namespace itself
    path: str  # decoded


def authenticate(
    policies: Mapping[str, AccessPolicy],
    claim: Claim,
    *,
    now: datetime,
    skew: timedelta = MAX_CLOCK_SKEW,
) -> AccessPolicy:
    """
    Return the policy whose key signed the claim. `policies` are by name.

    A token is accepted for `skew` after its expiry, since its author's clock may be wrong.

    Raises:
        Refused: unknown key name, bad signature, or expired; the text says which.
    """
    policy = policies.get(claim.key_name)
    if policy is None:
        text = f"unknown key name {claim.key_name!r}"
        if any(claim.key_name in each.keys for each in policies.values()):
            text = "the key name is a key: name and key are swapped"
        raise Refused(text, Refusal.UNKNOWN_NAME, claim.key_name)
    if claim.key is None:
        text = f"the token's signature is not by a key of {policy.name!r}"
        raise Refused(text, Refusal.WRONG_KEY, policy.name)
    late = now.timestamp() - claim.expires
    if late > skew.total_seconds():
        raise Refused(f"the token expired {late:.0f} s ago", Refusal.EXPIRED, policy.name)
    return policy


def authorize(policy: AccessPolicy, claim: Claim, access: Access) -> None:
    """
    Return if the claim and its policy allow the access.

    Raises:
        Refused: the resource doesn't cover the path, the policy doesn't cover the entity, or a
            right is missing; the text says which.
    """
    if not audience_covers(claim.resource, access.path):
        text = f"the token's resource {claim.resource!r} doesn't cover {access.path!r}"
        raise Refused(text, Refusal.NOT_ALLOWED, policy.name)
    if not policy.covers(access.entity):
        subject = "the namespace" if access.entity is None else f"entity {access.entity}"
        text = f"policy {policy.name!r} doesn't cover {subject}"
        raise Refused(text, Refusal.NOT_ALLOWED, policy.name)
    if not policy.grants(access.right):
        raise Refused(
            f"{access.right.value!r} claim is required for this operation,"
            f" policy {policy.name!r} doesn't have it",
            Refusal.NOT_ALLOWED,
            policy.name,
        )


def audience_covers(resource: str, path: str) -> bool:
    """True if a token for that URI covers the decoded path: the path begins with its audience."""
    audience = audience_of(resource)
    return audience is not None and segments_of(path)[: len(audience)] == audience


@functools.lru_cache(maxsize=1024)  # each client signs one resource for all its requests
def audience_of(resource: str) -> tuple[str, ...] | None:
    """
    The first segments of every path that a token for that URI covers; None: it covers none.

    Case, scheme, host and port don't count: clients sign `sb:`, `amqp:` or `https:`, with the port
    doubled or left out, and with the host name that they connect to. A text without a scheme covers
    nothing: its first word could be a host, and the token would then cover everything.
    """
    _, scheme_end, location = resource.partition("?")[0].partition("://")
    if not scheme_end:
        return None
    _, _, audience = location.partition("/")
    return segments_of(unquote(audience))


def segments_of(path: str) -> tuple[str, ...]:
    """The segments of a decoded path, in lower case."""
    stripped = path.strip("/").lower()
    return tuple(stripped.split("/")) if stripped else ()
