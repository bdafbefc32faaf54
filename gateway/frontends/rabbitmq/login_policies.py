"""
`[[access]]`, which judges what the primary can't while it's away: a user and password of PLAIN that
are the name and a key of a policy, or a token of an issuer as password, with any user.
"""

from contextlib import suppress

import attrs

from gateway.domain.access import Access, Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, NotAuthorized
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq.login import ClientLogin
from gateway.wire.openid.jwt import looks_like_jwt


@attrs.define(eq=False)
class LoginPolicies:
    _authorizer: Authorizer

    @property
    def exist(self) -> bool:
        """True if there are any beside the well-known key."""
        return self._authorizer.has_policies

    def admit(self, login: ClientLogin) -> bool:
        """
        True if a policy is for that login, which has the policy's rights from now on.

        Raises:
            Busy: the client has as many connections as it may, or the keys of its token's issuer
                can't be read.
        """
        secret, authorizer = login.secret, self._authorizer
        if secret is None or not self.exist:
            return False
        try:
            if authorizer.takes_bearer_tokens and looks_like_jwt(secret):
                login.claim = authorizer.claim(secret)
            else:
                login.claim = authorizer.claim_by_key(login.user, secret)
        except NotAuthorized:
            return False
        return True

    def renew(self, login: ClientLogin) -> None:
        """The client has a new token, which counts if a policy admitted the last one."""
        if login.claim is not None:
            with suppress(Busy):
                self.admit(login)

    def may_publish(self, login: ClientLogin, entity: EntityPath | None) -> bool:
        """True if the login was admitted by a policy that lets it send there, now."""
        if login.claim is None:
            return False
        access = Access(right=Right.SEND, entity=entity, path=entity.name if entity else "")
        try:
            self._authorizer.check(login.claim, access)
        except NotAuthorized:
            return False
        return True
