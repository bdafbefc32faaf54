"""
Access policies: the right to send to, listen to or manage entities, by Service Bus's claims.

A client proves that a policy is for it by one of the policy's keys (a shared access signature, or
the key itself), by a token of an identity provider whose claims the policy names, or by a client
certificate. An anonymous policy is for clients of AMQP without any of these. All front ends decide
by `authenticate` and `authorize`.
"""

import enum
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import unquote

import attrs
from attrs import validators

from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized

MAX_CLOCK_SKEW: Final = timedelta(minutes=5)
WHOLE_NAMESPACE: Final = "*"
_MARK: Final = 16  # hexadecimal digits
_SUBSCRIPTION: Final = re.compile(r"/subscriptions/[^/]+$")  # of an entity's key
_LISTS_OF_WORDS: Final = frozenset({"scope", "scp"})  # claims (RFC 8693, 4.2; Entra ID)


class Right(enum.Enum):
    """Service Bus's claims."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


class Refusal(enum.Enum):
    """The reasons for which a client's credentials are refused."""

    MISSING = "missing"  # the request has none
    MALFORMED = "malformed"
    UNKNOWN_NAME = "unknown-name"  # no policy or account has that name
    UNKNOWN_ISSUER = "unknown-issuer"  # the token is of a provider that isn't configured
    WRONG_AUDIENCE = "wrong-audience"  # the token is for another service
    WRONG_KEY = "wrong-key"
    EXPIRED = "expired"  # or not valid yet
    NOT_ALLOWED = "not-allowed"  # genuine, but not for this operation
    UNTRUSTED = "untrusted"  # a certificate of no known authority
    REVOKED = "revoked"  # a certificate


class ClientLimit(enum.Enum):
    """The limits of one client in a process, by their names in metrics."""

    CONNECTIONS = "connections"
    REQUESTS = "requests"
    BYTES = "bytes"
    PEEKS = "peeks"


OnRefused = Callable[[str, Refusal], None]
"""Called with the name of the policy or account that the client claims, and the refusal."""


class Refused(NotAuthorized):
    """Refused credentials. `name`: the policy or account that they claim; empty: none."""

    def __init__(self, text: str, why: Refusal, name: str = "") -> None:
        super().__init__(text)
        self.why = why
        self.name = name


@attrs.frozen(kw_only=True)
class Issuer:
    """An identity provider, and its tokens that are accepted."""

    name: str = attrs.field(validator=validators.min_len(1))  # in the configuration
    issuer: str = attrs.field(validator=validators.min_len(1))  # the claim `iss`, exactly
    # The token must be for one of them (the claim `aud`).
    audiences: tuple[str, ...] = attrs.field(validator=validators.min_len(1))
    algorithms: tuple[str, ...] = attrs.field(validator=validators.min_len(1))
    # Seconds by which the provider's clock may differ from ours.
    clock_skew: float = attrs.field(default=300.0, validator=validators.ge(0.0))
    # The claim that names the client in events and in the audit log.
    subject_claim: str = attrs.field(default="sub", validator=validators.min_len(1))


@attrs.frozen(eq=False, kw_only=True)
class ClientIdentity:
    """A client for which an identity provider vouches, by a token with a valid signature."""

    issuer: str  # the provider's name in the configuration
    subject: str  # the client's name there; empty: the token doesn't tell
    claims: Mapping[str, Any] = attrs.field(repr=False)  # of the token
    key: str  # thumbprint of the provider's key that signed the token

    @property
    def name(self) -> str:
        return f"{self.issuer}:{self.subject}"


@attrs.frozen(eq=False, kw_only=True)
class Certified:
    """A client that TLS has authenticated, by a certificate of an authority for clients."""

    subject: str  # its distinguished name, as in RFC 4514
    # The whole subject, each common name (`CN=...`), and each alternative name (`DNS:...`,
    # `URI:...`, `EMAIL:...`, `IP:...`).
    names: frozenset[str]

    @property
    def name(self) -> str:
        return self.subject


@attrs.frozen(kw_only=True)
class Anonymous:
    """A client without credentials."""

    name: str = "anonymous"


@attrs.frozen(kw_only=True)
class Delegated:
    """A client with a signature by a key that an `ClientIdentity` has got from an endpoint."""

    issuer: str
    subject: str
    marks: frozenset[str]  # of the policies that the identity had then

    @property
    def name(self) -> str:
        return f"{self.issuer}:{self.subject}"


AnyIdentity = ClientIdentity | Certified | Anonymous | Delegated


