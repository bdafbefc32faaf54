"""Checks the tokens that clients bring against the access policies."""

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
    Right,
    authenticate,
    authorize,
)
from gateway.domain.errors import NotAuthorized
from gateway.ports import WallClock
from gateway.wire.sas import parse_sas, verify

# Microsoft's Service Bus emulator takes these, so the connection strings of developers have them.
EMULATOR_POLICY: Final = AccessPolicy(
    name="RootManageSharedAccessKey", keys=("SAS_KEY_VALUE",), rights=frozenset({Right.MANAGE})
)
MAX_KEPT: Final = 1000  # tokens; a client uses one for minutes
# Keys to compute with where the name is unknown, so that the time doesn't tell which names exist.
_NOBODY: Final = ("nobody", "nobody")
_NEVER: Final = 2**40  # seconds since 1970


class Authorizer:
    """
    Says who may do what on one endpoint.

    An endpoint without policies takes the emulator's well-known key if it is on loopback, and
    nobody at all if it isn't.
    """

    def __init__(
        self,
        policies: Iterable[AccessPolicy],
        *,
        wall_clock: WallClock,
        loopback: bool,
        skew: timedelta = MAX_CLOCK_SKEW,
    ) -> None:
        """
        Take the policies.

        Raises:
            ValueError: two of them have one name.
        """
        self._wall_clock = wall_clock
        self._loopback = loopback
        self._skew = skew
        self._policies: dict[str, AccessPolicy] = {}
        self._kept: dict[str, Claim] = {}  # of tokens that a key has signed
        self._told: set[Callable[[], None]] = set()
        self.replace(policies)

    def replace(self, policies: Iterable[AccessPolicy]) -> None:
        """
        From now on, take these policies and no other; tokens of before are read again.

        Raises:
            ValueError: two of them have one name; those of before stay.
        """
        chosen = tuple(policies) or ((EMULATOR_POLICY,) if self._loopback else ())
        by_name = {policy.name: policy for policy in chosen}
        if len(by_name) < len(chosen):
            raise ValueError("access policies: each name once expected")
        self._policies = by_name
        self._kept.clear()
        for tell in self._told:
            tell()

    @property
    def is_open(self) -> bool:
        """Whether the only key is the emulator's, which everybody knows."""
        return self._policies == {EMULATOR_POLICY.name: EMULATOR_POLICY}

    def tell(self, changed: Callable[[], None]) -> None:
        """
        Call that whenever the policies are others: what was allowed for long may not be any more.
        """
        self._told.add(changed)

    def tell_no_more(self, changed: Callable[[], None]) -> None:
        self._told.discard(changed)

    def claim(self, token: str | None) -> Claim:
        """
        Read a token and say whose it is; what it is good for is still to be asked.

        Raises:
            NotAuthorized: there is none, or it is malformed, wrongly signed, or expired.
        """
        if token is None:
            raise NotAuthorized("no token: an Authorization header is expected")
        claim = self._kept.get(token) or self._read(token)
        self._owner(claim)
        if token not in self._kept:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[token] = claim
        return claim

    def claim_by_key(self, name: str, key: str) -> Claim:
        """
        Whose claim it is who knows a policy's key itself, for all that the policy covers.

        Raises:
            NotAuthorized: it is no key of a policy of that name.
        """
        claim = Claim(
            key_name=name,
            resource="amqp://any/",
            expires=_NEVER,
            key=self._key_of(name, lambda each: hmac.compare_digest(each.encode(), key.encode())),
        )
        self._owner(claim)
        return claim

    def seconds_left(self, claim: Claim) -> float:
        """For how long the claim is good yet, if the policies stay as they are."""
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
        """The key that fits, of the policy of that name; each one is tried in any case."""
        policy = self._policies.get(name)
        fitting = [key for key in (policy.keys if policy else _NOBODY) if fits(key)]
        return fitting[0] if policy and fitting else None

    def check(self, claim: Claim, access: Access) -> None:
        """
        Return if the claim allows the access now; it may have come long ago.

        Raises:
            NotAuthorized: the text says why not.
        """
        authorize(self._owner(claim), claim, access)

    def _owner(self, claim: Claim) -> AccessPolicy:
        policy = authenticate(self._policies, claim, now=self._wall_clock(), skew=self._skew)
        if claim.key not in policy.keys:
            raise NotAuthorized(f"the key that signed it is none of {policy.name!r} any more")
        return policy
