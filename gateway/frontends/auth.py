"""
Authenticates and authorizes clients by the access policies of an endpoint. Every front end asks
here, whatever the credentials: keys, shared access signatures, or tokens of an identity provider.
"""

import functools
import hmac
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

from gateway.domain.access import (
    Access,
    AccessPolicy,
    Anonymous,
    AnyIdentity,
    Certified,
    ClientIdentity,
    Delegated,
    OnRefused,
    Refusal,
    Refused,
    Right,
    TokenClaim,
    authenticate,
    authorize,
    check_expiry,
    check_policies,
)
from gateway.domain.errors import NotAuthorized
from gateway.frontends.issuers import EVERYTHING, Issuers
from gateway.net.certificates import client_certificate
from gateway.net.visits import current_visit, record_authorized
from gateway.ports import WallClock
from gateway.wire.openid.jwt import SCHEME as BEARER
from gateway.wire.openid.jwt import looks_like_jwt
from gateway.wire.servicebus.sas import SCHEME as SAS
from gateway.wire.servicebus.sas import parse_sas, verify

# Microsoft's Service Bus emulator accepts this policy, so developers' connection strings contain
# it.
EMULATOR_POLICY: Final = AccessPolicy(
    name="RootManageSharedAccessKey", keys=("SAS_KEY_VALUE",), rights=frozenset({Right.MANAGE})
)
REALM: Final = "pairgate"
MAX_KEPT: Final = 1000  # tokens; a client uses one for minutes
# Keys to compute a signature with if the policy is unknown, so that timing doesn't tell which names
# exist.
_NOBODY: Final = ("nobody", "nobody")
_NEVER: Final = 2**40  # seconds since 1970
_ANONYMOUS: Final = TokenClaim(
    key_name=Anonymous().name, resource=EVERYTHING, expires=_NEVER, identity=Anonymous()
)
_BEARER: Final = f"{BEARER.lower()} "


def _ignore(name: str, why: Refusal) -> None:
    """Ignore the refusal."""