@attrs.frozen(kw_only=True)
class TokenRule:
    """
    The tokens that a policy is for: those of one provider that have all of these claims.

    A claim must have one of the given values; a claim that is a list, or `scope` or `scp` with its
    words, needs one of them in it. A name with dots is looked up as it is, and as a path through
    nested objects (`realm_access.roles`).
    """

    issuer: str = attrs.field(validator=validators.min_len(1))  # its name in the configuration
    claims: Mapping[str, tuple[str, ...]] = attrs.field(
        validator=[
            validators.min_len(1),
            validators.deep_mapping(validators.min_len(1), validators.min_len(1)),
        ]
    )

    def matches(self, identity: ClientIdentity) -> bool:
        if identity.issuer != self.issuer:
            return False
        return all(
            any(value in allowed for value in _values(identity.claims, name))
            for name, allowed in self.claims.items()
        )


def _values(claims: Mapping[str, Any], name: str) -> Iterator[str]:
    """The texts of that claim."""
    for value in _values_of(claims, name):
        if isinstance(value, str):
            yield value
            if name in _LISTS_OF_WORDS:
                yield from value.split(" ")
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, str))


def _values_of(claims: Mapping[str, Any], name: str) -> Iterator[Any]:
    if name in claims:
        yield claims[name]
    for dot in re.finditer(r"\.", name):
        inner = claims.get(name[: dot.start()])
        if isinstance(inner, dict):
            yield from _values_of(inner, name[dot.end() :])


@attrs.frozen(kw_only=True)
class AccessPolicy:
    """
    A policy: the rights on some entities of the clients that have one of its keys, or a token that
    its rule is for.

    `entities` are patterns; case is ignored, and `*` stands for any text, even with `/`. A pattern
    that matches an entity covers its sub-queues, and the subscriptions of a topic.
    """

    name: str = attrs.field(validator=validators.min_len(1))
    keys: tuple[str, ...] = attrs.field(
        default=(),
        repr=False,
        validator=[validators.deep_iterable(validators.min_len(1)), validators.max_len(2)],
    )
    token: TokenRule | None = attrs.field(default=None)
    certificates: tuple[str, ...] = attrs.field(default=())  # of `Certified.names`
    anonymous: bool = attrs.field(default=False)  # for clients of AMQP without credentials
    rights: frozenset[Right] = attrs.field(validator=validators.min_len(1))
    entities: tuple[str, ...] = attrs.field(
        default=(WHOLE_NAMESPACE,), validator=validators.min_len(1)
    )

    @anonymous.validator
    def _somebody_can_have_it(self, _: object, anonymous: bool) -> None:
        if not (self.keys or self.token is not None or self.certificates or anonymous):
            raise ValueError("there must be a key, a token, a certificate, or anonymous = true")

    @property
    def mark(self) -> str:
        """
        A short text that stands for this policy's name and its rule for tokens, and discloses
        neither: another rule under the same name has another mark.
        """
        rule = self.token and (self.token.issuer, sorted(self.token.claims.items()))
        return hashlib.sha256(repr((self.name, rule)).encode()).hexdigest()[:_MARK]

    def is_for(self, identity: AnyIdentity) -> bool:
        """True if the client has this policy without a key of it."""
        if isinstance(identity, Anonymous):
            return self.anonymous
        if isinstance(identity, Certified):
            return not identity.names.isdisjoint(self.certificates)
        if isinstance(identity, Delegated):
            of_issuer = self.token is not None and self.token.issuer == identity.issuer
            return of_issuer and self.mark in identity.marks
        return self.token is not None and self.token.matches(identity)

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
class TokenClaim:
    """The content of a token: who signed it, for what, until when."""

    key_name: str  # of the policy whose key signed it; of an identity, its name
    resource: str  # a URI, decoded once
    expires: int  # seconds since 1970 UTC
    key: str | None = attrs.field(default=None, repr=False)  # None: no policy's key has signed it
    # Of a token of an identity provider, of a client certificate, or of a client with neither.
    identity: AnyIdentity | None = None
    # For how long it is accepted after its expiry, since its author's clock may be wrong.
    skew: timedelta = MAX_CLOCK_SKEW


@attrs.frozen(kw_only=True)
class Access:
    """An operation to be authorized: the right, the entity, and the path on the endpoint."""

    right: Right
    entity: EntityPath | None  # None: the namespace itself
    path: str  # decoded


def authenticate(
    policies: Mapping[str, AccessPolicy], claim: TokenClaim, *, now: datetime
) -> Sequence[AccessPolicy]:
    """
    Return the policies that the claim's client has: the one whose key signed the claim, or those
    that are for its identity, possibly none. `policies` are by name.

    Raises:
        Refused: unknown key name, bad signature, or expired; the text says which.
    """
    if claim.identity is None:
        found = [_signed_by(policies, claim)]
    else:
        found = [policy for policy in policies.values() if policy.is_for(claim.identity)]
    check_expiry(claim, now)
    return found


