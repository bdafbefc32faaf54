"""Rights of one connection, from the tokens on `$cbs` or from its SASL identity."""

import math
from collections.abc import Callable, Iterator

import attrs

from gateway.domain.access import (
    Access,
    Anonymous,
    Refusal,
    Refused,
    Right,
    TokenClaim,
    audience_of,
    segments_of,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, NotAuthorized
from gateway.frontends.auth import Authorizer, as_header
from gateway.net.visits import record_authorized

_Audience = str  # segments of a path, in one text: each alone takes 20 times its bytes


@attrs.define(eq=False)
class ConnectionTokens:
    """
    The tokens of one connection. They may be for different entities, or of different policies; a
    newer token replaces the one with its policy and audience.

    The check of a link doesn't examine all tokens, since a connection may have a thousand links and
    a thousand tokens.
    """

    _authorizer: Authorizer
    _most: int
    on_added: Callable[[], None] = lambda: None  # called when `seconds_left` may have changed
    _claims: dict[_Audience, dict[str, TokenClaim]] = attrs.field(factory=dict, init=False)
    _count: int = attrs.field(default=0, init=False)

    async def add(self, token: str, audience: str) -> None:
        """
        Add a token that the client puts for the entity with that URI. A shared access signature
        names its resource itself. May wait for some seconds for an identity provider's keys.

        Raises:
            NotAuthorized: the token is not valid, or has expired.
            Busy: the connection has as many tokens as it may, or the keys of the token's issuer
                can't be read.
        """
        header = as_header(token)
        await self._authorizer.prepare(header)
        claim = self._authorizer.claim(header)
        if claim.identity is not None:
            claim = attrs.evolve(claim, resource=audience)
        self.add_claim(claim)

    def add_claim(self, claim: TokenClaim) -> None:
        """
        Add a claim.

        Raises:
            NotAuthorized: the claim's resource is no URI.
            Busy: the connection has as many tokens as it may.
        """
        segments = audience_of(claim.resource)
        if segments is None:
            text = f"the token's resource {claim.resource!r} isn't a URI"
            error = Refused(text, Refusal.MALFORMED, claim.key_name)
            self.report_refused(error)
            raise error
        audience = "/".join(segments)
        if self._count >= self._most and claim.key_name not in self._claims.get(audience, {}):
            self.drop_expired()
            if self._count >= self._most:
                raise Busy(f"this connection has {self._most} valid tokens, which is the limit")
        of_policies = self._claims.setdefault(audience, {})
        self._count += claim.key_name not in of_policies
        of_policies[claim.key_name] = claim
        self.on_added()

    def check(self, right: Right, entity: EntityPath, *, management: bool = False) -> None:
        """
        Check that one of the tokens allows the operation now, on the entity or on its management.

        Raises:
            NotAuthorized: no token allows it; the text says why not.
        """
        path = f"{entity.name}/$management" if management else entity.name
        access = Access(right=right, entity=entity, path=path)
        text = f"no token for {path!r}: put one on $cbs first"
        refusal: NotAuthorized = Refused(text, Refusal.MISSING)
        for claim in self._good_for(path):
            try:
                self._authorizer.check(claim, access)
            except NotAuthorized as error:
                refusal = error
            else:
                if isinstance(claim.identity, Anonymous):  # the client counts by its address
                    record_authorized()
                return
        raise refusal

    def report_refused(self, error: NotAuthorized) -> None:
        """Report an error that the client gets, when none of its tokens suffices."""
        self._authorizer.report_refused(error)

    def check_any(self) -> None:
        """
        Check that the connection has a valid token with any right.

        Raises:
            NotAuthorized: the connection has no such token.
        """
        if (refusal := self._lack()) is not None:
            self.report_refused(refusal)
            raise refusal

    @property
    def has_any(self) -> bool:
        """True if the connection has a valid token with any right."""
        return self._lack() is None

    def _lack(self) -> NotAuthorized | None:
        """The reason why no token is valid; None: one is."""
        refusal: NotAuthorized = Refused("no token: put one on $cbs first", Refusal.MISSING)
        for of_policies in self._claims.values():
            for claim in of_policies.values():
                try:
                    self._authorizer.check_any(claim)
                except NotAuthorized as error:
                    refusal = error
                else:
                    return None
        return refusal

    def _good_for(self, path: str) -> Iterator[TokenClaim]:
        """The tokens for that path or for a parent of it, the closest first."""
        segments = segments_of(path)
        for length in range(len(segments), -1, -1):
            yield from self._claims.get("/".join(segments[:length]), {}).values()

    def seconds_left(self) -> float:
        """Seconds until the first token isn't valid any more; each has a skew of its own."""
        claims = (claim for of_policies in self._claims.values() for claim in of_policies.values())
        return max(0.0, min(map(self._authorizer.seconds_left, claims), default=math.inf))

    def drop_expired(self) -> None:
        """Forget tokens that aren't valid any more."""
        left = self._authorizer.seconds_left
        for audience, of_policies in list(self._claims.items()):
            good = {name: claim for name, claim in of_policies.items() if left(claim) > 0}
            self._count -= len(of_policies) - len(good)
            self._claims[audience] = good
            if not good:
                del self._claims[audience]
