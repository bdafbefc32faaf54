"""What one connection may do: by the tokens that it has brought, or by who SASL says it is."""

import math
from collections.abc import Callable

import attrs

from gateway.domain.access import Access, Claim, Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, NotAuthorized
from gateway.frontends.auth import Authorizer


@attrs.define(eq=False)
class Tokens:
    """Several tokens may be good for different entities; a newer one replaces that of its URI."""

    _authorizer: Authorizer
    _most: int
    on_added: Callable[[], None] = lambda: None  # `seconds_left` may be another one then
    _claims: dict[str, Claim] = attrs.field(factory=dict, init=False)  # by resource

    def add(self, token: str) -> Claim:
        """
        Take a token.

        Raises:
            NotAuthorized: it is none of ours, or has expired.
            Busy: there are as many as there may be.
        """
        claim = self._authorizer.claim(token)
        self.add_claim(claim)
        return claim

    def add_claim(self, claim: Claim) -> None:
        """
        Raises:
            Busy: there are as many as there may be.
        """
        resource = claim.resource.lower()
        if resource not in self._claims and len(self._claims) >= self._most:
            self.drop_expired()
        if resource not in self._claims and len(self._claims) >= self._most:
            raise Busy(f"{self._most} tokens are in use on this connection")
        self._claims[resource] = claim
        self.on_added()

    def check(self, right: Right, entity: EntityPath, *, management: bool = False) -> None:
        """
        Return if one of the tokens allows it now, at the entity or at its management.

        Raises:
            NotAuthorized: none does; the text says why not.
        """
        refusal = NotAuthorized(f"no token for {entity}: put one on $cbs first")
        path = f"{entity.name}/$management" if management else entity.name
        access = Access(right=right, entity=entity, path=path)
        for claim in reversed(self._claims.values()):
            try:
                self._authorizer.check(claim, access)
            except NotAuthorized as error:
                refusal = error
            else:
                return
        raise refusal

    def seconds_left(self) -> float:
        """Until the first of them expires."""
        left = map(self._authorizer.seconds_left, self._claims.values())
        return max(0.0, min(left, default=math.inf))

    def drop_expired(self) -> None:
        """Forget what is good for nothing any more."""
        left = self._authorizer.seconds_left
        self._claims = {key: claim for key, claim in self._claims.items() if left(claim) > 0}