def _signed_by(policies: Mapping[str, AccessPolicy], claim: TokenClaim) -> AccessPolicy:
    policy = policies.get(claim.key_name)
    if policy is None:
        text = f"unknown key name {claim.key_name!r}"
        if any(claim.key_name in each.keys for each in policies.values()):
            text = "the key name is a key: name and key are swapped"
        raise Refused(text, Refusal.UNKNOWN_NAME, claim.key_name)
    if claim.key is None:
        text = f"the token's signature is not by a key of {policy.name!r}"
        raise Refused(text, Refusal.WRONG_KEY, policy.name)
    if claim.key not in policy.keys:
        text = f"the key that signed it is no longer one of policy {policy.name!r}"
        raise Refused(text, Refusal.WRONG_KEY, policy.name)
    return policy


def check_expiry(claim: TokenClaim, now: datetime) -> None:
    """
    Check that the claim is valid at that time.

    Raises:
        Refused: it has expired.
    """
    late = now.timestamp() - claim.expires
    if late > claim.skew.total_seconds():
        # Service Bus's own words, which clients look for.
        text = f"ExpiredToken: The token is expired. It expired {late:.0f} s ago"
        raise Refused(text, Refusal.EXPIRED, claim.key_name)


def authorize(policies: Sequence[AccessPolicy], claim: TokenClaim, access: Access) -> None:
    """
    Check that the claim and one of its client's policies allow the access.

    Raises:
        Refused: the resource doesn't cover the path, no policy covers the entity, or a right is
            missing; the text says which.
    """
    if not audience_covers(claim.resource, access.path):
        text = f"the token's resource {claim.resource!r} doesn't cover {access.path!r}"
        raise Refused(text, Refusal.NOT_ALLOWED, claim.key_name)
    check_policies(policies, claim)
    covering = [policy for policy in policies if policy.covers(access.entity)]
    if any(policy.grants(access.right) for policy in covering):
        return
    names = " or ".join(repr(policy.name) for policy in covering or policies)
    if not covering:
        subject = "the namespace" if access.entity is None else f"entity {access.entity}"
        text = f"policy {names} doesn't cover {subject}"
    else:
        text = (
            f"Unauthorized access. {access.right.value!r} claim(s) are required to perform this"
            f" operation, policy {names} doesn't have it"
        )
    raise Refused(text, Refusal.NOT_ALLOWED, claim.key_name)


# Hosts of Service Bus in any cloud, of emulators, and addresses: no likely name of an entity.
_HOST: Final = re.compile(
    r"(?:localhost|[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9a-f:.]+\]"
    r"|[a-z0-9-]+\.servicebus(?:\.[a-z]+)+)"
    r"(?::[0-9]{1,5})?",
    re.ASCII | re.IGNORECASE,
)
_KINDS: Final[Mapping[type, str]] = {
    Certified: "this certificate",
    Anonymous: "clients without credentials",
}


def check_policies(policies: Sequence[AccessPolicy], claim: TokenClaim) -> None:
    """
    Check that the claim's client has a policy at all.

    Raises:
        Refused: the client has no policy.
    """
    if not policies:
        kind = _KINDS.get(type(claim.identity), "this token")
        text = f"no access policy is for {kind}"
        raise Refused(text, Refusal.NOT_ALLOWED, claim.key_name)


def audience_covers(resource: str, path: str) -> bool:
    """True if a token for that URI covers the decoded path: the path begins with its audience."""
    audience = audience_of(resource)
    return audience is not None and segments_of(path)[: len(audience)] == audience


@functools.lru_cache(maxsize=256)  # each client signs one resource for all its requests
def audience_of(resource: str) -> tuple[str, ...] | None:
    """
    The first segments of every path that a token for that URI covers; None: it covers none.

    Case, scheme, host and port don't count: clients sign `sb:`, `amqp:` or `https:`, with the port
    doubled or left out, and with the host name that they connect to. A text without a scheme counts
    only if it begins with a host that can't be meant as an entity, as Go's SDK signs it. Any other
    covers nothing: its first word could be an entity, and the token would then cover everything.
    """
    before, scheme_end, location = resource.partition("?")[0].partition("://")
    if not scheme_end:
        location = before
        if _HOST.fullmatch(before.partition("/")[0]) is None:
            return None
    _, _, audience = location.partition("/")
    return segments_of(unquote(audience))


def segments_of(path: str) -> tuple[str, ...]:
    """The segments of a decoded path, in lower case."""
    stripped = path.strip("/").lower()
    return tuple(stripped.split("/")) if stripped else ()