class Authorizer:
    """
    Authenticates clients and checks their rights on one endpoint.

    Without policies, an endpoint with `accepts_well_known_key` accepts the emulators' key alone,
    and any other endpoint no key at all.
    """

    def __init__(
        self,
        policies: Iterable[AccessPolicy],
        *,
        wall_clock: WallClock,
        accepts_well_known_key: bool = False,
        on_refused: OnRefused = _ignore,
        issuers: Issuers | None = None,
    ) -> None:
        """
        Use these policies. `on_refused` is called for each client whose credentials are refused.
        `issuers` are the identity providers whose tokens are accepted; None: no token of an
        identity provider is accepted.

        Raises:
            ValueError: two policies have the same name.
        """
        self._wall_clock = wall_clock
        self._accepts_well_known_key = accepts_well_known_key
        self._on_refused = on_refused
        self.issuers = issuers
        if issuers is not None:
            issuers.subscribe(self._forget)
        self._policies: dict[str, AccessPolicy] = {}
        self._kept: dict[str, TokenClaim] = {}  # claims of tokens with a valid signature
        # Of claims with an identity: those among them that are used.
        self._holders: dict[AnyIdentity, Sequence[AccessPolicy]] = {}
        self._told: set[Callable[[], None]] = set()
        self.replace(policies)

    def replace(self, policies: Iterable[AccessPolicy]) -> None:
        """
        Replace all policies. Tokens that clients have are verified again at their next use.

        Raises:
            ValueError: two policies have the same name; the previous policies stay.
        """
        chosen = tuple(policies) or ((EMULATOR_POLICY,) if self._accepts_well_known_key else ())
        by_name = {policy.name: policy for policy in chosen}
        if len(by_name) < len(chosen):
            raise ValueError("access policies: two have the same name")
        self._policies = by_name
        self._forget()

    def _forget(self) -> None:
        """Verify everything again at its next use."""
        self._kept.clear()
        self._holders.clear()
        for tell in self._told:
            tell()

    @property
    def is_open(self) -> bool:
        """True if the only key is the emulators' well-known one."""
        return self._policies == {EMULATOR_POLICY.name: EMULATOR_POLICY}

    @property
    def has_policies(self) -> bool:
        """True if an operator has configured policies."""
        return bool(self._policies) and not self.is_open

    @property
    def takes_bearer_tokens(self) -> bool:
        return self.issuers is not None and bool(self.issuers.providers)

    @property
    def challenges(self) -> Sequence[str]:
        """
        The values of WWW-Authenticate in a refusal over HTTP: the kinds of credentials that may be
        accepted (RFC 9110, 15.5.2), and the source of a bearer token.
        """
        return [f'{SAS} realm="{REALM}"', *self.bearer_challenge]

    @property
    def bearer_challenge(self) -> Sequence[str]:
        """
        The challenge that names the source of a bearer token, as in `challenges`; empty: no bearer
        token is accepted.
        """
        source = None if self.issuers is None else self.issuers.token_source
        if source is None:
            return ()
        where, audience = (re.sub(r'(["\\])', r"\\\1", text) for text in source)
        return (f'{BEARER} authorization_uri="{where}", resource_id="{audience}"',)

    @property
    def takes_anonymous(self) -> bool:
        """True if a policy is for clients without credentials."""
        return any(policy.anonymous for policy in self._policies.values())

    def claim_of_anonymous(self) -> TokenClaim | None:
        """The claim of a client without credentials; None: no policy is for these."""
        return _ANONYMOUS if self.takes_anonymous else None

    def subscribe(self, changed: Callable[[], None]) -> None:
        """
        Call `changed` whenever the policies change: a link that was allowed may be forbidden
        afterwards.
        """
        self._told.add(changed)

    def unsubscribe(self, changed: Callable[[], None]) -> None:
        self._told.discard(changed)

    async def prepare(self, token: str | None) -> None:
        """
        Wait for the keys of the identity provider of a bearer token if they aren't known, for some
        seconds at most. Does nothing for any other token, and has no checkpoint then.
        """
        if token is not None:
            token = with_scheme(token)
        if token is None or token in self._kept or not is_bearer(token):
            return
        if self.issuers is not None:
            await self.issuers.prepare(token[len(_BEARER) :].strip())

    def claim(self, token: str | None) -> TokenClaim:
        """
        Verify a token, as in an Authorization header, and return its claim; what the claim allows
        is checked separately. A bearer token covers the whole endpoint. Without a token, it is the
        claim of the client's certificate, if policies are for it.

        Raises:
            NotAuthorized: the token is missing, malformed, wrongly signed or expired.
            Busy: the keys of the token's issuer can't be read, or the client has as many
                connections as it may.
        """
        if token is None and (certified := self.claim_of_certificate()) is not None:
            record_authorized(certified.key_name)
            return certified
        try:
            if token is None:
                text = "no token: an Authorization header is expected"
                raise Refused(text, Refusal.MISSING)
            token = with_scheme(token)
            claim = self._kept.get(token) or self._read(token)
            self._holder(claim)
        except NotAuthorized as error:
            self.report_refused(error)
            raise
        if token not in self._kept:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
                self._holders.clear()
            self._kept[token] = claim
        record_authorized(claim.key_name)
        return claim

    def claim_of_certificate(self) -> TokenClaim | None:
        """
        The claim of the client by its certificate, for the whole endpoint; None: it has shown none,
        or no policy is for it. It expires with the certificate.
        """
        der = current_visit().certificate
        if not der or not any(policy.certificates for policy in self._policies.values()):
            return None
        claim = _claim_of(der)
        if claim is None:
            return None
        try:
            found = self._holder(claim)
        except NotAuthorized:
            return None  # the certificate has expired since the handshake
        if found:
            record_authorized()
        return claim if found else None

    def claim_by_key(self, name: str, key: str) -> TokenClaim:
        """
        The claim of a client that presents a policy's key itself: it covers all that the policy
        does.

        Raises:
            NotAuthorized: the key isn't one of a policy with that name.
            Busy: the client has as many connections as it may.
        """
        claim = TokenClaim(
            key_name=name,
            resource="amqp://any/",
            expires=_NEVER,
            key=self._key_of(name, lambda each: hmac.compare_digest(each.encode(), key.encode())),
        )
        try:
            self._holder(claim)
        except NotAuthorized as error:
            self.report_refused(error)
            raise
        record_authorized(name)
        return claim

    def report_refused(self, error: NotAuthorized) -> None:
        """Call `on_refused` for a client that gets this error."""
        if not isinstance(error, Refused):  # raised by the codec
            error = Refused(str(error), Refusal.MALFORMED)
        keys = (key for policy in self._policies.values() for key in policy.keys)
        # A client that has swapped name and key must not get its key into the log.
        name = "" if error.name in keys else error.name
        self._on_refused(name, error.why)

    def seconds_left(self, claim: TokenClaim) -> float:
        """The seconds for which the claim stays valid, unless the policies change."""
        if claim.expires >= _NEVER:
            return math.inf
        return claim.expires + claim.skew.total_seconds() - self._wall_clock().timestamp()

    def _read(self, token: str) -> TokenClaim:
        if self.issuers is not None and self.takes_bearer_tokens and is_bearer(token):
            return self.issuers.identify(token[len(_BEARER) :].strip())
        parsed = parse_sas(token)
        return TokenClaim(
            key_name=parsed.key_name,
            resource=parsed.resource,
            expires=parsed.expires,
            key=self._key_of(parsed.key_name, lambda each: verify(parsed, each)),
        )

    def _key_of(self, name: str, fits: Callable[[str], bool]) -> str | None:
        """The matching key of the policy with that name; every key is compared in any case."""
        policy = self._policies.get(name)
        fitting = [key for key in (policy.keys if policy else _NOBODY) if fits(key)]
        return fitting[0] if policy and fitting else None

    def check(self, claim: TokenClaim, access: Access) -> None:
        """
        Check that the claim allows the access now, however long ago it was authenticated.

        A caller that has no other claim to try passes the error to `report_refused`, or calls
        `require`.

        Raises:
            NotAuthorized: the text says why not.
        """
        authorize(self._holder(claim), claim, access)

    def check_any(self, claim: TokenClaim) -> None:
        """
        Return if the claim's client has any right now, for operations that concern no entity.

        Raises:
            NotAuthorized: the claim has expired, or no policy is for its client.
        """
        check_policies(self._holder(claim), claim)

    def delegated(self, claim: TokenClaim) -> Delegated:
        """
        The identity of the claim's client for signatures by a key that it gets now, with the
        policies that it has now.

        Raises:
            NotAuthorized: the claim has expired, or no policy is for its client.
        """
        assert isinstance(claim.identity, ClientIdentity), "only a token's client delegates"
        self.require_any(claim)
        return Delegated(
            issuer=claim.identity.issuer,
            subject=claim.identity.subject,
            marks=frozenset(policy.mark for policy in self._holder(claim)),
        )

    def require(self, claim: TokenClaim, access: Access) -> None:
        """As `check`, for the only claim that the client has."""
        try:
            self.check(claim, access)
        except NotAuthorized as error:
            self.report_refused(error)
            raise

    def require_any(self, claim: TokenClaim) -> None:
        """As `check_any`, for the only claim that the client has."""
        try:
            self.check_any(claim)
        except NotAuthorized as error:
            self.report_refused(error)
            raise

    def _holder(self, claim: TokenClaim) -> Sequence[AccessPolicy]:
        """The policies that the claim's client has now."""
        if claim.identity is None:
            return authenticate(self._policies, claim, now=self._wall_clock())
        check_expiry(claim, self._wall_clock())
        found = self._holders.get(claim.identity)
        if found is None:
            if isinstance(claim.identity, ClientIdentity):
                assert self.issuers is not None, "they have identified it"
                self.issuers.check(claim.identity)
            found = authenticate(self._policies, claim, now=self._wall_clock())
            if len(self._holders) >= MAX_KEPT:
                self._holders.clear()
            self._holders[claim.identity] = found
        return found


@functools.lru_cache(maxsize=256)  # each request of a connection asks
def _claim_of(der: bytes) -> TokenClaim | None:
    certificate = client_certificate(der)
    if certificate is None:
        return None
    return TokenClaim(
        key_name=certificate.subject,
        resource=EVERYTHING,
        expires=int(certificate.expires.timestamp()),
        identity=Certified(subject=certificate.subject, names=certificate.names),
        skew=timedelta(0),
    )


def is_bearer(text: str) -> bool:
    """True if the value of an Authorization header is a bearer token."""
    return text[: len(_BEARER)].lower() == _BEARER


def with_scheme(header: str) -> str:
    """
    The value of an Authorization header, where a bearer token may stand alone: Go's client for
    management sends it so, and Go's and Node's for the target of a forwarding.
    """
    return f"{BEARER} {header}" if looks_like_jwt(header) else header


def as_header(token: str) -> str:
    """A token without a header, such as one on `$cbs`, as the value of an Authorization header."""
    return token if token[: len(SAS)].lower() == SAS.lower() else f"{BEARER} {token}"
