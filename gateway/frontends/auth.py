"""Authenticates and authorizes clients by the access policies of an endpoint."""

import hmac
import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from gateway.domain.access import (
    MAX_CLOCK_SKEW,
    Access,
    AccessPolicy,
    Claim,
    OnRefused,
    Refusal,
    Refused,
    Right,
    authenticate,
    authorize,
)
from gateway.domain.errors import NotAuthorized
from gateway.net.visits import note_authorized
from gateway.ports import WallClock
from gateway.wire.servicebus.sas import parse_sas, verify

# Microsoft's Service Bus emulator accepts this policy, so developers' connection strings contain
# it.
EMULATOR_POLICY: Final = AccessPolicy(
    name="RootManageSharedAccessKey", keys=("SAS_KEY_VALUE",), rights=frozenset({Right.MANAGE})
)
MAX_KEPT: Final = 1000  # tokens; a client uses one for minutes
# Keys to compute a signature with if the policy is unknown, so that timing doesn't tell which names
# exist.
_NOBODY: Final = ("nobody", "nobody")
_NEVER: Final = 2**40  # seconds since 1970


def _ignore(name: str, why: Refusal) -> None:
    """Ignore the refusal."""


class Authorizer:
    """
    Authenticates clients and checks their rights on one endpoint.

    An endpoint without policies accepts the emulator's well-known key if it is on loopback, and no
    key at all otherwise.
    """

    def __init__(
        self,
        policies: Iterable[AccessPolicy],
        *,
        wall_clock: WallClock,
        loopback: bool,
        skew: timedelta = MAX_CLOCK_SKEW,
        on_refused: OnRefused = _ignore,
    ) -> None:
        """
        Use these policies. `on_refused` is called for each client whose credentials are refused.

        Raises:
            ValueError: two policies have the same name.
        """
        self._wall_clock = wall_clock
        self._loopback = loopback
        self._skew = skew
        self._on_refused = on_refused
        self._policies: dict[str, AccessPolicy] = {}
        self._kept: dict[str, Claim] = {}  # claims of tokens with a valid signature
        self._told: set[Callable[[], None]] = set()
        self.replace(policies)

    def replace(self, policies: Iterable[AccessPolicy]) -> None:
        """
        Replace all policies. Tokens that clients have are verified again at their next use.

        Raises:
            ValueError: two policies have the same name; the previous policies stay.
        """
        chosen = tuple(policies) or ((EMULATOR_POLICY,) if self._loopback else ())
        by_name = {policy.name: policy for policy in chosen}
        if len(by_name) < len(chosen):
            raise ValueError("access policies: two have the same name")
        self._policies = by_name
        self._kept.clear()
        for tell in self._told:
            tell()

    @property
    def is_open(self) -> bool:
        """True if the only key is the emulator's, which is public."""
        return self._policies == {EMULATOR_POLICY.name: EMULATOR_POLICY}

    def tell(self, changed: Callable[[], None]) -> None:
        """
        Call `changed` whenever the policies change: a link that was allowed may not be any more.
        """
        self._told.add(changed)

    def tell_no_more(self, changed: Callable[[], None]) -> None:
        self._told.discard(changed)

    def claim(self, token: str | None) -> Claim:
        """
        Verify a token and return its claim; what the claim allows is checked separately.

        Raises:
            NotAuthorized: the token is missing, malformed, wrongly signed or expired.
        """
        try:
            if token is None:
                text = "no token: an Authorization header is expected"
                raise Refused(text, Refusal.MISSING)
            claim = self._kept.get(token) or self._read(token)
            self._owner(claim)
        except NotAuthorized as error:
            self.note_refused(error)
            raise
        if token not in self._kept:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[token] = claim
        note_authorized()
        return claim

    def claim_by_key(self, name: str, key: str) -> Claim:
        """
        The claim of a client that presents a policy's key itself: it covers all that the policy
        does.

        Raises:
            NotAuthorized: the key isn't one of a policy with that name.
        """
        claim = Claim(
            key_name=name,
            resource="amqp://any/",
            expires=_NEVER,
            key=self._key_of(name, lambda each: hmac.compare_digest(each.encode(), key.encode())),
        )
        try:
            self._owner(claim)
        except NotAuthorized as error:
            self.note_refused(error)
            raise
        note_authorized()
        return claim

    def note_refused(self, error: NotAuthorized) -> None:
        """Tell `on_refused` of a client that gets this error."""
        if not isinstance(error, Refused):  # raised by the codec
            error = Refused(str(error), Refusal.MALFORMED)
        keys = (key for policy in self._policies.values() for key in policy.keys)
        # A client that has swapped name and key must not get its key into the log.
        name = "" if error.name in keys else error.name
        self._on_refused(name, error.why)

    def seconds_left(self, claim: Claim) -> float:
        """For how many seconds the claim stays valid, unless the policies change."""
        if claim.expires >= _NEVER:
            return math.inf
        return claim.expires + self._skew.total_seconds() - self._wall_clock().timestamp()

    def _read(self, token: str) -> Claim:
        parsed = parse_sas(token)
        return Claim(
            key_name=parsed.key_name,
            resource=parsed.resource,
            expires=parsed.expires,
            key=self._key_of(parsed.key_name, lambda each: verify(parsed, each)),
        )

    def _key_of(self, name: str, fits: Callable[[str], bool]) -> str | None:
        """The key that matches, of the policy with that name; every key is compared in any case."""
        policy = self._policies.get(name)
        fitting = [key for key in (policy.keys if policy else _NOBODY) if fits(key)]
        return fitting[0] if policy and fitting else None

    def check(self, claim: Claim, access: Access) -> None:
        """
        Return if the claim allows the access now, however long ago it was authenticated.

        A caller that has no other claim to try passes the error to `note_refused`, or calls
        `require`.

        Raises:
            NotAuthorized: the text says why not.
        """
        authorize(self._owner(claim), claim, access)

    def require(self, claim: Claim, access: Access) -> None:
        """As `check`, for the only claim that the client has."""
        try:
            self.check(claim, access)
        except NotAuthorized as error:
            self.note_refused(error)
            raise

    def _owner(self, claim: Claim) -> AccessPolicy:
        policy = authenticate(self._policies, claim, now=self._wall_clock(), skew=self._skew)
        if claim.key not in policy.keys:
            text = f"the key that signed it is no longer one of policy {policy.name!r}"
            raise Refused(text, Refusal.WRONG_KEY, policy.name)
        return policy
