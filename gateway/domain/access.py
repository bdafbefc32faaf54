"""Who may send to, listen to or manage which entity: Service Bus's shared access policies."""

import enum
import re
from collections.abc import Mapping
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


@attrs.frozen(kw_only=True)
class AccessPolicy:
    """
    A name with one or two keys, and what who has one of them may do.

    `entities` are patterns; case is ignored, and `*` stands for any text, also one with `/`.
    The sub-queues of an entity go with it, and the subscriptions of a topic.
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
        """Whether the policy is for that entity; None is the namespace itself, such as its list."""
        if WHOLE_NAMESPACE in self.entities:
            return True
        if entity is None:
            return False
        owner = entity.parent.key
        names = {entity.key, owner, _SUBSCRIPTION.sub("", owner)}
        return any(fnmatchcase(key, pattern.lower()) for pattern in self.entities for key in names)


@attrs.frozen(kw_only=True)
class Claim:
    """What a token says, and which key of the policy that it names has signed it."""

    key_name: str
    resource: str  # a URI, decoded once
    expires: int  # seconds since 1970 UTC
    key: str | None = attrs.field(default=None, repr=False)  # None: no key has signed it


@attrs.frozen(kw_only=True)
class Access:
    """What somebody wants to do: with which right, on what, under which path of the endpoint."""

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
    Tell whose claim it is. `policies` are by name.

    A token is taken for `skew` longer than it says, since its maker's clock may be behind.

    Raises:
        NotAuthorized: the text says why: unknown key name, bad signature, expired.
    """
    policy = policies.get(claim.key_name)
    if policy is None:
        raise NotAuthorized(f"unknown key name {claim.key_name!r}")
    if claim.key is None:
        raise NotAuthorized(f"the token's signature is not by a key of {policy.name!r}")
    late = now.timestamp() - claim.expires
    if late > skew.total_seconds():
        raise NotAuthorized(f"the token expired {late:.0f} s ago")
    return policy


def authorize(policy: AccessPolicy, claim: Claim, access: Access) -> None:
    """
    Return if a claim of that policy's owner allows the access.

    Raises:
        NotAuthorized: the text says why: the resource doesn't cover the path, the policy doesn't
            cover the entity, a right is missing.
    """
    if not audience_covers(claim.resource, access.path):
        raise NotAuthorized(
            f"the token's resource {claim.resource!r} doesn't cover {access.path!r}"
        )
    if not policy.covers(access.entity):
        subject = "the namespace" if access.entity is None else f"entity {access.entity}"
        raise NotAuthorized(f"policy {policy.name!r} doesn't cover {subject}")
    if not policy.grants(access.right):
        raise NotAuthorized(
            f"{access.right.value!r} claim is required for this operation,"
            f" policy {policy.name!r} doesn't have it"
        )


def audience_covers(resource: str, path: str) -> bool:
    """Whether a token for that URI is good for that decoded path: `audience_of` begins it."""
    audience = audience_of(resource)
    return audience is not None and segments_of(path)[: len(audience)] == audience


def audience_of(resource: str) -> tuple[str, ...] | None:
    """
    The segments with which a path must begin for which a token for that URI is good; None if it
    is good for nothing.

    Case, scheme, host and port don't count: clients sign `sb:`, `amqp:` or `https:`, with the
    port doubled or left out, and with the name by which they reach us. A text without a scheme
    covers nothing: its first word could be a host, which would make it good for everything.
    """
    _, scheme_end, location = resource.partition("?")[0].partition("://")
    if not scheme_end:
        return None
    _, _, audience = location.partition("/")
    return segments_of(unquote(audience))


def segments_of(path: str) -> tuple[str, ...]:
    """The segments of a decoded path, of which the case doesn't count."""
    stripped = path.strip("/").lower()
    return tuple(stripped.split("/")) if stripped else ()
