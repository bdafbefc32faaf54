"""What one connection may do: by the tokens that it has brought, or by who SASL says it is."""

import math
from collections.abc import Callable, Iterator

import attrs

from gateway.domain.access import Access, Claim, Right, audience_of, segments_of
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, NotAuthorized
from gateway.frontends.auth import Authorizer

_Audience = tuple[str, ...]


@attrs.define(eq=False)
class Tokens:
    """
    Several tokens may be good for different entities, or be of different policies; a newer one
    replaces that of its policy and audience.

    What one link may do is found without a look at all of them: there may be a thousand of each.
    """

    _authorizer: Authorizer
    _most: int
    on_added: Callable[[], None] = lambda: None  # `seconds_left` may be another one then
    _claims: dict[_Audience, dict[str, Claim]] = attrs.field(factory=dict, init=False)
    _count: int = attrs.field(default=0, init=False)

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
            NotAuthorized: it is good for nothing.
            Busy: there are as many as there may be.
        """
        audience = audience_of(claim.resource)
        if audience is None:
            raise NotAuthorized(f"the token's resource {claim.resource!r} is no URI")
        if self._count >= self._most and claim.key_name not in self._claims.get(audience, {}):
            self.drop_expired()
            if self._count >= self._most:
                raise Busy(f"{self._most} tokens are in use on this connection")
        of_policies = self._claims.setdefault(audience, {})
        self._count += claim.key_name not in of_policies
        of_policies[claim.key_name] = claim
        self.on_added()

    def check(self, right: Right, entity: EntityPath, *, management: bool = False) -> None:
        """
        Return if one of the tokens allows it now, at the entity or at its management.

        Raises:
            NotAuthorized: none does; the text says why not.
        """
        path = f"{entity.name}/$management" if management else entity.name
        access = Access(right=right, entity=entity, path=path)
        refusal = NotAuthorized(f"no token for {path!r}: put one on $cbs first")
        for claim in self._good_for(path):
            try:
                self._authorizer.check(claim, access)
            except NotAuthorized as error:
                refusal = error
            else:
                return
        raise refusal

    def _good_for(self, path: str) -> Iterator[Claim]:
        """The tokens for that path or for what it is a part of, the closest ones first."""
        segments = segments_of(path)
        for length in range(len(segments), -1, -1):
            yield from self._claims.get(segments[:length], {}).values()

    def seconds_left(self) -> float:
        """Until the first of them expires."""
        claims = (claim for of_policies in self._claims.values() for claim in of_policies.values())
        first = min(claims, key=lambda claim: claim.expires, default=None)
        return math.inf if first is None else max(0.0, self._authorizer.seconds_left(first))

    def drop_expired(self) -> None:
        """Forget what is good for nothing any more."""
        left = self._authorizer.seconds_left
        for audience, of_policies in list(self._claims.items()):
            good = {name: claim for name, claim in of_policies.items() if left(claim) > 0}
            self._count -= len(of_policies) - len(good)
            self._claims[audience] = good
            if not good:
                del self._claims[audience]
